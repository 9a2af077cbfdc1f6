"""Compare methods on one pair: a row and a picture a method, whatever becomes of it."""

from __future__ import annotations

import numpy as np
import pytest

from matcher.evaluation.compare import compare
from matcher.evaluation.settings import Settings
from matcher.types import Homography, Matches, Unrelated

SHIFT = np.array([[1.0, 0, 8], [0, 1, -4], [0, 0, 1]])


def grid(image0, image1):
    """Match a grid by the true shift of images of 96 x 128, one match in five wrong."""
    y, x = np.mgrid[10:90:8, 4:116:8]
    points0 = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
    points1 = points0 + np.array([8, -4], np.float32)
    points1[::5] += 20
    return points0, points1


def nothing(image0, image1):
    return Matches.empty()


def broken(image0, image1):
    raise RuntimeError("out of order")


METHODS = {"grid": grid, "no matches": nothing, "broken": broken}


@pytest.fixture
def pair(texture):
    large = texture(140, 160)
    return large[20:116, 16:144], large[24:120, 8:136]


def test_each_method_has_its_figures_and_picture(pair, tmp_path) -> None:
    found = compare(*pair, METHODS, Homography(SHIFT), out=tmp_path)

    good, empty, failed = found
    assert [each.method for each in found] == list(METHODS)
    assert good.precision(1) == pytest.approx(0.8)
    assert good.inliers.sum() == 112
    assert good.model_error < 0.01
    assert good.match_seconds > 0
    assert (len(empty.matches), empty.reason, empty.precision(3)) == (0, "too few", 0)
    assert failed.reason == "RuntimeError: out of order"
    assert [each.picture.name for each in found] == ["grid.png", "no-matches.png", "broken.png"]
    assert all(each.picture.stat().st_size > 1000 for each in found)


def test_the_matches_of_all_methods_lie_in_one_file(pair, tmp_path) -> None:
    found = compare(*pair, METHODS, out=tmp_path)

    with np.load(tmp_path / "matches.npz") as saved:
        assert set(saved) >= {"grid/points0", "grid/inliers", "broken/points0"}
        np.testing.assert_array_equal(saved["grid/points1"], found[0].matches.points1)


def test_without_truth_the_inliers_agree_with_epipolar_geometry(pair) -> None:
    found = compare(*pair, {"grid": grid})[0]

    assert found.errors is None
    assert found.precision(3) is None
    assert found.model_error is None
    assert found.reason == "planar"
    assert found.inliers.sum() >= 112
    assert found.picture is None


def test_matches_are_in_pixels_of_the_images_given(texture) -> None:
    image = texture(192, 256)

    found = compare(image, image, {"grid": grid}, settings=Settings(long_side=128))[0]

    assert found.matches.points0[0].tolist() == [8.5, 20.5]  # from (4, 10), half a pixel minded


def test_all_matches_of_unrelated_images_are_wrong(pair) -> None:
    found = compare(*pair, {"grid": grid}, Unrelated())[0]

    assert found.precision(5) == 0


def test_no_methods_and_no_image_are_refused(pair) -> None:
    with pytest.raises(ValueError, match="no methods to compare"):
        compare(*pair, {})
    with pytest.raises(FileNotFoundError):
        compare(pair[0], "nowhere.png", METHODS)
