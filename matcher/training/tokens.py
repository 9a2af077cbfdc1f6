"""Make the tokens that networks relate, for a batch of images at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from matcher.nn.loftr_light import worth_of_cells
from matcher.nn.peaks import highest_near
from matcher.nn.pointsets import PointSet
from matcher.nn.sampling import sample
from matcher.nn.xfeat import STRIDE, XFeat, XFeatMaps, pad, standardise

_WINDOW, _LEAST, _BORDER = 5, 0.05, 4  # as XFeat's keypoints are chosen for matching


def keypoints(network: XFeat, images: Tensor, count: int) -> PointSet:
    """Find the best keypoints of (B, 1, H, W) images, at most `count` of each.

    They are what the front end `xfeat` finds, but for the rule of contrast, at whole pixels.
    """
    maps = network(pad(standardise(images)))
    height, width = images.shape[2:]
    probability = F.pixel_shuffle(maps.keypoint_logits.softmax(1)[:, :-1], STRIDE)
    probability = probability[:, 0, :height, :width]
    peaks = probability.where(probability == highest_near(probability, _WINDOW), 0)
    peaks[:, :_BORDER] = peaks[:, height - _BORDER :] = 0
    peaks[:, :, :_BORDER] = peaks[:, :, width - _BORDER :] = 0
    reliability = F.interpolate(maps.reliability, scale_factor=STRIDE, mode="bilinear")
    worth = (peaks * reliability[:, 0, :height, :width]).flatten(1)
    worth = worth.where(peaks.flatten(1) > _LEAST, 0)
    best = worth.topk(min(count, worth.shape[1]), 1)
    points = torch.stack([best.indices % width, best.indices // width], -1).float()
    descriptors = torch.stack(
        [
            sample(F.normalize(features, dim=0), places, STRIDE, mode="bicubic")
            for features, places in zip(maps.features, points, strict=True)
        ]
    )
    return _point_set(points, best.values, F.normalize(descriptors, dim=-1), images)


def cells(network: XFeat, images: Tensor, count: int) -> PointSet:
    """Choose the cells that `LoftrLight` would; their points are their likeliest keypoints."""
    maps = network(pad(standardise(images)))
    height, width = (-(-side // STRIDE) for side in images.shape[2:])
    points, probability = _likeliest(maps, height, width)
    worth = worth_of_cells(maps.reliability[:, 0, :height, :width], probability, points)
    points = points.flatten(1, 2)
    inside = (points < points.new_tensor([images.shape[3], images.shape[2]])).all(-1)
    best = (worth.flatten(1) * inside).topk(min(count, inside.shape[1]), 1)
    index = best.indices[..., None]
    features = maps.features[:, :, :height, :width].flatten(2).transpose(1, 2)  # (B, h * w, C)
    tokens = F.normalize(torch.take_along_dim(features, index, 1), dim=-1)
    return _point_set(torch.take_along_dim(points, index, 1), best.values, tokens, images)


def _likeliest(maps: XFeatMaps, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Find each cell's likeliest keypoint: (B, h, w, 2) pixels, and its (B, h, w) probability."""
    logits = maps.keypoint_logits[:, :, :height, :width]
    best = logits.softmax(1)[:, :-1].max(1)
    rows = torch.arange(height, device=logits.device)[:, None] * STRIDE
    columns = torch.arange(width, device=logits.device) * STRIDE
    x, y = best.indices % STRIDE + columns, best.indices // STRIDE + rows
    return torch.stack([x, y], -1).float(), best.values


def _point_set(points: Tensor, scores: Tensor, descriptors: Tensor, images: Tensor) -> PointSet:
    """Mask what is no keypoint."""
    sizes = points.new_tensor([images.shape[3], images.shape[2]]).expand(len(points), 2)
    mask = scores > 0
    return PointSet(points, scores, descriptors, sizes, None if bool(mask.all()) else mask)
