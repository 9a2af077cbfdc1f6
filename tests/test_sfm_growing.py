"""Tracks that grow between others: where they lie, how long they are, and that none is there twice."""

from __future__ import annotations

import numpy as np
import pytest

from matcher.sfm import growing
from matcher.sfm.growing import Grown, grow_group, grow_tracks
from matcher.sfm.sharpening import Group
from matcher.sfm.tracks import Tracks

SHIFTS = np.array([[0, 0], [7, 3], [-5, 6], [10, -8]])  # of the view in each image
SIZE = np.array([150, 200])
NAMES = tuple(f"{number}.png" for number in range(len(SHIFTS)))
PAIRS = [(one, other) for rank, one in enumerate(NAMES) for other in NAMES[rank + 1 :]]


@pytest.fixture
def views(texture):
    """Four views of one plane, by whole pixels."""
    whole = texture(190, 240).astype(np.float32) / 255
    corners = SHIFTS[:, ::-1] + 20
    return {
        name: whole[y : y + SIZE[0], x : x + SIZE[1]]
        for name, (y, x) in zip(NAMES, corners, strict=True)
    }


def planted(count=40, seed=0):
    """Tracks that are seen in every image, at their exact places."""
    points = np.random.default_rng(seed).uniform((30, 30), (170, 120), (count, 2))
    images = np.tile(np.arange(len(NAMES)), count)
    seen = np.repeat(points, len(NAMES), axis=0) - SHIFTS[images]
    numbers = np.repeat(np.arange(count), len(NAMES))
    return Tracks(NAMES, images, seen.astype(np.float32), np.ones(len(images), np.float32), numbers)


def grow_all(views):
    return lambda groups: [
        grow_group(group, (views[group.fixed], views[group.moving])) for group in groups
    ]


def test_what_grows_lies_where_the_scene_says_and_is_seen_by_all(views):
    tracks = planted()

    grown = grow_tracks(tracks, PAIRS, grow_all(views))

    assert len(grown) > 3 * len(tracks)
    assert grown.mean_length > 3.5
    scene = grown.points + SHIFTS[grown.images]
    first = np.searchsorted(grown.tracks, np.arange(len(grown)))
    errors = np.linalg.norm(scene - scene[first][grown.tracks], axis=1)
    assert np.median(errors) < 0.05
    assert np.mean(errors < 0.3) > 0.98


def test_the_tracks_that_were_there_stay_as_they_are(views):
    tracks = planted()

    grown = grow_tracks(tracks, PAIRS, grow_all(views))

    old = grown.tracks < len(tracks)
    np.testing.assert_array_equal(grown.points[old], tracks.points)
    np.testing.assert_array_equal(grown.tracks[old], tracks.tracks)


def test_no_track_visits_an_image_twice_and_none_lies_on_another(views):
    grown = grow_tracks(planted(), PAIRS, grow_all(views))

    visits = grown.tracks * len(NAMES) + grown.images
    assert len(np.unique(visits)) == len(visits)
    scene = (grown.points + SHIFTS[grown.images])[grown.images == 0]
    gaps = np.linalg.norm(scene[:, None] - scene[None], axis=2) + 99 * np.eye(len(scene))
    assert np.mean(gaps.min(axis=1) < 0.5) < 0.1


def test_the_order_of_pairs_does_not_matter(views):
    one = grow_tracks(planted(), PAIRS, grow_all(views))
    other = grow_tracks(planted(), [pair[::-1] for pair in PAIRS[::-1]], grow_all(views))

    np.testing.assert_array_equal(one.points, other.points)
    np.testing.assert_array_equal(one.tracks, other.tracks)


def test_images_that_share_few_tracks_grow_nothing(views):
    tracks = planted(growing.MIN_SHARED - 1)

    grown = grow_tracks(tracks, PAIRS, grow_all(views))

    np.testing.assert_array_equal(grown.points, tracks.points)
    assert len(grow_tracks(tracks, [], grow_all(views))) == len(tracks)


def test_two_images_make_no_track_longer_than_two_and_nothing_grows(views):
    grown = grow_tracks(planted(), PAIRS[:1], grow_all(views))

    assert len(grown) == len(planted())


def test_a_copy_gives_way_to_the_longer_track():
    corner = np.array([[50.0, 50.0]], np.float32)

    def twins(groups):
        """Both first images grow the same spot into the others; the first into all, the second not."""
        told = []
        for group in groups:
            start, end = NAMES.index(group.fixed), NAMES.index(group.moving)
            there = start == 0 or (start == 1 and end < 3)
            moved = corner - SHIFTS[start] - (SHIFTS[end] - SHIFTS[start])
            told.append(
                Grown(
                    (corner - SHIFTS[start]).astype(np.float32)[:there],
                    moved.astype(np.float32)[:there],
                    np.ones(int(there), np.float32),
                )
            )
        return told

    grown = grow_tracks(planted(), PAIRS, twins)

    assert len(grown) == len(planted()) + 1
    assert (grown.tracks == len(planted())).sum() == len(NAMES)


def test_nothing_grows_where_a_mask_forbids(views):
    tracks = planted()
    seen = [tracks.points[tracks.images == image] for image in (0, 1)]
    group = Group(NAMES[0], NAMES[1], *seen)
    mask = np.zeros(tuple(SIZE), bool)
    mask[:, 100:] = True

    free = grow_group(group, (views[NAMES[0]], views[NAMES[1]]))
    held = grow_group(group, (views[NAMES[0]], views[NAMES[1]]), (mask, None))

    assert (free.points_fixed[:, 0] < 99).any()
    assert len(held.points_fixed)
    assert (held.points_fixed[:, 0] >= 99).all()
