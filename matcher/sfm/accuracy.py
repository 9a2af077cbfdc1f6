"""Compare a model with cameras that are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from matcher.geometry.two_view import Pose, nearest_rotation, rotation_error_degrees
from matcher.sfm.mapping import Model
from matcher.types import Matrix


@dataclass(frozen=True)
class Accuracy:
    """How far a model is from known cameras.

    Attributes:
        registered: Images that the model placed.
        total: Images that are known.
        centre_median: Distance of the camera centres after similarity alignment, in the truth's unit.
        centre_largest: Likewise, the largest.
        rotation_median: Error of the relative rotations of all pairs, in degrees.
        rotation_largest: Likewise, the largest.
    """

    registered: int
    total: int
    centre_median: float
    centre_largest: float
    rotation_median: float
    rotation_largest: float


def compare_cameras(model: Model, truth: Mapping[str, Pose]) -> Accuracy:
    """Align the centres of a model's cameras to known ones and measure what is left.

    Args:
        model: The model.
        truth: camera_from_world by name of the image.

    Returns:
        The errors over the images that both have; NaN where those are fewer than three.
    """
    names = [name for name in model.views if name in truth]
    if len(names) < 3:
        return Accuracy(len(names), len(truth), *[float("nan")] * 4)
    found = np.array([model.views[name].centre for name in names])
    known = np.array([truth[name].inverse.translation for name in names])
    scale, rotation, shift = align(found, known)
    distances = np.linalg.norm(scale * found @ rotation.T + shift - known, axis=1)
    angles = [
        rotation_error_degrees(
            model.views[one].pose.rotation @ model.views[other].pose.rotation.T,
            truth[one].rotation @ truth[other].rotation.T,
        )
        for one, other in combinations(names, 2)
    ]
    return Accuracy(
        len(names),
        len(truth),
        float(np.median(distances)),
        float(distances.max()),
        float(np.median(angles)),
        float(max(angles)),
    )


def align(points: Matrix, targets: Matrix) -> tuple[float, Matrix, Matrix]:
    """Fit the similarity that takes points to targets with least squares.

    Args:
        points: (N, 3), three or more that are not on a line.
        targets: (N, 3).

    Returns:
        Scale, rotation (3, 3) and shift (3,): targets ~ scale * points @ rotation.T + shift.

    Source: S. Umeyama, Least-squares estimation of transformation parameters, PAMI 1991.
    """
    centre0, centre1 = points.mean(axis=0), targets.mean(axis=0)
    offsets0, offsets1 = points - centre0, targets - centre1
    covariance = np.einsum("ni,nj->ij", offsets1, offsets0)
    rotation = nearest_rotation(covariance)
    scale = float(np.trace(rotation.T @ covariance) / (offsets0**2).sum())
    return scale, rotation, centre1 - scale * rotation @ centre0
