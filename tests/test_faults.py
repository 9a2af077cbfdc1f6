"""Death at any write, full disks, folders that cannot be written, Ctrl-C: nothing is lost or half there."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sqlite3
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image as PilImage
from sfm_scenes import CAMERA

from matcher import assets, cli, matching, storage, weights
from matcher.evaluation import runner, settings
from matcher.evaluation.runner import read_evaluation
from matcher.features import _storage
from matcher.sfm import database
from matcher.sfm.database import read_database, write_database
from matcher.sfm.frontend import FrontEnd, MethodChoice
from matcher.sfm.photos import list_photos
from matcher.sfm.tiepoints import TiePoints
from matcher.synthesis.photographs import Photographs
from matcher.training import models
from matcher.training import settings as training
from matcher.training.loop import Run
from matcher.training.samples import Samples
from matcher.training.validation import Figures
from matcher.types import Homography, Pair

WAYS = ("before", "half", "after")


class DeathError(BaseException):
    """The process was killed: nothing of it runs any more."""


class Disk:
    """Counts the touches of the disk, and lets the process die, or the disk be full, at one of them.

    A touch is a file written, a file renamed, a line appended. Once dead, nothing is cleaned up.
    """

    def __init__(self, monkeypatch, at=-1, way="before", error=DeathError) -> None:
        self.touches, self.at, self.way, self.error, self.dead = 0, at, way, error, False
        write_bytes, rename, unlink, append = (
            Path.write_bytes, Path.replace, Path.unlink, os.write,
        )  # fmt: skip
        monkeypatch.setattr(
            Path, "write_bytes", lambda p, data: self.touch(lambda part: write_bytes(p, part), data)
        )
        monkeypatch.setattr(Path, "replace", lambda p, to: self.touch(lambda _: rename(p, to)))
        monkeypatch.setattr(
            os, "write", lambda file, data: self.touch(lambda part: append(file, part), data)
        )
        monkeypatch.setattr(
            Path, "unlink", lambda p, **how: None if self.dead else unlink(p, **how)
        )

    def touch(self, act, data=None):
        self.touches += 1
        if self.dead:
            raise self.error
        if self.touches - 1 != self.at:
            return act(data)
        self.dead = self.error is DeathError
        if self.way == "after":
            act(data)
        elif self.way == "half" and data is not None:
            act(data[: len(data) // 2])
        raise self.error


def die(monkeypatch, at, way, act):
    """Do something, and die at a touch of the disk."""
    with monkeypatch.context() as patched:
        Disk(patched, at, way)
        with pytest.raises(DeathError):
            act()


def survives_every_death(job, result, tmp_path, monkeypatch, deaths=None):
    """Kill a job at each touch of the disk, run it again, and compare with what was never killed."""
    with monkeypatch.context() as patched:
        disk = Disk(patched)
        job(tmp_path / "whole")
    whole = result(tmp_path / "whole")
    deaths = deaths or [(at, way) for at in range(disk.touches) for way in WAYS]
    for at, way in deaths:
        folder = tmp_path / f"{way} {at}"
        die(monkeypatch, at, way, partial(job, folder))
        job(folder)

        assert result(folder) == whole, (at, way)
    return len(deaths)


@pytest.fixture
def pictures(tmp_path, texture):
    folder = tmp_path / "pictures"
    folder.mkdir()
    large = texture(90, 120, sigma=2.0)
    for number, (x, y) in enumerate(((0, 0), (5, 2), (3, 7))):
        PilImage.fromarray(large[y : y + 72, x : x + 96]).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def pairs(pictures):
    shift = Homography(np.array([[1.0, 0, -5], [0, 1, -2], [0, 0, 1]]))
    paths = [pictures / f"{number}.png" for number in range(3)]
    return [
        Pair("one", paths[0], paths[1], shift),
        Pair("two", paths[0], paths[2], None),
    ]


def matches_of(image0, image1):
    height, width = image0.shape[:2]
    y, x = np.mgrid[8 : height - 8 : 8, 8 : width - 8 : 8]
    points = np.stack([x, y], axis=2).reshape(-1, 2).astype(np.float32)
    return points, points - [5, 2]


def test_an_evaluation_survives_death_at_any_write(pairs, tmp_path, monkeypatch):
    def evaluate(folder):
        runner.evaluate({"shift": matches_of}, pairs, settings.Settings(), out=folder)

    def records(folder):
        found = read_evaluation(folder).records
        return [(each.key, each.pair, each.score) for each in found]

    assert survives_every_death(evaluate, records, tmp_path, monkeypatch) == 4 * len(WAYS)


def test_descriptions_and_matches_survive_death_at_any_write(pictures, tmp_path, monkeypatch):
    photos, choice = list_photos(pictures), MethodChoice("ncc", {"max_keypoints": 60}, "cpu")
    wanted = [("0.png", "1.png"), ("1.png", "2.png")]

    def work(folder):
        front_end = FrontEnd(photos, folder, choice)
        if names := front_end.undescribed():
            front_end.describe(names)
        if left := front_end.unmatched(wanted):
            front_end.match(left)

    def content(folder):
        front_end = FrontEnd(photos, folder, choice)
        assert not front_end.undescribed()
        assert not front_end.unmatched(wanted)
        points = [front_end.description(photo.name).points.tobytes() for photo in photos]
        return points, [front_end.found(pair).points1.tobytes() for pair in wanted]

    assert survives_every_death(work, content, tmp_path, monkeypatch) == 8 * len(WAYS)


def test_a_checkpoint_survives_death_at_any_write(tmp_path, monkeypatch):
    paths = sorted((assets.folder("data") / "photos").glob("*.jpg"))[:2]
    photographs = Photographs.read(paths, long_side=120)
    small = training.Settings(
        minutes=1e6, steps=2, batch=1, sizes=((48, 64),), tokens=24, save_minutes=0.0
    )

    def train(folder):
        model = models.load("superglue-xfeat", again=True)
        chosen = replace(small, near=model.settings.near, far=model.settings.far)
        model.objective.settings = model.objective.trainable.settings = chosen
        samples = Samples(photographs, chosen)
        Run(model.objective, samples, folder, lambda _: Figures(0, 0, 0, 0, 0)).go()

    def weights_of(folder):
        kept = torch.load(folder / "checkpoint.pt", weights_only=True)
        return weights.digest(kept["averages"]), kept["progress"]["step"]

    assert survives_every_death(train, weights_of, tmp_path, monkeypatch) == 6 * len(WAYS)


def test_a_damaged_checkpoint_is_named(tmp_path):
    model = models.load("superglue-xfeat", again=True)
    (tmp_path / "checkpoint.pt").write_bytes(b"PK\x03\x04 half")
    run = Run(
        model.objective,
        Samples(Photographs.of([np.zeros((8, 8))]), training.Settings()),
        tmp_path,
        lambda _: None,
    )

    with pytest.raises(ValueError, match=r"checkpoint\.pt is no whole checkpoint: "):
        run.go()


def tied(count):
    names = ("a.png", "b.png")
    points = np.random.default_rng(count).uniform(0, 20, (count, 2)).astype(np.float32)
    rows = np.stack([np.arange(count)] * 2, axis=1)
    return TiePoints(names, (CAMERA,), (0, 0), dict.fromkeys(names, points), {names: rows})


def content(path):
    read = read_database(path)
    return {name: points.tobytes() for name, points in read.keypoints.items()}, len(read.pairs)


def test_a_database_shows_the_old_or_the_new_at_any_statement(tmp_path, monkeypatch):
    path = write_database(tmp_path / "a.db", tied(3))
    old = content(path)
    copies = []

    def copy(_):  # what the disk holds if the process dies now
        folder = tmp_path / str(len(copies))
        folder.mkdir()
        for file in tmp_path.glob("a.db*"):
            shutil.copy(file, folder)
        copies.append(folder / "a.db")

    connect = sqlite3.connect

    def traced(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.set_trace_callback(copy)
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(database.sqlite3, "connect", traced)
        write_database(path, tied(7))
    new = content(path)

    assert len(copies) > 10
    for each in copies:
        assert content(each) in (old, new)
        write_database(each, tied(7))
        assert content(each) == new


def test_a_model_is_whole_or_the_old_one(tmp_path, monkeypatch):
    old, new = {"a": torch.zeros(3)}, {"a": torch.ones(3)}
    path = tmp_path / "weights.safetensors"
    weights.save(old, path)

    for way, there in (("before", old), ("after", new)):
        die(monkeypatch, 0, way, partial(weights.save, new, path))
        assert torch.equal(weights.state_dict(path)["a"], there["a"])
    weights.save(new, path)
    assert torch.equal(weights.state_dict(path)["a"], new["a"])


# --- disks and folders --------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_disk_that_takes_no_more_leaves_what_was_there(tmp_path, monkeypatch, code):
    path = storage.write(tmp_path / "a.txt", b"old")

    for at, way in ((0, "half"), (1, "before")):
        with monkeypatch.context() as patched:
            Disk(patched, at, way, OSError(code, os.strerror(code), str(path)))
            with pytest.raises(OSError, match=os.strerror(code)):
                storage.write(path, b"new, and longer")

    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]


def test_a_full_disk_ends_a_command_with_one_line_and_code_1(
    pictures, tmp_path, monkeypatch, capsys
):
    arguments = ["match", str(pictures / "0.png"), str(pictures / "1.png"), "--method", "ncc"]
    with monkeypatch.context() as patched:
        Disk(patched, 0, "half", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "m.csv"))
        code = cli.run([*arguments, "--out", str(tmp_path / "m.csv")])

    assert code == 1
    assert "No space left on device" in capsys.readouterr().err
    assert not list(tmp_path.glob("*m.csv*"))
    assert cli.run([*arguments, "--out", str(tmp_path / "m.csv")]) == 0


def test_a_folder_that_cannot_be_made_is_named(pictures, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = ["match", str(pictures / "0.png"), str(pictures / "1.png"), "--method", "ncc"]

    assert cli.run([*arguments, "--out", str(tmp_path / "file" / "m.csv")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_a_line_of_which_the_disk_took_half_is_an_error_and_runs_again(
    pairs, tmp_path, monkeypatch
):
    append = os.write

    def take_half(file, data):
        return append(file, data[: len(data) // 2])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", take_half)
        with pytest.raises(OSError, match="No space left") as error:
            runner.evaluate({"shift": matches_of}, pairs, out=tmp_path / "out")
    found = runner.evaluate({"shift": matches_of}, pairs, out=tmp_path / "out")

    assert error.value.filename.endswith("records.jsonl")
    assert read_evaluation(tmp_path / "out").records == found.records


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: processes in the background are started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_with_130_and_a_rerun_goes_on(pairs, tmp_path, monkeypatch, capsys):
    listed = pairs[0].image0.parent / "pairs.txt"
    listed.write_text("0.png 1.png\n0.png 2.png\n1.png 2.png\n")
    arguments = ["evaluate", str(listed), "--methods", "ncc", "--out", str(tmp_path / "out")]
    append, lines = os.write, []

    def interrupt(file, data):
        lines.append(data)
        if len(lines) == 2:
            signal.raise_signal(signal.SIGINT)
        return append(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", interrupt)
        assert cli.run(arguments) == 130
    assert "interrupted" in capsys.readouterr().err
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "out" / "run.json").exists()
    assert cli.run(arguments) == 0
    assert len(read_evaluation(tmp_path / "out").records) == 6  # refined and grown


def test_two_runs_may_write_one_file_at_once(tmp_path, monkeypatch):
    write_bytes, other = Path.write_bytes, []

    def interleaved(path, data):
        if not other:
            other.append(path)
            storage.write(tmp_path / "a.npz", b"of the other run")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", interleaved)
    storage.write(tmp_path / "a.npz", b"of this run")

    assert (tmp_path / "a.npz").read_bytes() == b"of this run"
    assert len(list(tmp_path.iterdir())) == 1


def test_saved_descriptions_are_whole_or_not_there(tmp_path, monkeypatch, texture):
    method = matching.create("ncc", device="cpu", refine=False)
    described = method.describe([texture(48, 64).astype(np.float32) / 255])[0]
    die(monkeypatch, 0, "before", partial(_storage.save, described, tmp_path / "a.npz"))

    assert not (tmp_path / "a.npz").exists()
    _storage.save(described, tmp_path / "a.npz")
    np.testing.assert_array_equal(_storage.load(tmp_path / "a.npz").points, described.points)


def test_figures_are_whole_or_not_there(tmp_path, monkeypatch):
    page = Figure(figsize=(1, 1))
    for path in (tmp_path / "a.png", tmp_path / "new" / "a.svg"):
        for way in ("before", "half"):
            die(monkeypatch, 0, way, partial(storage.write_figure, path, page))
            assert not path.exists()
        assert storage.write_figure(path, page).stat().st_size > 100
