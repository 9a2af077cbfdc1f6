"""The values that cross module borders: plain numpy arrays in frozen dataclasses.

Pixels: x to the right, y down, and (0, 0) is the **centre** of the top-left pixel. A resize by a factor s
moves x to (x + 0.5) * s - 0.5. Points are float32 (N, 2) arrays of (x, y) in pixels of the image that the user gave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Image: TypeAlias = NDArray[np.float32]  # (H, W) grey in [0, 1], or (H, W, 3) RGB
Mask: TypeAlias = NDArray[np.bool_]  # (H, W), True where matching is allowed
Points: TypeAlias = NDArray[np.float32]  # (N, 2) of (x, y)
Floats: TypeAlias = NDArray[np.float32]
Matrix: TypeAlias = NDArray[np.float64]


def _rows(name: str, value: object, shape: tuple[int, ...], dtype: type) -> NDArray[np.generic]:
    """Convert to a C-ordered array of one dtype and check all but the first size."""
    array: NDArray[np.generic] = np.ascontiguousarray(value, dtype=dtype)
    if array.size == 0 and array.ndim <= 1:
        array = array.reshape(0, *shape)
    if array.shape[1:] != shape or array.ndim != 1 + len(shape):
        wanted = ", ".join(["N", *map(str, shape)])
        raise ValueError(f"{name} must be ({wanted}), not {array.shape}")
    return array


@dataclass(frozen=True, eq=False)
class Matches:
    """Points of two images that show the same spot, best first. Nothing found is an empty `Matches`.

    Attributes:
        points0: (N, 2) float32 pixels of image 0.
        points1: (N, 2) float32 pixels of image 1; row i matches row i of `points0`.
        scores: (N,) float32 in [0, 1], falling.
        indices: (N, 2) int64 rows of the two descriptions' points, -1 for a match that has grown between them; None
            where a method has no such points.
        linear1_from_0: (N, 2, 2) float64 local linear map of each match (how a small step in image 0 looks in
            image 1), or None where the method does not know it.
        refined: (N,) bool, True where correlation has moved the match to its sub-pixel place; None before refinement.
        untrained: True where a network with random weights made the matches; they mean nothing then.
        quarter_turns: Times that image 1 was turned by 90 degrees, counter-clockwise as seen, to be matched.
    """

    points0: Points
    points1: Points
    scores: Floats
    indices: NDArray[np.int64] | None = None
    linear1_from_0: Matrix | None = None
    refined: NDArray[np.bool_] | None = None
    untrained: bool = False
    quarter_turns: int = 0

    def __post_init__(self) -> None:
        rules: dict[str, tuple[tuple[int, ...], type]] = {
            "points0": ((2,), np.float32),
            "points1": ((2,), np.float32),
            "scores": ((), np.float32),
            "indices": ((2,), np.int64),
            "linear1_from_0": ((2, 2), np.float64),
            "refined": ((), np.bool_),
        }
        for name, (shape, dtype) in rules.items():
            value = getattr(self, name)
            if value is None:
                continue
            array = _rows(name, value, shape, dtype)
            object.__setattr__(self, name, array)
            if len(array) != len(self.points0):
                raise ValueError(f"{name} has {len(array)} rows, points0 has {len(self.points0)}")

    def __len__(self) -> int:
        return len(self.points0)

    @classmethod
    def empty(cls, *, untrained: bool = False) -> Matches:
        """Make the result of a pair in which nothing was found."""
        none = np.zeros((0, 2), np.float32)
        return cls(none, none, np.zeros(0, np.float32), untrained=untrained)

    def select(self, rows: NDArray[np.bool_] | NDArray[np.integer] | slice) -> Matches:
        """Keep some rows, in the order asked for: a boolean mask, row numbers or a slice."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        kept: dict[str, Any] = {k: v[rows] for k, v in values.items() if isinstance(v, np.ndarray)}
        return replace(self, **kept)

    def sorted(self) -> Matches:
        """Order by falling score; equal scores keep their order."""
        return self.select(np.argsort(-self.scores, kind="stable"))

    def swapped(self) -> Matches:
        """Exchange the roles of image 0 and image 1."""
        linear = self.linear1_from_0
        return replace(
            self,
            points0=self.points1,
            points1=self.points0,
            indices=None if self.indices is None else self.indices[:, ::-1],
            linear1_from_0=None if linear is None else np.linalg.inv(linear).astype(np.float64),
        )

    def partners(self, count0: int, count1: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List each point's partner in the other image, the form that SuperGlue and LightGlue return.

        Returns:
            (count0,) rows of image 1's points and (count1,) rows of image 0's points; -1 where there is none.

        Raises:
            ValueError: The method has no indexed points.
        """
        if self.indices is None:
            raise ValueError(
                "these matches have no indices: their method matches places, not listed points"
            )
        partners0, partners1 = np.full(count0, -1, np.int64), np.full(count1, -1, np.int64)
        rows0, rows1 = self.indices[(self.indices >= 0).all(axis=1)].T
        partners0[rows0], partners1[rows1] = rows1, rows0
        return partners0, partners1


@dataclass(frozen=True, eq=False)
class Description:
    """What a method computed from one image alone; made once an image, used in every pair.

    Attributes:
        method: The method that made it and can match it.
        image: (H, W) float32 grey image it was made from; correlation refines on it.
        mask: (H, W) bool, True where matching is allowed; None for everywhere.
        points: (N, 2) float32 pixels of the tokens: keypoints, or the centres of feature-map cells.
        scores: (N,) float32 in [0, 1]: how good a keypoint; ones where the method does not say.
        descriptors: (N, D) float32, one token a row.
        scales: (N,) float32 radius in pixels, or None.
        angles: (N,) float32 radians from +x towards +y, or None.
        maps: Other arrays of the method, by name (fine feature maps of a detector-free method).
        untrained: True where a network with random weights made it.
    """

    method: str
    image: Image
    mask: Mask | None
    points: Points
    scores: Floats
    descriptors: Floats
    scales: Floats | None = None
    angles: Floats | None = None
    maps: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    untrained: bool = False

    def __post_init__(self) -> None:
        rules: dict[str, tuple[int, ...]] = {
            "points": (2,),
            "scores": (),
            "scales": (),
            "angles": (),
        }
        for name, shape in rules.items():
            value = getattr(self, name)
            if value is None:
                continue
            object.__setattr__(self, name, _rows(name, value, shape, np.float32))
            if len(getattr(self, name)) != len(self.points):
                raise ValueError(f"{name} has {len(value)} rows, points has {len(self.points)}")
        if self.descriptors.ndim != 2 or len(self.descriptors) != len(self.points):
            raise ValueError(
                f"descriptors must be ({len(self.points)}, D), not {self.descriptors.shape}"
            )
        object.__setattr__(self, "descriptors", np.ascontiguousarray(self.descriptors))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the image in pixels."""
        return self.image.shape[0], self.image.shape[1]


@dataclass(frozen=True, eq=False)
class ScoreMap:
    """How well every place of image 1 answers one point of image 0: what the explorer draws.

    Attributes:
        points1: (M, 2) float32 pixels of image 1.
        scores: (M,) float32; for `ncc` in [-1, 1], for attention a row of weights.
        grid: (rows, columns) where the places form a grid in row-major order; None for keypoints.
        kind: What the scores are, in the words of the picture's title.
    """

    points1: Points
    scores: Floats
    grid: tuple[int, int] | None = None
    kind: str = "similarity"

    @property
    def best(self) -> tuple[float, float]:
        """The place of the highest score."""
        x, y = self.points1[int(np.argmax(self.scores))]
        return float(x), float(y)


@dataclass(frozen=True, eq=False)
class Places:
    """Where points that the caller asked about lie in image 1, in the order asked.

    Attributes:
        points1: (K, 2) float32 pixels of image 1; NaN where there is no answer.
        scores: (K,) float32 in [0, 1].
        valid: (K,) bool, True where the answer may be believed.
    """

    points1: Points
    scores: Floats
    valid: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.points1)


class Matcher(Protocol):
    """The one interface of every method: a new method is a class with these three functions."""

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Compute what each image needs once, whatever it is matched with. Sizes may differ."""
        ...

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match pairs of described images; a batch gives what single calls give."""
        ...

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Score every place of image 1 for one point (x, y) of image 0."""
        ...


@runtime_checkable
class PointMatcher(Matcher, Protocol):
    """A method that also finds points of the caller's own choice."""

    def match_points(self, pair: tuple[Description, Description], points0: Points) -> Places:
        """Find where points (K, 2) of image 0 lie in image 1."""
        ...


@dataclass(frozen=True, eq=False)
class Homography:
    """Truth of a planar scene or a turning camera: homogeneous pixels1 ~ pixels1_from_pixels0 @ pixels0."""

    pixels1_from_pixels0: Matrix


@dataclass(frozen=True, eq=False)
class Placed(Homography):
    """Truth of a template, image 0, in a scene, image 1: a similarity, whose place, turn and size are what counts."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Truth of a few spots that somebody marked in both images; nothing is known of all others.

    Attributes:
        points0: (N, 2) float32 pixels of image 0.
        points1: (N, 2) float32 pixels of image 1; equal rows show the same spot.
    """

    points0: Points
    points1: Points


@dataclass(frozen=True, eq=False)
class TwoView:
    """Truth of two calibrated views: x1 = rotation @ x0 + translation in camera frames.

    Attributes:
        intrinsics0: (3, 3) of image 0, pixels counted from the centre of the top-left pixel.
        intrinsics1: (3, 3) of image 1.
        rotation: (3, 3) camera1_from_camera0.
        translation: (3,) camera1_from_camera0, of any unit: only its direction counts.
    """

    intrinsics0: Matrix
    intrinsics1: Matrix
    rotation: Matrix
    translation: Matrix


@dataclass(frozen=True, eq=False)
class TwoViewDepth(TwoView):
    """Two calibrated views with depth.

    Attributes:
        depth0: (H, W) float32 along the optical axis of image 0, in the unit of the translation; NaN unknown.
        depth1: Likewise of image 1.
    """

    depth0: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    depth1: Floats = field(default_factory=lambda: np.zeros((0, 0), np.float32))


@dataclass(frozen=True, eq=False)
class DenseMap:
    """Truth by pixel: (H, W, 2) float32 place in image 1 of every pixel of image 0; NaN where unknown or hidden."""

    points1: Floats


@dataclass(frozen=True)
class Unrelated:
    """Truth of two pictures of different scenes: every match is wrong."""


Truth: TypeAlias = Homography | Placed | Labelled | TwoView | TwoViewDepth | DenseMap | Unrelated


@dataclass(frozen=True, eq=False)
class Pair:
    """Two image files and what is known of them.

    `name` is unique in its benchmark; `group` is the data set or the sequence; `level` is the pair's place on what
    the group varies (degrees of a turn, times of a zoom), None where it varies nothing in particular; `turns` are the
    quarter turns, counter-clockwise, that both images are given to be matched: the truth is of the files as they are.
    """

    name: str
    image0: Path
    image1: Path
    truth: Truth | None = None
    group: str = ""
    level: float | None = None
    turns: tuple[int, int] = (0, 0)


@dataclass(frozen=True, eq=False)
class TemplateHit:
    """A place where a template was found.

    Attributes:
        x: Centre of the template in the scene, pixels.
        y: Centre of the template in the scene, pixels.
        angle_degrees: Turn of the template, counter-clockwise as one sees it on the screen, in (-180, 180].
        scale: Size in the scene over size of the template.
        score: NCC in [-1, 1]; negative only where opposite contrast was asked for.
        corners: (4, 2) float32 corners of the template's outline in the scene:
            top-left, top-right, bottom-right, bottom-left.
        template: Number of the template in the list that was searched.
        second_score: Score of the best place elsewhere over that of this one; near 1 the answer is ambiguous.
        subpixel: (x, y) True where the axis could be refined below a pixel.
        detail: NCC of what a blur takes away of both, in [-1, 1]: how well fine detail agrees.
    """

    x: float
    y: float
    angle_degrees: float
    scale: float
    score: float
    corners: Points
    template: int = 0
    second_score: float = 0.0
    subpixel: tuple[bool, bool] = (True, True)
    detail: float = 1.0
