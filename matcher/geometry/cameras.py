"""One camera and its pixels: resizes, camera matrices, distortion, rays.

Sizes are (height, width) in pixels. Camera matrices count pixels as all of the package does, from
the centre of the top-left pixel.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.types import Matrix


def homogeneous(points: ArrayLike) -> Matrix:
    """Append a 1 to each of (N, 2) points: (N, 3) float64."""
    array = np.asarray(points, np.float64)
    return np.concatenate([array, np.ones((len(array), 1))], axis=1)


def transfer(pixels1_from_pixels0: NDArray[np.floating], points0: ArrayLike) -> Matrix:
    """Map points by a homography.

    Args:
        pixels1_from_pixels0: (3, 3), of any scale.
        points0: (N, 2) pixels.

    Returns:
        (N, 2) float64 pixels; not finite for a point that the map sends to infinity.
    """
    mapped = homogeneous(points0) @ pixels1_from_pixels0.T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(mapped[:, :2] / mapped[:, 2:])


def resize_homography(from_size: tuple[int, int], to_size: tuple[int, int]) -> Matrix:
    """Make the map from an image's pixels to those of the same image resized.

    A homography found between resized images maps the originals as
    `inv(resized1_from_pixels1) @ found @ resized0_from_pixels0`.

    Args:
        from_size: Height and width of the image.
        to_size: Height and width after the resize.

    Returns:
        (3, 3), x * s + (s - 1) / 2 on each axis: pixel edges, not centres, stay at the border.
    """
    y, x = to_size[0] / from_size[0], to_size[1] / from_size[1]
    return np.array([[x, 0.0, (x - 1) / 2], [0.0, y, (y - 1) / 2], [0.0, 0.0, 1.0]])


def check_intrinsics(name: str, intrinsics: object, size: tuple[int, int] | None = None) -> Matrix:
    """Check a camera matrix and convert it to float64.

    Args:
        name: The argument's name, for messages.
        intrinsics: (3, 3), focal lengths positive, last row 0 0 1.
        size: Height and width of the image that it belongs to. A principal point outside the middle
            half of the image gives a `UserWarning`: the matrix may be that of another resolution.

    Raises:
        ValueError: It is not a camera matrix.
    """
    matrix = np.asarray(np.nan if intrinsics is None else intrinsics, np.float64)
    is_camera = matrix.shape == (3, 3) and bool(np.isfinite(matrix).all())
    if not is_camera or min(matrix[0, 0], matrix[1, 1]) <= 0 or matrix[2].tolist() != [0, 0, 1]:
        raise ValueError(
            f"{name} must be a camera matrix [[fx, s, cx], [0, fy, cy], [0, 0, 1]], not "
            f"{matrix.tolist()}; where it is unknown, guess_intrinsics(size) makes a usual one"
        )
    if size is not None:
        share = (matrix[:2, 2] + 0.5) / (size[1], size[0])
        if np.abs(share - 0.5).max() > 0.25:
            warnings.warn(
                f"{name} has its principal point at ({matrix[0, 2]:g}, {matrix[1, 2]:g}), far from "
                f"the centre of {size[1]} x {size[0]} pixels: is it that of another resolution?",
                stacklevel=2,
            )
    return matrix


def scale_intrinsics(
    intrinsics: Matrix, from_size: tuple[int, int], to_size: tuple[int, int]
) -> Matrix:
    """Convert a camera matrix to a resized image.

    Args:
        intrinsics: (3, 3) of the image of `from_size`; see `check_intrinsics` for its warning.
        from_size: Height and width that it was calibrated for.
        to_size: Height and width of the resized image.

    Returns:
        (3, 3); a principal point c becomes (c + 0.5) * s - 0.5.

    Raises:
        ValueError: It is not a camera matrix.
    """
    matrix = check_intrinsics("intrinsics", intrinsics, from_size)
    return resize_homography(from_size, to_size) @ matrix


def guess_intrinsics(size: tuple[int, int]) -> Matrix:
    """Guess a camera matrix: focal length 1.2 times the longer side (COLMAP's guess), centred.

    Args:
        size: Height and width of the image.
    """
    focal = 1.2 * max(size)
    return np.array([[focal, 0, (size[1] - 1) / 2], [0, focal, (size[0] - 1) / 2], [0, 0, 1.0]])


def undistort(points: ArrayLike, intrinsics: Matrix, distortion: Sequence[float]) -> Matrix:
    """Move the points of a distorted image to where the same camera would see them undistorted.

    Args:
        points: (N, 2) pixels.
        intrinsics: (3, 3), of the image as it is and of the ideal one.
        distortion: k1, k2, p1, p2, k3 in OpenCV's order; those left out are 0.

    Returns:
        (N, 2) float64 pixels; NaN where the distortion cannot be undone.

    Source: D. C. Brown, Decentering distortion of lenses, 1966; inverted by fixed-point steps.
    """
    k1, k2, p1, p2, k3 = (*distortion, 0.0, 0.0, 0.0, 0.0, 0.0)[:5]
    seen = transfer(np.linalg.inv(intrinsics), points)
    ideal, step = seen, np.full(len(seen), np.inf)
    with np.errstate(all="ignore"):  # points that run away end as NaN
        for _ in range(100):
            x, y = ideal.T
            square = x * x + y * y
            radial = 1 + square * (k1 + square * (k2 + square * k3))
            shift_x = 2 * p1 * x * y + p2 * (square + 2 * x * x)
            shift_y = p1 * (square + 2 * y * y) + 2 * p2 * x * y
            moved = (seen - np.stack([shift_x, shift_y], axis=1)) / radial[:, None]
            step, ideal = np.abs(moved - ideal).max(axis=1), moved
    return transfer(intrinsics, np.where(step[:, None] < 1e-9, ideal, np.nan))


def rays(points: ArrayLike, intrinsics: Matrix) -> Matrix:
    """Turn (N, 2) pixels into (N, 3) directions of length 1 in the camera's frame."""
    directions = homogeneous(points) @ np.linalg.inv(intrinsics).T
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))
