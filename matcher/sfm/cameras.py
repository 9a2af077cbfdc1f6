"""The cameras of photos: what their files say, or what the user knows, in COLMAP's models.

Parameters count pixels as COLMAP does, from the corner of the top-left pixel: a principal point in
this package's pixels has 0.5 added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from PIL import Image as PilImage

from matcher.decoding import open_image, orientation
from matcher.sfm.photos import Photo
from matcher.types import Matrix

MODELS = {  # number in a database, and how many parameters are focal lengths and how many there are
    "SIMPLE_PINHOLE": (0, 1, 3),
    "PINHOLE": (1, 2, 4),
    "SIMPLE_RADIAL": (2, 1, 4),
    "RADIAL": (3, 1, 5),
    "OPENCV": (4, 2, 8),
    "OPENCV_FISHEYE": (5, 2, 8),
    "FULL_OPENCV": (6, 2, 12),
}
GUESS = 1.2  # focal length over the longer side where nothing is known: COLMAP's guess
_FOCAL_35MM = 0xA405  # EXIF tag FocalLengthIn35mmFilm
_EXIF = 0x8769
_LONGEST = 1e5  # mm: ten times the longest lens
_FILM = np.hypot(36.0, 24.0)  # mm, diagonal of the film that the tag is about


@dataclass(frozen=True)
class Camera:
    """A camera.

    Attributes:
        model: One of `MODELS`.
        width: In pixels.
        height: In pixels.
        params: COLMAP's: focal lengths, principal point, distortion.
        known: Whether the focal length is measured, not guessed.
    """

    model: str
    width: int
    height: int
    params: tuple[float, ...]
    known: bool = False

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ValueError(f"no camera model {self.model!r}; there are {', '.join(MODELS)}")
        wanted = MODELS[self.model][2]
        if len(self.params) != wanted:
            raise ValueError(f"{self.model} has {wanted} parameters, not {len(self.params)}")

    @classmethod
    def guessed(
        cls, size: tuple[int, int], model: str = "SIMPLE_RADIAL", focal: float = 0
    ) -> Camera:
        """Make a camera without distortion.

        Args:
            size: Height and width.
            model: One of `MODELS`.
            focal: In pixels; 0 for the usual guess.
        """
        height, width = size
        if model not in MODELS:
            raise ValueError(f"no camera model {model!r}; there are {', '.join(MODELS)}")
        _, focals, total = MODELS[model]
        length = focal or GUESS * max(size)
        params = [length] * focals + [width / 2, height / 2]
        params += [0.0] * (total - len(params))
        return cls(model, width, height, tuple(params), known=focal > 0)

    @classmethod
    def pinhole(cls, size: tuple[int, int], intrinsics: Matrix) -> Camera:
        """Make a camera from a matrix (3, 3) in this package's pixels."""
        focal_x, focal_y, x, y = intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]].tolist()
        return cls("PINHOLE", size[1], size[0], (focal_x, focal_y, x + 0.5, y + 0.5), known=True)

    @property
    def intrinsics(self) -> Matrix:
        """The camera matrix (3, 3) in this package's pixels, without distortion."""
        focals = MODELS[self.model][1]
        focal_x, focal_y = self.params[0], self.params[focals - 1]
        x, y = self.params[focals], self.params[focals + 1]
        return np.array([[focal_x, 0, x - 0.5], [0, focal_y, y - 0.5], [0, 0, 1.0]])

    @property
    def distorted(self) -> bool:
        """Whether any distortion is known."""
        return any(self.params[MODELS[self.model][1] + 2 :])


def cameras_of(
    photos: Sequence[Photo], model: str = "SIMPLE_RADIAL", known: Mapping[str, Camera] | None = None
) -> tuple[list[Camera], list[int]]:
    """Find out which camera took each photo.

    Photos of one folder, one size and one focal length share a camera.

    Args:
        photos: The files.
        model: Of cameras that are not known.
        known: Cameras by the name of the photo.

    Returns:
        The cameras, and for each photo the index of its camera.
    """
    cameras: dict[tuple[str, Camera], int] = {}
    index = []
    for photo in photos:
        camera = (known or {}).get(photo.name) or _from_file(photo, model)
        place = "" if camera.known and known else str(PurePosixPath(photo.name).parent)
        index.append(cameras.setdefault((place, camera), len(cameras)))
    return [camera for _, camera in cameras], index


def _from_file(photo: Photo, model: str) -> Camera:
    """Read size and focal length of an upright photo from the head of its file."""
    with photo.path.open("rb") as file, open_image(file) as opened:
        width, height = opened.size
        if orientation(opened) >= 5:  # stored lying on its side
            width, height = height, width
        focal_mm = _focal_length(opened.getexif())
    focal = focal_mm / _FILM * float(np.hypot(width, height))
    return Camera.guessed((height, width), model, focal)


def _focal_length(exif: PilImage.Exif) -> float:
    """Read the focal length in mm of film; 0 where the tag is missing or makes no sense."""
    try:
        focal_mm = float(exif.get_ifd(_EXIF).get(_FOCAL_35MM, 0))
    except Exception:  # whatever PIL raises at a damaged block
        return 0.0
    return focal_mm if 0 < focal_mm < _LONGEST else 0.0
