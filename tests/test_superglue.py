from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import matcher
from matcher import assets, methods, weights
from matcher.methods import _superglue as models
from matcher.nn.assignment import sinkhorn
from matcher.nn.pointsets import PointSet
from matcher.nn.superglue import Config, SuperGlue, published_state
from matcher.nn.superglue_published import TokenNorm
from matcher.types import Description

SIZE = torch.tensor([[640.0, 480.0]])
SMALL = Config("modern", input_channels=32, channels=32, heads=2, layers=4, sinkhorn_steps=20)
PUBLISHED = Config(
    input_channels=32, channels=32, heads=2, layers=2, encoder=(8, 16), sinkhorn_steps=20
)
CONFIGS = [pytest.param(SMALL, id="modern"), pytest.param(PUBLISHED, id="published")]


def points(count: int, channels: int = 32, seed: int = 0) -> PointSet:
    generator = torch.Generator().manual_seed(seed)
    descriptors = torch.randn(1, count, channels, generator=generator)
    return PointSet(
        points=torch.rand(1, count, 2, generator=generator) * SIZE,
        scores=torch.rand(1, count, generator=generator),
        descriptors=nn.functional.normalize(descriptors, dim=-1),
        sizes=SIZE,
    )


def similar(image: PointSet, noise: float = 0.1, seed: int = 1) -> PointSet:
    """The same points seen again, in the same order."""
    generator = torch.Generator().manual_seed(seed)
    moved = image.points + torch.randn(image.points.shape, generator=generator)
    changed = torch.randn(image.descriptors.shape, generator=generator) * noise
    return replace(image, points=moved.clamp(min=0), descriptors=image.descriptors + changed)


def take(image: PointSet, order: Tensor) -> PointSet:
    return replace(
        image,
        points=image.points[:, order],
        scores=image.scores[:, order],
        descriptors=image.descriptors[:, order],
    )


def stack(images: list[PointSet], length: int, filler: float) -> PointSet:
    """Pad to one length with a filler, and batch."""

    def pad(tensor: Tensor) -> Tensor:
        grown = torch.full((1, length, *tensor.shape[2:]), filler)
        grown[:, : tensor.shape[1]] = tensor
        return grown

    counts = torch.tensor([image.points.shape[1] for image in images])
    return PointSet(
        points=torch.cat([pad(image.points) for image in images]),
        scores=torch.cat([pad(image.scores) for image in images]),
        descriptors=torch.cat([pad(image.descriptors) for image in images]),
        sizes=torch.cat([image.sizes for image in images]),
        mask=torch.arange(length) < counts[:, None],
    )


def random_network(config: Config, seed: int = 0) -> SuperGlue:
    """A network whose every parameter is random, batch norms and confidences included."""
    torch.manual_seed(seed)
    network = SuperGlue(config)
    for module in network.modules():
        if isinstance(module, TokenNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    return network.eval()


def published_names(network: SuperGlue) -> dict[str, Tensor]:
    """Name our parameters as the official file does, heads last in its channels, products with a kernel axis."""
    config = network.config
    heads_last = torch.arange(config.channels).unflatten(0, (config.heads, -1)).T.flatten()
    state: dict[str, Tensor] = {}
    for key, value in network.state_dict().items():
        name = key.replace("context.encoder.", "kenc.encoder.").replace("dustbin", "bin_score")
        name = name.replace("context.layers.", "gnn.layers.").replace("context.final", "final")
        product = value.ndim == 2
        if ".query." in name:
            state[name.replace("query", "attn.proj.0")] = value[heads_last]
        elif ".key_value." in name:
            for number, part in enumerate(value.chunk(2)):
                state[name.replace("key_value", f"attn.proj.{number + 1}")] = part[heads_last]
        elif ".merge.weight" in name:
            state[name.replace("merge", "attn.merge")] = value[:, heads_last]
        else:
            state[name.replace(".merge.", ".attn.merge.")] = value
        if product:
            last = list(state)[-2:] if ".key_value." in name else list(state)[-1:]
            for each in last:
                state[each] = state[each][..., None]
    return state


def transformers_twin(network: SuperGlue):
    """The same network in transformers."""
    module = pytest.importorskip("transformers.models.superglue")
    config = network.config
    twin = module.SuperGlueForKeypointMatching(
        module.SuperGlueConfig(
            hidden_size=config.channels,
            keypoint_encoder_sizes=list(config.encoder),
            gnn_layers_types=["self", "cross"] * config.layers,
            num_attention_heads=config.heads,
            sinkhorn_iterations=config.sinkhorn_steps,
            matching_threshold=0.0,
        )
    )
    state: dict[str, Tensor] = {}
    for key, value in network.state_dict().items():
        name = key.replace("context.layers.", "gnn.layers.").replace("dustbin", "bin_score")
        name = name.replace("context.final_proj.", "final_projection.final_proj.")
        name = name.replace("context.encoder.", "keypoint_encoder.encoder.")
        name = name.replace(".query.", ".attention.self.query.")
        name = name.replace(".merge.", ".attention.output.dense.")
        if ".key_value." in name:
            for part, half in zip(("key", "value"), value.chunk(2), strict=True):
                state[name.replace("key_value", f"attention.self.{part}")] = half
            continue
        for block, last in ((".mlp.", 3), ("keypoint_encoder.encoder.", 3 * len(config.encoder))):
            head, found, rest = name.partition(block)
            if found:
                number, _, kind = rest.partition(".")
                layer = (
                    "" if int(number) == last else ".batch_norm" if int(number) % 3 else ".linear"
                )
                name = f"{head}{block}{int(number) // 3}{layer}.{kind}"
        state[name] = value
    loaded = twin.load_state_dict(state, strict=False)
    assert loaded.unexpected_keys == []
    assert all(key.startswith("keypoint_detector.") for key in loaded.missing_keys)
    return twin.eval()


@torch.inference_mode()
def test_random_weights_give_what_transformers_gives() -> None:
    network = random_network(replace(PUBLISHED, sinkhorn_steps=100))
    twin = transformers_twin(network)
    image0 = points(60)
    image1 = take(similar(image0), torch.randperm(60, generator=torch.Generator().manual_seed(3)))

    assigned = network.folded()(image0, image1)

    both = [torch.stack(pair, 1) for pair in (
        (image0.points, image1.points),
        (image0.descriptors, image1.descriptors),
        (image0.scores, image1.scores),
    )]  # fmt: skip
    matches, scores, *_ = twin._match_image_pair(*both, height=480, width=640)
    assert (assigned.partners0 >= 0).sum() > 10
    assert torch.equal(assigned.partners0[0], matches[0, 0].long())
    assert torch.equal(assigned.partners1[0], matches[0, 1].long())
    torch.testing.assert_close(assigned.scores0[0], scores[0, 0], atol=1e-5, rtol=0)


def test_the_official_layout_loads_strictly() -> None:
    network, other = random_network(PUBLISHED), SuperGlue(PUBLISHED).eval()
    state = published_names(network)

    weights.load_strict(other, published_state(state, PUBLISHED), "superglue.pth")

    image0 = points(20)
    expected, found = network(image0, similar(image0)), other(image0, similar(image0))
    torch.testing.assert_close(found.log_assignment, expected.log_assignment)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gnn.layers.1.attn.proj.2.bias": None}, r"lacks context\.layers\.1\.key_value\.bias"),
        ({"bin_score": None}, "lacks dustbin"),
        ({"optimiser": torch.zeros(1)}, "has unknown optimiser"),
        ({"final_proj.weight": torch.zeros(16, 32, 1)}, r"other shapes in context\.final_proj"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(change, message) -> None:
    # CTF-14
    state = published_names(random_network(PUBLISHED)) | change
    state = {key: value for key, value in state.items() if value is not None}

    with pytest.raises(ValueError, match=message):
        weights.load_strict(SuperGlue(PUBLISHED), published_state(state, PUBLISHED), "file")


@torch.inference_mode()
def test_folding_the_batch_norms_changes_nothing() -> None:
    network, image0 = random_network(PUBLISHED), points(30)
    before = network(image0, similar(image0)).log_assignment

    after = network.folded()(image0, similar(image0)).log_assignment

    assert not any(isinstance(module, TokenNorm) for module in network.modules())
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("filler", [0.0, 5.0, float("nan")])
@pytest.mark.parametrize("config", CONFIGS)
def test_padding_does_not_change_the_answer(config: Config, filler: float) -> None:
    # ATT-01
    network = random_network(config)
    counts = [(50, 80), (17, 3), (60, 60), (1, 1), (0, 4), (5, 0)]
    pairs = [(points(a, seed=i), similar(points(b, seed=i))) for i, (a, b) in enumerate(counts)]

    together = network(
        stack([pair[0] for pair in pairs], 60, filler),
        stack([pair[1] for pair in pairs], 80, filler),
    )

    for row, (pair, (a, b)) in enumerate(zip(pairs, counts, strict=True)):
        alone = network(*pair)
        assert torch.equal(together.partners0[row, :a], alone.partners0[0])
        assert torch.equal(together.partners1[row, :b], alone.partners1[0])
        torch.testing.assert_close(together.scores0[row, :a], alone.scores0[0], atol=1e-5, rtol=0)
        assert (together.partners0[row, a:] == -1).all()
        assert (together.partners1[row, b:] == -1).all()
        assert (together.scores0[row, a:] == 0).all()
        assert together.layers[row] == alone.layers[0]


@torch.inference_mode()
@pytest.mark.parametrize("config", CONFIGS)
def test_padding_may_stand_anywhere(config: Config) -> None:
    # ATT-02
    network = random_network(config)
    image0, image1 = points(4), similar(points(4))
    spread = stack([image0], 10, float("nan"))
    order = torch.tensor([9, 0, 4, 1, 5, 6, 2, 7, 3, 8])
    spread = replace(take(spread, order), mask=spread.mask[:, order])

    found = network(spread, image1)

    alone = network(image0, image1)
    real = spread.mask[0].nonzero()[:, 0]
    assert torch.equal(found.partners0[0, real], alone.partners0[0])
    assert torch.equal(
        found.partners1[0], torch.where(alone.partners1[0] < 0, -1, real[alone.partners1[0]])
    )


def adaptive_network() -> SuperGlue:
    """Confidences and matchabilities that differ among tokens, so that pairs stop and points drop unlike."""
    network = random_network(replace(SMALL, depth_confidence=0.85, width_confidence=0.5))
    for head in network.context.log_assignment:
        nn.init.normal_(head.matchability.weight, std=2.0)
    for confidence in network.context.token_confidence:
        nn.init.normal_(confidence.token[0].weight, std=2.0)
        nn.init.constant_(confidence.token[0].bias, 2.0)
    return network


@torch.inference_mode()
def test_depth_and_pruning_are_decided_for_each_pair_by_itself() -> None:
    # ATT-03
    network = adaptive_network()
    counts = [(50, 40), (30, 60), (9, 8), (3, 70), (45, 45), (1, 2)]
    pairs = [(points(a, seed=i), points(b, seed=50 + i)) for i, (a, b) in enumerate(counts)]

    together = network(
        stack([pair[0] for pair in pairs], 50, 0.0), stack([pair[1] for pair in pairs], 70, 0.0)
    )

    alone = [network(*pair) for pair in pairs]
    assert len({int(each.layers[0]) for each in alone}) > 1
    for row, (each, (a, b)) in enumerate(zip(alone, counts, strict=True)):
        assert together.layers[row] == each.layers[0]
        assert torch.equal(together.partners0[row, :a], each.partners0[0])
        torch.testing.assert_close(
            together.log_assignment[row, :a, :b].exp(), each.log_assignment[0, :a, :b].exp(),
            atol=1e-5, rtol=0,
        )  # fmt: skip


@torch.inference_mode()
def test_pruning_leaves_at_least_one_point() -> None:
    network = random_network(replace(SMALL, width_confidence=0.01))
    for head in network.context.log_assignment:
        nn.init.constant_(head.matchability.bias, -5.0)  # nobody has a partner
    for confidence in network.context.token_confidence:
        nn.init.constant_(confidence.token[0].bias, 50.0)  # and all are sure
    image = points(20)

    assigned = network(image, similar(image))

    reached = assigned.log_assignment[0, :-1, :-1] > -torch.inf
    assert reached.sum() == 1
    dropped = ~reached.any(1)
    assert (assigned.log_assignment[0, :-1, -1][dropped] == 0).all()


@torch.inference_mode()
def test_without_pruning_or_stopping_the_adaptive_network_is_the_plain_one() -> None:
    network, image = random_network(SMALL), points(30)
    lazy = random_network(replace(SMALL, depth_confidence=1.0, width_confidence=1.0))

    torch.testing.assert_close(
        lazy(image, similar(image)).log_assignment, network(image, similar(image)).log_assignment
    )


@torch.inference_mode()
@pytest.mark.parametrize("config", CONFIGS)
def test_swapping_the_images_swaps_the_matches(config: Config) -> None:
    # ATT-06
    network, image0, image1 = random_network(config), points(40), similar(points(30))

    forth, back = network(image0, image1), network(image1, image0)

    assert torch.equal(forth.partners0, back.partners1)
    torch.testing.assert_close(forth.scores0, back.scores1, atol=1e-5, rtol=0)
    # Sinkhorn ends on the columns: swapped, its sums differ by what is left to converge.
    torch.testing.assert_close(
        forth.log_assignment.exp(), back.log_assignment.mT.exp(), atol=1e-4, rtol=0
    )


@torch.inference_mode()
@pytest.mark.parametrize("config", CONFIGS)
def test_partners_point_at_each_other(config: Config) -> None:
    # ATT-07
    network = random_network(config)

    assigned = network(points(7), similar(points(11)))

    partners0, partners1 = assigned.partners0[0], assigned.partners1[0]
    assert partners0.shape == (7,)
    assert partners1.shape == (11,)
    assert (partners0 >= 0).any()
    for row, partner in enumerate(partners0.tolist()):
        assert partner == -1 or partners1[partner] == row
    for row, partner in enumerate(partners1.tolist()):
        assert partner == -1 or partners0[partner] == row


@torch.inference_mode()
@pytest.mark.parametrize("config", CONFIGS)
def test_shuffling_the_points_shuffles_the_matches(config: Config) -> None:
    # ATT-14
    network, image0, image1 = random_network(config), points(60), similar(points(45))
    order0, order1 = torch.randperm(60), torch.randperm(45)

    straight = network(image0, image1)
    shuffled = network(take(image0, order0), take(image1, order1))

    expected = straight.log_assignment[0, :-1, :-1][order0][:, order1]
    torch.testing.assert_close(
        shuffled.log_assignment[0, :-1, :-1].exp(), expected.exp(), atol=1e-5, rtol=0
    )
    named = shuffled.partners0[0]
    named = torch.where(named < 0, -1, order1[named])
    assert torch.equal(named, straight.partners0[0][order0])


@pytest.mark.parametrize("config", CONFIGS)
def test_a_lone_point_can_be_trained_on(config: Config) -> None:
    # TRN-02
    network = random_network(config).train()

    network(points(1), points(1, seed=2)).log_assignment.sum().backward()

    gradients = [each.grad for each in network.parameters() if each.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)


@torch.inference_mode()
@pytest.mark.parametrize("config", CONFIGS)
def test_evaluation_is_the_same_in_batches_of_one_and_eight(config: Config) -> None:
    # TRN-02
    network = random_network(config)
    images = [points(12, seed=i) for i in range(8)]

    together = network(stack(images, 12, 0.0), stack([similar(i) for i in images], 12, 0.0))

    for row, image in enumerate(images):
        alone = network(image, similar(image)).log_assignment[0]
        torch.testing.assert_close(
            together.log_assignment[row].exp(), alone.exp(), atol=1e-5, rtol=0
        )


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("config", CONFIGS)
def test_lower_precision_comes_near_and_keeps_the_transport_exact(config: Config, dtype) -> None:
    network, image = random_network(config), points(40)
    exact = network(image, similar(image))

    with torch.autocast("cpu", dtype):
        low = network(image, similar(image))

    assert low.log_assignment.dtype == torch.float32
    assert low.log_assignment.isfinite().all()
    torch.testing.assert_close(
        low.log_assignment.exp(), exact.log_assignment.exp(), atol=0.1, rtol=0
    )
    columns = low.log_assignment.exp().sum(1)[:, :-1]
    torch.testing.assert_close(columns, torch.ones_like(columns), atol=1e-4, rtol=0)


@torch.inference_mode()
def test_modern_scores_complete_the_assignment_of_lightglue() -> None:
    network = random_network(SMALL)
    state = network.context.begin(points(30), similar(points(20)))
    head = network.context.log_assignment[0]

    scores = network.context.scores(state, 1)

    tokens0, tokens1 = (side.tokens for side in state.sides)
    chance0, chance1 = head.matchable(tokens0).sigmoid(), head.matchable(tokens1).sigmoid()
    similarity = head.similarity(tokens0, tokens1)
    plan = similarity.softmax(1) * similarity.softmax(2) * chance0[:, :, None] * chance1[:, None, :]
    alone = (1 - chance0)[:, :, None] * (1 - chance1)[:, None, :]
    matched = (chance0.sum() + chance1.sum()) / 2
    torch.testing.assert_close(scores.exp(), plan / alone * matched, atol=1e-5, rtol=1e-4)


def test_a_transport_plan_given_as_modern_scores_stays_as_it_is() -> None:
    torch.manual_seed(0)
    plan = torch.rand(1, 6, 9)
    plan = plan / plan.sum(2, keepdim=True).clamp(min=plan.sum(1).max()) * 0.9
    alone0, alone1 = 1 - plan.sum(2, keepdim=True), 1 - plan.sum(1, keepdim=True)
    scores = (plan / (alone0 * alone1) * plan.sum()).log()

    transport = sinkhorn(scores, torch.tensor(0.0), 200).log_assignment.exp()

    torch.testing.assert_close(transport[:, :-1, :-1], plan, atol=1e-5, rtol=0)
    torch.testing.assert_close(transport[:, :-1, -1:], alone0, atol=1e-5, rtol=0)
    torch.testing.assert_close(transport[:, -1:, :-1], alone1, atol=1e-5, rtol=0)


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="no architecture 'new'; there are published, modern"):
        Config("new")
    with pytest.raises(ValueError, match=r"channels \(96\) must be a multiple of heads \(5\)"):
        Config(input_channels=96, channels=96, heads=5)
    with pytest.raises(ValueError, match="adds positions to descriptors of 256 channels, not 64"):
        Config(input_channels=64)
    with pytest.raises(ValueError, match="need architecture='modern'"):
        Config(depth_confidence=0.9)


def test_inputs_that_do_not_fit_are_refused() -> None:
    # ATT-08
    network, image = random_network(SMALL), points(5)

    with pytest.raises(ValueError, match=r"image1\.descriptors must be \(B N D\) with B=1, D=32"):
        network(image, points(5, channels=64))
    with pytest.raises(ValueError, match=r"sizes must be \(B 2\)"):
        replace(image, sizes=torch.zeros(1, 3))
    with pytest.raises(TypeError, match="sizes"):
        PointSet(image.points, image.scores, image.descriptors)  # type: ignore[call-arg]
