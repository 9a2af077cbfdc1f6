"""What the documents show runs as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import matcher
from matcher import cli, methods

ROOT = Path(matcher.__file__).parents[1]
README = ROOT / "README.md"

DOCS = sorted(path for path in (ROOT / "docs").rglob("*.md"))
PAGES = pytest.mark.parametrize("page", DOCS, ids=lambda p: p.relative_to(ROOT / "docs").as_posix())

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the checkout")


def test_the_python_examples_of_the_readme_run_and_find_something(monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}

    for example in re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL):
        exec(compile(example, str(README), "exec"), names)

    assert len(names["matches"]) > 100
    assert len(names["hits"]) == 1
    assert names["refined"].refined.mean() > 0.8
    assert names["turned"].quarter_turns == 2
    assert len(names["copies"]) == 2


def test_the_commands_and_methods_of_the_readme_are_those_there_are(capsys):
    text = README.read_text("utf-8")
    cli.run([])
    shown = capsys.readouterr().out

    for name in set(re.findall(r"`matcher (\w+)", text)):
        assert f" {name} " in shown
    table = text.partition("## Methods")[2].partition("Weights that ship")[0]
    told = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`([\w-]+)`", row.split("|")[1:2][0] if "|" in row else "")
    }
    assert told == set(methods.names())


@PAGES
def test_the_python_examples_of_the_documentation_run(page, tmp_path, monkeypatch):
    examples = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    if any("matcher.sfm" in example for example in examples):
        pytest.importorskip("pycolmap")
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "images").mkdir()  # what the examples with a folder of images find there
    for side in (0, 1):
        name = f"park_{side}.jpg"
        (tmp_path / "images" / name).symlink_to(ROOT / "data" / "images" / name)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}

    for example in examples:
        exec(compile(example, str(page), "exec"), names)


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_commands_of_the_documents_have_the_options_they_show(page):
    text = page.read_text("utf-8")
    shown = re.findall(r"^\$ matcher (.*)$|`matcher ([a-z][^`]*)`", text, re.MULTILINE)
    command = typer.main.get_command(cli.app)

    for line in (first or second for first, second in shown):
        arguments = shlex.split(line, comments=True)
        chosen = command
        while arguments and arguments[0] in getattr(chosen, "commands", {}):
            chosen = chosen.commands[arguments.pop(0)]  # "sfm check" is a command of a command
        assert chosen is not command, f"no such command: matcher {line}"
        chosen = getattr(chosen, "commands", {}).get(
            "map", chosen
        )  # what "sfm IMAGES" is short for
        options = {name for each in chosen.params for name in (*each.opts, *each.secondary_opts)}
        used = {word.partition("=")[0] for word in arguments if word.startswith("-")}
        used = {word for word in used if not word.lstrip("-").isdigit()}
        assert used <= options | {"--help"}, f"matcher {line}: no {used - options}"


def test_the_documentation_builds_without_a_warning(tmp_path):
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", tmp_path]

    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stderr
    assert "Sinkhorn" in (tmp_path / "methods" / "superglue" / "index.html").read_text("utf-8")
    elsewhere = re.compile(r'(?:src|href)="https?://[^"]*\.(?:js|css)|fonts\.g')
    for page in tmp_path.rglob("*.html"):
        assert not elsewhere.search(page.read_text("utf-8")), f"{page} fetches from elsewhere"


def test_links_of_the_documents_lead_somewhere():
    for document in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (ROOT / target).exists(), f"{document.name}: {target}"


def test_the_scripts_that_the_documents_name_are_there():
    for document in (README, ROOT / "CONTRIBUTING.md", *DOCS):
        for name in re.findall(r"scripts/[\w/]+\.py", document.read_text("utf-8")):
            assert (ROOT / name).is_file(), f"{document.name}: {name}"

    listed = set(re.findall(r"`(\w+\.py)` \|", (ROOT / "docs/experiments.md").read_text("utf-8")))
    there = {path.name for path in (ROOT / "scripts" / "experiments").glob("*.py")}
    assert listed == there - {"scenes.py"}
