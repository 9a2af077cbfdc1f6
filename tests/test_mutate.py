"""The mutation check: which changes it makes, and that a change leaves the module as it was."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def mutate():
    path = Path(__file__).parents[1] / "scripts" / "mutate.py"
    spec = importlib.util.spec_from_file_location("mutate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a < b <= c", {"a <= b <= c", "a < b < c"}),
        ("a + b", {"a - b"}),
        ("a and b", {"a or b"}),
        ("a &= b", {"a |= b"}),
        ("not a", {"not not a"}),
        ("-a", {"--a"}),
        ("a = 0.5", {"a = 1.5"}),
        ("a = True", {"a = False"}),
        ("def f(a: int | None) -> int | None:\n    return a", {"return None"}),
        ("a = 'text'", set()),
        ("a @ b", set()),
    ],
)
def test_each_change_is_made_once_and_undone(mutate, source, changed) -> None:
    tree = ast.parse(source)

    made = {mutant.source(tree).splitlines()[-1].strip() for mutant in mutate.mutants(tree)}

    assert made == changed
    assert ast.unparse(tree) == source


def test_every_module_it_knows_has_its_tests(mutate) -> None:
    for module, tests in mutate.TESTS.items():
        assert (mutate.ROOT / module).is_file()
        assert all((mutate.ROOT / each).is_file() for each in tests.split())
