"""Change how images look without moving anything: light, sensor, lens, file format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Config:
    """How often and how strongly each change happens.

    Chances are shares of the images; each image draws for itself, so the two of a pair differ.
    """

    exposure: float = 0.7  # chance of other gain, offset and gamma
    shadow: float = 0.25
    spot: float = 0.15
    night: float = 0.05
    blur: float = 0.2
    motion: float = 0.1
    noise: float = 0.5
    jpeg: float = 0.3
    strength: float = 1.0  # 0 leaves all as it is


def change(image: Tensor, random: torch.Generator, config: Config | None = None) -> Tensor:
    """Change (B, C, H, W) images in [0, 1], each by its own draw, in the order of a camera."""
    config = config or Config()
    if config.strength == 0:
        return image
    steps = (
        (config.shadow, shadow),
        (config.spot, spot),
        (config.night, night),
        (config.exposure, exposure),
        (config.blur, blur),
        (config.motion, motion),
        (config.noise, noise),
        (config.jpeg, jpeg),
    )
    for chance, step in steps:
        struck = torch.rand(len(image), generator=random, device=image.device) < chance
        if bool(struck.any()):
            changed = step(image[struck], random, config.strength).clamp(0, 1)
            image = image.index_put((struck,), changed)
    return image


def exposure(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Change gamma, contrast, brightness and, of colour images, the white balance."""
    gamma = 2 ** (0.5 * strength * _normal(image, random))
    gain = 2 ** (0.35 * strength * _normal(image, random))
    offset = 0.07 * strength * _normal(image, random)
    balance = 2 ** (0.1 * strength * _normal(image, random, image.shape[1]))
    return (image.clamp_min(1e-4) ** gamma - 0.5) * gain * balance + 0.5 + offset


def shadow(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Darken one side of a line, with a soft or a sharp edge."""
    x, y = _axes(image)
    angle = 2 * math.pi * _uniform(image, random)
    distance = x * angle.cos() + y * angle.sin() - 0.6 * (2 * _uniform(image, random) - 1)
    softness = 0.02 + 0.3 * _uniform(image, random)
    depth = strength * (0.3 + 0.5 * _uniform(image, random))
    return image * (1 - depth * torch.sigmoid(distance / softness))


def spot(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Add the light of a lamp that shines on one place."""
    x, y = _axes(image)
    right, down = (2 * _uniform(image, random) - 1 for _ in range(2))
    width = 0.2 + 0.6 * _uniform(image, random)
    power = strength * (0.2 + 0.6 * _uniform(image, random))
    lit = torch.exp(-((x - right) ** 2 + (y - down) ** 2) / (2 * width**2))
    return image + power * lit * (0.3 + image)


def night(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Take most of the light away, with the noise of what is left."""
    gamma = 1 + strength * (0.5 + _uniform(image, random))
    dark = image.clamp_min(1e-4) ** gamma * (1 - strength * (0.5 + 0.3 * _uniform(image, random)))
    return dark + 0.02 * strength * _noise(image, random)


def noise(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Add shot noise, which grows with the root of the light, and the sensor's own."""
    amount = 0.03 * strength * _uniform(image, random) ** 2
    return image + amount * (0.3 + image.clamp_min(0).sqrt()) * _noise(image, random)


def blur(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Blur by Gaussians of up to 2 pixels."""
    sigma = strength * (0.3 + 1.7 * _uniform(image, random)).clamp_min(1e-3)  # (B, 1, 1, 1)
    steps = torch.arange(-6, 7, device=image.device, dtype=image.dtype)
    line = torch.exp(-(steps**2) / (2 * sigma.flatten()[:, None] ** 2))
    line = line / line.sum(1, keepdim=True)
    return _convolved(_convolved(image, line[:, None, :]), line[:, :, None])


def motion(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Blur along a line of up to 9 pixels."""
    length = 1 + 4 * strength * _uniform(image, random).flatten()[:, None, None]  # half, in pixels
    angle = math.pi * _uniform(image, random).flatten()[:, None, None]
    steps = torch.arange(-5, 6, device=image.device, dtype=image.dtype)
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    along, across = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    kernel = (1 - across.abs()).clamp_min(0) * (length + 0.5 - along.abs()).clamp(0, 1)
    return _convolved(image, kernel / kernel.sum((1, 2), keepdim=True))


def jpeg(image: Tensor, random: torch.Generator, strength: float = 1.0) -> Tensor:
    """Round the cosine transform of 8 × 8 blocks, as JPEG does to its luminance."""
    return compress(image, strength * (0.3 + 3.0 * _uniform(image, random)))


def compress(image: Tensor, coarseness: Tensor) -> Tensor:
    """Round (B, C, H, W) images as JPEG does, `coarseness` (B, 1, 1, 1) times what quality 50 does."""
    height, width = image.shape[2:]
    padded = F.pad(image, (0, -width % 8, 0, -height % 8), mode="replicate")
    cosines = _cosines(image.device)
    tiles = padded.reshape(*padded.shape[:2], padded.shape[2] // 8, 8, -1, 8)
    blocks = tiles.transpose(3, 4)  # (B, C, h, w, 8, 8)
    table = _luminance(image.device) * coarseness[..., None, None] / 255
    rounded = torch.round(cosines @ blocks @ cosines.T / table) * table
    restored = (cosines.T @ rounded @ cosines).transpose(3, 4).flatten(4, 5).flatten(2, 3)
    return restored[:, :, :height, :width]


def _convolved(image: Tensor, kernels: Tensor) -> Tensor:
    """Convolve each of (B, C, H, W) with its own kernel of (B, h, w), edges repeated."""
    count, channels, height, width = image.shape
    down, right = kernels.shape[1] // 2, kernels.shape[2] // 2
    padded = F.pad(image, (right, right, down, down), mode="replicate")
    own = kernels.repeat_interleave(channels, 0)[:, None]  # (B * C, 1, h, w)
    flat = padded.reshape(1, count * channels, *padded.shape[2:])
    return F.conv2d(flat, own, groups=count * channels).reshape(count, channels, height, width)


def _axes(image: Tensor) -> tuple[Tensor, Tensor]:
    """Give coordinates from -1 to 1: (1, 1, 1, W) and (1, 1, H, 1)."""
    height, width = image.shape[2:]
    x = torch.linspace(-1, 1, width, device=image.device)
    y = torch.linspace(-1, 1, height, device=image.device)
    return x[None, None, None], y[None, None, :, None]


@cache
def _cosines(device: torch.device) -> Tensor:
    """Give the orthonormal 8-point cosine transform: (8, 8)."""
    steps = torch.arange(8, dtype=torch.float64)
    rows = torch.cos(math.pi / 8 * (steps + 0.5) * steps[:, None]) * 0.5
    rows[0] /= 2**0.5
    return rows.float().to(device)


@cache
def _luminance(device: torch.device) -> Tensor:
    """Give the (8, 8) steps of JPEG's example table K.1 at quality 50, in 255ths."""
    table = [
        [16, 11, 10, 16, 24, 40, 51, 61], [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56], [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77], [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101], [72, 92, 95, 98, 112, 100, 103, 99],
    ]  # fmt: skip
    return torch.tensor(table, dtype=torch.float32, device=device)


def _uniform(image: Tensor, random: torch.Generator) -> Tensor:
    """Draw one number in [0, 1) an image: (B, 1, 1, 1)."""
    return torch.rand((len(image), 1, 1, 1), generator=random, device=image.device)


def _normal(image: Tensor, random: torch.Generator, channels: int = 1) -> Tensor:
    """Draw standard normal numbers: (B, channels, 1, 1)."""
    return torch.randn((len(image), channels, 1, 1), generator=random, device=image.device)


def _noise(image: Tensor, random: torch.Generator) -> Tensor:
    """Draw a standard normal number a value."""
    return torch.randn(image.shape, generator=random, device=image.device)
