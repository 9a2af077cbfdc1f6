"""Pictures and points at the edge of numbers: finite results or named errors, the same each way."""

from __future__ import annotations

import gc
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import matcher
from matcher.geometry import fitting
from matcher.geometry import two_view as geometry
from matcher.geometry.verification import verify
from matcher.types import Matches

METHODS = ("ncc", "superglue", "loftr")
STATM = Path("/proc/self/statm")
SIZES = ((1, 1), (1, 300), (300, 1), (2, 3), (3, 400), (8, 8))


@pytest.fixture(scope="module", params=METHODS)
def method(request):
    return matcher.create(request.param, device="cpu")


def edge_cases(size=(64, 80)):
    """Pictures whose numbers are extreme, by name."""
    height, width = size
    chance = np.random.default_rng(0)
    one = np.zeros(size, np.float32)
    one[height // 2, width // 2] = 1
    return {
        "black": np.zeros(size, np.float32),
        "white": np.ones(size, np.float32),
        "nearly nothing": np.full(size, 1e-40, np.float32) * chance.random(size, np.float32),
        "one step": (0.5 + 2.0**-24 * chance.integers(0, 2, size)).astype(np.float32),
        "one point": one,
        "checks": (np.indices(size).sum(0) % 2).astype(np.float32),
        "stripes": np.tile((np.arange(width) % 2).astype(np.float32), (height, 1)),
        "noise of two values": chance.integers(0, 2, size).astype(np.float32),
    }


def check(found, size0, size1):
    """Check that all is finite and inside."""
    for points, (height, width) in ((found.points0, size0), (found.points1, size1)):
        assert np.isfinite(points).all()
        assert (points >= -0.5).all()
        assert (points <= [width - 0.5, height - 0.5]).all()
    assert np.isfinite(found.scores).all()
    assert ((found.scores >= 0) & (found.scores <= 1)).all()


def test_pictures_of_extreme_numbers_have_finite_matches(method, texture):
    plain = texture(64, 80).astype(np.float32) / 255
    for picture in edge_cases().values():
        for pair in ((picture, plain), (plain, picture), (picture, picture)):
            check(matcher.match(method, *pair), (64, 80), (64, 80))


def test_pictures_of_every_size_have_matches_or_none(method, texture):
    plain = texture(64, 80).astype(np.float32) / 255
    for size in SIZES:
        picture = np.random.default_rng(0).random(size, np.float32)
        check(matcher.match(method, picture, plain), size, (64, 80))
        check(matcher.match(method, picture, picture), size, size)


def test_a_very_long_picture_is_no_error(method, texture):
    large = texture(40, 6000).astype(np.float32) / 255

    found = matcher.match(method, large, large[:, :400])

    check(found, large.shape, (40, 400))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1.0])
def test_numbers_that_no_picture_has_are_refused_by_name(method, texture, value):
    plain = texture(64, 80).astype(np.float32) / 255
    spoilt = plain.copy()
    spoilt[5, 7] = value

    with pytest.raises(ValueError, match=r"NaN or infinite pixels|has float32 values from"):
        matcher.match(method, plain, spoilt)


def test_the_number_of_threads_hardly_moves_a_match(method, shifted_pair):
    image0, image1 = shifted_pair(96, 120, 6, -4)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(matcher.match(method, image0, image1))
    finally:
        torch.set_num_threads(before)

    one, two = (dict(zip(map(tuple, f.points0.round(2)), f.points1, strict=True)) for f in found)
    shared = one.keys() & two.keys()
    assert len(shared) >= 0.98 * max(len(one), len(two)) > 20
    assert max(np.abs(one[point] - two[point]).max() for point in shared) < 0.01


def test_the_same_call_gives_the_same_bits(method, shifted_pair):
    image0, image1 = shifted_pair(96, 120, 6, -4)

    first, second = (matcher.match(method, image0, image1) for _ in range(2))

    for name in ("points0", "points1", "scores"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize("place", [(np.nan, 3), (np.inf, 3), (-1e6, 3), (1e30, 1e30), (79.5, 63.5)])
def test_refinement_leaves_points_that_are_nowhere(shifted_pair, place):
    image0, image1 = shifted_pair(64, 80, 3, 2)
    y, x = np.mgrid[12:52:8, 12:68:8]
    points = np.stack([x, y], axis=2).reshape(-1, 2).astype(np.float32)
    step = np.array([3, 2])
    points0 = np.concatenate([points, [place], points[:1]])
    points1 = np.concatenate([points + step, [place], points[:1] + step])

    refined = matcher.refine(Matches(points0, points1, np.ones(len(points0))), image0, image1)

    moved = refined.points1[: len(points)] - points
    np.testing.assert_allclose(np.median(moved, axis=0), [3, 2], atol=0.1)
    lost = len(points)
    np.testing.assert_array_equal(refined.points1[lost], np.float32(points1[lost]))


def hard_points():
    """Sets of points that determine nothing, or hardly anything, by name."""
    chance = np.random.default_rng(0)
    many = chance.uniform(0, 100, (30, 2))
    line = np.linspace(0, 90, 30)[:, None] * [[1, 0.5]]
    return {
        "none": many[:0],
        "one": many[:1],
        "copies": np.tile(many[:1], (30, 1)),
        "two places": many[np.arange(30) % 2],
        "a line": line,
        "nearly a line": line + 1e-9 * many,
        "huge": 1e12 * many,
        "tiny": 1e-12 * many,
        "not numbers": np.where(many > 50, np.nan, many),
        "infinite": np.where(many > 90, np.inf, many),
        "pixels": many,
    }


K = np.array([[100.0, 0, 50], [0, 100, 50], [0, 0, 1]])
FITS = {
    "homography": fitting.fit_homography,
    "affine": fitting.fit_affine,
    "similarity": fitting.fit_similarity,
    "fundamental": fitting.fit_fundamental,
    "pose": lambda points0, points1: fitting.fit_pose(points0, points1, K, K),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_every_fit_answers_to_every_set_of_points(fit):
    for (name0, points0), (name1, points1) in itertools.product(hard_points().items(), repeat=2):
        if len(points0) != len(points1):
            continue

        found = fit(points0, points1)

        assert len(found.inliers) == len(points0), (name0, name1)
        assert found.reason, (name0, name1)
        if found.success and isinstance(found.model, np.ndarray):
            assert np.isfinite(found.model).all(), (name0, name1)


@pytest.mark.filterwarnings("error")
def test_every_set_of_points_gets_a_verdict_and_distances():
    for points in hard_points().values():
        matches = Matches(points, points, np.ones(len(points)))
        verdict = verify(matches, (100, 100), (100, 100))
        fundamental = geometry.cross_matrix(np.array([1.0, 0, 0]))
        kept = points[np.isfinite(points).all(axis=1)]

        assert verdict.reason
        assert np.isfinite(geometry.symmetric_distance(kept, kept, fundamental)).all()
        assert 0 <= geometry.covered_area(kept, (100, 100)) <= 1


@pytest.mark.skipif(not STATM.exists(), reason="reads the resident set from /proc")
def test_memory_stays_flat_over_pairs_of_changing_sizes(method, texture):  # PRF-03
    def resident() -> int:
        gc.collect()
        return int(STATM.read_text().split()[1])

    sizes = [(90 + 7 * (step % 5), 120 - 5 * (step % 7)) for step in range(105)]
    for step, size in enumerate(sizes):
        picture = texture(*size, seed=step)
        matcher.match(method, picture, np.roll(picture, 3, axis=1))
        if step == 35:  # every size has been seen
            before = resident()

    assert resident() < 1.05 * before
