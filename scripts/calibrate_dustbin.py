"""Fit the dustbin and the temperature of `superglue` on synthetic pairs, and write its recipe.

    python scripts/calibrate_dustbin.py PHOTOS                     # models/superglue-xfeat
    python scripts/calibrate_dustbin.py PHOTOS --front-end aliked  # models/superglue-aliked

PHOTOS is a folder of photographs. Each is paired with itself, warped by a random homography and with
other brightness, contrast and noise, and with another photograph. The published layers stay as they
are; only two numbers change, to make the truth of all points, a partner or none, as likely as they
can. A tenth of the pairs is kept aside, and its loss printed beside that of the start.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

from matcher import assets, features, images, weights
from matcher.nn.pointsets import PointSet, State
from matcher.nn.superglue import Config, SuperGlue, published_state
from matcher.nn.superglue_modern import Modern
from matcher.types import Image, Matrix

LAYERS = {"xfeat": "lighterglue", "aliked": "aliked-lightglue", "disk": "disk-lightglue"}
NETWORKS = {
    "xfeat": {"input_channels": 64, "channels": 96, "heads": 1, "layers": 6},  # LighterGlue's
    "aliked": {"input_channels": 128},
    "disk": {"input_channels": 128},
}
STEPS = 20
THRESHOLD = 0.2  # SuperGlue's
NEAR, FAR = 3.0, 5.0  # pixels: a partner is nearer than the one, no candidate nearer than the other
CORNER_SHIFT, TURN_DEGREES, ZOOM = 0.2, 30.0, 1.4  # how far a homography goes, of the size


@dataclass(frozen=True)
class Example:
    """The tokens of one pair after the last layer, and what is true of them.

    Attributes:
        state: What the layers made of the pair.
        partners: (K, 2) rows of true partners.
        alone0: (M,) bool, True where a point of image 0 has no partner.
        alone1: (N,) bool likewise.
    """

    state: State
    partners: Tensor
    alone0: Tensor
    alone1: Tensor


def main() -> None:
    """Calibrate and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--names", default="*", help="which files of PHOTOS, such as 'free_*'")
    parser.add_argument("--front-end", choices=sorted(LAYERS), default="xfeat")
    parser.add_argument("--photographs", type=int, default=24)
    parser.add_argument("--keypoints", type=int, default=512)
    parser.add_argument("--side", type=int, default=640, help="long side of the photographs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder; default models/superglue-FRONT_END")
    arguments = parser.parse_args()
    name = arguments.front_end
    network = SuperGlue(Config("modern", sinkhorn_steps=STEPS, **NETWORKS[name]))  # type: ignore[arg-type]
    state = published_state(weights.state_dict(LAYERS[name]), network.config)
    weights.load_strict(network, state, LAYERS[name])
    examples = list(make_examples(network.eval(), arguments))
    kept = examples[::10]
    used = [example for number, example in enumerate(examples) if number % 10]
    with torch.no_grad():
        before = float(loss(network, kept))
    fit(network, used)
    with torch.no_grad():
        after = float(loss(network, kept))
    print(f"loss of {len(kept)} pairs kept aside: {before:.4f} before, {after:.4f} after")
    out = arguments.out or assets.folder("models") / f"superglue-{name}"
    out.mkdir(parents=True, exist_ok=True)
    (out / "recipe.toml").write_text(recipe(network, name, arguments, (before, after)), "utf-8")
    print(out / "recipe.toml")


def fit(network: SuperGlue, examples: Sequence[Example]) -> None:
    """Change the dustbin and the temperature to the likeliest."""
    temperature = modern(network).temperature
    parameters: list[Tensor] = [network.dustbin, temperature]
    optimiser = torch.optim.LBFGS(
        parameters, lr=0.5, max_iter=25, tolerance_change=1e-4, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        total = loss(network, examples)
        torch.autograd.backward(total)
        print(f"loss {total.item():.4f}  dustbin {network.dustbin.item():.3f}  "
              f"temperature {temperature.item():.3f}")  # fmt: skip
        return total

    optimiser.step(closure)  # type: ignore[no-untyped-call]


def modern(network: SuperGlue) -> Modern:
    """Give the layers, which are LightGlue's."""
    return cast(Modern, network.context)


def loss(network: SuperGlue, examples: Sequence[Example]) -> Tensor:
    """Average the surprise at what is true of each point whose truth is known, in nats."""
    surprise, count = torch.zeros(()), 0
    for example in examples:
        logs = network.transport(example.state, network.config.layers)[0]
        found = logs[example.partners[:, 0], example.partners[:, 1]]
        alone = torch.cat([logs[:-1, -1][example.alone0], logs[-1, :-1][example.alone1]])
        surprise = surprise - 2 * found.sum() - alone.sum()  # a partner is the truth of two points
        count += 2 * len(found) + len(alone)
    return surprise / count


@torch.no_grad()
def make_examples(network: SuperGlue, arguments: argparse.Namespace) -> Iterator[Example]:
    """Pair each photograph with its warped self and with another one, and run the layers once."""
    front_end = features.build(arguments.front_end, max_keypoints=arguments.keypoints)
    random = np.random.default_rng(arguments.seed)
    paths = sorted(arguments.photos.glob(arguments.names))
    before: PointSet | None = None
    for number in random.permutation(len(paths))[: arguments.photographs]:
        photo = images.grey(images.read(paths[number]))
        photo = images.resize(photo, images.fit_long_side(photo.shape, arguments.side))
        homography = random_homography(random, photo.shape)
        other = changed(random, warped(photo, homography))
        found0, found1 = front_end.detect([photo, other])
        image0, image1 = point_set(found0, photo), point_set(found1, other)
        if min(len(found0), len(found1)) > 0:
            yield Example(run(network, image0, image1), *labels(image0, image1, homography))
            if before is not None:
                yield Example(run(network, before, image1), *unrelated(before, image1))
            before = image0


def run(network: SuperGlue, image0: PointSet, image1: PointSet) -> State:
    """Apply every layer."""
    state = network.context.begin(image0, image1)
    for depth in range(1, network.config.layers + 1):
        state = network.context.step(state, depth)
    return state


def random_homography(random: np.random.Generator, size: tuple[int, ...]) -> Matrix:
    """Draw where an image's pixels go: turned, zoomed, and each corner moved by itself."""
    height, width = size
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]]) * [width - 1, height - 1]
    angle = np.radians(random.uniform(-TURN_DEGREES, TURN_DEGREES))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = corners.mean(0)
    moved = (corners - centre) @ turn.T * ZOOM ** random.uniform(-1, 1) + centre
    moved += random.uniform(-CORNER_SHIFT, CORNER_SHIFT, (4, 2)) * [width, height]
    rows = []
    for (x, y), (u, v) in zip(corners, moved, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y, -u], [0, 0, 0, x, y, 1, -v * x, -v * y, -v]]
    matrix: Matrix = np.linalg.svd(np.asarray(rows))[2][-1].reshape(3, 3)
    return matrix


def warped(photo: Image, pixels1_from_pixels0: Matrix) -> Image:
    """Move the pixels of an image; grey where none comes from."""
    height, width = photo.shape
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    places = moved(
        np.stack([columns, rows], -1).reshape(-1, 2), np.linalg.inv(pixels1_from_pixels0)
    )
    grid = (places + 0.5) / [width, height] * 2 - 1
    tensor = torch.from_numpy(grid.reshape(1, height, width, 2)).float()
    result: Image = F.grid_sample(
        torch.from_numpy(photo)[None, None] - 0.5, tensor, "bicubic", "zeros", align_corners=False
    )[0, 0].numpy()
    filled: Image = np.clip(result + 0.5, 0, 1)
    return filled


def changed(random: np.random.Generator, photo: Image) -> Image:
    """Change brightness, contrast and noise."""
    bent = photo ** random.uniform(0.7, 1.5) * random.uniform(0.7, 1.0)
    noisy = bent + random.normal(0, random.uniform(0, 0.02), photo.shape)
    return np.clip(noisy, 0, 1).astype(np.float32)


def point_set(found: features.Keypoints, photo: Image) -> PointSet:
    """Make a batch of one."""
    return PointSet(
        points=torch.from_numpy(found.points)[None],
        scores=torch.from_numpy(found.scores)[None],
        descriptors=torch.from_numpy(found.descriptors)[None],
        sizes=torch.tensor([photo.shape[::-1]]).float(),
    )


def labels(image0: PointSet, image1: PointSet, homography: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Find who is whose partner: (K, 2) rows, (M,) and (N,) who has none. Of others nobody knows."""
    points0, points1 = image0.points[0], image1.points[0]
    there = moved(points0.numpy(), homography)
    back = moved(points1.numpy(), np.linalg.inv(homography))
    apart1 = torch.cdist(torch.from_numpy(there).float(), points1)  # (M, N) pixels of image 1
    apart0 = torch.cdist(points0, torch.from_numpy(back).float())  # (M, N) pixels of image 0
    apart = torch.maximum(apart0, apart1)
    nearest1, nearest0 = apart.argmin(1), apart.argmin(0)
    rows = torch.arange(len(points0))
    mutual = (nearest0[nearest1] == rows) & (apart[rows, nearest1] < NEAR)
    partners = torch.stack([rows, nearest1], 1)[mutual]
    return partners, apart.amin(1) > FAR, apart.amin(0) > FAR


def unrelated(image0: PointSet, image1: PointSet) -> tuple[Tensor, Tensor, Tensor]:
    """Say that nobody has a partner, as `labels` does."""
    alone0, alone1 = (
        torch.ones(image.points.shape[1], dtype=torch.bool) for image in (image0, image1)
    )
    return torch.zeros((0, 2), dtype=torch.int64), alone0, alone1


def moved(points: ArrayLike, homography: ArrayLike) -> Matrix:
    """Apply a homography to (N, 2) points."""
    places = np.asarray(points, np.float64)
    homogeneous = np.column_stack([places, np.ones(len(places))]) @ np.asarray(homography).T
    result: Matrix = homogeneous[:, :2] / homogeneous[:, 2:]
    return result


def recipe(
    network: SuperGlue, name: str, arguments: argparse.Namespace, losses: tuple[float, float]
) -> str:
    """Write down the model and how it was made."""
    entry = weights.entry(LAYERS[name])
    sizes = "\n".join(f"{key} = {value}" for key, value in NETWORKS[name].items())
    return f"""front_end = "{name}"
threshold = {THRESHOLD}
licence = "{entry.licence}"
layers = "{LAYERS[name]}"
dustbin = {network.dustbin.item():.4f}
temperature = {modern(network).temperature.item():.4f}

[network]
architecture = "modern"
{sizes}
sinkhorn_steps = {STEPS}

[made]
command = "scripts/calibrate_dustbin.py PHOTOS --front-end {name}"
names = "{arguments.names}"
photographs = {arguments.photographs}
keypoints = {arguments.keypoints}
side = {arguments.side}
seed = {arguments.seed}
loss_before = {losses[0]:.4f}
loss_after = {losses[1]:.4f}
"""


if __name__ == "__main__":
    main()
