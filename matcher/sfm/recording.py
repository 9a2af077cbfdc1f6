"""Record a model for the viewer rerun: its points, and its cameras at their places."""

from __future__ import annotations

from pathlib import Path

from matcher.extras import require
from matcher.sfm.mapping import Model

_RADIUS = 1.5  # of a point, in pixels of the viewer's picture


def write_recording(model: Model, path: str | Path, name: str = "model") -> Path:
    """Write a recording (.rrd), which `rerun FILE` shows.

    Args:
        model: The model.
        path: The file.
        name: Of the recording.

    Returns:
        The path.

    Raises:
        ImportError: rerun is not installed.
    """
    rerun = require("rerun", "a recording")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    stream = rerun.RecordingStream(f"tiepoint {name}")
    stream.save(str(path))
    stream.log("world", rerun.ViewCoordinates.RDF, static=True)  # as cameras: y points down
    radii = rerun.Radius.ui_points(_RADIUS)
    points = rerun.Points3D(model.points, colors=model.colours, radii=radii)
    stream.log("world/points", points, static=True)
    for view in model.views.values():
        place = f"world/cameras/{rerun.escape_entity_path_part(view.name)}"
        turn = view.pose.rotation.T  # world from camera
        stream.log(place, rerun.Transform3D(translation=view.centre, mat3x3=turn), static=True)
        size = 2 * view.intrinsics[:2, 2] + 1  # about that of the image: the view does not know
        pinhole = rerun.Pinhole(image_from_camera=view.intrinsics, resolution=size)
        stream.log(place, pinhole, static=True)
        if len(view.points):
            stream.log(place, rerun.Points2D(view.points[view.seen >= 0]), static=True)
    stream.disconnect()
    return path
