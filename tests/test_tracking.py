"""Points keep their identities over the frames of a camera; budgets, turns, sources, the command."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image as PilImage
from scipy.ndimage import affine_transform

import matcher
from matcher import cli, matching
from matcher.tracking import budget, upright
from matcher.tracking.frames import frames
from matcher.tracking.tracker import Camera, Health, Options
from matcher.tracking.views import View, alike
from matcher.types import Description, Matches

ROOT = Path(matcher.__file__).parent.parent
STEP = np.array([2.3, -1.1])  # pixels of a frame to the next


@pytest.fixture(scope="module")
def method():
    return matching.create("superglue", device="cpu", refine=False, max_keypoints=160)


def frame(picture, x, y, size=(120, 160)):
    """Cut a frame whose top-left pixel is at (x, y) of a picture."""
    cut = affine_transform(picture, [1, 1], [y, x], output_shape=size, order=1)
    return np.clip(cut, 0, 1).astype(np.float32)


@pytest.fixture(scope="module")
def walk(method, request):
    """Follow 30 frames of a moving texture: frame 12 blank, frame 20 a copy of frame 19."""
    from conftest import texture  # noqa: PLC0415

    picture = texture(220, 320, seed=3).astype(np.float32) / 255
    places = [np.array([20.0, 60.0]) + number * STEP for number in range(30)]
    places[20] = places[19]
    tracker = matcher.Tracker(method, Options(level=7))
    found = []
    for number, (x, y) in enumerate(places):
        seen = frame(picture, x, y) if number != 12 else np.full((120, 160), 0.5, np.float32)
        found.append(tracker.track(seen))
    return found, places


# TRK-01
def test_points_are_followed_long_and_survive_a_blank_frame(walk) -> None:
    found, _ = walk
    lengths: dict[int, int] = {}
    for tracked in found:
        assert len(set(tracked.ids.tolist())) == len(tracked)
        for identity in tracked.ids.tolist():
            lengths[identity] = lengths.get(identity, 0) + 1

    assert np.mean(list(lengths.values())) >= 10
    assert found[0].health is Health.STARTED
    assert found[12].health is Health.BLIND
    assert len(found[12]) == 0
    assert found[13].health is Health.RECOVERED
    assert {tracked.health for tracked in (*found[1:12], *found[14:])} == {Health.TRACKED}
    assert len(set(found[11].ids) & set(found[13].ids)) > 20


def test_an_identity_stays_on_its_spot(walk) -> None:  # TRK-01
    found, places = walk
    spots: dict[int, list[np.ndarray]] = {}
    for tracked, place in zip(found, places, strict=True):
        for identity, point in zip(tracked.ids.tolist(), tracked.points, strict=True):
            spots.setdefault(identity, []).append(point + place)

    drifts = [np.ptp(np.array(seen), axis=0).max() for seen in spots.values() if len(seen) > 5]

    assert np.median(drifts) < 0.5
    assert np.mean(np.array(drifts) < 1.5) > 0.9


def test_a_repeated_frame_moves_nothing(walk) -> None:  # TRK-01
    found, _ = walk
    before = dict(zip(found[19].ids.tolist(), found[19].points, strict=True))
    after = dict(zip(found[20].ids.tolist(), found[20].points, strict=True))
    common = before.keys() & after.keys()

    moved = [np.abs(before[each] - after[each]).max() for each in common]

    assert len(common) > 20
    assert np.max(moved) < 0.1


def test_homographies_tell_the_motion_from_the_anchor(walk) -> None:
    found, places = walk
    tracked = found[10]

    x, y = tracked.fit.model[:2, 2] / tracked.fit.model[2, 2]

    np.testing.assert_allclose([x, y], places[tracked.anchor] - places[10], atol=0.3)


def test_another_scene_is_lost_then_begun_afresh_and_the_old_one_is_found_again(
    method, texture
) -> None:
    here, there = (texture(120, 160, seed=seed).astype(np.float32) / 255 for seed in (1, 2))
    tracker = matcher.Tracker(method, Options(level=7, patience=2, anchors=3))

    found = [tracker.track(each) for each in (here, here, there, there, there, there, here)]

    healths = [tracked.health for tracked in found]
    assert healths[:2] == [Health.STARTED, Health.TRACKED]
    assert healths[2:5] == [Health.LOST, Health.LOST, Health.STARTED]
    assert healths[5:] == [Health.TRACKED, Health.TRACKED]
    assert set(found[6].ids) <= set(found[0].ids)
    assert found[6].anchor == 0


class Clock:
    """Goes on by a tenth of a second each time that a method matches."""

    def __init__(self, method):
        self.method, self.seconds, self.describe = method, 0.0, method.describe

    def match(self, pairs):
        self.seconds += 0.1
        return self.method.match(pairs)

    def __call__(self):
        return self.seconds


@pytest.mark.parametrize(("budget_ms", "tried"), [(None, 3), (300.0, 2), (100.0, 1)])
def test_a_lost_frame_tries_as_many_anchors_as_the_budget_has_room_for(
    method, texture, budget_ms, tried
) -> None:  # PRF-02
    scenes = [texture(120, 160, seed=seed).astype(np.float32) / 255 for seed in range(4)]
    clock = Clock(method)
    tracker = matcher.Tracker(clock, Options(level=7, patience=1), clock=clock)
    for scene in scenes[:3]:
        for _ in range(2):
            tracker.track(scene)
    tracker._budget = budget.Budget(None if budget_ms is None else budget_ms / 1e3, level=7)
    start = clock.seconds

    lost = tracker.track(scenes[3])

    assert lost.health is Health.LOST
    assert round((clock.seconds - start) / 0.1) == tried


def test_a_known_scene_is_found_at_once_among_many(method, texture) -> None:
    scenes = [texture(120, 160, seed=seed).astype(np.float32) / 255 for seed in range(5)]
    tracker = matcher.Tracker(method, Options(level=7, patience=1))
    for scene in scenes:
        for _ in range(2):
            tracker.track(scene)
    tracker._budget = budget.Budget(1e-9, level=7)

    found = [tracker.track(scenes[number]) for number in (1, 3, 0)]

    assert {each.health for each in found} == {Health.TRACKED}
    assert [each.anchor for each in found] == [3, 7, 0]


def test_views_are_alike_by_their_descriptors(method, texture) -> None:
    one, other = (texture(120, 160, seed=seed).astype(np.float32) / 255 for seed in (1, 2))
    here, there, blank = method.describe([one, other, np.zeros_like(one)])

    assert alike(here, here) == len(here)
    assert alike(here, there) < 0.5 * len(here)
    assert alike(here, blank) == alike(blank, here) == 0


def test_masked_places_are_not_followed(method, texture) -> None:
    picture = texture(120, 160, seed=4).astype(np.float32) / 255
    mask = np.ones((120, 160), bool)
    mask[:, :80] = False
    tracker = matcher.Tracker(method, Options(level=7))

    tracker.track(picture, mask=mask)
    tracked = tracker.track(picture, mask=mask)

    assert tracked.health is Health.TRACKED
    assert (tracked.points[:, 0] >= 79).all()


def test_a_camera_that_is_rolled_is_turned_back(method, texture) -> None:
    picture = texture(128, 128, seed=5).astype(np.float32) / 255
    quarter = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # clockwise about the optical axis
    tracker = matcher.Tracker(method, Options(level=7))

    tracker.track(picture, world_from_camera=np.eye(3))
    tracked = tracker.track(np.rot90(picture).copy(), world_from_camera=quarter)

    assert tracked.health is Health.TRACKED
    x, y = tracked.matches.points0.T
    np.testing.assert_allclose(tracked.points, np.stack([y, 127 - x], 1), atol=0.5)


def test_a_budget_is_kept_by_looking_at_less() -> None:  # PRF-02
    kept = budget.Budget(0.1, level=0)

    for _ in range(5):
        kept.spent(0.2 if kept.level.long_side > 320 else 0.05)

    assert kept.level.long_side <= 320


def test_more_is_tried_after_calm_and_ever_more_rarely_where_it_was_too_much() -> None:
    kept = budget.Budget(0.1, level=5)
    tries = []
    for number in range(1000):
        slow = kept.level is budget.LEVELS[4]
        if slow:
            tries.append(number)
        kept.spent(0.15 if slow else 0.04)

    assert len(tries) >= 3
    assert (np.diff(np.diff(tries)) > 0).all()
    assert len(tries) < 10


def test_without_a_budget_nothing_changes() -> None:
    free = budget.Budget(None)
    level = free.level

    free.spent(100.0)

    assert free.level is level


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^the budget must be positive, not -1 s"):
        budget.Budget(-1)
    with pytest.raises(ValueError, match=r"^level must be from 0 to 7, not 8"):
        budget.Budget(1.0, level=8)
    with pytest.raises(ValueError, match=r"^anchors must be at least 1, not 0"):
        Options(anchors=0)
    with pytest.raises(ValueError, match=r"^renew must be in \[0, 1\], not 2"):
        Options(renew=2)
    with pytest.raises(ValueError, match=r"^world_from_camera must be a \(3, 3\) rotation"):
        upright.check_rotation(np.ones((3, 3)))


class Places:
    """A method whose matches have no indices."""

    def describe(self, images, masks=None):
        points = np.random.default_rng(0).uniform(10, 50, (40, 2)).astype(np.float32)
        ones = np.ones(40, np.float32)
        return [Description("places", image, None, points, ones, points) for image in images]

    def match(self, pairs):
        return [Matches(one.points, other.points, one.scores) for one, other in pairs]


def test_methods_without_listed_points_are_refused() -> None:
    tracker = matcher.Tracker(Places())
    tracker.track(np.zeros((64, 64), np.float32))

    with pytest.raises(ValueError, match=r"^a tracker needs a method that matches listed keypoint"):
        tracker.track(np.zeros((64, 64), np.float32))


def test_followed_points_become_keypoints_where_one_is_and_are_never_more_than_those() -> None:
    points = np.array([[10, 10], [20, 20]], np.float32)
    described = Description(
        "x", np.zeros((40, 40), np.float32), None, points, np.ones(2, np.float32), points
    )
    view = View(0, described, (40, 40), 0, 0.0, np.array([-1, 7]))

    view.adopt(np.array([[10.5, 10], [20, 20], [30, 30], [5, 5]], np.float32), np.arange(100, 104))

    assert view.ids.tolist() == [100, 7]
    assert view.other_ids.tolist() == [101, 102]
    assert len(view.others) == 2


def test_a_camera_gives_poses(method, texture) -> None:
    picture = texture(120, 160, seed=6).astype(np.float32) / 255
    camera = Camera(np.array([[150.0, 0, 80], [0, 150, 60], [0, 0, 1]]), [0.01])
    tracker = matcher.Tracker(method, Options(level=7), camera=camera)

    tracker.track(picture)
    tracked = tracker.track(picture)

    assert tracked.fit.reason == "no baseline"
    np.testing.assert_allclose(tracked.fit.model.rotation, np.eye(3), atol=1e-3)
    with pytest.raises(ValueError, match="intrinsics must be a camera matrix"):
        Camera(np.zeros((3, 3)))


def test_frames_come_in_natural_order_and_missing_sources_are_named(tmp_path) -> None:
    for number in (10, 2, 1):
        PilImage.fromarray(np.full((8, 8), number, np.uint8)).save(tmp_path / f"frame{number}.png")

    values = [round(float(each[0, 0]) * 255) for each in frames(tmp_path)]

    assert values == [1, 2, 10]
    with pytest.raises(FileNotFoundError, match="no folder, video or camera 'nowhere'"):
        next(frames("nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no images"):
        next(frames(tmp_path / "empty"))


def test_what_is_no_video_is_refused(tmp_path) -> None:
    pytest.importorskip("cv2")
    path = tmp_path / "no.mp4"
    path.write_text("nothing")

    with pytest.raises(ValueError, match="cannot open .*no.mp4' as a video or a camera"):
        next(frames(path))


def test_watch_writes_a_line_a_frame_and_a_video(tmp_path, texture, capsys) -> None:
    cv2 = pytest.importorskip("cv2")
    picture = texture(120, 200, seed=7)
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        cut = picture[:, 3 * number : 3 * number + 160]
        PilImage.fromarray(cut).save(folder / f"{number}.png")
    video, lines = tmp_path / "out.avi", tmp_path / "out.jsonl"

    code = cli.run(
        ["watch", str(folder), "--video", str(video), "--out", str(lines), "--device", "cpu",
         "-o", "max_keypoints=160"]
    )  # fmt: skip

    assert code == 0
    assert "3 frames: 2 tracked, 1 started" in capsys.readouterr().out
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [record["health"] for record in records] == ["started", "tracked", "tracked"]
    np.testing.assert_allclose(records[2]["homography"][0][2], -6 * records[2]["homography"][2][2],
                               atol=0.01)  # fmt: skip
    capture = cv2.VideoCapture(str(video))
    assert capture.read()[0]
    capture.release()


@pytest.fixture(scope="module")
def node():
    """The ROS node's module; it needs no ROS until it runs."""
    path = ROOT / "scripts" / "ros2_node.py"
    if not path.is_file():
        pytest.skip("needs the checkout")
    spec = importlib.util.spec_from_file_location("ros2_node", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def image_message(pixels, encoding, *, padding=0, big=False):
    """Make what ROS sends."""
    data = pixels.reshape(len(pixels), -1)
    data = data.astype(data.dtype.newbyteorder(">")) if big else data
    rows = np.ascontiguousarray(data).view(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    stamp = SimpleNamespace(sec=5, nanosec=7)
    return SimpleNamespace(
        encoding=encoding, height=len(pixels), width=pixels.shape[1], step=rows.shape[1],
        is_bigendian=int(big), data=rows.tobytes(), header=SimpleNamespace(stamp=stamp),
    )  # fmt: skip


def test_ros_images_of_every_encoding_are_decoded(node) -> None:
    rng = np.random.default_rng(0)
    grey, deep = rng.integers(0, 256, (5, 7), np.uint8), rng.integers(0, 60000, (5, 7), np.uint16)
    colours = rng.integers(0, 256, (5, 7, 4), np.uint8)

    assert (node.decode(image_message(grey, "mono8", padding=3)) == grey).all()
    for big in (False, True):
        assert (node.decode(image_message(deep, "mono16", big=big)) == deep).all()
    assert (node.decode(image_message(colours, "rgba8")) == colours[:, :, :3]).all()
    assert (node.decode(image_message(colours, "bgra8")) == colours[:, :, 2::-1]).all()
    with pytest.raises(ValueError, match="no encoding 'yuv422'; there are mono8"):
        node.decode(image_message(grey, "yuv422"))
    cut = image_message(grey, "mono8")
    cut.data = cut.data[:-1]
    with pytest.raises(ValueError, match="an image of 5 rows of 7 bytes is cut short"):
        node.decode(cut)


def test_the_ros_node_follows_and_takes_a_calibration(node, texture) -> None:
    follower = node.Follower()
    message = image_message(texture(96, 128, seed=8), "mono8")
    info = SimpleNamespace(k=[100.0, 0, 64, 0, 100, 48, 0, 0, 1], d=[0.0] * 5,
                           distortion_model="plumb_bob")  # fmt: skip

    first, second = (json.loads(follower.follow(message)) for _ in range(2))
    follower.calibrate(info)
    follower.calibrate(info)
    third, fourth = (json.loads(follower.follow(message)) for _ in range(2))

    assert (first["health"], second["health"]) == ("started", "tracked")
    assert second["homography"] is not None
    assert first["stamp"] == [5, 7]
    assert (third["health"], fourth["health"]) == ("started", "tracked")
    assert fourth["pose"] is not None
    fisheye = SimpleNamespace(**{**vars(info), "d": [0.1] * 4, "distortion_model": "equidistant"})
    with pytest.raises(ValueError, match="no distortion model 'equidistant'; there is plumb_bob"):
        node.camera_of(fisheye)
    rational = SimpleNamespace(**{**vars(info), "d": [0.1] * 8})
    with pytest.raises(ValueError, match="only k1, k2, p1, p2, k3 of the lens are known"):
        node.camera_of(rational)


def test_without_ros_the_node_says_so(node, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "rclpy", None)

    with pytest.raises(SystemExit, match="ROS 2 is not here"):
        node.main()
