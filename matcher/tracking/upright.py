"""Turn frames by quarter turns, by what an inertial sensor says of the camera's roll."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.types import Matrix, Points

Value = TypeVar("Value", bound=np.generic)


def check_rotation(value: ArrayLike) -> Matrix:
    """Convert a rotation to float64.

    Raises:
        ValueError: It is no (3, 3) rotation.
    """
    matrix = np.asarray(value, np.float64)
    if matrix.shape != (3, 3) or not np.allclose(matrix @ matrix.T, np.eye(3), atol=1e-4):
        raise ValueError(f"world_from_camera must be a (3, 3) rotation, not {matrix.tolist()}")
    return matrix


def roll_degrees(world_from_reference: Matrix, world_from_camera: Matrix) -> float:
    """Tell by how much a camera is rolled against another about its optical axis, clockwise."""
    reference_from_camera = world_from_reference.T @ world_from_camera
    return float(np.degrees(np.arctan2(reference_from_camera[1, 0], reference_from_camera[0, 0])))


def turned(pixels: NDArray[Value], turns: int) -> NDArray[Value]:
    """Turn an image or a mask clockwise, as seen, by quarter turns."""
    return np.ascontiguousarray(np.rot90(pixels, -turns)) if turns % 4 else pixels


def turned_back(points: Points, turns: int, size: tuple[int, int]) -> Points:
    """Move (N, 2) pixels of a turned image to the image as it was, of this height and width."""
    height, width = size
    x, y = points.T
    before = {
        0: (x, y),
        1: (y, height - 1 - x),
        2: (width - 1 - x, height - 1 - y),
        3: (width - 1 - y, x),
    }[turns % 4]
    return np.stack(before, 1).astype(np.float32)
