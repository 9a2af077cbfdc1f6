from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from matcher import features, weights
from matcher.features.superpoint import Options, SuperPointFrontEnd
from matcher.nn.superpoint import Config, SuperPoint, published_state, sample, suppress


@pytest.fixture
def network() -> SuperPoint:
    torch.manual_seed(0)
    return SuperPoint(Config()).eval()


def script(name: str) -> ModuleType:
    """Import one of the scripts; it knows how to give transformers our weights."""
    path = Path(__file__).parents[1] / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def published_names(network: SuperPoint) -> dict[str, Tensor]:
    """Name our parameters as the official file does."""
    names = {f"stages.{i}.{j}.conv": f"conv{i + 1}{'ab'[j]}" for i in range(4) for j in range(2)}
    names |= {"detector.0.conv": "convPa", "detector.1": "convPb"}
    names |= {"descriptor.0.conv": "convDa", "descriptor.1": "convDb"}
    return {
        f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value
        for key, value in network.state_dict().items()
    }


@torch.inference_mode()
def test_keypoints_and_descriptors_are_those_of_transformers(network, texture) -> None:
    pytest.importorskip("transformers")
    image = (texture(120, 160) / 255).astype(np.float32)
    options = Options(max_keypoints=10_000, threshold=0.0155)
    front_end = SuperPointFrontEnd(network, options, torch.device("cpu"))
    twin = script("bench_superglue").transformers_superpoint(front_end)

    (ours,) = front_end.detect([image])

    theirs = twin(torch.from_numpy(image)[None, None].expand(1, 3, -1, -1))
    their_points = (theirs.keypoints[0] * torch.tensor([160, 120])).round().numpy()
    order = np.argsort(-theirs.scores[0].numpy(), kind="stable")
    # transformers leaves keypoints at the right and the bottom border.
    order = order[(their_points[order] < [156, 116]).all(1)]
    assert len(ours.points) > 20
    np.testing.assert_array_equal(ours.points, their_points[order])
    np.testing.assert_allclose(ours.scores, theirs.scores[0].numpy()[order], atol=1e-6)
    np.testing.assert_allclose(ours.descriptors, theirs.descriptors[0].numpy()[order], atol=1e-5)


def test_the_official_layout_loads_strictly(network) -> None:
    state = published_names(network)
    other = SuperPoint(Config())

    weights.load_strict(other, published_state(state), "superpoint_v1.pth")

    assert all(
        torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True)
    )
    missing = {key: value for key, value in state.items() if key != "conv3b.weight"}
    with pytest.raises(ValueError, match=r"lacks stages\.2\.1\.conv\.weight"):
        weights.load_strict(other, published_state(missing), "superpoint_v1.pth")


def open_block(inputs: int, outputs: int, side: int, active: bool) -> nn.Sequential:
    """A block of the open retraining, as its file names it: convolution, activation, batch norm."""
    block = nn.Sequential()
    block.add_module("conv", nn.Conv2d(inputs, outputs, side, padding=side // 2))
    block.add_module("activation", nn.ReLU() if active else nn.Identity())
    norm = nn.BatchNorm2d(outputs, eps=1e-3)
    for values in (norm.weight, norm.running_var):
        nn.init.uniform_(values, 0.5, 2.0)
    for values in (norm.bias, norm.running_mean):
        nn.init.normal_(values)
    block.add_module("bn", norm)
    return block


class OpenTwin(nn.Module):
    """The open retraining's network written plainly, with nothing folded."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 64, 64, 128, 128)
        self.backbone = nn.Sequential(
            *(
                nn.Sequential(
                    open_block(widths[i], widths[i + 1], 3, True),
                    open_block(widths[i + 1], widths[i + 1], 3, True),
                    *([nn.MaxPool2d(2)] if i < 3 else []),
                )
                for i in range(4)
            )
        )
        self.detector = nn.Sequential(open_block(128, 256, 3, True), open_block(256, 65, 1, False))
        self.descriptor = nn.Sequential(
            open_block(128, 256, 3, True), open_block(256, 256, 1, False)
        )


@torch.inference_mode()
@pytest.mark.parametrize("channels", [1, 2])
def test_the_open_layout_gives_what_its_own_network_gives(channels: int) -> None:
    torch.manual_seed(1)
    twin = OpenTwin().eval()
    images = torch.rand(1, 1, 40, 48)
    state = dict(twin.state_dict())
    first = state["backbone.0.0.conv.weight"]
    state["backbone.0.0.conv.weight"] = first.expand(-1, channels, -1, -1) / channels
    network = SuperPoint(Config(normed=True)).eval()
    weights.load_strict(network, published_state(state), "open")

    scores, descriptors = network(images)

    maps = twin.backbone(images)
    probabilities = twin.detector(maps).softmax(1)[:, :-1]
    torch.testing.assert_close(
        scores, nn.functional.pixel_shuffle(probabilities, 8)[:, 0], atol=1e-5, rtol=1e-4
    )
    wanted = nn.functional.normalize(twin.descriptor(maps), dim=1)
    torch.testing.assert_close(descriptors, wanted, atol=1e-5, rtol=1e-4)


def test_suppressed_maps_keep_only_what_is_largest_around() -> None:
    torch.manual_seed(2)
    scores = torch.rand(2, 40, 50)

    kept = suppress(scores, 3)

    around = nn.functional.max_pool2d(scores[:, None], 7, stride=1, padding=3)[:, 0]
    largest = scores == around
    assert torch.equal(kept[largest], scores[largest])
    places = torch.nonzero(kept[0])
    apart = (places[:, None] - places[None]).abs().amax(-1)
    assert apart[~torch.eye(len(places), dtype=torch.bool)].min() > 3


def test_descriptors_are_read_where_they_are() -> None:
    # KPT-13
    rows, columns = torch.meshgrid(torch.arange(60), torch.arange(80), indexing="ij")
    centres = torch.stack([columns, rows]).double() * 8 + 3.5
    angles = centres / 1000  # a direction survives the unit length: (cos, sin) of each coordinate
    maps = torch.cat([angles.cos(), angles.sin()])
    points = torch.tensor([[3.5, 3.5], [320, 240], [639, 479], [0, 0]], dtype=torch.float64)

    read = sample(maps, points, legacy=False)

    places = torch.atan2(read[:, 2:], read[:, :2]) * 1000
    wanted = points.clamp(torch.tensor([3.5, 3.5]), torch.tensor([635.5, 475.5]))
    torch.testing.assert_close(places, wanted, atol=1e-3, rtol=0)


def test_the_published_sampling_is_half_a_cell_off_at_the_far_end() -> None:
    columns = (torch.arange(80).double() * 8 + 3.5).expand(60, -1)
    maps = torch.stack([(columns / 1000).cos(), (columns / 1000).sin()])
    points = torch.tensor([[3.5, 3.5], [631.5, 3.5]], dtype=torch.float64)

    read = sample(maps, points, legacy=True)

    places = torch.atan2(read[:, 1], read[:, 0]) * 1000
    assert places[0] == pytest.approx(3.5, abs=1e-6)
    assert places[1] == pytest.approx(3.5 + 8 * 79 * 628 / 635.5, abs=1e-3)  # 628.0


@pytest.fixture
def front_end(network) -> SuperPointFrontEnd:
    return SuperPointFrontEnd(
        network, Options(max_keypoints=2048, threshold=0.0), torch.device("cpu")
    )


def test_no_keypoint_lies_at_the_border_or_in_the_padding(front_end, texture) -> None:
    # KPT-04
    (found,) = front_end.detect([(texture(123, 157) / 255).astype(np.float32)])

    assert len(found.points) > 50
    assert found.points.min() >= 4
    assert (found.points < [157 - 4, 123 - 4]).all()


@pytest.mark.parametrize("side", [7, 8])
def test_tiny_images_give_nothing(front_end, side: int) -> None:
    # KPT-04
    (found,) = front_end.detect([np.random.default_rng(0).random((side, side), dtype=np.float32)])

    assert found.points.shape == (0, 2)
    assert found.descriptors.shape == (0, 256)
    assert found.scores.shape == (0,)


def test_a_mask_only_takes_keypoints_away(front_end, texture) -> None:
    # KPT-09
    image = (texture(96, 128) / 255).astype(np.float32)
    mask = np.zeros((96, 128), bool)
    mask[20:70, 30:90] = True

    free, masked = front_end.detect([image, image], [None, mask])

    inside = [tuple(p) for p in free.points.astype(int) if mask[p[1], p[0]]]
    assert len(inside) > 5
    assert [tuple(p) for p in masked.points.astype(int)] == inside


def test_images_of_unlike_sizes_come_out_as_alone(front_end, texture) -> None:
    images = [
        (texture(height, width, seed) / 255).astype(np.float32)
        for seed, (height, width) in enumerate([(64, 80), (70, 61), (64, 80)])
    ]

    together = front_end.detect(images)

    for image, found in zip(images, together, strict=True):
        (alone,) = front_end.detect([image])
        np.testing.assert_array_equal(found.points, alone.points)
        np.testing.assert_allclose(found.descriptors, alone.descriptors, atol=1e-5)


def test_asking_for_fewer_gives_the_best(network, texture) -> None:
    # KPT-12
    image = (texture(96, 128) / 255).astype(np.float32)

    def detect(count: int | None):
        options = Options(max_keypoints=count, threshold=0.0)
        return SuperPointFrontEnd(network, options, torch.device("cpu")).detect([image])[0]

    everything = detect(None)

    assert (np.diff(everything.scores) <= 0).all()
    np.testing.assert_array_equal(detect(10).points, everything.points[:10])
    assert detect(0).points.shape == (0, 2)


def test_sides_that_do_not_divide_are_refused(network) -> None:
    with pytest.raises(ValueError, match="sides must be multiples of 8, not 40 x 41"):
        network(torch.zeros(1, 1, 40, 41))


def test_a_file_of_the_official_layout_is_read(network, tmp_path, texture) -> None:
    torch.save(published_names(network), tmp_path / "superpoint_v1.pth")
    image = (texture(64, 64) / 255).astype(np.float32)

    built = features.build("superpoint", device="cpu", weights=tmp_path, threshold=0.0)

    expected = SuperPointFrontEnd(network, Options(threshold=0.0), torch.device("cpu"))
    np.testing.assert_array_equal(
        built.detect([image])[0].points, expected.detect([image])[0].points
    )
