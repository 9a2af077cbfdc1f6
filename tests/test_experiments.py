"""The articles' experiments: known answers of what needs no training, the rest in small."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import matcher
from matcher import datasets
from matcher.types import Pair, ScoreMap

FOLDER = Path(matcher.__file__).parents[1] / "scripts" / "experiments"
if not FOLDER.is_dir():
    pytest.skip("needs the checkout", allow_module_level=True)
sys.path.insert(0, str(FOLDER))  # the experiments import each other by name

import bridge  # noqa: E402
import convolution  # noqa: E402
import cost  # noqa: E402
import find_shapes  # noqa: E402
import look_at_scene  # noqa: E402
import scenes  # noqa: E402
import single_head  # noqa: E402
import smoothing  # noqa: E402
import temperature  # noqa: E402
import two_disks  # noqa: E402


@pytest.fixture(scope="module")
def test_scenes():
    return scenes.draw(np.random.default_rng(find_shapes.TEST_SEED), find_shapes.TEST_SCENES)


def test_shapes_cover_the_pixels_that_they_should():
    areas = dict(zip(scenes.SHAPES, scenes.TEMPLATES.sum(1), strict=True))

    assert areas["square"] == 64
    assert areas["disk"] == pytest.approx(np.pi * 16, rel=0.05)
    assert areas["triangle"] == 32
    assert areas["cross"] == 2 * 8 * 2 - 4
    with pytest.raises(ValueError, match="no shape 'star'; there are square, disk, triangle,"):
        scenes.mask("star", (0, 0), 8)


def test_a_scene_is_its_cells_put_together():
    shown = scenes.draw(np.random.default_rng(0), 3)

    assert shown.images.shape == (3, 48, 48)
    np.testing.assert_array_equal(shown.images[1, 12:24, 36:], shown.tokens[1, 7].reshape(12, 12))


def test_the_articles_scene_is_drawn():
    found = [scenes.CELLS[cell] for cell in look_at_scene.scene().cells[0]]

    assert found == [(3, 0), (2, 0), (3, 2), (2, 2)]


def test_raw_templates_take_the_cross_for_the_disk_as_in_the_article():
    weights = look_at_scene.look(find_shapes.SCORES["raw"]())

    for cell, published in look_at_scene.ARTICLE["raw"].items():
        assert weights[scenes.CELLS.index(cell)] == pytest.approx(published, abs=6e-4)


def test_raw_templates_find_as_many_shapes_as_in_the_article(test_scenes):
    right, weight = find_shapes.measure(find_shapes.train("raw", 0), test_scenes)

    assert (round(right, 1), round(weight, 3)) == find_shapes.ARTICLE["raw", 0]


def test_scores_have_as_many_parameters_as_in_the_article():
    sizes = {
        name: sum(each.numel() for each in make().parameters())
        for name, make in find_shapes.SCORES.items()
    }

    assert sizes == {"raw": 0, "additive": 9_248, "scaled dot": 9_216}


@pytest.fixture(scope="module")
def additive():
    """The additive score as trained in full."""
    return find_shapes.train("additive", 0)


def test_the_trained_score_finds_as_many_shapes_as_in_the_article(additive, test_scenes):
    right, weight = find_shapes.measure(additive, test_scenes)

    published = find_shapes.ARTICLE["additive", 0]
    assert right == pytest.approx(published[0], abs=0.3)
    assert weight == pytest.approx(published[1], abs=2e-3)


def test_two_disks_share_the_weight_as_in_the_article(additive):
    shown = two_disks.scene(two_disks.SCENE_SEED)
    scores, disks = find_shapes.ask(additive, shown)[0].detach(), shown.cells[0, [0, 2]]

    found = two_disks.shares(additive)

    assert found.min() == pytest.approx(0.722, abs=5e-3)
    assert found.max() == pytest.approx(1, abs=1e-3)
    assert scores.softmax(0)[disks].tolist() == pytest.approx([0.524, 0.475], abs=5e-3)
    soft, best = (two_disks.location(scores, how)[0].tolist() for how in ("mean", "best"))
    assert soft == pytest.approx([18.6, 35.7], abs=0.15)
    assert best == [30, 30]
    assert two_disks.derivative(scores, int(disks[1]), "mean") == pytest.approx(3.0, abs=0.03)


@pytest.mark.parametrize("name", ["additive", "scaled dot"])
def test_a_little_training_beats_the_raw_template(name, test_scenes, monkeypatch):
    monkeypatch.setattr(find_shapes, "STEPS", 80)

    right, weight = find_shapes.measure(find_shapes.train(name, 0), test_scenes)

    assert right > 50
    assert weight > 0.4


def test_the_article_has_its_two_disks_where_we_have_them():
    cells = two_disks.scene(two_disks.SCENE_SEED).cells[0, [0, 2]]

    assert [scenes.CELLS[cell] for cell in cells] == [(2, 2), (0, 3)]


def test_the_derivative_of_a_location_is_weight_times_distance():
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=16)).float()
    weights = scores.softmax(0)
    mean = weights @ two_disks.VALUES

    found = two_disks.derivative(scores, 5, "mean")

    wanted = weights[5] * (two_disks.VALUES[5] - mean)[1]
    assert found == pytest.approx(float(wanted), abs=1e-5)
    assert two_disks.derivative(scores, 5, "best") == 0
    torch.testing.assert_close(two_disks.location(scores, "mean")[0], mean)


def test_draws_average_to_the_soft_location():
    scores = torch.from_numpy(np.random.default_rng(1).normal(size=16)).float()
    torch.manual_seed(0)

    drawn = two_disks.location(scores, "draw", 20_000).mean(0)

    torch.testing.assert_close(drawn, two_disks.location(scores, "mean")[0], atol=0.4, rtol=0)


def test_a_head_keeps_what_the_article_states():
    tokens, matrices = single_head.head(np.random.default_rng(0))

    found = single_head.attend(tokens, matrices)

    assert (found.weights.sum(-1) - 1).abs().max() < 1e-12
    moved = single_head.attend(tokens.flip(0), matrices).message
    torch.testing.assert_close(moved, found.message.flip(2))
    assert single_head.jacobian_error(tokens[0]) < 1e-12


@pytest.mark.parametrize("channels", single_head.DIMENSIONS)
def test_root_d_takes_the_growth_out_of_the_variance(channels):
    plain = single_head.variance("dot", channels, np.random.default_rng(0))
    scaled = single_head.variance("scaled-dot", channels, np.random.default_rng(0))

    assert plain == pytest.approx(channels, rel=0.06)
    assert scaled == pytest.approx(plain / channels)


def test_cold_attention_reads_the_best_and_hot_attention_the_mean():
    compared = temperature.scores()

    cold, hot = temperature.read(compared, 1e-6), temperature.read(compared, 1e9)

    best = temperature.VALUES[0, 0, compared[0, 0, 0].argmax()]
    torch.testing.assert_close(cold.location, best)
    torch.testing.assert_close(hot.location, torch.tensor([24.0, 24.0]).double())
    assert (cold.cells, hot.cells) == (pytest.approx(1), pytest.approx(16))


@pytest.mark.parametrize("bandwidth", smoothing.BANDWIDTHS)
def test_attention_smooths_as_the_kernel_does(bandwidth):
    x, y = smoothing.samples()
    asked = np.linspace(x[0], x[-1], 50)

    found = smoothing.by_attention(asked, x, y, bandwidth)

    np.testing.assert_allclose(found, smoothing.by_kernel(asked, x, y, bandwidth), atol=1e-9)


def test_sharp_heads_make_the_convolution():
    image = convolution.photograph()

    found = convolution.by_attention(image, convolution.SOBEL, sharpness=60.0)

    wanted = convolution.by_convolution(image, convolution.SOBEL)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_costs_grow_as_they_should():
    made = cost.forms()

    counts = {
        name: [cost.operations(form, side) for side in (16, 32)] for name, form in made.items()
    }

    powers = {name: cost.exponent(found, (16, 32)) for name, found in counts.items()}
    assert powers["linear"] == pytest.approx(1, abs=0.01)
    assert powers["window"] == pytest.approx(1, abs=0.01)
    products = 2 * 2 * 64 * (16**4)  # q · k and the sum of values, for 256 queries and keys
    linear_maps = 2 * 4 * 256 * 64**2
    assert counts["full"][0] == products + linear_maps
    assert counts["pooled"][1] < counts["full"][1] / 20
    assert set(cost.seconds(made, 4, runs=1)) == set(made)


def test_a_twin_is_the_best_place_that_is_not_near():
    places = np.array([[0, 0], [10, 0], [20, 0], [40, 0]], np.float32)
    answers = ScoreMap(places, np.array([1, 0.9, 0.5, 0.7], np.float32))

    assert bridge.twin(answers, places[0]) == pytest.approx(0.7)
    assert bridge.twin(ScoreMap(places[:2], answers.scores[:2]), places[0]) == -1


def test_the_bridge_asks_all_three_for_the_same_points():
    pair = next(pair for pair in datasets.sample_pairs() if pair.name == "repetition")

    found = bridge.ask(pair, "superglue", count=6)

    assert found.right.shape == (6, 3)
    assert found.right.any()
    assert set(found.textures) <= {0, 1, 2}
    with pytest.raises(ValueError, match="pair 'mine' has no truth"):
        bridge.ask(Pair("mine", pair.image0, pair.image1), "superglue", 1)
    with pytest.raises(ValueError, match="method 'sift' has no context; there are loftr, superglu"):
        bridge.ask(pair, "sift", 1)


@pytest.mark.parametrize("script", [single_head, temperature, smoothing, convolution])
def test_a_script_prints_its_table_and_writes_its_plot(script, tmp_path, capsys):
    script.main(tmp_path)

    assert (tmp_path / f"{script.__name__}.png").stat().st_size > 10_000
    assert f"wrote {tmp_path}" in capsys.readouterr().out.replace("\n", "")


def test_scripts_that_train_print_the_article_beside_ours(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(find_shapes, "STEPS", 3)
    monkeypatch.setattr(find_shapes, "TEST_SCENES", 20)
    monkeypatch.setattr(two_disks, "SCENES", 2)

    for script in (find_shapes, look_at_scene, two_disks):
        script.main(tmp_path)

    shown = capsys.readouterr().out
    assert "9,248" in shown
    assert "0.722 to 1.000" in shown
    pictures = {path.name for path in tmp_path.glob("*.png")}
    assert pictures == {"find_shapes.png", "look_at_scene.png", "scene.png", "two_disks.png"}


def test_the_cost_of_attention_is_printed_and_drawn(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cost, "SIDES", (4, 8))

    cost.main(tmp_path)

    assert "64 tokens" in capsys.readouterr().out
    assert (tmp_path / "cost.png").exists()
