"""What the methods share that match listed keypoints: a front end, and a way to assign them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from matcher import features
from matcher.nn.devices import choose_device
from matcher.types import Description, Floats, Image, Mask, Matches, Matrix, ScoreMap

_BLOCK = 1 << 24  # scores held at a time: 64 MiB


@dataclass(frozen=True, eq=False)
class Assigned:
    """Which keypoint matches which.

    Attributes:
        indices: (M, 2) rows of the two descriptions.
        scores: (M,) in [0, 1].
        moves0: (M, 2) pixels from the keypoints of image 0 to the matched places, or None.
    """

    indices: NDArray[np.int64]
    scores: Floats
    moves0: Floats | None = None


Assign: TypeAlias = Callable[[Description, Description], Assigned]


class SparseMatcher:
    """Keypoints of a front end, matched by an assignment."""

    def __init__(
        self, name: str, front_end: features.FrontEnd, assign: Assign, untrained: bool = False
    ) -> None:
        self.name = name
        self.front_end = front_end
        self._assign = assign
        self._untrained = untrained

    def describe(
        self, images: Sequence[Image], masks: Sequence[Mask | None] | None = None
    ) -> list[Description]:
        """Find and describe keypoints."""
        return features.describe(self.name, self.front_end, images, masks)

    def match(self, pairs: Sequence[tuple[Description, Description]]) -> list[Matches]:
        """Match pairs of described images.

        Raises:
            ValueError: A description's descriptors are not this front end's.
        """
        return [self._match(*pair) for pair in pairs]

    def score_map(
        self, pair: tuple[Description, Description], point0: tuple[float, float]
    ) -> ScoreMap:
        """Compare the keypoint nearest to `point0` with all keypoints of image 1, by cosines."""
        description0, description1 = pair
        check_pair(self.name, self.front_end.channels, pair)
        scores = np.zeros(len(description1), np.float32)
        if len(description0):
            distances = np.linalg.norm(description0.points - np.asarray(point0), axis=1)
            query = description0.descriptors[int(distances.argmin())]
            norms = np.linalg.norm(description1.descriptors, axis=1) * np.linalg.norm(query)
            scores = description1.descriptors @ query / np.maximum(norms, 1e-12)
        return ScoreMap(description1.points, scores, kind="cosine of the descriptors")

    def _match(self, description0: Description, description1: Description) -> Matches:
        pair = (description0, description1)
        check_pair(self.name, self.front_end.channels, pair)
        untrained = self._untrained or description0.untrained or description1.untrained
        if not len(description0) or not len(description1):
            return Matches.empty(untrained=untrained)
        assigned = self._assign(description0, description1)
        rows0, rows1 = assigned.indices.T
        points0 = description0.points[rows0]
        if assigned.moves0 is not None:
            height, width = description0.size
            points0 = np.clip(points0 + assigned.moves0, 0, [width - 1, height - 1])
        return Matches(
            points0,
            description1.points[rows1],
            np.clip(assigned.scores, 0, 1),
            indices=assigned.indices,
            linear1_from_0=_linear_maps(description0, description1, assigned.indices),
            untrained=untrained,
        ).sorted()


@dataclass(frozen=True)
class NearestOptions:
    """How to choose among the nearest descriptors; matches are always mutual.

    Attributes:
        ratio: The nearest's distance must be below this share of the second nearest's, seen from
            either image; 1 asks for nothing. Where there is no second, nothing is asked.
        exclusion: Keypoints within so many pixels of the nearest are no rivals of it: the second
            nearest is sought farther away.
        min_cosine: Least cosine of the two descriptors.
    """

    ratio: float = 1.0
    exclusion: float = 0.0
    min_cosine: float = -1.0

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be in (0, 1], not {self.ratio}")
        if self.exclusion < 0:
            raise ValueError(f"exclusion must be at least 0 pixels, not {self.exclusion}")


class Nearest:
    """Assign mutually nearest descriptors of unit length.

    Scores are one minus the ratio of distances where a ratio is asked for, else cosines.
    """

    def __init__(self, options: NearestOptions, device: str = "cpu") -> None:
        self.options = options
        self._device = choose_device(device)

    @torch.inference_mode()
    def __call__(self, description0: Description, description1: Description) -> Assigned:
        """Assign the keypoints of two descriptions, neither of them empty."""
        ways = [(description0, description1), (description1, description0)]
        (cosine, row1, ratio0), (_, row0, ratio1) = (self._nearest(*way) for way in ways)
        rows = torch.arange(len(row1), device=row1.device)
        ratio = torch.maximum(ratio0, ratio1[row1])
        keep = (row0[row1] == rows) & (cosine >= self.options.min_cosine)
        scores = cosine
        if self.options.ratio < 1:
            keep &= ratio < self.options.ratio
            scores = 1 - ratio
        indices = torch.stack([rows, row1], dim=1)[keep]
        return Assigned(indices.cpu().numpy(), scores[keep].cpu().numpy())

    def _nearest(
        self, description0: Description, description1: Description
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Find for each keypoint the nearest of the other image.

        Returns:
            (N0,) cosines, (N0,) rows, (N0,) ratios of the nearest's distance to the second's.
        """
        queries, others, points = (
            torch.from_numpy(np.asarray(array, np.float32)).to(self._device)
            for array in (description0.descriptors, description1.descriptors, description1.points)
        )
        found = []
        for block in torch.split(queries, max(1, _BLOCK // len(others))):
            similarity = block @ others.T  # (n, N1)
            cosine, row = similarity.max(dim=1)
            ratio = torch.zeros_like(cosine)
            if self.options.ratio < 1:
                second = self._rivals(similarity, row, points).amax(dim=1)
                ratio = torch.sqrt((1 - cosine).clamp(min=0) / (1 - second).clamp(min=1e-12))
            found.append((cosine, row, ratio.clamp(max=1)))
        cosines, rows, ratios = (torch.cat(parts) for parts in zip(*found, strict=True))
        return cosines, rows, ratios

    def _rivals(self, similarity: Tensor, best: Tensor, points: Tensor) -> Tensor:
        """Strike the best and what lies close to it from the (n, N1) similarities."""
        if self.options.exclusion:
            close = torch.cdist(points[best], points) <= self.options.exclusion
            similarity = similarity.masked_fill(close, -torch.inf)
        return similarity.scatter(1, best[:, None], -torch.inf)


def check_pair(method: str, channels: int, pair: tuple[Description, Description]) -> None:
    """Refuse what a method cannot match, before anything is computed.

    Args:
        method: Its name, for the message.
        channels: Of the descriptors that it takes.
        pair: What is to be matched.

    Raises:
        ValueError: Descriptors of another front end, or points that are not in the image.
    """
    for number, description in enumerate(pair):
        found = description.descriptors.shape[1]
        if found != channels:
            raise ValueError(
                f"{method} matches descriptors of {channels} channels; "
                f"description {number}, made by {description.method}, has {found}"
            )
        _check_inside(number, description)


def _check_inside(number: int, description: Description) -> None:
    """Refuse points more than half a pixel outside: beyond the outer pixels' edges."""
    height, width = description.size
    upper = np.array([width, height], np.float32) - 0.5
    outside = ~((description.points >= -0.5) & (description.points <= upper)).all(axis=1)
    if outside.any():
        row = int(outside.argmax())
        x, y = description.points[row]
        raise ValueError(
            f"point {row} of description {number} at ({x:g}, {y:g}) is outside its "
            f"{width} x {height} image"
        )


def _linear_maps(
    description0: Description, description1: Description, indices: NDArray[np.int64]
) -> Matrix | None:
    """Turn scales and angles of matches into (M, 2, 2) maps, where both keypoints have them."""
    scales0, scales1 = description0.scales, description1.scales
    angles0, angles1 = description0.angles, description1.angles
    if scales0 is None or scales1 is None or angles0 is None or angles1 is None:
        return None
    rows0, rows1 = indices.T
    scale = scales1[rows1].astype(np.float64) / scales0[rows0]
    angle = angles1[rows1].astype(np.float64) - angles0[rows0]
    cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
    return np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)
