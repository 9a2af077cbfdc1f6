"""Find every copy of a flat object: match, verify, mask what was found, repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from matcher import images
from matcher.geometry.cameras import transfer
from matcher.geometry.fitting import fit_homography
from matcher.geometry.solvers import Estimator
from matcher.geometry.verification import MIN_INLIERS, verify
from matcher.types import Image, Mask, Matcher, Matches, Matrix


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
        found.append(instance)
        free &= ~_outline(instance, pictures[0].shape, free.shape)
    return found


def _verified(matches: Matches, pictures: list[Image]) -> Instance | None:
    """Take the matches of the homography that most agree with, if chance does not explain them."""
    fit = fit_homography(matches.points0, matches.points1, Estimator(threshold=3.0))
    agreeing = matches.select(fit.inliers)
    if fit.model is None or len(agreeing) < MIN_INLIERS:
        return None
    (height0, width0), (height1, width1) = (picture.shape for picture in pictures)
    if not verify(matches, (height0, width0), (height1, width1)).same_place:
        return None
    return Instance(agreeing, fit.model)


def _outline(instance: Instance, size0: tuple[int, ...], size1: tuple[int, ...]) -> Mask:
    """Mark the pixels of the scene that the object covers: those that map back into its picture."""
    height, width = size0
    y, x = np.mgrid[: size1[0], : size1[1]]
    places = np.stack([x.ravel(), y.ravel()], 1).astype(np.float64)
    back = transfer(np.linalg.inv(instance.pixels1_from_pixels0), places).reshape(*size1, 2)
    inside: Mask = np.all((back >= -0.5) & (back <= [width - 0.5, height - 0.5]), axis=-1)
    return inside
