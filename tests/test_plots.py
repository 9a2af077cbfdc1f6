"""Pictures are written whatever there is to draw, without a display."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher.explore import canvas, plots
from matcher.types import Matches, ScoreMap, TemplateHit


def matches_between(count, size0, size1):
    rng = np.random.default_rng(count)
    share = rng.uniform(-0.02, 1.02, (count, 2))
    scores = np.sort(rng.uniform(size=count))[::-1]
    return Matches(share * size0[::-1], share * size1[::-1], scores)


def hit(x, y):
    corners = np.array([[x - 9, y - 6], [x + 9, y - 6], [x + 9, y + 6], [x - 9, y + 6]], np.float32)
    return TemplateHit(x, y, 0.0, 1.0, 0.97, corners)


def pixels_of(path):
    with PilImage.open(path) as opened:
        return np.asarray(opened.convert("RGB"), int)


def count_near(path, colour, reach=40):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels_of(path) - wanted).max(2) < reach).sum())


# CLI-02
@pytest.mark.parametrize("count", [0, 1, 2, 20, 5000])
def test_any_number_of_matches_between_unlike_images_is_drawn(tmp_path, count):
    image0 = np.full((480, 640), 90, np.uint8)
    image1 = np.full((300, 1200, 4), 200, np.uint8)
    matches = matches_between(count, (480, 640), (300, 1200))

    path = plots.draw_matches(image0, image1, matches, tmp_path / "new" / "matches.png")

    drawn = pixels_of(path)
    middle = drawn[drawn.shape[0] // 2] if count == 0 else drawn[60]
    assert drawn.shape[1] == 1600
    assert (np.abs(drawn - 90).max(2) < 3).any()
    assert (np.abs(drawn - 200).max(2) < 3).any()
    assert (middle[100] != middle[-100]).any() or count == 5000


def test_images_lie_side_by_side_and_lines_end_at_their_points(tmp_path):  # CLI-02
    image0, image1 = np.full((480, 640), 255, np.uint8), np.full((300, 1200, 4), 255, np.uint8)
    one = Matches(np.array([[100.0, 400]]), np.array([[900.0, 30]]), np.ones(1))

    path = plots.draw_matches(image0, image1, one, tmp_path / "x.png", inliers=np.ones(1, bool))

    blue = [int(canvas.BLUE[i : i + 2], 16) for i in (1, 3, 5)]
    drawn = pixels_of(path)
    rows, columns = np.nonzero(np.abs(drawn - blue).max(2) < 40)
    line = rows < 0.9 * drawn.shape[0]  # the legend has its dot below
    height = 1600 / (640 / 480 + 1200 / 300)  # of both images, without the gap between them
    ends = [columns[line].min(), columns[line].max(), np.ptp(rows[line])]
    expected = [100 / 480, 640 / 480 + 900 / 300, 400 / 480 - 30 / 300]
    np.testing.assert_allclose(np.array(ends) / height, expected, atol=0.03)


def test_colours_tell_right_wrong_and_unknown_apart(tmp_path):
    image = np.full((100, 100), 255, np.uint8)
    matches = matches_between(3, (100, 100), (100, 100))
    blue, vermilion, grey = canvas.BLUE, canvas.VERMILION, canvas.GREY

    def drawn_with(**options):
        path = plots.draw_matches(image, image, matches, tmp_path / "x.png", **options)
        return [count_near(path, colour, 20) > 200 for colour in (blue, vermilion, grey)]

    assert drawn_with(errors=np.array([0.5, 2.9, 3.0], np.float32)) == [True, False, False]
    assert drawn_with(errors=np.array([3.1, 50, np.inf], np.float32)) == [False, True, False]
    assert drawn_with(errors=np.full(3, np.nan, np.float32)) == [False, False, True]
    assert drawn_with(inliers=np.array([True, True, True])) == [True, False, False]
    assert drawn_with(inliers=np.array([False, True, False])) == [True, True, False]


def test_flags_and_errors_must_be_one_a_match(tmp_path):
    image, matches = np.zeros((9, 9), np.uint8), matches_between(3, (9, 9), (9, 9))

    with pytest.raises(ValueError, match="inliers has 2 values for 3 matches"):
        plots.draw_matches(image, image, matches, tmp_path / "x.png", inliers=np.ones(2, bool))
    with pytest.raises(ValueError, match="errors has 4 values for 3 matches"):
        plots.draw_matches(image, image, matches, tmp_path / "x.png", errors=np.ones(4, np.float32))
    assert list(tmp_path.iterdir()) == []


# IMG-02
def test_names_and_titles_of_any_letters_are_drawn(tmp_path):
    path = tmp_path / "t ést" / "你 好 #1.png"

    plots.draw_matches(np.zeros((9, 9)), np.zeros((9, 9)), Matches.empty(), path, title="你 $好_{1")

    assert [file.name for file in path.parent.iterdir()] == ["你 好 #1.png"]


@pytest.mark.parametrize("ending", ["png", "jpg", "pdf", "svg"])
def test_the_ending_chooses_the_format(tmp_path, ending):
    path = plots.draw_keypoints(np.zeros((20, 30)), np.ones((2, 2)), tmp_path / f"keys.{ending}")

    start = {"png": b"\x89PNG", "jpg": b"\xff\xd8", "pdf": b"%PDF", "svg": b"<?xml"}[ending]
    assert path.read_bytes().startswith(start)


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_keypoints_are_drawn_with_and_without_scores(tmp_path, texture, count):
    points = np.random.default_rng(0).uniform(0, 60, (count, 2)).astype(np.float32)
    scores = np.linspace(1, 0, count).astype(np.float32)

    plain = plots.draw_keypoints(texture(60, 80), points, tmp_path / "a.png")
    coloured = plots.draw_keypoints(texture(60, 80), points, tmp_path / "b.png", scores=scores)

    assert plain.stat().st_size > 0
    assert coloured.stat().st_size > 0


@pytest.mark.parametrize("grid", [None, (6, 8), (1, 48), (48, 1)])
def test_score_maps_of_grids_and_of_keypoints_are_drawn(tmp_path, texture, grid):
    y, x = np.divmod(np.arange(48), 8)
    places = np.stack([x, y], 1).astype(np.float32) * 10
    score_map = ScoreMap(places, np.linspace(0, 1, 48).astype(np.float32), grid)

    path = plots.draw_score_map(
        texture(60, 80), texture(60, 80), (30, 20), score_map, tmp_path / "map.png"
    )

    assert count_near(path, canvas.VERMILION, 25) > 200


def test_a_score_map_without_places_is_drawn(tmp_path, texture):
    none = ScoreMap(np.zeros((0, 2), np.float32), np.zeros(0, np.float32))

    path = plots.draw_score_map(texture(60, 80), texture(60, 80), (3, 2), none, tmp_path / "m.png")

    assert path.exists()


@pytest.mark.parametrize("count", [0, 1, 70])
def test_hits_are_drawn_over_scenes_of_any_range(tmp_path, count):  # NCC-20
    scene = np.random.default_rng(0).normal(1e5, 30, (60, 80))
    scene[3, 4] = np.nan

    path = plots.draw_hits(scene, [hit(20 + n / 2, 30) for n in range(count)], tmp_path / "h.png")

    assert (count_near(path, canvas.BLUE, 25) > 400) == (count > 0)


def test_no_window_system_is_asked_for():
    assert "matplotlib.pyplot" not in sys.modules


def test_a_picture_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="bogus"):
        plots.draw_keypoints(np.zeros((9, 9)), np.zeros((0, 2)), tmp_path / "x.bogus")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_epipolar_lines_of_any_number_of_matches_are_drawn(tmp_path, count):
    image0, image1 = np.full((60, 80), 90, np.uint8), np.full((90, 70), 90, np.uint8)
    sideways = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])  # pairs lie at one height

    path = plots.draw_epipolar_lines(
        image0, image1, matches_between(count, (60, 80), (90, 70)), sideways, tmp_path / "e.png"
    )

    assert path.stat().st_size > 0


def test_an_epipolar_line_runs_at_the_height_of_its_partner():
    lines = np.array([[0.0, 1, -30], [1, 0, -20], [0, 0, 1], [0, 1, -500]])

    chords = plots._chords(lines, (60, 80))

    np.testing.assert_allclose(np.sort(chords[0], axis=0), [[-0.5, 30], [79.5, 30]])
    np.testing.assert_allclose(np.sort(chords[1], axis=0), [[20, -0.5], [20, 59.5]])
    assert np.isnan(chords[2:]).all()


def test_an_overlay_puts_each_pixel_where_the_homography_says(texture):
    image = texture(60, 80).astype(np.float32) / 255
    shift = np.array([[1.0, 0, 7], [0, 1, -5], [0, 0, 1]])

    warped, inside = plots._warped(image, shift, (60, 80))

    np.testing.assert_allclose(warped[:54, 8:], image[5:59, 1:73], atol=1e-5)
    assert inside[:54, 8:].all()
    assert not inside[:, :6].any()
    assert not inside[57:].any()


@pytest.mark.parametrize(("shift", "differs"), [(0, False), (7, True), (10_000, False)])
def test_overlays_are_grey_where_both_agree_and_where_only_one_is(
    tmp_path, texture, shift, differs
):
    matrix = np.array([[1.0, 0, shift], [0, 1, 0], [0, 0, 1]])

    path = plots.draw_overlay(texture(60, 80), texture(60, 80), matrix, tmp_path / "o.png")

    colours = np.ptp(pixels_of(path)[200:1000, 200:-200], axis=2)
    assert (colours.max() > 60) == differs


def test_matrices_of_another_shape_are_refused(tmp_path):
    image = np.zeros((9, 9))
    with pytest.raises(ValueError, match=r"fundamental must be \(3, 3\), not \(2, 3\)"):
        plots.draw_epipolar_lines(
            image, image, Matches.empty(), np.ones((2, 3)), tmp_path / "e.png"
        )
    with pytest.raises(ValueError, match=r"pixels1_from_pixels0 must be \(3, 3\) with an inverse"):
        plots.draw_overlay(image, image, np.ones((3, 3)), tmp_path / "o.png")
    assert list(tmp_path.iterdir()) == []
