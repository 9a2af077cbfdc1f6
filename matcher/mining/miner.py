"""Mine training pairs from photographs of one or more scenes: match, verify, reconstruct, spread.

1. *Candidates*: every photograph with those it has most in common with (`candidates.py`).
2. *Teacher*: a method that matches listed keypoints; its matches are verified pair by pair.
3. *Many views*: structure from motion over the verified matches (`mapping.py`). A pair must agree with the model, or
   it goes. Scene points give matches also to pairs that were never matched, or in vain: the wide baselines.
4. *Spread*: correlation refines the matches and carries them over the surfaces between them (`dense.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TypeAlias

import numpy as np

from matcher import images
from matcher.geometry.fitting import Estimator, fit_fundamental, fit_homography
from matcher.geometry.verification import judge
from matcher.mining.candidates import candidate_pairs
from matcher.mining.dense import DenseOptions, agreement, spread
from matcher.mining.mapping import (
    PairOfRows,
    Placed,
    Rows,
    Shot,
    epipolar_errors,
    reconstruct,
    shared_tracks,
)
from matcher.mining.pair_file import Collection, MinedPair
from matcher.refinement import refine
from matcher.sfm.mapping import View
from matcher.types import Description, Matcher, Matches, Points

Progress: TypeAlias = Callable[[str, int, int], None]  # what is done, how many are, of how many


@dataclass(frozen=True)
class MineOptions:
    """How pairs are mined. Lengths are in pixels of the photographs at `long_side`."""

    # Photographs are shrunk to this long side; their matches come in pixels of the originals.
    long_side: int = 640
    # Every photograph is matched with so many others.
    partners: int = 12
    # Pairs kept, times the number of photographs.
    pairs_per_image: float = 6.0
    # Of matches that agree with the model; fewer make no pair.
    min_matches: int = 30
    # Of a match from the epipolar geometry, before and after refinement.
    max_error: float = 2.0
    dense: DenseOptions = field(default_factory=DenseOptions)
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("long_side", 64), ("partners", 1), ("min_matches", 8)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")
        for name in ("pairs_per_image", "max_error"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")


_LEAST_AGREEING = 0.5  # of a pair's own verified matches, with the model of all views
_ALONE = 2  # times min_matches: what two views need that no model confirms
_SURE = 0.5  # least confidence of a match that many views confirm


def mine(
    paths: Sequence[str | Path],
    teacher: Matcher,
    options: MineOptions | None = None,
    progress: Progress | None = None,
) -> Collection:
    """Mine pairs with verified matches from photographs.

    Args:
        paths: Two or more photographs of one or more scenes, in any order.
        teacher: A method that matches listed keypoints, such as `matcher.create("aliked-lightglue", refine=False)`.
        options: How; the seed decides the sampling.
        progress: Called with what is being done, how many are done, and of how many.

    Returns:
        Every photograph and the pairs that were found, points in pixels of the photographs, upright.

    Raises:
        ValueError: The teacher matches places that it does not list.
        ImportError: pycolmap is not installed.
    """
    options = options or MineOptions()
    report = progress or _silent
    files = [Path(path) for path in paths]
    described, sizes = _describe(files, teacher, options, report)
    _check_teacher(teacher, described)
    candidates = candidate_pairs(described, options.partners)
    found = _match(described, candidates, teacher, options, report)
    report("mapping", 0, 1)
    shots = [Shot(each.points, each.size) for each in described]
    views = reconstruct(shots, found, options.seed)
    known = _agreeing(described, found, views, options)
    chosen = _choose(known, round(options.pairs_per_image * len(files)))
    pairs = []
    for done, (pair, rows) in enumerate(chosen.items()):
        mined = _finish(described, sizes, pair, rows, (views, options))
        pairs += [mined] if len(mined) >= options.min_matches else []
        report("spreading", done + 1, len(chosen))
    origin = asdict(options) | {"candidates": len(candidates), "verified": len(found)}
    origin |= {"placed": len(views), "models": len({each.model for each in views.values()})}
    return Collection(tuple(files), tuple(sizes), tuple(pairs), origin)


def _silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def _describe(
    files: Sequence[Path], teacher: Matcher, options: MineOptions, report: Progress
) -> tuple[list[Description], list[tuple[int, int]]]:
    """Describe the photographs at the long side, and list their own sizes."""
    described, sizes = [], []
    for done, path in enumerate(files):
        image = images.read(path)
        size = (image.shape[0], image.shape[1])
        small = images.resize(image, images.fit_long_side(size, options.long_side))
        described += teacher.describe([small])
        sizes.append(size)
        report("describing", done + 1, len(files))
    return described, sizes


def _check_teacher(teacher: Matcher, described: Sequence[Description]) -> None:
    """Match a photograph with itself: refuse a teacher without listed keypoints before the work is done."""
    for description in described[:1]:
        if teacher.match([(description, description)])[0].indices is None:
            raise ValueError(
                "mining needs a teacher that matches listed keypoints, as superglue does"
            )


def _match(
    described: Sequence[Description],
    candidates: Sequence[PairOfRows],
    teacher: Matcher,
    options: MineOptions,
    report: Progress,
) -> dict[PairOfRows, Rows]:
    """Match and verify each pair: (M, 2) rows of keypoints of those that show the same place."""
    found = {}
    for done, (row0, row1) in enumerate(candidates):
        description0, description1 = described[row0], described[row1]
        matches = teacher.match([(description0, description1)])[0]
        rows = _verified(matches, description0.size, description1.size, options)
        if matches.indices is not None and len(rows) >= options.min_matches // 2:
            found[row0, row1] = matches.indices[rows]
        report("matching", done + 1, len(candidates))
    return found


def _verified(
    matches: Matches, size0: tuple[int, int], size1: tuple[int, int], options: MineOptions
) -> Rows:
    """List the rows of the matches that one homography or fundamental matrix explains; none of other places."""
    points0, points1 = matches.points0, matches.points1
    estimator = Estimator(threshold=options.max_error, seed=options.seed)
    plane, views = (fit(points0, points1, estimator) for fit in (fit_homography, fit_fundamental))
    if not judge(matches, plane, views, size0, size1).same_place:
        return np.zeros(0, np.int64)
    best = max(plane, views, key=lambda fit: fit.inliers.sum())
    return np.flatnonzero(best.inliers)


def _agreeing(
    described: Sequence[Description],
    found: Mapping[PairOfRows, Rows],
    views: Mapping[int, Placed],
    options: MineOptions,
) -> dict[PairOfRows, Rows]:
    """List the matches of each pair that the model of all views confirms.

    Two views of one model get the scene points they share and their own matches that agree; a pair most of whose
    own matches contradict the model gets nothing. Views without a model must do with many matches of their own.
    """
    known = {}
    for pair in combinations(range(len(described)), 2):
        view0, view1 = views.get(pair[0]), views.get(pair[1])
        own = found.get(pair, np.zeros((0, 2), np.int64))
        if view0 is None or view1 is None:
            rows = own if len(own) >= _ALONE * options.min_matches else own[:0]
        elif view0.model == view1.model:
            rows = _of_model(described, pair, own, (view0.view, view1.view), options)
        else:
            continue
        if len(rows) >= options.min_matches:
            known[pair] = rows
    return known


def _of_model(
    described: Sequence[Description],
    pair: PairOfRows,
    own: Rows,
    views: tuple[View, View],
    options: MineOptions,
) -> Rows:
    """List the keypoints of two views of one model that match: scene points first, then own matches."""

    def agrees(rows: Rows) -> Rows:
        points0, points1 = _points(described, pair, rows)
        return rows[epipolar_errors(*views, points0, points1) <= options.max_error]

    agreeing = agrees(own)
    if len(agreeing) < _LEAST_AGREEING * len(own):
        return own[:0]
    rows = np.concatenate([agrees(shared_tracks(*views)), agreeing])
    return _one_to_one(rows)


def _one_to_one(rows: Rows) -> Rows:
    """Keep of (M, 2) rows the first that name a keypoint of either side."""
    for side in (0, 1):
        _, first = np.unique(rows[:, side], return_index=True)
        rows = rows[np.sort(first)]
    return rows


def _choose(known: Mapping[PairOfRows, Rows], count: int) -> dict[PairOfRows, Rows]:
    """Choose pairs evenly over all degrees of overlap, from those with most matches to those with fewest."""
    ordered = sorted(known, key=lambda pair: -len(known[pair]))
    if len(ordered) > count:
        places = np.linspace(0, len(ordered) - 1, count).round().astype(np.int64)
        ordered = [ordered[place] for place in places]
    return {pair: known[pair] for pair in sorted(ordered)}


def _points(
    described: Sequence[Description], pair: PairOfRows, rows: Rows
) -> tuple[Points, Points]:
    points0, points1 = (described[row].points[rows[:, side]] for side, row in enumerate(pair))
    return points0, points1


def _finish(
    described: Sequence[Description],
    sizes: Sequence[tuple[int, int]],
    pair: PairOfRows,
    rows: Rows,
    known: tuple[Mapping[int, Placed], MineOptions],
) -> MinedPair:
    """Refine and spread the matches of a pair, and write them in pixels of the photographs."""
    views, options = known
    image0, image1 = (described[row].image for row in pair)
    points0, points1 = _points(described, pair, rows)
    sparse = refine(Matches(points0, points1, np.ones(len(rows), np.float32)), image0, image1)
    sparse = replace(sparse, scores=np.maximum(agreement(sparse, image0, image1), _SURE))
    sparse = _explained(sparse, pair, views, options)
    dense = _explained(spread(sparse, image0, image1, options.dense), pair, views, options)
    return _in_photographs((sparse, dense), [described[row].size for row in pair], sizes, pair)


def _in_photographs(
    parts: tuple[Matches, Matches],
    from_sizes: Sequence[tuple[int, int]],
    sizes: Sequence[tuple[int, int]],
    pair: PairOfRows,
) -> MinedPair:
    """Join matches of shrunk photographs, and write them in pixels of the photographs themselves."""
    points0, points1 = (
        images.resize_points(
            np.concatenate([getattr(part, name) for part in parts]), size, sizes[row]
        )
        for name, size, row in zip(("points0", "points1"), from_sizes, pair, strict=True)
    )
    grown0, grown1 = (
        np.diag([sizes[row][1] / size[1], sizes[row][0] / size[0]])
        for size, row in zip(from_sizes, pair, strict=True)
    )
    maps = np.concatenate(
        [part.linear1_from_0 for part in parts if part.linear1_from_0 is not None]
    )
    linear = (grown1 @ maps @ np.linalg.inv(grown0)).astype(np.float32)
    confidence = np.concatenate([part.scores for part in parts])
    return MinedPair(*pair, points0, points1, confidence, linear)


def _explained(
    matches: Matches,
    pair: PairOfRows,
    views: Mapping[int, Placed],
    options: MineOptions,
) -> Matches:
    """Keep the matches that fit the epipolar geometry of the model."""
    if not all(row in views for row in pair):
        return matches
    views01 = views[pair[0]].view, views[pair[1]].view
    errors = epipolar_errors(*views01, matches.points0, matches.points1)
    return matches.select(errors <= options.max_error)
