"""Tell a network where its tokens are: normalised points, encodings to add, rotations to turn by.

Three ways, as published: `KeypointEncoder` (SuperGlue: a perceptron of x, y and score, added),
`sinusoidal` (LoFTR: waves of x and y, added) and `RotaryEncoding` (LightGlue: queries and keys are
turned, so that only the difference of two positions counts).
"""

from __future__ import annotations

import math
from typing import TypeAlias

import torch
from torch import Tensor, nn

from matcher.nn.perceptron import perceptron
from matcher.shapes import check_shape

Rotation: TypeAlias = (
    Tensor  # (B, 1, N, C / 2, 2) float32: the cosine and sine of each pair of channels
)


def normalise_points(points: Tensor, sizes: Tensor, share: float = 0.5) -> Tensor:
    """Centre points on their image and divide by a share of its long side.

    The centre is (width / 2, height / 2), half a pixel from the middle of the pixels' centres: the
    published networks were trained so.

    Args:
        points: (B, N, 2) pixels (x, y).
        sizes: (B, 2) width and height of each image, or (1, 2) where all are alike.
        share: 0.5 maps the long side to [-1, 1], as LightGlue wants it; 0.7 is SuperGlue's.

    Returns:
        (B, N, 2) float32; x and y have one unit, so an image keeps its shape.
    """
    known = check_shape("points", points, "B N 2")
    check_shape("sizes", sizes, "1 2" if len(sizes) == 1 else "B 2", known)
    sizes = sizes.to(points.device, torch.float32)[:, None]  # (B, 1, 2)
    return (points.float() - sizes / 2) / (share * sizes.amax(2, keepdim=True))


class KeypointEncoder(nn.Module):
    """Encode where a keypoint is and how good it is, to be added to its descriptor.

    Source: Sarlin et al., SuperGlue, CVPR 2020, equation 2. The last bias starts at 0.
    """

    def __init__(self, channels: int = 256, hidden: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.layers = perceptron(3, *hidden, channels)
        nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, points: Tensor, scores: Tensor) -> Tensor:
        """Encode (B, N, 2) normalised points with their (B, N) scores: (B, N, C)."""
        known = check_shape("points", points, "B N 2")
        check_shape("scores", scores, "B N", known)
        places = torch.cat([points, scores[..., None]], 2)  # (B, N, 3)
        encoded: Tensor = self.layers(places)
        return encoded


def sinusoidal(height: int, width: int, channels: int, *, released: bool = False) -> Tensor:
    """Encode the cells of a feature map by waves of their columns and rows, counted from 1.

    Channels 4k to 4k + 3 are sin(x w), cos(x w), sin(y w), cos(y w) with w = 10000^(-4k / channels).
    No table limits the size.

    Args:
        height: Rows of the map.
        width: Columns of the map.
        channels: A multiple of 4.
        released: Use w = exp(-2k) instead, the slip with which LoFTR's released weights were
            trained: nearly all of its waves are constant.

    Returns:
        (channels, height, width) float32.

    Raises:
        ValueError: `channels` is not a multiple of 4.

    Source: Sun et al., LoFTR, CVPR 2021, supplementary material; Parmar et al., Image Transformer.
    """
    if channels % 4:
        raise ValueError(f"channels must be a multiple of 4, not {channels}")
    exponent = -1.0 if released else -math.log(10000.0) / (channels // 2)
    frequencies = torch.exp(torch.arange(0, channels // 2, 2, dtype=torch.float32) * exponent)
    x = torch.outer(frequencies, torch.arange(1, width + 1, dtype=torch.float32))  # (C/4, W)
    y = torch.outer(frequencies, torch.arange(1, height + 1, dtype=torch.float32))  # (C/4, H)
    shape = (channels // 4, height, width)
    along_x = [wave(x)[:, None].expand(shape) for wave in (torch.sin, torch.cos)]
    along_y = [wave(y)[:, :, None].expand(shape) for wave in (torch.sin, torch.cos)]
    return torch.stack(along_x + along_y, 1).flatten(0, 1)  # (C, H, W)


class RotaryEncoding(nn.Module):
    """Turn pairs of channels by angles that are learned linear functions of the position.

    Source: Lindenberger et al., LightGlue, ICCV 2023, equation 8; Su et al., RoFormer, 2021.
    """

    def __init__(self, channels: int, inputs: int = 2) -> None:
        """Make one angle for each of the `channels` / 2 pairs of a head's channels."""
        super().__init__()
        if channels % 2:
            raise ValueError(f"channels must be even, not {channels}")
        self.Wr = nn.Linear(inputs, channels // 2, bias=False)
        nn.init.normal_(self.Wr.weight, std=1.0)

    def forward(self, points: Tensor) -> Rotation:
        """Find the rotations of (B, N, inputs) normalised points, in float32 also under autocast."""
        with torch.autocast(points.device.type, enabled=False):
            angles = points.float() @ self.Wr.weight.float().T  # (B, N, C/2)
        return torch.stack([angles.cos(), angles.sin()], -1)[:, None]


def rotate(tokens: Tensor, rotation: Rotation) -> Tensor:
    """Turn (B, heads, N, C) queries or keys; computed in float32, returned in their own type.

    A pair of channels times its cosine and sine is a product of complex numbers, which takes one
    pass over memory; compilers and graphs for other runtimes, which have no complex numbers, get real ones.
    """
    pairs = torch.unflatten(tokens.float(), -1, (-1, 2))  # (B, heads, N, C/2, 2)
    if torch.compiler.is_compiling():
        (x, y), (cosine, sine) = pairs.unbind(-1), rotation.unbind(-1)
        turned = torch.stack([x * cosine - y * sine, x * sine + y * cosine], -1)
    else:
        product = torch.view_as_complex(pairs) * torch.view_as_complex(rotation)
        turned = torch.view_as_real(product)
    return turned.flatten(-2).to(tokens.dtype)
