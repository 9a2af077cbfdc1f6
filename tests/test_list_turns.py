"""Pair lists that have their images turned: matched turned, measured in the pixels of the files."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import datasets
from matcher.evaluation.runner import evaluate
from matcher.evaluation.session import Session
from matcher.evaluation.settings import Settings
from matcher.quarter_turns import turned, turned_back
from matcher.types import Description

HEIGHT, WIDTH = 96, 128
CAMERA = np.array([[150.0, 0, 60], [0, 140, 50], [0, 0, 1]])
LEANING = np.array([[0.98, 0, -0.19], [0, 1, 0], [0.19, 0, 0.98]])
CLOCKWISE = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])  # x right, y down
ROTATION = np.linalg.svd(LEANING)[0] @ np.linalg.svd(LEANING)[2]
TRANSLATION = np.array([-1.0, 0.1, 0.2])


def rolled_clockwise(camera, height):
    """The camera matrix of a picture of this height, turned clockwise: (x, y) to (h - 1 - y, x)."""
    (fx, _, cx), (_, fy, cy), _ = camera
    return np.array([[fy, 0, height - 1 - cy], [0, fx, cx], [0, 0, 1]])


def scene_points(count=60):
    """Pixels of both upright pictures."""
    generator = np.random.default_rng(0)
    points0 = generator.uniform((25, 15), (110, 80), (count, 2))
    rays = np.column_stack([points0, np.ones(count)]) @ np.linalg.inv(CAMERA).T
    scene = rays * generator.uniform(4, 8, (count, 1)) @ ROTATION.T + TRANSLATION
    points1 = scene @ CAMERA.T
    return points0, points1[:, :2] / points1[:, 2:]


@pytest.fixture
def pair_of(tmp_path, texture):
    """Load a pair whose second file lies clockwise by quarter turns, which the list undoes."""

    def load(turns):
        camera1, heights = CAMERA, (HEIGHT, WIDTH, HEIGHT)
        for height in heights[:turns]:
            camera1 = rolled_clockwise(camera1, height)
        roll = np.linalg.matrix_power(CLOCKWISE, turns)
        motion = np.eye(4)
        motion[:3, :3], motion[:3, 3] = roll @ ROTATION, roll @ TRANSLATION
        picture = texture(HEIGHT, WIDTH)
        PilImage.fromarray(picture).save(tmp_path / "a.png")
        PilImage.fromarray(np.rot90(picture, -turns)).save(tmp_path / "b.png")
        numbers = [*CAMERA.ravel(), *camera1.ravel(), *motion.ravel()]
        (tmp_path / "list.txt").write_text(f"a.png b.png 0 {turns} {' '.join(map(str, numbers))}\n")
        return datasets.load_pair_list(tmp_path / "list.txt")[0]

    return load


@pytest.mark.parametrize("measure", ["original", "resized"])
@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_pair_is_matched_as_the_list_turns_it_and_its_pose_is_that_of_the_files(
    pair_of, turns, measure
):
    pair, seen = pair_of(turns), []

    def upright(image0, image1):
        seen.append((image0, image1))
        return scene_points()

    settings = Settings(long_side=None, measure=measure)
    (record,) = evaluate({"upright": upright}, [pair], settings).records

    np.testing.assert_array_equal(seen[0][0], seen[0][1])
    assert record.score.errors[0][0] < 0.05  # degrees
    assert record.score.precision[0] == 1
    size = (WIDTH, HEIGHT) if turns % 2 else (HEIGHT, WIDTH)
    assert record.sizes == record.working_sizes == ((HEIGHT, WIDTH), size)


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_points_are_turned_back_as_pixels_are(turns):
    y, x = np.indices((5, 7))
    places = np.stack([x, y], 2)
    rows, columns = np.indices(turned(x, turns).shape)

    back = turned_back(np.stack([columns, rows], 2).reshape(-1, 2), turns, (5, 7))

    np.testing.assert_array_equal(back, turned(places, turns).reshape(-1, 2))


def test_described_points_are_those_of_the_file_and_each_way_up_is_described(pair_of):
    pair = pair_of(1)

    class Corner:
        """Finds the pixel at the top left of whatever it is shown."""

        def describe(self, pictures, masks=None):
            point, score = np.zeros((1, 2), np.float32), np.ones(1, np.float32)
            return [
                Description("corner", image, None, point, score, np.ones((1, 1), np.float32))
                for image in pictures
            ]

    session = Session(Corner(), Settings(long_side=64))

    turned_once, as_it_is = session.describe(pair.image1, 1), session.describe(pair.image1)

    assert turned_once.working_size == as_it_is.working_size == (64, 48)
    assert turned_once.image.shape == (48, 64)
    assert turned_once.points.tolist() == [
        [47, 0]
    ]  # rot90 brings the right end of a row to the top
    assert as_it_is.points.tolist() == [[0, 0]]
    assert session.describe(pair.image1, 1) is turned_once


def test_a_pair_that_is_turned_is_another_pair(pair_of):
    pair = pair_of(2)
    as_it_is = type(pair)(**{**vars(pair), "turns": (0, 0)})

    assert pair.turns == (0, 2)
    assert datasets.pair_key(pair) != datasets.pair_key(as_it_is)
