"""Pictures of any roll: quarter turns are found and undone."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import texture

import matcher
from matcher import matching, methods
from matcher.methods._turns import Turned
from matcher.quarter_turns import turned, turned_back
from matcher.types import Matches


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    grains = [texture(321, 400, seed=seed, sigma=s) for seed, s in enumerate((1.5, 4, 10))]
    return np.mean(grains, axis=0).astype(np.uint8)


@pytest.fixture(scope="module")
def method():
    return matcher.create("ncc", turns=True)


def places_after(points: np.ndarray, size: tuple[int, int], turns: int) -> np.ndarray:
    """Tell where pixels of an image lie after np.rot90, by turning an image of pixel numbers."""
    height, width = size
    numbers = np.rot90(np.arange(height * width).reshape(size), turns)
    where = np.empty((height * width, 2))
    rows, columns = np.indices(numbers.shape)
    where[numbers.ravel()] = np.stack([columns.ravel(), rows.ravel()], 1)
    whole = np.rint(points).astype(int)
    return where[whole[:, 1] * width + whole[:, 0]]


@pytest.mark.parametrize("turns", range(4))
def test_quarter_turns_are_undone(picture, method, turns) -> None:  # GEO-13
    matches = matcher.match(method, picture, np.rot90(picture, turns))

    truth = places_after(matches.points0, picture.shape, turns)
    wrong = np.linalg.norm(matches.points1 - truth, axis=1)
    assert len(matches) > 200
    assert np.median(wrong) < 1
    assert matches.quarter_turns == -turns % 4


def test_local_maps_turn_along(picture, method) -> None:
    matches = matcher.match(method, picture, np.rot90(picture))

    turn = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert np.median(np.abs(matches.linear1_from_0 - turn)) < 0.05


def test_a_mask_turns_along(picture, method) -> None:
    mask = np.zeros(picture.shape, bool)
    mask[:, :200] = True

    matches = matcher.match(
        method, picture, np.rot90(picture), mask1=np.ascontiguousarray(np.rot90(mask))
    )

    assert len(matches) > 50
    assert matches.points0[:, 0].max() < 202


def test_an_upright_pair_is_described_once(picture) -> None:
    class Counting:
        described = 0

        def __init__(self):
            self.method = matcher.create("ncc", refine=False)

        def describe(self, images, masks=None):
            self.described += len(images)
            return self.method.describe(images, masks)

        def match(self, pairs):
            return self.method.match(pairs)

    counting = Counting()

    matcher.match(Turned(counting), picture, picture)

    assert counting.described == 2


@pytest.mark.parametrize("turns", range(4))
def test_points_are_followed_the_way_up_that_matches(picture, turns) -> None:
    method = matcher.create("loftr", device="cpu", turns=True)
    turned = np.ascontiguousarray(np.rot90(picture, turns))
    cells = np.meshgrid(range(60, 240, 30), range(60, 240, 30))
    asked = np.stack(cells, -1).reshape(-1, 2).astype(np.float32)

    places = method.match_points(tuple(method.describe([_grey(picture), _grey(turned)])), asked)

    # rot90 once takes (x, y) to (y, width - 1 - x)
    true = asked.copy()
    height, width = picture.shape[:2]
    for _ in range(turns):
        true = np.stack([true[:, 1], width - 1 - true[:, 0]], 1)
        height, width = width, height
    assert places.valid.sum() > 10
    assert np.linalg.norm(places.points1 - true, axis=1)[places.valid].max() < 2


def _grey(picture):
    return picture.astype(np.float32) / 255


def test_unrelated_pictures_give_no_more_than_one_way_up(picture, method) -> None:
    matches = matcher.match(method, picture, texture(300, 300, seed=9, sigma=2))

    assert isinstance(matches, Matches)
    assert matches.quarter_turns in range(4)


@pytest.mark.parametrize(
    ("name", "asked", "turns"),
    [
        ("superglue", None, True),
        ("loftr", None, True),
        ("superglue", False, False),
        ("ncc", None, False),
        ("sift", True, True),
    ],
)
def test_ours_that_need_it_turn_unasked(name, asked, turns) -> None:
    method = matcher.create(name, device="cpu", refine=False, turns=asked, scales=())

    assert isinstance(method, Turned) == turns


def test_stages_come_off(method) -> None:
    wrapped = matching.create("sift", device="cpu", turns=True, scales=(0.5,))

    assert type(matching.bare(wrapped)) is type(methods.build("sift"))
    assert matching.bare(matching.bare(wrapped)) is matching.bare(wrapped)


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1), (4, 6), (4, 6, 3)])
@pytest.mark.parametrize("turns", range(-3, 4))
def test_turned_points_go_back(shape, turns) -> None:
    image = np.arange(np.prod(shape)).reshape(shape)
    rows, columns = np.indices(np.rot90(image, turns).shape[:2]).reshape(2, -1)

    after = turned(image, turns)
    before = turned_back(np.stack([columns, rows], 1).astype(np.float32), turns, shape[:2])

    assert min(after.strides) > 0  # torch takes no others
    x, y = before.astype(int).T
    np.testing.assert_array_equal(after[rows, columns], image[y, x])
