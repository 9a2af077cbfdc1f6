"""XFeat's network: dense features at an eighth of the image, keypoint logits and reliability.

Modules have the published names, so the published weights load as they are; `folded` makes the
fast form for inference.

Source: Potje, Cadar, Araujo, Martins, Nascimento, XFeat: Accelerated Features for Lightweight
Image Matching, CVPR 2024.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.shapes import check_shape

CHANNELS = 64
STRIDE = 8  # of the feature map
# Offsets that the published fine matcher gives, along x and y, are these lines of the needed ones:
# scripts/calibrate_star.py, over photographs of other scenes than the benchmarks'.
_GIVEN_SLOPE = (0.782, 0.681)
_GIVEN_BIAS = (-1.025, -1.139)  # pixels
DIVISOR = 32  # of the image's sides: the deepest map is at 1/32


@dataclass(frozen=True)
class XFeatMaps:
    """What the network says of an image whose sides are multiples of 32.

    Attributes:
        features: (B, 64, H/8, W/8), not normalised; cell (i, j) has its centre at pixel (8 j +
            3.5, 8 i + 3.5).
        keypoint_logits: (B, 65, H/8, W/8): the 64 pixels of each cell in row-major order, then "no
            keypoint".
        reliability: (B, 1, H/8, W/8) in [0, 1].
    """

    features: Tensor
    keypoint_logits: Tensor
    reliability: Tensor


class XFeat(nn.Module):
    """The network. Random weights until some are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.skip1 = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(1, 24, 1))
        self.block1 = nn.Sequential(
            _Layer(1, 4), _Layer(4, 8, stride=2), _Layer(8, 8), _Layer(8, 24, stride=2)
        )
        self.block2 = nn.Sequential(_Layer(24, 24), _Layer(24, 24))
        self.block3 = nn.Sequential(_Layer(24, 64, stride=2), _Layer(64, 64), _Layer(64, 64, 1))
        self.block4 = nn.Sequential(_Layer(64, 64, stride=2), _Layer(64, 64), _Layer(64, 64))
        self.block5 = nn.Sequential(
            _Layer(64, 128, stride=2), _Layer(128, 128), _Layer(128, 128), _Layer(128, 64, 1)
        )
        self.block_fusion = nn.Sequential(_Layer(64, 64), _Layer(64, 64), nn.Conv2d(64, 64, 1))
        self.heatmap_head = nn.Sequential(
            _Layer(64, 64, 1), _Layer(64, 64, 1), nn.Conv2d(64, 1, 1), nn.Sigmoid()
        )
        self.keypoint_head = nn.Sequential(
            _Layer(64, 64, 1), _Layer(64, 64, 1), _Layer(64, 64, 1), nn.Conv2d(64, 65, 1)
        )
        self.fine_matcher = nn.Sequential(
            *_hidden(128), *_hidden(512), *_hidden(512), *_hidden(512)
        )
        self.fine_matcher.append(nn.Linear(512, CHANNELS))

    def forward(self, image: Tensor) -> XFeatMaps:
        """Compute the three maps.

        Args:
            image: (B, 1, H, W) standardised grey (see `standardise`), H and W multiples of 32.

        Raises:
            ValueError: Another shape, or sides that are no multiples of 32.
        """
        sizes = check_shape("image", image, "B 1 H W")
        if sizes["H"] % DIVISOR or sizes["W"] % DIVISOR:
            raise ValueError(
                f"image sides must be multiples of {DIVISOR}, not {tuple(image.shape[2:])}"
            )
        features = self.features(image)
        logits = self.keypoint_head(F.pixel_unshuffle(image, STRIDE))  # (B, 65, H/8, W/8)
        return XFeatMaps(features, logits, self.heatmap_head(features))

    def features(self, image: Tensor) -> Tensor:
        """Compute the (B, 64, H/8, W/8) feature map alone."""
        # One channel is in either memory order; named channels last, it is computed in that one.
        image = image.squeeze(1).unsqueeze(3).movedim(3, 1)
        quarter = self.block2(self.block1(image) + self.skip1(image))
        eighth = self.block3(quarter)
        sixteenth = self.block4(eighth)
        deepest = self.block5(sixteenth)
        size = eighth.shape[2:]
        pyramid = eighth + _enlarge(sixteenth, size) + _enlarge(deepest, size)
        fused: Tensor = self.block_fusion(pyramid)
        return fused

    def fine_offsets(self, descriptors0: Tensor, descriptors1: Tensor) -> tuple[Tensor, Tensor]:
        """Say where in its cell the partner of a matched cell lies.

        Args:
            descriptors0: (N, 64) features of cells of image 0, not normalised.
            descriptors1: (N, 64) features of the matched cells of image 1.

        Returns:
            (N, 2) offsets (x, y) in [-4, 3] pixels of the scale of the features, to add to the
            points of image 0; and (N,) confidences in (0, 1].
        """
        logits = self.fine_matcher(torch.cat([descriptors0, descriptors1], dim=-1))  # (N, 64)
        weights = torch.softmax(3 * logits.float(), dim=-1)  # the published temperature
        steps = torch.arange(STRIDE, device=weights.device, dtype=weights.dtype) - STRIDE // 2
        window = weights.reshape(-1, STRIDE, STRIDE)  # (N, y, x)
        along = torch.stack([window.sum(1), window.sum(2)], dim=1)  # (N, 2, 8)
        offsets = (along * steps).sum(2)  # float32 in any precision
        return offsets, weights.amax(1)


def corrected(offsets: Tensor) -> Tensor:
    """Undo the published fine matcher's bias of a pixel up and left, and its shrinking.

    Args:
        offsets: (N, 2) from `XFeat.fine_offsets`.
    """
    return (offsets - offsets.new_tensor(_GIVEN_BIAS)) / offsets.new_tensor(_GIVEN_SLOPE)


def standardise(image: Tensor) -> Tensor:
    """Give each image of a (B, 1, H, W) batch zero mean and unit variance."""
    centred = image - image.mean((1, 2, 3), keepdim=True)
    variance = centred.square().mean((1, 2, 3), keepdim=True)  # a quarter of torch.var_mean's time
    return centred * torch.rsqrt(variance + 1e-5)  # InstanceNorm2d's epsilon


def pad(image: Tensor) -> Tensor:
    """Repeat the last row and column of a (B, 1, H, W) batch up to multiples of 32.

    XFeat's own code resizes the image instead, which blurs it and stretches it unequally along x
    and y.
    """
    height, width = image.shape[2:]
    return F.pad(image, (0, -width % DIVISOR, 0, -height % DIVISOR), mode="replicate")


def folded(network: XFeat) -> XFeat:
    """Make a copy for inference: batch norms folded into the layers before them, channels last."""
    fast = copy.deepcopy(network).eval().requires_grad_(False)
    for module in fast.modules():
        if isinstance(module, _Layer):
            module.layer = _without_norms(module.layer)
    fast.fine_matcher = _without_norms(fast.fine_matcher)
    for parameter in fast.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return fast


def _without_norms(stages: nn.Sequential) -> nn.Sequential:
    """Move each batch norm's scale and shift into the layer before it, and drop the norm."""
    kept: list[Any] = []
    for stage in stages:
        mean, variance = getattr(stage, "running_mean", None), getattr(stage, "running_var", None)
        if mean is None or variance is None:
            kept.append(stage)
            continue
        before = kept[-1]
        scale = torch.rsqrt(variance + stage.eps)
        before.weight.data *= scale.reshape(-1, *[1] * (before.weight.ndim - 1))
        bias = 0 if before.bias is None else before.bias
        before.bias = nn.Parameter((bias - mean) * scale, requires_grad=False)
    return nn.Sequential(*kept)


class _Layer(nn.Module):
    """Convolution, batch norm without scale or shift, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> None:
        super().__init__()
        self.layer = nn.Sequential(
            nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(outputs, affine=False),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        return y


def _hidden(inputs: int) -> list[nn.Module]:
    """One hidden layer of the fine matcher."""
    return [nn.Linear(inputs, 512), nn.BatchNorm1d(512, affine=False), nn.ReLU(inplace=True)]


def _enlarge(x: Tensor, size: torch.Size) -> Tensor:
    """Resize a map, with cell centres kept in place."""
    return F.interpolate(x, size, mode="bilinear", align_corners=False)
