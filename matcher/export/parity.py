"""Compare an exported method with the one it came from, on real pairs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from scipy.spatial import KDTree

from matcher import images
from matcher.evaluation.runner import evaluate
from matcher.evaluation.settings import Settings
from matcher.evaluation.tables import table
from matcher.types import Description, Floats, Image, Matcher, Matches, Pair

SAME = 1.0  # pixels: two matches that lie nearer, in both images, are one match
FARTHEST = 0.05  # pixels that one match may differ by
IDENTICAL = 0.99  # of the pairs must have the same matches
DESCRIBED = 0.999  # of the points must be in both descriptions: the last of the best may differ
TIE = 1e-3  # in score: a match that near to the threshold may be there or not

_SETTINGS = Settings()
Result = TypeVar("Result")


@dataclass(frozen=True)
class Parity:
    """How two forms of a method agree, stage by stage, and what it means for the result.

    Attributes:
        pairs: How many were compared.
        described: Share of the points, of all that either describes, that both describe.
        identical: Share of the pairs with the same matches, given the same descriptions, but for
            scores at the threshold.
        common: Share of all those matches that both find.
        farthest: Largest distance of a match that both find, in pixels.
        score: Largest difference of its scores.
        figures: AUC from images to matches, where pairs have a truth: (before, after), in percent.
        milliseconds: Median time of a pair, both descriptions and the match: (before, after).
    """

    pairs: int
    described: float
    identical: float
    common: float
    farthest: float
    score: float
    figures: Mapping[str, tuple[float, float]]
    milliseconds: tuple[float, float]

    @property
    def agrees(self) -> bool:
        """Whether they are the same but for rounding."""
        return (
            self.described >= DESCRIBED
            and self.identical >= IDENTICAL
            and self.farthest <= FARTHEST
        )

    @property
    def summary(self) -> str:
        """One line."""
        return (
            f"{self.described:.2%} of the points in both; same matches in {self.identical:.0%} of "
            f"{self.pairs} pairs, {self.common:.2%} of all matches in both, at most "
            f"{self.farthest:.2g} px and {self.score:.2g} in score apart"
        )


@dataclass(frozen=True, eq=False)
class _Difference:
    """Of one pair: counts of points and matches, in both or in either, and distances."""

    points: tuple[int, int]
    only: int
    matches: int
    farthest: float
    score: float
    seconds: tuple[float, float]


def compare(before: Matcher, after: Matcher, pairs: Sequence[Pair]) -> Parity:
    """Run both on pairs, at the size at which benchmarks are run.

    Args:
        before: The method as it is.
        after: The same, exported.
        pairs: With or without truth.

    Raises:
        ValueError: There are no pairs.
    """
    if not pairs:
        raise ValueError("no pairs to compare on")
    _compare_pair(before, after, pairs[0])  # the first time takes longer
    found = [_compare_pair(before, after, pair) for pair in pairs]
    matches = sum(each.matches for each in found)
    return Parity(
        pairs=len(found),
        described=sum(each.points[0] for each in found)
        / max(sum(each.points[1] for each in found), 1),
        identical=float(np.mean([each.only == 0 for each in found])),
        common=1 - sum(each.only for each in found) / max(matches, 1),
        farthest=max(each.farthest for each in found),
        score=max(each.score for each in found),
        figures=_figures(before, after, pairs),
        milliseconds=(
            1e3 * statistics.median(each.seconds[0] for each in found),
            1e3 * statistics.median(each.seconds[1] for each in found),
        ),
    )


def _compare_pair(before: Matcher, after: Matcher, pair: Pair) -> _Difference:
    """Describe by both, match the first one's descriptions by both."""
    pictures = [_sized(image) for image in (pair.image0, pair.image1)]
    (described0, seconds0), (described1, seconds1) = (
        _timed(partial(method.describe, pictures)) for method in (before, after)
    )
    views = [(described0[0], described0[1])]
    (found0, more0), (found1, more1) = (
        _timed(partial(_match_one, method, views[0])) for method in (before, after)
    )
    sets = [
        (_pixels(one), _pixels(other)) for one, other in zip(described0, described1, strict=True)
    ]
    points = sum(len(one & other) for one, other in sets), sum(len(a | b) for a, b in sets)
    threshold: float = getattr(after, "threshold", 0.0)
    seconds = seconds0 + more0, seconds1 + more1
    return _Difference(points, *_differ(found0, found1, threshold), seconds)


def _pixels(description: Description) -> set[tuple[int, int]]:
    """List the pixels that points are nearest to: what is below is compared with the matches."""
    return {(round(x), round(y)) for x, y in description.points.tolist()}


def _differ(found0: Matches, found1: Matches, threshold: float) -> tuple[int, int, float, float]:
    """Count the matches that only one found and all; measure the others' distances and scores."""
    places0, places1 = (
        np.concatenate([found.points0, found.points1], axis=1) for found in (found0, found1)
    )
    if not (len(places0) and len(places1)):
        alone = _sure(found0.scores, threshold) + _sure(found1.scores, threshold)
        return alone, len(places0) + len(places1), 0.0, 0.0
    distance0, partner0 = map(np.atleast_1d, KDTree(places1).query(places0))
    distance1, _ = KDTree(places0).query(places1)
    both, new = distance0 <= SAME, distance1 > SAME
    only = _sure(found0.scores[~both], threshold) + _sure(found1.scores[new], threshold)
    scores = np.abs(found0.scores[both] - found1.scores[partner0[both]])
    farthest = float(distance0[both].max(initial=0))
    return only, len(places0) + int(new.sum()), farthest, float(scores.max(initial=0))


def _sure(scores: Floats, threshold: float) -> int:
    """Count scores that rounding cannot lift over the threshold or push below it."""
    return int((scores > threshold + TIE).sum())


def _sized(path: object) -> Image:
    """Read a picture at the working size of an evaluation."""
    picture = images.read(path)
    height, width = picture.shape[:2]
    return images.resize(picture, _SETTINGS.working_size((height, width)))


def _match_one(method: Matcher, view: tuple[Description, Description]) -> Matches:
    return method.match([view])[0]


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """Take a result and its time."""
    start = time.perf_counter()
    return work(), time.perf_counter() - start


def _figures(
    before: Matcher, after: Matcher, pairs: Sequence[Pair]
) -> dict[str, tuple[float, float]]:
    """Evaluate both on the pairs that have a truth: AUC in percent, by name."""
    known = [pair for pair in pairs if pair.truth is not None]
    if not known:
        return {}
    rows = table(evaluate({"before": before, "after": after}, known, _SETTINGS))
    first, second = (
        max((row for row in rows if row.method == label), key=lambda row: row.pairs)
        for label in ("before", "after")
    )
    return {
        name: (value.value, second.figures[name].value)
        for name, value in first.figures.items()
        if "AUC" in name
    }
