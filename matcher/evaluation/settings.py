"""What decides an evaluation's figures apart from the methods and the pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from matcher.geometry.fitting import Estimator

PRECISION_PIXELS = (1.0, 3.0, 5.0)
HOMOGRAPHY_PIXELS = (1.0, 3.0, 5.0)
POSE_DEGREES = (1.0, 3.0, 5.0, 10.0, 20.0)

Refine: TypeAlias = Literal["off", "on", "both"]


@dataclass(frozen=True)
class Settings:
    """The rules of an evaluation; they are stored with its results.

    Attributes:
        long_side: Larger images are shrunk to this long side before they are matched; None leaves
            all as they are. Matches go back to the pixels of the files.
        measure: Where errors and thresholds are pixels: of the "original" files, or of the
            "resized" images, which some published protocols do and which flatters.
        refine: Score the matches as found ("off"), after `matcher.refine` ("on"), or both.
        estimator: Of homographies and poses; its threshold is replaced by the next two, its seed
            counts up over the repeats.
        homography_thresholds: Pixels. The first gives the reported figures, the others a sweep.
        pose_thresholds: Likewise for poses.
        pose_error: The larger of the angles of rotation and of translation, whose sign counts with
            "strict" only: published tables leave it out.
        repeats: Robust fits of every pair, each with its own seed; all their errors are pooled.
        failure_pixels: Corner error of a pair without a homography.
        failure_degrees: Pose error of a pair without a pose.
    """

    long_side: int | None = 640
    measure: Literal["original", "resized"] = "original"
    refine: Refine = "off"
    estimator: Estimator = field(default_factory=Estimator)
    homography_thresholds: tuple[float, ...] = (3.0,)
    pose_thresholds: tuple[float, ...] = (1.0,)
    pose_error: Literal["common", "strict"] = "common"
    repeats: int = 1
    failure_pixels: float = np.inf
    failure_degrees: float = 180.0

    def __post_init__(self) -> None:
        choices = {
            "measure": ("original", "resized"),
            "refine": ("off", "on", "both"),
            "pose_error": ("common", "strict"),
        }
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(allowed)}, not {value!r}")
        self._check_pixels()
        largest = {"failure_pixels": HOMOGRAPHY_PIXELS[-1], "failure_degrees": POSE_DEGREES[-1]}
        for name, least in largest.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be {least:g} at least, not {getattr(self, name)}")

    def _check_pixels(self) -> None:
        if self.long_side is not None and self.long_side < 16:
            raise ValueError(f"long_side must be at least 16 pixels, not {self.long_side}")
        for name in ("homography_thresholds", "pose_thresholds"):
            values = getattr(self, name)
            if not values or min(values) <= 0:
                raise ValueError(f"{name} must be positive pixels, one or more, not {values}")
        if self.repeats < 1:
            raise ValueError(f"repeats must be at least 1, not {self.repeats}")
