"""Score every place of a scene against a template: exact zero-mean normalised cross-correlation.

The score of a window x under a template t with weights m is

    sum m (t - mean t) (x - mean x) / sqrt(sum m (t - mean t)^2  sum m (x - mean x)^2)

with means under m, so brightness and contrast drop out and the score lies in [-1, 1]. Colour is scored jointly: every
channel loses its own mean, then the sums run over all channels.

A template or a window without contrast has no score and gets 0. NaN and infinite pixels count as masked; a window that
sees less than half of the template's weight gets 0 too.

How: numerators come from products of Fourier transforms over overlapping tiles (overlap-save), two tiles riding in one
complex transform; the norms of the windows come from float64 running sums that start anew every window length, so
that no window feels the rest of the scene. Where float32 transforms would be too coarse, tiles are done in float64.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from scipy.fft import next_fast_len
from torch import Tensor

from matcher.types import Floats, Matrix

Pixels = NDArray[np.generic]  # (H, W) or (H, W, C), any real dtype and range
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_SMALL = 1 << 15  # values of a scene below which float64 transforms cost next to nothing
_BAND = 1 << 19  # values summed at once: bounds memory
_STRIP = 1 << 21  # likewise, down the columns
_CHUNK = 1 << 19  # complex values transformed at once: fits the second-level cache
_TOLERANCE = 1e-5  # largest error of a score that float32 transforms may cause
_LONGEST = 2048  # side of a tile, unless even the shortest that make sense are longer
_ROUNDING = 4 * 2.0**-23  # error of float32 transforms over their root mean square, see tests
_FLAT = (
    1e-13  # share of a window's power about the scene's mean below which its variance is rounding
)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A template made ready to be correlated.

    Attributes:
        pattern: (C, h, w) float64, weighted, zero mean in every channel, unit norm; zeros for a flat template.
        weights: (h, w) float64 in [0, 1], or None where all pixels count alike.
        spread: (C, h, w) float64 deviation from the mean, scaled like `pattern` but without weights.
        flat: True where the template has no contrast and so no score.
    """

    pattern: NDArray[np.float64]
    weights: NDArray[np.float64] | None
    spread: NDArray[np.float64]
    flat: bool

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pattern.shape[1], self.pattern.shape[2]


def make_kernel(template: Pixels, mask: NDArray[np.generic] | None = None) -> Kernel:
    """Remove the mean of every channel and scale to unit norm, under the mask's weights.

    Args:
        template: (h, w) or (h, w, C), any range; NaN and infinite pixels get weight 0.
        mask: (h, w) weights of any range, 0 or more, True or the largest for full weight; None for all alike.

    Raises:
        ValueError: The mask has another size, a negative weight, or no weight at all.
    """
    channels = _channels_first(template)
    valid = np.isfinite(channels).all(axis=0)
    weights = _weights(mask, valid)
    channels = np.where(valid, channels, 0.0)
    total = float(valid.size) if weights is None else float(weights.sum())
    spread = channels - _weighted(channels, weights).sum(axis=(1, 2), keepdims=True) / total
    norm = math.sqrt(float((_weighted(spread, weights) * spread).sum()))
    level = float(np.abs(channels[:, weights > 0] if weights is not None else channels).max())
    flat = norm <= 1e-7 * level * math.sqrt(total)  # float32 rounds a constant by that much
    spread = np.zeros_like(spread) if flat else spread / norm
    return Kernel(_weighted(spread, weights), weights, spread, flat)


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
    """A scene whose transforms and window norms are computed once, for many templates.

    Templates of one size share the norms, templates of about one size the transforms; both are
    kept for the last few sizes.
    """

    def __init__(self, pixels: Pixels) -> None:
        """Prepare a scene of (H, W) or (H, W, C) pixels of any real dtype and range."""
        work = np.float32 if np.can_cast(pixels.dtype, np.float32) else np.float64
        values = torch.from_numpy(_channels_first(pixels, work))
        self.valid = _validity(values)
        self.centre = _centre(values, self.valid)
        if self.valid is not None:
            values = torch.where(self.valid, values, self.centre)
        self.values = values  # (C, H, W)
        self._pairs = Recent[Plan, Tensor](2)
        self._norms = Recent[tuple[int, int], Tensor](2)
        self._powers = Recent[tuple[Plan, int], Spectrum](8)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.values.shape[1], self.values.shape[2]

    def score_map(self, kernel: Kernel) -> Floats:
        """Score every placement of a template; see `score_map` of this module.

        Raises:
            ValueError: The template is larger than the scene, or the channels differ.
        """
        scores = torch.empty(self._check(kernel), dtype=torch.float32)
        if kernel.flat:
            return scores.zero_().numpy()
        plan = make_plan(self.size, kernel.size)
        if kernel.weights is not None:
            masked: Iterable[int] = range(plan.count)
        else:
            masked = self._broken(plan)
            self._score_plain(kernel, plan, scores)
        for index in masked:
            self._put(scores, plan, index, self._score_masked(kernel, plan, index))
        return scores.clamp_(-1, 1).numpy()

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

    def _broken(self, plan: Plan) -> list[int]:
        """List the tiles that hold invalid pixels."""
        if self.valid is None:
            return []
        return [i for i in range(plan.count) if not bool(self.valid[plan.inputs(i)].all())]

    def _score_plain(self, kernel: Kernel, plan: Plan, scores: Tensor) -> None:
        """Fill the scores of a template whose pixels count alike, as if all pixels were valid."""
        norms = self._norms.get(
            kernel.size, lambda: inverse_norms(self.values, self.centre, kernel.size)
        )
        rough: Iterable[int] = range(plan.count)
        if self.values.numel() > _SMALL:
            pairs = self._pairs.get(plan, lambda: self._transform(plan))
            filters = _filter(kernel, plan)
            for index, sums in _tile_sums(pairs, filters, plan):
                place = plan.outputs(index, scores.shape)
                target = scores[place]
                torch.mul(sums[: target.shape[0], : target.shape[1]], norms[place], out=target)
            rough = _rough_tiles(pairs, filters, norms, plan)
        for index in rough:
            tile = self.values[(slice(None), *plan.inputs(index))].double() - self.centre
            spectrum = torch.fft.rfft2(torch.from_numpy(kernel.pattern), s=plan.tile).conj()
            spectrum = spectrum * torch.fft.rfft2(tile, s=plan.tile)
            sums = torch.fft.irfft2(_sum_channels(spectrum), s=plan.tile)
            place = plan.outputs(index, scores.shape)
            rows, columns = norms[place].shape
            scores[place] = sums[:rows, :columns] * norms[place]

    def _transform(self, plan: Plan) -> Tensor:
        """Return (C, pairs, Ny, Nx) transforms: tile i is real, tile i + pairs imaginary."""
        pairs = torch.zeros(len(self.values), plan.pairs, *plan.tile, dtype=torch.complex64)
        planes = torch.view_as_real(pairs)
        for index in range(plan.count):
            part = self.values[(slice(None), *plan.inputs(index))]
            plane, pair = divmod(index, plan.pairs)
            place = planes[:, pair, : part.shape[1], : part.shape[2], plane]
            torch.sub(part, self.centre, out=place)
        return torch.fft.fft2(pairs)

    def _score_masked(self, kernel: Kernel, plan: Plan, index: int) -> Tensor:
        """Score one tile under weights and validity, in float64."""
        inputs = plan.inputs(index)
        valid = None if self.valid is None else self.valid[inputs]
        if valid is not None and bool(valid.all()):
            valid = None

        def transform() -> Spectrum:
            tile = self.values[(slice(None), *inputs)].double() - self.centre
            powers = torch.complex(tile, tile.square())
            return Spectrum(torch.fft.fft2(powers, s=plan.tile), _noise(powers.imag))

        return _masked_scores(self._powers.get((plan, index), transform), valid, kernel, plan)

    @staticmethod
    def _put(scores: Tensor, plan: Plan, index: int, found: Tensor) -> None:
        target = scores[plan.outputs(index, scores.shape)]
        target.copy_(found[: target.shape[0], : target.shape[1]])


class Recent(Generic[Key, Value]):
    """The last few values that were computed, by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key, made now if it is not among the last few."""
        if key not in self._values:
            while len(self._values) >= self._most:
                self._values.pop(next(iter(self._values)))
            self._values[key] = make()
        return self._values[key]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """What masked scores need of a tile.

    Attributes:
        powers: (C, Ny, Nx) complex128 transform of pixels (real part) and squares (imaginary).
        noise: What rounding may add to a sum of squares, per unit norm of the weights.
    """

    powers: Tensor
    noise: float


@dataclass(frozen=True)
class Plan:
    """How a scene is cut into overlapping tiles.

    Attributes:
        tile: Height and width of a tile, lengths that transform fast.
        step: Rows and columns of scores that a tile yields.
        grid: Rows and columns of tiles.
    """

    tile: tuple[int, int]
    step: tuple[int, int]
    grid: tuple[int, int]

    @property
    def count(self) -> int:
        """How many tiles there are."""
        return self.grid[0] * self.grid[1]

    @property
    def pairs(self) -> int:
        """How many complex transforms hold them."""
        return (self.count + 1) // 2

    def inputs(self, index: int) -> tuple[slice, slice]:
        """Locate a tile's pixels in the scene; the last tiles stick out of it."""
        y, x = self._origin(index)
        return slice(y, y + self.tile[0]), slice(x, x + self.tile[1])

    def outputs(self, index: int, size: tuple[int, ...]) -> tuple[slice, slice]:
        """Locate a tile's scores in the map of this size."""
        y, x = self._origin(index)
        return slice(y, min(y + self.step[0], size[0])), slice(x, min(x + self.step[1], size[1]))

    def _origin(self, index: int) -> tuple[int, int]:
        row, column = divmod(index, self.grid[1])
        return row * self.step[0], column * self.step[1]


@functools.lru_cache(maxsize=64)
def make_plan(scene: tuple[int, int], template: tuple[int, int]) -> Plan:
    """Choose the tiles that make the transforms of a search cheapest.

    Template sizes are rounded up to four steps an octave, so that templates of about one size share a plan.
    """
    sides = [min(_round_up(t), s) for s, t in zip(scene, template, strict=True)]
    options = [_axis_options(s, t) for s, t in zip(scene, sides, strict=True)]
    lengths = [np.array([tile for tile, _ in option], np.float64) for option in options]
    counts = [np.array([count for _, count in option]) for option in options]
    area = lengths[0][:, None] * lengths[1]
    pairs = (counts[0][:, None] * counts[1] + 1) // 2
    # n log n, and a penalty for tiles that leave the cache, fitted to measured times of MKL
    cost = pairs * area * np.log2(area + 1) * (1 + area / 5e5)
    row, column = np.unravel_index(int(np.argmin(cost)), cost.shape)
    tile = options[0][row][0], options[1][column][0]
    step = tile[0] - sides[0] + 1, tile[1] - sides[1] + 1
    outs = scene[0] - template[0] + 1, scene[1] - template[1] + 1
    return Plan(tile, step, (-(-outs[0] // step[0]), -(-outs[1] // step[1])))


def _tile_sums(pairs: Tensor, filters: Tensor, plan: Plan) -> Iterator[tuple[int, Tensor]]:
    """Correlate all tiles in float32: yields a tile's number and its (Ny, Nx) sums."""
    step = max(1, _CHUNK // filters.numel())
    for start in range(0, plan.pairs, step):
        products = pairs[:, start : start + step] * filters[:, None]
        planes = torch.view_as_real(torch.fft.ifft2(_sum_channels(products)))
        for pair, plane in itertools.product(range(len(planes)), range(2)):
            index = start + pair + plane * plan.pairs
            if index < plan.count:
                yield index, planes[pair, ..., plane]


def _rough_tiles(pairs: Tensor, filters: Tensor, norms: Tensor, plan: Plan) -> list[int]:
    """List the tiles in which float32 transforms may err by more than the tolerance.

    The rounding of a product spreads evenly over its tile: its root mean square is about the
    precision times that of the product, which is at most the filter's peak times that of the tile.
    """
    planes = torch.view_as_real(pairs).flatten(2)  # (C, pairs, Ny*Nx*2)
    power = torch.linalg.vector_norm(planes, dim=(0, 2)) / math.prod(plan.tile)
    errors = _ROUNDING * float(filters.abs().max()) * power  # (pairs,)
    if float(errors.max() * norms.max()) <= _TOLERANCE:
        return []
    limits = (_TOLERANCE / errors.clamp_min(1e-30)).tolist()
    return [
        index
        for index in range(plan.count)
        if float(norms[plan.outputs(index, norms.shape)].max()) > limits[index % plan.pairs]
    ]


def _noise(squares: Tensor) -> float:
    """Bound what float64 transforms add to sums of these squares, per unit norm of the weights."""
    return 1e3 * torch.finfo(torch.float64).eps * float(torch.linalg.vector_norm(squares))


def inverse_norms(values: Tensor, centre: float, size: tuple[int, int]) -> Tensor:
    """Compute one over the norm of every window about its mean, in float64, band by band.

    Args:
        values: (C, H, W) pixels.
        centre: A value near their mean, a whole number only if all pixels are whole.
        size: Height and width of a window.

    Returns:
        (H - h + 1, W - w + 1) float32; 0 where a window is flat.
    """
    (_, height, width), (h, w) = values.shape, size
    low, high = (float(v) - centre for v in values.aminmax())
    largest = max(low * low, high * high) * h * w  # no sum of squares exceeds it
    exact = centre.is_integer() and largest < 2**31  # 8-bit pictures
    rows = _row_sums(values, centre, size, torch.int32 if exact else torch.float64)
    result = torch.empty(height - h + 1, width - w + 1, dtype=torch.float32)
    strip = max(1, _STRIP // height)
    for left in range(0, width - w + 1, strip):
        part = rows[..., left : left + strip]
        out = part.new_empty(*part.shape[:2], len(result), part.shape[3])
        sums, squares = _box_sums(part, h, -2, out=out).double()
        energy = _sum_channels(torch.addcmul(squares, sums, sums, value=-1 / (h * w)))
        if energy.min() <= len(values) * largest * _FLAT:
            energy.masked_fill_(energy <= _sum_channels(squares) * _FLAT, torch.inf)
        result[:, left : left + strip] = energy
    return result.rsqrt_()


def _row_sums(values: Tensor, centre: float, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Sum deviations and their squares over w neighbours: (2, C, H', W - w + 1), H' full runs of h."""
    (channels, height, width), (h, w) = values.shape, size
    sums = torch.zeros(2, channels, _multiple(height, h), width - w + 1, dtype=dtype)
    band = max(1, _BAND // (channels * width))
    powers = torch.zeros(2, channels, min(band, height), _multiple(width, w), dtype=dtype)
    for top in range(0, height, band):
        rows = values[:, top : top + band]
        part = powers[:, :, : rows.shape[1]]
        part[0, ..., :width] = rows
        part[0, ..., :width] -= centre if dtype.is_floating_point else int(centre)
        torch.mul(part[0], part[0], out=part[1])
        _box_sums(part, w, -1, out=sums[:, :, top : top + rows.shape[1]])
    return sums


def _box_sums(values: Tensor, side: int, axis: int, out: Tensor) -> Tensor:
    """Sum every `side` neighbours along an axis whose length is a multiple of `side`.

    Running sums start anew every `side` values: a window is the rest of one run and the start of
    the next, so that its sum does not feel what lies far away. Overwrites `values` if axis is -2;
    fills and returns `out`, which may leave out the last windows.
    Source: van Herk, Pattern Recognition Letters 13 (1992), with sums in place of maxima.
    """
    runs = torch.unflatten(values, axis, (-1, side))
    if axis == -1:
        runs = runs.cumsum(-1, dtype=runs.dtype)
    else:  # row by row: torch sums along other axes than the last one column at a time
        for row in range(1, side):
            runs[..., row, :] += runs[..., row - 1, :]
    totals = runs.narrow(axis, side - 1, 1)
    runs = runs.flatten(axis - 1, axis)
    length = out.shape[axis] - 1
    out.narrow(axis, 0, 1).copy_(runs.narrow(axis, side - 1, 1))
    rest = out.narrow(axis, 1, length)
    torch.sub(runs.narrow(axis, side, length), runs.narrow(axis, 0, length), out=rest)
    whole = length // side
    inside = torch.unflatten(rest.narrow(axis, 0, whole * side), axis, (whole, side))
    inside.add_(totals.narrow(axis - 1, 0, whole))
    if length > whole * side:
        left = rest.narrow(axis, whole * side, length - whole * side)
        left.add_(totals.select(axis - 1, whole))
    return out


def _masked_scores(tile: Spectrum, valid: Tensor | None, kernel: Kernel, plan: Plan) -> Tensor:
    """Score a tile under weights of the template's pixels and validity of the scene's.

    Args:
        tile: Transform of the tile's pixels, and of their squares.
        valid: (ny, nx) bool where some pixels of the tile are invalid (their value is 0).
        kernel: The template.
        plan: For the size of the tile.

    Returns:
        (Ny, Nx) float64 scores; 0 where a window is flat or sees less than half of the weight.

    Source: Padfield, IEEE Transactions on Image Processing 21 (2012), with weights in place of sets.
    """
    weights = np.ones(kernel.size) if kernel.weights is None else kernel.weights
    pattern, mask = torch.from_numpy(kernel.pattern), torch.from_numpy(weights)
    products = _correlate(tile.powers, pattern, plan).real  # (C, Ny, Nx)
    sums = _correlate(tile.powers, mask[None], plan)
    total = mask.sum()
    norm: Tensor | float = 1.0
    if valid is not None:
        there = torch.fft.fft2(valid.double(), s=plan.tile)[None]
        seen = _correlate(there, mask[None], plan).real.clamp_min(1e-6 * total)
        means = _correlate(there, pattern, plan).real / seen
        products = products - means * sums.real
        square = torch.from_numpy(kernel.pattern * kernel.spread)
        norm = (_correlate(there, square, plan).real - means.square() * seen).sum(0)
        norm = norm.masked_fill((norm <= _FLAT) | (seen[0] < total / 2), torch.inf)
        total = seen
    energy = sums.imag - sums.real.square() / total  # (C, Ny, Nx)
    noise = tile.noise * float(torch.linalg.vector_norm(mask))
    flat = energy.sum(0) <= noise + sums.imag.sum(0) * _FLAT
    return products.sum(0).mul_((energy.sum(0) * norm).rsqrt_()).masked_fill_(flat, 0)


def _correlate(spectrum: Tensor, pattern: Tensor, plan: Plan) -> Tensor:
    """Correlate transformed tiles (C, Ny, Nx) with a real pattern (C or 1, h, w)."""
    return torch.fft.ifft2(spectrum * torch.fft.fft2(pattern, s=plan.tile).conj())


def _filter(kernel: Kernel, plan: Plan) -> Tensor:
    """Transform a pattern into the (C, Ny, Nx) factor of its correlation; it ignores constants."""
    spectrum = torch.fft.fft2(torch.from_numpy(kernel.pattern).float(), s=plan.tile).conj_physical()
    spectrum[:, 0, 0] = 0
    return spectrum


def _sum_channels(values: Tensor) -> Tensor:
    return values[0] if len(values) == 1 else values.sum(0)


def _channels_first(pixels: Pixels, dtype: DTypeLike = np.float64) -> NDArray[np.floating]:
    """Turn (H, W) or (H, W, C) into (C, H, W)."""
    if pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise ValueError(f"pixels must be (H, W) or (H, W, C) and not empty, not {pixels.shape}")
    planes = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
    return np.ascontiguousarray(planes, dtype)


def _weights(mask: NDArray[np.generic] | None, valid: NDArray[np.bool_]) -> Matrix | None:
    """Bring weights to [0, 1]; None where all pixels count alike."""
    if mask is None:
        return None if valid.all() else valid.astype(np.float64)
    weights = np.asarray(mask, np.float64)
    if weights.shape != valid.shape:
        raise ValueError(f"mask must be {valid.shape} like the template, not {weights.shape}")
    if not (weights >= 0).all() or not np.isfinite(weights).all():
        raise ValueError("mask must hold weights of 0 or more, or booleans")
    weights = np.where(valid, weights, 0.0)
    largest = weights.max()
    if largest == 0:
        raise ValueError("mask leaves no pixel of the template")
    return None if (weights == largest).all() else weights / largest


def _weighted(values: Matrix, weights: Matrix | None) -> Matrix:
    return values if weights is None else values * weights


def _validity(values: Tensor) -> Tensor | None:
    """Return (H, W) True where all channels are finite, or None where all pixels are."""
    if math.isfinite(float(values.sum())):
        return None
    valid = values.isfinite().all(0)
    return None if bool(valid.all()) else valid


def _centre(values: Tensor, valid: Tensor | None) -> float:
    """Find a constant near the mean; a whole number if, and only if, all pixels are whole."""
    if valid is not None:
        values = values[:, valid]
    mean = float(values.mean()) if values.numel() else 0.0
    whole = torch.equal(values[..., :1], values[..., :1].round()) and torch.equal(
        values, values.round()
    )
    return float(round(mean)) if whole else mean + 0.5 * mean.is_integer()


def _multiple(length: int, side: int) -> int:
    return -(-length // side) * side


def _round_up(side: int) -> int:
    """Round up to a multiple of a quarter of the power of two below."""
    return _multiple(side, max(1, (1 << (side.bit_length() - 1)) // 4))


def _axis_options(scene: int, side: int) -> list[tuple[int, int]]:
    """List (length of a tile, tiles) for one axis, from few long tiles to many short ones."""
    outs = scene - side + 1
    most = max(1, min(outs // max(side // 4, 16), 64))
    lengths = {_fast_length(-(-outs // count) + side - 1) for count in range(1, most + 1)}
    allowed = [n for n in lengths if n <= _LONGEST] or [min(lengths)]
    return [(n, -(-outs // (n - side + 1))) for n in allowed]


def _fast_length(length: int) -> int:
    """Find the next length that transforms fast: short factors, and whole vector registers."""
    return 16 * next_fast_len(-(-length // 16), real=True) if length > 64 else length
