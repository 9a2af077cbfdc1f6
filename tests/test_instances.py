"""Several copies of one object are found one by one."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import texture

import matcher
from matcher.instances import match_instances

PLACES = [(30, 40), (300, 60), (480, 330)]


@pytest.fixture(scope="module")
def method():
    return matcher.create("ncc", scales=(1.0,), octave=0, ratio=1.0)


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
