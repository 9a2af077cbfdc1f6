"""Read files that anybody may have written: damage is one named error, and memory is bounded.

Parsers raise nearly anything at bytes that nobody foresaw, and some formats let a kilobyte claim to
be a terabyte. Here whatever they raise becomes a `ValueError` that names the file, nothing is
unpickled, and what a file unpacks to is held to a multiple of its size.
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_RATIO = 200  # of unpacked to packed bytes: arrays of ours reach 20, a bomb 1000
SMALL = 64 * 2**20  # bytes that any file may unpack to


@contextmanager
def refusing(path: str | Path, what: str) -> Iterator[None]:
    """Turn whatever a parser raises into a ValueError that names the file.

    Args:
        path: The file that is read.
        what: What it should have been.

    Raises:
        ValueError: The block raised anything but an error of opening a file.
    """
    try:
        yield
    except Exception as error:  # parsers are not to be trusted to raise what they promise
        if isinstance(error, OSError) and (error.filename or type(error) is not OSError):
            raise  # missing, forbidden, a folder
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} is no {what}: {reason}") from error


def read_text(path: str | Path, what: str = "text in UTF-8") -> str:
    """Read a text file.

    Raises:
        OSError: It is missing or cannot be read.
        ValueError: It is not UTF-8.
    """
    with refusing(path, what):
        return Path(path).read_text("utf-8")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises:
        OSError: It is missing or cannot be read.
        ValueError: It is no JSON.
    """
    with refusing(path, "JSON"):
        return json.loads(Path(path).read_text("utf-8"))


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        OSError: It is missing or cannot be read.
        ValueError: It is no TOML.
    """
    with refusing(path, "TOML"):
        return tomllib.loads(Path(path).read_text("utf-8"))


def read_npz(
    path: str | Path, what: str = "npz file of arrays", names: Sequence[str] = ()
) -> dict[str, NDArray[Any]]:
    """Read named arrays, without unpickling and within bounds of memory.

    Args:
        path: The file.
        what: What it should be, for the message.
        names: Of the arrays to read; all where there are none.

    Raises:
        OSError: It is missing or cannot be read.
        ValueError: It is damaged, holds objects, or unpacks to far more than its size.
    """
    with refusing(path, what):
        check_archive(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in names or file.files}
        for name, array in arrays.items():
            if array.size > array.nbytes:  # elements of no size take no space to claim
                raise ValueError(f"{name} has {array.size} elements of no size")
        return arrays


def read_npy(path: str | Path) -> NDArray[Any]:
    """Read one array, without unpickling.

    Raises:
        OSError: It is missing or cannot be read.
        ValueError: It is damaged, or holds objects.
    """
    with refusing(path, "array"), Path(path).open("rb") as file:
        array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        if array.size > array.nbytes:
            raise ValueError(f"it has {array.size} elements of no size")
        return array


def check_archive(path: str | Path) -> None:
    """Refuse a zip archive that unpacks to far more than its size.

    Raises:
        ValueError: It does.
        zipfile.BadZipFile: It is no archive.
    """
    packed = Path(path).stat().st_size
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(SMALL, MOST_RATIO * packed):
        raise ValueError(f"its {packed} bytes would unpack to {unpacked}")
