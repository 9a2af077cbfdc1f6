"""Score every place of a scene against a template: exact zero-mean normalised cross-correlation.

The score of a window x under a template t with weights m is

    sum m (t - mean t) (x - mean x) / sqrt(sum m (t - mean t)^2  sum m (x - mean x)^2)

with means under m, so brightness and contrast drop out and the score lies in [-1, 1]. Colour is
scored jointly: every channel loses its own mean, then the sums run over all channels.

A template or a window without contrast has no score and gets 0. NaN and infinite pixels count as
masked; a window that sees less than half of the template's weight gets 0 too.

How: numerators come from products of Fourier transforms over overlapping tiles (overlap-save), two
tiles riding in one complex transform; norms come from `matcher.correlation.window_norms`. Where float32 is too
coarse for an error of 1e-5, as beside strong contrast, tiles and norms are done in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from matcher.correlation.kernel import Kernel, Pixels, channels_first, make_kernel
from matcher.correlation.tiles import Plan, make_plan
from matcher.correlation.window_norms import empty, inverse_norms, sum_channels
from matcher.types import Floats

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_SMALL = 1 << 15  # values of a scene below which float64 transforms cost next to nothing
_CHUNK = 1 << 18  # complex values transformed at once: fits the second-level cache
_TOLERANCE = 1e-5  # largest error of a score that float32 transforms may cause
_ROUNDING = 4 * 2.0**-23  # error of float32 transforms over their root mean square, see tests
_FLAT = 1e-13  # share of a window's power below which its variance is rounding


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
        values = torch.from_numpy(channels_first(pixels, _working_dtype(pixels.dtype)))
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
        scores = empty(*self._check(kernel))
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
            sums = torch.fft.irfft2(sum_channels(spectrum), s=plan.tile)
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
            products = torch.fft.ifft2(sum_channels(chunk.spectra * filters[:, None]))
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
        precise = torch.promote_types(self.values.dtype, torch.float32)
        for first in range(0, plan.pairs, step):
            count = min(step, plan.pairs - first)
            pairs = torch.zeros(len(self.values), count, *plan.tile, dtype=torch.complex64)
            planes = torch.view_as_real(pairs)
            for pair, plane in itertools.product(range(count), range(2)):
                index = first + pair + plane * plan.pairs
                part = self.values[(slice(None), *plan.inputs(index))]
                place = planes[:, pair, : part.shape[1], : part.shape[2], plane]
                if index < plan.count:
                    place.copy_(part.to(precise) - self.centre)
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


def _noise(squares: Tensor) -> float:
    """Bound what float64 transforms add to sums of these squares, per unit norm of the weights."""
    return 1e3 * torch.finfo(torch.float64).eps * float(torch.linalg.vector_norm(squares))


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
    norm = torch.ones(())
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
    products: Tensor = torch.fft.ifft2(spectrum * torch.fft.fft2(pattern, s=plan.tile).conj())
    return products


def _filter(kernel: Kernel, plan: Plan) -> Tensor:
    """Transform a pattern into the (C, Ny, Nx) factor of its correlation; it ignores constants."""
    pattern = torch.from_numpy(kernel.pattern).float()
    spectrum: Tensor = torch.fft.fft2(pattern, s=plan.tile).conj_physical()
    spectrum[:, 0, 0] = 0
    return spectrum


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
