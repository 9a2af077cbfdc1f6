"""Growth by correlation: what grows is true, and nothing grows where nothing can be known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import texture
from scipy.ndimage import map_coordinates

import matcher
from matcher import Matches, grow, refine
from matcher.growth import GrowOptions
from matcher.refinement import move_to_peaks

SIZE = 240, 320
TILT = np.array([[1.05, 0.2], [-0.1, 0.9]])
SHIFT = np.array([10.0, 12.0])


def picture(seed: int = 0, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Mix three grains of texture: (H, W) float32 in [0, 1]."""
    grains = [texture(*size, seed=seed + i, sigma=s) for i, s in enumerate((1.5, 3, 8))]
    return (sum(grain.astype(np.float32) for grain in grains) / (3 * 255)).astype(np.float32)


def warped(image: np.ndarray, linear: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Resample an image so that pixel x of it lies at linear @ x + shift."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    places = np.linalg.inv(linear) @ (np.stack([x.ravel(), y.ravel()]) - shift[:, None])
    values = map_coordinates(image, places[::-1], order=3, mode="reflect")
    return np.clip(values, 0, 1).reshape(image.shape).astype(np.float32)


def seeds(linear=TILT, shift=SHIFT, count=40, corner=(60, 60), side=80, seed=0) -> Matches:
    """Make true matches in a square of image 0."""
    points0 = np.random.default_rng(seed).uniform(corner, np.add(corner, side), (count, 2))
    scores = np.linspace(0.9, 0.5, count)
    rows = np.stack([np.arange(count)] * 2, 1)
    return Matches(points0, points0 @ linear.T + shift, scores, indices=rows)


def grown_only(matches: Matches) -> Matches:
    return matches.select(matches.indices[:, 0] < 0)


def errors(matches: Matches, linear=TILT, shift=SHIFT) -> np.ndarray:
    return np.linalg.norm(matches.points1 - (matches.points0 @ linear.T + shift), axis=1)


@pytest.fixture(scope="module")
def pair():
    image0 = picture()
    return image0, warped(image0, TILT, SHIFT)


@pytest.fixture(scope="module")
def grown(pair):
    return grow(seeds(), *pair)


def test_forty_true_matches_in_a_corner_grow_over_the_whole_picture(grown):
    new = grown_only(grown)

    assert len(new) > 400
    assert np.percentile(errors(new), 99) < 0.3
    assert np.ptp(new.points0, axis=0) == pytest.approx([320, 240], rel=0.25)


def test_the_given_matches_stay_where_refinement_puts_them(pair, grown):
    given = refine(seeds(), *pair)
    kept = grown.select(grown.indices[:, 0] >= 0)
    order = np.argsort(kept.indices[:, 0])

    np.testing.assert_array_equal(kept.points0[order], given.points0)
    np.testing.assert_allclose(kept.points1[order], given.points1, atol=1e-5)
    np.testing.assert_array_equal(kept.scores[order], given.scores)


def test_refined_matches_are_not_refined_again(pair):
    moved = replace(seeds(), points1=seeds().points1 + 2, refined=np.ones(40, bool))
    known = replace(moved, linear1_from_0=np.repeat(TILT[None], 40, 0))

    kept = grow(known, *pair)
    kept = kept.select(np.argsort(-kept.indices[:, 0], kind="stable")[:40])

    np.testing.assert_array_equal(kept.points1[::-1], known.points1)


def test_refined_matches_without_their_maps_grow_too(pair):
    moved = replace(refine(seeds(), *pair), linear1_from_0=None)

    assert len(grown_only(grow(moved, *pair))) > 400


def test_what_has_grown_is_surer_than_its_source_and_its_ncc(grown):
    assert grown_only(grown).scores.min() > 0.9  # sources of 0.5 and more, NCC of 0.8 and more
    assert grown_only(grown).scores.max() <= 1
    assert (np.diff(grown.scores) <= 0).all()


def test_what_has_grown_is_no_listed_point_and_has_no_partner(grown):
    partners0, partners1 = grown.partners(50, 50)

    np.testing.assert_array_equal(partners0, [*range(40), *[-1] * 10])
    np.testing.assert_array_equal(partners1, partners0)


def test_a_cell_grows_one_match_at_most_and_none_beside_a_given_one(grown):
    points0 = np.concatenate([seeds().points0.astype(np.float32), grown_only(grown).points0])
    cells = [tuple(cell) for cell in (points0[40:] + 0.5) // 8]

    assert len(set(cells)) == len(cells)
    assert not set(cells) & {tuple(cell) for cell in (points0[:40] + 0.5) // 8}


@pytest.mark.parametrize(
    "linear",
    [np.array([[0.0, 1.0], [-1.0, 0.0]]), 0.5 * np.eye(2), np.array([[0.7, -0.7], [0.7, 0.7]])],
    ids=["quarter turn", "half size", "45 degrees"],
)
def test_pictures_may_be_turned_and_resized(linear):
    image0 = picture(3)
    shift = np.array([160.0, 120.0]) - linear @ [160, 120]
    image1 = warped(image0, linear, shift)

    new = grown_only(grow(seeds(linear, shift, corner=(120, 80)), image0, image1))

    assert len(new) > 100
    assert np.percentile(errors(new, linear, shift), 95) < 0.5


def test_nothing_grows_where_another_scene_hides_the_first(pair):
    image1 = pair[1].copy()
    image1[:, 200:] = picture(50)[:, 200:]

    new = grown_only(grow(seeds(), pair[0], image1))

    assert len(new) > 150
    assert (new.points1[:, 0] > 205).mean() < 0.02


def test_hardly_anything_grows_between_unrelated_pictures():
    generator = np.random.default_rng(5)
    points = generator.uniform(20, 220, (2, 60, 2))
    random = Matches(*points, np.full(60, 0.9), indices=np.zeros((60, 2), int))

    assert len(grown_only(grow(random, picture(0), picture(50)))) <= 3


def test_masks_hold_in_both_images(pair):
    mask0, mask1 = np.ones(SIZE, bool), np.ones(SIZE, bool)
    mask0[:, 180:] = False
    mask1[:90] = False

    new = grown_only(grow(seeds(), *pair, mask0=mask0, mask1=mask1))

    assert len(new) > 50
    assert new.points0[:, 0].max() < 180
    assert new.points1[:, 1].min() >= 89.5


def test_the_order_of_the_given_matches_does_not_matter(pair, grown):
    order = np.random.default_rng(0).permutation(40)

    again = grow(seeds().select(order), *pair)

    first, second = (grown_only(each).points0 for each in (grown, again))
    assert len(set(map(tuple, first)) ^ set(map(tuple, second))) <= 0.02 * len(first)


def test_no_two_matches_end_at_the_same_place():
    image0 = picture(7, (480, 640))
    image1 = warped(image0, 0.12 * np.eye(2), np.array([100.0, 100.0]))
    given = seeds(0.12 * np.eye(2), np.array([100.0, 100.0]), corner=(200, 200), side=200)

    new = grown_only(grow(given, image0, image1))

    gaps = np.linalg.norm(new.points1[:, None] - new.points1[None], axis=2)
    assert (gaps + 9 * np.eye(len(new))).min(initial=9) > 1


def test_large_images_grow_about_as_many_matches_as_cells_asked_for():
    image0 = picture(9, (600, 800))
    image1 = warped(image0, np.eye(2), np.array([7.0, 5.0]))
    given = seeds(np.eye(2), np.array([7.0, 5.0]), corner=(200, 200), side=300)

    new = grown_only(grow(given, image0, image1, GrowOptions(cells=300, rounds=12)))

    assert 150 < len(new) <= 300
    assert np.percentile(errors(new, np.eye(2), np.array([7.0, 5.0])), 95) < 0.3


@pytest.mark.parametrize("score", [1.0001, -0.5])
def test_scores_stay_between_0_and_1_whatever_ncc_is(pair, monkeypatch, score):
    def move(*arguments):
        moved = move_to_peaks(*arguments)
        return moved._replace(scores=torch.full_like(moved.scores, score))

    monkeypatch.setattr("matcher.growth.move_to_peaks", move)
    unsure = replace(seeds(), scores=np.zeros(40))

    found = grow(unsure, *pair)

    assert len(grown_only(found)) > 400
    assert found.scores.min() >= 0
    assert found.scores.max() <= 1


@pytest.mark.parametrize("count", [0, 1, 5])
def test_too_few_matches_to_agree_are_given_back_refined(pair, count):
    few = seeds(count=count)

    found = grow(few, *pair)

    assert len(found) == count
    assert found.refined.shape == (count,)


def test_a_flat_picture_grows_nothing():
    flat = np.full(SIZE, 0.5, np.float32)

    assert len(grow(seeds(), flat, flat)) == 40


def test_matches_without_a_place_are_kept_and_carry_nothing(pair):
    points0, points1 = seeds().points0.copy(), seeds().points1.copy()
    points0[:2] = [np.nan, np.inf], [-1e30, 5]
    points1[2:4] = [np.nan, 7], [np.inf, -np.inf]
    lost = replace(seeds(), points0=points0, points1=points1)

    found = grow(lost, *pair)

    kept = found.select(found.indices[:, 0] >= 0)
    assert len(kept) == 40
    assert (~np.isfinite(kept.points0).all(1)).sum() == 1
    assert (~np.isfinite(kept.points1).all(1)).sum() == 2
    assert np.percentile(errors(grown_only(found)), 99) < 0.3
    assert len(grown_only(found)) > 400


def test_a_mask_of_half_the_size_is_fitted(pair):
    mask = np.ones((120, 160), bool)
    mask[:, 90:] = False

    new = grown_only(grow(seeds(), *pair, mask0=mask))

    assert len(new) > 100
    assert new.points0[:, 0].max() < 181


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (7, 5), (9, 2000)])
def test_images_of_any_size_are_taken(size):
    image = picture(4, (9, 2000))[: size[0], : size[1]]
    points = np.random.default_rng(0).uniform(0, size[::-1], (30, 2))
    matches = Matches(points, points, np.ones(30))

    found = grow(matches, image, image)

    assert len(found) >= 30
    assert np.isfinite(found.points1).all()


@pytest.mark.parametrize("name", ["cells", "reach", "rounds", "min_support", "search"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_an_option_that_makes_no_sense_is_named(name, value):
    with pytest.raises(ValueError, match=f"{name} must be more than 0, not"):
        GrowOptions(**{name: value})


def test_a_least_score_beyond_ncc_is_refused():
    with pytest.raises(ValueError, match=r"min_score must be in \[-1, 1\], not 2"):
        GrowOptions(min_score=2)


def test_methods_grow_unless_told_not_to(pair):
    plain, growing = (matcher.create("sift", grow=grows, device="cpu") for grows in (False, True))

    few, many = (matcher.match(method, *pair) for method in (plain, growing))

    assert len(many) > 1.5 * len(few)
    assert set(map(tuple, few.points0)) <= set(map(tuple, many.points0))
    assert len(matcher.match(matcher.create("sift", refine=False), *pair)) == len(few)
