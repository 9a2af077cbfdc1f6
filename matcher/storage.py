"""Write results as files that other programs read: npz, csv or json, whole or not at all."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from matcher.types import Matches, TemplateHit

_MATCH_COLUMNS = ("x0", "y0", "x1", "y1", "score")
_HIT_COLUMNS = ("template", "x", "y", "angle_degrees", "scale", "score", "second_score", "detail")


def save_matches(matches: Matches, path: str | Path) -> Path:
    """Write matches; the ending of the name chooses the form.

    - .npz: an array a field of `Matches`, without rounding; fields that are None are left out.
    - .csv: a row a match, columns x0, y0, x1, y1, score; a file without matches has the header.
    - .json: a list of objects with those keys.

    Args:
        matches: Any number of them.
        path: Missing folders are made.

    Returns:
        The path.

    Raises:
        ValueError: The name has another ending.
    """
    columns = [*matches.points0.T, *matches.points1.T, matches.scores]
    rows = np.stack(columns, axis=1).astype(np.float64).tolist()
    arrays = {name: value for name, value in vars(matches).items() if value is not None}
    return write(path, _encode(Path(path), _MATCH_COLUMNS, rows, arrays))


def save_hits(hits: Sequence[TemplateHit], path: str | Path) -> Path:
    """Write template hits as `save_matches` writes matches; npz and json have the corners too.

    Raises:
        ValueError: The name ends neither in .npz, .csv nor .json.
    """
    rows = [[float(getattr(hit, name)) for name in _HIT_COLUMNS] for hit in hits]
    table = np.array(rows, np.float64).reshape(-1, len(_HIT_COLUMNS))
    corners = np.array([hit.corners for hit in hits], np.float32).reshape(-1, 4, 2)
    arrays = {**dict(zip(_HIT_COLUMNS, table.T, strict=True)), "corners": corners}
    return write(path, _encode(Path(path), _HIT_COLUMNS, rows, arrays))


def write(path: str | Path, data: bytes) -> Path:
    """Write a file under another name, then rename it: a reader sees all of it or nothing."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished:
        unfinished.write_bytes(data)
    return path


def write_figure(path: str | Path, figure: Any, **how: Any) -> Path:
    """Write a figure of matplotlib in the form that the name's ending says; png without one.

    Args:
        path: The file.
        figure: The figure.
        **how: What `savefig` takes.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=Path(path).suffix[1:] or "png", **how)
    return write(path, drawn.getvalue())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name to write a file under; when the block ends well, the file gets its own name.

    The name is nobody else's, whatever process, container or machine writes in the folder too. It
    ends in .part: what a killed run leaves is read by nothing.
    """
    unfinished = path.with_name(f".{uuid4().hex}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _encode(
    path: Path, columns: Sequence[str], rows: list[list[float]], arrays: dict[str, Any]
) -> bytes:
    ending = path.suffix.lower()
    if ending == ".npz":
        binary = io.BytesIO()
        np.savez(binary, **arrays)
        return binary.getvalue()
    if ending == ".csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerows([columns, *rows])
        return text.getvalue().encode()
    if ending == ".json":
        return json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=1).encode()
    raise ValueError(f"{path} must end in .npz, .csv or .json")
