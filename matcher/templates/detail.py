"""Tell whether fine detail agrees too, where a template was found.

What is smooth is like much else once it may turn and grow: a shaded patch correlates with the edge
of any shadow. Of two pictures of one thing what a blur takes away agrees as well; of two things
that merely have the same shading it does not.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter1d, map_coordinates

from matcher.correlation.kernel import Pixels
from matcher.templates.poses import Pose, Template, shrink
from matcher.templates.survey import Pyramid
from matcher.types import Matrix

_BLUR = 3.0  # standard deviation in pixels of the level, and of the scene where that is coarser
_SIDE = 64  # pixels that the shorter side keeps on the level where detail is compared
_SMALL = 200  # pixels of a side up to which a matrix blurs it
_LEAST = 1e-6  # share of a picture's contrast below which what is left of it is rounding


class Detail:
    """Compares the detail of one template with a scene's."""

    def __init__(self, template: Template, pyramid: Pyramid) -> None:
        """Choose the level: large templates have detail enough on a small one."""
        shorter = min(template.size)
        self._factor = next(f for f in (4, 2, 1) if f == 1 or shorter >= f * _SIDE)
        self._template = template.shrink(self._factor)
        self._scene = pyramid.level(1)

    def score(self, pose: Pose, *, negative: bool = False) -> float:
        """Correlate what a blur takes away of the template and of the scene at a pose.

        Args:
            pose: In pixels of the scene.
            negative: The scene shows the template's negative.

        Returns:
            In [-1, 1]; 1 where the template has no detail, which cannot disagree.
        """
        template = self._template
        seen = _look(self._scene, self._factor, pose.at_level(self._factor), template)
        sigma = round(_BLUR * max(1.0, 1 / pose.scale), 1)  # so that hits share their blurs
        planes = np.moveaxis(template.pixels.reshape(*template.size, -1), 2, 0)
        weights, valid = template.weights, np.isfinite(seen)
        if not valid.all():
            weights, seen = weights * valid.all(0), np.where(valid, seen, 0.0)
        wanted, found = np.split(_fine(np.concatenate([planes, seen]), weights, sigma), 2)
        own, other = ((weights * fine**2).sum() for fine in (wanted, found))
        if own <= (_LEAST * planes.std()) ** 2 * weights.sum() * len(planes):
            return 1.0
        if not other:
            return 0.0
        agreed = float((weights * wanted * found).sum() / math.sqrt(own * other))
        return -agreed if negative else agreed


def _look(scene: Pixels, factor: int, pose: Pose, template: Template) -> Matrix:
    """Sample a scene's level where the template's pixels fall: (C, h, w), NaN outside of it."""
    (h, w), still = template.size, (pose.angle_degrees, pose.scale) == (0.0, 1.0)
    top, left = pose.y - template.centre[1], pose.x - template.centre[0]
    if still and min(top, left) >= 0:
        row, column = int(top), int(left)
        planes = _planes(scene, factor, (row, row + h + 1), (column, column + w + 1))
        if planes.shape[1:] == (h + 1, w + 1):
            return _between(_between(planes, top - row, 1), left - column, 2)
    y, x = np.indices((h, w)).reshape(2, -1)
    offsets = np.stack([x - template.centre[0], y - template.centre[1]])
    places = (pose.scene_from_template @ offsets + [[pose.x], [pose.y]])[::-1]  # rows first
    low = np.maximum(np.floor(places.min(1)).astype(int) - 1, 0)
    high = np.ceil(places.max(1)).astype(int) + 2
    planes = _planes(scene, factor, (low[0], high[0]), (low[1], high[1]))
    seen = [map_coordinates(plane, places - low[:, None], order=1, cval=np.nan) for plane in planes]
    return np.stack(seen).reshape(len(planes), h, w)


def _planes(scene: Pixels, factor: int, rows: tuple[int, int], columns: tuple[int, int]) -> Matrix:
    """Cut rows and columns of a level out of the scene: (C, rows, columns), fewer at its border."""
    (top, bottom), (left, right) = rows, columns
    part = scene[top * factor : bottom * factor, left * factor : right * factor]
    part = shrink(part, factor) if factor > 1 else part
    return np.moveaxis(part.reshape(*part.shape[:2], -1).astype(np.float64), 2, 0)


def _between(planes: Matrix, share: float, axis: int) -> Matrix:
    """Interpolate between neighbours along an axis, which leaves one fewer."""
    first, second = (
        planes[(slice(None),) * axis + (some,)] for some in (slice(None, -1), slice(1, None))
    )
    with np.errstate(invalid="ignore"):  # infinite pixels
        return first + share * (second - first) if share else first


def _fine(planes: Matrix, weights: Matrix, sigma: float) -> NDArray[np.float64]:
    """Take away what a blur under weights leaves, and the mean of the rest: (C, h, w)."""
    if weights.min() == 1:
        blurred = _blurred(planes, sigma)
    else:
        blurred = _blurred(weights * planes, sigma) / np.maximum(_blurred(weights, sigma), 1e-12)
    fine = planes - blurred
    means = (weights * fine).sum((1, 2), keepdims=True) / max(weights.sum(), 1e-12)
    return np.asarray(fine - means)


def _blurred(planes: Matrix, sigma: float) -> Matrix:
    """Blur (..., h, w) pixels, reflected at their border: small ones by matrices, which is faster."""
    for axis in (-2, -1):
        if planes.shape[axis] > _SMALL:
            planes = np.asarray(gaussian_filter1d(planes, sigma, axis))
        elif axis == -2:
            planes = _blur(planes.shape[axis], sigma) @ planes
        else:
            planes = planes @ _blur(planes.shape[axis], sigma).T
    return planes


@functools.lru_cache(maxsize=16)
def _blur(side: int, sigma: float) -> Matrix:
    """Return the (side, side) matrix that blurs a line of pixels."""
    return np.asarray(gaussian_filter1d(np.eye(side), sigma, axis=0))
