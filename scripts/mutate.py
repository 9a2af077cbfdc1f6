"""Change modules in small wrong ways, one at a time, and tell which changes their tests miss.

    python scripts/mutate.py --mutants 20 --seed 0
    python scripts/mutate.py matcher/nn/assignment.py

A change is a comparison, an operator, a sign or negation, a number, a truth value or a returned
value. Each is made in a copy of the repository, where the module's own test files then run (in a
fork of this process, which Windows has not): a mutant that fails them, or that hangs them, is killed.
Survivors are either equivalent to the original, or a promise without a test.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "matcher/nn/assignment.py": "tests/test_assignment.py",
    "matcher/nn/sinkhorn.py": "tests/test_assignment.py",
    "matcher/nn/streaming.py": "tests/test_streaming.py",
    "matcher/geometry/two_view.py": "tests/test_geometry.py",
    "matcher/geometry/cameras.py": "tests/test_geometry.py",
    "matcher/geometry/verification.py": "tests/test_verification.py",
    "matcher/evaluation/metrics.py": "tests/test_metrics.py tests/test_searching.py",
    "matcher/correlation/scene.py": "tests/test_correlation.py",
    "matcher/correlation/sums.py": "tests/test_correlation.py",
    "matcher/correlation/precision.py": "tests/test_correlation.py",
    "matcher/templates/survey.py": "tests/test_templates.py",
    "matcher/templates/settling.py": "tests/test_templates.py",
    "matcher/templates/detail.py": "tests/test_templates.py",
    "matcher/templates/finder.py": "tests/test_templates.py",
}
WARM = "torch", "scipy.spatial", "scipy.stats", "cv2", "kornia"  # imported once for all
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One change: a field of a node takes another value.

    Attributes:
        node: What is changed, in the module's tree.
        field: Of the node.
        value: What the field becomes.
    """

    node: ast.expr | ast.stmt
    field: str
    value: object

    def source(self, whole: ast.AST) -> str:
        """Write some code round the node as it reads with the change; the tree stays as it was."""
        before = getattr(self.node, self.field)
        setattr(self.node, self.field, self.value)
        try:
            return ast.unparse(ast.fix_missing_locations(whole))
        finally:
            setattr(self.node, self.field, before)

    def __str__(self) -> str:
        line = f"line {self.node.lineno}: {ast.unparse(self.node)}"
        return f"{line}  ->  {self.source(self.node)}"


def mutants(tree: ast.AST) -> Iterator[Mutant]:
    """List every change of a tree that the module's docstring names, annotations left alone."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from mutants(child)
    if isinstance(tree, (ast.expr, ast.stmt)):
        yield from _changes(tree)


def _changes(node: ast.expr | ast.stmt) -> Iterator[Mutant]:
    """List the changes of one node itself."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield Mutant(node, "ops", [*ops[:place], SWAPS[type(op)](), *ops[place + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            yield Mutant(node, "op", SWAPS[type(op)]())
        case ast.UnaryOp(op=op, operand=operand):
            yield Mutant(node, "operand", ast.UnaryOp(op, operand))
        case ast.Constant(value=bool(value)):
            yield Mutant(node, "value", not value)
        case ast.Constant(value=int(value) | float(value)):
            yield Mutant(node, "value", value + 1)
        case ast.Return(value=ast.expr()):
            yield Mutant(node, "value", ast.Constant(None))


class Copy:
    """A copy of the package and its tests, the large files linked, in which modules are changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skipped = shutil.ignore_patterns("__pycache__")
        for name in ("matcher", "tests"):
            shutil.copytree(ROOT / name, folder / name, ignore=skipped)
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)

    def passes(self, module: str, source: str, limit: float | None = None) -> bool:
        """Run the module's test file with another text of the module, at most so many seconds."""
        path = self.folder / module
        original = path.read_text("utf-8")
        path.write_text(source, "utf-8")
        child = get_context("fork").Process(target=_run_tests, args=(self.folder, TESTS[module]))
        try:
            child.start()
            child.join(limit)
            child.kill()  # one that hangs
            child.join()
        finally:
            path.write_text(original, "utf-8")
        return child.exitcode == 0


def _run_tests(folder: Path, tests: str) -> None:
    """Run one test file on the modules of a folder, silently; exit as pytest does."""
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)  # for what the tests start
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        code = pytest.main(["-x", "-p", "no:cacheprovider", *tests.split()])
    os._exit(code)


def check(copy: Copy, module: str, most: int, seed: int) -> tuple[int, int, int]:
    """Try mutants of one module and print the survivors, by line.

    Returns:
        How many changes there are, how many were tried, and how many survived.

    Raises:
        SystemExit: The tests fail without any change.
    """
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    possible = list(mutants(tree))
    tried = random.Random(f"{module} {seed}").sample(possible, min(most, len(possible)))
    start = time.monotonic()
    if not copy.passes(module, ast.unparse(tree)):
        raise SystemExit(f"{TESTS[module]} fails as it is")
    limit = 10 + 3 * (time.monotonic() - start)
    survivors = 0
    for mutant in sorted(tried, key=lambda each: each.node.lineno):
        if copy.passes(module, mutant.source(tree), limit):
            survivors += 1
            print(f"survived: {module} {mutant}", flush=True)
    return len(possible), len(tried), survivors


def main() -> None:
    """Try mutants of the modules and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("modules", nargs="*", choices=[[], *TESTS], help="default: all")
    parser.add_argument("--mutants", type=int, default=20, help="of each module")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    arguments = parser.parse_args()
    for name in WARM:
        import_module(name)
    print("| module | changes | made | killed | survived | s |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        for module in arguments.modules or TESTS:
            start = time.monotonic()
            total, made, left = check(copy, module, arguments.mutants, arguments.seed)
            counts = f"{total} | {made} | {made - left} | {left}"
            print(f"| {module} | {counts} | {time.monotonic() - start:.0f} |", flush=True)


if __name__ == "__main__":
    main()
