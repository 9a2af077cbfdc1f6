"""Read a feature map between its cells."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from matcher.shapes import check_shape


def sample(features: Tensor, points: Tensor, stride: int, mode: str = "bilinear") -> Tensor:
    """Interpolate a map at pixels of the image.

    Cell (i, j) of the map stands for the pixels stride × i … stride × (i + 1) - 1, so that its
    centre is at stride × (i + 0.5) - 0.5; outside the outermost centres the map is continued by
    its edge.

    Args:
        features: (C, h, w).
        points: (N, 2) pixels (x, y) of the image.
        stride: Pixels of the image in a cell.
        mode: "bilinear" or "bicubic".

    Returns:
        (N, C), not normalised.

    Raises:
        ValueError: Another shape.
    """
    sizes = check_shape("features", features, "C h w")
    check_shape("points", points, "N 2")
    extent = torch.tensor([sizes["w"], sizes["h"]], device=points.device) * stride
    grid = 2 * (points + 0.5) / extent - 1
    read = F.grid_sample(
        features[None], grid[None, None].to(features), mode, "border", align_corners=False
    )
    return read[0, :, 0].T  # (N, C)
