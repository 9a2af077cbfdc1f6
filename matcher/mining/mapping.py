"""Reconstruct photographs from their verified matches, to verify these once more by many views.

COLMAP counts pixels from the corner of the top-left pixel, 0.5 more than this package; the shift is made here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matcher.extras import require
from matcher.geometry.cameras import guess_intrinsics, undistort
from matcher.geometry.two_view import Pose, fundamental_from_pose, sampson_distance
from matcher.types import Matrix, Points

PairOfRows: TypeAlias = tuple[int, int]
Rows: TypeAlias = NDArray[np.int64]

_HALF_PIXEL = 0.5
_LEAST_IMAGES = 3  # of a model: two views verify nothing beyond themselves


@dataclass(frozen=True, eq=False)
class Shot:
    """A photograph as the mapping needs it.

    Attributes:
        points: (N, 2) keypoints in pixels.
        size: Height and width in pixels.
        camera: Photographs of one size and one name here are taken to be from one camera.
    """

    points: Points
    size: tuple[int, int]
    camera: str = ""


@dataclass(frozen=True, eq=False)
class View:
    """A photograph whose place in a model is known.

    Attributes:
        model: Number of the model; views of different models have nothing in common.
        pose: camera_from_world.
        tracks: (N,) number of the scene point of each keypoint; -1 where there is none.
        intrinsics: (3, 3), pixels counted from the centre of the top-left pixel.
        distortion: k1 of the lens.
    """

    model: int
    pose: Pose
    tracks: Rows
    intrinsics: Matrix
    distortion: float


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
        undistort(points, view.intrinsics, [view.distortion])
        for view, points in ((view0, points0), (view1, points1))
    )
    fundamental = fundamental_from_pose(pose, view0.intrinsics, view1.intrinsics)
    return sampson_distance(ideal0, ideal1, fundamental)


def shared_tracks(view0: View, view1: View) -> Rows:
    """List (M, 2) rows of the keypoints of two views of one model that show the same scene point.

    A scene point that has several keypoints in one photograph is left out.
    """
    (points0, rows0), (points1, rows1) = (_once(view.tracks) for view in (view0, view1))
    _, chosen0, chosen1 = np.intersect1d(points0, points1, assume_unique=True, return_indices=True)
    return np.stack([rows0[chosen0], rows1[chosen1]], axis=1)


def reconstruct(
    shots: Sequence[Shot], matches: Mapping[PairOfRows, Rows], seed: int = 0
) -> dict[int, View]:
    """Place photographs in one or more models by incremental structure from motion.

    Args:
        shots: The photographs.
        matches: (M, 2) rows of keypoints that match, by the rows of the two photographs.
        seed: Of the robust fits.

    Returns:
        The views, by the row of the photograph; those that could not be placed are absent.

    Raises:
        ImportError: pycolmap is not installed.

    Source: Schönberger and Frahm, Structure-from-Motion Revisited, CVPR 2016.
    """
    colmap = require("pycolmap", "mapping photographs")
    if not matches:
        return {}
    colmap.logging.minloglevel = colmap.logging.Level.ERROR.value
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "database.db"
        _write_database(colmap, database, shots, matches)
        pairs = Path(folder) / "pairs.txt"
        pairs.write_text("".join(f"{first} {second}\n" for first, second in matches), "utf-8")
        verification = colmap.TwoViewGeometryOptions()
        verification.ransac.random_seed = seed
        colmap.verify_matches(database, pairs, options=verification)
        options = _pipeline_options(colmap, seed)
        models = colmap.incremental_mapping(database, folder, folder, options=options)
    return _views(models, [len(shot.points) for shot in shots])


def _once(tracks: Rows) -> tuple[Rows, Rows]:
    """List the scene points that exactly one keypoint shows, and the rows of these keypoints."""
    rows = np.flatnonzero(tracks >= 0)
    points, first, counts = np.unique(tracks[rows], return_index=True, return_counts=True)
    single = counts == 1
    return points[single], rows[first[single]]


def _pipeline_options(colmap: ModuleType, seed: int) -> Any:
    options = colmap.IncrementalPipelineOptions()
    options.min_model_size = _LEAST_IMAGES
    options.extract_colors = False
    options.random_seed = seed
    options.num_threads = 1  # more threads add up in another order: other last digits every run
    return options


def _write_database(
    colmap: ModuleType, path: Path, shots: Sequence[Shot], matches: Mapping[PairOfRows, Rows]
) -> None:
    """Write COLMAP's database; image i has the name and the number i + 1."""
    cameras: dict[tuple[str, tuple[int, int]], int] = {}
    with colmap.Database.open(path) as database:
        for row, shot in enumerate(shots):
            key = (shot.camera, shot.size)
            if key not in cameras:
                cameras[key] = database.write_camera(_camera(colmap, shot.size))
            _write_image(colmap, database, row, cameras[key])
            database.write_keypoints(row + 1, (shot.points + _HALF_PIXEL).astype(np.float32))
        for (row0, row1), rows in matches.items():
            database.write_matches(row0 + 1, row1 + 1, rows.astype(np.uint32))


def _camera(colmap: ModuleType, size: tuple[int, int]) -> Any:
    height, width = size
    focal = float(guess_intrinsics(size)[0, 0])
    return colmap.Camera.create_from_model_name(0, "SIMPLE_RADIAL", focal, width, height)


def _write_image(colmap: ModuleType, database: Any, row: int, camera: int) -> None:
    image = colmap.Image(name=str(row), camera_id=camera, image_id=row + 1)
    database.write_image(image, use_image_id=True)


def _views(models: Mapping[int, Any], counts: Sequence[int]) -> dict[int, View]:
    """Read the views of all models; a photograph in several belongs to the largest."""
    views: dict[int, View] = {}
    ordered = sorted(models.items(), key=lambda item: -item[1].num_reg_images())
    for number, model in ordered:
        for image_id in model.reg_image_ids():
            image = model.image(image_id)
            row = int(image.name)
            if row not in views:
                focal, x, y, distortion = image.camera.params
                centre = x - _HALF_PIXEL, y - _HALF_PIXEL
                intrinsics = np.array([[focal, 0, centre[0]], [0, focal, centre[1]], [0, 0, 1.0]])
                tracks = _tracks(image, counts[row])
                views[row] = View(number, _pose(image), tracks, intrinsics, float(distortion))
    return views


def _pose(image: Any) -> Pose:
    matrix = image.cam_from_world().matrix()
    return Pose(np.array(matrix[:, :3]), np.array(matrix[:, 3]))


def _tracks(image: Any, count: int) -> Rows:
    tracks = np.full(count, -1, np.int64)
    for row, point in enumerate(image.points2D):
        if point.has_point3D():
            tracks[row] = point.point3D_id
    return tracks
