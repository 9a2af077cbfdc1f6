"""From images to tie points and models: restarts, workers, mapping, localisation, commands."""

from __future__ import annotations

import csv
import os
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from PIL import Image
from sfm_scenes import CAMERA, cloud, poses, project, tie_points

from matcher import cli
from matcher.sfm import frontend
from matcher.sfm.accuracy import align, compare_cameras
from matcher.sfm.cameras import Camera
from matcher.sfm.checking import check_database
from matcher.sfm.choosing import PairChoice, choose_pairs
from matcher.sfm.database import read_database, write_database
from matcher.sfm.distribution import Alone, Processes, RayCrew, cut
from matcher.sfm.frontend import FrontEnd, MethodChoice
from matcher.sfm.geometry import Config, Rejection, VerifyOptions, verify_pair
from matcher.sfm.localisation import best_views, localise, solve
from matcher.sfm.mapping import MapOptions, Model, View, make_models, read_model
from matcher.sfm.photos import list_photos
from matcher.sfm.pictures import draw_model, write_ply
from matcher.sfm.pipeline import Settings, as_seen, reconstruct
from matcher.sfm.recording import write_recording
from matcher.sfm.store import MatchStore
from matcher.types import Matches

CHOICE = MethodChoice("ncc", {"max_keypoints": 150}, "cpu")
SHIFTS = ((0, 0), (6, 2), (3, 9), (11, 5))


@pytest.fixture
def folder(tmp_path, texture):
    """Four views of a flat texture, each shifted: a point of view i is that of view 0 less SHIFTS[i]."""
    large = texture(200, 240, sigma=2.0)
    (tmp_path / "images").mkdir()
    for number, (x, y) in enumerate(SHIFTS):
        Image.fromarray(large[y : y + 150, x : x + 190]).save(tmp_path / f"images/v{number}.png")
    return tmp_path / "images"


def settings(**changes):
    return Settings(**{"method": CHOICE, "mapping": None} | changes)


def files_in(folder, part):
    return {path.name: path.read_bytes() for path in (folder / part).rglob("*.npz")}


def test_tie_points_of_a_flat_scene_are_exact(folder, tmp_path):
    result = reconstruct(folder, tmp_path / "out", settings())

    tied = result.tie_points
    assert tied.names == ("v0.png", "v1.png", "v2.png", "v3.png")
    assert result.track_length > 2.5
    for (one, other), rows in tied.verified().items():
        step = np.subtract(SHIFTS[int(one[1])], SHIFTS[int(other[1])])
        moves = tied.keypoints[other][rows[:, 1]] - tied.keypoints[one][rows[:, 0]]
        assert len(rows) > 30
        errors = np.abs(moves - step).max(axis=1)
        assert errors.max() < 1
        assert np.mean(errors < 0.3) > 0.98
    assert {geometry.config for geometry in tied.geometries.values()} == {Config.PLANAR}
    assert all(not report.reason for report in result.reports)
    with (tmp_path / "out/pairs.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 6
    read = read_database(result.database)
    np.testing.assert_array_equal(read.keypoints["v2.png"], tied.keypoints["v2.png"])


# SFM-13
def test_a_second_run_does_nothing_again_and_gives_the_same(folder, tmp_path, monkeypatch):
    first = reconstruct(folder, tmp_path / "out", settings())
    before = read_database(first.database)

    def forbidden(*_):
        raise AssertionError("done already")

    monkeypatch.setattr(FrontEnd, "describe", forbidden)
    monkeypatch.setattr(FrontEnd, "match", forbidden)
    reconstruct(folder, tmp_path / "out", settings())

    after = read_database(first.database)
    for name, points in before.keypoints.items():
        np.testing.assert_array_equal(after.keypoints[name], points)
    for pair, rows in before.pairs.items():
        np.testing.assert_array_equal(after.pairs[pair], rows)


def test_a_turned_photo_is_tied_where_turns_are_asked_for(folder, tmp_path, monkeypatch):
    Image.fromarray(np.rot90(np.array(Image.open(folder / "v1.png")))).save(folder / "v1.png")
    asked = settings(method=replace(CHOICE, turns=True))

    plain = reconstruct(folder, tmp_path / "plain", settings())
    result = reconstruct(folder, tmp_path / "out", asked)

    turned = ("v0.png", "v1.png")
    assert turned not in plain.tie_points.verified()
    tied, rows = result.tie_points, result.tie_points.verified()[turned]
    x, y = tied.keypoints["v1.png"][rows[:, 1]].T
    upright = np.stack([189 - y, x], axis=1)  # of np.rot90, 190 pixels wide before
    moves = upright - tied.keypoints["v0.png"][rows[:, 0]]
    assert len(rows) > 30
    errors = np.abs(moves + SHIFTS[1]).max(axis=1)
    assert errors.max() < 1
    assert np.mean(errors < 0.3) > 0.98
    monkeypatch.setattr(FrontEnd, "describe", None)  # kept: not called again
    monkeypatch.setattr(FrontEnd, "match", None)
    again = reconstruct(folder, tmp_path / "out", asked)
    np.testing.assert_array_equal(again.tie_points.pairs[turned], tied.pairs[turned])


# SFM-13
def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(frontend, "BATCH", 1)
    whole = reconstruct(folder, tmp_path / "whole", settings())
    out = tmp_path / "out"

    class KilledError(Exception):
        pass

    def stop(stage, done, _):
        if stage == "describe":
            raise KilledError

    with pytest.raises(KilledError):
        reconstruct(folder, out, settings(), progress=stop)
    part = next((out / "descriptions").rglob("*.npz"))
    part.write_bytes(part.read_bytes()[:200])  # as if the disk had lost the rest
    (out / "descriptions/.123.npz.part").write_bytes(b"half")

    again = reconstruct(folder, out, settings())

    assert again.tie_points.pairs.keys() == whole.tie_points.pairs.keys()
    for name, points in whole.tie_points.keypoints.items():
        np.testing.assert_array_equal(again.tie_points.keypoints[name], points)
    assert files_in(out, "descriptions") == files_in(tmp_path / "whole", "descriptions")


# SFM-11
def test_what_has_changed_is_made_again_and_only_that(folder, tmp_path):
    make = partial(FrontEnd, list_photos(folder), tmp_path / "out", CHOICE)
    front_end = make()
    front_end.describe(front_end.undescribed())
    pairs = [("v0.png", "v1.png"), ("v1.png", "v2.png")]
    front_end.match(pairs)

    assert not make().undescribed()
    assert not make().unmatched(pairs)
    Image.fromarray(np.array(Image.open(folder / "v0.png"))[::-1]).save(folder / "v0.png")
    assert make().undescribed() == ["v0.png"]
    assert make().unmatched(pairs) == [("v0.png", "v1.png")]
    other = FrontEnd(
        list_photos(folder), tmp_path / "out", MethodChoice("ncc", {"max_keypoints": 9})
    )
    assert len(other.undescribed()) == 4
    assert len(make().undescribed()) == 1
    smaller = FrontEnd(list_photos(folder), tmp_path / "out", CHOICE, 100)
    assert len(smaller.undescribed()) == 4


def test_a_damaged_shard_is_said(tmp_path):
    store = MatchStore(tmp_path)
    none = Matches.empty()
    store.save("s", {"k": none})
    (tmp_path / "s.npz").write_bytes(b"PK")

    with pytest.raises(OSError, match="s.npz is damaged: delete it and match again"):
        store.load("k")


# SFM-13
def test_processes_give_the_same_bits_as_one(folder, tmp_path, monkeypatch):
    alone = reconstruct(folder, tmp_path / "one", settings())

    many = reconstruct(folder, tmp_path / "two", settings(workers=2))

    assert files_in(tmp_path / "one", "matches") == files_in(tmp_path / "two", "matches")
    assert alone.database.read_bytes() == many.database.read_bytes()


class Fragile(FrontEnd):
    """Dies once, at its first match."""

    def match(self, pairs):
        mark = self.descriptions.folder / "died"
        if not mark.exists():
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().match(pairs)


class Doomed(FrontEnd):
    """Dies at every match."""

    def match(self, pairs):
        os.kill(os.getpid(), signal.SIGKILL)


def matched(crew, folder, out):
    """Match all pairs by a crew, a pair a block; return the shards."""
    front_end = FrontEnd(list_photos(folder), out, CHOICE)
    pairs = choose_pairs(PairChoice("exhaustive"), front_end, folder)
    numbers = [number for number, _ in crew.run("match", cut(pairs, 1))]
    assert sorted(numbers) == list(range(6))
    assert not front_end.unmatched(pairs)
    return files_in(out, "matches")


# SFM-13
def test_a_killed_process_loses_nothing(folder, tmp_path):
    photos = list_photos(folder)
    alone = matched(Alone(FrontEnd(photos, tmp_path / "one", CHOICE)), folder, tmp_path / "one")

    with Processes(partial(Fragile, photos, tmp_path / "two", CHOICE), 1) as crew:
        many = matched(crew, folder, tmp_path / "two")

    assert (tmp_path / "two/descriptions/died").exists()
    assert alone == many


def test_processes_that_die_again_and_again_are_given_up(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("matcher.sfm.distribution.ATTEMPTS", 1)
    with (
        Processes(partial(Doomed, list_photos(folder), tmp_path, CHOICE), 1) as crew,
        pytest.raises(RuntimeError, match="workers died 1 times at match: is the memory too small"),
    ):
        list(crew.run("match", [[("v0.png", "v1.png")]]))
    with pytest.raises(ValueError, match="there must be at least 1 worker, not 0"):
        Processes(partial(FrontEnd, [], tmp_path), 0)
    with pytest.raises(ValueError, match="there must be at least 1 worker, not 0"):
        RayCrew(partial(FrontEnd, [], tmp_path), 0)


@pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning"
)
def test_two_ray_actors_of_which_one_is_killed_give_the_same_bits(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 on a busy machine takes minutes
    ray = pytest.importorskip("ray")
    photos = list_photos(folder)
    alone = matched(Alone(FrontEnd(photos, tmp_path / "one", CHOICE)), folder, tmp_path / "one")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        with RayCrew(partial(FrontEnd, photos, tmp_path / "two", CHOICE), 2) as crew:
            work = crew.run("match", cut(list(pairs_of(photos)), 1))
            next(work)
            ray.kill(crew.actors[0], no_restart=False)
            list(work)
    finally:
        ray.shutdown()

    assert files_in(tmp_path / "two", "matches") == alone


def pairs_of(photos):
    names = [photo.name for photo in photos]
    return [(one, other) for i, one in enumerate(names) for other in names[i + 1 :]]


def test_pairs_are_chosen_by_name_or_read_from_a_list(folder, tmp_path):
    front_end = FrontEnd(list_photos(folder), tmp_path / "out", CHOICE)

    assert len(choose_pairs(PairChoice(), front_end, folder)) == 6
    assert len(choose_pairs(PairChoice("retrieval", partners=1), front_end, folder)) in range(2, 5)
    chosen = choose_pairs(PairChoice("sequential", overlap=1, partners=1), front_end, folder)
    assert ("v0.png", "v1.png") in chosen
    (tmp_path / "list.txt").write_text("v1.png v0.png\n")
    listed = choose_pairs(PairChoice(str(tmp_path / "list.txt")), front_end, folder)
    assert listed == [("v0.png", "v1.png")]
    with pytest.raises(
        ValueError, match="no pairs 'all'; there are auto, exhaustive, gps, retrieval"
    ):
        choose_pairs(PairChoice("all"), front_end, folder)


def test_cameras_of_shrunk_photos_keep_their_view():
    camera = Camera("PINHOLE", 640, 480, (500, 500, 320, 240), known=True)

    small = as_seen(camera, 320)

    assert (small.width, small.height) == (320, 240)
    assert small.params == (250, 250, 160, 120)
    assert as_seen(camera, None).params == camera.params
    assert not as_seen(Camera.guessed((480, 640)), 320).known


# SFM-10
def test_pairs_are_rejected_with_a_reason():
    generator = np.random.default_rng(0)
    world, (one, other, *_) = cloud(80), poses(4).values()
    points = project(one, world), project(other, world)
    noise = generator.uniform(0, 480, (2, 60, 2)).astype(np.float32)
    line = np.stack([np.arange(40.0), np.arange(40.0)], axis=1).astype(np.float32)
    cases = {
        Rejection.NONE: points,
        Rejection.NO_MATCHES: (line[:0], line[:0]),
        Rejection.FEW_MATCHES: (points[0][:14], points[1][:14]),
        Rejection.DEGENERATE: (line, line + 5),
    }

    for reason, given in cases.items():
        assert verify_pair(given, (CAMERA, CAMERA)).rejection is reason
    chance = verify_pair(tuple(noise), (CAMERA, CAMERA))
    assert chance.rejection in (Rejection.CHANCE, Rejection.FEW_INLIERS)
    assert not chance.inliers.any()
    still = verify_pair((points[0], points[0]), (CAMERA, CAMERA))
    assert still.rejection is Rejection.NO_MOTION
    assert verify_pair(points, (CAMERA, CAMERA)).config is Config.CALIBRATED
    unknown = Camera.guessed((480, 640))
    assert verify_pair(points, (unknown, unknown)).config is Config.UNCALIBRATED
    with pytest.raises(ValueError, match="threshold must be positive pixels, not 0"):
        VerifyOptions(threshold=0)
    with pytest.raises(ValueError, match="min_inliers must be at least 5, not 4"):
        VerifyOptions(min_inliers=4)


# SFM-01, SFM-09
@pytest.mark.parametrize(("mapper", "version"), [("incremental", "3"), ("global", "4")])
def test_models_have_the_cameras_and_points_that_were_projected(tmp_path, mapper, version):
    pycolmap = pytest.importorskip("pycolmap")
    pycolmap.logging.minloglevel = 3
    tied = tie_points(6, 300, noise=0.1)
    path = write_database(tmp_path / "d.db", tied, version)
    options = MapOptions(mapper, keep_intrinsics=True, threads=1)

    model = make_models(path, tmp_path, tmp_path / "sparse", options)[0]

    accuracy = compare_cameras(model, poses(6))
    assert accuracy.registered == accuracy.total == 6
    assert accuracy.centre_largest < 0.01
    assert accuracy.rotation_largest < 0.1
    assert model.summary["track length"] > 5
    assert model.summary["reprojection error px"] < 0.2
    stored = read_model(next(path for path in (tmp_path / "sparse").iterdir() if path.is_dir()))
    assert list(stored.views) == list(model.views)
    np.testing.assert_allclose(stored.points, model.points)
    view = model.views["view3.png"]
    shown = view.seen >= 0
    rays = model.points[view.seen[shown]] @ view.pose.rotation.T + view.pose.translation
    pixels = rays @ view.intrinsics.T
    np.testing.assert_allclose(pixels[:, :2] / pixels[:, 2:], view.points[shown], atol=1)


def test_models_are_refused_where_there_is_nothing_to_read(tmp_path):
    pytest.importorskip("pycolmap")
    with pytest.raises(FileNotFoundError, match="no database"):
        make_models(tmp_path / "none.db", tmp_path, tmp_path / "sparse")
    with pytest.raises(FileNotFoundError, match="no model in"):
        read_model(tmp_path)
    with pytest.raises(ValueError, match="no mapper 'x'; there are global, incremental"):
        MapOptions("x")
    with pytest.raises(ValueError, match="polish must be 0 or more pixels, not -1"):
        MapOptions(polish=-1)


def test_similarities_are_recovered():
    generator = np.random.default_rng(0)
    points = generator.normal(size=(20, 3))
    turn = next(iter(poses(1).values())).rotation

    scale, rotation, shift = align(points, 2.5 * points @ turn.T + [1, 2, 3])

    assert scale == pytest.approx(2.5)
    np.testing.assert_allclose(rotation, turn, atol=1e-9)
    np.testing.assert_allclose(shift, [1, 2, 3], atol=1e-9)


def model_of(tied, world):
    """The model that the views of a cloud would give."""
    views = {}
    for name, pose in poses(len(tied.names)).items():
        points = tied.keypoints[name]
        seen = np.linalg.norm(project(pose, world)[None] - points[:, None], axis=2).argmin(axis=1)
        views[name] = View(name, pose, CAMERA.intrinsics, points, seen)
    count = len(world)
    colours = np.full((count, 3), 99, np.uint8)
    return Model(views, world, colours, np.ones(count), np.full(count, len(views)))


def test_an_image_is_localised_from_points_of_the_world():
    world, pose = cloud(100), poses(5)["view3.png"]
    points = project(pose, world)
    points[:30] = np.random.default_rng(0).uniform(0, 480, (30, 2))

    found = solve(points, world, CAMERA)

    np.testing.assert_allclose(found.pose.rotation, pose.rotation, atol=1e-4)
    np.testing.assert_allclose(found.pose.translation, pose.translation, atol=1e-3)
    assert found.inliers[30:].all()
    assert found.reason == ""
    few = solve(points[:3], world[:3], CAMERA)
    assert (few.pose, few.reason) == (None, "too few matches with points of the model")
    wrong = solve(points[:20], world[:20], CAMERA)
    assert (wrong.pose, wrong.reason) == (None, "too few inliers")


class Given:
    """A matcher whose matches are known: those of a cloud of points."""

    def __init__(self, found):
        self.found = found

    def describe(self, images, masks=None):
        return list(range(len(images)))

    def match(self, pairs):
        return [self.found[number] for number, _ in pairs]


def test_an_image_is_localised_by_its_matches_with_the_views(texture):
    world, tied = cloud(150), tie_points(3, 150, noise=0)
    model = model_of(tied, world)
    query = poses(9)["view5.png"]
    names = list(model.views)
    found = {
        number + 1: Matches(
            project(model.views[name].pose, world), project(query, world), np.ones(len(world))
        )
        for number, name in enumerate(names)
    }
    flat = np.zeros((480, 640), np.float32)  # nothing to correlate: matches stay

    assert best_views(model, 2) == names[:2]
    located = localise(Given(found), flat, CAMERA, model, dict.fromkeys(names, flat))

    assert np.linalg.norm(located.pose.inverse.translation - query.inverse.translation) < 1e-3
    with pytest.raises(ValueError, match="'x' is no view of the model"):
        localise(Given(found), flat, CAMERA, model, {"x": flat})


def small_model():
    """Two views of a cloud, by hand."""
    world = cloud(30)
    views = {
        name: View(name, pose, CAMERA.intrinsics, project(pose, world), np.arange(30))
        for name, pose in list(poses(2).items())
    }
    return Model(views, world, np.full((30, 3), 90, np.uint8), np.zeros(30), np.full(30, 2))


def test_a_model_is_recorded_for_rerun(tmp_path):
    pytest.importorskip("rerun")

    path = write_recording(small_model(), tmp_path / "new" / "model.rrd")

    assert path.read_bytes()[:3] == b"RRF"
    assert b"view1.png" in path.read_bytes()


def test_a_recording_without_rerun_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)

    with pytest.raises(
        ImportError, match=r"a recording needs rerun: pip install 'tiepoint\[viewer\]'"
    ):
        write_recording(small_model(), tmp_path / "model.rrd")


def test_a_model_is_drawn_and_written_for_viewers(tmp_path):
    world = cloud(50)
    model = model_of(tie_points(3, 50), world)

    picture, ply = (
        draw_model(model, tmp_path / "m.png", "test"),
        write_ply(model, tmp_path / "m.ply"),
    )

    assert np.array(Image.open(picture)).std() > 1
    head, _, data = ply.read_bytes().partition(b"end_header\n")
    assert b"element vertex 53" in head
    rows = np.frombuffer(data, [("xyz", "<f4", 3), ("rgb", "u1", 3)])
    np.testing.assert_allclose(rows["xyz"][:50], world, atol=1e-6)
    assert rows["rgb"][-1].tolist() == [255, 0, 0]


def test_the_commands_make_check_export_and_show(folder, tmp_path, capsys):
    out = str(tmp_path / "out")
    more = ["--method", "ncc", "-o", "max_keypoints=150", "--device", "cpu", "--mapper", "none"]

    assert cli.run(["sfm", str(folder), "--out", out, *more]) == 0
    made = capsys.readouterr().out
    assert "pairs: 6 verified; mean track length" in made
    database = f"{out}/database.db"
    assert cli.run(["sfm", "check", database]) == int(not check_database(database).usable)
    assert "two_view_geometries" in capsys.readouterr().out
    assert cli.run(["sfm", "export", database, "--out", f"{out}/x", "--form", "npz"]) == 0
    assert "4 images, 6 pairs" in capsys.readouterr().out
    assert cli.run(["sfm", "export", database, "--out", f"{out}/x", "--form", "text"]) == 0
    assert cli.run(["sfm", "export", database, "--out", f"{out}/k", "--form", "kapture"]) == 0
    assert cli.run(["sfm", str(folder), "--out", out, "--method", "none"]) == 2
