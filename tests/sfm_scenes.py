"""Scenes with known points and cameras, for the tests of structure from motion."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from matcher.geometry.two_view import Pose
from matcher.sfm.cameras import Camera
from matcher.sfm.geometry import verify_pair
from matcher.sfm.tiepoints import TiePoints

SIZE = 480, 640  # height, width
INTRINSICS = np.array([[500.0, 0, 319.5], [0, 500.0, 239.5], [0, 0, 1]])
CAMERA = Camera.pinhole(SIZE, INTRINSICS)


def poses(count):
    """Cameras on an arc round a cloud of points at distance 6, looking at it."""
    found = {}
    for number, angle in enumerate(np.linspace(-0.5, 0.5, count)):
        turn = np.array(
            [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
        )
        centre = -6 * turn[2] + [0, 0.2 * (number % 3), 0]
        found[f"view{number}.png"] = Pose(turn, -turn @ centre)
    return found


def cloud(count, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, 3)) * [1.8, 1.3, 1.0]


def project(pose, points):
    rays = points @ pose.rotation.T + pose.translation
    pixels = rays @ INTRINSICS.T
    return (pixels[:, :2] / pixels[:, 2:]).astype(np.float32)


def tie_points(count=4, points=150, noise=0.2, verified=True, names=None, known=True):
    """Views of a cloud in which every image sees every point; keypoints in another order in each."""
    generator = np.random.default_rng(1)
    views, world = poses(count), cloud(points)
    names = list(views) if names is None else names
    orders = [generator.permutation(points) for _ in names]
    keypoints = {
        name: project(pose, world)[order] + generator.normal(0, noise, (points, 2))
        for name, pose, order in zip(names, views.values(), orders, strict=True)
    }
    ranks = {name: np.argsort(order) for name, order in zip(names, orders, strict=True)}
    pairs = {
        (one, other): np.stack([ranks[one], ranks[other]], axis=1)
        for one, other in combinations(names, 2)
    }
    camera = CAMERA if known else Camera.guessed(SIZE)
    geometries = {
        pair: verify_pair(
            (keypoints[pair[0]][rows[:, 0]], keypoints[pair[1]][rows[:, 1]]), (camera, camera)
        )
        for pair, rows in pairs.items()
        if verified
    }
    return TiePoints(tuple(names), (camera,), (0,) * len(names), keypoints, pairs, geometries)
