"""Measure how far XFeat's fine matcher is from the truth, and fit the line that puts it right.

    python scripts/calibrate_star.py FOLDER_OF_PHOTOGRAPHS

Cells of a photograph are matched with cells of the same photograph moved by known shifts, and
the offsets that the network gives are compared with those that were needed, along x and y.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from matcher import images, weights
from matcher.methods.xfeat_star import CellOptions
from matcher.nn.xfeat import STRIDE, XFeat, folded, standardise
from matcher.types import Image

_SIZE = (416, 544)  # of the crops: multiples of 32
_MOST = 8  # pixels, of a shift along an axis
_PHOTOGRAPHS = 40  # evenly taken from the folder


def main(folder: Path) -> None:
    """Print the fitted lines over all photographs of a folder."""
    network = XFeat()
    weights.load_strict(network, weights.state_dict("xfeat"), "xfeat")
    fast = folded(network)
    rng = np.random.default_rng(0)
    rows = []
    paths = images.list_images(folder)[0]
    for path in paths[:: max(1, len(paths) // _PHOTOGRAPHS)]:
        picture = images.grey(images.read(path))
        if picture.shape[0] < _SIZE[0] + 2 * _MOST or picture.shape[1] < _SIZE[1] + 2 * _MOST:
            continue
        for shift in rng.integers(-_MOST, _MOST + 1, (4, 2)):
            rows.append(_offsets(fast, picture, shift))
    given, needed = (np.concatenate(part) for part in zip(*rows, strict=True))
    for axis, name in enumerate("xy"):
        slope, bias = np.polyfit(needed[:, axis], given[:, axis], 1)
        print(f"{name}: given = {slope:.3f} needed {bias:+.3f}  ({len(given)} cells)")
        left = (given[:, axis] - bias) / slope - needed[:, axis]
        print(
            f"   median error {_median(given[:, axis] - needed[:, axis])}, put right {_median(left)}"
        )


def _offsets(
    network: XFeat, picture: Image, shift: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Match a crop with the crop moved by `shift`: (N, 2) offsets given, and needed."""
    height, width = _SIZE
    crops = [picture[y : y + height, x : x + width] for x, y in ((_MOST, _MOST), _MOST - shift)]
    batch = torch.from_numpy(np.stack(crops))[:, None]
    with torch.inference_mode():
        tokens0, tokens1 = network.features(standardise(batch)).flatten(2).transpose(1, 2)
        similarity = tokens0 @ tokens1.T
        partner = similarity.argmax(dim=1)
        rows = torch.nonzero(similarity.argmax(dim=0)[partner] == torch.arange(len(tokens0)))[:, 0]
        moves, confidence = network.fine_offsets(tokens0[rows], tokens1[partner[rows]])
    cells = [np.stack([each % (width // STRIDE), each // (width // STRIDE)], axis=1) * STRIDE
             for each in (rows.numpy(), partner[rows].numpy())]  # fmt: skip
    needed = (cells[1] - cells[0] - shift).astype(np.float32)
    good = (np.abs(needed).max(axis=1) <= STRIDE // 2) & (
        confidence.numpy() > CellOptions.confidence
    )
    return moves.numpy()[good], needed[good]


def _median(errors: NDArray[np.float32]) -> str:
    """Write the median error and the median of its size."""
    return f"{np.median(errors):+.2f} (size {np.median(np.abs(errors)):.2f}) pixels"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
