"""Diagrams of attention, convergence, pruning and pair graphs are written whatever there is to draw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image as PilImage

from matcher.explore import canvas, charts
from matcher.nn.sinkhorn import sinkhorn


def pixels_of(path):
    with PilImage.open(path) as opened:
        return np.asarray(opened.convert("RGB"), int)


def count_near(path, colour, reach=40):
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels_of(path) - wanted).max(2) < reach).sum())


@pytest.mark.parametrize("size", [(0, 0), (0, 7), (1, 1), (2, 3), (20, 20), (30, 500), (5000, 900)])
def test_attention_of_any_size_is_drawn(tmp_path, size):
    weights = np.random.default_rng(0).dirichlet(np.ones(max(size[1], 1)), size[0])[:, : size[1]]

    assert charts.draw_attention(weights, tmp_path / "a.png").stat().st_size > 0


def test_the_brightest_cell_of_attention_is_where_the_weight_is(tmp_path):
    weights = np.full((4, 4), 0.01)
    weights[1, 3] = 0.97

    path = charts.draw_attention(
        weights, tmp_path / "a.png", queries=list("abcd"), keys=list("efgh")
    )

    drawn = pixels_of(path)
    rows, columns = np.nonzero(
        (drawn[..., 0] > 240) & (drawn[..., 1] > 240) & (drawn[..., 2] < 180)
    )
    plot_left, plot_right = 0.08 * drawn.shape[1], 0.98 * drawn.shape[1]
    share = (np.median(columns) - plot_left) / (plot_right - plot_left)
    assert 0.75 < share < 1
    assert np.median(rows) < drawn.shape[0] / 2


def test_a_single_peak_in_a_large_table_stays_visible():
    table = np.zeros((5000, 900))
    table[4321, 17] = 1

    shrunk = charts._block_maxima(table, 600)

    assert shrunk.shape == (600, 600)
    assert shrunk.max() == 1


def test_wrong_attention_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"weights must be \(M, N\), not \(3,\)"):
        charts.draw_attention(np.ones(3), tmp_path / "a.png")
    with pytest.raises(ValueError, match="keys has 1 names for 2"):
        charts.draw_attention(np.ones((3, 2)), tmp_path / "a.png", keys=["a"])
    assert list(tmp_path.iterdir()) == []


def test_convergence_is_drawn_from_real_residuals(tmp_path):
    scores = torch.randn((1, 30, 40), generator=torch.Generator().manual_seed(0)) * 4
    residuals = [float(sinkhorn(scores, torch.tensor(1.0), s).residual) for s in range(1, 9)]

    path = charts.draw_convergence({"ours": residuals, "none": []}, tmp_path / "c.png")

    assert residuals == sorted(residuals, reverse=True)
    assert count_near(path, canvas.BLUE) > 300
    assert charts.draw_convergence({}, tmp_path / "none.png").exists()
    assert charts.draw_convergence({"exact": [0.0, 0.0]}, tmp_path / "exact.png").exists()


@pytest.mark.parametrize("layers", [0, 1, 9, 200])
def test_pruning_by_layer_is_drawn(tmp_path, layers):
    counts = np.linspace(1024, 100, layers)[:, None] * [1, 0.8]

    path = charts.draw_pruning(counts, tmp_path / "p.png")

    assert count_near(path, canvas.BLUE) > (1000 if layers else 0)


def test_wrong_counts_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"points must be \(L, 2\), not \(3, 3\)"):
        charts.draw_pruning(np.ones((3, 3)), tmp_path / "p.png")


@pytest.mark.parametrize("count", [0, 1, 2, 20, 300])
def test_pair_graphs_of_any_size_are_drawn(tmp_path, count):
    pairs = [(i, j) for i in range(count) for j in range(i + 1, min(i + 18, count))]
    strengths = np.arange(len(pairs))
    names = [f"photo $_{number}.jpg" for number in range(count)]

    path = charts.draw_pair_graph(names, pairs, strengths, tmp_path / "g.png")

    assert path.stat().st_size > 0


def test_groups_and_lonely_images_are_counted():
    groups, alone = charts._components(6, np.array([[0, 1], [1, 2], [3, 4]]))

    assert groups == 3
    assert alone.tolist() == [False, False, False, False, False, True]


def test_wrong_pairs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="counts has 1 values for 2 pairs"):
        charts.draw_pair_graph(["a", "b"], [(0, 1), (1, 0)], [3], tmp_path / "g.png")
    with pytest.raises(ValueError, match="pairs must be of images 0 to 1, not 2"):
        charts.draw_pair_graph(["a", "b"], [(0, 2)], [3], tmp_path / "g.png")
