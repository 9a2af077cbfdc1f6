"""Score every place of a scene against a template: exact zero-mean normalised cross-correlation.

The score of a window x under a template t with weights m is

    sum m (t - mean t) (x - mean x) / sqrt(sum m (t - mean t)^2  sum m (x - mean x)^2)

with means under m, so brightness and contrast drop out and the score lies in [-1, 1]. Colour is
scored jointly: every channel loses its own mean, then the sums run over all channels.

A template or a window without contrast has no score and gets 0. NaN and infinite pixels count as
masked; a window that sees less than half of the template's weight gets 0 too.

How: a scene is cut into overlapping tiles, one thread each. In a tile, numerators are float32
products of the pattern with every window, and norms come from `matcher.correlation.window_norms`.
Where float32 is too coarse for an error of 1e-5, as beside strong contrast, and under masks,
products are done in float64.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from matcher.correlation.kernel import Kernel, Pixels, channels_first, make_kernel
from matcher.correlation.masked import Powers, masked_scores, powers_of
from matcher.correlation.precision import Precision
from matcher.correlation.sums import exact_products, sliding_products
from matcher.correlation.tiles import ROWS, Plan, in_threads, make_plan
from matcher.correlation.window_norms import WindowNorms
from matcher.correlation.workspace import Workspace, workspace
from matcher.types import Floats

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_RANGE = 1e-15, 1e15  # sizes of values whose squares stay far from the ends of float32's range
_KEPT = 8  # most tiles of a scene whose transforms are kept for the next masked template


def score_map(template: Pixels, scene: Pixels, mask: NDArray[np.generic] | None = None) -> Floats:
    """Score every placement of a template inside a scene.

    Args:
        template: (h, w) or (h, w, C), any real dtype and range.
        scene: (H, W) or (H, W, C), likewise.
        mask: (h, w) weights of the template's pixels: bool, or numbers of any range, 0 or more.

    Returns:
        (H - h + 1, W - w + 1) in [-1, 1]; [y, x] belongs to the window whose top-left pixel is (x, y).

    Raises:
        ValueError: The template is larger than the scene, channels differ, or the mask is unusable.
    """
    return Scene(scene).score_map(make_kernel(template, mask))


class Scene:
    """A scene that is made ready once, for many templates.

    Templates of one size share the norms of its windows, from the second of them on, and masked
    ones its transforms; both are kept for the last two sizes.
    """

    def __init__(self, pixels: Pixels) -> None:
        """Prepare a scene of (H, W) or (H, W, C) pixels of any real dtype and range."""
        values = _kept(channels_first(pixels, pixels.dtype))
        self.valid = _valid_pixels(values)
        if self.valid is None:
            self.values = _in_range(values)  # (C, H, W)
            self.centre = _centre(self.values[:, ::5, ::7])
        else:
            self.values = _in_range(np.where(self.valid, values, 0))
            self.centre = _centre(self.values[:, self.valid])
            self.values[:, ~self.valid] = self.centre
        self._norms = Recent[Plan, list[Floats | None]](2)
        self._spectra = Recent[Plan, list[Powers | None]](2)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.values.shape[1], self.values.shape[2]

    def score_map(self, kernel: Kernel) -> Floats:
        """Score every placement of a template; see `score_map` of this module.

        Raises:
            ValueError: The template is larger than the scene, or the channels differ.
        """
        scores = np.empty(self._check(kernel), np.float32)
        if kernel.flat:
            return np.zeros_like(scores)
        plan = make_plan(self.size, kernel.size)
        plain, masked = self._plain(kernel, plan, scores), self._masked(kernel, plan, scores)

        def score(index: int) -> None:
            alike = kernel.weights is None and self._validity(plan, index) is None
            (plain if alike else masked)(index)

        in_threads(score, plan.count)
        return scores

    def _check(self, kernel: Kernel) -> tuple[int, int]:
        """Return the size of the score map."""
        (height, width), (h, w) = self.size, kernel.size
        if h > height or w > width:
            raise ValueError(
                f"a template of {h} x {w} pixels does not fit a scene of {height} x {width}"
            )
        if len(kernel.pattern) != len(self.values):
            raise ValueError(
                f"the template has {len(kernel.pattern)} channels, the scene {len(self.values)}"
            )
        return height - h + 1, width - w + 1

    def _validity(self, plan: Plan, index: int) -> NDArray[np.bool_] | None:
        """Return which pixels of a tile are valid; None where all are."""
        if self.valid is None:
            return None
        valid = self.valid[plan.inputs(index)]
        return None if valid.all() else valid

    def _plain(self, kernel: Kernel, plan: Plan, scores: Floats) -> Callable[[int], None]:
        """Make the task that scores a tile for a template whose pixels count alike."""
        kept = self._kept_norms(plan)
        pattern = kernel.pattern.astype(np.float32)

        def score(index: int) -> None:
            inputs, target = plan.inputs(index), scores[plan.outputs(index)]
            with workspace() as space:
                deviations = self._deviations(inputs, space)
                norms: WindowNorms | Floats | None = None if kept is None else kept[index]
                if norms is None:
                    small = self.values.dtype == np.uint8
                    pixels = self.values[(slice(None), *inputs)] if small else deviations
                    norms = WindowNorms(pixels, kernel.size, space)
                    if kept is not None:
                        norms = kept[index] = norms[:]
                own = target.flags.c_contiguous
                out = target if own else space.array("products", target.shape, np.float32)
                products = _products(sliding_products, deviations, pattern, out)
                precision = Precision(kernel, deviations)
                rough = _normalise(products, norms, target, precision)
                if rough is not None:
                    exact = self._exact_deviations(_pixels_of(rough, inputs, kernel.size))
                    products = _products(exact_products, exact, kernel.pattern)
                    _normalise(products, WindowNorms(exact, kernel.size, space), target[rough])

        return score

    def _kept_norms(self, plan: Plan) -> list[Floats | None] | None:
        """Return where norms of tiles are kept; None at first, as they may never be needed again."""
        again = plan in self._norms
        kept = self._norms.get(plan, lambda: [None] * plan.count)
        return kept if again else None

    def _exact_deviations(self, place: tuple[slice, slice]) -> NDArray[np.float64]:
        """Return the (C, ny, nx) pixels of a place less the centre."""
        return self.values[(slice(None), *place)].astype(np.float64) - self.centre

    def _deviations(self, place: tuple[slice, slice], space: Workspace) -> Floats:
        """Return the (C, ny, nx) pixels of a place less the centre; float64 is rounded after that."""
        pixels = self.values[(slice(None), *place)]
        deviations = space.array("deviations", pixels.shape, np.float32)
        working = np.promote_types(pixels.dtype, np.float32)
        np.subtract(pixels, self.centre, out=deviations, dtype=working, casting="same_kind")
        return deviations

    def _masked(self, kernel: Kernel, plan: Plan, scores: Floats) -> Callable[[int], None]:
        """Make the task that scores a tile under weights and validity, in float64."""
        kept = self._spectra.get(plan, lambda: [None] * plan.count)

        def score(index: int) -> None:
            target, tile = scores[plan.outputs(index)], kept[index]
            if tile is None:
                tile = powers_of(self._exact_deviations(plan.inputs(index)))
                if plan.count <= _KEPT:
                    kept[index] = tile
            found = masked_scores(tile, self._validity(plan, index), kernel)
            np.clip(found[: target.shape[0], : target.shape[1]], -1, 1, out=target)

        return score


def _products(
    multiply: Callable[..., NDArray[np.floating[Any]]],
    deviations: NDArray[np.floating[Any]],
    pattern: NDArray[np.floating[Any]],
    *out: Floats,
) -> NDArray[np.floating[Any]]:
    """Sum the products of all channels; into `out` if that is given."""
    products = multiply(deviations[0], pattern[0], *out)
    for plane, part in zip(deviations[1:], pattern[1:], strict=True):
        products += multiply(plane, part)
    return products


def _normalise(
    products: NDArray[np.floating[Any]],
    norms: WindowNorms | Floats,
    scores: Floats,
    precision: Precision | None = None,
) -> tuple[slice, slice] | None:
    """Divide, and cut off what rounding puts beyond 1; some rows at once, which stay in the cache.

    Args:
        products: (rows, columns) sums of products.
        norms: Of the windows.
        scores: Result; may be `products` itself.
        precision: Tells for which windows the products are too coarse; None for none.

    Returns:
        Rows and columns of those windows; None where there are none.
    """
    rough: list[tuple[int, int, int, int]] = []
    for first in range(0, len(scores), ROWS):
        rows = slice(first, min(first + ROWS, len(scores)))
        some = norms[rows]
        np.divide(products[rows], some, out=scores[rows], casting="same_kind")
        np.clip(scores[rows], -1, 1, out=scores[rows])
        coarse = None if precision is None else precision.too_coarse(some)
        if coarse is not None:
            inner, columns = (np.flatnonzero(coarse.any(axis)) for axis in (1, 0))
            rough.append((first + inner[0], first + inner[-1] + 1, columns[0], columns[-1] + 1))
    if not rough:
        return None
    tops, bottoms, lefts, rights = zip(*rough, strict=True)
    return slice(min(tops), max(bottoms)), slice(min(lefts), max(rights))


def _pixels_of(
    windows: tuple[slice, slice], tile: tuple[slice, slice], size: tuple[int, int]
) -> tuple[slice, slice]:
    """Locate the pixels of the scene that some windows of a tile see."""
    rows, columns = (
        slice(inside.start + some.start, inside.start + some.stop + side - 1)
        for some, inside, side in zip(windows, tile, size, strict=True)
    )
    return rows, columns


class Recent(Generic[Key, Value]):
    """The last few values that were computed, by key."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._values: dict[Key, Value] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now if it is not among the last few."""
        with self._lock:
            if key not in self._values:
                while len(self._values) >= self._most:
                    self._values.pop(next(iter(self._values)))
                self._values[key] = make()
            return self._values[key]


def _valid_pixels(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return (H, W) True where all channels are finite, or None where all pixels are."""
    if values.dtype.kind != "f" or math.isfinite(float(values.sum())):
        return None
    valid = np.asarray(np.isfinite(values).all(0))
    return None if valid.all() else valid


def _centre(sample: NDArray[Any]) -> float:
    """Find a constant near the mean of some pixels; a whole number if they are whole."""
    mean = float(sample.mean(dtype=np.float64)) if sample.size else 0.0
    return mean if sample.dtype.kind == "f" else float(round(mean))


def _kept(planes: NDArray[Any]) -> NDArray[Any]:
    """Keep (C, H, W) pixels as bytes where they hold bytes, else in float32 if that is exact."""
    if planes.dtype in (np.uint8, np.int8, np.int16):
        return planes
    small = None if _bytes(planes[:, ::5, ::7]) is None else _bytes(planes)
    if small is not None:
        return small
    return planes.astype(np.result_type(planes.dtype, np.float32), copy=False)


def _bytes(pixels: NDArray[Any]) -> NDArray[np.uint8] | None:
    """Turn pixels into bytes; None unless all are whole numbers from 0 to 255."""
    with np.errstate(invalid="ignore"):
        small = pixels.astype(np.uint8)
    return small if (small == pixels).all() else None


def _in_range(values: NDArray[Any]) -> NDArray[Any]:
    """Scale values whose squares float32 does not hold by a power of 2, which changes no score."""
    largest = max(-float(values.min()), float(values.max()))
    if values.dtype.kind != "f" or not largest or _RANGE[0] < largest < _RANGE[1]:
        return values
    return np.ldexp(values.astype(np.float64), -math.frexp(largest)[1])
