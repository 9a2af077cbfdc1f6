"""Speed and parity of the SuperGlue-style method, beside transformers with the same weights.

    python scripts/bench_superglue.py speed                      # one pair of 1024 keypoints
    python scripts/bench_superglue.py speed --weights FOLDER     # the same, on the official weights
    python scripts/bench_superglue.py parity --weights FOLDER    # real pairs: same matches?
    python scripts/bench_superglue.py batches                    # pairs at once against one by one
    python scripts/bench_superglue.py pair                       # images to matches, beside others

FOLDER holds the user's own superpoint_v1.pth and superglue_outdoor.pth. Without it the weights are
random. Times are medians of runs in turn, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from matcher import assets, datasets, features, images, methods, weights
from matcher.extras import require
from matcher.features.superpoint import SuperPointFrontEnd
from matcher.methods.superglue import build
from matcher.nn.pointsets import PointSet
from matcher.nn.superglue import Config, SuperGlue, published_state
from matcher.nn.superpoint import STRIDE
from matcher.types import Image, Matcher, Matches

SIZE = (480, 640)


def main() -> None:
    """Run the part that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("speed", "parity", "batches", "pair"))
    parser.add_argument("--weights", type=Path, help="folder with the official files")
    parser.add_argument("--keypoints", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20, help="how many real pairs parity takes")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    parts = {"speed": speed, "parity": parity, "batches": batches, "pair": whole_pair}
    parts[arguments.part](arguments)


@torch.inference_mode()
def speed(arguments: argparse.Namespace) -> None:
    """Time one pair, ours and transformers' in turn."""
    network = superglue(arguments.weights)
    twin = transformers_superglue(network)
    network.folded()
    pair = random_points(1, arguments.keypoints, 0), random_points(1, arguments.keypoints, 1)
    ours, theirs = in_turn(
        [partial(network, *pair), partial(transformers_match, twin, *pair)], arguments.repeats
    )
    print(f"{arguments.keypoints} keypoints a side, {network.config.sinkhorn_steps} iterations")
    print(f"transformers {theirs * 1e3:7.0f} ms")
    print(f"ours         {ours * 1e3:7.0f} ms    ratio {ours / theirs:.2f}")


@torch.inference_mode()
def batches(arguments: argparse.Namespace) -> None:
    """Time the modern network on pairs one by one and several at once."""
    method = build(max_keypoints=arguments.keypoints)
    network = method.network
    singles = [
        [random_points(1, arguments.keypoints, seed, 64) for seed in (2 * row, 2 * row + 1)]
        for row in range(8)
    ]
    together = [joined([pair[side] for pair in singles]) for side in (0, 1)]

    def one_by_one() -> None:
        for pair in singles:
            network(*pair)

    alone, at_once = in_turn([one_by_one, partial(network, *together)], arguments.repeats)
    print(f"8 pairs one by one {alone * 1e3:7.0f} ms")
    print(f"8 pairs at once    {at_once * 1e3:7.0f} ms    ratio {at_once / alone:.2f}")


@torch.inference_mode()
def parity(arguments: argparse.Namespace) -> None:
    """Compare raw answers on the sample pairs: the same keypoints, matches and scores?

    Both round in float32, so both scores are measured from transformers' in float64.
    """
    network = superglue(arguments.weights)
    twin = transformers_superglue(network)
    exact = copy.deepcopy(twin).double()
    network.folded()
    front_end = superpoint(arguments)
    detector = transformers_superpoint(front_end)
    same, apart, ours, theirs = [], 0.0, 0.0, 0.0
    for pair in datasets.sample_pairs()[: arguments.pairs]:
        pictures = cropped([images.read(path) for path in (pair.image0, pair.image1)])
        sides = [points_of(front_end, picture) for picture in pictures]
        count = min(side.points.shape[1] for side in sides)
        if count == 0:
            continue
        for picture, side in zip(pictures, sides, strict=True):
            apart = max(apart, farthest(detector, picture, side))
        # Equally many points: transformers counts its padding among the points.
        sides = [first(side, count) for side in sides]
        assigned = network(*sides)
        partners, scores = transformers_match(twin, *sides)
        same.append((assigned.partners0 == partners[0, :1]).float())
        truth = transformers_match(exact, *(doubled(side) for side in sides))[1][0, :1]
        ours = max(ours, float((assigned.scores0 - truth).abs().max()))
        theirs = max(theirs, float((scores[0, :1] - truth).abs().max()))
    share = float(torch.cat(same, 1).mean())
    print(f"{len(same)} pairs, {sum(each.shape[1] for each in same)} keypoints of image 0")
    print(f"descriptors: farthest {apart:.1e}")
    print(f"same partner: {share:.4%}")
    print(f"scores, farthest from float64: ours {ours:.1e}, transformers {theirs:.1e}")


@torch.inference_mode()
def whole_pair(arguments: argparse.Namespace) -> None:
    """Time two descriptions and their matching, beside ALIKED + LightGlue and SuperPoint + SuperGlue.

    LightGlue stops early as published, on ALIKED's fetched weights; SuperPoint and SuperGlue are
    transformers', on random weights.
    """
    pair = photographs()
    keypoints = {"device": "cpu", "max_keypoints": arguments.keypoints}
    made = {
        "superglue": methods.build("superglue", **keypoints),
        "superglue bfloat16": methods.build("superglue", precision="bfloat16", **keypoints),
        "aliked-lightglue": methods.build("aliked-lightglue", **keypoints),
    }
    network = superglue(arguments.weights)
    twin = transformers_superglue(network)
    detector = transformers_superpoint(superpoint(arguments))
    images01 = torch.from_numpy(np.stack(pair))[:, None].expand(-1, 3, -1, -1)
    points = [random_points(1, arguments.keypoints, seed) for seed in (0, 1)]

    def theirs() -> None:
        detector(images01)
        transformers_match(twin, *points)

    works = [partial(matches_of, method, pair) for method in made.values()]
    seconds = in_turn([*works, theirs], arguments.repeats)
    ours = seconds[0]
    for name, taken in zip([*made, "superpoint + superglue"], seconds, strict=True):
        print(f"{name:24}{taken * 1e3:8.0f} ms    ours / it {ours / taken:.3f}")


def photographs() -> list[Image]:
    """Read a pair of photographs at the size of the comparison."""
    folder = assets.folder("data") / "images"
    files = [folder / f"facade_{number}.jpg" for number in (0, 1)]
    return [images.resize(images.grey(images.read(file)), SIZE) for file in files]


def matches_of(method: Matcher, pair: Sequence[Image]) -> Matches:
    """Describe and match two images."""
    description0, description1 = method.describe(pair)
    return method.match([(description0, description1)])[0]


def superglue(folder: Path | None) -> SuperGlue:
    """Make the published network: official outdoor weights, or random ones."""
    network = SuperGlue(Config())
    if folder is not None:
        state = weights.state_dict("superglue-outdoor", folder)
        weights.load_strict(network, published_state(state, network.config), "superglue-outdoor")
    return network.eval()


def superpoint(arguments: argparse.Namespace) -> SuperPointFrontEnd:
    """Make the front end: official weights, or random ones."""
    front_end = features.build(
        "superpoint", device="cpu", max_keypoints=arguments.keypoints, weights=arguments.weights
    )
    return cast(SuperPointFrontEnd, front_end)


def transformers_superglue(network: SuperGlue) -> nn.Module:
    """Give transformers' SuperGlue the weights of ours, before its batch norms are folded."""
    module = require("transformers", "the comparison").models.superglue
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
        name = _in_perceptrons(key, len(config.encoder))
        for ours, theirs in _THEIR_NAMES.items():
            name = name.replace(ours, theirs)
        if ".key_value." in name:
            for part, half in zip(("key", "value"), value.chunk(2), strict=True):
                state[name.replace("key_value", f"attention.self.{part}")] = half
        else:
            state[name] = value
    loaded = twin.load_state_dict(state, strict=False)
    wrong = [key for key in loaded.missing_keys if not key.startswith("keypoint_detector.")]
    if wrong or loaded.unexpected_keys:
        raise SystemExit(f"transformers names its weights otherwise: {wrong}")
    return cast(nn.Module, twin.eval())


_THEIR_NAMES = {
    "context.layers.": "gnn.layers.",
    "context.final_proj.": "final_projection.final_proj.",
    "context.encoder.layers.": "keypoint_encoder.encoder.",
    "dustbin": "bin_score",
    ".query.": ".attention.self.query.",
    ".merge.": ".attention.output.dense.",
}


def _in_perceptrons(name: str, hidden: int) -> str:
    """Number a perceptron's layers as transformers does: product, norm, ReLU are one."""
    for block, last in ((".mlp.", 3), ("context.encoder.layers.", 3 * hidden)):
        head, found, rest = name.partition(block)
        if found:
            number, _, kind = rest.partition(".")
            inside = "" if int(number) == last else (".linear", ".batch_norm")[int(number) % 3]
            return f"{head}{block}{int(number) // 3}{inside}.{kind}"
    return name


def transformers_superpoint(front_end: SuperPointFrontEnd) -> nn.Module:
    """Give transformers' SuperPoint the weights and choices of ours."""
    module = require("transformers", "the comparison").models.superpoint
    options = front_end.options
    config = module.SuperPointConfig(
        keypoint_threshold=options.threshold,
        max_keypoints=options.max_keypoints,
        nms_radius=options.radius,
        border_removal_distance=options.border,
    )
    twin = module.SuperPointForKeypointDetection(config)
    places = {
        f"stages.{i}.{j}.conv": f"encoder.conv_blocks.{i}.conv_{letter}"
        for i in range(4)
        for j, letter in enumerate("ab")
    }
    heads = {
        "detector": "keypoint_decoder.conv_score",
        "descriptor": "descriptor_decoder.conv_descriptor",
    }
    for ours, theirs in heads.items():
        places |= {f"{ours}.0.conv": f"{theirs}_a", f"{ours}.1": f"{theirs}_b"}
    state: dict[str, Tensor] = {}
    for key, value in front_end.network.state_dict().items():
        layer, _, kind = key.rpartition(".")
        state[f"{places[layer]}.{kind}"] = value
    twin.load_state_dict(state)
    return cast(nn.Module, twin.eval())


def transformers_match(
    twin: nn.Module, image0: PointSet, image1: PointSet
) -> tuple[Tensor, Tensor]:
    """Match with transformers: (B, 2, N) partners and scores of both images."""
    names = ("points", "descriptors", "scores")
    both = (torch.stack([getattr(image0, name), getattr(image1, name)], 1) for name in names)
    width, height = image0.sizes[0].int().tolist()
    partners, scores, *_ = cast(Any, twin)._match_image_pair(*both, height=height, width=width)
    return partners, scores


def random_points(pairs: int, count: int, seed: int, channels: int = 256) -> PointSet:
    """Make keypoints that mean nothing."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([SIZE[::-1]] * pairs).float()
    descriptors = torch.randn(pairs, count, channels, generator=generator)
    return PointSet(
        points=torch.rand(pairs, count, 2, generator=generator) * sizes[:, None],
        scores=torch.rand(pairs, count, generator=generator),
        descriptors=nn.functional.normalize(descriptors, dim=-1),
        sizes=sizes,
    )


def joined(images: Sequence[PointSet]) -> PointSet:
    """Put pairs with equally many points in one batch."""
    names = ("points", "scores", "descriptors", "sizes")
    return PointSet(**{name: torch.cat([getattr(each, name) for each in images]) for name in names})


def first(image: PointSet, count: int) -> PointSet:
    """Take the best keypoints."""
    return PointSet(
        image.points[:, :count], image.scores[:, :count], image.descriptors[:, :count], image.sizes
    )


def doubled(image: PointSet) -> PointSet:
    """Give the same points in float64."""
    values = (image.points, image.scores, image.descriptors, image.sizes)
    return PointSet(*(value.double() for value in values))


def cropped(pair: Sequence[Image]) -> list[Image]:
    """Cut two images to one size, of multiples of 8: all that transformers takes."""
    height, width = (min(image.shape[axis] for image in pair) // STRIDE * STRIDE for axis in (0, 1))
    return [images.grey(image)[:height, :width] for image in pair]


def points_of(front_end: SuperPointFrontEnd, picture: Image) -> PointSet:
    """Detect in one image."""
    (found,) = front_end.detect([picture])
    return PointSet(
        points=torch.from_numpy(found.points)[None],
        scores=torch.from_numpy(found.scores)[None],
        descriptors=torch.from_numpy(found.descriptors)[None],
        sizes=torch.tensor([picture.shape[::-1]]).float(),
    )


def farthest(detector: nn.Module, picture: Image, ours: PointSet) -> float:
    """Measure how far our descriptors are from transformers' at the same keypoints."""
    theirs = detector(torch.from_numpy(picture)[None, None].expand(1, 3, -1, -1))
    points = (theirs.keypoints[0] * ours.sizes[0]).round()
    inner = (points < ours.sizes[0] - 4).all(1)  # transformers leaves the right and bottom border
    rows = {tuple(points[row].int().tolist()): row for row in inner.nonzero()[:, 0].tolist()}
    order = [rows.get(tuple(point), -1) for point in ours.points[0].int().tolist()]
    if -1 in order:
        print(f"{order.count(-1)} of {len(order)} keypoints are only ours")
    kept = torch.tensor([row >= 0 for row in order])
    found = theirs.descriptors[0][torch.tensor(order)[kept]]
    return float((found - ours.descriptors[0][kept]).abs().max())


def in_turn(runs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Measure the median seconds of each, taking turns, after one warm-up each."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


if __name__ == "__main__":
    main()
