"""Follow the keypoints of a camera over its frames, against anchors rather than from frame to frame.

Every frame is matched with an anchor, an earlier frame that is kept: errors do not add up from
frame to frame, and a frame without a picture costs nothing but itself. When too little of the
anchor is still seen, the frame at hand becomes the next one, and its keypoints keep the identities
that they have. What was lost is looked for among the anchors that are kept, a fixed number, so that
memory does not grow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from matcher import images, matching
from matcher.geometry.cameras import check_intrinsics, undistort
from matcher.geometry.fits import Fit, Reason
from matcher.geometry.fitting import fit_homography, fit_pose
from matcher.tracking.budget import LEVELS, Budget, Level
from matcher.tracking.following import follow
from matcher.tracking.upright import check_rotation, roll_degrees
from matcher.tracking.views import Ids, View, alike, look
from matcher.types import Mask, Matcher, Matches, Matrix, Points

_TRUST = 1.25  # how much likelier the latest anchor is than its likeness says


class Health(StrEnum):
    """What became of a frame."""

    STARTED = "started"  # a new anchor that is not tied to any earlier one
    TRACKED = "tracked"
    RECOVERED = "recovered"  # tracked again after frames that were lost
    LOST = "lost"  # seen enough, but no anchor agrees
    BLIND = "blind"  # too few keypoints: dark, blank, covered


@dataclass(frozen=True)
class Options:
    """How to follow.

    Attributes:
        budget_ms: Of a frame; resolution and keypoints adapt to it. None keeps the first level.
        level: Where to begin, a number in `matcher.tracking.budget.LEVELS`.
        anchors: How many are kept.
        min_inliers: Matches that must agree for a frame to be tracked.
        renew: A new anchor is made where fewer than this share is left of the most matches that
            the anchor had with a frame.
        patience: Lost frames after which the tracker starts afresh.
    """

    budget_ms: float | None = None
    level: int = 2
    anchors: int = 8
    min_inliers: int = 20
    renew: float = 0.5
    patience: int = 5

    def __post_init__(self) -> None:
        for name in ("anchors", "min_inliers", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.renew <= 1:
            raise ValueError(f"renew must be in [0, 1], not {self.renew}")


@dataclass(frozen=True, eq=False)
class Camera:
    """What is known of the camera.

    Attributes:
        intrinsics: (3, 3), for the pixels of the frames.
        distortion: k1, k2, p1, p2, k3 in OpenCV's order; those left out are 0.
    """

    intrinsics: Matrix
    distortion: Sequence[float] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "intrinsics", check_intrinsics("intrinsics", self.intrinsics))

    def ideal(self, points: Points) -> Matrix:
        """Move (N, 2) pixels to where the lens would show them without distortion."""
        if not any(self.distortion):
            return points.astype(np.float64)
        return undistort(points, self.intrinsics, self.distortion)


@dataclass(frozen=True, eq=False)
class Tracked:
    """One frame.

    Attributes:
        number: Of the frame, from 0.
        health: What became of it.
        points: (N, 2) float32 pixels of the points that are followed in this frame.
        ids: (N,) int64 their identities, each once; a point has the same in all its frames.
        anchor: Number of the frame that it was matched with; its own for a new start, -1 if none.
        matches: From the anchor to this frame, those that agree.
        fit: The homography from the anchor's pixels to this frame's, or with a camera the pose of
            this frame seen from the anchor; None without matches.
        renewed: True where this frame is an anchor from now on.
        level: At what size and with how many keypoints it was looked at.
        seconds: What it took.
    """

    number: int
    health: Health
    points: Points
    ids: Ids
    anchor: int
    matches: Matches
    fit: Fit[Any] | None
    renewed: bool
    level: Level = LEVELS[0]
    seconds: float = 0.0

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, eq=False)
class _Link:
    """A frame tied to an anchor: matches in pixels of both as looked at, and what they agree on."""

    anchor: View
    matches: Matches
    fit: Fit[Any]

    @property
    def inliers(self) -> int:
        return int(self.fit.inliers.sum())


class Tracker:
    """Follows keypoints; call `track` with each frame in turn."""

    def __init__(
        self,
        method: Matcher | str = "superglue",
        options: Options | None = None,
        *,
        camera: Camera | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without anchors.

        Args:
            method: A method whose matches have indices, or its name.
            options: How to follow.
            camera: With it, frames have poses; without, homographies.
            clock: What the budget is measured by, in seconds.
        """
        self.options = options or Options()
        self.camera = camera
        made = matching.create(method) if isinstance(method, str) else method
        self._method = matching.bare(made)  # it has its own turns, and no time to refine
        self._clock = clock
        budget = self.options.budget_ms
        self._budget = Budget(None if budget is None else budget / 1e3, self.options.level)
        self._anchors: deque[View] = deque(maxlen=self.options.anchors)
        self._count = 0
        self._next_id = 0
        self._lost = 0  # frames since one was tied to an anchor
        self._world_from_first: Matrix | None = None

    def track(
        self,
        frame: object,
        *,
        mask: Mask | None = None,
        world_from_camera: ArrayLike | None = None,
    ) -> Tracked:
        """Follow the points into the next frame.

        Args:
            frame: A path, array or tensor; see `matcher.read`.
            mask: (H, W), True where the scene stands still; None for everywhere.
            world_from_camera: (3, 3) rotation from an inertial sensor, in any world that stays: a
                camera that rolls by more than 45 degrees against an anchor is turned back by
                quarter turns before it is matched.

        Raises:
            ValueError: The method's matches have no indices, or the rotation is none.
        """
        start = self._clock()
        level = self._budget.level
        roll = self._roll(world_from_camera)
        turns = round((roll - (self._anchors[-1].roll if self._anchors else 0.0)) / 90)
        view = look(self._method, images.read(frame), mask, level, self._count, turns)
        view.roll = roll - 90 * turns
        link = self._tie(view, start)
        found = self._settle_alone(view) if link is None else self._settle(view, link)
        seconds = self._clock() - start
        self._budget.spent(seconds)
        self._count += 1
        return replace(found, level=level, seconds=seconds)

    def _roll(self, rotation: ArrayLike | None) -> float:
        """Tell the camera's roll against the first frame's, in degrees; 0 where nobody knows."""
        if rotation is None:
            return 0.0
        matrix = check_rotation(rotation)
        if self._world_from_first is None:
            self._world_from_first = matrix
        return roll_degrees(self._world_from_first, matrix)

    def _tie(self, view: View, start: float) -> _Link | None:
        """Match a frame with the likeliest anchor, and with the others where that fails.

        Trying all of them would take longer than following does, so a frame tries only as many as
        its budget has room for.
        """
        if len(view.ids) < self.options.min_inliers:
            return None
        spent = 0.0
        for anchor in self._candidates(view):
            begun = self._clock()
            if spent and not self._budget.allows(begun - start + spent):
                return None
            link = self._match(anchor, view)
            agree = link.inliers >= self.options.min_inliers
            if agree and link.fit.reason is not Reason.DEGENERATE:
                return link
            spent = self._clock() - begun
        return None

    def _candidates(self, view: View) -> list[View]:
        """List anchors, the likeliest first: most often the latest, unless it was lost."""
        likeness: list[float] = [
            alike(anchor.description, view.description) for anchor in self._anchors
        ]
        if likeness and not self._lost:
            likeness[-1] *= _TRUST
        order = np.argsort(likeness, kind="stable")[::-1]
        return [self._anchors[number] for number in order]

    def _match(self, anchor: View, view: View) -> _Link:
        (matches,) = self._method.match([(anchor.description, view.description)])
        if matches.indices is None:
            raise ValueError(
                "a tracker needs a method that matches listed keypoints, such as superglue or sift"
            )
        return _Link(anchor, matches, self._fit(anchor, view, matches))

    def _fit(self, anchor: View, view: View, matches: Matches) -> Fit[Any]:
        """Fit what matches should agree with, in the pixels of the frames."""
        points0, points1 = anchor.in_frame(matches.points0), view.in_frame(matches.points1)
        if self.camera is None:
            return fit_homography(points0, points1)
        ideal0, ideal1 = self.camera.ideal(points0), self.camera.ideal(points1)
        return fit_pose(ideal0, ideal1, self.camera.intrinsics, self.camera.intrinsics)

    def _settle(self, view: View, link: _Link) -> Tracked:
        """Follow the anchor's points, and decide whether the frame becomes an anchor."""
        anchor, kept = link.anchor, link.matches.select(link.fit.inliers)
        rows0, rows1 = _rows(kept)
        others, other_ids = anchor.without(rows0)
        images01 = anchor.description.image, view.description.image
        kept, sure, places = follow(kept, others, *images01, view.description.mask)
        ids = np.concatenate([anchor.ids[rows0], other_ids[sure]])
        joined = Matches(
            np.concatenate([kept.points0, others[sure]]),
            np.concatenate([kept.points1, places[sure]]),
            np.concatenate([kept.scores, np.zeros(int(sure.sum()), np.float32)]),
        )
        fit = self._fit(anchor, view, joined)
        agree = fit.inliers if fit.model is not None else np.ones(len(ids), np.bool_)
        anchor.most = max(anchor.most, len(kept))
        renewed = len(kept) < self.options.renew * anchor.most
        self._anchors.remove(anchor)
        self._anchors.append(anchor)
        if renewed:
            view.ids[rows1] = anchor.ids[rows0]
            followed = agree[len(kept) :]
            view.adopt(places[sure][followed], other_ids[sure][followed])
            self._keep(view)
        health = Health.RECOVERED if self._lost else Health.TRACKED
        self._lost = 0
        matches = replace(
            joined,
            points0=anchor.in_frame(joined.points0),
            points1=view.in_frame(joined.points1),
        ).select(agree)
        return Tracked(
            view.number, health, matches.points1, ids[agree], anchor.number, matches, fit, renewed
        )

    def _settle_alone(self, view: View) -> Tracked:
        """Start afresh where there is nothing to hold on to, or be lost for a while."""
        nobody, nothing = np.zeros(0, np.int64), Matches.empty()
        enough = len(view.ids) >= self.options.min_inliers
        self._lost += 1
        if not enough or (self._anchors and self._lost <= self.options.patience):
            health = Health.LOST if enough else Health.BLIND
            return Tracked(view.number, health, nothing.points1, nobody, -1, nothing, None, False)
        self._lost = 0
        self._keep(view)
        points = view.in_frame(view.description.points)
        number = view.number
        return Tracked(number, Health.STARTED, points, view.ids, number, nothing, None, True)

    def _keep(self, view: View) -> None:
        """Make a frame an anchor; its keypoints that have no identity yet get new ones."""
        new = np.flatnonzero(view.ids < 0)
        view.ids[new] = self._next_id + np.arange(len(new))
        self._next_id += len(new)
        self._anchors.append(view)


def _rows(matches: Matches) -> tuple[Ids, Ids]:
    """Tell which keypoints of the anchor and of the frame matches join."""
    if matches.indices is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return matches.indices[:, 0], matches.indices[:, 1]
