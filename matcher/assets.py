"""Find the models and sample data that ship with the package, and the folder of what is fetched."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def folder(name: str) -> Path:
    """Return the folder `models` or `data`.

    Raises:
        FileNotFoundError: It is neither inside the installed package nor beside the package in a checkout.
    """
    package = Path(__file__).resolve().parent
    places = [package / "_assets" / name, package.parent / name]
    for place in places:
        if place.is_dir():
            return place
    raise FileNotFoundError(f"no folder {name!r}: looked in {' and '.join(map(str, places))}")


def cache_folder() -> Path:
    """Say where fetched weights lie: `MATCHER_WEIGHTS`, else a folder of the user's cache."""
    chosen = os.environ.get("MATCHER_WEIGHTS")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tiepoint" / "weights"
