"""Results become files of known columns, whole or not at all."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from matcher import storage
from matcher.types import Matches, TemplateHit


@pytest.fixture
def matches():
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 100, (2, 5, 2))
    return Matches(*points, np.linspace(1, 0, 5), indices=np.arange(10).reshape(5, 2))


def hits(count):
    corners = np.arange(8, dtype=np.float32).reshape(4, 2)
    return [TemplateHit(1.5 * n, 2.0, 30.0, 1.1, 0.9, corners, template=n) for n in range(count)]


def test_arrays_are_written_without_rounding(tmp_path, matches):
    saved = np.load(storage.save_matches(matches, tmp_path / "new" / "matches.npz"))

    arrays = {"points0", "points1", "scores", "indices"}
    assert set(saved) == arrays | {"untrained", "quarter_turns"}
    for name in arrays:
        np.testing.assert_array_equal(saved[name], getattr(matches, name))


def test_tables_hold_a_row_a_match(tmp_path, matches):
    lines = storage.save_matches(matches, tmp_path / "m.csv").read_text().splitlines()
    table = list(csv.reader(lines))
    listed = json.loads(storage.save_matches(matches, tmp_path / "m.json").read_text())

    assert table[0] == list(listed[0]) == ["x0", "y0", "x1", "y1", "score"]
    rows = np.array(table[1:], np.float32)
    np.testing.assert_array_equal(rows[:, :2], matches.points0)
    np.testing.assert_array_equal(rows[:, 2:4], matches.points1)
    np.testing.assert_array_equal([list(row.values()) for row in listed], rows.astype(float))


# NCC-20
@pytest.mark.parametrize("ending", [".csv", ".json", ".npz"])
def test_nothing_found_is_written_with_the_same_columns(tmp_path, ending):
    for save, none, some in (
        (storage.save_matches, Matches.empty(), None),
        (storage.save_hits, [], hits(3)),
    ):
        path = save(none, tmp_path / f"none{ending}")
        if ending == ".csv":
            assert len(path.read_text().splitlines()) == 1
        elif ending == ".json":
            assert json.loads(path.read_text()) == []
        elif some is not None:
            full = np.load(save(some, tmp_path / f"some{ending}"))
            empty = np.load(path)
            assert {k: v.dtype for k, v in full.items()} == {k: v.dtype for k, v in empty.items()}
            assert {len(v) for v in empty.values()} == {0}
            assert full["corners"].shape == (3, 4, 2)


def test_other_endings_are_refused_and_leave_no_file(tmp_path, matches):
    with pytest.raises(ValueError, match=r"m\.xls must end in \.npz, \.csv or \.json"):
        storage.save_matches(matches, tmp_path / "m.xls")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path):
    path = storage.write(tmp_path / "a.txt", b"old")
    (tmp_path / "folder").mkdir()

    with pytest.raises(OSError, match="folder"):
        storage.write(tmp_path / "folder", b"new")
    storage.write(path, b"new")

    assert path.read_bytes() == b"new"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.txt", "folder"]
