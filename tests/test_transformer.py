from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from matcher import weights
from matcher.nn.positions import normalise_points
from matcher.nn.transformer import LIGHTER, Config, Context, CrossBlock, first_layers

SIZE = torch.tensor([[640.0, 480.0]])


def random_tokens(count0: int, count1: int, channels: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    points = [torch.rand(1, count, 2, generator=generator) * SIZE for count in (count0, count1)]
    descriptors = [
        nn.functional.normalize(torch.randn(1, count, channels, generator=generator), dim=-1)
        for count in (count0, count1)
    ]
    return tuple(descriptors), tuple(points)


def normalised(points: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return tuple(normalise_points(each, SIZE, 0.5) for each in points)


def kornia_twin(config: Config, state: dict[str, Tensor]):
    feature = pytest.importorskip("kornia.feature")
    twin = feature.LightGlue(
        None,
        input_dim=config.input_channels,
        descriptor_dim=config.channels,
        n_layers=config.layers,
        num_heads=config.heads,
        depth_confidence=-1,
        width_confidence=-1,
        flash=False,
    )
    unused = twin.load_state_dict(state, strict=False)
    assert unused.unexpected_keys == []
    assert unused.missing_keys == ["confidence_thresholds"]
    return twin.eval()


def kornia_log_assignment(twin, descriptors, points) -> Tensor:
    images = [
        {"keypoints": p, "descriptors": d, "image_size": SIZE}
        for p, d in zip(points, descriptors, strict=True)
    ]
    return twin({"image0": images[0], "image1": images[1]})["log_assignment"]


def our_log_assignment(network: Context, descriptors, points) -> Tensor:
    tokens0, tokens1 = network(descriptors, normalised(points))
    head = network.log_assignment[-1]
    similarity = head.similarity(tokens0, tokens1)
    gates = nn.functional.logsigmoid(head.matchable(tokens0))[:, :, None]
    gates = gates + nn.functional.logsigmoid(head.matchable(tokens1))[:, None, :]
    return similarity.log_softmax(1) + similarity.log_softmax(2) + gates


@torch.inference_mode()
@pytest.mark.parametrize(
    "config", [LIGHTER, Config(input_channels=32, channels=64, heads=4, layers=3)]
)
@pytest.mark.parametrize("counts", [(70, 50), (60, 60)])
def test_random_weights_give_what_kornia_gives(config: Config, counts: tuple[int, int]) -> None:
    torch.manual_seed(1)
    network = Context(config).eval()
    twin = kornia_twin(config, network.state_dict())
    descriptors, points = random_tokens(*counts, config.input_channels)

    ours = our_log_assignment(network, descriptors, points)

    theirs = kornia_log_assignment(twin, descriptors, points)[:, :-1, :-1]
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_lighterglue_weights_load_strictly_and_give_what_kornia_gives() -> None:
    network = Context(LIGHTER).eval()
    state = weights.state_dict("lighterglue")
    weights.load_strict(network, first_layers(state, 6), "lighterglue")
    twin = kornia_twin(LIGHTER, network.state_dict())
    descriptors, points = random_tokens(70, 50, 64)

    ours = our_log_assignment(network, descriptors, points)

    theirs = kornia_log_assignment(twin, descriptors, points)[:, :-1, :-1]
    torch.testing.assert_close(ours.exp(), theirs.exp(), atol=1e-5, rtol=0)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-5)


def test_first_layers_are_a_smaller_network() -> None:
    torch.manual_seed(2)
    whole = Context(Config(32, 64, 2, layers=4)).state_dict()
    whole["confidence_thresholds"] = torch.zeros(4)

    small = Context(Config(32, 64, 2, layers=2))

    weights.load_strict(small, first_layers(whole, 2), "whole")


@torch.inference_mode()
def test_padding_does_not_change_the_tokens() -> None:
    torch.manual_seed(3)
    network = Context(Config(32, 64, 2, layers=2)).eval()
    descriptors, points = random_tokens(17, 9, 32)
    single = network(descriptors, normalised(points))
    mask0, mask1 = torch.arange(25)[None] < 17, torch.arange(12)[None] < 9
    padded = [
        nn.functional.pad(each, (0, 0, 0, more), value=3.0)
        for each, more in zip(descriptors, (8, 3), strict=True)
    ]
    places = [
        nn.functional.pad(each, (0, 0, 0, more), value=7.0)
        for each, more in zip(normalised(points), (8, 3), strict=True)
    ]

    tokens0, tokens1 = network(tuple(padded), tuple(places), (mask0, mask1))

    torch.testing.assert_close(tokens0[:, :17], single[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(tokens1[:, :9], single[1], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_images_of_as_many_points_give_what_they_give_in_turn() -> None:
    torch.manual_seed(3)
    network = Context(Config(32, 64, 2, layers=2)).eval()
    one, two = random_tokens(13, 13, 32, seed=0), random_tokens(13, 13, 32, seed=1)
    descriptors, points = (
        tuple(torch.cat(each) for each in zip(*kinds, strict=True))
        for kinds in zip(one, two, strict=True)
    )
    ones = torch.ones(2, 13, dtype=torch.bool)  # with masks, one image follows the other

    at_once = network(descriptors, normalised(points))
    in_turn = network(descriptors, normalised(points), (ones, ones))

    torch.testing.assert_close(at_once, in_turn, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_swapping_the_images_swaps_the_tokens() -> None:
    torch.manual_seed(4)
    network = Context(Config(32, 64, 2, layers=2)).eval()
    descriptors, points = random_tokens(17, 9, 32)

    forth = network(descriptors, normalised(points))
    back = network(descriptors[::-1], normalised(points)[::-1])

    torch.testing.assert_close(forth, back[::-1], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_moving_all_points_of_both_images_changes_nothing() -> None:
    # Rotations enter by their difference: only where points lie to each other counts.
    torch.manual_seed(5)
    network = Context(Config(32, 64, 2, layers=2)).eval()
    descriptors, points = random_tokens(17, 9, 32)
    places = normalised(points)

    still = network(descriptors, places)
    moved = network(descriptors, (places[0] + 0.3, places[1] - 0.2))

    torch.testing.assert_close(still, moved, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_attention_rows_sum_to_one() -> None:
    torch.manual_seed(6)
    block = CrossBlock(64, 4)

    rows = block.attention(torch.randn(2, 5, 64), torch.randn(2, 7, 64))

    assert rows.shape == (2, 4, 5, 7)
    torch.testing.assert_close(rows.sum(-1), torch.ones(2, 4, 5))


def test_gradients_are_right() -> None:
    torch.manual_seed(7)
    block = CrossBlock(4, 2).double()
    tokens = [torch.randn(1, n, 4, dtype=torch.float64, requires_grad=True) for n in (3, 2)]

    assert torch.autograd.gradcheck(block, tokens)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"channels \(96\) must be an even multiple of heads \(5\)"
    ):
        Config(channels=96, heads=5)
    with pytest.raises(ValueError, match="layers must be at least 1 and at most 64, not 0"):
        Config(layers=0)
    with pytest.raises(
        ValueError, match="channels must be at least 1 and at most 4096, not 1000000000.0"
    ):
        Config(channels=1e9)
    with pytest.raises(ValueError, match="heads must be at least 1 and at most 4096, not 0"):
        Config(heads=0)
