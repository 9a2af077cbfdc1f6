"""SuperPoint: one network that finds keypoints in a grey image and describes them.

Two published networks fit: the original, and its open retraining, which has a batch norm after
every activation.

Source: DeTone, Malisiewicz, Rabinovich, "SuperPoint: Self-Supervised Interest Point Detection and
Description", CVPRW 2018; written from the paper and the layout of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn import sampling
from matcher.shapes import check_shape

STRIDE = 8  # pixels a side of a cell of the maps


@dataclass(frozen=True)
class Config:
    """The published sizes; `normed` is the open retraining's network."""

    channels: tuple[int, int, int, int] = (64, 64, 128, 128)
    head_channels: int = 256
    descriptor_channels: int = 256
    normed: bool = False


class Convolution(nn.Module):
    """A convolution, then ReLU, then (open retraining) a batch norm with what it learned."""

    def __init__(self, inputs: int, outputs: int, normed: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3) if normed else nn.Identity()

    def forward(self, features: Tensor) -> Tensor:
        """(B, inputs, H, W) to (B, outputs, H, W)."""
        normed: Tensor = self.norm(F.relu(self.conv(features), inplace=True))
        return normed


class SuperPoint(nn.Module):
    """Map a grey image to a keypoint score a pixel and a descriptor a cell of 8 pixels."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        widths = (1, *config.channels)
        self.stages = nn.ModuleList(
            nn.Sequential(
                Convolution(widths[i], widths[i + 1], config.normed),
                Convolution(widths[i + 1], widths[i + 1], config.normed),
            )
            for i in range(len(config.channels))
        )
        self.detector = self._head(STRIDE**2 + 1)
        self.descriptor = self._head(config.descriptor_channels)

    def _head(self, outputs: int) -> nn.Sequential:
        """Make the two convolutions that read a map from the features."""
        wide = self.config.head_channels
        first = Convolution(self.config.channels[-1], wide, self.config.normed)
        return nn.Sequential(first, nn.Conv2d(wide, outputs, 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both maps.

        Args:
            images: (B, 1, H, W) grey in [0, 1]; H and W multiples of 8.

        Returns:
            (B, H, W) probability of a keypoint at each pixel, and (B, D, H/8, W/8) descriptors of
            unit length.

        Raises:
            ValueError: A side is not a multiple of 8.
        """
        sizes = check_shape("images", images, "B 1 H W")
        if sizes["H"] % STRIDE or sizes["W"] % STRIDE:
            raise ValueError(
                f"sides must be multiples of {STRIDE}, not {sizes['H']} x {sizes['W']}"
            )
        features = images.contiguous(memory_format=torch.channels_last)
        for stage in self.stages[:-1]:
            features = F.max_pool2d(stage(features), 2)
        features = self.stages[-1](features)
        logits = self.detector(
            features
        ).float()  # (B, 65, H/8, W/8), the last for "no keypoint here"
        scores = F.pixel_shuffle(logits.softmax(1)[:, :-1], STRIDE)[:, 0]
        return scores, F.normalize(self.descriptor(features).float(), dim=1)


def suppress(scores: Tensor, radius: int) -> Tensor:
    """Set all but the local maxima of (B, H, W) scores to zero.

    A pixel stays if it is the largest within `radius` of itself; then, twice, those that are the
    largest once the neighbourhoods of the ones that stay are taken away.
    """
    stays = scores == _spread(scores, radius)
    for _ in range(2):
        covered = _spread(stays.to(scores.dtype), radius) > 0
        rest = scores.masked_fill(covered, 0)
        stays = stays | ((rest == _spread(rest, radius)) & ~covered)
    return scores.masked_fill(~stays, 0)


def _spread(values: Tensor, radius: int) -> Tensor:
    """Give each pixel the largest of the square around it, one axis after the other."""
    width, maps = 2 * radius + 1, values[:, None]
    rows = F.max_pool2d(maps, (1, width), stride=1, padding=(0, radius))
    return F.max_pool2d(rows, (width, 1), stride=1, padding=(radius, 0))[:, 0]


def sample(descriptors: Tensor, points: Tensor, *, legacy: bool) -> Tensor:
    """Read (D, h, w) descriptors at (N, 2) pixels: (N, D) of unit length.

    With `legacy` the way the published matchers were trained: on a grid that is stretched, so that
    descriptors come from up to half a cell beside the point, and fades to nothing at the rim.
    """
    if not legacy:
        return F.normalize(sampling.sample(descriptors, points, STRIDE), dim=1)
    size = points.new_tensor(descriptors.shape[:0:-1]) * STRIDE  # (w, h) pixels
    half = STRIDE / 2 - 0.5
    grid = (points - half) / (size - half - 1) * 2 - 1
    read = F.grid_sample(descriptors[None], grid[None, None], align_corners=True)
    return F.normalize(read[0, :, 0].T, dim=1)


def published_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a published file, the original's or the open one's, the names of `SuperPoint`.

    The open network's batch norms that follow a convolution directly are folded into it. A copy of
    the open file made for images of two channels has every filter twice; it is read as the filters
    of a grey image.
    """
    if "conv1a.weight" in state:
        return {_from_original(name): value for name, value in state.items()}
    named = {_from_open(name): value for name, value in state.items()}
    first = "stages.0.0.conv.weight"
    if first in named and named[first].shape[1] == 2:
        named[first] = named[first].sum(1, keepdim=True)
    for head in ("detector", "descriptor"):
        _fold(named, head)
    return named


def _from_original(name: str) -> str:
    """`conv3b.weight` to `stages.2.1.conv.weight`, `convPb.weight` to `detector.1.weight`."""
    layer, _, parameter = name.partition(".")
    number, letter = layer[4:5], layer[5:6]
    place = {"a": "0", "b": "1"}.get(letter)
    if not layer.startswith("conv") or place is None:
        return name
    if number.isdigit():
        return f"stages.{int(number) - 1}.{place}.conv.{parameter}"
    head = {"P": "detector", "D": "descriptor"}.get(number, number)
    return f"{head}.0.conv.{parameter}" if place == "0" else f"{head}.1.{parameter}"


def _from_open(name: str) -> str:
    """`backbone.2.1.bn.weight` to `stages.2.1.norm.weight`, and so on."""
    renamed = name.replace("backbone.", "stages.").replace(".bn.", ".norm.")
    for head in ("detector", "descriptor"):
        renamed = renamed.replace(f"{head}.1.conv.", f"{head}.1.")
    return renamed


def _fold(state: dict[str, Tensor], head: str) -> None:
    """Fold the batch norm `head.1.norm` into the convolution `head.1` before it, in place."""
    norm = {
        name: state.pop(f"{head}.1.norm.{name}", None)
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
    weight, bias, mean, variance = (
        norm[n] for n in ("weight", "bias", "running_mean", "running_var")
    )
    if weight is None or bias is None or mean is None or variance is None:
        return  # the strict load names what is missing
    gain = weight / (variance + 1e-3).sqrt()
    state[f"{head}.1.weight"] = state[f"{head}.1.weight"] * gain[:, None, None, None]
    state[f"{head}.1.bias"] = (state[f"{head}.1.bias"] - mean) * gain + bias
