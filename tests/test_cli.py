"""The command line: what it prints, what it writes, and with which code it ends."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import cli, datasets, doctor, extras, licences
from matcher.evaluation.truth_file import read_truth
from matcher.options import method_from
from matcher.types import Homography, Matches

SHIFT = np.array([[1.0, 0, 12], [0, 1, 7], [0, 0, 1]])


@pytest.fixture
def pair(tmp_path, shifted_pair):
    """Two files with odd names; (x, y) of the first is (x + 12, y + 7) of the second."""
    folder = tmp_path / "t ést [1]"
    folder.mkdir()
    paths = [folder / "你 好 #0.png", folder / "two's.png"]
    for path, image in zip(paths, shifted_pair(120, 160, 12, 7), strict=True):
        PilImage.fromarray(image).save(path)
    return [str(path) for path in paths]


@pytest.fixture
def command(capsys):
    """Run a command; returns its code, output and errors."""

    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


# CLI-01
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["match", "absent.png", "absent.png"], "File 'absent.png' does not exist"),
        (["match", "a.png b.png"], "File 'a.png b.png' does not exist"),
        (["match"], "Missing argument"),
        (["mach"], "No such command 'mach'"),
        (["match", __file__, __file__, "--method", "nc"], "no method 'nc'; there are"),
        (["match", __file__, __file__, "--out", "a.xls"], "a.xls must end in .npz, .csv, .json"),
        (["match", __file__, __file__, "--option", "threshold"], "must be name=value"),
        (["compare", __file__, __file__, "--methods", ","], "no methods; there are"),
    ],
)
def test_wrong_usage_is_one_line_and_ends_with_2(command, arguments, message):
    code, out, err = command(*arguments)

    assert code == 2
    assert out == ""
    assert message.casefold() in err.casefold()
    assert len(err.splitlines()) == 1


def test_no_command_shows_the_commands(command):
    code, out, _ = command()

    assert code == 2
    for name in ("match", "find", "compare", "evaluate", "methods", "models", "doctor", "selftest"):
        assert name in out


def test_the_version_is_printed(command):
    assert command("--version") == (0, "tiepoint 0.1.0\n", "")


def test_the_command_runs_as_a_module_without_a_display():
    arguments = [sys.executable, "-m", "matcher", "--version"]
    environment = {"PATH": "/usr/bin", "PYTHONPATH": str(Path(cli.__file__).parents[1])}

    result = subprocess.run(arguments, capture_output=True, text=True, env=environment, check=False)

    assert (result.returncode, result.stdout) == (0, "tiepoint 0.1.0\n")


# IMG-02
@pytest.mark.parametrize("ending", ["csv", "npz", "json"])
def test_match_writes_matches_and_a_picture_under_any_name(command, pair, ending):
    out = Path(pair[0]).parent / f"résultat [x].{ending}"
    picture = out.with_suffix(".png")

    code, said, _ = command("match", *pair, "-m", "ncc", "--out", out, "--picture", picture)

    assert code == 0
    count = int(said.split()[0])
    assert count > 20
    assert "matches by ncc in" in said
    assert said.rstrip().endswith(f"wrote {out}, {picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    if ending == "csv":
        rows = np.array(list(csv.reader(out.read_text().splitlines()))[1:], float)
        assert len(rows) == count
        moved = np.median(rows[:, 2:4] - rows[:, :2], axis=0)
        np.testing.assert_allclose(moved, [12, 7], atol=0.1)


def test_images_with_nothing_to_match_give_no_matches_and_success(command, tmp_path):
    PilImage.new("L", (80, 60), 128).save(tmp_path / "blank.png")
    blank, out = tmp_path / "blank.png", tmp_path / "none.csv"

    code, said, _ = command("match", blank, blank, "-m", "ncc", "--out", out)

    assert code == 0
    assert said.startswith("0 matches by ncc")
    assert out.read_text().splitlines() == ["x0,y0,x1,y1,score"]


def test_masks_say_where_matching_is_allowed(command, pair, tmp_path):
    mask = np.zeros((120, 160), np.uint8)
    mask[:, :80] = 255
    PilImage.fromarray(mask).save(tmp_path / "mask.png")
    out = tmp_path / "m.npz"

    code, _, _ = command(
        "match", *pair, "-m", "ncc", "--mask0", tmp_path / "mask.png", "--out", out
    )

    assert code == 0
    assert np.load(out)["points0"][:, 0].max() < 81


# GEO-13
def test_turned_images_are_matched_on_request(command, pair, tmp_path):
    turned, out = tmp_path / "turned.png", tmp_path / "compared"
    with PilImage.open(pair[1]) as opened:
        opened.rotate(180).save(turned)

    plain = command("match", pair[0], turned, "-m", "ncc")[1]
    code, said, _ = command("match", pair[0], turned, "-m", "ncc", "--turns")
    table = command("compare", pair[0], turned, "-m", "ncc", "--turns", "--out", out)[1]

    assert code == 0
    assert int(said.split()[0]) > int(plain.split()[0]) + 20
    assert "ncc + turns + grow" in table
    assert (out / "ncc-turns-grow.png").exists()


# IMG-03
def test_damaged_files_end_with_1_and_one_line_that_names_them(command, pair, tmp_path):
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(Path(pair[0]).read_bytes()[:300])

    code, out, err = command("match", damaged, pair[1], "-m", "ncc")

    assert (code, out) == (1, "")
    assert "damaged.png cannot be read" in err
    assert len(err.splitlines()) == 1
    with pytest.raises(ValueError, match="damaged.png"):
        command("match", damaged, pair[1], "-m", "ncc", "--debug")


def test_unknown_options_of_a_method_are_refused(command, pair):
    code, _, err = command("match", *pair, "-m", "ncc", "-o", "nonsense=1")

    assert code == 1
    assert "nonsense" in err


def test_find_prints_places_and_writes_them(command, tmp_path, texture):
    scene = texture(120, 160)
    PilImage.fromarray(scene).save(tmp_path / "scene.png")
    PilImage.fromarray(scene[30:62, 50:90]).save(tmp_path / "template.png")
    out, picture = tmp_path / "hits.json", tmp_path / "hits.png"

    code, said, _ = command(
        "find",
        tmp_path / "template.png",
        tmp_path / "scene.png",
        "--out",
        out,
        "--picture",
        picture,
    )

    (hit,) = json.loads(out.read_text())
    assert code == 0
    assert said.splitlines()[-1].startswith("1 detection in")
    assert (hit["x"], hit["y"]) == pytest.approx((69.5, 45.5), abs=0.1)
    assert hit["score"] == pytest.approx(1, abs=1e-3)
    assert picture.exists()


# NCC-20
@pytest.mark.parametrize("ending", ["csv", "json", "npz"])
def test_find_says_0_detections_for_an_absent_template(command, tmp_path, texture, ending):
    PilImage.fromarray(texture(120, 160)).save(tmp_path / "scene.png")
    PilImage.fromarray(texture(32, 40, seed=9)).save(tmp_path / "template.png")
    out, picture = tmp_path / f"hits.{ending}", tmp_path / "hits.png"

    code, said, _ = command(
        "find",
        tmp_path / "template.png",
        tmp_path / "scene.png",
        "--threshold",
        "0.9",
        "--out",
        out,
        "--picture",
        picture,
    )

    assert code == 0
    assert "0 detections in" in said
    assert out.exists()
    assert picture.exists()


def test_compare_prints_a_row_a_method_and_draws_each(command, pair, tmp_path):
    np.savetxt(tmp_path / "H.txt", SHIFT)
    out = tmp_path / "compared"

    code, said, _ = command(
        "compare", *pair, "--methods", "ncc", "--truth", tmp_path / "H.txt", "--out", out
    )

    assert code == 0
    assert "% within 1/3/5 px" in said
    assert "corner error px" in said
    assert "ncc + grow" in said
    assert str(out / "matches.npz") in said
    assert len(list(out.glob("*.png"))) == 1


# IMG-03
def test_evaluate_goes_on_after_damaged_pairs_and_ends_with_1(command, pair, tmp_path):
    folder = Path(pair[0]).parent
    damaged = folder / "damaged.jpg"
    with PilImage.open(pair[0]) as opened:
        opened.save(damaged)
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size * 6 // 10])
    entries = [
        {
            "id": name,
            "dataset": "made",
            "type": "homography",
            "image0": first,
            "image1": Path(pair[1]).name,
            "size0": [160, 120],
            "size1": [160, 120],
            "H_0to1": SHIFT.tolist(),
        }
        for name, first in (("good", Path(pair[0]).name), ("bad", damaged.name))
    ]
    manifest = folder / "pairs.json"
    manifest.write_text(json.dumps(entries))

    code, said, err = command(
        "evaluate", manifest, "--methods", "ncc", "--refine", "both", "--out", tmp_path / "out"
    )

    assert code == 1
    assert "ncc + refine" in said
    assert "ncc + grow" in said
    assert "2 pairs, 1 methods, 3 failed" in said
    assert err.count("damaged.jpg") == 3
    assert (tmp_path / "out" / "table.md").exists()


def test_methods_are_listed_with_what_they_are(command):
    code, out, _ = command("methods")

    assert code == 0
    lines = out.splitlines()
    assert {"loftr", "ncc", "superglue"} <= {line.split()[0] for line in lines}
    assert all(len(line.split()) > 3 for line in lines)


# PKG-01
def test_doctor_names_versions_and_opencv(command, monkeypatch):
    code, out, _ = command("doctor")

    assert code == ("0 problems" not in out)
    for subject in ("python", "numpy", "torch", "OpenCV", "devices", "weights xfeat"):
        assert f"\n{subject}" in f"\n{out}"


@pytest.mark.parametrize(
    ("installed", "found", "problem"),
    [
        ([], "not installed", False),
        (["opencv-python"], "opencv-python 4.9; cv2", False),
        (["opencv-python", "opencv-python-headless"], "uninstall all, then install one", True),
    ],
)
def test_doctor_tells_opencv_variants_that_clash(monkeypatch, installed, found, problem):
    class Cv2:
        __version__ = "4.9"

    def import_module(name):
        if not installed:
            raise ImportError(name)
        return Cv2

    monkeypatch.setattr(doctor, "_version", lambda name: "4.9" if name in installed else None)
    monkeypatch.setattr(doctor.importlib, "import_module", import_module)

    finding = doctor._opencv()

    assert found in finding.found
    assert finding.problem == problem


def test_selftest_passes_for_a_method_that_works(command):
    code, out, _ = command("selftest", "--methods", "ncc")

    assert code == 0
    assert "ncc" in out
    assert "passed" in out


# ATT-10
@pytest.mark.parametrize(
    ("shift", "count", "passed"), [(0, 40, True), (9, 40, False), (0, 3, False)]
)
def test_selftest_fails_for_few_or_misplaced_matches(texture, shift, count, passed):
    points = np.random.default_rng(0).uniform(0, 60, (count, 2))

    class Shifted:
        def describe(self, images, masks=None):
            return images

        def match(self, pairs):
            return [Matches(points, points + shift, np.ones(count))]

    assert doctor.self_test(Shifted(), texture(64, 64)).passed is passed


# PKG-05
def test_licences_are_told_of_every_part_for_programs_too(command):
    code, out, _ = command("licences", "--json")

    told = {part["part"]: part for part in json.loads(out)}
    assert code == 0
    assert told["tiepoint"]["licence"] == "Apache-2.0"
    assert told["superglue-outdoor"]["restricted"]
    assert not any(part["restricted"] for part in told.values() if part["present"])
    assert all(part["licence"] and part["terms"] for part in told.values())
    assert "never fetched without your consent" in command("licences")[1]


def test_licences_of_dependencies_are_read_from_what_they_declare():
    found = {licence.part: licence for licence in licences._dependencies()}

    for name in extras.EXTRA_OF:
        assert found.get(name) is None or found[name].licence != ""


def test_models_are_listed_and_checked(command):
    code, listed, _ = command("models", "list")
    checked_code, checked, _ = command("models", "check")

    assert code == checked_code == 0
    for name in ("xfeat", "lighterglue"):
        assert any(line.startswith(name) and "shipped" in line for line in listed.splitlines())
        assert any(line.startswith(name) and "shipped" in line for line in checked.splitlines())


def test_restricted_models_are_not_fetched_without_consent(command):
    code, _, err = command("models", "fetch", "superglue-outdoor")

    assert code == 1
    assert "--accept-licence magicleap-noncommercial" in err


def test_the_truth_of_a_pair_is_read_from_a_matrix_or_a_manifest(tmp_path):
    np.savetxt(tmp_path / "H.txt", SHIFT)
    np.save(tmp_path / "H.npy", SHIFT)
    first = next(pair for pair in datasets.sample_pairs() if isinstance(pair.truth, Homography))
    manifest = first.image0.parents[1] / "pairs.json"

    for name in ("H.txt", "H.npy"):
        truth = read_truth(tmp_path / name, "a.png", "b.png")
        np.testing.assert_allclose(truth.pixels1_from_pixels0, SHIFT)
    known = read_truth(manifest, first.image0, first.image1)

    np.testing.assert_array_equal(known.pixels1_from_pixels0, first.truth.pixels1_from_pixels0)
    with pytest.raises(ValueError, match="has no truth of .* in this order"):
        read_truth(manifest, first.image1, first.image0)
    np.savetxt(tmp_path / "K.txt", np.eye(2))
    with pytest.raises(ValueError, match=r"must have \(3, 3\) finite numbers, not \(2, 2\)"):
        read_truth(tmp_path / "K.txt", "a.png", "b.png")
    (tmp_path / "bad.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="bad.npy is no array"):
        read_truth(tmp_path / "bad.npy", "a.png", "b.png")


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("False", False), ("false", False), ("3", 3), ("aliked", "aliked")],
)
def test_values_of_options_are_read_as_written(text, value) -> None:
    assert method_from(f"loftr:turns={text}") == ("loftr", {"turns": value})
