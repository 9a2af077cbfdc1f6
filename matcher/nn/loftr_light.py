"""A detector-free network for CPUs: XFeat's cells, related by LighterGlue's layers.

The sparse transformer that was trained for XFeat's keypoints transfers to all cells of its feature
map. A cell stands for its most likely keypoint, whose position its token carries. Attention over
every cell would cost the square of their number, so only the cells that can matter take part: those
of the highest reliability times keypoint probability, up to a limit; where two cells share a corner,
the weaker comes last. The points of both images
leave the grid: a match lies on the keypoints of its two cells, or where XFeat's fine matcher puts
it if it says that these are not the same.

Source: Potje et al., XFeat: Accelerated Features for Lightweight Image Matching, CVPR 2024,
sections 3.2 and 3.3; Lindenberger et al., LightGlue, ICCV 2023; Wang et al., Efficient LoFTR, CVPR
2024, for the two-sided refinement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn import transformer, xfeat
from matcher.nn.coarse_to_fine import Maps, View, cell_points
from matcher.nn.peaks import below_pixel, strongest_nearby
from matcher.nn.streaming import BUDGET, CoarseMatches, Scores, Similarity, dual_softmax

_SHARED = 0.01  # of its worth is left to a cell whose corner a neighbour has too: it comes last
FACTORS = 4  # of a score: a softmax along the row, one along the column, both tokens' matchability


@dataclass(frozen=True)
class Config:
    """Sizes; the widths are the published weights'.

    Attributes:
        layers: Of LighterGlue's six.
        agreement: Pixels; keypoints that are further apart are taken for two.
    """

    layers: int = 4
    agreement: float = 3.0


class LoftrLight(nn.Module):
    """The whole network, in the steps of the `Matcher` interface."""

    stride = xfeat.STRIDE
    channels = xfeat.CHANNELS
    centre = (xfeat.STRIDE - 1) / 2

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        self.config = config or Config()
        self.backbone = xfeat.XFeat()
        self.context = transformer.Context(
            transformer.Config(input_channels=64, channels=96, heads=1, layers=self.config.layers)
        )

    def prepare(self) -> LoftrLight:
        """Fold batch norms and order memory; for inference only from then on."""
        self.backbone = xfeat.folded(self.backbone)
        return self.eval().requires_grad_(False)

    def describe(self, image: Tensor) -> Maps:
        """Compute the maps of a (1, 1, H, W) grey image in [0, 1]: at 1/8, rounded up.

        Always in float32: keypoints move in less, and convolutions this small gain no time by it.
        """
        height, width = (-(-side // self.stride) for side in image.shape[2:])
        with torch.autocast(image.device.type, enabled=False):
            maps = self.backbone(xfeat.pad(xfeat.standardise(image)))
        chances = torch.softmax(maps.keypoint_logits[0], dim=0)[:-1]
        best = chances[:, :height, :width].max(0)  # over the 64 pixels of a cell
        steps = torch.stack([best.indices % self.stride, best.indices // self.stride], dim=-1)
        pixels = cell_points(height, width, self.stride, image.device) + steps
        columns, rows = pixels.flatten(0, 1).long().T
        shifts = below_pixel(F.pixel_shuffle(chances[None], self.stride)[0, 0], rows, columns)
        points = pixels + shifts.reshape(pixels.shape)
        priority = worth_of_cells(maps.reliability[0, 0, :height, :width], best.values, pixels)
        coarse = maps.features[0, :, :height, :width].permute(1, 2, 0)
        return Maps(coarse, points, priority)

    def describing_bytes(self, pixels: int) -> int:
        """Count two maps of the first layer, 4 channels each, and four of the image itself."""
        return 4 * pixels * (2 * 4 + 4)

    def held_bytes(self, pixels: int) -> int:
        """Count the feature map."""
        return 4 * pixels * xfeat.CHANNELS // self.stride**2

    def relating_bytes(self, count0: int, count1: int) -> int:
        """Count what one layer makes of the tokens."""
        return 4 * 10 * self.context.config.channels * (count0 + count1)

    def relate(self, view0: View, view1: View) -> tuple[Tensor, Tensor]:
        """Put every cell into the context of both images: (M, C) and (N, C)."""
        descriptors = tuple(F.normalize(view.tokens, dim=-1)[None] for view in (view0, view1))
        points = tuple(self._normalised(view)[None] for view in (view0, view1))
        tokens0, tokens1 = self.context(descriptors, points)
        return tokens0[0], tokens1[0]

    def _normalised(self, view: View) -> Tensor:
        """Give the (N, 2) points in LightGlue's frame: [-1, 1] along the long side."""
        size = view.points.new_tensor(view.size[::-1])
        return (view.points - size / 2) / (size.max() / 2)

    def score(self, tokens0: Tensor, tokens1: Tensor, budget: int = BUDGET) -> Scores:
        """Score all pairs by dual softmax and how likely both tokens have partners at all.

        A score is the geometric mean of these four probabilities: their product, by which the layers
        were trained, says far too little of how often a match is right.
        """
        head = cast(transformer.AssignmentHead, self.context.log_assignment[-1])
        similarity = Similarity(head.project(tokens0), head.project(tokens1), 1.0, budget)
        product = dual_softmax(similarity, head.matchable(tokens0), head.matchable(tokens1))
        return product.powered(1 / FACTORS)

    def place(
        self,
        views: tuple[View, View],
        related: tuple[Tensor, Tensor],  # noqa: ARG002  the fine matcher reads the cells' own features
        found: CoarseMatches,
    ) -> tuple[Tensor, Tensor]:
        """Give (K, 2) sub-cell places of coarse matches in both images.

        These are the keypoints of both cells where the fine matcher agrees that they are one, else
        the fine matcher's own places, which are always near but never exact.
        """
        keypoints = views[0].points[found.rows], views[1].points[found.columns]
        rough = self._rough(views, found)
        gap = (keypoints[1] - keypoints[0]) - (rough[1] - rough[0])
        agrees = gap.norm(dim=1, keepdim=True) <= self.config.agreement
        return torch.where(agrees, keypoints[0], rough[0]), torch.where(
            agrees, keypoints[1], rough[1]
        )

    def _rough(self, views: tuple[View, View], found: CoarseMatches) -> tuple[Tensor, Tensor]:
        """Ask the fine matcher where in their cells the (K, 2) places of matches are.

        Either direction moves one point and leaves the other in the middle of its cell; the mean of
        both answers moves both points, and swaps with the images.
        """
        tokens0, tokens1 = views[0].tokens[found.rows], views[1].tokens[found.columns]
        offsets, _ = self.backbone.fine_offsets(
            torch.cat([tokens0, tokens1]), torch.cat([tokens1, tokens0])
        )
        shifts = (
            offsets + (self.stride / 2 - self.centre)
        ) / 2  # they count from pixel 4 of a cell
        shift0, shift1 = torch.tensor_split(shifts, 2)
        middle0, middle1 = (
            view.cells[chosen] * self.stride + self.centre
            for view, chosen in zip(views, (found.rows, found.columns), strict=True)
        )
        return middle0 + shift0, middle1 + shift1

    def follow(
        self,
        views: tuple[View, View],
        related: tuple[Tensor, Tensor],
        found: CoarseMatches,
        points0: Tensor,
    ) -> Tensor:
        """Give the (K, 2) places in image 1 of points of image 0 that lie in matched cells.

        What a point is off the pixel that its cell stands for is taken over unchanged.
        """
        placed0, placed1 = self.place(views, related, found)
        return placed1 + (points0 - placed0)


def worth_of_cells(reliability: Tensor, chances: Tensor, pixels: Tensor) -> Tensor:
    """Say how much cells are worth looking at: (..., h, w) in [0, 1].

    Args:
        reliability: (..., h, w) of their features, in [0, 1].
        chances: (..., h, w) that their likeliest pixels are keypoints.
        pixels: (..., h, w, 2) these pixels.
    """
    alone = strongest_nearby(chances, pixels, apart=xfeat.STRIDE / 2)
    return reliability * chances * torch.where(alone, 1.0, _SHARED)


def start(
    backbone: Mapping[str, Tensor], context: Mapping[str, Tensor], layers: int
) -> dict[str, Tensor]:
    """Make the weights to start from out of XFeat's and LighterGlue's published ones.

    Args:
        backbone: XFeat's file.
        context: LighterGlue's file.
        layers: How many of its layers to take, with the head of the last.
    """
    kept = transformer.first_layers(context, layers)
    parts = (("backbone", backbone), ("context", kept))
    return {f"{part}.{name}": value for part, state in parts for name, value in state.items()}
