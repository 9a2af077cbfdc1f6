"""Several copies of one object are found one by one."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import texture

import matcher
from matcher.geometry.cameras import transfer
from matcher.instances import match_instances
from matcher.types import Matches

PLACES = [(30, 40), (300, 60), (480, 330)]


@pytest.fixture(scope="module")
def method():
    return matcher.create("ncc", patch_scales=(1.0,), octave=0, ratio=1.0)


def scene(copies: int) -> tuple[np.ndarray, np.ndarray]:
    patch = texture(100, 100, seed=5, sigma=1.5)
    picture = texture(480, 640, seed=6, sigma=4.0)
    for x, y in PLACES[:copies]:
        picture[y : y + 100, x : x + 100] = patch
    return patch, picture


@pytest.mark.parametrize("copies", [0, 1, 3])
def test_every_copy_is_found_once(method, copies) -> None:  # ATT-12
    found = match_instances(method, *scene(copies))

    shifts = [
        instance.pixels1_from_pixels0 / instance.pixels1_from_pixels0[2, 2] for instance in found
    ]
    places = sorted((round(shift[0, 2]), round(shift[1, 2])) for shift in shifts)
    assert places == sorted(PLACES[:copies])


def test_no_match_is_shared(method) -> None:
    found = match_instances(method, *scene(3))

    for instance, (x, y) in [(i, nearest(i)) for i in found]:
        inside = instance.matches.points1 - (x, y)
        assert inside.min() > -3
        assert inside.max() < 103


def nearest(instance) -> tuple[int, int]:
    shift = instance.pixels1_from_pixels0
    place = shift[:2, 2] / shift[2, 2]
    return min(PLACES, key=lambda known: np.hypot(*(np.array(known) - place)))


def test_the_limit_is_kept(method) -> None:
    assert len(match_instances(method, *scene(3), limit=2)) == 2


@pytest.mark.parametrize("seed", range(5))
def test_one_detail_that_repeats_is_no_copy(seed) -> None:
    rng = np.random.default_rng(seed)
    detail = rng.uniform((40, 60), (80, 110), (30, 2))  # 30 matches of a corner of 480 x 360 pixels
    anywhere = rng.uniform((0, 0), (480, 360), (100, 2))
    points1 = np.vstack([detail + np.array((200, 90)), rng.uniform((0, 0), (640, 480), (100, 2))])

    found = match_instances(Given(np.vstack([detail, anywhere]), points1), *blanks())

    assert found == []


@pytest.mark.parametrize(
    "wanted",
    [
        [[-0.5, 0, 300], [0, 0.7, 50], [0, 0, 1]],  # a mirror image
        [[0.5, 0, 50], [0, 0.5, 50], [-0.003, 0, 1]],  # a part lies behind the camera
    ],
)
def test_an_outline_that_no_camera_sees_is_no_copy(wanted) -> None:
    points0 = np.random.default_rng(0).uniform((0, 0), (480, 360), (400, 2))
    points1 = transfer(np.array(wanted), points0)
    inside = np.all((points1 > 0) & (points1 < (640, 480)), axis=1)

    found = match_instances(Given(points0[inside], points1[inside]), *blanks())

    assert found == []


def test_a_copy_is_not_found_again_beside_itself() -> None:
    points0 = np.random.default_rng(0).uniform((0, 0), (480, 360), (300, 2))

    found = match_instances(Given(points0, points0 * 0.5 + 40), *blanks())

    assert len(found) == 1  # although the method, which ignores masks, matches it in each round


def blanks() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((360, 480), np.uint8), np.zeros((480, 640), np.uint8)


class Given:
    """A method that always finds the same matches."""

    def __init__(self, points0, points1):
        self.matches = Matches(points0, points1, np.ones(len(points0)))

    def describe(self, images, masks=None):
        return images

    def match(self, pairs):
        return [self.matches]
