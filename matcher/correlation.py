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
from typing import Any, Generic, TypeVar

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
_BAND = 1 << 18  # values summed at once: bounds memory
_CHUNK = 1 << 19  # complex values transformed at once: fits the second-level cache
_TOLERANCE = 1e-5  # largest error of a score that float32 transforms may cause
# share of a window's power about the centre that its energy must exceed for float32 sums: these
# err by some 8 units in the last place, and half of that share is the error of a score
_ROUGH_SHARE = 4 * 2.0**-23 / _TOLERANCE
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
        values = torch.from_numpy(_channels_first(pixels, _working_dtype(pixels.dtype)))
        self.valid = _validity(values)
        self.centre = _centre(values, self.valid)
        if self.valid is not None:
            values = torch.where(self.valid, values, self.centre)
        self.values = values  # (C, H, W)
        self._used = Recent[Plan, list[_Chunk]](2)
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
            rough = self._score_single(_filter(kernel, plan), plan, norms, scores)
        for index in rough:
            tile = self._tile(plan, index)
            spectrum = torch.fft.rfft2(torch.from_numpy(kernel.pattern), s=plan.tile).conj()
            spectrum = spectrum * torch.fft.rfft2(tile, s=plan.tile)
            sums = torch.fft.irfft2(_sum_channels(spectrum), s=plan.tile)
            place = plan.outputs(index, scores.shape)
            rows, columns = norms[place].shape
            scores[place] = sums[:rows, :columns] * norms[place]

    def _score_single(
        self, filters: Tensor, plan: Plan, norms: Tensor, scores: Tensor
    ) -> list[int]:
        """Fill the scores from float32 transforms; list the tiles for which they are too rough.

        The rounding of a product spreads evenly over its tile: its root mean square is about the
        precision times that of the product, at most the filter's peak times that of the tile.
        """
        rough: list[int] = []
        roughness = _ROUNDING / _TOLERANCE * float(filters.abs().max())
        for chunk in self._chunks(plan):
            products = torch.fft.ifft2(_sum_channels(chunk.spectra * filters[:, None]))
            planes = torch.view_as_real(products)
            for pair, plane in itertools.product(range(len(planes)), range(2)):
                index = chunk.first + pair + plane * plan.pairs
                if index >= plan.count:
                    continue
                place = plan.outputs(index, scores.shape)
                norm, target = norms[place], scores[place]
                sums = planes[pair, : norm.shape[0], : norm.shape[1], plane]
                torch.mul(sums, norm, out=target)
                if roughness * chunk.power[pair] * float(norm.max()) > 1:
                    rough.append(index)
        return rough

    def _chunks(self, plan: Plan) -> Iterable[_Chunk]:
        """Transform the tiles, some at a time; from the second template on they are kept."""
        if plan in self._used:
            kept = self._used.get(plan, list)
            if not kept:
                kept.extend(self._transform(plan))
            return kept
        self._used.get(plan, list)
        return self._transform(plan)

    def _transform(self, plan: Plan) -> Iterator[_Chunk]:
        step = max(1, _CHUNK // (len(self.values) * math.prod(plan.tile)))
        for first in range(0, plan.pairs, step):
            count = min(step, plan.pairs - first)
            pairs = torch.zeros(len(self.values), count, *plan.tile, dtype=torch.complex64)
            planes = torch.view_as_real(pairs)
            for pair, plane in itertools.product(range(count), range(2)):
                index = first + pair + plane * plan.pairs
                part = self.values[(slice(None), *plan.inputs(index))]
                place = planes[:, pair, : part.shape[1], : part.shape[2], plane]
                if index < plan.count:
                    torch.sub(part, self.centre, out=place)
            power = torch.linalg.vector_norm(planes.transpose(0, 1).flatten(1), dim=1)
            power /= math.sqrt(math.prod(plan.tile))
            yield _Chunk(first, torch.fft.fft2(pairs), power.tolist())

    def _tile(self, plan: Plan, index: int) -> Tensor:
        """Return a tile's (C, ny, nx) deviations in float64."""
        return self.values[(slice(None), *plan.inputs(index))].double() - self.centre

    def _score_masked(self, kernel: Kernel, plan: Plan, index: int) -> Tensor:
        """Score one tile under weights and validity, in float64."""
        inputs = plan.inputs(index)
        valid = None if self.valid is None else self.valid[inputs]
        if valid is not None and bool(valid.all()):
            valid = None

        def transform() -> Spectrum:
            tile = self._tile(plan, index)
            powers = torch.complex(tile, tile.square())
            return Spectrum(torch.fft.fft2(powers, s=plan.tile), _noise(powers.imag))

        return _masked_scores(self._powers.get((plan, index), transform), valid, kernel, plan)

    @staticmethod
    def _put(scores: Tensor, plan: Plan, index: int, found: Tensor) -> None:
        target = scores[plan.outputs(index, scores.shape)]
        target.copy_(found[: target.shape[0], : target.shape[1]])


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Transforms of some pairs of tiles: tile i is real, tile i + all pairs imaginary.

    Attributes:
        first: Number of the first pair.
        spectra: (C, pairs, Ny, Nx) complex64.
        power: Root mean square of each pair.
    """

    first: int
    spectra: Tensor
    power: list[float]


class Recent(Generic[Key, Value]):
    """The last few values that were computed, by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[Key, Value] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._values

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


def _noise(squares: Tensor) -> float:
    """Bound what float64 transforms add to sums of these squares, per unit norm of the weights."""
    return 1e3 * torch.finfo(torch.float64).eps * float(torch.linalg.vector_norm(squares))


def inverse_norms(values: Tensor, centre: float, size: tuple[int, int]) -> Tensor:
    """Compute one over the norm of every window about its mean.

    Float32 sums serve until a window turns up whose contrast is faint beside its distance from the
    centre; from there on sums are exact (int32 for 8-bit pictures) or float64.

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
    exact = centre.is_integer() and largest < 2**31
    energies = torch.empty(height - h + 1, width - w + 1, dtype=torch.float32)
    done = _fill_energies(energies, values, centre, size, torch.float32)
    if done < len(energies):
        dtype = torch.int32 if exact else torch.float64
        _fill_energies(energies[done:], values[:, done:], centre, size, dtype)
    return energies.rsqrt_()


def _fill_energies(
    energies: Tensor, values: Tensor, centre: float, size: tuple[int, int], dtype: torch.dtype
) -> int:
    """Sum squares about every window's mean, infinite for flat windows, while that is precise.

    Returns:
        How many rows are filled: all, unless sums in float32 turned out too rough.
    """
    single = dtype == torch.float32
    share = _ROUGH_SHARE if single else _FLAT
    for top, windows in _window_sums(values, centre, size, dtype):
        skipped = max(0, -top)
        sums, squares = windows[:, :, skipped:].to(dtype if single else torch.float64)
        energy = _sum_channels(torch.addcmul(squares, sums, sums, value=-1 / math.prod(size)))
        squares = _sum_channels(squares)
        if energy.min() <= share * squares.max():
            faint = energy <= share * squares
            if single and bool(faint.any()):
                return top + skipped
            energy.masked_fill_(faint, torch.inf)
        energies[top + skipped : top + skipped + len(energy)] = energy
    return len(energies)


def _window_sums(
    values: Tensor, centre: float, size: tuple[int, int], dtype: torch.dtype
) -> Iterator[tuple[int, Tensor]]:
    """Sum deviations and their squares over every window, some rows of windows at a time.

    Running sums start anew every window length: a window is the rest of one run and the start of
    the next, so that its sums do not feel what lies far away.
    Source: van Herk, Pattern Recognition Letters 13 (1992), with sums in place of maxima.

    Yields:
        Number of the first row (rows before 0 mean nothing), and (2, C, rows, W - w + 1) sums, of
        which later ones overwrite the memory.
    """
    (channels, height, width), (h, w) = values.shape, size
    band = h * max(1, _BAND // (channels * width * h))
    powers = torch.zeros(2, channels, band, _multiple(width, w), dtype=dtype)
    runs = torch.zeros(2, channels, band + h, width - w + 1, dtype=dtype)
    sums = torch.empty(2, channels, band, width - w + 1, dtype=dtype)
    blocks = torch.unflatten(runs, 2, (-1, h))
    for top in range(0, height, band):
        count = min(band, height - top)
        rows, deviation = values[:, top : top + count], powers[0, :, :count, :width]
        if dtype == torch.float32:
            torch.sub(rows, centre, out=deviation)
        else:  # rows may be of a narrower type, which the difference must not be rounded to
            deviation.copy_(rows).sub_(centre if dtype == torch.float64 else int(centre))
        powers[0, :, count:] = 0
        torch.mul(powers[0], powers[0], out=powers[1])
        _sum_across(powers, w, out=runs[:, :, h:])
        # row by row: torch sums along other axes than the last one column at a time
        for above, row in itertools.pairwise(blocks[:, :, 1:].unbind(3)):
            row.add_(above)
        torch.sub(runs[:, :, h:], runs[:, :, :band], out=sums)
        torch.unflatten(sums, 2, (-1, h)).add_(blocks[:, :, :-1, -1:])
        yield top - h + 1, sums[:, :, :count]
        runs[:, :, :h] = runs[:, :, band:]


def _sum_across(values: Tensor, side: int, out: Tensor) -> None:
    """Sum every `side` neighbours of a row, whose length is a multiple of `side`."""
    blocks = torch.unflatten(values, -1, (-1, side)).cumsum(-1, dtype=values.dtype)
    runs, totals = blocks.flatten(-2), blocks[..., -1]
    out[..., 0] = runs[..., side - 1]
    rest = out[..., 1:]
    length = rest.shape[-1]
    torch.sub(runs[..., side : side + length], runs[..., :length], out=rest)
    whole = length // side
    inside = torch.unflatten(rest[..., : whole * side], -1, (whole, side))
    inside.add_(totals[..., :whole, None])
    rest[..., whole * side :].add_(totals[..., whole, None])


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
    if not values.is_floating_point() or math.isfinite(float(values.sum())):
        return None
    valid = values.isfinite().all(0)
    return None if bool(valid.all()) else valid


def _centre(values: Tensor, valid: Tensor | None) -> float:
    """Find a constant near the mean; a whole number only if all pixels are whole."""
    sample = values[:, ::5, ::7] if valid is None else values[:, valid]
    mean = float(sample.double().mean()) if sample.numel() else 0.0
    whole = not values.is_floating_point() or all(
        torch.equal(v, v.round())
        for v in (values[..., :1], values)  # the quick one first
    )
    return float(round(mean)) if whole else mean + 0.5 * mean.is_integer()


def _working_dtype(dtype: np.dtype[Any]) -> DTypeLike:
    """Choose what a scene's pixels are kept as: float32 unless it would round or is not needed."""
    if dtype in (np.uint8, np.int8, np.int16):
        return dtype
    return np.float32 if np.can_cast(dtype, np.float32) else np.float64


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
