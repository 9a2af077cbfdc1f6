"""Warp, cut and correlate small patches of an image, many at once: what `ncc` and the refinement share.

Images are tensors (1, 1, H, W), points (N, 2) pixels of (x, y), patches (N, K, K) with odd K.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor


def pyramid(
    image: NDArray[np.float32], levels: int, smooth: float, device: torch.device
) -> list[Tensor]:
    """Halve a grey image (H, W) again and again by 2 x 2 means.

    Args:
        image: (H, W) float32.
        levels: At most so many, the full resolution included; fewer where a side would vanish.
        smooth: Sigma of a Gaussian blur of the full resolution, pixels; 0 for none.
        device: Where the tensors go.

    Returns:
        (1, 1, H / 2**level, W / 2**level) for every level; a pixel x lies at (x + 0.5) / 2**level - 0.5.
    """
    level = torch.tensor(image, device=device)[None, None]  # a copy: the image may be read-only
    level = blur(level, smooth) if smooth > 0 else level
    halved = [level]
    while len(halved) < levels and min(halved[-1].shape[2:]) >= 2:
        halved.append(F.avg_pool2d(halved[-1], 2))
    return halved


def blur(image: Tensor, sigma: float) -> Tensor:
    """Blur (..., H, W) by a Gaussian, edges continued; sums of shifted images, which beat a one-channel convolution."""
    height, width = image.shape[-2:]
    reach = int(3 * sigma) + 1
    weights = gaussian(reach, sigma, torch.device("cpu")).tolist()
    padded = F.pad(image, (reach,) * 4, mode="replicate")
    rows = padded[..., :width] * weights[0]
    for shift, weight in enumerate(weights[1:], 1):
        rows.add_(padded[..., shift : shift + width], alpha=weight)
    blurred: Tensor = rows[..., :height, :] * weights[0]
    for shift, weight in enumerate(weights[1:], 1):
        blurred.add_(rows[..., shift : shift + height, :], alpha=weight)
    return blurred


def gaussian(reach: int, sigma: float, device: torch.device) -> Tensor:
    """Return 2 * reach + 1 weights that sum to one."""
    steps = torch.arange(-reach, reach + 1, device=device, dtype=torch.float32)
    weights = torch.exp(-0.5 * (steps / sigma) ** 2)
    return weights / weights.sum()


def warp_patches(
    image: Tensor, points: Tensor, step0_from_1: Tensor, radius: int
) -> tuple[Tensor, Tensor]:
    """Sample (N, K, K) patches of image 0 in the frame of image 1, and tell which lie inside."""
    steps = torch.arange(-radius, radius + 1, device=points.device, dtype=torch.float32)
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1).flatten(0, 1)  # (K*K, 2)
    size = torch.tensor(image.shape[:1:-1], device=points.device)  # W, H
    middles, unit_steps = (points + 0.5) * (2 / size) - 1, step0_from_1.mT * (2 / size)
    places = middles[:, None] + grid @ unit_steps  # (N, K*K, 2), from -1 to 1 over the image
    corners = places[:, [0, 2 * radius, -2 * radius - 1, -1]]
    inside = (corners.abs() <= 1).flatten(1).all(1)
    patches = F.grid_sample(image, places[None], padding_mode="border", align_corners=False)[0, 0]
    return patches.reshape(-1, len(steps), len(steps)), inside


def cut_windows(image: Tensor, centres: Tensor, reach: int) -> tuple[Tensor, Tensor]:
    """Cut (N, 2 * reach + 1, 2 * reach + 1) windows of whole pixels, and tell whose centre is inside."""
    height, width = image.shape[2:]
    steps = torch.arange(-reach, reach + 1, device=image.device)
    x, y = centres.nan_to_num().clamp(-1e6, 1e6).long().unbind(1)
    inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    rows = (y[:, None] + steps).clamp(0, height - 1)
    columns = (x[:, None] + steps).clamp(0, width - 1)
    return image[0, 0][rows[:, :, None], columns[:, None, :]], inside


def surfaces(patches: Tensor, windows: Tensor, weights: Tensor) -> Tensor:
    """Correlate patches (N, K, K) with windows (N, K+D-1, K+D-1) at D x D shifts, with separable weights (K,).

    Zero-mean normalised cross-correlation under weights w(y) w(x): both means and both variances are weighted.
    A patch or window without contrast scores 0.
    """
    K, D = patches.shape[1], windows.shape[1] - patches.shape[1] + 1
    outer = weights[:, None] * weights
    patches = patches - (patches * outer).sum((1, 2), keepdim=True)
    windows = windows - windows.mean((1, 2), keepdim=True)
    shifts = torch.stack([F.pad(weights, (shift, D - 1 - shift)) for shift in range(D)])
    means, squares = (shifts @ power @ shifts.mT for power in (windows, windows**2))  # (N, D, D)
    strips = windows.unfold(2, K, 1).flatten(1, 2)  # (N, (K+D-1)*D, K)
    products = (patches * outer) @ strips.mT  # (N, K, (K+D-1)*D)
    along_match, along_patch_row = products.stride()[:2]
    diagonal = (along_match, along_patch_row + D, D, 1)  # patch row k meets window row k + shift
    covariance = products.as_strided((len(patches), K, D, D), diagonal).sum(1)
    variance0 = (patches**2 * outer).sum((1, 2))[:, None, None]
    variances = variance0 * (squares - means**2).clamp_min(0)
    return torch.where(variances > 1e-12, covariance * variances.clamp_min(1e-12).rsqrt(), 0.0)


def sub_pixel_peaks(surfaces: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fit a quadratic to the 3 x 3 scores round each maximum: its place (N, 2), score (N,), is it sharp (N,)."""
    N, D, _ = surfaces.shape
    scores, flat = surfaces.flatten(1).max(1)
    x, y = flat % D, flat // D
    sharp = (x > 0) & (x < D - 1) & (y > 0) & (y < D - 1)
    near = torch.arange(3, device=flat.device) - 1
    rows = (y[:, None] + near).clamp(0, D - 1)[:, :, None]
    columns = (x[:, None] + near).clamp(0, D - 1)[:, None]
    around = surfaces[
        torch.arange(N, device=flat.device)[:, None, None], rows, columns
    ]  # (N, 3, 3)
    slope_x = (around[:, :, 2] - around[:, :, 0]).mean(1) / 2
    slope_y = (around[:, 2] - around[:, 0]).mean(1) / 2
    bend_x = (around[:, :, 2] - 2 * around[:, :, 1] + around[:, :, 0]).mean(1)
    bend_y = (around[:, 2] - 2 * around[:, 1] + around[:, 0]).mean(1)
    twist = (around[:, 2, 2] - around[:, 2, 0] - around[:, 0, 2] + around[:, 0, 0]) / 4
    det = bend_x * bend_y - twist**2
    sharp &= (det > 1e-9) & (bend_x < 0)
    det = torch.where(sharp, det, 1.0)
    step = (
        torch.stack([twist * slope_y - bend_y * slope_x, twist * slope_x - bend_x * slope_y], 1)
        / det[:, None]
    )
    sharp &= (step.abs() <= 1).all(1)
    return torch.stack([x, y], 1) + step, scores, sharp


def sample_surfaces(surfaces: Tensor, places: Tensor) -> Tensor:
    """Read (N,) scores at fractional places (N, 2) of (x, y), one of each surface."""
    unit = (places + 0.5) * (2 / surfaces.shape[1]) - 1
    return F.grid_sample(
        surfaces[:, None], unit[:, None, None], padding_mode="border", align_corners=False
    )[:, 0, 0, 0]
