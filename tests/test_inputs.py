"""Public functions take the sequences and paths that people have, or refuse them clearly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PilImage

import matcher
from matcher import cli
from matcher.geometry import fitting
from matcher.geometry import two_view as geometry
from matcher.types import Matches

POINTS = np.random.default_rng(0).uniform(0, 100, (12, 2))


def lists(points):
    return points.tolist()


def tuples(points):
    return tuple(map(tuple, points))


@pytest.fixture
def file(tmp_path, texture):
    path = tmp_path / "a.png"
    PilImage.fromarray(texture(96, 128)).save(path)
    return path


# PKG-06
@pytest.mark.parametrize("kind", [lists, tuples])
def test_points_may_be_lists_and_tuples(kind) -> None:
    matches = Matches(kind(POINTS), kind(POINTS + 3), tuple(np.linspace(1, 0, 12)))
    fit = fitting.fit_homography(kind(POINTS), kind(POINTS + 3))

    assert matches.points1.dtype == np.float32
    assert len(matches) == 12
    np.testing.assert_allclose(fit.model[:2, 2] / fit.model[2, 2], 3, atol=1e-6)
    assert len(geometry.symmetric_distance(kind(POINTS), kind(POINTS), np.eye(3))) == 12


# PKG-06
def test_points_that_come_one_by_one_are_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="points0|generator"):
        Matches((point for point in POINTS), POINTS, np.ones(12))


# PKG-06
@pytest.mark.parametrize("kind", [Path, str])
def test_files_are_named_by_paths_or_text(file, kind, tmp_path) -> None:
    method = matcher.create("ncc")
    name = kind(file)

    found = matcher.match(method, name, name)

    assert len(found) > 20
    assert matcher.refine(found, name, name).refined is not None
    assert len(matcher.find(name, name)) == 1
    assert matcher.read(name).shape == (96, 128)
    assert cli.run(["match", str(name), str(name), "-m", "ncc"]) == 0


# PKG-06
@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_methods_take_images_in_any_sequence(file, kind) -> None:
    method = matcher.create("ncc")
    image = matcher.read(file)

    described = method.describe(kind([image, image]))
    found = method.match(kind([(described[0], described[1])]))

    assert len(described) == 2
    assert len(found[0]) > 20


# PKG-06
@pytest.mark.parametrize("kind", [list, tuple])
def test_templates_may_be_several(file, kind) -> None:
    hits = matcher.find(kind([file, matcher.read(file)]), file)

    assert [hit.template for hit in hits] == [0, 1]
