"""A frame as the tracker looks at it: described, its points with their identities."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from matcher import images
from matcher.quarter_turns import turned, turned_back
from matcher.tracking.budget import Level
from matcher.types import Description, Image, Mask, Matcher, Points

Ids = NDArray[np.int64]

_FEW = 256  # keypoints that tell whether two views are alike: the best of each
_SAME = 1.5  # pixels: a keypoint that near to a followed point is that point


@dataclass(eq=False)
class View:
    """One frame. Its points are pixels of what was looked at: the frame shrunk, perhaps turned.

    Attributes:
        number: Of the frame.
        description: Of what was looked at.
        size: Height and width of the frame.
        turns: Quarter turns, clockwise, that what was looked at was turned by.
        roll: Degrees by which what was looked at is still rolled against the first frame.
        ids: (N,) identities of the keypoints; -1 where they have none.
        others: (K, 2) points that are followed and are no keypoints.
        other_ids: (K,) their identities.
        most: Matches of the frame that shared most with it.
    """

    number: int
    description: Description
    size: tuple[int, int]
    turns: int
    roll: float
    ids: Ids
    others: Points = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    other_ids: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    most: int = 0

    def in_frame(self, points: Points) -> Points:
        """Move (N, 2) points to the frame's own pixels."""
        height, width = self.description.size
        seen = (width, height) if self.turns % 2 else (height, width)
        return images.resize_points(turned_back(points, -self.turns, seen), seen, self.size)

    def without(self, rows: NDArray[np.int64]) -> tuple[Points, Ids]:
        """List all points but some keypoints: (M, 2) and their (M,) identities."""
        left = np.setdiff1d(np.arange(len(self.ids)), rows)
        points = np.concatenate([self.description.points[left], self.others])
        return points, np.concatenate([self.ids[left], self.other_ids])

    def adopt(self, points: Points, ids: Ids) -> None:
        """Take over points that were followed: as keypoints where one is there, else as others."""
        free = np.flatnonzero(self.ids < 0)
        taken = np.zeros(len(points), np.bool_)
        if len(free) and len(points):
            gaps = np.linalg.norm(points[:, None] - self.description.points[free][None], axis=2)
            nearest = gaps.argmin(axis=1)
            near = np.flatnonzero(gaps.min(axis=1) <= _SAME)
            _, first = np.unique(nearest[near], return_index=True)
            self.ids[free[nearest[near[first]]]] = ids[near[first]]
            taken[near[first]] = True
        room = len(self.ids)  # no more of them than keypoints, whatever was followed
        self.others, self.other_ids = points[~taken][:room], ids[~taken][:room]


def look(
    method: Matcher, image: Image, mask: Mask | None, level: Level, number: int, turns: int
) -> View:
    """Shrink a frame, turn it clockwise by quarter turns, and describe it.

    Args:
        method: Describes.
        image: (H, W) or (H, W, 3).
        mask: (H, W), True where points may lie; None for everywhere.
        level: How large, and how many keypoints.
        number: Of the frame.
        turns: Quarter turns.
    """
    size = image.shape[0], image.shape[1]
    seen_size = images.fit_long_side(size, level.long_side)
    seen = turned(images.resize(image, seen_size), -turns)
    allowed = None if mask is None else turned(images.resize_mask(mask, seen_size), -turns)
    (described,) = method.describe([seen], [allowed])
    described = _best(described, level.keypoints)
    return View(number, described, size, turns % 4, 0.0, np.full(len(described), -1, np.int64))


def alike(description0: Description, description1: Description) -> int:
    """Count keypoints whose descriptors are each other's nearest.

    It takes a millisecond, and ranks views well enough to tell which one is worth matching.
    """
    if not (len(description0) and len(description1)):
        return 0
    similarity = _directions(description0) @ _directions(description1).T  # (N0, N1)
    nearest0, nearest1 = similarity.argmax(axis=1), similarity.argmax(axis=0)
    return int((nearest1[nearest0] == np.arange(len(nearest0))).sum())


def _directions(description: Description) -> NDArray[np.float32]:
    """Normalise the descriptors of the best keypoints, less what all of them share."""
    few = description.descriptors[:_FEW].astype(np.float32)
    few = few - few.mean(axis=0)
    return np.asarray(few / np.linalg.norm(few, axis=1, keepdims=True).clip(1e-6), np.float32)


def _best(description: Description, count: int) -> Description:
    """Keep the first keypoints: front ends list the best first."""
    if len(description) <= count:
        return description
    scales, angles = description.scales, description.angles
    return replace(
        description,
        points=description.points[:count],
        scores=description.scores[:count],
        descriptors=description.descriptors[:count],
        scales=None if scales is None else scales[:count],
        angles=None if angles is None else angles[:count],
    )
