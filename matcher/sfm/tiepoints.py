"""Tie points of many images: what every export writes and every mapper reads."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.sfm.cameras import Camera
from matcher.sfm.geometry import TwoViewGeometry
from matcher.sfm.photos import check_names
from matcher.types import Floats, Points

_log = logging.getLogger(__name__)
NamePair: TypeAlias = tuple[str, str]
Rows: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TiePoints:
    """Keypoints of images, and which of them show the same scene point.

    Attributes:
        names: Of the images, in their order.
        cameras: The cameras.
        camera_of: Index of the camera of each image.
        keypoints: (N, 2) float32 pixels by image, (0, 0) the centre of the top-left pixel.
        pairs: (M, 2) int64 rows of the keypoints of both images, by pair.
        geometries: What verification said of each pair; pairs that are not in it are not verified.
        weights: (N,) float32 by image: how strongly each keypoint is supported.
    """

    names: tuple[str, ...]
    cameras: tuple[Camera, ...]
    camera_of: tuple[int, ...]
    keypoints: Mapping[str, Points]
    pairs: Mapping[NamePair, Rows]
    geometries: Mapping[NamePair, TwoViewGeometry] = field(default_factory=dict)
    weights: Mapping[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_names(self.names)
        if len(self.camera_of) != len(self.names):
            raise ValueError(f"{len(self.names)} images have {len(self.camera_of)} cameras")
        object.__setattr__(self, "keypoints", _checked_points(self.names, self.keypoints))
        pairs = merge_pairs((*pair, rows) for pair, rows in self.pairs.items())
        if len(pairs) < len(self.pairs) and self.geometries:
            raise ValueError("a pair is listed both ways round: verify after joining them")
        for pair, rows in pairs.items():
            _check_rows(pair, rows, self.keypoints)
        object.__setattr__(self, "pairs", pairs)
        for pair, geometry in self.geometries.items():
            if len(geometry.inliers) != len(pairs[pair]):
                raise ValueError(
                    f"{pair}: {len(geometry.inliers)} inlier flags for {len(pairs[pair])} matches"
                )

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """Height and width of each image."""
        return {
            name: (self.cameras[camera].height, self.cameras[camera].width)
            for name, camera in zip(self.names, self.camera_of, strict=True)
        }

    def camera(self, name: str) -> Camera:
        """Return the camera of an image."""
        return self.cameras[self.camera_of[self.names.index(name)]]

    def verified(self) -> dict[NamePair, Rows]:
        """Return the inlier matches of the pairs that verification accepted."""
        return {
            pair: self.pairs[pair][geometry.inliers]
            for pair, geometry in self.geometries.items()
            if not geometry.rejection
        }


def merge_pairs(listed: Iterable[tuple[str, str, ArrayLike]]) -> dict[NamePair, Rows]:
    """Join matches that are listed in any order, some pairs twice or the other way round.

    Args:
        listed: Name of image 0, name of image 1, (M, 2) rows of their keypoints.

    Returns:
        Each pair once, the way round it came first, without equal rows; the log tells what was joined.

    Raises:
        ValueError: An image paired with itself, or rows that are not (M, 2) whole numbers.
    """
    parts: dict[NamePair, list[Rows]] = {}
    for name0, name1, rows in listed:
        array = np.asarray(rows)
        if name0 == name1:
            raise ValueError(f"image {name0!r} is paired with itself")
        if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
            if array.size:
                raise ValueError(
                    f"matches of {name0!r} and {name1!r} must be (M, 2) whole numbers, "
                    f"not {array.shape} {array.dtype}"
                )
            array = np.zeros((0, 2), np.int64)
        turned = (name1, name0) in parts
        pair = (name1, name0) if turned else (name0, name1)
        parts.setdefault(pair, []).append(array[:, ::-1] if turned else array)
    return {pair: _joined(pair, arrays) for pair, arrays in parts.items()}


def _joined(pair: NamePair, arrays: Sequence[Rows]) -> Rows:
    """Put the rows of one pair together, each once, in the order in which they came."""
    rows = np.concatenate(arrays).astype(np.int64)
    _, first = np.unique(rows, axis=0, return_index=True)
    if len(arrays) > 1:
        _log.warning("pair %s, %s was listed %d times and is joined", *pair, len(arrays))
    if len(first) < len(rows):
        _log.warning("pair %s, %s: %d matches were listed twice", *pair, len(rows) - len(first))
    return rows if len(first) == len(rows) else rows[np.sort(first)]


def _checked_points(names: Sequence[str], keypoints: Mapping[str, Points]) -> dict[str, Points]:
    checked = {}
    for name in names:
        points = np.asarray(keypoints.get(name, np.zeros((0, 2))))
        if points.ndim != 2 or points.shape[1] != 2:
            raise ValueError(f"keypoints of {name!r} must be (N, 2), not {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError(f"keypoints of {name!r} are not all finite")
        checked[name] = np.ascontiguousarray(points, np.float32)
    return checked


def _check_rows(pair: NamePair, rows: Rows, keypoints: Mapping[str, Points]) -> None:
    """Refuse matches of keypoints that are not there.

    Raises:
        ValueError: An unknown image, or a row beyond its keypoints; with pair, row and number.
    """
    for side, name in enumerate(pair):
        if name not in keypoints:
            raise ValueError(f"pair {pair}: no image {name!r}")
        count = len(keypoints[name])
        wrong = np.flatnonzero((rows[:, side] < 0) | (rows[:, side] >= count))
        if len(wrong):
            match = tuple(rows[wrong[0]].tolist())
            raise ValueError(
                f"pair {pair}: match {wrong[0]} is {match}, but {name!r} has {count} keypoints"
            )
