"""Find where a new image was taken: its matches with a model's images give 2D-3D matches, those a pose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import poselib
from numpy.typing import NDArray
from scipy.spatial import KDTree

from matcher.geometry.fitting import Estimator
from matcher.geometry.two_view import Pose
from matcher.refinement import refine
from matcher.sfm.cameras import Camera
from matcher.sfm.database import HALF
from matcher.sfm.mapping import Model, View
from matcher.types import Image, Matcher, Matches, Matrix, Points

MIN_INLIERS = 12  # of a pose that is believed
THRESHOLD = 8.0  # pixels of reprojection; hloc takes 12
SNAP = 4.0  # pixels between a match and the keypoint of the model that it is taken for


@dataclass(frozen=True, eq=False)
class Location:
    """Where an image was taken.

    Attributes:
        pose: camera_from_world; None where there is too little to tell.
        points: (N, 2) pixels of the image.
        world: (N, 3) the points of the model that they show.
        inliers: (N,) bool, those that agree with the pose.
        reason: Why there is no pose; empty where there is one.
    """

    pose: Pose | None
    points: Points
    world: Matrix
    inliers: NDArray[np.bool_]
    reason: str = ""


def localise(
    method: Matcher,
    image: Image,
    camera: Camera,
    model: Model,
    pictures: Mapping[str, Image],
    estimator: Estimator | None = None,
) -> Location:
    """Localise an image against a model.

    Args:
        method: Finds the matches; made without refinement, which follows at the model's keypoints.
        image: (H, W) grey image.
        camera: Of the image.
        model: From `make_models` or `read_model`.
        pictures: Grey images of the views to match with, by name, in the pixels of the model.
        estimator: How to fit; its threshold is in pixels.

    Raises:
        ValueError: A picture that is no view of the model.
    """
    if unknown := sorted(pictures.keys() - model.views.keys()):
        raise ValueError(f"{unknown[0]!r} is no view of the model")
    names = list(pictures)
    query, *described = method.describe([image, *(pictures[name] for name in names)])
    found = method.match([(each, query) for each in described])
    parts = [
        _observed(model.views[name], matches, pictures[name], image)
        for name, matches in zip(names, found, strict=True)
    ]
    points = np.concatenate([np.zeros((0, 2), np.float32), *(part[0] for part in parts)])
    numbers = np.concatenate([np.zeros(0, np.int64), *(part[1] for part in parts)])
    return solve(points, model.points[numbers], camera, estimator)


def _observed(
    view: View, matches: Matches, picture: Image, image: Image
) -> tuple[Points, NDArray[np.int64]]:
    """Match the keypoints of a view that show points of the model: (N, 2) pixels, (N,) points.

    Each match moves to the keypoint next to it, by the same step in both images, and correlation
    then finds the keypoint's own place in the new image.
    """
    rows = np.flatnonzero(view.seen >= 0)
    if not len(rows) or not len(matches):
        return np.zeros((0, 2), np.float32), np.zeros(0, np.int64)
    found = KDTree(matches.points0).query(view.points[rows])
    distance, nearest = (np.asarray(each) for each in found)
    close = distance <= SNAP
    rows, nearest = rows[close], nearest[close]
    step = view.points[rows] - matches.points0[nearest]
    moved = (matches.points1[nearest] + step).astype(np.float32)
    snapped = Matches(view.points[rows], moved, matches.scores[nearest])
    refined = refine(snapped, picture, image)
    return refined.points1, view.seen[rows]


def solve(
    points: Points, world: Matrix, camera: Camera, estimator: Estimator | None = None
) -> Location:
    """Fit the pose of a camera that sees points of the world.

    Args:
        points: (N, 2) pixels, counted from the centre of the top-left pixel.
        world: (N, 3).
        camera: With its distortion, in COLMAP's models.
        estimator: How; its threshold is the reprojection error in pixels.
    """
    estimator = estimator or Estimator()
    nothing = np.zeros(len(points), bool)
    if len(points) < 4:
        return Location(None, points, world, nothing, "too few matches with points of the model")
    options = {
        "max_reproj_error": estimator.threshold or THRESHOLD,
        "max_iterations": estimator.max_iterations,
        "success_prob": estimator.confidence,
        "seed": estimator.seed,
    }
    lens = {
        "model": camera.model,
        "width": camera.width,
        "height": camera.height,
        "params": list(camera.params),
    }
    corner = np.asarray(points, np.float64) + HALF
    found, info = poselib.estimate_absolute_pose(corner, np.asarray(world), lens, options)
    inliers = np.array(info["inliers"], bool) if len(info["inliers"]) else nothing
    if inliers.sum() < MIN_INLIERS:
        return Location(None, points, world, inliers, "too few inliers")
    return Location(Pose(np.array(found.R), np.array(found.t)), points, world, inliers)


def best_views(model: Model, count: int) -> list[str]:
    """List the views of a model that see most of its points, at most so many."""
    seen = {name: int((view.seen >= 0).sum()) for name, view in model.views.items()}
    return sorted(seen, key=lambda name: -seen[name])[:count]
