"""Turn any source of a picture into the numbers it stores: files, PIL images, arrays, tensors."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PilImage
from PIL import UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from matcher.extras import require

Array: TypeAlias = NDArray[Any]

_ORIENTATION = 0x0112  # EXIF and TIFF tag
_BITS_PER_SAMPLE = 258  # TIFF tag
_PROGRAMS = ("EPS",)  # for which PIL would start Ghostscript
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
        return _from_file(Path(source))
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


def _from_file(path: Path) -> Stored:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    if path.is_dir():
        raise ImageError(f"{path} is a folder, not an image")
    if reason := why_unreadable(path):  # before a film of many gigabytes is read
        raise ImageError(f"{path} cannot be read: {reason}")
    return _from_bytes(path.read_bytes(), str(path))


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


def why_unreadable(path: Path) -> str | None:
    """Say why a file's header is not that of an image; None if it is. No more is read."""
    if not path.is_file():
        return "it is no file"
    try:
        with path.open("rb") as file:  # PIL cannot open every name; Python can
            if not path.stat().st_size:
                return "it is empty"
            with open_image(file):
                return None
    except ImageError as error:
        return str(error)
    except OSError as error:
        return error.strerror or str(error)


def open_image(file: IO[bytes], start: str = "") -> PilImage.Image:
    """Read the header of an image file; messages begin with `start`.

    Raises:
        ImageError: It is that of no image, of one with too many pixels, or of a program.
    """
    with _refusing(start):
        opened = PilImage.open(file)
    if opened.format in _PROGRAMS:
        raise ImageError(f"{start}{opened.format} is a program, not pixels: convert it")
    return opened


@contextmanager
def _refusing(start: str) -> Iterator[None]:
    """Turn whatever a decoder raises at damaged bytes into an ImageError whose message begins so."""
    try:
        yield
    except (ImageError, ImportError):
        raise
    except Exception as error:  # decoders raise what they like: struct.error, KeyError, cv2.error
        raise ImageError(f"{start}{_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "it is no image of a known format"
    if isinstance(error, PilImage.DecompressionBombError):
        return (
            "it has more pixels than PIL.Image.MAX_IMAGE_PIXELS allows; raise that if you trust it"
        )
    return str(error) or type(error).__name__


def _from_bytes(data: bytes, name: str) -> Stored:
    if not data:
        raise ImageError(f"{name} cannot be read: it is empty")
    start = f"{name} cannot be read: "
    with _refusing(start), open_image(io.BytesIO(data), start) as opened:
        return _from_pil(opened, name, data)


def _from_pil(opened: PilImage.Image, name: str, data: bytes) -> Stored:
    tag, white = orientation(opened), _white(opened)
    with _refusing(f"{name} cannot be read: "):
        opened.load()
    # 1 where PIL has turned the pixels itself (TIFF); PNG may tell it only now
    left = orientation(opened)
    pixels = _deep_colours(data, name) if _has_deep_colours(opened, data) else _shallow(opened)
    if 0 in pixels.shape:
        raise ImageError(f"{name} has no pixels: its shape is {pixels.shape}")
    return Stored(turn(pixels, left), tag if tag != 1 else left, white, name)


def orientation(opened: PilImage.Image) -> int:
    """Read the EXIF tag of an opened file: 1 to 8, 1 where there is none."""
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
        header = re.match(rb"P[36]" + 3 * rb"(?:\s|#[^\n\r]*[\n\r])+(\d{1,10})", data)
        return header is not None and int(header[3]) > 255
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
