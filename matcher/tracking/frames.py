"""Take frames from a folder of images, a video file or a camera."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from matcher import images
from matcher.extras import require
from matcher.types import Image


def frames(source: str | Path | int) -> Iterator[Image]:
    """Yield the frames of a source, float32 in [0, 1], grey or RGB.

    Args:
        source: A folder, whose images come in natural order; a video file; or the number of a
            camera. The last two need OpenCV.

    Raises:
        FileNotFoundError: There is no such folder or file.
        ValueError: The folder has no images, or OpenCV cannot open the source.
        ImportError: OpenCV is needed and missing.
    """
    text = str(source)
    if not text.isdigit():
        path = Path(text)
        if not path.exists():
            raise FileNotFoundError(f"no folder, video or camera {text!r}")
        if path.is_dir():
            yield from _of_folder(path)
            return
    yield from _of_video(int(text) if text.isdigit() else text)


def _of_folder(folder: Path) -> Iterator[Image]:
    found, _ = images.list_images(folder)
    if not found:
        raise ValueError(f"{folder} has no images")
    for path in found:
        yield images.read(path)


def _of_video(source: str | int) -> Iterator[Image]:
    cv2 = require("cv2", "a video or a camera")
    capture = cv2.VideoCapture(source)
    try:
        if not capture.isOpened():
            raise ValueError(f"OpenCV cannot open {source!r} as a video or a camera")
        while True:
            there, frame = capture.read()
            if not there:
                return
            yield images.read(frame[:, :, ::-1] if frame.ndim == 3 else frame)
    finally:
        capture.release()
