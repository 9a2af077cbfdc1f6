"""The benchmark: whom it times, what it counts, and what the command writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from matcher import cli, datasets
from matcher.benchmark import contenders, machine, plot, timing, work
from matcher.benchmark.contenders import Contender
from matcher.types import Matches

CPU = torch.device("cpu")
SIZE = (96, 128)


@pytest.fixture(scope="module")
def paths():
    pair = datasets.sample_pairs()[0]
    return pair.image0, pair.image1


def fixed(name, matches, refines=False):
    return Contender(name, lambda pictures: pictures, lambda _: matches, refines)


def some(count):
    points = np.random.default_rng(0).uniform(20, 70, (count, 2)).astype(np.float32)
    return Matches(points, points, np.linspace(1, 0.5, count))


def test_every_stage_has_a_time_in_every_round(paths) -> None:  # PRF-02
    refined, whole = fixed("refined", some(30), True), fixed("whole", None)

    first, second = timing.time_pair([refined, whole], paths, SIZE, CPU, repeats=3)

    assert list(first.seconds) == ["read", "describe", "match", "refine", "fit"]
    assert list(second.seconds) == ["read", "describe", "match"]
    assert all(len(taken) == 3 for taken in first.seconds.values())
    assert (first.matches, second.matches) == (30, None)
    assert first.size == SIZE
    assert list(first.work) == list(first.seconds)
    assert first.quartiles[0] <= first.median <= first.quartiles[1]
    reading = np.array(first.seconds["read"])
    whole_runs = np.sum([first.seconds[stage] for stage in first.seconds], axis=0)
    np.testing.assert_allclose(first.totals, whole_runs - reading)


def test_nothing_to_time_is_refused(paths) -> None:
    with pytest.raises(ValueError, match="needs a contender and a round at least"):
        timing.time_pair([], paths, SIZE, CPU)
    with pytest.raises(ValueError, match="needs a contender and a round at least"):
        timing.time_pair([fixed("x", None)], paths, SIZE, CPU, repeats=0)


def test_operations_of_products_and_of_attention_are_counted() -> None:
    left, right = torch.ones(10, 20), torch.ones(20, 30)
    query, key = torch.ones(1, 2, 64, 16), torch.ones(1, 2, 48, 16)
    attention = torch.nn.functional.scaled_dot_product_attention

    assert work.count_flops(lambda: left @ right) == 2 * 10 * 20 * 30
    with torch.inference_mode():
        counted = work.count_flops(lambda: attention(query, key, key))
    assert counted == 2 * 2 * (2 * 64 * 48 * 16)


def test_bytes_of_steps_are_counted_and_views_are_free() -> None:
    image = torch.ones(100, 200)

    added = work.count_work(lambda: image + image, CPU)
    viewed = work.count_work(lambda: image.T, CPU)

    assert added.gbytes == 3 * 4 * 100 * 200 / 1e9
    assert added.seconds > 0
    assert (added.gflops, viewed.gbytes) == (0, 0)


@pytest.mark.parametrize(
    ("gflops", "gbytes", "inside", "by"),
    [(5, 1, 0.9, "products"), (1, 9, 0.9, "memory"), (1, 1, 0.9, "small steps"),
     (5, 1, 0.2, "outside PyTorch"), (8, 15, 1.0, "memory")],
)  # fmt: skip
def test_what_is_nearest_to_its_peak_bounds_a_stage(gflops, gbytes, inside, by) -> None:
    peak = machine.Peak(flops=1e10, bandwidth=1e10)

    found = work.bound(work.Work(gflops, gbytes, inside), 1.0, peak)

    assert found.by == by
    assert found.of_flops == pytest.approx(gflops / 10)
    assert found.of_bandwidth == pytest.approx(gbytes / 10)
    assert found.in_torch == inside


def test_the_peak_of_the_machine_is_a_rate() -> None:
    peak = machine.measure_peak(CPU)

    assert 1e8 < peak.flops < 1e15
    assert 1e8 < peak.bandwidth < 1e14


def test_methods_become_contenders(paths) -> None:
    made = contenders.contender("ncc", "ncc", {"max_keypoints": 50}, "cpu")

    (found,) = timing.time_pair([made], paths, SIZE, CPU, repeats=1)

    assert made.trained
    assert made.refines
    assert found.matches is not None
    assert found.name == "ncc"
    with pytest.raises(ValueError, match="no method or peer 'nc'; there are .*kornia-loftr"):
        contenders.contender("nc", "nc", {})


@pytest.mark.parametrize(
    ("package", "name"),
    [("kornia", "kornia-loftr"), ("transformers", "transformers-superglue"),
     ("transformers", "transformers-eloftr")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")  # the peers' own
def test_peers_run_on_the_same_images(package, name) -> None:
    pytest.importorskip(package)
    peer = contenders.contender(name, name, {}, "cpu")
    image = np.random.default_rng(0).random((64, 64), np.float32)

    assert peer.match(peer.describe([image, image])) is None
    assert not peer.trained


def test_growth_is_drawn(paths, tmp_path) -> None:
    steps = [(64, (48, 64)), (128, (96, 128))]

    curves = {"long side": timing.growth(lambda _: [fixed("a", some(9))], paths, steps, CPU, 1)}
    picture = plot.draw_growth(curves, tmp_path / "new" / "growth.png")

    assert list(curves["long side"]) == [64, 128]
    assert curves["long side"][128][0].size == (96, 128)
    assert picture.stat().st_size > 5000


def test_the_command_prints_and_writes_what_it_rests_on(tmp_path, capsys, monkeypatch) -> None:
    from matcher.commands import benchmarking as command  # noqa: PLC0415

    monkeypatch.setattr(command, "_SIDES", (64,))
    monkeypatch.setattr(command, "_COUNTS", (64,))

    code = cli.run(
        ["bench", "-m", "ncc", "--peers", "", "--size", "128", "96", "--repeats", "2",
         "--out", str(tmp_path), "--device", "cpu"]
    )  # fmt: skip

    out = capsys.readouterr().out
    stored = json.loads((tmp_path / "bench.json").read_text())
    assert code == 0
    assert "GFLOP/s" in out
    assert "bound by" in out
    assert "CPU thread" in out
    assert stored["environment"]["versions"]["torch"]
    assert len(stored["timings"][0]["seconds"]["match"]) == 2
    assert list(stored["growth"]) == ["long side, pixels", "points an image"]
    assert (tmp_path / "growth.png").is_file()


def test_the_peers_that_are_installed_are_found(monkeypatch) -> None:
    import importlib.util  # noqa: PLC0415

    from matcher.commands import benchmarking as command  # noqa: PLC0415

    monkeypatch.setattr(importlib.util, "find_spec", lambda package: package == "cv2" or None)

    assert command._peers("installed") == ["sift", "orb"]
    assert command._peers("a,b") == ["a", "b"]
    assert command._peers("") == []
    assert all(isinstance(path, Path) for path in command._sample())
