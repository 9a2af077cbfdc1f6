"""What the documents show runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import matcher
from matcher import cli, methods

ROOT = Path(matcher.__file__).parents[1]
README = ROOT / "README.md"

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


def test_links_of_the_documents_lead_somewhere():
    for document in (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text("utf-8")):
            assert (ROOT / target).exists(), f"{document.name}: {target}"
