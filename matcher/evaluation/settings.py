"""What decides an evaluation's figures apart from the methods and the pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from matcher.geometry.fitting import Estimator

PRECISION_PIXELS = (1.0, 3.0, 5.0)
EPIPOLAR_LIMITS = (1e-4, 5e-4)  # LoFTR's outdoors, SuperGlue's; focal lengths are 1
HOMOGRAPHY_PIXELS = (1.0, 3.0, 5.0, 10.0)
POSE_DEGREES = (1.0, 3.0, 5.0, 10.0, 20.0)
LABELLED_PIXELS = tuple(map(float, range(20)))  # WxBS's, which count a distance at the limit too
PLACED_LIMITS = (3.0, 3.0, 1.05)  # of a template that counts as found: pixels, degrees, factor

FOUND, REFINED, GROWN = "", " + refine", " + grow"  # stages, as they end the label of a row

Refine: TypeAlias = Literal["off", "on", "both"]
Solver: TypeAlias = Literal["judged", "opencv", "poselib"]

_CHOICES = {
    "measure": ("original", "resized"),
    "refine": ("off", "on", "both"),
    "solver": ("judged", "opencv", "poselib"),
    "pose_error": ("common", "strict"),
}


def method_of(row: str) -> str:
    """Take the stage off the label of a row."""
    return row.removesuffix(REFINED).removesuffix(GROWN)


@dataclass(frozen=True)
class Settings:
    """The rules of an evaluation; they are stored with its results.

    Attributes:
        long_side: Images are matched with this long side; None leaves it to the next two. Matches
            go back to the pixels of the files.
        short_side: Likewise the short side; one of the three at most.
        exact_size: Likewise (width, height), whatever the shape of the image.
        enlarge: Whether images smaller than that are enlarged too, as most published protocols do.
        multiple_of: Both sides are lowered to a multiple of it, each by itself.
        max_matches: Only the best are scored; None for all.
        measure: Where errors and thresholds are pixels: of the "original" files, or of the
            "resized" images, which some published protocols do and which flatters.
        refine: Score the matches as found ("off"), after `matcher.refine` ("on"), or both.
        grow: Score them after `matcher.grow` too.
        solver: "judged" fits with `matcher.geometry.fitting`, which refuses what the matches do not
            determine; "opencv" (its plain RANSAC) and "poselib" take whatever the solver returns,
            as published tables do.
        estimator: Of homographies and poses; its threshold is replaced by the next two, its seed
            counts up over the repeats; its backend counts for the judged solver only.
        homography_thresholds: Pixels. The first gives the reported figures, the others a sweep.
        pose_thresholds: Likewise for poses, and for the fundamental matrices of labelled points.
        pose_error: The larger of the angles of rotation and of translation, whose sign counts with
            "strict" only: published tables leave it out.
        repeats: Robust fits of every pair, each with its own seed; all their errors are pooled.
        failure_pixels: Corner error of a pair without a homography.
        failure_degrees: Pose error of a pair without a pose.
    """

    long_side: int | None = 640
    short_side: int | None = None
    exact_size: tuple[int, int] | None = None
    enlarge: bool = False
    multiple_of: int = 1
    max_matches: int | None = None
    measure: Literal["original", "resized"] = "original"
    refine: Refine = "off"
    grow: bool = False
    solver: Solver = "judged"
    estimator: Estimator = field(default_factory=Estimator)
    homography_thresholds: tuple[float, ...] = (3.0,)
    pose_thresholds: tuple[float, ...] = (1.0,)
    pose_error: Literal["common", "strict"] = "common"
    repeats: int = 1
    failure_pixels: float = np.inf
    failure_degrees: float = 180.0

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(allowed)}, not {value!r}")
        self._check_size()
        self._check_numbers()
        largest = {"failure_pixels": HOMOGRAPHY_PIXELS[-1], "failure_degrees": POSE_DEGREES[-1]}
        for name, least in largest.items():
            if not getattr(self, name) >= least:
                raise ValueError(f"{name} must be {least:g} at least, not {getattr(self, name)}")

    @property
    def stages(self) -> tuple[str, ...]:
        """What is scored of a method, as it is added to the label of its row."""
        refined = {"off": (FOUND,), "on": (REFINED,), "both": (FOUND, REFINED)}[self.refine]
        return (*refined, GROWN) if self.grow else refined

    def working_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Tell the height and width at which an image of (height, width) is matched."""
        if self.exact_size is not None:
            return self.exact_size[1], self.exact_size[0]
        wanted, side = (
            (self.long_side, max(size)) if self.short_side is None else (self.short_side, min(size))
        )
        scale = 1.0 if wanted is None else wanted / side
        scale = scale if self.enlarge else min(scale, 1.0)
        height, width = (max(1, round(scale * length)) for length in size)
        unit = self.multiple_of
        return max(unit, height // unit * unit), max(unit, width // unit * unit)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Make settings from a table of a JSON or TOML file.

        Lists become tuples; no failure value (JSON) is an infinite one; a long side of 0, or one
        left out where another size is given (TOML), is None.

        Raises:
            TypeError: An unknown name.
            ValueError: A value that makes no sense.
        """
        plain = {key: _tuples(value) for key, value in values.items() if key != "estimator"}
        for name in ("failure_pixels", "failure_degrees"):
            if name in plain and plain[name] is None:
                plain[name] = np.inf
        if plain.get("long_side") == 0 or ({"short_side", "exact_size"} & plain.keys()):
            plain["long_side"] = plain.get("long_side") or None
        return cls(**plain, estimator=Estimator(**values.get("estimator", {})))

    def _check_size(self) -> None:
        sides = {"long_side": self.long_side, "short_side": self.short_side}
        given = [name for name in (*sides, "exact_size") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other")
        lengths = {**sides, "exact_size": min(self.exact_size) if self.exact_size else None}
        for name, length in lengths.items():
            if length is not None and length < 16:
                raise ValueError(f"{name} must be at least 16 pixels, not {length}")

    def _check_numbers(self) -> None:
        for name in ("homography_thresholds", "pose_thresholds"):
            values = getattr(self, name)
            if not values or min(values) <= 0:
                raise ValueError(f"{name} must be positive pixels, one or more, not {values}")
        for name in ("multiple_of", "max_matches", "repeats"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
