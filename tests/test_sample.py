"""The sample pairs: complete, licensed, and true."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from matcher import assets, datasets
from matcher.types import Homography, TwoView, Unrelated

PAIRS = datasets.sample_pairs()
FOLDER = assets.folder("data")


@pytest.fixture(scope="module")
def checks():
    """The verification script, as a module."""
    pytest.importorskip("cv2")
    path = Path(__file__).parent.parent / "scripts" / "verify_sample.py"
    spec = importlib.util.spec_from_file_location("verify_sample", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["verify_sample"] = module
    spec.loader.exec_module(module)
    return module


def test_the_pairs_cover_what_is_hard() -> None:
    names = {pair.name for pair in PAIRS}

    assert names >= {"light", "scale", "rotation", "viewpoint", "repetition", "sand", "unrelated"}
    assert sum(isinstance(pair.truth, TwoView) for pair in PAIRS) >= 5
    assert sum(isinstance(pair.truth, Homography) for pair in PAIRS) >= 6
    assert sum(isinstance(pair.truth, Unrelated) for pair in PAIRS) == 1


def test_they_are_small() -> None:
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())

    assert size < 5_000_000


def test_every_image_has_a_source_and_a_licence() -> None:
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("| ")]

    for path in (FOLDER / "photos").iterdir():
        assert any(path.name in row and ("CC-BY" in row or "CC0" in row) for row in rows), path
    for path in (FOLDER / "images").iterdir():
        assert any(row.startswith(f"| {path.stem.split('_')[0]} |") for row in rows), path
    assert "matcher/datasets.py" in readme.splitlines()[0]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_truth_agrees_with_evidence_that_it_was_not_made_from(checks, pair) -> None:
    finding = checks.verify(pair)

    assert finding.good, finding.figures


def test_a_wrong_truth_is_found_out(checks) -> None:
    pairs = {pair.name: pair for pair in PAIRS}
    images = [
        checks.read_grey(path) for path in (pairs["viewpoint"].image0, pairs["viewpoint"].image1)
    ]
    homography = pairs["viewpoint"].truth.pixels1_from_pixels0.copy()
    homography[0, 2] += 1  # one pixel aside
    matches = checks.sift_matches(*images)

    finding = checks.verify_map("moved", tuple(images), matches, Homography(homography))

    assert not finding.good
