"""Matches of pairs become tracks: merged, one-to-one, the same for any order."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matcher.sfm.sharpening import place, sharpen
from matcher.sfm.tracks import MergeOptions, Tracks, build_tracks, link, merge_points
from matcher.types import Matches

RADIUS = 2.0


def matches(points0, points1, scores=None):
    scores = np.ones(len(points0)) if scores is None else scores
    return Matches(points0, points1, scores)


def jittered(generator, points, most):
    angle = generator.uniform(0, 2 * np.pi, len(points))
    length = most * np.sqrt(generator.uniform(0, 1, len(points)))
    return points + np.stack([np.cos(angle), np.sin(angle)], axis=1) * length[:, None]


def semi_dense(names="abc", count=60, most=0.8, seed=0):
    """Matches of a detector-free method: the same spot lies elsewhere in each pair."""
    generator = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.arange(10) * 20.0, np.arange(6) * 20.0), axis=-1).reshape(-1, 2)
    truth = {name: grid[:count] + 7 * number for number, name in enumerate(names)}
    pairs = {
        (one, other): matches(
            jittered(generator, truth[one], most),
            jittered(generator, truth[other], most),
            generator.uniform(0.3, 1, count),
        )
        for one, other in combinations(names, 2)
    }
    return truth, pairs


# SFM-06
def test_every_point_becomes_one_keypoint_an_image_and_one_track():
    truth, pairs = semi_dense()

    tracks = build_tracks(pairs, "abc", MergeOptions(RADIUS))

    assert len(tracks) == 60
    assert tracks.mean_length == 3
    for number, name in enumerate("abc"):
        points = tracks.points[tracks.images == number]
        distance = np.linalg.norm(points[:, None] - truth[name], axis=2).min(axis=1)
        assert np.sqrt((distance**2).mean()) < 0.5


# SFM-06
def test_a_keypoint_is_the_weighted_mean_of_its_places():
    points = np.array([[10, 10], [11, 10], [50, 50]], np.float32)

    labels, centres = merge_points(points, np.array([1, 3, 1], np.float32), RADIUS)

    assert labels[0] == labels[1] != labels[2]
    np.testing.assert_allclose(centres[labels[0]], [10.75, 10], atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 6))
def test_no_place_moves_farther_than_the_radius(seed, radius):
    generator = np.random.default_rng(seed)
    points = generator.uniform(0, 40, (200, 2)).astype(np.float32)

    labels, centres = merge_points(points, generator.uniform(0, 1, 200).astype(np.float32), radius)

    merged = labels >= 0
    assert merged.mean() > 0.8
    moves = np.linalg.norm(points[merged] - centres[labels[merged]], axis=1)
    assert (moves <= radius + 1e-4).all()


def test_places_that_coincide_merge_at_radius_0():
    points = np.array([[1, 1], [2, 2], [1, 1]], np.float32)

    labels, centres = merge_points(points, np.ones(3, np.float32), 0)

    assert labels[0] == labels[2] != labels[1]
    assert len(centres) == 2


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_and_direction_of_pairs_do_not_matter(random):
    _, pairs = semi_dense("abcd", 40, 1.5)
    listed = [
        (pair[::-1], found.swapped()) if random.random() < 0.5 else (pair, found)
        for pair, found in pairs.items()
    ]
    random.shuffle(listed)

    one, other = build_tracks(pairs, "abcd"), build_tracks(dict(listed), "abcd")

    for name in ("images", "points", "tracks", "weights"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_no_track_visits_an_image_twice_whatever_the_matches(seed):
    generator = np.random.default_rng(seed)
    images = np.sort(generator.integers(0, 5, 40))
    left, right = generator.integers(0, 40, (2, 80))
    apart = images[left] != images[right]

    tracks = link(left[apart], right[apart], generator.uniform(size=apart.sum()), images)

    visits = np.stack([tracks, images], axis=1)
    assert len(np.unique(visits, axis=0)) == len(visits)


def test_the_stronger_of_two_matches_that_exclude_each_other_stays():
    images = np.array([0, 1, 1])

    tracks = link(np.array([0, 0]), np.array([1, 2]), np.array([0.4, 0.9]), images)

    assert tracks[0] == tracks[2] != tracks[1]


def test_matches_are_one_to_one_in_every_pair():
    generator = np.random.default_rng(3)
    pairs = {
        pair: matches(*generator.uniform(0, 60, (2, 100, 2)), generator.uniform(size=100))
        for pair in combinations("abcd", 2)
    }

    tracks = build_tracks(pairs, "abcd", MergeOptions(3))

    for image in range(4):
        assert (
            len(np.unique(tracks.tracks[tracks.images == image])) == (tracks.images == image).sum()
        )
    assert np.bincount(tracks.tracks).min() >= 2


def test_an_image_keeps_the_keypoints_of_its_longest_tracks():
    _, pairs = semi_dense("abc", 60, 0)
    more = {("a", "b"): matches(pairs["a", "b"].points0 + 9, pairs["a", "b"].points1 + 9)}
    both = {
        pair: matches(
            np.concatenate([found.points0, more[pair].points0]),
            np.concatenate([found.points1, more[pair].points1]),
        )
        if pair in more
        else found
        for pair, found in pairs.items()
    }

    tracks = build_tracks(both, "abc", MergeOptions(RADIUS, max_keypoints=60))

    assert len(tracks) == 60
    assert tracks.mean_length == 3


def test_keypoints_of_a_sparse_method_stay_where_they_are():
    generator = np.random.default_rng(0)
    keypoints = {name: generator.uniform(0, 500, (30, 2)).astype(np.float32) for name in "abc"}
    pairs = {
        (one, other): matches(keypoints[one], keypoints[other])
        for one, other in combinations("abc", 2)
    }

    tracks = build_tracks(pairs, "abc", MergeOptions(0))

    assert len(tracks) == 30
    for number, name in enumerate("abc"):
        assert {*map(tuple, tracks.points[tracks.images == number])} == {
            *map(tuple, keypoints[name])
        }


def test_nothing_matched_gives_no_tracks():
    tracks = build_tracks({("a", "b"): Matches.empty()}, "ab")

    assert len(tracks) == 0
    assert tracks.mean_length == 0


def test_bad_options_and_pairs_are_refused():
    with pytest.raises(ValueError, match="radius must be 0 or more pixels, not -1"):
        MergeOptions(radius=-1)
    with pytest.raises(ValueError, match="max_keypoints must be at least 1, not 0"):
        MergeOptions(max_keypoints=0)
    with pytest.raises(ValueError, match="'a' is paired with itself"):
        build_tracks({("a", "a"): Matches.empty()}, "a")
    with pytest.raises(ValueError, match="'z' of a pair is not among the 2 images"):
        build_tracks({("a", "z"): Matches.empty()}, "ab")


def test_sharpening_places_all_observations_at_one_spot_of_the_scene(texture):
    large = texture(200, 240, sigma=2.0).astype(np.float32) / 255
    shifts = {"a": (0, 0), "b": (7, 3), "c": (2, 9)}
    pictures = {name: large[y : y + 160, x : x + 200] for name, (x, y) in shifts.items()}
    generator = np.random.default_rng(0)
    spots = generator.uniform(40, 120, (40, 2))
    points = [spots - shifts[n] + generator.uniform(-1.5, 1.5, spots.shape) for n in "abc"]
    tracks = Tracks(
        ("a", "b", "c"),
        np.tile(np.arange(3), 40),
        np.stack(points, axis=1).reshape(-1, 2).astype(np.float32),
        np.tile(np.array([3, 2, 1], np.float32), 40),
        np.repeat(np.arange(40), 3),
    )

    def place_all(groups):
        return [place(g, pictures[g.fixed], pictures[g.moving]) for g in groups]

    sharp = sharpen(tracks, place_all)

    spot = sharp.points + np.array([shifts["abc"[image]] for image in sharp.images])
    model = spot[np.searchsorted(sharp.tracks, sharp.tracks)]  # the observation in image a
    assert len(sharp) >= 35
    moves = np.linalg.norm(spot - model, axis=1)
    assert np.median(moves) < 0.1
    assert moves.max() < 0.5
    assert (sharp.weights[sharp.images == 0] == 3).all()
