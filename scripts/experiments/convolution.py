"""Make a convolution out of attention: one head a tap, each looking at one neighbour.

    python scripts/experiments/convolution.py --out FOLDER

Nine heads with relative positions read the nine neighbours of every pixel; a kernel sums what they
read. As the heads get sharper, the result becomes that of the convolution.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor

import matcher
from matcher import assets, images, terminal
from matcher.explore.canvas import BLUE, chart, save_page
from matcher.nn.attention import read_out
from matcher.nn.attention_scopes import RelativeWindow

SHARPNESS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SIZE = (24, 32)  # of the photograph: every pixel looks at every other
SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])


def photograph() -> Tensor:
    """Read a sample, small and grey: (24, 32)."""
    image = images.grey(matcher.read(assets.folder("data") / "images" / "light_0.jpg"))
    return torch.from_numpy(np.ascontiguousarray(images.resize(image, SIZE)))


def by_attention(image: Tensor, kernel: Tensor, sharpness: float) -> Tensor:
    """Filter an (H, W) image with a (3, 3) kernel by nine heads: (H, W)."""
    padded = F.pad(image, (1, 1, 1, 1))
    offsets = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0])] * 2)  # (9, 2) row, column
    value = padded.flatten()[None, None, :, None].expand(1, 9, -1, -1)  # (1, 9, N, 1)
    grid = padded.shape[0], padded.shape[1]
    with torch.inference_mode():
        bias = RelativeWindow(offsets, sharpness)(value, grid)
        read = read_out(bias, value).message[0, :, :, 0]  # (9, N)
    filtered = (kernel.flatten() @ read).reshape(grid)
    return filtered[1:-1, 1:-1]


def by_convolution(image: Tensor, kernel: Tensor) -> Tensor:
    """Filter by the network's convolution: (H, W)."""
    return F.conv2d(image[None, None], kernel[None, None], padding=1)[0, 0]


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Print and draw how far both are apart as the heads get sharper."""
    image = photograph()
    wanted = by_convolution(image, SOBEL)
    apart = [
        float((by_attention(image, SOBEL, sharp) - wanted).abs().max() / wanted.abs().max())
        for sharp in SHARPNESS
    ]
    terminal.print_table(
        [
            {"sharpness": f"{sharp}", "largest difference, of the largest answer": f"{error:.1e}"}
            for sharp, error in zip(SHARPNESS, apart, strict=True)
        ]
    )
    page, axes = chart("Nine heads against a 3 x 3 convolution")
    axes.loglog(SHARPNESS, apart, "o-", color=BLUE)
    axes.set(xlabel="sharpness of the heads", ylabel="largest relative difference")
    legend = [(BLUE, "Sobel filter on a photograph")]
    terminal.finish("one filter", [save_page(page, out / "convolution.png", legend)])


if __name__ == "__main__":
    typer.run(main)
