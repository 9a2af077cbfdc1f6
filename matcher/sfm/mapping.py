"""Make sparse models from a database with pycolmap: one image after the other, or all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.extras import require
from matcher.geometry.two_view import Pose
from matcher.reading import refusing
from matcher.sfm.database import HALF
from matcher.sfm.model_files import check_model
from matcher.types import Matrix, Points


@dataclass(frozen=True)
class MapOptions:
    """How a model is made.

    Attributes:
        mapper: "incremental" adds one image after the other; "global" (GLOMAP) places all at once.
        min_inliers: Pairs with fewer verified matches are passed over.
        min_model_size: Models of fewer images are dropped.
        keep_intrinsics: Leave all parameters of the cameras as they are given.
        polish: Pixels beyond which an observation counts less and less in a last adjustment of all
            cameras and points (a Cauchy loss), which the mappers' own lack: placed tie points are
            good to a fifth of a pixel, and a few wrong ones among them pull. 0 leaves it out.
        threads: -1 for all cores; with 1 the same database gives the same model.
        seed: Of the sampling.
        colours: Whether points get their colours from the photographs, which must be there.
    """

    mapper: str = "incremental"
    min_inliers: int = 15
    min_model_size: int = 3
    keep_intrinsics: bool = False
    polish: float = 0.5
    threads: int = -1
    seed: int = 0
    colours: bool = True

    def __post_init__(self) -> None:
        if self.mapper not in ("incremental", "global"):
            raise ValueError(f"no mapper {self.mapper!r}; there are global, incremental")
        if not 0 <= self.polish < np.inf:
            raise ValueError(f"polish must be 0 or more pixels, not {self.polish}")


@dataclass(frozen=True, eq=False)
class View:
    """An image of a model.

    Attributes:
        name: Of the image.
        pose: camera_from_world.
        intrinsics: (3, 3) in this package's pixels, without the distortion.
        points: (N, 2) keypoints.
        seen: (N,) row of the model's points that each keypoint shows, -1 for none.
        distortion: The other parameters of the camera, in COLMAP's order: k1 of SIMPLE_RADIAL.
    """

    name: str
    pose: Pose
    intrinsics: Matrix
    points: Points
    seen: NDArray[np.int64]
    distortion: tuple[float, ...] = ()

    @property
    def centre(self) -> Matrix:
        """Where the camera stands in the world, (3,)."""
        return self.pose.inverse.translation


@dataclass(frozen=True, eq=False)
class Model:
    """A sparse model.

    Attributes:
        views: The registered images by name, in the order of the database.
        points: (K, 3) in the world.
        colours: (K, 3) uint8 RGB.
        errors: (K,) mean reprojection error in pixels.
        lengths: (K,) how many images see each point.
    """

    views: Mapping[str, View]
    points: Matrix
    colours: NDArray[np.uint8]
    errors: Matrix
    lengths: NDArray[np.int64]

    @property
    def summary(self) -> dict[str, float]:
        """Registered images, points, mean track length and reprojection error (over observations)."""
        seen = int(self.lengths.sum())
        return {
            "images": len(self.views),
            "points": len(self.points),
            "track length": seen / max(len(self.points), 1),
            "reprojection error px": float((self.errors * self.lengths).sum() / max(seen, 1)),
        }


def make_models(
    database: str | Path, images: str | Path, out: str | Path, options: MapOptions | None = None
) -> list[Model]:
    """Make models from the verified pairs of a database, the largest first.

    Args:
        database: From `write_database`, or anybody's.
        images: The image folder, for the colours of points.
        out: Folder for the models, one numbered folder each, in COLMAP's form.
        options: How.

    Returns:
        The models; none where no two images could be joined.

    Raises:
        ImportError: pycolmap is not installed.
        FileNotFoundError: There is no database.
    """
    pycolmap = require("pycolmap", "mapping")
    options = options or MapOptions()
    if not Path(database).is_file():
        raise FileNotFoundError(f"no database {database}")
    Path(out).mkdir(parents=True, exist_ok=True)
    pycolmap.set_random_seed(options.seed)
    make = _incremental if options.mapper == "incremental" else _global
    found = make(pycolmap, (str(database), str(images), str(out)), options)
    if options.polish:
        for number, reconstruction in found.items():
            _polish(pycolmap, reconstruction, options)
            reconstruction.write(str(Path(out) / str(number)))
    models = [read_reconstruction(reconstruction) for reconstruction in found.values()]
    return sorted(models, key=lambda model: len(model.views), reverse=True)


def _incremental(pycolmap: Any, paths: tuple[str, str, str], options: MapOptions) -> dict[int, Any]:
    chosen = pycolmap.IncrementalPipelineOptions()
    chosen.min_num_matches = options.min_inliers
    chosen.min_model_size = options.min_model_size
    chosen.num_threads = options.threads
    chosen.extract_colors = options.colours
    chosen.ba_refine_focal_length = chosen.ba_refine_extra_params = not options.keep_intrinsics
    if hasattr(chosen, "random_seed"):
        chosen.random_seed = options.seed
    found: dict[int, Any] = pycolmap.incremental_mapping(*paths, chosen)
    return found


def _global(pycolmap: Any, paths: tuple[str, str, str], options: MapOptions) -> dict[int, Any]:
    if not hasattr(pycolmap, "global_mapping"):
        raise ImportError("mapper 'global' needs pycolmap 4: pip install 'pycolmap>=4'")
    chosen = pycolmap.GlobalPipelineOptions()
    chosen.min_num_matches = options.min_inliers
    chosen.min_model_size = options.min_model_size
    chosen.num_threads = options.threads
    chosen.random_seed = options.seed
    adjustment = chosen.mapper.bundle_adjustment
    adjustment.refine_focal_length = adjustment.refine_extra_params = not options.keep_intrinsics
    found: dict[int, Any] = pycolmap.global_mapping(*paths, chosen)
    return found


def _polish(pycolmap: Any, reconstruction: Any, options: MapOptions) -> None:
    """Adjust all cameras and points once more, with a loss that few wrong observations cannot pull."""
    chosen = pycolmap.BundleAdjustmentOptions()
    chosen.refine_focal_length = chosen.refine_extra_params = not options.keep_intrinsics
    chosen.print_summary = False
    solver = getattr(chosen, "ceres", chosen)  # where version 4 keeps it
    solver.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    solver.loss_function_scale = options.polish
    solver.solver_options.num_threads = options.threads
    pycolmap.bundle_adjustment(reconstruction, chosen)
    reconstruction.update_point_3d_errors()


def read_model(folder: str | Path) -> Model:
    """Read a model in COLMAP's form, text or binary.

    Raises:
        ImportError: pycolmap is not installed.
        FileNotFoundError: There is no model in the folder.
        ValueError: It is damaged.
    """
    pycolmap = require("pycolmap", "reading a model")
    if not list(Path(folder).glob("images.*")):
        raise FileNotFoundError(f"no model in {folder}: cameras, images and points3D are missing")
    check_model(Path(folder))
    with refusing(folder, "whole COLMAP model"):
        return read_reconstruction(pycolmap.Reconstruction(str(folder)))


def read_reconstruction(reconstruction: Any) -> Model:
    """Convert pycolmap's object."""
    ids = sorted(reconstruction.points3D)
    row = {point_id: number for number, point_id in enumerate(ids)}
    points = [reconstruction.points3D[point_id] for point_id in ids]
    views = {}
    for image_id in sorted(reconstruction.reg_image_ids()):
        image = reconstruction.images[image_id]
        views[image.name] = _view(image, reconstruction.cameras[image.camera_id], row)
    return Model(
        views,
        np.array([point.xyz for point in points]).reshape(-1, 3),
        np.array([point.color for point in points], np.uint8).reshape(-1, 3),
        np.array([max(point.error, 0.0) for point in points]),
        np.array([point.track.length() for point in points], np.int64),
    )


def _view(image: Any, camera: Any, row: Mapping[int, int]) -> View:
    placed: Any = image.cam_from_world  # a function since version 3.12
    placed = placed() if callable(placed) else placed
    intrinsics = np.array(camera.calibration_matrix())
    intrinsics[:2, 2] -= HALF
    keypoints = [point.xy for point in image.points2D]
    seen = [row[point.point3D_id] if point.has_point3D() else -1 for point in image.points2D]
    return View(
        image.name,
        Pose(np.array(placed.rotation.matrix()), np.array(placed.translation)),
        intrinsics,
        (np.array(keypoints, np.float64).reshape(-1, 2) - HALF).astype(np.float32),
        np.array(seen, np.int64),
        tuple(float(camera.params[row]) for row in camera.extra_params_idxs()),
    )
