"""Explain why a mapper would refuse a database, or do badly with it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from matcher.reading import refusing
from matcher.sfm import schema

TABLES = ("cameras", "images", "keypoints", "matches", "two_view_geometries")
MIN_PAIR = 15  # COLMAP's default: verified matches that make a pair count
MIN_START = 100  # COLMAP's default: verified matches of the pair that a model starts with
_WANTED = {  # columns that readers ask for, by table
    "cameras": {"camera_id", "model", "width", "height", "params", "prior_focal_length"},
    "images": {"image_id", "name", "camera_id"},
    "keypoints": {"image_id", "rows", "cols", "data"},
    "matches": {"pair_id", "rows", "cols", "data"},
    "two_view_geometries": {"pair_id", "rows", "cols", "data", "config", "F", "E", "H"},
}


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        severity: "error" where a mapper refuses or crashes, "warning" where it does badly.
        message: What is wrong and where.
        remedy: What to do.
    """

    severity: str
    message: str
    remedy: str


@dataclass(frozen=True)
class Report:
    """What a database holds and what is wrong with it.

    Attributes:
        rows: Number of rows by table.
        findings: Errors first.
    """

    rows: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether a mapper would start."""
        return not any(finding.severity == "error" for finding in self.findings)


def check_database(path: str | Path) -> Report:
    """Check a database of COLMAP 3 or 4, whoever wrote it.

    Raises:
        FileNotFoundError: There is none.
        OSError: It is no database.
    """
    with (
        closing(schema.open_to_read(path)) as connection,
        refusing(path, "database of tie points"),
    ):
        rows = {table: _count(connection, table) for table in TABLES}
        missing = list(_check_columns(connection))
        findings = missing or [
            *_check_keypoints(connection),
            *_check_matches(connection),
            *_check_verified(connection),
        ]
    findings.sort(key=lambda finding: finding.severity)
    return Report(rows, tuple(findings))


def _count(connection: sqlite3.Connection, table: str) -> int:
    if not schema.columns(connection, table):
        return 0
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def _check_columns(connection: sqlite3.Connection) -> Iterator[Finding]:
    for table, wanted in _WANTED.items():
        there = set(schema.columns(connection, table))
        if not there:
            yield Finding("error", f"there is no table {table}", "write the database anew")
        elif lacking := sorted(wanted - there):
            yield Finding(
                "error",
                f"table {table} lacks the columns {', '.join(lacking)}",
                "open it once with the COLMAP that is to read it, or write it anew",
            )


def _check_keypoints(connection: sqlite3.Connection) -> Iterator[Finding]:
    images = dict(connection.execute("SELECT image_id, name FROM images"))
    known = {}
    for image_id, rows, cols, data in connection.execute(
        "SELECT image_id, rows, cols, data FROM keypoints"
    ):
        known[image_id] = rows
        if len(data or b"") != 4 * rows * cols or cols not in (2, 4, 6):
            yield Finding(
                "error",
                f"keypoints of {images.get(image_id, image_id)!r}: {len(data or b'')} bytes for "
                f"{rows} x {cols} float32",
                "write them as float32 with 2, 4 or 6 columns",
            )
        elif rows and _whole(np.frombuffer(data, np.float32).reshape(rows, cols)[:, :2]):
            yield Finding(
                "warning",
                f"keypoints of {images.get(image_id, image_id)!r} are all whole numbers",
                "add 0.5: COLMAP's (0, 0) is the corner of the top-left pixel",
            )
    if without := sorted(name for image, name in images.items() if not known.get(image)):
        yield Finding("warning", f"no keypoints: {_some(without)}", "match these images again")


def _whole(points: np.ndarray) -> bool:
    return bool((points == np.floor(points)).all())


def _check_matches(connection: sqlite3.Connection) -> Iterator[Finding]:
    images = dict(connection.execute("SELECT image_id, name FROM images"))
    counts = dict(connection.execute("SELECT image_id, rows FROM keypoints"))
    for table in ("matches", "two_view_geometries"):
        for key, rows, data in connection.execute(f"SELECT pair_id, rows, data FROM {table}"):
            ids = schema.image_ids(key)
            label = f"{table}, pair {key} ({', '.join(str(images.get(i, i)) for i in ids)})"
            if unknown := [i for i in ids if i not in images]:
                yield Finding("error", f"{label}: no image {unknown[0]}", "write the pair anew")
            elif len(data or b"") != 8 * rows:
                yield Finding(
                    "error",
                    f"{label}: {len(data or b'')} bytes for {rows} x 2 uint32",
                    "write matches as uint32, two columns",
                )
            else:
                yield from _check_indices(label, data or b"", [counts.get(i, 0) for i in ids])


def _check_indices(label: str, data: bytes, counts: list[int]) -> Iterator[Finding]:
    pairs = np.frombuffer(data, np.uint32).reshape(-1, 2)
    beyond = np.flatnonzero((pairs >= np.array(counts)).any(axis=1))
    if len(beyond):
        yield Finding(
            "error",
            f"{label}: match {beyond[0]} is {tuple(pairs[beyond[0]].tolist())}, but there are "
            f"{counts[0]} and {counts[1]} keypoints",
            "the keypoints are not those that were matched: match again",
        )
    if len(np.unique(pairs, axis=0)) < len(pairs):
        yield Finding("warning", f"{label}: matches are listed twice", "write each once")


def _check_verified(connection: sqlite3.Connection) -> Iterator[Finding]:
    raw = dict(connection.execute("SELECT pair_id, rows FROM matches WHERE rows > 0"))
    verified = dict(
        connection.execute(
            "SELECT pair_id, rows FROM two_view_geometries WHERE rows > 0 AND config > 1"
        )
    )
    if not verified:
        yield Finding(
            "error",
            f"{len(raw)} pairs have matches, none is verified: a mapper reads only verified ones",
            "verify: pycolmap.geometric_verification(DATABASE), or `matcher sfm`, which does",
        )
        return
    if (most := max(verified.values())) < MIN_START:
        yield Finding(
            "warning",
            f"no pair has {MIN_START} verified matches to start a model with; the best has {most}",
            f"lower Mapper.init_min_num_inliers to {most} or less",
        )
    yield from _check_weak_pairs(connection, verified)
    yield from _check_graph(connection, verified)
    yield from _check_subset(connection)


def _check_weak_pairs(
    connection: sqlite3.Connection, verified: dict[int, int]
) -> Iterator[Finding]:
    weak = {key: rows for key, rows in verified.items() if rows < MIN_PAIR}
    if weak:
        names = dict(connection.execute("SELECT image_id, name FROM images"))
        listed = [
            f"{', '.join(str(names.get(i, i)) for i in schema.image_ids(key))}: {rows}"
            for key, rows in sorted(weak.items())
        ]
        yield Finding(
            "warning",
            f"{len(weak)} pairs have fewer than {MIN_PAIR} verified matches: {_some(listed, '; ')}",
            f"lower Mapper.min_num_matches to {min(weak.values())}, or take more keypoints",
        )


def _check_graph(connection: sqlite3.Connection, verified: dict[int, int]) -> Iterator[Finding]:
    """Look for images that verified pairs do not join."""
    names = dict(connection.execute("SELECT image_id, name FROM images"))
    row = {image_id: number for number, image_id in enumerate(names)}
    ends = np.array([[row[i] for i in schema.image_ids(key)] for key in verified]).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(len(row), len(row)))
    count, parts = connected_components(graph, directed=False)
    if count > 1:
        sizes = [size for _, size in Counter(parts.tolist()).most_common()]
        yield Finding(
            "warning",
            f"verified pairs join the {len(row)} images to {count} parts of "
            f"{_some([str(size) for size in sizes])} images: each gives a model of its own, or none",
            "add pairs between the parts",
        )


def _check_subset(connection: sqlite3.Connection) -> Iterator[Finding]:
    """Look for verified matches that are not among the raw ones."""
    joined = (
        "SELECT g.pair_id, g.data, m.data FROM two_view_geometries g "
        "JOIN matches m ON g.pair_id = m.pair_id WHERE g.rows > 0"
    )
    for key, verified, raw in connection.execute(joined):
        chosen, listed = (np.frombuffer(data or b"", np.uint64) for data in (verified, raw))
        if not np.isin(chosen, listed).all():
            yield Finding(
                "warning",
                f"pair {key} has verified matches that are not among its raw ones",
                "write raw and verified matches in one go",
            )


def _some(items: list[str], between: str = ", ", most: int = 5) -> str:
    shown = between.join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
