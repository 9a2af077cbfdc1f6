"""Find every copy of a flat object: match, verify, mask what was found, repeat."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from matcher import images
from matcher.geometry.cameras import transfer
from matcher.geometry.fitting import fit_homography
from matcher.geometry.solvers import Estimator
from matcher.geometry.verification import MAX_LOG_CHANCE, MIN_INLIERS, log10_chance_of_plane
from matcher.types import Image, Mask, Matcher, Matches, Matrix

_THRESHOLD = 3.0  # pixels that a match may be off the homography
_APART = 2 * _THRESHOLD  # pixels between matches that count as independent
_DETAIL = 1 / 20  # of the reference's diagonal: likewise, in the reference
_VISIBLE = 0.5  # share of an outline that no earlier copy may cover


@dataclass(frozen=True, eq=False)
class Instance:
    """One copy of the object.

    Attributes:
        matches: Those that agree with its homography.
        pixels1_from_pixels0: (3, 3) homography from the object's picture to the scene.
    """

    matches: Matches
    pixels1_from_pixels0: Matrix


def match_instances(
    method: Matcher, reference: object, scene: object, *, limit: int = 20
) -> list[Instance]:
    """Match a picture of one flat object with a scene that holds any number of copies.

    A one-to-one assignment spreads its matches over the copies; each round takes the copy that most matches agree
    on, and hides it from the next round.

    Args:
        method: From `matcher.create`.
        reference: The object: a path, PIL image, array or tensor.
        scene: Likewise, of any size.
        limit: Rounds at most.

    Returns:
        The copies, in the order found; none where nothing was verified.
    """
    pictures = [images.grey(images.read(picture)) for picture in (reference, scene)]
    known = method.describe(pictures[:1])[0]
    free = np.ones(pictures[1].shape, np.bool_)
    found: list[Instance] = []
    while len(found) < limit:
        matches = method.match([(known, method.describe(pictures[1:], [free])[0])])[0]
        instance = _verified(matches, pictures)
        if instance is None:
            break
        outline = _outline(instance, pictures[0].shape, free.shape)
        if free[outline].mean() < _VISIBLE:
            break
        found.append(instance)
        free &= ~outline
    return found


def _verified(matches: Matches, pictures: list[Image]) -> Instance | None:
    """Take the matches of the homography that most agree with, if chance does not explain them.

    Chance counts matches that are independent: neighbours err together, so of those that are close
    to each other in either picture one counts. Close is relative to the reference: one detail of
    it that repeats elsewhere, however many matches it has, is no copy.
    """
    fit = fit_homography(matches.points0, matches.points1, Estimator(threshold=_THRESHOLD))
    if fit.model is None or not _seen_from_front(fit.model, pictures[0].shape):
        return None
    reach0 = max(_APART, _DETAIL * float(np.hypot(*pictures[0].shape)))
    apart = _apart(matches, fit.inliers, reach0)
    evidence = replace(fit, inliers=fit.inliers[apart], dropped=0)
    height, width = pictures[1].shape
    chance = log10_chance_of_plane(evidence, (height, width))
    if evidence.inliers.sum() < MIN_INLIERS or chance > MAX_LOG_CHANCE:
        return None
    return Instance(matches.select(fit.inliers), fit.model)


def _apart(matches: Matches, inliers: NDArray[np.bool_], reach0: float) -> NDArray[np.intp]:
    """Choose matches that are far from each other in both pictures, inliers before others."""
    places = np.stack([matches.points0 / reach0, matches.points1 / _APART], axis=1)  # (N, 2, 2)
    chosen: list[int] = []
    for row in np.argsort(~inliers, kind="stable"):
        if (np.abs(places[chosen] - places[row]).max(axis=2) > 1).all():
            chosen.append(int(row))
    return np.array(chosen, np.intp)


def _seen_from_front(homography: Matrix, size: tuple[int, ...]) -> bool:
    """Tell whether a picture's outline keeps its sense of turning and does not cross the horizon."""
    height, width = size
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]]) - [
        0.5,
        0.5,
        0,
    ]
    seen = corners @ homography.T
    depth = seen[:, 2]
    if not (depth * depth[0] > 0).all():
        return False
    sides = np.roll(seen[:, :2] / depth[:, None], -1, axis=0) - seen[:, :2] / depth[:, None]
    after = np.roll(sides, -1, axis=0)
    turns = sides[:, 0] * after[:, 1] - sides[:, 1] * after[:, 0]
    return bool((turns > 0).all())


def _outline(instance: Instance, size0: tuple[int, ...], size1: tuple[int, ...]) -> Mask:
    """Mark the pixels of the scene that the object covers: those that map back into its picture."""
    height, width = size0
    y, x = np.mgrid[: size1[0], : size1[1]]
    places = np.stack([x.ravel(), y.ravel()], 1).astype(np.float64)
    back = transfer(np.linalg.inv(instance.pixels1_from_pixels0), places).reshape(*size1, 2)
    inside: Mask = np.all((back >= -0.5) & (back <= [width - 0.5, height - 0.5]), axis=-1)
    return inside
