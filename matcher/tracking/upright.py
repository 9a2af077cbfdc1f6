"""How a camera is rolled, by what an inertial sensor says of its rotation."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from matcher.types import Matrix


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
