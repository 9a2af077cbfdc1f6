"""The runner: every pair counted, images described once, runs resumed, pixels of the files."""

from __future__ import annotations

import functools
import json
import multiprocessing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PilImage
from scipy.ndimage import map_coordinates

import matcher
from matcher import images
from matcher.evaluation import session as session_module
from matcher.evaluation import tables
from matcher.evaluation.identity import identity
from matcher.evaluation.records import Outcome, Record, RecordFile
from matcher.evaluation.runner import evaluate, read_evaluation
from matcher.evaluation.session import Session
from matcher.evaluation.settings import Settings
from matcher.geometry.cameras import transfer
from matcher.matching import Refined
from matcher.types import (
    DenseMap,
    Description,
    Homography,
    Matches,
    Pair,
    TwoView,
    Unrelated,
)

SHIFT = np.array([[1.0, 0, 8], [0, 1, -4], [0, 0, 1]])
AS_THEY_ARE = Settings(long_side=None)


class TrueMatcher:
    """Matches a grid by a known map, with noise: what a perfect method would find."""

    def __init__(self, pixels1_from_pixels0=SHIFT, noise=0.0, scale=1.0) -> None:
        self.map = np.asarray(pixels1_from_pixels0)
        self.noise, self.scale = noise, scale
        self.described: list[tuple[int, int]] = []

    def describe(self, pictures, masks=None):
        self.described += [picture.shape[:2] for picture in pictures]
        return [
            Description(
                "true",
                images.grey(picture),
                None,
                np.zeros((0, 2), np.float32),
                np.zeros(0, np.float32),
                np.zeros((0, 1), np.float32),
            )
            for picture in pictures
        ]

    def match(self, pairs):
        return [self._match(*pair) for pair in pairs]

    def score_map(self, pair, point0):
        raise NotImplementedError

    def _match(self, description0, description1):
        height, width = description0.size
        y, x = np.mgrid[4 : height - 4 : 8, 4 : width - 4 : 8]
        points0 = np.stack([x, y], axis=2).reshape(-1, 2).astype(np.float64)
        generator = np.random.default_rng(0)
        points1 = transfer(self.map, points0) + generator.normal(0, self.noise, points0.shape)
        inside = ((points1 >= 0) & (points1 < np.array(description1.size[::-1]))).all(axis=1)
        return Matches(points0[inside], points1[inside], np.ones(inside.sum()))


@pytest.fixture
def pairs(tmp_path, texture):
    """Three pairs of four images, all the same shift."""
    for name, seed in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
        PilImage.fromarray(texture(96, 128, seed)).save(tmp_path / f"{name}.png")

    def pair(name, image0, image1, truth, group="flat"):
        return Pair(name, tmp_path / image0, tmp_path / image1, truth, group)

    return [
        pair("ab", "a.png", "b.png", Homography(SHIFT)),
        pair("ac", "a.png", "c.png", Homography(SHIFT)),
        pair("ad", "a.png", "d.png", Unrelated(), "strangers"),
    ]


def by_pair(evaluation):
    return {record.pair: record for record in evaluation.records}


def test_true_matches_are_right_and_others_are_not(pairs) -> None:
    methods = {
        "true": TrueMatcher(noise=0.1),
        "off": TrueMatcher(SHIFT + np.eye(3, k=2) * 4),
    }

    rows = {
        (row.method, row.group): row for row in tables.table(evaluate(methods, pairs, AS_THEY_ARE))
    }

    good, bad = rows["true", "flat"], rows["off", "flat"]
    assert good.figures["precision@1"].value == 100
    assert good.figures["homography AUC@1"].value > 90
    assert bad.figures["precision@3"].value == 0
    assert bad.figures["precision@5"].value == 100
    assert bad.figures["homography AUC@3"].value == 0
    assert bad.figures["homography AUC@5"].value == pytest.approx(40, abs=0.01)  # 4, 4 px


def test_each_image_is_described_once(pairs) -> None:
    method = TrueMatcher()

    evaluate({"true": method}, pairs, AS_THEY_ARE)

    assert len(method.described) == 4


def test_descriptions_that_do_not_fit_in_memory_are_forgotten(pairs, monkeypatch) -> None:
    monkeypatch.setattr(session_module, "CACHE_BYTES", 3 * 96 * 128 * 4 * 2 - 1)
    method = TrueMatcher()
    order = [pairs[0], pairs[1], pairs[0]]

    session = Session(method, AS_THEY_ARE)
    for pair in order:
        session.run(pair, {"true": "key"})

    assert len(method.described) == 4  # a, b, c, and b again


def test_results_are_in_pixels_of_the_files(tmp_path, texture) -> None:  # GEO-12
    PilImage.fromarray(texture(600, 800, 0)).save(tmp_path / "a.png")
    PilImage.fromarray(texture(500, 1000, 1)).save(tmp_path / "b.png")
    truth = np.array([[1.1, 0.1, -20], [-0.05, 0.9, 12], [1e-5, 2e-5, 1]])
    small1 = np.array([[0.4, 0, -0.3], [0, 0.4, -0.3], [0, 0, 1]])  # 1000 to 400
    small0 = np.array([[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1]])  # 800 to 400
    method = TrueMatcher(small1 @ truth @ np.linalg.inv(small0))
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", Homography(truth), "g")

    record = evaluate({"m": method}, [pair], Settings(long_side=400)).records[0]

    assert record.working_sizes == ((300, 400), (200, 400))
    assert record.sizes == ((600, 800), (500, 1000))
    assert record.score.precision == (1, 1, 1)
    assert record.score.errors[0][0] < 0.01


@pytest.mark.parametrize(
    ("name", "options", "long_side"),
    [("ncc", {}, 400), ("superglue", {}, 400), ("loftr", {"max_side": 400}, None)],
)
def test_a_model_from_a_working_size_maps_original_pixels(
    tmp_path, texture, name, options, long_side
) -> None:  # GEO-12
    grains = [texture(600, 800, seed, sigma) for seed, sigma in enumerate((2.5, 6, 15))]
    picture = np.mean(grains, axis=0)
    truth = np.array([[1.1, 0.1, -20], [-0.05, 0.8, 12], [1e-5, 2e-5, 1]])
    y, x = np.indices((500, 1000))
    back = transfer(np.linalg.inv(truth), np.stack([x.ravel(), y.ravel()], 1)).reshape(500, 1000, 2)
    seen = map_coordinates(picture, back[..., ::-1].transpose(2, 0, 1), order=3, mode="constant")
    for file, pixels in (("a.png", picture), ("b.png", seen)):
        PilImage.fromarray(pixels.round().clip(0, 255).astype(np.uint8)).save(tmp_path / file)
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", Homography(truth), "g")
    method = matcher.create(name, device="cpu", refine=False, **options)

    settings = Settings(long_side=long_side, refine="on")
    record = evaluate({"m": method}, [pair], settings).records[0]

    assert record.score.matches > 50
    assert record.score.errors[0][0] <= 1  # mean corner error, of 800 x 600 in 1000 x 500


def test_measuring_in_resized_pixels_flatters_by_the_factor(tmp_path, texture) -> None:  # EVA-04
    for name in "ab":
        PilImage.fromarray(texture(400, 800, ord(name))).save(tmp_path / f"{name}.png")
    off = np.array([[1.0, 0, 2], [0, 1, 0], [0, 0, 1]])
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", Homography(np.eye(3)), "g")

    original = evaluate({"m": TrueMatcher(off)}, [pair], Settings(long_side=400))
    resized = evaluate({"m": TrueMatcher(off)}, [pair], Settings(long_side=400, measure="resized"))

    assert original.records[0].score.errors[0][0] == pytest.approx(4, abs=1e-3)
    assert resized.records[0].score.errors[0][0] == pytest.approx(2, abs=1e-3)
    assert "measure='original'" in tables.markdown(original)
    assert "measure='resized'" in tables.markdown(resized)


def pose_pair(folder, texture):
    """Two views of a slanted plane and the map between them."""
    for name in "ab":
        PilImage.fromarray(texture(240, 320, ord(name))).save(folder / f"{name}.png")
    camera = np.array([[300.0, 0, 160], [0, 300, 120], [0, 0, 1]])
    truth = TwoView(camera, camera, np.eye(3), np.array([0.3, 0.1, 0.0]))
    return Pair("view", folder / "a.png", folder / "b.png", truth, "g")


def two_planes(image0, image1):
    """Match exactly by a pose, at depths that no plane explains."""
    generator = np.random.default_rng(0)
    points0 = generator.uniform((20, 20), (300, 220), (300, 2)) * image0.shape[0] / 240
    depth = generator.uniform(2, 6, (300, 1))
    factor = 300 * image0.shape[0] / 240
    return points0, points0 + factor * np.array([[0.3, 0.1]]) / depth


@pytest.mark.parametrize("measure", ["original", "resized"])
def test_poses_are_measured_in_either_frame(tmp_path, texture, measure) -> None:
    settings = Settings(long_side=160, measure=measure)

    record = evaluate({"f": two_planes}, [pose_pair(tmp_path, texture)], settings).records[0]

    assert record.score.reason == "ok"
    assert record.score.errors[0][0] < 0.5


def test_the_report_of_calibrated_pairs_tells_their_focal_lengths(
    tmp_path, texture
) -> None:  # EVA-06
    evaluation = evaluate({"f": two_planes}, [pose_pair(tmp_path, texture)], AS_THEY_ARE)

    assert "focal lengths 300 to 300 px" in tables.markdown(evaluation)


@pytest.mark.parametrize(("rule", "error"), [("common", 0), ("strict", 180)])
def test_the_sign_of_a_translation_counts_where_asked_for(  # EVA-03
    tmp_path, texture, rule, error
) -> None:
    pair = pose_pair(tmp_path, texture)
    backwards = replace(pair, truth=replace(pair.truth, translation=-pair.truth.translation))
    settings = Settings(long_side=None, pose_error=rule)

    record = evaluate({"f": two_planes}, [backwards], settings).records[0]

    assert record.score.errors[0][0] == pytest.approx(error, abs=0.5)


def test_a_plain_function_of_two_images_is_a_method(pairs) -> None:
    def mine(image0, image1):
        points0 = np.random.default_rng(0).uniform(20, 70, (50, 2)).astype(np.float32)
        return points0, points0 + np.array([8, -4], np.float32)

    found = evaluate({"mine": mine}, pairs[:1], AS_THEY_ARE).records[0]

    assert found.score.matches == 50
    assert found.score.precision[0] == 1


@pytest.mark.parametrize("content", [None, b"", b"text", b"truncated"])  # IMG-03
def test_an_unreadable_image_is_counted_and_the_rest_goes_on(pairs, tmp_path, content) -> None:
    path = tmp_path / "b.png"
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(whole[: len(whole) // 2] if content == b"truncated" else content)

    evaluation = evaluate({"true": TrueMatcher()}, pairs, AS_THEY_ARE)

    found = by_pair(evaluation)
    assert found["ab"].outcome is Outcome.UNREADABLE
    assert "b.png" in found["ab"].detail
    assert found["ab"].score.matches == 0
    assert found["ac"].outcome is Outcome.OK
    row = tables.table(evaluation)[0]
    assert row.pairs == 2
    assert row.failures == {"unreadable image": 1}
    assert row.figures["precision@3"].value == 50  # a failed pair counts as wrong
    assert row.figures["homography AUC@3"].value < 51


def test_a_method_that_raises_fails_on_that_pair_only(pairs) -> None:
    def fussy(image0, image1):
        if image1.mean() == images.read(pairs[0].image1).mean():
            raise RuntimeError("I do not like this one")
        return np.zeros((0, 2)), np.zeros((0, 2))

    found = by_pair(evaluate({"fussy": fussy}, pairs, AS_THEY_ARE))

    assert found["ab"].outcome is Outcome.FAILED
    assert found["ab"].detail == "RuntimeError: I do not like this one"
    assert found["ac"].outcome is Outcome.OK
    assert found["ac"].score.reason == "too few"
    assert found["ac"].score.errors == ((np.inf,),)


def test_matches_of_unrelated_images_are_wrong_and_a_verdict_is_given(pairs) -> None:
    evaluation = evaluate({"true": TrueMatcher()}, pairs[2:], AS_THEY_ARE)

    assert evaluation.records[0].score.precision == (0, 0, 0)
    assert evaluation.records[0].score.same_place is True
    assert tables.table(evaluation)[0].figures["false accepts"].value == 100


def test_refinement_is_scored_beside_what_was_found(tmp_path, texture) -> None:
    large = texture(160, 192, 0, 2.0)
    PilImage.fromarray(large[32:128, 32:160]).save(tmp_path / "a.png")
    PilImage.fromarray(large[36:132, 24:152]).save(tmp_path / "b.png")
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", Homography(SHIFT), "g")
    method = TrueMatcher(noise=0.7)

    evaluation = evaluate({"m": method}, [pair], replace(AS_THEY_ARE, refine="both"))

    rows = {record.method: record for record in evaluation.records}
    assert list(rows) == ["m", "m + refine"]
    assert len(method.described) == 2
    assert rows["m + refine"].score.precision[0] > rows["m"].score.precision[0] + 0.2
    assert rows["m"].seconds.refine == 0 < rows["m + refine"].seconds.refine
    only = evaluate({"m": method}, [pair], replace(AS_THEY_ARE, refine="on"))
    assert [record.method for record in only.records] == ["m + refine"]


def test_growth_is_scored_in_a_row_of_its_own(tmp_path, texture) -> None:
    large = texture(160, 192, 0, 2.0)
    PilImage.fromarray(large[32:128, 32:160]).save(tmp_path / "a.png")
    PilImage.fromarray(large[36:132, 24:152]).save(tmp_path / "b.png")
    pair = Pair("one", tmp_path / "a.png", tmp_path / "b.png", Homography(SHIFT), "g")

    settings = replace(AS_THEY_ARE, refine="on", grow=True)
    evaluation = evaluate({"m": TrueMatcher(noise=0.7)}, [pair], settings)

    refined, grown = evaluation.records
    assert (refined.method, grown.method) == ("m + refine", "m + grow")
    assert grown.score.matches > refined.score.matches
    assert grown.score.precision[0] > 0.95
    assert grown.seconds.refine > 0
    alone = evaluate({"m": TrueMatcher()}, [pair], replace(AS_THEY_ARE, grow=True))
    assert [record.method for record in alone.records] == ["m", "m + grow"]


def without_times(evaluation):
    nothing = replace(evaluation.records[0].seconds, describe=0, match=0, refine=0, fit=0)
    return [replace(record, seconds=nothing, peak_mib=0) for record in evaluation.records]


def test_a_killed_run_goes_on_and_reports_the_same(pairs, tmp_path) -> None:
    methods = {"true": TrueMatcher(noise=0.5)}
    whole = evaluate(methods, pairs, AS_THEY_ARE, out=tmp_path / "whole")
    lines = (tmp_path / "whole" / "records.jsonl").read_text()
    first = lines.index("\n") + 1
    (tmp_path / "killed").mkdir()
    (tmp_path / "killed" / "records.jsonl").write_text(lines[: first + 40])
    again = TrueMatcher(noise=0.5)

    resumed = evaluate({"true": again}, pairs, AS_THEY_ARE, out=tmp_path / "killed")

    assert without_times(resumed) == without_times(whole)
    assert resumed.records[0] == whole.records[0]  # with its times: it was not run again
    assert len(again.described) == 3  # b belongs to the pair that was done
    assert without_times(read_evaluation(tmp_path / "killed")) == without_times(whole)


def test_a_finished_run_is_not_run_again(pairs, tmp_path) -> None:
    first = evaluate({"true": TrueMatcher()}, pairs, AS_THEY_ARE, out=tmp_path / "out")
    method = TrueMatcher()

    second = evaluate({"true": method}, pairs, AS_THEY_ARE, out=tmp_path / "out")

    assert method.described == []
    assert second == first
    assert read_evaluation(tmp_path / "out") == first


@pytest.mark.parametrize("what", ["settings", "file", "truth", "failed before"])
def test_a_result_of_something_else_is_not_taken_for_this_one(pairs, tmp_path, what) -> None:
    out = tmp_path / "out"
    if what == "failed before":
        kept = pairs[0].image1.read_bytes()
        pairs[0].image1.unlink()
    evaluate({"true": TrueMatcher()}, pairs[:1], AS_THEY_ARE, out=out)
    method, settings = TrueMatcher(), AS_THEY_ARE
    if what == "settings":
        settings = replace(settings, homography_thresholds=(2.0,))
    elif what == "file":
        PilImage.new("L", (128, 96)).save(pairs[0].image1)
    elif what == "truth":
        pairs[0] = replace(pairs[0], truth=Homography(np.eye(3)))
    else:
        pairs[0].image1.write_bytes(kept)

    evaluation = evaluate({"true": method}, pairs[:1], settings, out=out)

    assert len(method.described) == 2
    assert evaluation.records[0].outcome is Outcome.OK


def evaluate_in(folder, pairs):
    evaluate({"true": TrueMatcher(noise=0.5)}, pairs, AS_THEY_ARE, out=folder)


def test_two_processes_may_share_a_folder(pairs, tmp_path) -> None:
    many = [replace(pair, name=f"{pair.name}{n}") for n in range(10) for pair in pairs]
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=evaluate_in, args=(tmp_path / "out", many)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    found = read_evaluation(tmp_path / "out")

    assert [worker.exitcode for worker in workers] == [0, 0]
    lines = (tmp_path / "out" / "records.jsonl").read_text().splitlines()
    assert all(Record.of_line(line) for line in lines)
    assert [record.pair for record in found.records] == [pair.name for pair in many]
    alone = evaluate({"true": TrueMatcher(noise=0.5)}, many, AS_THEY_ARE)
    assert [r.score for r in alone.records] == [r.score for r in found.records]


def test_the_report_says_what_it_rests_on(pairs, tmp_path) -> None:  # EVA-08
    settings = Settings(long_side=64, homography_thresholds=(0.5, 1, 2, 3), repeats=2)
    evaluation = evaluate({"true": TrueMatcher()}, pairs, settings, out=tmp_path)

    stored = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)

    assert stored["settings"]["long_side"] == 64
    assert stored["settings"]["homography_thresholds"] == [0.5, 1, 2, 3]
    assert stored["settings"]["estimator"]["seed"] == 0
    assert {"numpy", "poselib", "torch", "tiepoint"} <= set(stored["environment"]["versions"])
    assert len(stored["data"]["sha256"]) == 64
    assert "TrueMatcher" in stored["methods"]["true"]
    assert read_evaluation(tmp_path).settings == evaluation.settings


def test_the_stored_settings_reproduce_the_result_to_the_last_digit(pairs, tmp_path) -> None:
    method = TrueMatcher(noise=2.0)  # EVA-08
    settings = Settings(long_side=None, repeats=3, homography_thresholds=(1.0, 3.0))
    first = evaluate({"true": method}, pairs, settings, out=tmp_path / "first")

    stored = read_evaluation(tmp_path / "first").settings
    second = evaluate({"true": method}, pairs, stored, out=tmp_path / "second")

    assert [r.score for r in first.records] == [r.score for r in second.records]
    assert len(set(first.records[0].score.errors[0])) > 1  # other seeds, other fits


def test_a_sweep_tells_the_fixed_threshold_from_the_best(pairs) -> None:  # EVA-08
    settings = replace(AS_THEY_ARE, homography_thresholds=(0.5, 1.0, 2.0, 3.0))
    evaluation = evaluate({"true": TrueMatcher(noise=1.0)}, pairs, settings)

    row = tables.sweep(evaluation)[0]

    assert row.figure == "homography AUC@3"
    assert list(row.by_threshold) == [0.5, 1.0, 2.0, 3.0]
    assert row.fixed == row.by_threshold[0.5]
    assert row.by_threshold[row.best] == max(row.by_threshold.values()) >= row.fixed


def test_untrained_networks_are_named_in_the_report(pairs) -> None:
    def guess(image0, image1):
        return Matches.empty(untrained=True)

    evaluation = evaluate({"guess": guess, "true": TrueMatcher()}, pairs, AS_THEY_ARE)

    assert "guess is **untrained**" in tables.markdown(evaluation)
    assert "true is **untrained**" not in tables.markdown(evaluation)


def test_progress_counts_to_the_end(pairs) -> None:
    seen = []

    evaluate(
        {"a": TrueMatcher(), "b": TrueMatcher()},
        pairs,
        AS_THEY_ARE,
        progress=lambda done, total, record: seen.append((done, total, record.pair)),
    )

    assert [done for done, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {total for _, total, _ in seen} == {6}
    assert seen[-1][2] == "ad"


def test_what_cannot_be_evaluated_is_refused(pairs) -> None:
    method = TrueMatcher()
    dense = replace(pairs[0], truth=DenseMap(np.zeros((96, 128, 2), np.float32)))

    with pytest.raises(ValueError, match="no methods to evaluate"):
        evaluate({}, pairs)
    with pytest.raises(ValueError, match="no pairs to evaluate on"):
        evaluate({"m": method}, [])
    with pytest.raises(ValueError, match="pair names must be unique: ab"):
        evaluate({"m": method}, [pairs[0], pairs[0]])
    with pytest.raises(ValueError, match="m would be refined twice: create with refine=False"):
        evaluate({"m": Refined(method)}, pairs, Settings(refine="on"))
    with pytest.raises(ValueError, match="dense truth is measured in original pixels only: ab"):
        evaluate({"m": method}, [dense], Settings(measure="resized"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "half"}, "measure must be original or resized, not 'half'"),
        ({"refine": "yes"}, "refine must be off or on or both, not 'yes'"),
        ({"long_side": 4}, "long_side must be at least 16 pixels, not 4"),
        ({"pose_thresholds": ()}, "pose_thresholds must be positive pixels, one or more"),
        ({"homography_thresholds": (0.0,)}, "homography_thresholds must be positive pixels"),
        ({"repeats": 0}, "repeats must be at least 1, not 0"),
        ({"failure_pixels": 3.0}, "failure_pixels must be 10 at least, not 3.0"),
        ({"failure_degrees": np.nan}, "failure_degrees must be 20 at least, not nan"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def test_an_unfinished_folder_is_no_evaluation(pairs, tmp_path) -> None:
    evaluate({"m": TrueMatcher()}, pairs, AS_THEY_ARE, out=tmp_path)
    (tmp_path / "records.jsonl").unlink()

    with pytest.raises(ValueError, match=r"records\.jsonl lacks 3 records of run\.json"):
        read_evaluation(tmp_path)


@dataclass(frozen=True)
class Options:
    """Of a method, with a network in it as real ones have."""

    limit: int
    network: torch.nn.Module
    grid: np.ndarray


def make_method(limit=5, weight=1.0, bias=0.0, device="cpu"):
    network = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(network.weight, weight)
    torch.nn.init.constant_(network.bias, bias)
    method = TrueMatcher()
    method.options = Options(limit, network, np.eye(2))
    method.device = torch.device(device)
    return method


def test_methods_are_told_apart_by_options_and_weights() -> None:
    others = [{"limit": 6}, {"weight": 2.0}, {"bias": 1.0}, {"device": "meta"}]

    found = [identity(make_method(**changes)) for changes in others]

    assert identity(make_method()) == identity(make_method())
    assert len({identity(make_method()), *found}) == 5
    assert "limit=6" in found[0]
    assert identity(Refined(make_method())) == f"{identity(make_method())} refined"


class Graph:
    """As ONNX Runtime's: the weights are where it was loaded from."""

    def __init__(self, path) -> None:
        self._model_path = str(path)


@pytest.mark.parametrize("ending", ["", ".data"])
def test_a_changed_file_of_weights_is_another_method(tmp_path, ending) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"graph")
    (tmp_path / f"model.onnx{ending}").write_bytes(b"weights")
    method = TrueMatcher()
    method.parts = {"graph": Graph(path), "file": path, "sizes": (1, 2)}
    before = identity(method)

    assert identity(method) == before
    (tmp_path / f"model.onnx{ending}").write_bytes(b"other weights")
    assert identity(method) != before
    method.parts = {**method.parts, "sizes": (1, 3)}
    assert "sizes=[1, 3]" in identity(method)


def test_functions_are_told_apart_by_their_text() -> None:
    def first(image0, image1):
        return [], []

    def second(image0, image1):
        return [[0, 0]], [[0, 0]]

    typed = {}
    exec("def mine(image0, image1): pass", {"__name__": "prompt"}, typed)

    assert identity(first) != identity(second)
    assert identity(typed["mine"]) == "prompt.mine unknown source"
    assert identity(functools.partial(first)).startswith("functools.partial functools.partial(<")


def test_a_record_survives_its_line_and_others_are_refused(pairs) -> None:
    record = evaluate({"m": TrueMatcher()}, pairs[:1], AS_THEY_ARE).records[0]
    failed = replace(record, score=replace(record.score, errors=((np.inf, 1.0),)), detail="ü\n")

    assert Record.of_line(record.line()) == record
    assert Record.of_line(failed.line()) == failed
    assert failed.line().count("\n") == 1
    with pytest.raises(ValueError, match="no record: '\\[1\\]'"):
        Record.of_line("[1]")


def test_a_torn_line_does_not_swallow_the_next(pairs, tmp_path) -> None:
    record = evaluate({"m": TrueMatcher()}, pairs[:1], AS_THEY_ARE).records[0]
    path = Path(tmp_path / "records.jsonl")
    path.write_text(record.line()[:30])

    RecordFile(path).add(record)

    assert list(RecordFile(path).records.values()) == [record]


def test_tables_are_written_in_three_forms(pairs, tmp_path) -> None:
    evaluation = evaluate({"m": TrueMatcher()}, pairs, AS_THEY_ARE)

    paths = tables.write_tables(evaluation, tmp_path / "new")

    assert [path.name for path in paths] == ["table.md", "table.csv", "table.json"]
    text = paths[0].read_text()
    assert text.count("| m |") == 3  # flat, strangers, all
    assert "3 pairs of 4 images of 128 x 96 to 128 x 96 px, sha256" in text  # EVA-06
    assert len(paths[1].read_text().splitlines()) == 4
    assert json.loads(paths[2].read_text())[0]["figures"]["precision@1"]["value"] == 100


def test_a_row_for_the_terminal_has_the_main_figures(pairs) -> None:
    evaluation = evaluate({"m": TrueMatcher()}, pairs, AS_THEY_ARE)

    flat, strangers, everything = (tables.cells(row) for row in tables.table(evaluation))

    assert flat["precision@3"] == "100.0 ±0.0"
    assert flat["failed"] == "0"
    assert strangers["false accepts"] == "100.0"  # one pair has no interval
    assert (strangers["precision@3"], everything["data"]) == ("", "all")


def test_a_table_of_failures_alone_can_be_written(pairs) -> None:
    for pair in pairs:
        pair.image0.unlink(missing_ok=True)

    evaluation = evaluate({"m": TrueMatcher()}, pairs, AS_THEY_ARE)

    assert "3 unreadable image" in tables.markdown(evaluation)
    assert tables.cells(tables.table(evaluation)[0])["ms a pair"] == ""


def test_two_methods_are_compared_on_the_same_pairs(pairs) -> None:
    methods = {"good": TrueMatcher(), "bad": TrueMatcher(noise=3)}
    evaluation = evaluate(methods, pairs, AS_THEY_ARE)

    found = tables.difference(evaluation, "bad", "good", "precision@1")

    assert found.value > 50
    assert found.clear
    with pytest.raises(ValueError, match="no figure 'speed'; there are matches, precision@1"):
        tables.difference(evaluation, "bad", "good", "speed")
    with pytest.raises(ValueError, match="no method 'ugly' in this evaluation; there are good"):
        tables.difference(evaluation, "bad", "ugly", "precision@1")
    with pytest.raises(ValueError, match="no pair has pose AUC@5"):
        tables.difference(evaluation, "bad", "good", "pose AUC@5")
