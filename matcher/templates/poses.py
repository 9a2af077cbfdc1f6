"""Turn and scale a template, and settle a pose below the pixel and the degree.

A pose says where the template's centre lies in the scene, how far the template is turned
(counter-clockwise as one sees it on the screen, y down) and how large it is. In the template's own
frame, p counts pixels from its centre; its place in the scene is centre + scale * rotation @ p.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import map_coordinates, spline_filter

from matcher.correlation.kernel import Kernel, Pixels, make_kernel, weights_of
from matcher.correlation.sums import opencv
from matcher.types import Matrix, Points

_SAMPLES = 4096  # pixels of a template that take part in a fit: enough for 0.01 pixel
_STEPS = 6  # of the fit, a level; it stops earlier at a hundredth of a pixel
_MARGIN = 4  # pixels around a window that its spline needs


@dataclass(frozen=True)
class Pose:
    """A place of a template in a scene.

    Attributes:
        x: Centre, pixels of the scene.
        y: Centre, pixels of the scene.
        angle_degrees: Turn, counter-clockwise on the screen.
        scale: Size in the scene over size of the template.
    """

    x: float
    y: float
    angle_degrees: float = 0.0
    scale: float = 1.0

    @property
    def scene_from_template(self) -> Matrix:
        """Return the (2, 2) linear part that maps (x, y) steps of the template to the scene's."""
        angle = math.radians(self.angle_degrees)
        cosine, sine = self.scale * math.cos(angle), self.scale * math.sin(angle)
        return np.array([[cosine, sine], [-sine, cosine]])

    def at_level(self, factor: float) -> Pose:
        """Express the centre in pixels of a picture that is smaller by this factor."""
        return replace(self, x=(self.x + 0.5) / factor - 0.5, y=(self.y + 0.5) / factor - 0.5)

    def corners(self, size: tuple[int, int]) -> Points:
        """Place the outline of a template of this height and width in the scene, (4, 2)."""
        half = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * (size[1] / 2, size[0] / 2)
        placed = half @ self.scene_from_template.T + (self.x, self.y)
        return placed.astype(np.float32)


def overlap(pose: Pose, other: Pose, size: tuple[int, int]) -> float:
    """Compute intersection over union of a template at two poses, as if both were turned alike."""
    angle, x, y = math.radians(pose.angle_degrees), other.x - pose.x, other.y - pose.y
    cosine, sine = math.cos(angle) / pose.scale, math.sin(angle) / pose.scale
    across = abs(cosine * x - sine * y), abs(sine * x + cosine * y)  # in pixels of the template
    ratio = other.scale / pose.scale
    common = 1.0
    for distance, side in zip(across, (size[1], size[0]), strict=True):
        common *= max(0.0, min(side, ratio * side, (side + ratio * side) / 2 - distance))
    return common / (size[0] * size[1] * (1 + ratio**2) - common)


@dataclass(frozen=True, eq=False)
class Template:
    """A template at one level of the pyramid.

    Attributes:
        pixels: (h, w) or (h, w, C).
        weights: (h, w) float64 in [0, 1].
        centre: (x, y) of the whole template's centre in these pixels.
        masked: True where the weights are not all alike.
    """

    pixels: Pixels
    weights: Matrix
    centre: tuple[float, float]
    masked: bool
    _smaller: dict[int, Template] = field(default_factory=dict, init=False, repr=False)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.weights.shape

    @functools.cached_property
    def kernel(self) -> Kernel:
        """The kernel of the template as it is."""
        return make_kernel(self.pixels, self.weights if self.masked else None)

    def shrink(self, factor: int) -> Template:
        """Average squares of `factor` pixels; what is left over is cut off on all sides alike."""
        if factor not in self._smaller:
            self._smaller[factor] = self._shrink(factor)
        return self._smaller[factor]

    def _shrink(self, factor: int) -> Template:
        if factor == 1:
            return self
        (h, w), (x, y) = self.size, self.centre
        top, left = h % factor // 2, w % factor // 2
        window = slice(top, top + h // factor * factor), slice(left, left + w // factor * factor)
        centre = (x - left + 0.5) / factor - 0.5, (y - top + 0.5) / factor - 0.5
        if not self.masked:
            pixels = shrink(self.pixels[window], factor)
            return Template(pixels, np.ones(pixels.shape[:2]), centre, False)
        weights = shrink(self.weights[window], factor)
        planes = self.pixels.reshape(h, w, -1)[window] * self.weights[window][..., None]
        means = shrink(planes, factor) / np.maximum(weights, 1e-12)[..., None]
        pixels = means.reshape(*weights.shape, *self.pixels.shape[2:])
        return Template(pixels, weights, centre, True)

    def posed(self, angle_degrees: float, scale: float) -> Kernel:
        """Make the kernel of the turned and scaled template, of odd size about its centre.

        Pixels outside the turned template have no weight, those on its edge a part.
        """
        linear = Pose(0, 0, angle_degrees, scale).scene_from_template
        reach = np.abs(linear) @ (self.size[1] / 2, self.size[0] / 2)
        half_x, half_y = (math.ceil(r - 0.5) for r in reach)
        y, x = np.mgrid[-half_y : half_y + 1, -half_x : half_x + 1]
        back = np.linalg.inv(linear)
        u = back[0, 0] * x + back[0, 1] * y + self.centre[0]
        v = back[1, 0] * x + back[1, 1] * y + self.centre[1]
        inside = np.clip(_depth(u, self.size[1]) * scale + 0.5, 0, 1)
        inside *= np.clip(_depth(v, self.size[0]) * scale + 0.5, 0, 1)
        if self.masked:
            inside *= map_coordinates(self.weights, (v, u), order=1, mode="nearest")
        planes = self.pixels.reshape(*self.size, -1)
        turned = [
            map_coordinates(planes[..., c], (v, u), order=3, mode="nearest")
            for c in range(planes.shape[2])
        ]
        return make_kernel(np.stack(turned, axis=-1), inside)


def make_template(pixels: Pixels, mask: NDArray[np.generic] | None) -> Template:
    """Take a template's pixels and weights; pixels that are not finite get weight 0.

    Raises:
        ValueError: The mask is unusable; see `matcher.correlation.kernel.make_kernel`.
    """
    h, w = pixels.shape[:2]
    values = pixels.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.all():
        values = np.where(finite, values, 0.0)
    weights = weights_of(np.asarray(finite.reshape(h, w, -1).all(2)), mask)
    even = np.ones((h, w)) if weights is None else weights
    return Template(values, even, ((w - 1) / 2, (h - 1) / 2), weights is not None)


def shrink(pixels: Pixels, factor: int) -> Pixels:
    """Average squares of `factor` x `factor` pixels; rows and columns left over are dropped.

    Args:
        pixels: (H, W) or (H, W, C).
        factor: Side of a square.

    Returns:
        (H // factor, W // factor) or with C, float32, or float64 for float64.
    """
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    work = np.float32 if np.can_cast(pixels.dtype, np.float32) else np.float64
    adding = np.uint16 if pixels.dtype == np.uint8 else work  # holds the sum of up to 256 pixels
    rows: NDArray[Any] = pixels[: height * factor, : width * factor]
    with np.errstate(invalid="ignore"):  # infinite pixels
        sums: NDArray[Any] = np.add(rows[::factor], rows[1::factor], dtype=adding)
        for row in range(2, factor):
            sums += rows[row::factor]
        result: NDArray[Any] = sums[:, ::factor].astype(work)
        for column in range(1, factor):
            result += sums[:, column::factor]
    result /= factor * factor
    return result


def shrink_bytes(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    """Average squares of pixels like `shrink`, but round to bytes, at every halving; needs OpenCV.

    Args:
        pixels: (H, W) or (H, W, C).
        factor: Side of a square.
    """
    cv2: Any = opencv()
    while factor > 1:
        side = 2 if factor % 2 == 0 else factor  # halving is what OpenCV does fastest
        height, width = pixels.shape[0] // side, pixels.shape[1] // side
        whole = pixels[: side * height, : side * width]
        pixels = cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)
        factor //= side
    return pixels


@dataclass(frozen=True, eq=False)
class _Window:
    """A part of the scene.

    Attributes:
        splines: (rows, columns) spline coefficients, one array a channel.
        valid: (rows, columns) True where the pixels are finite.
        origin: (2, 1) of (x, y): place of the first pixel in the scene.
    """

    splines: list[Matrix]
    valid: NDArray[np.bool_]
    origin: NDArray[np.int64]


@dataclass(frozen=True)
class Freedom:
    """What a fit may change besides the place."""

    angle: bool
    scale: bool


class Aligner:
    """Fits a template's pose to a scene by least squares, with free brightness and contrast.

    The scene seen at the pose is a T(p + d(p)) + b, linear in the gain a, the offset b and a small
    motion d in the template's frame. The matrix depends on the template alone: inverted once.
    Source: Baker and Matthews, Lucas-Kanade 20 Years On, IJCV 56 (2004): inverse compositional.
    """

    def __init__(
        self, template: Template, freedom: Freedom, allowed: Callable[[Pose], bool]
    ) -> None:
        """Prepare the fit of a template, on at most some thousand of its pixels."""
        self.freedom, self._allowed = freedom, allowed
        stride = math.ceil(math.sqrt(math.prod(template.size) / _SAMPLES))
        chosen = tuple(slice((s - 1) % stride // 2, None, stride) for s in template.size)
        y, x = (grid[chosen].ravel() for grid in np.indices(template.size))
        self.offsets = np.stack([x - template.centre[0], y - template.centre[1]])  # (2, N)
        planes = np.moveaxis(template.pixels.reshape(*template.size, -1), 2, 0)
        self.weights = np.sqrt(template.weights[chosen].ravel())  # (N,)
        self.values = planes[(slice(None), *chosen)].reshape(len(planes), -1)  # (C, N)
        motions = [self._motion(plane, chosen) for plane in planes]  # C of (N, unknowns)
        offsets = np.repeat(np.eye(len(planes)), self.values.shape[1], axis=0)
        design = np.column_stack([self.values.ravel(), np.concatenate(motions), offsets])
        self._inverse = np.linalg.pinv(design * np.tile(self.weights, len(planes))[:, None])

    def fit(self, scene: Pixels, pose: Pose) -> tuple[Pose, float]:
        """Improve a pose.

        Args:
            scene: (H, W) or (H, W, C) pixels of the template's level.
            pose: Start, in pixels of this scene.

        Returns:
            The allowed pose with the best score on the way, and that score.
        """
        window = self._window(scene, pose)
        start, best, best_score = pose, pose, 0.0
        for _ in range(_STEPS):
            score, seen = self._compare(self._look(window, pose))
            if abs(score) > abs(best_score) and self._allowed(pose):
                best, best_score = pose, score
            pose, moved = self._step(seen, pose)
            lost = max(abs(pose.x - start.x), abs(pose.y - start.y)) > _MARGIN
            if lost or moved < 0.01:
                break
        return best, best_score

    def _motion(self, plane: Matrix, chosen: tuple[slice, ...]) -> Matrix:
        """Return (N, unknowns): how the template changes with shift, turn and growth."""
        dy, dx = (
            np.gradient(plane, axis=axis) if plane.shape[axis] > 1 else np.zeros_like(plane)
            for axis in (0, 1)
        )
        dx, dy = dx[chosen].ravel(), dy[chosen].ravel()
        x, y = self.offsets
        columns = [dx, dy]
        if self.freedom.angle:
            columns.append(dx * y - dy * x)
        if self.freedom.scale:
            columns.append(dx * x + dy * y)
        return np.column_stack(columns)

    def _window(self, scene: Pixels, pose: Pose) -> _Window:
        """Prepare splines of the pixels around a pose."""
        places = self._places(pose)
        low = np.maximum(np.floor(places.min(axis=1)).astype(int) - _MARGIN, 0)
        high = np.ceil(places.max(axis=1)).astype(int) + _MARGIN + 1
        part = scene[low[1] : high[1], low[0] : high[0]].astype(np.float64)
        part = np.moveaxis(part.reshape(*part.shape[:2], -1), 2, 0)
        valid: NDArray[np.bool_] = np.all(np.isfinite(part), axis=0)
        if not valid.all():
            part = np.where(valid, part, part[:, valid].mean() if valid.any() else 0.0)
        return _Window([spline_filter(plane) for plane in part], valid, low[:, None])

    def _places(self, pose: Pose) -> Matrix:
        """Return (2, N) of (x, y): where the template's pixels fall in the scene."""
        placed: Matrix = pose.scene_from_template @ self.offsets + [[pose.x], [pose.y]]
        return placed

    def _look(self, window: _Window, pose: Pose) -> Matrix:
        """Sample the scene where the template's pixels fall: (C, N), NaN at invalid pixels."""
        places = (self._places(pose) - window.origin)[::-1]
        seen = np.stack(
            [map_coordinates(s, places, prefilter=False, mode="nearest") for s in window.splines]
        )
        if not window.valid.all():
            trust = map_coordinates(window.valid.astype(float), places, order=1, mode="nearest")
            seen[:, trust < 1 - 1e-9] = np.nan
        return seen

    def _compare(self, seen: Matrix) -> tuple[float, Matrix]:
        """Correlate what is seen with the template, and fill what is not from the template."""
        valid = np.isfinite(seen[0])
        weights = self.weights[valid]
        if not weights.any():
            return 0.0, np.zeros_like(seen)
        means = [(v[:, valid] * weights**2).sum(axis=1) for v in (self.values, seen)]
        expected, found = (
            v - (m / (weights**2).sum())[:, None]
            for v, m in zip((self.values, seen), means, strict=True)
        )
        a, b = expected[:, valid] * weights, found[:, valid] * weights
        product, energy = float((a * b).sum()), float((a * a).sum())
        norm = math.sqrt(energy * float((b * b).sum()))
        gain = product / energy if energy > 0 else 0.0
        filled = np.where(valid, found, gain * expected)
        return (product / norm if norm > 0 else 0.0), filled

    def _step(self, seen: Matrix, pose: Pose) -> tuple[Pose, float]:
        """Solve for the motion that explains what is seen; also tell how far the outline moves."""
        gain, *motion = self._inverse[: 3 + self.freedom.angle + self.freedom.scale] @ (
            (seen * self.weights).ravel()
        )
        if abs(gain) < 1e-12:
            return pose, 0.0
        motion = [m / gain for m in motion]
        x, y = pose.scene_from_template @ motion[:2]
        turn = math.degrees(motion[2]) if self.freedom.angle else 0.0
        growth = motion[-1] if self.freedom.scale else 0.0
        growth = min(max(growth, -0.2), 0.2)
        reach = float(np.abs(self.offsets).max()) * pose.scale
        moved = max(abs(x), abs(y), abs(math.radians(turn)) * reach, abs(growth) * reach)
        shrunk = min(1.0, 3 / moved) if moved > 0 else 1.0  # no further than the window's margin
        return Pose(
            pose.x - x * shrunk,
            pose.y - y * shrunk,
            pose.angle_degrees - turn * shrunk,
            pose.scale * math.exp(-growth * shrunk),
        ), moved


def _depth(places: Matrix, length: int) -> Matrix:
    """Measure how far inside an outline of pixels 0 to length - 1 a place lies."""
    return np.minimum(places, length - 1 - places) + 0.5
