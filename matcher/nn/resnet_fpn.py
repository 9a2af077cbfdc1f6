"""The published LoFTR's backbone: a residual network with a feature pyramid.

Modules are named as in the published checkpoints, so that these load without renaming. For
inference the batch norms are folded into their convolutions.

Source: Sun et al., LoFTR, CVPR 2021, supplement A; He et al., Deep Residual Learning, CVPR 2016;
Lin et al., Feature Pyramid Networks, CVPR 2017.
"""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class Residual(nn.Module):
    """Two 3 × 3 convolutions with a shortcut; a stride of 2 halves the map."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(channels_in, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = (
            nn.Sequential(_conv(channels_in, channels, 1, stride), nn.BatchNorm2d(channels))
            if stride > 1
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, C, H / stride, W / stride)."""
        y = F.relu_(self.bn1(self.conv1(x)))
        return F.relu_(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNetFPN(nn.Module):
    """Features of a grey image, coarse for finding and fine for placing."""

    coarse_stride = 8
    fine_stride = 2

    def __init__(self, dims: tuple[int, int, int] = (128, 196, 256)) -> None:
        super().__init__()
        half, quarter, eighth = dims
        self.conv1 = nn.Conv2d(1, half, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(half)
        self.layer1 = nn.Sequential(Residual(half, half, 1), Residual(half, half, 1))
        self.layer2 = nn.Sequential(Residual(half, quarter, 2), Residual(quarter, quarter, 1))
        self.layer3 = nn.Sequential(Residual(quarter, eighth, 2), Residual(eighth, eighth, 1))
        self.layer3_outconv = _conv(eighth, eighth, 1)
        self.layer2_outconv = _conv(quarter, eighth, 1)
        self.layer2_outconv2 = _smooth(eighth, quarter)
        self.layer1_outconv = _conv(half, quarter, 1)
        self.layer1_outconv2 = _smooth(quarter, half)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, 1, H, W) grey to (B, 256, H/8, W/8) and (B, 128, H/2, W/2), rounded up.

        Coarse cell (column, row) is centred on pixel (8 column, 8 row), fine cell on pixel (2
        column, 2 row).
        """
        x1 = self.layer1(F.relu_(self.bn1(self.conv1(image))))
        x2 = self.layer2(x1)
        coarse = self.layer3_outconv(self.layer3(x2))
        x2 = self.layer2_outconv2(_add_upsampled(self.layer2_outconv(x2), coarse))
        return coarse, self.layer1_outconv2(_add_upsampled(self.layer1_outconv(x1), x2))


def _conv(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Make a centred convolution without bias."""
    return nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False)


def _smooth(channels: int, channels_out: int) -> nn.Sequential:
    """Make the two convolutions that follow a merge of two levels."""
    return nn.Sequential(
        _conv(channels, channels, 3),
        nn.BatchNorm2d(channels),
        nn.LeakyReLU(inplace=True),
        _conv(channels, channels_out, 3),
    )


def _add_upsampled(lateral: Tensor, top: Tensor) -> Tensor:
    """Add the upper level, doubled corner on corner as published and cropped to the lower."""
    doubled = F.interpolate(top, scale_factor=2.0, mode="bilinear", align_corners=True)
    return lateral.add_(doubled[..., : lateral.shape[2], : lateral.shape[3]])


def fold_batch_norms(module: nn.Module) -> None:
    """Merge every batch norm into the convolution before it, in place; for inference only.

    Pairs are `convN`, `bnN` and neighbours in a `Sequential`.
    """
    for parent in module.modules():
        names = list(dict(parent.named_children()))
        for before, after in _pairs(parent, names):
            conv, norm = parent.get_submodule(before), parent.get_submodule(after)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(parent, before, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, after, nn.Identity())


def _pairs(parent: nn.Module, names: list[str]) -> list[tuple[str, str]]:
    """List the names of children of which the second may be the batch norm of the first."""
    if isinstance(parent, nn.Sequential):
        return list(itertools.pairwise(names))
    return [
        (name, f"bn{name[4:]}") for name in names if f"bn{name[4:]}" in names and name[:4] == "conv"
    ]
