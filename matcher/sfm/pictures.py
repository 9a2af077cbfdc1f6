"""Look at a model: a picture from three sides, and a PLY file for viewers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from matcher.sfm.mapping import Model
from matcher.storage import write, write_figure
from matcher.types import Matrix

_SIDES = (("from above", 0, 2), ("from behind", 0, 1), ("from the side", 2, 1))


def draw_model(model: Model, path: str | Path, title: str = "") -> Path:
    """Draw points and cameras from three sides.

    Args:
        model: From `make_models`.
        path: A .png, .jpg, .pdf or .svg.
        title: Over the picture.

    Returns:
        The path.
    """
    centres = np.array([view.centre for view in model.views.values()]).reshape(-1, 3)
    figure = Figure(figsize=(12, 4), layout="constrained")
    figure.suptitle(title)
    centred, cameras = _levelled(model.points, centres, model)
    inside = _inside(centred)
    for axes, (name, x, y) in zip(figure.subplots(1, 3), _SIDES, strict=True):
        shown = centred[inside]
        axes.scatter(shown[:, x], shown[:, y], s=0.6, c=model.colours[inside] / 255, linewidths=0)
        axes.plot(cameras[:, x], cameras[:, y], "r.", markersize=5)
        axes.set_title(name, fontsize=9)
        axes.set_aspect("equal")
        axes.set_axis_off()
        if y == 1:  # y points down in cameras
            axes.invert_yaxis()
    return write_figure(path, figure, dpi=150)


def _levelled(points: Matrix, centres: Matrix, model: Model) -> tuple[Matrix, Matrix]:
    """Turn the world so that the mean camera looks along z with y down."""
    if not len(centres):
        return points, centres
    axes = np.mean([view.pose.rotation for view in model.views.values()], axis=0)
    left, _, right = np.linalg.svd(axes)
    turn = left @ right
    origin = centres.mean(axis=0)
    return (points - origin) @ turn.T, (centres - origin) @ turn.T


def _inside(points: Matrix) -> NDArray[np.bool_]:
    """Tell which points are not far out: stray points would shrink all others to a dot."""
    if not len(points):
        return np.zeros(0, bool)
    low, high = np.quantile(points, [0.02, 0.98], axis=0)
    margin = (high - low) / 2
    return np.asarray(((points >= low - margin) & (points <= high + margin)).all(axis=1))


def write_ply(model: Model, path: str | Path) -> Path:
    """Write points with their colours, and camera centres in red, as binary PLY."""
    centres = np.array([view.centre for view in model.views.values()]).reshape(-1, 3)
    places = np.concatenate([model.points, centres])
    colours = np.concatenate([model.colours, np.full((len(centres), 3), (255, 0, 0), np.uint8)])
    rows = np.zeros(len(places), [("xyz", "<f4", 3), ("rgb", "u1", 3)])
    rows["xyz"], rows["rgb"] = places, colours
    names = "".join(f"property float {axis}\n" for axis in "xyz")
    names += "".join(f"property uchar {colour}\n" for colour in ("red", "green", "blue"))
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(rows)}\n{names}end_header\n"
    return write(path, head.encode() + rows.tobytes())
