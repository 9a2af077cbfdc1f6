"""Move matches to their sub-pixel places by correlating pixels: attention finds, correlation refines.

Context says which place is meant; the pixels say exactly where it is. All matches of a pair are refined at once:

1. *local maps* (`local_maps.py`): how a small step in image 0 looks in image 1, from the neighbours' matches;
2. *patches*: the surroundings of each point of image 0, warped by its map into the frame of image 1;
3. *surfaces*: weighted normalised cross-correlation of the patch with image 1, a few pixels round the match;
4. *peaks*: a match moves to the sub-pixel maximum where that is clear and better than where the match stood.

Two rounds: the first finds the pixel; from its cleaner matches come better maps, with which the second finds the
fraction. Where two images differ in scale, both are compared at the resolution of the coarser one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from matcher import images
from matcher.local_maps import (
    determinant_2x2,
    fit_local_maps,
    inverse_2x2,
    nearest_rows,
    refit_local_maps,
)
from matcher.nn.devices import choose_device
from matcher.patches import (
    cut_windows,
    gaussian,
    pyramid,
    sample_surfaces,
    sub_pixel_peaks,
    surfaces,
    warp_patches,
)
from matcher.types import Matches


@dataclass(frozen=True)
class RefineOptions:
    """How matches are refined. Lengths are in pixels of the coarser of the two images round a match.

    The defaults lie on a flat optimum: `scripts/sweep_refinement.py` changes one at a time.
    """

    # Of the patch; its weights fall to a quarter at the middle of a side.
    radius: int = 7
    # How far a match may be from its true place.
    search: int = 5
    # A peak below this NCC is left alone.
    min_score: float = 0.4
    # Sigma of the blur that hides the bias of bilinear interpolation.
    smooth: float = 0.5
    # Move both points half way, so that swapping the images swaps the result.
    symmetric: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        for name, least in (("radius", 2), ("search", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if not -1 <= self.min_score <= 1:
            raise ValueError(f"min_score must be in [-1, 1], not {self.min_score}")
        if self.smooth < 0:
            raise ValueError(f"smooth must not be negative, not {self.smooth}")


Pyramids: TypeAlias = tuple[list[Tensor], list[Tensor]]  # of image 0 and of image 1

FINE_SEARCH = 2  # of the second round: with 1, a peak between two pixels could lie at the edge
LEVELS = 4  # of the image pyramids: scale differences up to 8
BLOCK = {"cpu": 1 << 21}  # products held at once: what stays in a core's cache


def refine(
    matches: Matches, image0: object, image1: object, options: RefineOptions | None = None
) -> Matches:
    """Move the points of image 1 to where the pixels round the points of image 0 fit best.

    Works for the matches of any method, also of other people's. A match stays where it is if the pixels cannot tell:
    flat or featureless surroundings, a peak at the edge of the search, a point too near to the border.

    Args:
        matches: In pixels of the two images. `linear1_from_0`, where known, joins the maps that are tried.
        image0: A path, PIL image, numpy array or torch tensor; see `matcher.read`.
        image1: Likewise.
        options: How; the defaults suit matches that are good to about 5 pixels.

    Returns:
        The same matches in the same order and with the same scores; `refined` and `linear1_from_0` are filled in.
    """
    options = options or RefineOptions()
    if not len(matches):
        return replace(matches, refined=np.zeros(0, np.bool_))
    levels = pyramids(image0, image1, options.smooth, choose_device(options.device))
    return refine_on_pyramids(matches, levels, options)


def pyramids(image0: object, image1: object, smooth: float, device: torch.device) -> Pyramids:
    """Read both images and halve their grey values again and again; `smooth` is of `RefineOptions`."""
    pyramid0, pyramid1 = (
        pyramid(images.grey(images.read(image)), LEVELS, smooth, device)
        for image in (image0, image1)
    )
    return pyramid0, pyramid1


def refine_on_pyramids(matches: Matches, levels: Pyramids, options: RefineOptions) -> Matches:
    """Do what `refine` does, on pyramids that are there already."""
    forward = _refine_one_way(matches, levels, options)
    if not options.symmetric:
        return forward
    backward = _refine_one_way(matches.swapped(), (levels[1], levels[0]), options).swapped()
    return _half_way(matches, forward, backward)


def _half_way(matches: Matches, forward: Matches, backward: Matches) -> Matches:
    """Share the move between the two images where both directions agree that there is one."""
    both = forward.refined & backward.refined  # type: ignore[operator]
    share = 0.5 * both[:, None].astype(np.float32)
    return replace(
        forward,
        points0=matches.points0 + share * (backward.points0 - matches.points0),
        points1=matches.points1 + share * (forward.points1 - matches.points1),
        refined=both,
    )


def _refine_one_way(matches: Matches, levels: Pyramids, options: RefineOptions) -> Matches:
    """Refine the points of image 1; those of image 0 stay."""
    device = levels[0][0].device
    points0, points1 = (
        torch.from_numpy(points).to(device) for points in (matches.points0, matches.points1)
    )
    known = matches.linear1_from_0
    known_maps = None if known is None else torch.from_numpy(known).float().to(device)
    neighbours = nearest_rows(points0)
    maps = fit_local_maps(points0, points1, neighbours, known_maps)
    coarse = move_to_peaks(points0, points1, maps, levels, options)
    maps = refit_local_maps(points0, coarse.points1, neighbours, maps)
    fine = move_to_peaks(
        points0, coarse.points1, maps, levels, replace(options, search=FINE_SEARCH)
    )
    return replace(
        matches,
        points1=fine.points1.cpu().numpy(),
        refined=(coarse.clear | fine.clear).cpu().numpy(),
        linear1_from_0=maps.double().cpu().numpy(),
    )


class Moved(NamedTuple):
    """Points of image 1 after a search.

    Attributes:
        points1: (N, 2), at their peaks or where they were.
        clear: (N,) bool, True where there was a clear peak.
        scores: (N,) NCC of the highest peak, clear or not.
    """

    points1: Tensor
    clear: Tensor
    scores: Tensor


def move_to_peaks(
    points0: Tensor,
    points1: Tensor,
    maps: Tensor,
    levels: Pyramids,
    options: RefineOptions,
) -> Moved:
    """Move points (N, 2) of image 1 to their clear peaks, given the maps (N, 2, 2) of small steps from image 0."""
    moved = Moved(
        points1.clone(),
        torch.zeros_like(points1[:, 0], dtype=torch.bool),
        points1.new_zeros(len(points1)),
    )
    for rows, level0, level1 in _groups(maps, levels, options):
        scale0, scale1 = 2.0**level0, 2.0**level1
        peaks, clear, scores = _correlate(
            (points0[rows] + 0.5) / scale0 - 0.5,
            (points1[rows] + 0.5) / scale1 - 0.5,
            inverse_2x2(maps[rows]) * (scale1 / scale0),
            (levels[0][level0], levels[1][level1]),
            options,
        )
        moved.points1[rows[clear]] = (peaks[clear] + 0.5) * scale1 - 0.5
        moved.clear[rows] = clear
        moved.scores[rows] = scores
    return moved


def _groups(
    maps: Tensor, levels: Pyramids, options: RefineOptions
) -> Iterator[tuple[Tensor, int, int]]:
    """Yield blocks of matches with the levels of images 0 and 1 that have the coarser one's resolution."""
    octaves = determinant_2x2(maps).abs().clamp(1e-6, 1e6).log2().div(2).round().long()
    octaves = octaves.clamp(1 - len(levels[0]), len(levels[1]) - 1)
    side, shifts = 2 * options.radius + 1, 2 * options.search + 1
    products = side * (side + shifts - 1) * shifts  # of one match, see `patches.surfaces`
    block = max(1, BLOCK.get(maps.device.type, 1 << 26) // products)
    for octave in sorted(set(octaves.tolist())):
        for rows in torch.split(torch.nonzero(octaves == octave).flatten(), block):
            yield rows, max(-octave, 0), max(octave, 0)


def _correlate(
    points0: Tensor,
    points1: Tensor,
    step0_from_1: Tensor,
    pair: tuple[Tensor, Tensor],
    options: RefineOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the sub-pixel peak (N, 2) of every match at one level of each pyramid, whether it is clear, its score."""
    patches, inside0 = warp_patches(pair[0], points0, step0_from_1, options.radius)
    centres = points1.round()
    reach = options.radius + options.search
    windows, inside1 = cut_windows(pair[1], centres, reach)
    weights = gaussian(options.radius, 0.6 * options.radius, patches.device)
    scored = surfaces(patches, windows, weights)
    offsets, scores, sharp = sub_pixel_peaks(scored)
    stood = sample_surfaces(scored, points1 - centres + options.search)
    clear = inside0 & inside1 & sharp & (scores >= options.min_score) & (scores >= stood)
    return centres + offsets - options.search, clear, scores
