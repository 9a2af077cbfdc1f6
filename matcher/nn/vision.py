"""Attention inside a backbone: non-local blocks and gates; and sampling at places that are computed.

`gate` makes one by name, for the configuration of a backbone; all keep the shape of the map.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from matcher.nn.attention import attend
from matcher.shapes import check_shape


class NonLocalBlock(nn.Module):
    """Add to each cell what it reads from all cells of the map; starts as the identity.

    Source: Wang et al., Non-local Neural Networks, CVPR 2018, embedded Gaussian.
    """

    def __init__(self, channels: int, reduction: int = 2) -> None:
        super().__init__()
        inner = max(channels // reduction, 1)
        self.query = nn.Conv2d(channels, inner, 1)
        self.key = nn.Conv2d(channels, inner, 1)
        self.value = nn.Conv2d(channels, inner, 1)
        self.merge = nn.Conv2d(inner, channels, 1)
        nn.init.zeros_(self.merge.weight)
        nn.init.zeros_(torch.as_tensor(self.merge.bias))

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        query, key, value = (
            project(features).flatten(2).mT[:, None]  # (B, 1, H*W, inner)
            for project in (self.query, self.key, self.value)
        )
        scale = query.shape[-1] ** 0.5  # the paper's weights are exp(q · k), not divided by √C
        message = attend(query * scale, key, value)[:, 0].mT
        merged: Tensor = features + self.merge(torch.unflatten(message, 2, features.shape[2:]))
        return merged


class ChannelGate(nn.Module):
    """Scale every channel by a number in (0, 1) made from the means, and maxima, of all channels.

    Source: Hu et al., Squeeze-and-Excitation Networks, CVPR 2018 (means); Woo et al., CBAM, ECCV
    2018 (means and maxima).
    """

    def __init__(self, channels: int, reduction: int = 16, *, maxima: bool = False) -> None:
        super().__init__()
        self.maxima = maxima
        inner = max(channels // reduction, 1)
        self.excite = nn.Sequential(
            nn.Linear(channels, inner), nn.ReLU(), nn.Linear(inner, channels)
        )

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        logits: Tensor = self.excite(features.mean((2, 3)))
        if self.maxima:
            logits = logits + self.excite(features.amax((2, 3)))
        return features * logits.sigmoid()[:, :, None, None]


class SpatialGate(nn.Module):
    """Scale every cell by a number in (0, 1) made from the mean and maximum of its channels nearby.

    Source: Woo et al., CBAM, ECCV 2018, section 3.2.
    """

    def __init__(self, size: int = 7) -> None:
        super().__init__()
        self.look = nn.Conv2d(2, 1, size, padding=size // 2)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        summary = torch.cat([features.mean(1, keepdim=True), features.amax(1, keepdim=True)], 1)
        logits: Tensor = self.look(summary)  # (B, 1, H, W)
        return features * logits.sigmoid()


def gate(name: str, channels: int) -> nn.Module:
    """Make a block for maps of that many channels.

    Args:
        name: "none", "se" (squeeze and excitation), "cbam" or "non-local".
        channels: C of the maps.

    Raises:
        ValueError: There is no such block.
    """
    makers: dict[str, Callable[[], nn.Module]] = {
        "none": nn.Identity,
        "se": lambda: ChannelGate(channels),
        "cbam": lambda: nn.Sequential(ChannelGate(channels, maxima=True), SpatialGate()),
        "non-local": lambda: NonLocalBlock(channels),
    }
    if name not in makers:
        raise ValueError(f"no gate {name!r}; there are {', '.join(makers)}")
    return makers[name]()


def sample(features: Tensor, points: Tensor) -> Tensor:
    """Read a map at fractional places, bilinearly; beyond the border lies its nearest cell.

    Args:
        features: (B, C, H, W).
        points: (B, K, 2) of (x, y) in cells; (0, 0) is the centre of the top-left one.

    Returns:
        (B, K, C), differentiable in both.

    Source: Jaderberg et al., Spatial Transformer Networks, NeurIPS 2015.
    """
    known = check_shape("features", features, "B C H W")
    check_shape("points", points, "B K 2", known)
    sizes = points.new_tensor([known["W"], known["H"]])
    places = (2 * points + 1) / sizes - 1  # the outer edges of the border cells are -1 and 1
    found = F.grid_sample(
        features, places[:, :, None], padding_mode="border", align_corners=False
    )  # (B, C, K, 1)
    return found[..., 0].mT


def warp_patches(features: Tensor, centres: Tensor, linear: Tensor, radius: int) -> Tensor:
    """Cut patches that an affine map turns, scales and shears: a spatial transformer.

    Args:
        features: (B, C, H, W).
        centres: (B, K, 2) of (x, y) in cells.
        linear: (B, K, 2, 2), how a step of one cell in the patch looks in the map.
        radius: Patches have 2 radius + 1 cells a side.

    Returns:
        (B, K, C, 2 radius + 1, 2 radius + 1); differentiable in all.
    """
    known = check_shape("centres", centres, "B K 2", {"B": len(features)})
    check_shape("linear", linear, "B K 2 2", known)
    steps = torch.arange(-radius, radius + 1, device=centres.device, dtype=centres.dtype)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    offsets = torch.stack([x, y], -1).flatten(0, 1)  # (side*side, 2)
    places = centres[:, :, None] + torch.einsum("bkij,sj->bksi", linear, offsets)
    values = sample(features, places.flatten(1, 2))  # (B, K*side*side, C)
    side = 2 * radius + 1
    return torch.unflatten(values, 1, (known["K"], side, side)).permute(0, 1, 4, 2, 3)
