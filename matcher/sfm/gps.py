"""Read where photos were taken from their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from matcher.decoding import open_image
from matcher.sfm.photos import Photo
from matcher.types import Matrix

_GPS = 0x8825  # EXIF block: Exif 2.3, section 4.6.6, whose tags follow
_LATITUDE, _LONGITUDE, _ALTITUDE = 2, 4, 6  # the tag before each says on which side of 0
_BELOW = (b"\x01", 1)  # sea level, as PIL gives it from TIFF and JPEG


def positions_of(photos: Iterable[Photo]) -> dict[str, Matrix]:
    """Find latitude, longitude (degrees, north and east) and altitude (metres, 0 if not given).

    Args:
        photos: The files.

    Returns:
        (3,) by name, in the order of the photos, without those whose files do not say.
    """
    found = {photo.name: _position(photo) for photo in photos}
    return {name: position for name, position in found.items() if position is not None}


def _position(photo: Photo) -> Matrix | None:
    with photo.path.open("rb") as file, open_image(file) as opened:
        try:
            block = opened.getexif().get_ifd(_GPS)
            position = _decoded(block)
        except Exception:  # whatever PIL raises at a damaged block, and fractions over 0
            return None
    latitude, longitude, _ = position
    sensible = abs(latitude) <= 90 and abs(longitude) <= 180
    return position if sensible and np.isfinite(position).all() else None


def _decoded(block: Mapping[int, Any]) -> Matrix:
    """Turn degrees, minutes and seconds into degrees, south, west and below the sea negative.

    Raises:
        KeyError: Latitude or longitude is missing.
    """
    latitude, longitude = (
        float(np.dot([float(part) for part in block[tag]], [1, 1 / 60, 1 / 3600]))
        for tag in (_LATITUDE, _LONGITUDE)
    )
    south = str(block.get(_LATITUDE - 1, "N")).startswith("S")
    west = str(block.get(_LONGITUDE - 1, "E")).startswith("W")
    altitude = float(block.get(_ALTITUDE, 0))
    below = block.get(_ALTITUDE - 1) in _BELOW
    return np.array(
        [
            -latitude if south else latitude,
            -longitude if west else longitude,
            -altitude if below else altitude,
        ]
    )
