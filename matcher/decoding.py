"""Turn any source of a picture into the numbers it stores: files, PIL images, arrays, tensors."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage
from PIL import UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from matcher.extras import require

Array: TypeAlias = NDArray[Any]

_ORIENTATION = 0x0112  # EXIF and TIFF tag
_BITS_PER_SAMPLE = 258  # TIFF tag
_WIDE_FORMATS = ("PNG", "PPM")  # whose 16-bit greys PIL may hold as 32-bit integers


class ImageError(ValueError):
    """A picture cannot be read, or its brightness is undefined; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Stored:
    """What a source stores.

    Attributes:
        pixels: (H, W) or (H, W, C) upright, C = 1 to 4, of the source's own type.
        orientation: EXIF tag, 1 to 8; 1 where there is none.
        white: The value of white where the file tells it (12-bit TIFF), else None.
        name: What messages call the source.
    """

    pixels: Array
    orientation: int
    white: float | None
    name: str


def stored(source: object) -> Stored:
    """Read a source's numbers, upright.

    Raises:
        FileNotFoundError: There is no such file.
        ImageError: The file is no whole image, or the array has no image's shape.
        TypeError: The source is neither a path, bytes, a PIL image, an array nor a tensor.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
        if path.is_dir():
            raise ImageError(f"{path} is a folder, not an image")
        return _from_bytes(
            path.read_bytes(), str(path)
        )  # PIL and OpenCV cannot open every name; Python can
    if isinstance(source, bytes):
        return _from_bytes(source, "the image")
    if isinstance(source, PilImage.Image):
        return _from_pil(source, "the PIL image", b"")
    if hasattr(source, "detach") and hasattr(source, "cpu"):
        return Stored(_from_tensor(source), 1, None, "the tensor")
    if hasattr(source, "__array__"):
        return Stored(_from_array(np.asarray(source)), 1, None, "the array")
    hint = " (cv2.imread returns None for a file that it cannot read)" if source is None else ""
    kind = type(source).__name__
    raise TypeError(f"an image is a path, PIL image, numpy array or torch tensor, not {kind}{hint}")


def turn(pixels: Array, orientation: int) -> Array:
    """Turn (H, W, ...) stored pixels upright."""
    transposed, flip_x, flip_y = turns(orientation)
    upright = pixels.swapaxes(0, 1) if transposed else pixels
    return upright[:: -1 if flip_y else 1, :: -1 if flip_x else 1]


def turn_back(pixels: Array, orientation: int) -> Array:
    """Turn (H, W, ...) upright pixels as they are stored."""
    transposed, flip_x, flip_y = turns(orientation)
    raw = pixels[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
    return raw.swapaxes(0, 1) if transposed else raw


def turns(orientation: int) -> tuple[bool, bool, bool]:
    """Say whether x and y change places, and then which of both is counted from the other side."""
    return orientation >= 5, orientation in (2, 3, 6, 7), orientation in (3, 4, 7, 8)


def why_unreadable(data: bytes) -> str | None:
    """Say why a file's header is not that of an image; None if it is."""
    try:
        with PilImage.open(io.BytesIO(data)):
            return None
    except (OSError, SyntaxError, PilImage.DecompressionBombError) as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    if isinstance(error, PilImage.DecompressionBombError):
        return (
            "it has more pixels than PIL.Image.MAX_IMAGE_PIXELS allows; raise that if you trust it"
        )
    return str(error)


def _from_bytes(data: bytes, name: str) -> Stored:
    if not data:
        raise ImageError(f"{name} cannot be read: it is empty")
    try:
        with PilImage.open(io.BytesIO(data)) as opened:
            return _from_pil(opened, name, data)
    except (OSError, SyntaxError, PilImage.DecompressionBombError) as error:
        raise ImageError(f"{name} cannot be read: {_reason(error)}") from error


def _from_pil(opened: PilImage.Image, name: str, data: bytes) -> Stored:
    tag, white = _orientation(opened), _white(opened)
    try:
        opened.load()
    except OSError as error:
        raise ImageError(f"{name} cannot be read: {error}") from error
    left = _orientation(
        opened
    )  # 1 where PIL has turned the pixels itself (TIFF); PNG may tell it only now
    pixels = _deep_colours(data, name) if _has_deep_colours(opened, data) else _shallow(opened)
    if 0 in pixels.shape:
        raise ImageError(f"{name} has no pixels: its shape is {pixels.shape}")
    return Stored(turn(pixels, left), tag if tag != 1 else left, white, name)


def _orientation(opened: PilImage.Image) -> int:
    tag = opened.getexif().get(_ORIENTATION, 1)
    return tag if tag in range(1, 9) else 1


def _white(opened: PilImage.Image) -> float | None:
    """Read the white level of a grey TIFF of 9 to 16 bits, whose numbers PIL leaves as they are."""
    if not isinstance(opened, TiffImageFile) or not opened.mode.startswith("I;16"):
        return None
    return float(2 ** opened.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0] - 1)


def _shallow(opened: PilImage.Image) -> Array:
    """Convert to numbers: palettes and colour spaces to RGB, transparent colours to alpha."""
    if opened.mode == "I" and opened.format in _WIDE_FORMATS:
        return np.asarray(opened).astype(np.uint16)
    grey = opened.mode in ("1", "L", "LA", "I", "F") or opened.mode.startswith("I;16")
    if opened.has_transparency_data:
        return np.asarray(opened.convert("LA" if grey else "RGBA"))
    return np.asarray(opened if grey or opened.mode == "RGB" else opened.convert("RGB"))


def _has_deep_colours(opened: PilImage.Image, data: bytes) -> bool:
    """Tell whether a file has several channels of more than 8 bits, which PIL would cut to 8."""
    if opened.format == "PNG":
        return (
            data[24:25] == b"\x10" and data[25:26] != b"\x00"
        )  # bit depth and colour type of the IHDR chunk
    if opened.format == "PPM":
        header = re.match(
            rb"P[36](?:\s+|#[^\n]*\n)+\d+(?:\s+|#[^\n]*\n)+\d+(?:\s+|#[^\n]*\n)+(\d+)", data
        )
        return header is not None and int(header[1]) > 255
    if isinstance(opened, TiffImageFile):
        bits = opened.tag_v2.get(_BITS_PER_SAMPLE, (8,))
        return len(bits) > 1 and max(bits) > 8
    return False


def _deep_colours(data: bytes, name: str) -> Array:
    """Decode 16-bit colours, as stored, with OpenCV."""
    cv2 = require("cv2", f"{name}, an image with 16-bit colours,")
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ImageError(f"{name} cannot be read: OpenCV does not know its 16-bit colours")
    order = [2, 1, 0, 3][: pixels.shape[2]]  # OpenCV's BGR(A)
    return np.asarray(pixels[:, :, order])


def _from_tensor(tensor: Any) -> Array:
    """Read (H, W), (C, H, W) or (1, C, H, W): channels first."""
    tensor = tensor.detach().cpu()
    array = np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)
    planes = array[0] if array.ndim == 4 and len(array) == 1 else array
    if planes.ndim == 3 and len(planes) in (1, 2, 3, 4):
        planes = np.moveaxis(planes, 0, 2)
    elif planes.ndim != 2:
        raise ImageError(
            "a tensor must be (H, W), (C, H, W) or (1, C, H, W) with C from 1 to 4, "
            f"not {array.shape}"
        )
    return _from_array(planes)


def _from_array(array: Array) -> Array:
    """Check (H, W) or (H, W, C): channels last; a single channel is a grey image."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)):
        first = "; np.moveaxis(array, 0, -1) puts channels last" if array.ndim == 3 else ""
        raise ImageError(
            f"an array must be (H, W) or (H, W, C) with C from 1 to 4, not {array.shape}{first}"
        )
    if 0 in array.shape:
        raise ImageError(f"the array has no pixels: its shape is {array.shape}")
    if array.dtype.kind not in "buif":
        raise ImageError(f"an image has booleans, integers or real numbers, not {array.dtype}")
    return array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
