"""Refinement by correlation: known places, and matches that must stay where they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import texture
from scipy.ndimage import map_coordinates

from matcher import Matches, refine
from matcher.local_maps import fit_local_maps, inverse_2x2, nearest_rows
from matcher.refinement import RefineOptions

SIZE = 240, 320


def picture(seed: int = 0) -> np.ndarray:
    """Mix three grains of texture: (H, W) float32 in [0, 1]."""
    grains = [texture(*SIZE, seed=seed + i, sigma=s) for i, s in enumerate((1.5, 3, 8))]
    return (sum(grain.astype(np.float32) for grain in grains) / (3 * 255)).astype(np.float32)


def warped(image: np.ndarray, linear: np.ndarray, shift: tuple[float, float]) -> np.ndarray:
    """Resample an image so that pixel x of it lies at linear @ x + shift."""
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    places = np.linalg.inv(linear) @ (np.stack([x.ravel(), y.ravel()]) - np.array(shift)[:, None])
    values = map_coordinates(image, places[::-1], order=3, mode="reflect")
    return np.clip(values, 0, 1).reshape(image.shape).astype(np.float32)


def known_matches(linear, shift, noise=2.0, count=200, seed=0):
    """Make noisy matches of a linear map, and their true places."""
    generator = np.random.default_rng(seed)
    height, width = SIZE
    points0 = generator.uniform([60, 60], [width - 60, height - 60], (count, 2))
    truth = points0 @ linear.T + shift
    points1 = truth + generator.uniform(-noise, noise, truth.shape)
    return Matches(points0, points1, np.ones(count)), truth


def errors(matches: Matches, truth: np.ndarray) -> np.ndarray:
    return np.linalg.norm(matches.points1 - truth, axis=1)


def local_maps(points0: np.ndarray, points1: np.ndarray) -> np.ndarray:
    first, second = torch.from_numpy(points0), torch.from_numpy(points1)
    return fit_local_maps(first, second, nearest_rows(first)).numpy()


def turn(degrees: float, scale: float = 1.0) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return scale * np.array([[c, -s], [s, c]])


@pytest.mark.parametrize(
    ("linear", "shift"),
    [
        (np.eye(2), (3.3, -2.6)),
        (turn(10), (40.0, -20.0)),
        (np.array([[1.1, 0.15], [-0.1, 0.9]]), (-10.25, 20.5)),
        (turn(-5, 0.6), (60.2, 50.4)),
    ],
)
def test_matches_move_to_within_a_tenth_of_a_pixel(linear, shift) -> None:
    image0 = picture()
    matches, truth = known_matches(linear, shift)

    moved = refine(matches, image0, warped(image0, linear, shift))

    assert moved.refined.mean() > 0.95
    assert np.median(errors(matches, truth)) > 1
    assert np.median(errors(moved, truth)) < 0.1


def test_local_maps_are_the_true_one() -> None:
    linear = np.array([[1.1, 0.15], [-0.1, 0.9]])
    matches, _ = known_matches(linear, (-10.0, 20.0), noise=0.0)

    maps = local_maps(matches.points0, matches.points1)

    np.testing.assert_allclose(maps, np.broadcast_to(linear, maps.shape), atol=1e-3)


def test_local_maps_survive_one_wrong_match_in_three() -> None:
    linear = turn(30, 1.3)
    matches, _ = known_matches(linear, (10.0, 20.0), noise=0.5, count=300)
    points1 = matches.points1.copy()
    points1[::3] += np.random.default_rng(1).uniform(-90, 90, points1[::3].shape)

    maps = local_maps(matches.points0, points1)

    wrong = np.abs(maps - linear).max((1, 2))
    assert np.median(wrong) < 0.05
    assert np.quantile(wrong, 0.9) < 0.2


def test_closed_inverse_equals_numpys() -> None:
    matrices = np.random.default_rng(0).normal(size=(5, 3, 2, 2))

    inverse = inverse_2x2(torch.from_numpy(matrices)).numpy()

    np.testing.assert_allclose(inverse, np.linalg.inv(matrices), rtol=1e-9)


def test_brightness_and_contrast_do_not_move_anything() -> None:
    image0 = picture()
    matches, _ = known_matches(np.eye(2), (3.3, -2.6))
    image1 = warped(image0, np.eye(2), (3.3, -2.6))

    plain = refine(matches, image0, image1)
    darker = refine(matches, image0, 0.4 * image1 + 0.3)

    np.testing.assert_allclose(plain.points1, darker.points1, atol=2e-3)


def test_order_scores_and_image_0_stay() -> None:
    image0 = picture()
    matches, _ = known_matches(np.eye(2), (0.0, 0.0), noise=1.0)
    scored = Matches(matches.points0, matches.points1, np.linspace(1, 0, len(matches)))

    moved = refine(scored, image0, image0)

    np.testing.assert_array_equal(moved.points0, scored.points0)
    np.testing.assert_array_equal(moved.scores, scored.scores)


def test_swapping_the_images_swaps_the_result_where_both_sides_are_treated_alike() -> None:
    image0 = picture()
    image1 = warped(image0, turn(4), (5.0, -3.0))
    matches, _ = known_matches(turn(4), (5.0, -3.0), noise=1.0)
    options = RefineOptions(symmetric=True)

    forward = refine(matches, image0, image1, options)
    backward = refine(matches.swapped(), image1, image0, options).swapped()

    assert forward.refined.mean() > 0.9
    np.testing.assert_array_equal(forward.refined, backward.refined)
    np.testing.assert_allclose(forward.points0, backward.points0, atol=1e-4)
    np.testing.assert_allclose(forward.points1, backward.points1, atol=1e-4)


def test_both_sides_moved_half_way_agree_with_the_truth() -> None:
    image0 = picture()
    matches, _ = known_matches(np.eye(2), (5.4, -3.3), noise=1.5)

    moved = refine(
        matches, image0, warped(image0, np.eye(2), (5.4, -3.3)), RefineOptions(symmetric=True)
    )

    gap = np.linalg.norm(moved.points1 - moved.points0 - (5.4, -3.3), axis=1)
    assert np.median(gap[moved.refined]) < 0.1


@pytest.mark.parametrize("flat", ["image0", "image1"])
def test_flat_pictures_move_nothing(flat) -> None:
    images = {"image0": picture(), "image1": picture()}
    images[flat] = np.full(SIZE, 0.5, np.float32)
    matches, _ = known_matches(np.eye(2), (0.0, 0.0), noise=1.0)

    moved = refine(matches, images["image0"], images["image1"])

    assert not moved.refined.any()
    np.testing.assert_array_equal(moved.points1, matches.points1)


def test_unrelated_pictures_move_few_matches_and_none_far() -> None:
    matches, _ = known_matches(np.eye(2), (0.0, 0.0), noise=0.0)

    moved = refine(matches, picture(0), picture(7), RefineOptions(min_score=0.8))

    assert moved.refined.mean() < 0.1


def test_an_edge_alone_moves_nothing_along_itself() -> None:
    image = np.zeros(SIZE, np.float32)
    image[:, 160:] = 1.0
    column = np.full(50, 160.0)
    points = np.stack([column, np.linspace(50, 190, 50)], 1)
    matches = Matches(points, points + np.array([1.0, 0.0]), np.ones(50))

    moved = refine(matches, image, image)

    assert not moved.refined.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -50.0, 1e7])
def test_lost_points_stay_and_do_not_disturb_the_others(bad) -> None:
    image0 = picture()
    matches, truth = known_matches(np.eye(2), (0.0, 0.0), noise=1.0)
    points1 = matches.points1.copy()
    points1[5] = bad

    moved = refine(Matches(matches.points0, points1, matches.scores), image0, image0)

    assert not moved.refined[5]
    np.testing.assert_array_equal(moved.points1[5], points1[5])
    others = np.arange(len(matches)) != 5
    assert np.median(errors(moved.select(others), truth[others])) < 0.1


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 300])
def test_any_number_of_matches(count) -> None:
    matches, truth = known_matches(np.eye(2), (0.0, 0.0), noise=1.0, count=count)

    moved = refine(matches, picture(), picture())

    assert len(moved) == len(moved.refined) == count
    assert not count or np.median(errors(moved, truth)) < 0.1


def test_known_scale_and_angle_help_a_lone_match() -> None:
    image0, linear = picture(), turn(60, 0.8)
    image1 = warped(image0, linear, (150.0, -40.0))
    matches, truth = known_matches(linear, (150.0, -40.0), noise=0.0, count=400)
    rows = np.flatnonzero(((truth > 40) & (truth < [280, 200])).all(1))[:1]
    lone = Matches(matches.points0[rows], truth[rows] + 1.5, [1.0])
    known = Matches(lone.points0, lone.points1, [1.0], linear1_from_0=linear[None])

    assert errors(refine(known, image0, image1), truth[rows])[0] < 0.15
    assert errors(refine(lone, image0, image1), truth[rows])[0] > 0.5


def test_results_do_not_depend_on_the_block(monkeypatch) -> None:
    image0 = picture()
    matches, _ = known_matches(np.eye(2), (0.0, 0.0), noise=1.0)
    whole = refine(matches, image0, image0)

    monkeypatch.setattr("matcher.refinement.BLOCK", {"cpu": 1 << 15})
    blocks = refine(matches, image0, image0)

    np.testing.assert_allclose(whole.points1, blocks.points1, atol=1e-4)


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (5, 5), (16, 17)])
def test_tiny_images_are_left_alone(size) -> None:
    image = np.random.default_rng(0).uniform(size=size).astype(np.float32)
    matches = Matches([[0.0, 0.0]], [[0.0, 0.0]], [1.0])

    assert not refine(matches, image, image).refined.any()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"radius": 1}, "radius must be at least 2, not 1"),
        ({"search": 0}, "search must be at least 1, not 0"),
        ({"min_score": 1.5}, r"min_score must be in \[-1, 1\], not 1.5"),
        ({"smooth": -1.0}, "smooth must not be negative, not -1.0"),
    ],
)
def test_bad_options_are_named(option, message) -> None:
    with pytest.raises(ValueError, match=message):
        RefineOptions(**option)
