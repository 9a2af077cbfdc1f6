"""A detector-free network for CPUs: XFeat's cells, related by LighterGlue's layers.

The sparse transformer that was trained for XFeat's keypoints transfers to all cells of its feature
map. Attention over every cell would cost the square of their number, so only the cells that can
matter take part: the most reliable ones, up to a limit. XFeat's fine matcher then says where in its
cell each of the two points lies; it is asked in both directions, so that the points of both images
leave the grid and swapping the images swaps the matches.

Pixels: cell (column, row) covers pixels 8 column to 8 column + 7, and its middle is at 8 column +
3.5.

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
from matcher.nn.coarse_to_fine import Maps, View
from matcher.nn.streaming import BUDGET, CoarseMatches, Scores, Similarity, dual_softmax


@dataclass(frozen=True)
class Config:
    """Sizes; the widths are the published weights'."""

    layers: int = 4  # of LighterGlue's six


class LoftrLight(nn.Module):
    """The whole network, in the steps of the `Matcher` interface."""

    stride = xfeat.STRIDE
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
        """Compute the maps of a (1, 1, H, W) grey image in [0, 1]: 1/8, rounded up."""
        height, width = (-(-side // self.stride) for side in image.shape[2:])
        maps = self.backbone(xfeat.pad(xfeat.standardise(image)))
        keypoint = torch.softmax(maps.keypoint_logits, dim=1)[:, :-1].amax(1)
        priority = (maps.reliability[:, 0] * keypoint)[0, :height, :width]
        return Maps(maps.features[0, :, :height, :width].permute(1, 2, 0), priority)

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
        """Give the (N, 2) middles of the cells, [-1, 1] along the long side as LightGlue has it."""
        size = view.cells.new_tensor(view.size[::-1])
        points = view.cells * self.stride + self.centre
        return (points - size / 2) / (size.max() / 2)

    def score(self, tokens0: Tensor, tokens1: Tensor, budget: int = BUDGET) -> Scores:
        """Score all pairs by dual softmax, weighted by how likely tokens have partners at all."""
        head = cast(transformer.AssignmentHead, self.context.log_assignment[-1])
        similarity = Similarity(head.project(tokens0), head.project(tokens1), 1.0, budget)
        return dual_softmax(similarity, head.matchable(tokens0), head.matchable(tokens1))

    def place(
        self,
        views: tuple[View, View],
        related: tuple[Tensor, Tensor],  # noqa: ARG002  the fine matcher reads the cells' own features
        found: CoarseMatches,
    ) -> tuple[Tensor, Tensor]:
        """Give (K, 2) sub-pixel places of coarse matches in both images.

        Either direction of the fine matcher moves one point and leaves the other in the middle of
        its cell; the mean of both answers is taken.
        """
        middle0, middle1 = self._middles(views, found)
        shift0, shift1 = self._shift(views, found), self._shift(views[::-1], _swapped(found))
        return middle0 + shift0 / 2, middle1 + shift1 / 2

    def follow(
        self,
        views: tuple[View, View],
        related: tuple[Tensor, Tensor],
        found: CoarseMatches,
        points0: Tensor,
    ) -> Tensor:
        """Give the (K, 2) places in image 1 of points of image 0 that lie in matched cells.

        What a point is off its place in `place` is taken over unchanged.
        """
        placed0, placed1 = self.place(views, related, found)
        return placed1 + (points0 - placed0)

    def _middles(self, views: tuple[View, View], found: CoarseMatches) -> tuple[Tensor, Tensor]:
        """List the (K, 2) middles of the matched cells in both images, in pixels."""
        cells = views[0].cells[found.rows], views[1].cells[found.columns]
        return cells[0] * self.stride + self.centre, cells[1] * self.stride + self.centre

    def _shift(self, views: tuple[View, View], found: CoarseMatches) -> Tensor:
        """Say how far (K, 2) off the middle of its cell the partner of image 1's middle lies."""
        tokens = views[0].tokens[found.rows], views[1].tokens[found.columns]
        offsets, _ = self.backbone.fine_offsets(*tokens)
        return offsets + (self.stride / 2 - self.centre)  # they count from pixel 4 of the cell


def _swapped(found: CoarseMatches) -> CoarseMatches:
    """Exchange the roles of the images."""
    return CoarseMatches(found.columns, found.rows, found.scores)


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
