"""Closed forms of two views: epipolar geometry, poses and their errors, triangulation.

A pose is camera1_from_camera0: x1 = rotation @ x0 + translation. Fundamental matrices have
pixel1 @ fundamental @ pixel0 = 0 for the homogeneous pixels of a true match.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import ConvexHull, QhullError

from matcher.types import Matrix

_HALF_TURN = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])  # W of the source below


@dataclass(frozen=True, eq=False)
class Pose:
    """Where camera 1 stands seen from camera 0: x1 = rotation @ x0 + translation.

    Attributes:
        rotation: (3, 3), determinant +1.
        translation: (3,) of any unit, as two views do not tell the scale; zeros where they do not
            even tell the direction.
    """

    rotation: Matrix
    translation: Matrix

    @property
    def inverse(self) -> Pose:
        """The pose of camera 0 seen from camera 1."""
        return Pose(self.rotation.T, -self.rotation.T @ self.translation)


@dataclass(frozen=True, eq=False)
class PlaneMotion:
    """A reading of a homography: rotation + outer(translation, normal), the plane at distance 1.

    Attributes:
        rotation: (3, 3), determinant +1.
        translation: (3,) in units of the distance from camera 0 to the plane.
        normal: (3,) unit vector in the frame of camera 0; normal @ x0 = 1 on the plane.
    """

    rotation: Matrix
    translation: Matrix
    normal: Matrix


def cross_matrix(vector: Matrix) -> Matrix:
    """Make the (3, 3) matrix whose product with a vector is the cross product."""
    x, y, z = vector
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def essential_from_pose(pose: Pose) -> Matrix:
    """Make the essential matrix: ray1 @ essential @ ray0 = 0 for the rays of one point."""
    return cross_matrix(pose.translation) @ pose.rotation


def fundamental_from_pose(pose: Pose, intrinsics0: Matrix, intrinsics1: Matrix) -> Matrix:
    """Make the fundamental matrix: pixel1 @ fundamental @ pixel0 = 0 for the pixels of a point."""
    inverse0, inverse1 = np.linalg.inv(intrinsics0), np.linalg.inv(intrinsics1)
    return np.asarray(inverse1.T @ essential_from_pose(pose) @ inverse0)


def _epipolar_parts(
    points0: ArrayLike, points1: ArrayLike, fundamental: Matrix
) -> tuple[Matrix, ...]:
    """Return |pixel1 @ fundamental @ pixel0| and the squared normals of the lines in 0 and 1.

    A normal that is nothing but rounding is returned as 0: the point is at the epipole.
    """
    array0, array1 = np.asarray(points0, np.float64), np.asarray(points1, np.float64)
    if len(array0) != len(array1):
        raise ValueError(f"points0 has {len(array0)} rows, points1 has {len(array1)}")
    lines1 = array0 @ fundamental[:, :2].T + fundamental[:, 2]
    lines0 = array1 @ fundamental[:2] + fundamental[2]
    product = np.abs((lines1[:, :2] * array1).sum(axis=1) + lines1[:, 2])
    sides = (array1, lines0, fundamental[:, :2]), (array0, lines1, fundamental[:2])
    squares = []
    for pixels, lines, part in sides:
        square = (lines[:, :2] ** 2).sum(axis=1)
        rounding = 1e-24 * (part**2).sum() * (1 + (pixels**2).sum(axis=1))
        squares.append(np.where(square <= rounding, 0.0, square))
    return product, squares[0], squares[1]


def symmetric_distance(points0: ArrayLike, points1: ArrayLike, fundamental: Matrix) -> Matrix:
    """Measure how far matched points are from each other's epipolar lines.

    Args:
        points0: (N, 2) pixels of image 0.
        points1: (N, 2) pixels of image 1.
        fundamental: (3, 3), with pixel1 @ fundamental @ pixel0 = 0 for a true match.

    Returns:
        (N,) mean of the two distances, in pixels; 0 for a point at an epipole, which has no line.

    Raises:
        ValueError: The two have different lengths.

    Source: Hartley and Zisserman, Multiple View Geometry, 2nd ed., chapter 11.
    """
    product, square0, square1 = _epipolar_parts(points0, points1, fundamental)
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = product * (1 / np.sqrt(square0) + 1 / np.sqrt(square1)) / 2
    return np.where((square0 == 0) | (square1 == 0), 0.0, distances)


def sampson_distance(points0: ArrayLike, points1: ArrayLike, fundamental: Matrix) -> Matrix:
    """Measure how far a match must move, in both images together, to fit the epipolar geometry.

    Arguments, errors and source are those of `symmetric_distance`.

    Returns:
        (N,) pixels, right to first order.
    """
    product, square0, square1 = _epipolar_parts(points0, points1, fundamental)
    total = square0 + square1
    return np.where(total == 0, 0.0, product / np.sqrt(np.where(total == 0, 1.0, total)))


def rotation_error_degrees(estimated: Matrix, truth: Matrix) -> float:
    """Measure the turn between two rotations, in [0, 180]; 180 for a non-finite estimate."""
    if not np.isfinite(estimated).all():
        return 180.0
    turn = estimated @ truth.T
    axis = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    return float(np.degrees(np.arctan2(np.linalg.norm(axis), np.trace(turn) - 1)))


def translation_error_degrees(estimated: Matrix, truth: Matrix) -> float:
    """Measure the angle between two directions of translation, in [0, 180]: the strict measure.

    Returns:
        Degrees; 180 for an estimate that is zero or not finite, NaN for a truth without a baseline.
    """
    length_true, length = float(np.linalg.norm(truth)), float(np.linalg.norm(estimated))
    if length_true == 0:
        return float("nan")
    if length == 0 or not np.isfinite(length):
        return 180.0
    one, other = estimated / length, truth / length_true
    return float(np.degrees(np.arctan2(np.linalg.norm(np.cross(one, other)), one @ other)))


def baseline_error_degrees(estimated: Matrix, truth: Matrix) -> float:
    """Measure the angle between two baselines as unsigned lines, in [0, 90]: the common measure.

    Returns:
        Degrees; 90 for an estimate that is zero or not finite, NaN for a truth without a baseline.
    """
    usable = np.isfinite(estimated).all() and np.any(estimated)
    angle = translation_error_degrees(estimated, truth)
    return min(angle, 180.0 - angle) if usable else angle / 2


def poses_from_essential(essential: Matrix) -> list[Pose]:
    """List the four poses of an essential matrix, rotations proper, translations of length 1.

    Source: Hartley and Zisserman, Multiple View Geometry, 2nd ed., result 9.19.
    """
    left, _, right = np.linalg.svd(essential)
    left, right = left * np.linalg.det(left), right * np.linalg.det(right)
    rotations = [left @ turn @ right for turn in (_HALF_TURN, _HALF_TURN.T)]
    return [Pose(rotation, sign * left[:, 2]) for rotation in rotations for sign in (1.0, -1.0)]


def decompose_homography(
    pixels1_from_pixels0: Matrix, intrinsics0: Matrix, intrinsics1: Matrix
) -> list[PlaneMotion]:
    """List the motions of a camera before a plane that give a homography.

    Both cameras are taken to be on the same side of the plane, which settles the homography's sign.

    Returns:
        Four motions; one with translation 0 and normal 0 where the camera only turned.

    Source: Ma, Soatto, Kosecka, Sastry, An Invitation to 3-D Vision, section 5.3.3.
    """
    map_of_rays = np.linalg.inv(intrinsics1) @ pixels1_from_pixels0 @ intrinsics0
    map_of_rays = map_of_rays * np.sign(np.linalg.det(map_of_rays))
    _, values, right = np.linalg.svd(map_of_rays)
    map_of_rays, values = map_of_rays / values[1], values / values[1]
    if values[0] - values[2] < 1e-9:
        return [PlaneMotion(nearest_rotation(map_of_rays), np.zeros(3), np.zeros(3))]
    high, low = np.sqrt(max(values[0] ** 2 - 1, 0.0)), np.sqrt(max(1 - values[2] ** 2, 0.0))
    spread = np.sqrt(values[0] ** 2 - values[2] ** 2)
    motions = []
    for sign in (1.0, -1.0):
        inside = (
            low * right[0] + sign * high * right[2]
        ) / spread  # keeps its length, as right[1] does
        normal = np.cross(right[1], inside)
        frame0 = np.stack([right[1], inside, normal], axis=1)
        first, second = map_of_rays @ right[1], map_of_rays @ inside
        frame1 = np.stack([first, second, np.cross(first, second)], axis=1)
        rotation = nearest_rotation(frame1 @ frame0.T)
        translation = (map_of_rays - rotation) @ normal
        motions += [
            PlaneMotion(rotation, side * translation, side * normal) for side in (1.0, -1.0)
        ]
    return motions


def nearest_rotation(matrix: Matrix) -> Matrix:
    """Return the rotation, determinant +1, nearest to a (3, 3) matrix in the Frobenius norm."""
    left, _, right = np.linalg.svd(matrix)
    return np.asarray(
        left @ np.diag([1.0, 1.0, np.linalg.det(left) * np.linalg.det(right)]) @ right
    )


def triangulate(rays0: Matrix, rays1: Matrix, pose: Pose) -> Matrix:
    """Place the points that two cameras see.

    Args:
        rays0: (N, 3) directions of length 1 in camera 0, from `rays`.
        rays1: (N, 3) directions of length 1 in camera 1.
        pose: camera1_from_camera0.

    Returns:
        (N, 3) in the frame of camera 0 and the unit of the translation; NaN where the two rays do
        not pass each other in front of both cameras, parallel ones included.

    Source: Lee and Civera, Triangulation: why optimize?, BMVC 2019: the midpoint weighted by
    inverse depth.
    """
    turned0 = rays0 @ pose.rotation.T
    across = np.linalg.norm(np.cross(turned0, rays1), axis=1)
    reach0 = np.linalg.norm(np.cross(rays1, pose.translation), axis=1)
    reach1 = np.linalg.norm(np.cross(turned0, pose.translation), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):  # parallel rays end as NaN
        along0, along1 = (reach0 / across)[:, None] * turned0, (reach1 / across)[:, None] * rays1
        weight = (reach1 / (reach0 + reach1))[:, None]
        gaps = [
            np.linalg.norm(pose.translation + sign0 * along0 - sign1 * along1, axis=1)
            for sign0, sign1 in ((1, 1), (-1, 1), (1, -1), (-1, -1))
        ]
        in_front = gaps[0] < np.minimum.reduce(gaps[1:])
        points1 = weight * (pose.translation + along0) + (1 - weight) * along1
        return np.where(in_front[:, None], (points1 - pose.translation) @ pose.rotation, np.nan)


def covered_area(points: ArrayLike, size: tuple[int, int]) -> float:
    """Measure the share of an image inside the convex hull of some points, in [0, 1].

    Args:
        points: (N, 2) pixels.
        size: Height and width of the image.

    Returns:
        0 for fewer than three points or points on one line.
    """
    array = np.asarray(points, np.float64)
    if len(array) < 3:
        return 0.0
    try:
        area = float(ConvexHull(array).volume)
    except QhullError:
        return 0.0
    return min(area / (size[0] * size[1]), 1.0)
