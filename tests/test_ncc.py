"""NCC as a matcher: corners, grids and the caller's own points against known motions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import texture
from scipy.ndimage import rotate

import matcher
from matcher.features import corners
from matcher.types import Matches


def as_found(**options):
    return matcher.create("ncc", refine=False, patch_scales=(1.0,), **options)


def residual(matches: Matches, dx: float, dy: float) -> np.ndarray:
    return np.linalg.norm(matches.points1 - matches.points0 - (dx, dy), axis=1)


@pytest.mark.parametrize("candidates", ["corners", "pixels"])
@pytest.mark.parametrize("where", ["corners", "grid"])
def test_a_shift_is_found_at_nearly_every_match(shifted_pair, candidates, where) -> None:
    if (candidates, where) == ("corners", "grid"):
        pytest.skip("two grids meet only where the shift is a multiple of their step")
    image0, image1 = shifted_pair(150, 200, 12, -7)

    matches = matcher.match(as_found(candidates=candidates, where=where, spacing=6), image0, image1)

    assert len(matches) > 100
    assert np.mean(residual(matches, 12, -7) < 0.2) > 0.98


def test_scores_are_weighted_ncc_of_the_patches(shifted_pair) -> None:
    image0, image1 = shifted_pair(100, 120, 5, 3)
    front_end = corners.build(device="cpu", octave=0, blur=0.0)
    point = np.array([[50.0, 40.0]], np.float32)

    products = [
        front_end.describe_points(image.astype(np.float32) / 255, point)[0]
        for image in (image0, image1)
    ]

    patches = [image[33:48, 43:58].astype(np.float64) for image in (image0, image1)]
    steps = np.arange(-7, 8)
    weights = np.exp(-0.5 * (steps / 4.2) ** 2)
    weights = weights[:, None] * weights / weights.sum() ** 2
    centred = [patch - (patch * weights).sum() for patch in patches]
    direct = (centred[0] * centred[1] * weights).sum() / np.sqrt(
        (centred[0] ** 2 * weights).sum() * (centred[1] ** 2 * weights).sum()
    )
    assert products[0] @ products[1] == pytest.approx(direct, abs=1e-4)
    assert products[0] @ products[0] == pytest.approx(1, abs=1e-5)


def test_inverted_contrast_is_no_match(shifted_pair) -> None:
    image0, image1 = shifted_pair(150, 200, 12, -7)

    matches = matcher.match(as_found(), image0, 255 - image1)

    assert np.mean(residual(matches, 12, -7) < 2) < 0.05 if len(matches) else True


def test_brightness_and_contrast_do_not_change_the_matches(shifted_pair) -> None:
    image0, image1 = shifted_pair(150, 200, 12, -7)
    dim = (image1 * 0.4 + 60).astype(np.float32) / 255

    matches = matcher.match(as_found(), image0, dim)

    assert len(matches) > 100
    assert np.mean(residual(matches, 12, -7) < 0.3) > 0.98


def test_a_window_keeps_matches_near(shifted_pair) -> None:
    image0, image1 = shifted_pair(150, 200, 12, -7)

    near = matcher.match(as_found(window=20.0), image0, image1)
    nearer = matcher.match(as_found(window=5.0), image0, image1)

    assert len(near) > 100
    assert residual(nearer, 0, 0).max(initial=0) < 5 + 3
    assert np.mean(residual(nearer, 12, -7) < 1) < 0.05 if len(nearer) else True


@pytest.mark.parametrize("angle", [30, -90, 170])
def test_a_turn_is_found_where_it_is_searched(angle) -> None:
    image0 = texture(200, 200, sigma=2.5)
    image1, linear = turned(image0, angle)

    matches = matcher.match(as_found(angles_degrees=range(-180, 180, 15)), image0, image1)

    truth = (matches.points0 - 99.5) @ linear.T + 99.5
    assert len(matches) > 50
    assert np.mean(np.linalg.norm(matches.points1 - truth, axis=1) < 1) > 0.9
    assert np.median(np.abs(matches.linear1_from_0 - linear)) < 0.1


def turned(image: np.ndarray, angle_degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Turn a picture counter-clockwise about its centre; also the map of steps."""
    c, s = np.cos(np.radians(angle_degrees)), np.sin(np.radians(angle_degrees))
    seen = rotate(image.astype(np.float32), angle_degrees, reshape=False, mode="reflect")
    return np.clip(seen, 0, 255).astype(np.uint8), np.array([[c, s], [-s, c]])


def test_masked_places_have_no_matches(shifted_pair) -> None:
    image0, image1 = shifted_pair(150, 200, 12, -7)
    mask = np.zeros((150, 200), bool)
    mask[:, 100:] = True

    matches = matcher.match(as_found(), image0, image1, mask0=mask, mask1=mask)

    assert len(matches) > 20
    assert matches.points0[:, 0].min() > 99
    assert matches.points1[:, 0].min() > 99


def test_points_of_the_callers_own_are_followed_in_order(shifted_pair) -> None:
    image0, image1 = shifted_pair(150, 200, 12, -7)
    method = as_found()
    pair = tuple(method.describe([image / np.float32(255) for image in (image0, image1)]))
    x, y = np.meshgrid(np.linspace(40, 150, 10), np.linspace(40, 110, 5))
    asked = np.stack([x.ravel(), y.ravel()], 1).astype(np.float32)

    places = method.match_points(pair, asked)

    assert places.valid.mean() > 0.95
    np.testing.assert_allclose(
        places.points1[places.valid], asked[places.valid] + [12, -7], atol=0.2
    )
    assert np.isnan(places.points1[~places.valid]).all()


def test_the_score_map_peaks_at_the_true_place(shifted_pair) -> None:
    image0, image1 = shifted_pair(150, 200, 12, -7)
    method = as_found()
    pair = tuple(method.describe([image / np.float32(255) for image in (image0, image1)]))

    scores = method.score_map(pair, (100.0, 70.0))

    assert scores.best == (112.0, 63.0)
    assert scores.grid == (150, 200)
    assert np.abs(scores.scores).max() <= 1 + 1e-6


@pytest.mark.parametrize("value", [0, 127, 255])
def test_flat_images_have_no_corners_and_no_matches(value, shifted_pair) -> None:
    flat, (image, _) = np.full((150, 200), value, np.uint8), shifted_pair(150, 200, 0, 0)

    for pair in ((flat, image), (image, flat), (flat, flat)):
        assert len(matcher.match(as_found(), *pair)) == 0
    for pair in ((flat, image), (image, flat)):
        assert len(matcher.match(as_found(candidates="pixels", where="grid"), *pair)) == 0


def test_repeated_texture_has_no_unique_match() -> None:
    tile = texture(16, 16, sigma=2.0)
    image = np.tile(tile, (16, 18))
    inner = np.zeros(image.shape, bool)
    inner[32:-32, 32:-32] = True  # at the border the frame tells the tiles apart

    assert len(matcher.match(as_found(), image, image, mask0=inner, mask1=inner)) == 0


def test_corners_are_those_of_opencv() -> None:
    cv2 = pytest.importorskip("cv2")
    image = np.zeros((120, 160), np.float32)
    image[30:80, 40:110] = 1.0

    found = corners.build(device="cpu").detect([image])[0].points
    reference = cv2.goodFeaturesToTrack(image, 4, 0.1, 10)[:, 0]

    assert len(found) == 4
    nearest = np.linalg.norm(found[:, None] - reference, axis=2).min(0)
    assert nearest.max() <= 1.5


def test_angles_and_scales_come_in_any_form(shifted_pair) -> None:  # PKG-06
    image0, image1 = shifted_pair(100, 120, 5, 3)

    forms = ((1.0, 1.2), [1.0, 1.2], np.array([1.0, 1.2]), (scale for scale in (1.0, 1.2)))
    found = [
        matcher.match(
            matcher.create("ncc", patch_scales=form, angles_degrees=range(2)), image0, image1
        )
        for form in forms
    ]

    assert len(found[0]) > 20
    for each in found[1:]:
        np.testing.assert_array_equal(each.points1, found[0].points1)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"candidates": "edges"}, "candidates must be 'corners' or 'pixels', not 'edges'"),
        ({"window": 0.0}, "window must be more than 0 pixels, not 0.0"),
        ({"patch_scales": ()}, "angles_degrees and patch_scales must not be empty"),
        ({"patch_scales": (0.0,)}, "patch_scales more than 0"),
        ({"min_score": 2.0}, r"min_score must be in \[-1, 1\], not 2.0"),
        ({"ratio": 0.0}, r"ratio must be in \(0, 1\], not 0.0"),
        ({"where": "blobs"}, "where must be 'corners' or 'grid', not 'blobs'"),
        ({"radius": 0}, "radius must be at least 1, not 0"),
    ],
)
def test_bad_options_are_named(option, message) -> None:
    with pytest.raises(ValueError, match=message):
        matcher.create("ncc", **option)


def test_descriptors_follow_the_device() -> None:
    assert corners.build(device="auto").device in (torch.device("cpu"), torch.device("cuda"))


def test_refined_methods_answer_for_given_points_to_a_fraction(shifted_pair) -> None:  # CTF-15
    image0, image1 = (image / np.float32(255) for image in shifted_pair(150, 200, 12, -7))
    method = matcher.create("ncc", patch_scales=(1.0,))
    asked = np.array([[60.25, 60.5], [100.0, 75.75], [-9.0, 20.0]], np.float32)

    places = method.match_points(tuple(method.describe([image0, image1])), asked)

    assert places.valid.tolist()[:2] == [True, True]
    np.testing.assert_allclose(places.points1[:2], np.add(asked[:2], (12, -7)), atol=0.1)


def test_methods_that_choose_their_own_points_say_so(shifted_pair) -> None:
    pytest.importorskip("cv2")
    image0, image1 = (image / np.float32(255) for image in shifted_pair(64, 64, 0, 0))
    method = matcher.create("orb")

    with pytest.raises(ValueError, match="cannot be asked about given points; ncc and loftr can"):
        method.match_points(tuple(method.describe([image0, image1])), np.zeros((1, 2)))
