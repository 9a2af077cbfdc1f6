"""Template search as a benchmark: truths made by hand, pairs that are made, and `matcher.find` on them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image as PilImage

import matcher
from matcher.datasets import load_pairs
from matcher.evaluation import benchmarks, figures, metrics, synthetic, synthetic_templates, tables
from matcher.evaluation.records import Kind
from matcher.evaluation.runner import evaluate
from matcher.evaluation.searching import TemplateFinder
from matcher.evaluation.settings import Settings
from matcher.types import Placed, Unrelated


def similarity(x, y, degrees, scale, size0=(40, 60)):
    """Scene from template, by hand: the middle of the template goes to (x, y)."""
    c, s = scale * np.cos(np.radians(degrees)), scale * np.sin(np.radians(degrees))
    linear = np.array([[c, s], [-s, c]])  # counter-clockwise on a screen whose y points down
    middle = np.array([size0[1] - 1, size0[0] - 1]) / 2
    shift = np.array([x, y]) - linear @ middle
    return np.array([[*linear[0], shift[0]], [*linear[1], shift[1]], [0, 0, 1]])


@pytest.mark.parametrize(
    ("found", "errors"),
    [
        ((100, 80, 30, 1.2), (0, 0, 1)),
        ((103, 84, 30, 1.2), (5, 0, 1)),
        ((100, 80, 170, 1.2), (0, 140, 1)),
        ((100, 80, -150, 1.2), (0, 180, 1)),
        ((100, 80, 30, 0.6), (0, 0, 2)),
        ((100, 80, 30, 2.4), (0, 0, 2)),
    ],
)
def test_a_place_is_wrong_by_pixels_degrees_and_a_factor(found, errors):
    truth = Placed(similarity(100, 80, 30, 1.2))

    measured = metrics.placement_error(similarity(*found), truth, (40, 60))

    assert measured == pytest.approx(errors, abs=1e-5)


@pytest.mark.parametrize("model", [None, np.zeros((3, 3)), np.diag([1.0, 0, 1])])
def test_a_place_that_is_none_is_wrong_without_end(model):
    truth = Placed(similarity(100, 80, 30, 1.2))

    with np.errstate(all="ignore"):
        assert metrics.placement_error(model, truth, (40, 60)) == (np.inf,) * 3


def test_a_manifest_says_where_a_template_lies(tmp_path):
    PilImage.new("L", (60, 40)).save(tmp_path / "t.png")
    PilImage.new("L", (200, 160)).save(tmp_path / "s.png")
    entry = {"id": "one", "dataset": "g", "type": "placed", "image0": "t.png", "image1": "s.png"}
    place = {"x": 100, "y": 80.5, "angle_degrees": 30, "scale": 1.2}
    (tmp_path / "pairs.json").write_text(json.dumps([entry | place]))
    (tmp_path / "pairs.toml").write_text(
        '[[pair]]\nimage0 = "t.png"\nimage1 = "s.png"\nx = 1\ny = 2\nangle_degrees = 0\nscale = 1\n'
    )

    (pair,) = load_pairs(tmp_path / "pairs.json")
    (guessed,) = load_pairs(tmp_path / "pairs.toml")

    np.testing.assert_allclose(
        pair.truth.pixels1_from_pixels0, similarity(100, 80.5, 30, 1.2), atol=1e-12
    )
    assert isinstance(guessed.truth, Placed)
    (tmp_path / "pairs.json").write_text(json.dumps([entry | place | {"scale": 0}]))
    with pytest.raises(ValueError, match="scale must be positive, not 0"):
        load_pairs(tmp_path / "pairs.json")


@pytest.fixture
def scene(tmp_path, texture):
    """A scene, a template cut from it, and a template of something else."""
    pixels = texture(160, 200)
    PilImage.fromarray(pixels).save(tmp_path / "scene.png")
    PilImage.fromarray(pixels[40:88, 60:124]).save(tmp_path / "there.png")
    PilImage.fromarray(texture(48, 64, seed=9)).save(tmp_path / "absent.png")
    return tmp_path


def pairs_of(folder):
    there = Placed(np.array([[1.0, 0, 60], [0, 1, 40], [0, 0, 1]]))
    pair = matcher.Pair("there", folder / "there.png", folder / "scene.png", there, "placed")
    absent = matcher.Pair(
        "absent", folder / "absent.png", folder / "scene.png", Unrelated(), "absent"
    )
    return [pair, absent]


def test_a_template_is_found_and_an_absent_one_is_not(scene):
    finder = TemplateFinder(turn_degrees=10, zoom=1.1)

    made = evaluate({"find": finder}, pairs_of(scene), Settings(long_side=None))

    found, absent = made.records
    assert found.kind is Kind.PLACED
    assert found.score.placed == pytest.approx((0, 0, 1), abs=0.02)
    assert found.score.errors[0][0] < 0.1
    assert (absent.score.matches, absent.score.same_place) == (0, False)
    total = tables.table(made)[-1].figures
    assert total["templates found"].value == 100
    assert total["false accepts"].value == 0


def test_a_wrong_place_and_a_false_hit_count_as_what_they_are(scene):
    def elsewhere(image0, image1):
        grid = np.stack(np.meshgrid(np.arange(8) * 6.0, np.arange(8) * 5.0), -1).reshape(-1, 2)
        return grid, grid + np.array([20.0, 30.0])

    made = evaluate({"m": elsewhere}, pairs_of(scene), Settings(long_side=None))

    found, absent = made.records
    assert found.score.placed == pytest.approx((np.hypot(40, 10), 0, 1), abs=0.01)
    total = tables.table(made)[-1].figures
    assert total["templates found"].value == 0
    assert absent.score.same_place
    assert total["false accepts"].value == 100


def test_limits_are_of_all_three_together(scene):
    made = evaluate({"m": lambda a, b: ([], [])}, pairs_of(scene), Settings(long_side=None))
    figure = next(each for each in figures.FIGURES if each.name == "templates found")

    (record, _) = made.records

    assert record.score.placed == (np.inf,) * 3
    assert list(figure.values(record)) == [0.0]


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """The benchmark, of few small pairs."""
    folder = tmp_path_factory.mktemp("templates")
    with pytest.MonkeyPatch.context() as patch:
        for module in (synthetic, synthetic_templates):
            patch.setattr(module, "SIZE", (120, 160))
        patch.setattr(synthetic_templates, "SIDES", (32, 40))
        patch.setattr(synthetic_templates, "COPIES", 1)
        patch.setattr(
            synthetic_templates, "photograph_paths", lambda: synthetic.photograph_paths()[:3]
        )
        synthetic_templates.write(folder)
    return folder


def test_templates_lie_where_the_pairs_that_we_make_say(few):
    pairs = load_pairs(few / "pairs.json")
    placed = [pair for pair in pairs if isinstance(pair.truth, Placed)]

    made = evaluate({"find": TemplateFinder()}, placed, Settings(long_side=None))

    assert len(pairs) == 6
    assert [pair.truth for pair in pairs[3:]] == [Unrelated()] * 3
    for record in made.records:
        pixels, degrees, factor = record.score.placed
        assert (pixels < 0.5, degrees < 1, factor < 1.02) == (True, True, True), record


def test_the_protocol_makes_its_pairs_and_keeps_them(few):
    before = (few / "pairs.json").stat().st_mtime_ns

    found = benchmarks.find("template-search", few, partial=True)

    assert (few / "pairs.json").stat().st_mtime_ns == before
    assert found.protocol.startswith("template-search, version 1: templates in scenes")
    assert found.settings.long_side is None
