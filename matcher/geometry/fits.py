"""What a robust fit starts from and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from matcher.geometry.conditioning import Bools, Conditioning
from matcher.geometry.solvers import Estimator
from matcher.types import Matrix

Model = TypeVar("Model")

_FARTHEST = 1e7  # pixels: no image is that large


class Reason(StrEnum):
    """What became of a fit."""

    OK = "ok"
    TOO_FEW = "too few"  # usable matches than a minimal sample needs
    DEGENERATE = "degenerate"  # points on a line or in one place do not determine the model
    FEW_INLIERS = "few inliers"  # no model that more than chance agrees with
    PLANAR = "planar"  # a homography explains the inliers: the fundamental matrix is one of many
    ROTATION_ONLY = "rotation only"  # the camera turned; the translation is too short to be seen
    NO_BASELINE = "no baseline"  # the images show no motion at all


@dataclass(frozen=True, eq=False)
class Fit(Generic[Model]):
    """A robust fit, whatever became of it.

    Attributes:
        model: (3, 3) matrix or `Pose`; None where nothing was found. With `PLANAR` it is one of
            many; with `ROTATION_ONLY` and `NO_BASELINE` the rotation holds and the translation is
            zero.
        inliers: (N,) bool, one for each match given: its error is within the threshold.
        reason: Why there is a model or none.
        estimator: How it was fitted, with the threshold that was used and the seed.
        dropped: Matches left out because a coordinate was not finite or beyond any image.
        conditioning: What a pose rests on; None for other models.
    """

    model: Model | None
    inliers: Bools
    reason: Reason
    estimator: Estimator
    dropped: int = 0
    conditioning: Conditioning | None = None

    @property
    def success(self) -> bool:
        """Whether the matches determine the model in full."""
        return self.reason is Reason.OK

    @property
    def seed(self) -> int:
        """The seed of the sampling."""
        return self.estimator.seed


@dataclass(frozen=True, eq=False)
class Sample:
    """The usable matches of a fit, as solvers want them, and the way back to the rows given."""

    points0: Matrix
    points1: Matrix
    rows: NDArray[np.int64]
    total: int
    estimator: Estimator

    @classmethod
    def of(
        cls, points0: ArrayLike, points1: ArrayLike, estimator: Estimator, threshold: float
    ) -> Sample:
        """Check the arrays and keep the rows that are finite and inside some image.

        Args:
            points0: (N, 2) pixels of image 0.
            points1: (N, 2) pixels of image 1.
            estimator: How to fit.
            threshold: The one to use where the estimator leaves it open.

        Raises:
            ValueError: An array that is not (N, 2), or two different lengths.
        """
        arrays = [_pixels("points0", points0), _pixels("points1", points1)]
        if len(arrays[0]) != len(arrays[1]):
            raise ValueError(f"points0 has {len(arrays[0])} rows, points1 has {len(arrays[1])}")
        both = np.concatenate(arrays, axis=1)
        rows = np.flatnonzero((np.abs(both) <= _FARTHEST).all(axis=1))  # NaN is not below anything
        usable = [np.ascontiguousarray(array[rows]) for array in arrays]
        used = replace(estimator, threshold=estimator.threshold or threshold)
        return cls(usable[0], usable[1], rows, len(both), used)

    @property
    def threshold(self) -> float:
        """Largest error of an inlier in pixels."""
        return self.estimator.threshold or 0.0

    def lack(self, minimum: int) -> Reason | None:
        """Name what the matches lack for a minimal sample."""
        if len(self.rows) < minimum:
            return Reason.TOO_FEW
        distinct = min(len(np.unique(points, axis=0)) for points in (self.points0, self.points1))
        return Reason.DEGENERATE if distinct < minimum else None

    def select(self, rows: Bools) -> tuple[Matrix, Matrix]:
        """Take some of the usable matches."""
        return self.points0[rows], self.points1[rows]

    def answer(
        self,
        reason: Reason,
        model: Model | None = None,
        inliers: Bools | None = None,
        conditioning: Conditioning | None = None,
    ) -> Fit[Model]:
        """Make the result, with the inliers among the usable matches moved to the rows given."""
        mask = np.zeros(self.total, bool)
        if inliers is not None:
            mask[self.rows] = inliers
        dropped = self.total - len(self.rows)
        return Fit(model, mask, reason, self.estimator, dropped, conditioning)


def _pixels(name: str, points: ArrayLike) -> Matrix:
    array = np.asarray(points, np.float64)
    if array.size == 0 and array.ndim <= 1:
        return np.zeros((0, 2))
    if array.ndim != 2 or array.shape[1] != 2:
        raise ValueError(f"{name} must be (N, 2), not {array.shape}")
    return array
