"""Turn a video into a folder of images, once."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image as PilImage

from matcher.tracking.frames import frames

_RECORD = "frames.json"  # in the folder: which frames of what it holds


def write_frames(video: str | Path, folder: str | Path, every: int = 10) -> Path:
    """Write frames of a video as PNG files named by their numbers; nothing if they are there.

    The folder appears when all frames are written, so what a stopped run leaves is never taken for all.

    Args:
        video: A file that OpenCV opens.
        folder: For the frames.
        every: Of so many frames the first is written; the others are passed over.

    Returns:
        The folder.

    Raises:
        ValueError: OpenCV cannot open the file, it has no frame, or the folder holds something else.
        ImportError: OpenCV is not installed.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, not {every}")
    video, folder = Path(video), Path(folder)
    with video.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    record = json.dumps({"sha256": content, "every": every})
    if folder.exists():
        _check(folder / _RECORD, record, f"frames of {video.name}, one of every {every}")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=".", suffix=".part") as unfinished:
        written = Path(unfinished) / folder.name
        written.mkdir()
        _write(video, written, every)
        (written / _RECORD).write_text(record, encoding="utf-8")
        written.rename(folder)
    return folder


def _check(path: Path, record: str, wanted: str) -> None:
    """Refuse a folder that holds anything else."""
    if not path.is_file() or path.read_text(encoding="utf-8") != record:
        raise ValueError(f"{path.parent} holds other things than {wanted}: choose another folder")


def _write(video: Path, folder: Path, every: int) -> None:
    number = -1
    for number, frame in islice(enumerate(frames(video)), 0, None, every):
        pixels = np.round(frame * 255).astype(np.uint8)
        PilImage.fromarray(pixels).save(folder / f"{number:06d}.png", compress_level=1)
    if number < 0:
        raise ValueError(f"{video} has no frames")
