"""The networks as one graph an image and one graph a pair, of nothing but tensor operations.

What `describe` and `match` do with numpy and early exits, these do in fixed steps for any size and
any number of points. `describe` may find none; `match` wants one of either image at least, and a
caller who has none has no matches: the runner answers that itself. All settings that cost nothing
to keep open are inputs. Both methods have the same inputs and outputs, so that one runner serves
both.

- `describe`: image (H, W) grey in [0, 1], mask (H, W), limit () -> points (N, 2), scores (N,),
  descriptors (N, D).
- `match`: points, descriptors and size (height, width) of both images -> indices (K, 2),
  scores (K,), matched_points0 (K, 2), matched_points1 (K, 2), log_scores (N0, N1).
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.features.xfeat import Options as KeypointOptions
from matcher.features.xfeat import XFeatFrontEnd
from matcher.methods.loftr import Loftr
from matcher.methods.superglue import SuperGlueMatcher
from matcher.nn import transformer, xfeat
from matcher.nn.coarse_to_fine import View
from matcher.nn.loftr_light import FACTORS, LoftrLight, worth_of_cells
from matcher.nn.peaks import below_pixel
from matcher.nn.positions import normalise_points
from matcher.nn.streaming import CoarseMatches
from matcher.nn.superglue_modern import Modern

SPAN = 10  # scaling steps before what they found is absorbed into the matrix
SAFE = math.exp(20.0)  # largest scaling within a span: its products stay in the range of float32
TINY = 1e-30  # of the matrix, what is left out
CELL = 4  # pixels; see `contrast_at` in matcher.features._choice


# Plain tuples: a program with named ones would need this package to be loaded.
Tokens: TypeAlias = tuple[Tensor, Tensor, Tensor]
Pairs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Maps(NamedTuple):
    """XFeat's maps of one image of any size, cut to it.

    Attributes:
        features: (1, 64, h, w), of the padded image.
        chances: (1, 64, h, w) of the pixels of each cell, likewise.
        reliability: (1, 1, h, w), likewise.
    """

    features: Tensor
    chances: Tensor
    reliability: Tensor


class DescribeKeypoints(nn.Module):
    """`superglue`'s description: XFeat's keypoints."""

    def __init__(self, front_end: XFeatFrontEnd) -> None:
        super().__init__()
        self.network = front_end.network
        self.options: KeypointOptions = front_end.options

    def forward(self, image: Tensor, mask: Tensor, limit: Tensor) -> Tokens:
        """Find the best `limit` keypoints where the mask is True."""
        height, width = image.shape
        maps = _maps(self.network, image)
        chances = F.pixel_shuffle(maps.chances, xfeat.STRIDE)[0, 0, :height, :width]
        near = self.options.window // 2
        highest = F.max_pool2d(chances[None, None], (1, 2 * near + 1), 1, (0, near))
        highest = F.max_pool2d(highest, (2 * near + 1, 1), 1, (near, 0))[0, 0]
        wanted = (chances == highest) & (chances > self.options.threshold) & mask
        rows, columns = torch.nonzero(wanted, as_tuple=True)
        points = torch.stack([columns, rows], 1)  # (N, 2)
        size = torch.stack([torch.full_like(limit, width), torch.full_like(limit, height)])
        border = self.options.border
        inside = ((points >= border) & (points < size - border)).all(1)
        contrast = _contrast(image)[rows // CELL, columns // CELL]
        points = points[inside & (contrast >= self.options.min_contrast)].float()
        chance = chances[points[:, 1].long(), points[:, 0].long()]
        scores = chance * _read(maps.reliability, points, "bilinear")[:, 0]
        best = _best(scores, limit)
        points = points[best]
        described = _read(F.normalize(maps.features, dim=1), points, "bicubic")
        if self.options.subpixel:
            columns, rows = points.long().T
            points = points + below_pixel(chances, rows, columns)
            points = torch.minimum(points.clamp_min(border), (size - 1 - border).float())
        return (points, scores[best].clamp(0, 1), F.normalize(described, dim=1))


class DescribeCells(nn.Module):
    """`loftr`'s description: the cells of the feature map that can matter."""

    def __init__(self, method: Loftr, min_contrast: float) -> None:
        super().__init__()
        self.network = cast(LoftrLight, method.network).backbone
        self.min_contrast = min_contrast

    def forward(self, image: Tensor, mask: Tensor, limit: Tensor) -> Tokens:
        """List the best `limit` cells where the mask is True, in the order of rows."""
        height, width = image.shape
        maps = _maps(self.network, image)
        chance, pixel = maps.chances[0].max(0)  # (h, w)
        rows, columns = torch.meshgrid(
            torch.arange(chance.shape[0]), torch.arange(chance.shape[1]), indexing="ij"
        )
        rows = rows * xfeat.STRIDE + pixel // xfeat.STRIDE
        columns = columns * xfeat.STRIDE + pixel % xfeat.STRIDE
        worth = worth_of_cells(
            maps.reliability[0, 0], chance, torch.stack([columns, rows], -1).float()
        )
        rows, columns = rows.flatten(), columns.flatten()  # (h * w,)
        inside = (rows < height) & (columns < width)
        rows, columns = rows.clamp_max(height - 1), columns.clamp_max(width - 1)
        contrast = _contrast(image)[rows // CELL, columns // CELL]
        allowed = inside & mask[rows, columns] & (contrast >= self.min_contrast)
        cells = torch.nonzero(allowed)[:, 0]
        scores = worth.flatten()[cells]
        best = torch.sort(_best(scores, limit)).values
        cells = cells[best]
        rows, columns = rows[cells], columns[cells]
        shifts = below_pixel(F.pixel_shuffle(maps.chances, xfeat.STRIDE)[0, 0], rows, columns)
        points = torch.stack([columns, rows], 1) + shifts
        return (points, scores[best].clamp(0, 1), maps.features[0].flatten(1).T[cells])


class MatchByTransport(nn.Module):
    """`superglue`'s match: LightGlue's layers and optimal transport, every layer for every pair."""

    def __init__(self, method: SuperGlueMatcher) -> None:
        super().__init__()
        self.context = cast(Modern, method.network.context)
        self.dustbin = method.network.dustbin
        self.steps = method.network.config.sinkhorn_steps

    def forward(
        self,
        points0: Tensor,
        descriptors0: Tensor,
        size0: Tensor,
        points1: Tensor,
        descriptors1: Tensor,
        size1: Tensor,
    ) -> Pairs:
        """Match (N0, ...) with (N1, ...) keypoints; the mean of both orders of the images."""
        placed = _placed(points0, size0), _placed(points1, size1)
        tokens0, tokens1 = self.context((descriptors0[None], descriptors1[None]), placed)
        scores = self._scores(tokens0, tokens1)
        forward, backward = (
            transport(each, self.dustbin, self.steps) for each in (scores, scores.mT)
        )
        log_scores = torch.logaddexp(forward, backward.mT) - math.log(2)
        indices, chosen = _mutual_best(log_scores)
        return (indices, chosen, points0[indices[:, 0]], points1[indices[:, 1]], log_scores)

    def _scores(self, tokens0: Tensor, tokens1: Tensor) -> Tensor:
        """Compare tokens as `Modern.scores` does: (N0, N1)."""
        head = self.context.head(self.context.config.layers)
        odds0, odds1 = head.matchable(tokens0)[0], head.matchable(tokens1)[0]
        plan = _dual_softmax(head.similarity(tokens0, tokens1)[0])
        matches = (odds0.sigmoid()[None] @ plan.exp() @ odds1.sigmoid()[:, None])[0, 0]
        gates = odds0[:, None] + odds1[None]
        return self.context.temperature * plan + gates + matches.clamp_min(TINY).log()


class MatchCells(nn.Module):
    """`loftr`'s match: the same layers over cells, dual softmax, places within the cells."""

    def __init__(self, method: Loftr) -> None:
        super().__init__()
        self.network = cast(LoftrLight, method.network)

    def forward(
        self,
        points0: Tensor,
        descriptors0: Tensor,
        size0: Tensor,
        points1: Tensor,
        descriptors1: Tensor,
        size1: Tensor,
    ) -> Pairs:
        """Match (N0, ...) with (N1, ...) cells."""
        placed = _placed(points0, size0), _placed(points1, size1)
        described = F.normalize(descriptors0, dim=1), F.normalize(descriptors1, dim=1)
        tokens0, tokens1 = self.network.context((described[0][None], described[1][None]), placed)
        head = cast(transformer.AssignmentHead, self.network.context.log_assignment[-1])
        odds0, odds1 = head.matchable(tokens0)[0], head.matchable(tokens1)[0]
        log_scores = (
            _dual_softmax(head.similarity(tokens0, tokens1)[0])
            + F.logsigmoid(odds0)[:, None]
            + F.logsigmoid(odds1)[None]
        ) / FACTORS
        indices, scores = _mutual_best(log_scores)
        found = CoarseMatches(indices[:, 0], indices[:, 1], scores)
        views = _view(points0, descriptors0), _view(points1, descriptors1)
        places0, places1 = self.network.place(views, (tokens0[0], tokens1[0]), found)
        inside = _inside(places0, size0) & _inside(places1, size1)
        kept = torch.nonzero(inside)[:, 0]
        return (indices[kept], scores[kept], places0[kept], places1[kept], log_scores)


def transport(scores: Tensor, dustbin: Tensor, steps: int) -> Tensor:
    """Assign by optimal transport with a dustbin, in as many steps as `matcher.nn.sinkhorn`.

    That one looks at the range of its scalings, and falls back to logarithms where floats end. A
    graph without branches holds them within the range instead: the potentials are absorbed after
    every span of steps, and a scaling that would leave the range is cut off there and goes on after
    the next absorption.

    Args:
        scores: (M, N).
        dustbin: () score of lying in the dustbin.
        steps: How often rows, then columns, are scaled.

    Returns:
        (M, N) logarithms of the assignment, without dustbins.
    """
    M, N = scores.shape
    log_kernel = F.pad(scores - dustbin, (0, 1, 0, 1)) + dustbin  # (M+1, N+1)
    ones = torch.ones_like(log_kernel)
    sums0 = F.pad(ones[:M, 0], (0, 1)) + F.pad(ones[0, :N].sum()[None], (M, 0))  # (M+1,)
    sums1 = F.pad(ones[0, :N], (0, 1)) + F.pad(ones[:M, 0].sum()[None], (N, 0))  # (N+1,)
    rows = sums0.clamp_min(TINY).log() - torch.logsumexp(log_kernel, 1)
    columns = sums1.clamp_min(TINY).log() - torch.logsumexp(log_kernel + rows[:, None], 0)
    for start in range(1, steps, SPAN):
        matrix = (log_kernel + rows[:, None] + columns).exp()
        matrix = torch.where(matrix < TINY, 0.0, matrix)
        scale1 = torch.ones_like(sums1)[:, None]
        for _ in range(min(SPAN, steps - start)):
            scale0 = (sums0[:, None] / (matrix @ scale1)).clamp(1 / SAFE, SAFE)
            scale1 = (sums1[:, None] / (matrix.T @ scale0)).clamp(1 / SAFE, SAFE)
        rows, columns = rows + scale0[:, 0].log(), columns + scale1[:, 0].log()
    return (log_kernel + rows[:, None] + columns)[:M, :N]


def _maps(network: xfeat.XFeat, image: Tensor) -> Maps:
    """Run XFeat on an image (H, W), padded to multiples of 32 by repeating its edges."""
    height, width = image.shape
    mean = image.mean()
    standard = (image - mean) * torch.rsqrt(((image - mean) ** 2).mean() + 1e-5)
    rows, columns = (
        torch.arange((side + xfeat.DIVISOR - 1) // xfeat.DIVISOR * xfeat.DIVISOR).clamp_max(
            side - 1
        )
        for side in (height, width)
    )
    padded = standard[rows][:, columns][None, None]
    features = network.features(padded)
    logits = network.keypoint_head(F.pixel_unshuffle(padded, xfeat.STRIDE))
    chances = torch.softmax(logits, dim=1)[:, :-1]
    return Maps(features, chances, network.heatmap_head(features))


def _contrast(image: Tensor) -> Tensor:
    """Measure the contrast near each 4 x 4 pixel cell, as `contrast_at` does: (rows, columns)."""
    height, width = image.shape
    rows, columns = (
        torch.arange((side + CELL - 1) // CELL * CELL).clamp_max(side - 1)
        for side in (height, width)
    )
    padded = image[rows][:, columns][None]  # (1, 4 h, 4 w)
    cells = F.avg_pool2d(torch.stack([padded, padded**2]), CELL)  # (2, 1, h, w)
    before = F.pad(cells, (1, 0, 1, 0), mode="replicate")
    mean, square = F.avg_pool2d(before, 2, stride=1)[:, 0]
    highest = F.max_pool2d((square - mean**2)[None], 5, stride=1, padding=2)[0]
    return highest.clamp_min(0).sqrt()


def _read(maps: Tensor, points: Tensor, mode: str) -> Tensor:
    """Interpolate (1, C, h, w) maps at (N, 2) pixels, as `matcher.nn.sampling` does: (N, C)."""
    height, width = maps.shape[2:]
    extent = points.new_tensor([xfeat.STRIDE, xfeat.STRIDE]) * torch.stack(
        [torch.full_like(points[:1, 0].sum(), width), torch.full_like(points[:1, 0].sum(), height)]
    )
    grid = (2 * (points + 0.5) / extent - 1)[None, None]
    return F.grid_sample(maps, grid, mode, "border", align_corners=False)[0, :, 0].T


def _best(scores: Tensor, limit: Tensor) -> Tensor:
    """List the rows of the highest scores, at most `limit`, best first."""
    order = torch.argsort(scores, descending=True)
    return order[torch.arange(order.shape[0]) < limit]


def _placed(points: Tensor, size: Tensor) -> Tensor:
    """Normalise (N, 2) points of an image of (2,) height and width: (1, N, 2)."""
    return normalise_points(points[None], size.flip(0)[None].float(), 0.5)


def _dual_softmax(similarity: Tensor) -> Tensor:
    return similarity.log_softmax(1) + similarity.log_softmax(0)


def _mutual_best(log_scores: Tensor) -> tuple[Tensor, Tensor]:
    """Choose pairs that are each other's best: (K, 2) and their (K,) probabilities.

    One more row and column, never chosen, lets either side be empty.
    """
    padded = F.pad(log_scores, (0, 1, 0, 1), value=-math.inf)
    best, partner0 = padded[:-1].max(1)
    partner1 = padded[:, :-1].argmax(0)
    partner1 = F.pad(partner1, (0, 1), value=-1)
    rows = torch.arange(best.shape[0])
    chosen = torch.nonzero((partner1[partner0] == rows) & (best > -math.inf))[:, 0]
    return torch.stack([chosen, partner0[chosen]], 1), best[chosen].exp().clamp_max(1)


def _view(points: Tensor, descriptors: Tensor) -> View:
    """Make a view; the cell of a point follows from its nearest pixel."""
    cells = torch.div(torch.floor(points + 0.5), xfeat.STRIDE, rounding_mode="floor").long()
    return View(descriptors, cells, points, (0, 0))


def _inside(points: Tensor, size: Tensor) -> Tensor:
    """Tell which (K, 2) points lie on a pixel of an image of (2,) height and width."""
    nearest = torch.floor(points + 0.5)
    return ((nearest >= 0) & (nearest < size.flip(0))).all(1)
