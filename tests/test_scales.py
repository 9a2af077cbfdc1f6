"""Pictures of unlike scale: other sizes are tried where the given ones do not match."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import matcher
from matcher import assets, features, images
from matcher.geometry.cameras import transfer
from matcher.geometry.fitting import fit_homography
from matcher.methods import _tries
from matcher.methods._scales import ENOUGH, Scaled
from matcher.methods._tries import best_verified
from matcher.types import Matches

PHOTO = assets.folder("data") / "images" / "facade_0.jpg"
SIZE = (480, 640)


@pytest.fixture(scope="module")
def scene() -> np.ndarray:
    return images.resize(images.grey(images.read(PHOTO)), SIZE)


class Counting:
    """Counts what a method is asked to describe."""

    def __init__(self, method) -> None:
        self.method = method
        self.sizes: list[tuple[int, int]] = []

    def describe(self, images, masks=None):
        self.sizes += [image.shape[:2] for image in images]
        return self.method.describe(images, masks)

    def match(self, pairs):
        return self.method.match(pairs)

    def score_map(self, pair, point0):
        return self.method.score_map(pair, point0)


# CTF-16
@pytest.mark.parametrize("method", ["loftr", "superglue", "ncc"])
@pytest.mark.parametrize("factor", [0.5, 1, 2])
def test_a_small_part_is_found_in_a_large_picture(scene, method, factor) -> None:
    part = images.resize(scene[200:320, 300:460], (int(120 * factor), int(160 * factor)))

    matches = matcher.match(matcher.create(method, device="cpu", scales=(0.5, 2)), part, scene)

    fit = fit_homography(matches.points0, matches.points1)
    corners = np.array([[0, 0], [160, 0], [0, 120], [160, 120]]) * factor
    found = transfer(fit.model, corners)
    assert np.linalg.norm(found - (corners + 0.5) / factor + 0.5 - [300, 200], axis=1).max() < 3


def test_the_sizes_that_were_best_are_recorded(scene) -> None:
    method = matcher.create("loftr", device="cpu", scales=(1 / 6,), refine=False)
    large = images.resize(scene, (720, 960))
    small = images.resize(large, (120, 160))

    matches = matcher.match(method, large, small)

    np.testing.assert_allclose(matches.linear1_from_0, np.tile(np.eye(2) / 6, (len(matches), 1, 1)))
    error = (matches.points0 + 0.5) / 6 - 0.5 - matches.points1
    assert len(matches) >= ENOUGH
    assert np.median(np.abs(error)) < 0.1


def test_a_pair_that_matches_as_given_is_described_once(scene) -> None:
    counting = Counting(matcher.create("superglue", device="cpu", refine=False))

    matches = matcher.match(Scaled(counting, (0.5, 2)), scene, scene)

    assert counting.sizes == [SIZE, SIZE]
    assert matches.linear1_from_0 is None
    assert len(matches.indices) == len(matches)


def test_every_size_of_either_image_is_tried_once(scene, texture) -> None:
    counting = Counting(matcher.create("superglue", device="cpu", refine=False))
    method = Scaled(counting, (0.5,))
    unrelated = texture(400, 360, sigma=3).astype(np.float32) / 255

    pair = tuple(method.describe([scene, unrelated]))
    first, again = (method.match([pair])[0] for _ in range(2))

    assert counting.sizes == [SIZE, (400, 360), (200, 180), (240, 320)]
    np.testing.assert_array_equal(first.points1, again.points1)


def test_a_photograph_matches_its_thumbnail_unasked(scene) -> None:
    small = images.resize(scene, (69, 91))  # a seventh

    for name in ("superglue", "loftr"):
        matches = matcher.match(matcher.create(name, device="cpu"), scene, small)

        error = (matches.points0 + 0.5) * [91 / 640, 69 / 480] - 0.5 - matches.points1
        assert len(matches) >= 30
        assert np.median(np.linalg.norm(error, axis=1)) < 0.5


def test_sizes_are_tried_the_way_up_that_was_best(scene) -> None:
    part = np.rot90(images.resize(scene[180:340, 260:500], (480, 720))).copy()  # 3 times as large
    method = matcher.create("superglue", device="cpu", grow=False)

    matches = matcher.match(method, scene, part)

    x, y = matches.points1.T
    upright = np.stack([719 - y, x], 1)  # np.rot90 takes (x, y) to (y, 719 - x)
    error = (upright + 0.5) / 3 - 0.5 + [260, 180] - matches.points0
    assert matches.quarter_turns == 3
    assert len(matches) >= 30
    assert np.median(np.linalg.norm(error, axis=1)) < 0.5


def test_matches_are_verified_once(scene, monkeypatch) -> None:
    calls = []
    verify = _tries.verify
    monkeypatch.setattr(_tries, "verify", lambda *args: calls.append(1) or verify(*args))

    matcher.match(matcher.create("loftr", device="cpu", refine=False), scene, scene)

    assert len(calls) == 1


def test_large_pictures_are_not_enlarged_unasked(scene) -> None:
    assert Scaled(Counting(None), (0.5, 2), 4 * 480 * 640)._factors(SIZE, (480, 641)) == [
        (1.0, 0.5),
        (0.5, 1.0),
        (2, 1.0),
    ]


@pytest.mark.parametrize(
    ("name", "options", "factors"),
    [
        ("superglue", {}, [0.5, 2]),
        ("loftr", {"scales": (0.25,)}, [0.25]),
        ("loftr", {"scales": ()}, []),
        ("superglue", {"turns": False}, []),
        ("ncc", {}, []),
    ],
)
def test_ours_try_sizes_unasked(name, options, factors) -> None:
    method = matcher.create(name, device="cpu", refine=False, **options)

    assert (method.factors if isinstance(method, Scaled) else []) == factors


def test_a_mask_is_resized_along(scene) -> None:
    mask = np.zeros(SIZE, bool)
    mask[:, 320:] = True
    small = images.resize(scene, (120, 160))

    matches = matcher.match(
        matcher.create("loftr", device="cpu", scales=(0.25,), refine=False),
        scene,
        small,
        mask0=mask,
    )

    assert len(matches) >= ENOUGH
    assert matches.points0[:, 0].min() > 315


def test_score_maps_are_those_of_the_sizes_as_given(scene) -> None:
    plain = matcher.create("loftr", device="cpu", refine=False)
    scaled = Scaled(plain, (2,))

    found = scaled.score_map(tuple(scaled.describe([scene, scene])), (100, 100))

    expected = plain.score_map(tuple(plain.describe([scene, scene])), (100, 100))
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


def test_geometry_chooses_between_tries() -> None:
    grid = np.stack(np.meshgrid(np.arange(9), np.arange(9)), -1).reshape(-1, 2) * 60.0
    random = np.random.default_rng(0)
    wrong = Matches(grid, random.uniform(0, 480, grid.shape), np.ones(81))
    few, many = (Matches(grid[:n], grid[:n] + 7.3, np.full(n, 0.2)) for n in (25, 81))
    made: list[int] = []
    sizes = (500, 500), (500, 500)

    def tries():
        for number, matches in enumerate((wrong, few, many, wrong)):
            made.append(number)
            yield number, matches

    assert best_verified(tries(), *sizes, 30) == (2, many)
    assert made == [0, 1, 2, 3]
    assert best_verified([("a", wrong), ("b", few)], *sizes, 30) == ("b", few)
    assert best_verified([("a", wrong), ("b", wrong)], *sizes, 30) == ("a", wrong)
    assert best_verified([("a", wrong), ("b", few)], *sizes, 30, least=100) == ("a", wrong)
    assert best_verified([("a", few), ("b", many)], *sizes, 1000, least=1000) == ("a", few)


def test_nothing_else_is_tried_where_the_first_is_enough() -> None:
    grid = np.stack(np.meshgrid(np.arange(9), np.arange(9)), -1).reshape(-1, 2) * 60.0
    good = Matches(grid, grid + 7.3, np.ones(81))

    def tries():
        yield "as given", good
        raise AssertionError("another was tried")

    assert best_verified(tries(), (500, 500), (500, 500), 81) == ("as given", good)


@pytest.mark.parametrize("name", ["loftr", "ncc"])
def test_points_are_followed_at_the_sizes_that_match(scene, name) -> None:
    part = images.resize(scene[200:320, 300:460], (240, 320))
    cells = np.meshgrid(range(30, 300, 15), range(30, 220, 15))
    asked = np.stack(cells, -1).reshape(-1, 2).astype(np.float32)
    method = matcher.create(name, device="cpu", scales=(0.5,))

    places = method.match_points(tuple(method.describe([part, scene])), asked)

    true = (asked + 0.5) / 2 - 0.5 + [300, 200]
    assert places.valid.sum() >= 20
    assert np.median(np.linalg.norm(places.points1 - true, axis=1)[places.valid]) < 0.5


def test_only_some_methods_follow_points(scene) -> None:
    for options in ({"scales": (0.5,)}, {"turns": True}):
        method = matcher.create("sift", device="cpu", refine=False, **options)
        with pytest.raises(ValueError, match="cannot be asked about given points"):
            method.match_points(tuple(method.describe([scene, scene])), np.zeros((1, 2)))


@pytest.mark.parametrize("options", [{"scales": (0.5,)}, {"turns": True}])
def test_descriptions_can_be_kept_in_files(scene, tmp_path, options) -> None:
    method = matcher.create("loftr", device="cpu", refine=False, **options)
    small = np.ascontiguousarray(np.rot90(images.resize(scene, (180, 240))))
    described = method.describe([scene, small])
    kept = [
        features.load(features.save(each, tmp_path / f"{number}.npz"))
        for number, each in enumerate(described)
    ]

    (now,), (later,) = (method.match([tuple(pair)]) for pair in (described, kept))

    assert len(now) > 0
    np.testing.assert_array_equal(now.points1, later.points1)


def test_a_description_of_tiles_is_not_saved(scene, tmp_path) -> None:
    described = matcher.create("loftr", device="cpu", refine=False, tile=320).describe([scene])[0]

    with pytest.raises(ValueError, match="holds an image in several parts and cannot be saved"):
        features.save(described, tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


def test_what_was_tried_goes_with_its_description(scene) -> None:
    small = images.resize(scene, (60, 80))
    for options in ({"scales": (0.5,)}, {"turns": True}):
        method = matcher.create("ncc", refine=False, **options)
        pair = tuple(method.describe([scene, small]))
        method.match([pair])
        views = weakref.ref(pair[1])
        del pair
        gc.collect()
        assert views() is None


def test_a_scale_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"scales must be positive, not \(0,\)"):
        matcher.create("loftr", device="cpu", scales=(0,))
