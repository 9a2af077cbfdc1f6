"""Reconstruct photographs from their verified matches, to verify these once more by many views."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matcher.geometry.cameras import undistort
from matcher.geometry.two_view import Pose, fundamental_from_pose, sampson_distance
from matcher.sfm.cameras import Camera
from matcher.sfm.database import write_database
from matcher.sfm.geometry import VerifyOptions, verify_pair
from matcher.sfm.mapping import MapOptions, View, make_models
from matcher.sfm.tiepoints import TiePoints
from matcher.types import Matrix, Points

PairOfRows: TypeAlias = tuple[int, int]
Rows: TypeAlias = NDArray[np.int64]

# Two views verify nothing beyond themselves; one thread adds up in the same order every run.
_OPTIONS = MapOptions(min_model_size=3, polish=0, threads=1, colours=False)


@dataclass(frozen=True, eq=False)
class Shot:
    """A photograph as the mapping needs it.

    Attributes:
        points: (N, 2) keypoints in pixels.
        size: Height and width in pixels.
    """

    points: Points
    size: tuple[int, int]


@dataclass(frozen=True, eq=False)
class Placed:
    """A photograph whose place in a model is known.

    Attributes:
        model: Number of the model; photographs of different models have nothing in common.
        view: Its pose, camera and scene points.
    """

    model: int
    view: View


def epipolar_errors(view0: View, view1: View, points0: Points, points1: Points) -> Matrix:
    """Measure how far matches are from the epipolar geometry of two views of one model.

    Args:
        view0: Of image 0.
        view1: Of image 1.
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.

    Returns:
        (N,) Sampson distances in pixels; NaN where the lens shows no place of the scene.
    """
    rotation = view1.pose.rotation @ view0.pose.rotation.T
    pose = Pose(rotation, view1.pose.translation - rotation @ view0.pose.translation)
    ideal0, ideal1 = (
        undistort(points, view.intrinsics, list(view.distortion))
        for points, view in ((points0, view0), (points1, view1))
    )
    fundamental = fundamental_from_pose(pose, view0.intrinsics, view1.intrinsics)
    return sampson_distance(ideal0, ideal1, fundamental)


def shared_tracks(view0: View, view1: View) -> Rows:
    """List (M, 2) rows of the keypoints of two views of one model that show the same scene point.

    A scene point that has several keypoints in one photograph is left out.
    """
    (points0, rows0), (points1, rows1) = (_once(view.seen) for view in (view0, view1))
    _, chosen0, chosen1 = np.intersect1d(points0, points1, assume_unique=True, return_indices=True)
    return np.stack([rows0[chosen0], rows1[chosen1]], axis=1)


def reconstruct(
    shots: Sequence[Shot], matches: Mapping[PairOfRows, Rows], seed: int = 0
) -> dict[int, Placed]:
    """Place photographs in one or more models by incremental structure from motion.

    Photographs of one size are taken to be from one camera.

    Args:
        shots: The photographs.
        matches: (M, 2) rows of keypoints that match, by the rows of the two photographs.
        seed: Of the robust fits.

    Returns:
        Those that could be placed, by their rows; one that is in several models belongs to the
        largest.

    Raises:
        ImportError: pycolmap is not installed.

    Source: Schönberger and Frahm, Structure-from-Motion Revisited, CVPR 2016.
    """
    if not matches:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        database = write_database(Path(folder) / "database.db", _tie_points(shots, matches, seed))
        options = replace(_OPTIONS, seed=seed)
        models = make_models(database, folder, Path(folder) / "sparse", options)
    placed: dict[int, Placed] = {}
    for number, model in enumerate(models):
        for name, view in model.views.items():
            placed.setdefault(int(name), Placed(number, view))
    return placed


def _tie_points(shots: Sequence[Shot], matches: Mapping[PairOfRows, Rows], seed: int) -> TiePoints:
    """Name photographs by their rows, and verify their pairs."""
    sizes = list(dict.fromkeys(shot.size for shot in shots))
    cameras = [Camera.guessed(size) for size in sizes]
    camera_of = tuple(sizes.index(shot.size) for shot in shots)
    options = VerifyOptions(seed=seed)
    geometries = {
        (str(row0), str(row1)): verify_pair(
            (shots[row0].points[rows[:, 0]], shots[row1].points[rows[:, 1]]),
            (cameras[camera_of[row0]], cameras[camera_of[row1]]),
            options,
        )
        for (row0, row1), rows in matches.items()
    }
    return TiePoints(
        tuple(map(str, range(len(shots)))),
        tuple(cameras),
        camera_of,
        {str(row): shot.points for row, shot in enumerate(shots)},
        {(str(row0), str(row1)): rows for (row0, row1), rows in matches.items()},
        geometries,
    )


def _once(tracks: Rows) -> tuple[Rows, Rows]:
    """List the scene points that exactly one keypoint shows, and the rows of these keypoints."""
    rows = np.flatnonzero(tracks >= 0)
    points, first, counts = np.unique(tracks[rows], return_index=True, return_counts=True)
    single = counts == 1
    return points[single], rows[first[single]]
