"""The bill of materials names what is installed and what ships, with checksums that are right."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json

import pytest

import matcher
from matcher import assets, cli, licences, sbom


@pytest.fixture(scope="module")
def bill():
    return sbom.make_sbom()


@pytest.fixture
def installed():
    try:
        importlib.metadata.version("tiepoint")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("tiepoint is not installed")


def test_every_distribution_is_named_with_its_version_and_licence(bill, installed):
    libraries = {each["name"]: each for each in bill["components"] if each["type"] == "library"}

    assert {"numpy", "torch", "pillow", "safetensors", "markdown-it-py"} <= libraries.keys()
    for name, each in libraries.items():
        assert each["version"] == importlib.metadata.version(name)
        assert each["purl"].startswith(f"pkg:pypi/{name}@")
        assert "+" not in each["purl"]
        assert each["licenses"]


def test_tools_of_developers_and_other_packages_extras_are_left_out(installed):
    found = licences.dependencies()

    assert not {"mypy", "pytest", "ruff"} & found.keys()
    for _, needs in found.values():
        assert set(needs) <= found.keys()


def test_weights_have_the_checksums_of_their_files(bill):
    models = {each["name"]: each for each in bill["components"] if each["type"] != "library"}

    paths = list(assets.folder("models").glob("*/*.safetensors"))
    assert models.keys() == {path.parent.name for path in paths}
    for path in paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert models[path.parent.name]["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_the_form_is_that_of_cyclonedx(bill):
    references = [each["bom-ref"] for each in bill["components"]]

    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    assert bill["metadata"]["component"]["version"] == matcher.__version__
    assert len(set(references)) == len(references)
    known = {*references, "tiepoint"}
    for each in bill["dependencies"]:
        assert {each["ref"], *each["dependsOn"]} <= known
    for each in bill["components"]:
        for licence in each["licenses"]:
            assert set(licence) in ({"expression"}, {"license"})


def test_the_command_writes_the_same_file_each_time(tmp_path, capsys):
    for name in ("a.json", "b.json"):
        assert cli.run(["licences", "--sbom", str(tmp_path / name)]) == 0

    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert json.loads((tmp_path / "a.json").read_text())["components"]
    assert "components; wrote" in capsys.readouterr().out


def test_a_checkout_that_is_not_installed_has_no_dependencies(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)

    assert licences.dependencies() == {}
