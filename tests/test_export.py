"""Exported networks: that they agree with torch's at any size, and what is refused."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PilImage

import matcher
from matcher import cli, methods
from matcher.nn.sinkhorn import sinkhorn_log
from matcher.types import Homography, Matches, Pair

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from matcher.export import exporter, graphs, parity, plans, precision  # noqa: E402
from matcher.methods import _onnx  # noqa: E402

ROOT = Path(matcher.__file__).parent.parent
NAMES = plans.METHODS
SHIFT = np.array([[1.0, 0, 12], [0, 1, 7], [0, 0, 1]])


def shifted(height, width):
    """Two crops of one texture with corners of several sizes, (x + 12, y + 7) apart."""
    rng = np.random.default_rng(0)
    large = np.kron(rng.random((height // 8 + 4, width // 8 + 4)), np.ones((8, 8)))
    large = (0.8 * large + 0.2 * rng.random(large.shape)).astype(np.float32)
    return (
        np.ascontiguousarray(large[7 : height + 7, 12 : width + 12]),
        np.ascontiguousarray(large[:height, :width]),
    )


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for number, image in enumerate(shifted(120, 160)):
        PilImage.fromarray((image * 255).astype(np.uint8)).save(folder / f"{number}.png")
    return Pair("shift", folder / "0.png", folder / "1.png", Homography(SHIFT))


@pytest.fixture(scope="module", params=NAMES)
def exported(request, tmp_path_factory, pair):
    """Each method, exported once."""
    logging.getLogger("torch.__trace").propagate = False  # pytest would keep its thousands of lines
    folder = tmp_path_factory.mktemp(request.param)
    return exporter.export(request.param, folder, pairs=[pair], programs=True)


@pytest.fixture(scope="module")
def both(exported):
    """The method as it is, and as exported."""
    name = exported.facts.method
    return (
        methods.build(name, device="cpu"),
        methods.build(name, device="cpu", backend="onnxruntime", weights=exported.folder),
    )


def session(exported, part):
    return runtime.InferenceSession(str(exported.folder / f"{part}.onnx"))


def inputs(described):
    """What the graph `match` takes of two descriptions."""
    return {
        f"{name}{number}": value
        for number, each in enumerate(described)
        for name, value in (
            ("points", each.points),
            ("descriptors", each.descriptors),
            ("size", np.array(each.size)),
        )
    }


def first(description, count):
    return replace(
        description,
        points=description.points[:count],
        scores=description.scores[:count],
        descriptors=description.descriptors[:count],
        maps={**description.maps, "cells": description.maps["cells"][:count]}
        if "cells" in description.maps
        else {},
    )


def test_an_export_agrees_with_torch_and_reports_it(exported) -> None:  # EXP-01, EXP-04
    found = exported.parity

    assert found.agrees
    assert (found.pairs, found.described, found.identical) == (1, 1.0, 1.0)
    assert found.farthest <= 0.05
    assert "homography AUC@5" in found.figures
    stored = json.loads((exported.folder / "parity.json").read_text())
    assert stored["identical"] == 1.0
    assert "same matches in 100% of 1 pairs" in found.summary


def test_sizes_and_counts_are_open_axes_with_names(exported) -> None:  # EXP-01
    axes = {
        value.name: [str(axis) for axis in value.shape]
        for part in _onnx.PARTS
        for value in (*session(exported, part).get_inputs(), *session(exported, part).get_outputs())
    }

    assert axes["image"] == axes["mask"] == ["height", "width"]
    assert axes["points0"] == ["count0", "2"]
    assert axes["descriptors1"] == ["count1", "64"]
    assert axes["log_scores"] == ["count0", "count1"]
    assert axes["indices"] == ["matches", "2"]


@pytest.mark.parametrize("size", [(243, 321), (64, 200), (7, 9)])
def test_other_sizes_than_the_one_traced_are_described_alike(both, size) -> None:  # EXP-01
    image, _ = shifted(*size)
    mask = np.ones(size, bool)
    mask[:, : size[1] // 3] = False

    for allowed in (None, mask):
        here, there = (method.describe([image], [allowed])[0] for method in both)

        assert len(here) == len(there)
        order0, order1 = (np.lexsort(np.rint(each.points).T) for each in (here, there))
        np.testing.assert_allclose(here.points[order0], there.points[order1], atol=1e-3)
        np.testing.assert_allclose(
            here.descriptors[order0], there.descriptors[order1], rtol=1e-3, atol=2e-5
        )


@pytest.mark.parametrize("counts", [(1, 1), (5, 100), (300, 180)])
def test_any_number_of_points_matches_alike(both, counts) -> None:  # EXP-01
    described = both[0].describe(list(shifted(243, 321)))
    views = [tuple(first(each, count) for each, count in zip(described, counts, strict=True))]

    here, there = (method.match(views)[0] for method in both)

    # Rounding alone, the same points in another order, moves torch's own scores by up to 3e-4.
    only, _, farthest, score = parity._differ(here, there, both[1].threshold)
    assert only == 0
    assert farthest <= 0.05
    assert score <= 1e-3


@pytest.mark.parametrize("counts", [(0, 50), (50, 0), (0, 0)])
def test_no_points_have_no_matches(both, counts) -> None:  # EXP-02
    described = both[0].describe(list(shifted(120, 160)))
    views = [first(each, count) for each, count in zip(described, counts, strict=True)]

    (found,) = both[1].match([tuple(views)])

    assert found.points0.shape == found.points1.shape == (0, 2)


def test_a_black_image_has_no_matches(both) -> None:  # EXP-02
    image, _ = shifted(120, 160)
    described = both[1].describe([np.zeros_like(image), image])

    (found,) = both[1].match([(described[0], described[1])])

    assert len(described[0]) == len(found) == 0
    assert found.points0.shape == (0, 2)
    assert both[1].score_map((described[0], described[1]), (3, 3)).scores.shape == (
        len(described[1]),
    )


def test_a_batch_is_refused_by_the_graph(exported) -> None:  # EXP-04
    images = np.zeros((2, 64, 64), np.float32)
    limit = np.array(5)

    with pytest.raises(Exception, match="(?i)rank"):
        session(exported, "describe").run(
            None, {"image": images, "mask": images > -1, "limit": limit}
        )


@pytest.mark.parametrize("name", NAMES)
def test_compiled_layers_match_alike_and_are_compiled_once(name) -> None:  # EXP-03
    dynamo = pytest.importorskip("torch._dynamo.testing")
    plain, compiled = (methods.build(name, device="cpu") for _ in range(2))
    counter = dynamo.CompileCounter()
    for layer in compiled.network.context.transformers:
        layer.compile(dynamic=True, backend=counter)
    described = plain.describe(list(shifted(243, 321)))

    for counts in ((37, 40), (128, 120), (129, 37), (300, 280)):
        views = tuple(first(each, count) for each, count in zip(described, counts, strict=True))
        here, there = (method.match([views])[0] for method in (plain, compiled))
        np.testing.assert_allclose(there.points1, here.points1, atol=1e-4)
        np.testing.assert_allclose(there.scores, here.scores, atol=1e-4)

    assert counter.frame_count == 1  # one graph for all layers and all counts


def test_the_limit_is_an_input(exported, both) -> None:
    image, _ = shifted(120, 160)
    name, folder = exported.facts.method, exported.folder
    few = methods.build(name, device="cpu", backend="onnxruntime", weights=folder, limit=20)

    assert len(few.describe([image])[0]) == 20 < len(both[1].describe([image])[0])


def test_score_maps_agree(both) -> None:
    pair = tuple(both[0].describe(list(shifted(120, 160))))

    there = both[1].score_map(pair, (60.0, 50.0))

    row = int(np.linalg.norm(pair[0].points - [60, 50], axis=1).argmin())
    x, y = pair[0].points[row] + [12, 7]
    assert np.hypot(there.best[0] - x, there.best[1] - y) < 9
    assert 0 <= there.scores.min() <= there.scores.max() <= 1.001


def test_programs_run_without_this_package(exported, both) -> None:
    described = both[0].describe(list(shifted(120, 160)))
    code = """
import sys, torch, numpy as np
sys.modules["matcher"] = None
given = {name: torch.from_numpy(value) for name, value in np.load(sys.argv[2]).items()}
with torch.no_grad():
    print(len(torch.export.load(sys.argv[1]).module()(**given)[1]))
"""
    np.savez(exported.folder / "given.npz", **inputs(described))
    command = [sys.executable, "-W", "ignore", "-c", code, exported.folder / "match.pt2",
               exported.folder / "given.npz"]  # fmt: skip

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    graph = session(exported, "match").run(["scores"], inputs(described))
    assert done.stdout.strip() == str(len(graph[0])), done.stderr


def test_the_runner_needs_no_torch(exported, pair) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
import matcher
method = matcher.create({exported.facts.method!r}, backend="onnxruntime",
                        weights={str(exported.folder)!r}, refine=False)
found = matcher.match(method, {str(pair.image0)!r}, {str(pair.image1)!r})
print(len(found) > 20, abs(found.points1 - found.points0 - [12, 7]).max(axis=1).mean() < 3)
try:
    matcher.create("loftr", backend="onnxruntime")
except ImportError as error:
    print(error)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    lines = done.stdout.splitlines()
    assert lines[:1] == ["True True"], done.stderr
    assert "refine=True needs torch, which `pip install tiepoint` brings" in lines[1]


def test_the_licence_of_the_weights_goes_with_the_file(exported) -> None:
    method = methods.build(exported.facts.method, device="cpu", weights="default")

    assert exported.facts.licence == method.licence != ""


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_lower_precision_keeps_most_matches(exported, both, tmp_path, kind) -> None:  # EXP-05
    for part in _onnx.PARTS:
        path = tmp_path / f"{part}.onnx"
        path.write_bytes((exported.folder / path.name).read_bytes())
        before = path.stat().st_size
        precision.lower(path, kind)
        assert path.stat().st_size < 0.75 * before
    name = exported.facts.method
    low = methods.build(name, device="cpu", backend="onnxruntime", weights=tmp_path)
    described = both[0].describe(list(shifted(243, 321)))
    views = [tuple(described)]

    here, there = both[1].match(views)[0], low.match(views)[0]
    only, total, *_ = parity._differ(here, there, low.threshold)

    assert only <= (0.02 if kind == "float16" else 0.1) * total
    assert len(low.describe([shifted(120, 160)[0]])[0]) > 50


def test_long_descriptors_stay_finite_in_half_precision(exported, both, tmp_path) -> None:  # EXP-05
    path = tmp_path / "match.onnx"
    path.write_bytes((exported.folder / path.name).read_bytes())
    precision.lower(path, "float16")
    described = both[0].describe(list(shifted(120, 160)))
    long = [replace(each, descriptors=each.descriptors * 10) for each in described]

    scores, log_scores = runtime.InferenceSession(str(path)).run(
        ["scores", "log_scores"], inputs(long)
    )

    assert np.isfinite(scores).all()
    assert not np.isnan(log_scores).any()


def test_scores_that_are_not_finite_are_refused(both) -> None:  # EXP-05
    class Broken:
        def run(self, names, _):
            return [np.zeros((1, 2), np.int64), np.full(1, np.nan, np.float32),
                    np.ones((1, 2), np.float32), np.ones((1, 2), np.float32)]  # fmt: skip

    described = both[1].describe(list(shifted(120, 160)))
    broken = _onnx.OnnxMatcher(None, Broken(), both[1].facts, _onnx.Options())

    with pytest.raises(ValueError, match="gave scores that are not finite"):
        broken.match([tuple(described)])


def test_descriptions_of_others_are_refused(both) -> None:
    described = both[1].describe(list(shifted(120, 160)))
    other = replace(described[0], method="other")

    with pytest.raises(ValueError, match="description 0, made by other, has 64"):
        both[1].match([(other, described[1])])


# EXP-06
def test_files_of_another_format_method_or_export_are_refused(exported, tmp_path) -> None:
    facts = asdict(exported.facts)
    name = exported.facts.method
    other = next(each for each in NAMES if each != name)

    with pytest.raises(ValueError, match=rf"is an exported {name}, not {other}"):
        methods.build(other, device="cpu", backend="onnxruntime", weights=exported.folder)
    with pytest.raises(ValueError, match="of format 0, this version reads format 1: run `matcher"):
        _onnx.read_facts({"tiepoint": json.dumps({**facts, "format": 0})}, name, Path("x.onnx"))
    with pytest.raises(ValueError, match="is of format unknown"):
        _onnx.read_facts({}, name, Path("x.onnx"))
    for part, version in zip(_onnx.PARTS, ("1", "2"), strict=True):
        model = onnx.load(str(exported.folder / f"{part}.onnx"))
        changed = json.dumps({**facts, "version": version})
        onnx.helper.set_model_props(model, {_onnx.KEY: changed})
        onnx.save(model, str(tmp_path / f"{part}.onnx"))
    with pytest.raises(ValueError, match=rf"of two exports: run `matcher export {name}`"):
        methods.build(name, device="cpu", backend="onnxruntime", weights=tmp_path)


def test_what_is_not_there_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MATCHER_WEIGHTS", str(tmp_path))

    with pytest.raises(FileNotFoundError, match=r"no .*loftr-float32/describe.onnx: `matcher exp"):
        matcher.create("loftr", backend="onnxruntime")
    with pytest.raises(ValueError, match="no backend 'tensorrt'; there are torch, onnxruntime"):
        matcher.create("loftr", backend="tensorrt")
    with pytest.raises(ValueError, match="needs exported weights; weights=None has none"):
        matcher.create("loftr", backend="onnxruntime", weights=None)
    with pytest.raises(ValueError, match="has no device 'mps'; there are cpu, cuda"):
        matcher.create("loftr", backend="onnxruntime", device="mps")


def test_devices_are_providers_of_the_runtime() -> None:  # DEV-01
    assert _onnx._providers("auto", ["CPUExecutionProvider"]) == ["CPUExecutionProvider"]
    assert _onnx._providers("cuda:1", ["CUDAExecutionProvider", "CPUExecutionProvider"]) == [
        ("CUDAExecutionProvider", {"device_id": "1"}),
        "CPUExecutionProvider",
    ]
    with pytest.raises(ValueError, match="device 'cuda' needs onnxruntime-gpu, which is not"):
        _onnx._providers("cuda", ["CPUExecutionProvider"])


def test_wrong_options_are_refused(pair) -> None:
    with pytest.raises(ValueError, match=r"^threshold must be in \[0, 1\], not 2"):
        _onnx.Options(threshold=2)
    with pytest.raises(ValueError, match=r"^limit must be at least 1, not 0"):
        _onnx.Options(limit=0)
    with pytest.raises(ValueError, match="no precision 'int4'; there are float32, float16, int8"):
        exporter.export("loftr", precision="int4")
    with pytest.raises(ValueError, match="'ncc' cannot be exported; loftr and superglue can"):
        exporter.export("ncc", pairs=[pair])
    with pytest.raises(ValueError, match="loftr cannot be exported with these options"):
        exporter.export("loftr", pairs=[pair], max_side=320)
    with pytest.raises(ValueError, match="no pairs to compare on"):
        parity.compare(None, None, [])


def test_an_export_that_does_not_agree_is_no_export(pair, tmp_path, monkeypatch) -> None:
    wrong = parity.Parity(1, 1.0, 0.5, 0.9, 0.2, 0.1, {}, (1.0, 1.0))
    monkeypatch.setattr(exporter, "compare", lambda *_: wrong)
    monkeypatch.setattr(exporter, "write_graph", lambda program, part, facts, path: path.touch())
    monkeypatch.setattr(exporter.methods, "build", lambda *_, **__: None)
    plan = plans.Plan(None, (), None)
    monkeypatch.setattr(exporter, "make_plan", lambda *_: plan)

    with pytest.raises(ValueError, match="the exported loftr does not agree with torch's: 100.00%"):
        exporter.export("loftr", tmp_path, pairs=[pair])


def test_matches_that_only_one_finds_are_counted_unless_they_are_at_the_threshold() -> None:
    points = np.array([[0, 0], [50, 0], [0, 50]], np.float32)
    one = Matches(points, points, [0.9, 0.8, 0.2005])
    other = Matches(points[:1] + np.float32(0.01), points[:1], [0.85])

    only, total, farthest, score = parity._differ(one, other, 0.2)

    assert (only, total) == (1, 3)
    assert farthest == pytest.approx(0.0141, abs=1e-3)
    assert score == pytest.approx(0.05)
    assert parity._differ(one, Matches.empty(), 0.2)[:2] == (2, 3)


@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
def test_transport_without_branches_is_the_transport(spread) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = spread * torch.randn(30, 40, generator=generator)
    dustbin = torch.tensor(0.5)

    found = graphs.transport(scores, dustbin, 50)

    expected = sinkhorn_log(scores[None], dustbin, 50).log_scores[0]
    np.testing.assert_allclose(found.exp(), expected.exp(), atol=1e-4 if spread < 50 else 2e-2)


def test_the_command_exports_and_prints_what_agrees(pair, tmp_path, capsys, monkeypatch) -> None:
    parity_ = parity.Parity(1, 1.0, 1.0, 1.0, 0.0, 0.0, {"pose AUC@5": (50.0, 49.5)}, (10.0, 20.0))
    (tmp_path / "describe.onnx").touch()
    made = exporter.Exported(tmp_path, None, parity_)
    asked = {}
    monkeypatch.setattr(exporter, "export", lambda *given, **rest: asked.update(rest) or made)

    code = cli.run(["export", "loftr", "--out", str(tmp_path), "-o", "tokens=500"])

    out = capsys.readouterr().out
    assert code == 0
    assert asked["tokens"] == 500
    assert asked["precision"] == "float32"
    assert "49.5" in out
    assert "same matches in 100% of 1 pairs" in out
    assert "describe.onnx" in out
