"""Smooth a noisy curve by attention: it is the Nadaraya-Watson estimator.

    python scripts/experiments/smoothing.py --out FOLDER

With queries (x, 1) and keys (x, -x²/2), both over the bandwidth, q · k is a Gaussian's exponent up
to what softmax takes away. The scaled dot product then smooths as the textbook's estimator does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from matcher import terminal
from matcher.explore.canvas import BLUE, GREY, INK, VERMILION, chart, save_page
from matcher.nn.attention import attend

SAMPLES, NOISE = 120, 0.3
BANDWIDTHS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
Line = NDArray[np.float64]


def truth(x: Line) -> Line:
    """Compute the curve that was sampled."""
    return np.asarray(np.sin(2 * x) + 0.5 * x)


def samples(seed: int = 0) -> tuple[Line, Line]:
    """Draw noisy samples: places and values."""
    random = np.random.default_rng(seed)
    x = np.sort(random.uniform(0, 2 * np.pi, SAMPLES))
    return x, truth(x) + random.normal(0, NOISE, SAMPLES)


def by_attention(asked: Line, x: Line, y: Line, bandwidth: float) -> Line:
    """Smooth by scaled-dot attention."""
    query = np.stack([asked, np.ones_like(asked)], 1) / bandwidth
    key = np.stack([x, -(x**2) / 2], 1) / bandwidth
    query *= query.shape[1] ** 0.5  # the score divides by √d
    heads = (torch.from_numpy(each)[None, None] for each in (query, key, y[:, None]))
    smooth: Line = attend(*heads)[0, 0, :, 0].numpy()
    return smooth


def by_kernel(asked: Line, x: Line, y: Line, bandwidth: float) -> Line:
    """Smooth by the Nadaraya-Watson estimator with a Gaussian kernel."""
    apart = (asked[:, None] - x) / bandwidth
    kernel = np.exp(-(apart**2) / 2)
    return np.asarray(kernel @ y / kernel.sum(1))


def main(out: Annotated[Path, typer.Option(help="Folder of the plot.")]) -> None:
    """Print how both agree, and how far the curve is missed, by bandwidth."""
    x, y = samples()
    asked = np.linspace(x[0], x[-1], 400)
    curves = {bandwidth: by_attention(asked, x, y, bandwidth) for bandwidth in BANDWIDTHS}
    errors = {
        bandwidth: float(np.sqrt(np.mean((curve - truth(asked)) ** 2)))
        for bandwidth, curve in curves.items()
    }
    rows = []
    for bandwidth, curve in curves.items():
        apart = np.abs(curve - by_kernel(asked, x, y, bandwidth)).max()
        rows.append(
            {
                "bandwidth": f"{bandwidth}",
                "largest |attention - kernel|": f"{apart:.1e}",
                "RMS error": f"{errors[bandwidth]:.3f}",
            }
        )
    terminal.print_table(rows)
    best, widest = min(errors, key=errors.__getitem__), BANDWIDTHS[-1]
    page, axes = chart("Attention over places smooths")
    axes.plot(x, y, ".", color=GREY)
    for colour, curve in ((INK, truth(asked)), (BLUE, curves[best]), (VERMILION, curves[widest])):
        axes.plot(asked, curve, color=colour)
    legend = [(GREY, "samples"), (INK, "truth"), (BLUE, f"bandwidth {best}"),
              (VERMILION, f"bandwidth {widest}")]  # fmt: skip
    terminal.finish("one curve", [save_page(page, out / "smoothing.png", legend)])


if __name__ == "__main__":
    typer.run(main)
