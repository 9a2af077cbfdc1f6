"""The images of a reconstruction: names that every file format agrees on, in natural order."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from matcher import images
from matcher.types import Image, Mask


@dataclass(frozen=True)
class Photo:
    """One image file.

    Attributes:
        name: Path below the image folder with "/" between: unique, and the same on every system.
        path: Where it is.
        mask: A picture that is bright where matching is allowed, or None.
    """

    name: str
    path: Path
    mask: Path | None = None

    def content(self) -> str:
        """Return the sha256 of the file and of its mask: the same pixels have the same one."""
        digest = hashlib.sha256(self.path.read_bytes())
        if self.mask is not None:
            digest.update(b"mask" + self.mask.read_bytes())
        return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Loaded:
    """The pixels of a photo as methods see them.

    Attributes:
        image: float32 in [0, 1], at most `long_side` pixels long.
        mask: Where matching is allowed; None for everywhere.
        size: Height and width of the file, upright.
    """

    image: Image
    mask: Mask | None
    size: tuple[int, int]


def list_photos(folder: str | Path, masks: str | Path | None = None) -> list[Photo]:
    """List the images of a folder and its sub-folders in natural order: frame2 before frame10.

    Args:
        folder: Files that are no images are passed over.
        masks: Folder of masks under the images' names with ".png" behind, as COLMAP has them.

    Raises:
        NotADirectoryError: It is no folder.
        ValueError: It holds no image.
    """
    folder = Path(folder)
    paths, _ = images.list_images(folder, recursive=True)
    if not paths:
        raise ValueError(f"no images in {folder}")
    photos = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        mask = None if masks is None else Path(masks) / f"{name}.png"
        photos.append(Photo(name, path, mask if mask is not None and mask.is_file() else None))
    return photos


def load(photo: Photo, long_side: int | None) -> Loaded:
    """Read a photo, shrunk to a long side; its mask is joined with its alpha channel.

    Raises:
        ValueError: The mask has another size.
    """
    picture = images.load(photo.path)
    size = picture.image.shape[0], picture.image.shape[1]
    mask = picture.mask
    if photo.mask is not None:
        given = images.read_mask(photo.mask)
        if given.shape != size:
            raise ValueError(f"{photo.mask} is {given.shape}, the image is {size}")
        mask = given if mask is None else mask & given
    small = size if long_side is None else images.fit_long_side(size, long_side)
    return Loaded(
        images.resize(picture.image, small),
        None if mask is None else images.resize_mask(mask, small),
        size,
    )


def find_name(text: str, names: Iterable[str], root: str | Path | None = None) -> str:
    r"""Find the name that a user's list means.

    Args:
        text: A name, with "/" or "\" between its parts, or an absolute path below `root`.
        names: All names.
        root: The image folder.

    Raises:
        ValueError: There is none.
    """
    known = set(names)
    candidates = [text, PureWindowsPath(text).as_posix(), PurePosixPath(text).as_posix()]
    if root is not None:
        base = Path(root).resolve().as_posix() + "/"
        candidates += [candidate.removeprefix(base) for candidate in candidates]
    for candidate in candidates:
        if candidate in known:
            return candidate
    raise ValueError(
        f"no image {text!r} among {len(known)}, such as {min(known, default='none')!r}"
    )


def check_names(names: Sequence[str]) -> None:
    """Refuse names that would be two things in a database.

    Raises:
        ValueError: A name twice, an absolute one, one that leads out of the folder, or one with a
            backslash, a control character or half a character: files get these names.
    """
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"image names must be unique: {', '.join(twice)}")
    for name in names:
        inside = PurePosixPath(name).parts
        if (
            not inside
            or inside[0] == "/"
            or ".." in inside
            or re.search("[\\\\\x00-\x1f\ud800-\udfff]", name)
        ):
            raise ValueError(f"image name {name!r} must be a path below the image folder with /")
