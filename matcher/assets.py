"""Find the models and sample data that ship with the package, in a checkout and in a wheel."""

from __future__ import annotations

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
