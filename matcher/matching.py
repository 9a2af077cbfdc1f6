"""Match images in one call: create a method, read both images, describe, match, refine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import matcher
from matcher import images, methods
from matcher.methods._places import ask
from matcher.methods._scales import Scaled
from matcher.methods._turns import Turned
from matcher.types import (
    Description,
    Image,
    Mask,
    Matcher,
    Matches,
    Places,
    Points,
    ScoreMap,
)

_UPRIGHT = ("superglue", "loftr")  # ours that need pictures of about the same roll and scale
_SIZES = 0.5, 2.0  # that they try besides the given one
_MOST_PIXELS = 4e6  # to which they enlarge an image unasked


class Refined:
    """A method whose matches are moved to their sub-pixel places by correlation of the pixels, and may grow."""

    def __init__(self, method: Matcher, grow: bool = False) -> None:
        self.method = method
        self.grow = grow

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Describe with the wrapped method."""
        return self.method.describe(list(images), None if masks is None else list(masks))

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match with the wrapped method, then refine and grow."""
        pairs = list(pairs)
        found = self.method.match(pairs)
        return [self._finish(*each) for each in zip(found, pairs, strict=True)]

    def _finish(self, matches: Matches, pair: tuple[Description, Description]) -> Matches:
        pictures = pair[0].image, pair[1].image
        if self.grow:
            return matcher.grow(matches, *pictures, mask0=pair[0].mask, mask1=pair[1].mask)
        return matches if matches.refined is not None else matcher.refine(matches, *pictures)

    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find points of the caller's own with the wrapped method, then refine those that were found.

        Raises:
            ValueError: The wrapped method matches only points that it finds itself.
        """
        places = ask(self.method, pair, points0)
        rows = np.flatnonzero(places.valid)
        found = Matches(np.asarray(points0)[rows], places.points1[rows], places.scores[rows])
        points1 = places.points1.copy()
        points1[rows] = matcher.refine(found, pair[0].image, pair[1].image).points1
        return replace(places, points1=points1)

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score with the wrapped method."""
        return self.method.score_map(pair, point0)


def create(  # noqa: PLR0913  every stage round a method is chosen here
    name: str,
    *,
    device: str = "auto",
    weights: str | Path | None = "default",
    backend: str = "torch",
    refine: bool = True,
    grow: bool = True,
    turns: bool | None = None,
    scales: Sequence[float] | None = None,
    **options: Any,
) -> Matcher:
    """Make a method by name.

    Args:
        name: One of `matcher.list_methods()`.
        device: "auto", "cpu", "cuda", "cuda:1", "mps".
        weights: "default", a file or folder, or None for random weights, whose results are marked `untrained`.
        backend: "torch", or "onnxruntime" for what `matcher export` made: `weights` is its folder. It runs without
            torch, which the refinement needs.
        refine: Move every match to its sub-pixel place by correlation; False gives the matches as found.
        grow: Add matches that correlation finds between and round the refined ones; see `matcher.grow`.
        turns: Try quarter turns of image 1 too where a pair does not match as given, which costs up to four times as
            much. None does so for superglue and loftr, whose features bear some 45 degrees.
        scales: Sizes to try besides the given ones, as factors, where a pair does not match well as given; that costs
            one more matching a size and image. None tries (0.5, 2) for superglue and loftr, unless `turns` is False;
            () tries none.
        **options: Fields of the method's own `Options`.

    Raises:
        ValueError: No such method or device, or a bad option value.
        ImportError: The method needs an optional package; the message names the extra.
        TypeError: The method has no such option.
        FileNotFoundError: The weights are not there, or the method was not exported.
    """
    if refine:
        methods.need_torch("refine=True")
    method = methods.build(name, device=device, weights=weights, backend=backend, **options)
    unasked = name in _UPRIGHT and turns is not False
    turns = name in _UPRIGHT if turns is None else turns
    method = Turned(method) if turns else method
    if scales:
        method = Scaled(method, scales)
    elif scales is None and unasked:
        method = Scaled(method, _SIZES, _MOST_PIXELS)
    return Refined(method, grow) if refine else method


def bare(method: Matcher) -> Matcher:
    """Give the method itself, without the stages that `create` put round it."""
    while isinstance(method, (Refined, Turned, Scaled)):
        method = method.method
    return method


def match(
    method: Matcher,
    image0: object,
    image1: object,
    *,
    mask0: Mask | None = None,
    mask1: Mask | None = None,
) -> Matches:
    """Match two images.

    Args:
        method: From `matcher.create`.
        image0: A path, PIL image, numpy array or torch tensor; see `matcher.read`.
        image1: Likewise, of any other size.
        mask0: (H, W), True where matching is allowed in image 0; None for where its alpha channel, if any, allows.
        mask1: Likewise for image 1.

    Returns:
        Matches in pixels of the two images, best first; empty where nothing was found.
    """
    pictures = [images.load(image0), images.load(image1)]
    masks = [
        picture.mask if mask is None else mask
        for picture, mask in zip(pictures, (mask0, mask1), strict=True)
    ]
    description0, description1 = method.describe([picture.image for picture in pictures], masks)
    return method.match([(description0, description1)])[0]
