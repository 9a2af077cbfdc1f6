"""Read any picture into one form, and keep count of its pixels through turns, resizes and padding.

Arrays have their channels last and tensors first: (3, W, 3) is three rows of RGB as an array, and
an RGB image three pixels wide as a tensor.

- Range: 8- and 16-bit integers are divided by the largest value of their type, booleans are 0 and
  1, floats lie in [0, 1] already. Wider integers are taken for results of arithmetic on 8-bit
  pixels and divided by 255. `white` replaces the divisor: 4095 for a 12-bit camera in uint16, 255
  for floats up to 255. What is out of range is refused, never guessed.
- Orientation: the EXIF tag is applied, so results are in pixels of the upright picture; `load` can
  keep the pixels as they are stored, and its result maps points between both.
- Alpha never counts as brightness: `read` drops it, `load` returns it as a mask.
- Of an animation the first frame is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage

from matcher.decoding import Array, ImageError, Stored, stored, turn_back, turns, why_unreadable
from matcher.types import Image, Mask, Matrix, Points

__all__ = [
    "ImageError",
    "Picture",
    "fit_long_side",
    "grey",
    "list_images",
    "load",
    "pad_to_multiple",
    "read",
    "read_mask",
    "resize",
    "resize_mask",
    "resize_points",
    "values",
]

Size: TypeAlias = tuple[int, int]  # height, width
Real = TypeVar("Real", bound=np.floating[Any])
Policy: TypeAlias = Literal["upright", "raw"]

_ROUNDING = 1e-3  # floats may leave [0, 1] by this much, and are clipped


@dataclass(frozen=True, eq=False)
class Picture:
    """An image with what its file says of it.

    Attributes:
        image: (H, W) grey or (H, W, 3) RGB, float32 in [0, 1].
        mask: (H, W), True where alpha is at least one half; None without an alpha channel.
        orientation: EXIF tag of the file, 1 to 8; 1 where there is none.
        policy: Whether `image` is "upright" or "raw", as stored.
    """

    image: Image
    mask: Mask | None
    orientation: int
    policy: Policy

    @property
    def upright_size(self) -> Size:
        """Height and width of the upright picture."""
        height, width = self.image.shape[:2]
        turned = self.policy == "raw" and self.orientation >= 5
        return (width, height) if turned else (height, width)

    def upright_from_raw(self, points: Points | Matrix) -> Matrix:
        """Move (N, 2) pixels of the stored picture to the upright one: float64, exact."""
        transposed = turns(self.orientation)[0]
        return self._flipped(np.array(points, np.float64)[:, :: -1 if transposed else 1])

    def raw_from_upright(self, points: Points | Matrix) -> Matrix:
        """Move (N, 2) pixels of the upright picture to the stored one: float64, exact."""
        transposed = turns(self.orientation)[0]
        return self._flipped(np.array(points, np.float64))[:, :: -1 if transposed else 1]

    def _flipped(self, points: Matrix) -> Matrix:
        """Count x and y of the upright picture from the other side where the tag says so."""
        _, flip_x, flip_y = turns(self.orientation)
        height, width = self.upright_size
        x, y = points.T
        return np.stack([width - 1 - x if flip_x else x, height - 1 - y if flip_y else y], axis=1)


def read(source: object, *, white: float | None = None) -> Image:
    """Read a picture, upright, without its alpha channel.

    Args:
        source: A path, the bytes of a file, a PIL image, a numpy array (H, W) or (H, W, C), or a
            torch tensor (H, W), (C, H, W) or (1, C, H, W); C is 1 grey, 2 grey and alpha, 3 RGB,
            4 RGB and alpha. It is never modified.
        white: Stored value that becomes 1; by default that of the module's docstring.

    Returns:
        float32 in [0, 1], C order: (H, W) of a grey source, (H, W, 3) RGB of a coloured one.

    Raises:
        FileNotFoundError: There is no such file.
        ImageError: The file is no whole image, or the numbers are NaN, infinite or out of range.
        TypeError: It is nothing of the above.
    """
    return load(source, white=white).image


def load(source: object, *, policy: Policy = "upright", white: float | None = None) -> Picture:
    """Read a picture with its alpha mask and orientation.

    Args:
        source: As `read` takes it.
        policy: "upright" applies the EXIF tag, "raw" leaves the pixels as COLMAP sees them.
        white: As `read` takes it.

    Raises:
        ValueError: There is no such policy; and what `read` raises.
    """
    if policy not in ("upright", "raw"):
        raise ValueError(f"no policy {policy!r}; there are raw, upright")
    found = stored(source)
    pixels = turn_back(found.pixels, found.orientation) if policy == "raw" else found.pixels
    colours, alpha = _split_alpha(pixels)
    mask = None if alpha is None else np.ascontiguousarray(alpha >= _white(alpha) / 2)
    return Picture(_unit_range(colours, white, found), mask, found.orientation, policy)


def read_mask(source: object) -> Mask:
    """Read a picture as a mask: (H, W), True where it is at least half as bright as white."""
    return np.ascontiguousarray(grey(read(source)) >= 0.5)


def values(source: object) -> Matrix | Image:
    """Read the numbers as they are stored, of any range, NaN included: templates compare these.

    Returns:
        (H, W) or (H, W, 3) in C order, upright, without alpha; float32, or float64 where
        float32 would round.
    """
    colours, _ = _split_alpha(stored(source).pixels)
    exact = colours.dtype.itemsize <= 2 or colours.dtype == np.float32
    if exact:
        return np.array(colours, np.float32, order="C")
    return np.array(colours, np.float64, order="C")


def grey(image: NDArray[Real]) -> NDArray[Real]:
    """Weigh (H, W, 3) RGB to C-ordered (H, W) by 0.299, 0.587, 0.114 (ITU-R BT.601)."""
    if image.ndim == 2:
        return np.ascontiguousarray(image)
    if image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"image must be (H, W) or (H, W, 3), not {image.shape}")
    red, green, blue = np.moveaxis(image, 2, 0)
    return np.ascontiguousarray(0.299 * red + 0.587 * green + 0.114 * blue, dtype=image.dtype)


def fit_long_side(size: Size, side: int) -> Size:
    """Shrink (height, width) so that the longer is `side`; smaller sizes stay."""
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def resize(image: Image, size: Size) -> Image:
    """Resize (H, W) or (H, W, 3) to (height, width) by an antialiased bicubic filter."""
    if image.shape[:2] == tuple(size):
        return np.array(image, np.float32, order="C")
    planes = image[:, :, None] if image.ndim == 2 else image
    height, width = size
    resized = [
        np.asarray(
            PilImage.fromarray(np.ascontiguousarray(plane)).resize(
                (width, height), PilImage.Resampling.BICUBIC
            )
        )
        for plane in np.moveaxis(planes.astype(np.float32), 2, 0)
    ]
    stacked = np.clip(np.stack(resized, axis=2), 0, 1)
    return np.ascontiguousarray(stacked[:, :, 0] if image.ndim == 2 else stacked)


def resize_mask(mask: Mask, size: Size) -> Mask:
    """Resize (H, W) to (height, width) by the nearest pixel."""
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(np.int64)
        for new, old in zip(size, mask.shape, strict=True)
    )
    return np.ascontiguousarray(mask[rows[:, None], columns])


def resize_points(points: Points, from_size: Size, to_size: Size) -> Points:
    """Move (N, 2) pixels of an image to its resized copy: x to (x + 0.5) s - 0.5."""
    scale = np.array([to_size[1] / from_size[1], to_size[0] / from_size[0]])
    moved: Points = ((np.asarray(points, np.float64) + 0.5) * scale - 0.5).astype(np.float32)
    return moved


def pad_to_multiple(image: Image, divisor: int) -> Image:
    """Add zeros at the right and the bottom until both sizes divide; pixels keep their places."""
    padding = [(0, -size % divisor) for size in image.shape[:2]]
    return np.pad(image, padding + [(0, 0)] * (image.ndim - 2))


def list_images(
    folder: str | Path, *, recursive: bool = False
) -> tuple[list[Path], dict[Path, str]]:
    """List the images of a folder, whatever their ending, in natural order: frame2 before frame10.

    Returns:
        Paths whose header is that of an image, and the reason for each path that was skipped.

    Raises:
        NotADirectoryError: It is no folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    found: list[Path] = []
    skipped: dict[Path, str] = {}
    for path in sorted(
        _walk(folder, recursive), key=lambda path: _natural(path.relative_to(folder))
    ):
        reason = _reason_to_skip(path)
        if reason is None:
            found.append(path)
        else:
            skipped[path] = reason
    return found, skipped


def _split_alpha(pixels: Array) -> tuple[Array, Array | None]:
    """Part (H, W, 2) grey and alpha or (H, W, 4) RGB and alpha."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if channels in (1, 3):
        return pixels, None
    return pixels[:, :, 0] if channels == 2 else pixels[:, :, :3], pixels[:, :, -1]


def _white(pixels: Array) -> float:
    """Choose white by type, never by content: all frames of a camera must get the same."""
    if pixels.dtype.kind in "bf":
        return 1.0
    return float(np.iinfo(pixels.dtype).max) if pixels.dtype.itemsize <= 2 else 255.0


def _unit_range(pixels: Array, white: float | None, source: Stored) -> Image:
    """Divide by white, into new float32 numbers in [0, 1]."""
    divisor = white or source.white or _white(pixels)
    low, high = float(pixels.min()), float(pixels.max())
    if not np.isfinite([low, high]).all():
        raise ImageError(
            f"{source.name} has NaN or infinite pixels: fill them, and exclude them by a mask"
        )
    slack = _ROUNDING * divisor if pixels.dtype.kind == "f" else 0.0
    if low < -slack or high > divisor + slack:
        raise ImageError(
            f"{source.name} has {pixels.dtype} values from {low:g} to {high:g}, "
            f"not from 0 to {divisor:g}: scale them, or pass the value of white as white="
        )
    image = np.array(pixels, np.float32, order="C")
    image /= np.float32(divisor)
    return np.clip(image, 0, 1, out=image)


def _walk(folder: Path, recursive: bool, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """List what a folder holds; a link to a folder above is not followed, which would not end."""
    above = (*above, folder.resolve())
    for path in folder.iterdir():
        inside = recursive and path.is_dir() and not path.name.startswith(".")
        if inside and path.resolve() not in above:
            yield from _walk(path, recursive, above)
        else:
            yield path


def _natural(path: Path) -> list[list[tuple[str, int]]]:
    """Order names by their text and by the value of the numbers in them."""
    return [
        [(text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", part.casefold())]
        for part in path.parts
    ]


def _reason_to_skip(path: Path) -> str | None:
    if path.name.startswith("."):
        return "hidden"
    if path.is_dir():
        return "a folder: recursive=True looks inside"
    return why_unreadable(path)
