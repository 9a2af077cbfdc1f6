"""Run the tests and tell by component which lines of the package they reach, and which they do not.

    python scripts/cover.py                 # all tests; `pip install pytest-cov` first
    python scripts/cover.py --read runs/coverage.json --missed matcher/sfm
    python scripts/cover.py --into CONTRIBUTING.md

Lines that run in processes of their own count too. What needs hardware that is not there, a package
that is not installed or fetched weights is not reached: `--missed` prints those lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- coverage: written by `python scripts/cover.py --into CONTRIBUTING.md` -->"
END = "<!-- end of the coverage -->"
CONFIG = "[run]\nsource = matcher\nparallel = true\nconcurrency = multiprocessing,thread\n"


def measure(report: Path, options: list[str]) -> None:
    """Run pytest under coverage, a process a core unless the options say otherwise.

    Args:
        report: JSON file to write.
        options: For pytest.
    """
    report.parent.mkdir(parents=True, exist_ok=True)
    config = report.with_suffix(".ini")
    config.write_text(f"{CONFIG}data_file = {report.with_suffix('.data')}\npatch = subprocess\n")
    command = [sys.executable, "-m", "pytest", "--cov=matcher", f"--cov-config={config}"]
    command += [f"--cov-report=json:{report}", *(options or ["--numprocesses", "auto"])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # the processes share the cores
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code:
        print(f"the tests ended with {code}")


def component(path: str) -> str:
    """Name the part of the package that a module belongs to."""
    parts = Path(path).parts
    return f"{parts[1]}/" if len(parts) > 2 else "modules of their own"


def table(files: dict[str, Any]) -> Iterator[str]:
    """Write a row a component, and one for all."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path, found in files.items():
        for name in (component(path), "all"):
            kept = (1, found["summary"]["num_statements"], found["summary"]["missing_lines"])
            sums[name] = [total + more for total, more in zip(sums[name], kept, strict=True)]
    yield "| component | modules | statements | not reached | reached |\n|---|---|---|---|---|"
    for name, (modules, statements, missing) in sorted(sums.items(), key=lambda row: row[1][1]):
        share = 100 * (1 - missing / max(1, statements))
        yield f"| {name} | {modules} | {statements} | {missing} | {share:.1f} % |"


def missed(files: dict[str, Any], under: str) -> Iterator[str]:
    """Write the lines under a path that no test reaches, with their text."""
    for path, found in sorted(files.items()):
        if path.startswith(under) and found["missing_lines"]:
            text = (ROOT / path).read_text("utf-8").splitlines()
            yield path
            yield from (f"  {line:4} {text[line - 1].strip()}" for line in found["missing_lines"])


def write_into(document: Path, files: dict[str, Any]) -> None:
    """Replace the table between the markers of a document."""
    before, begin, rest = document.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{document} must have the lines {BEGIN} and {END}")
    rows = "\n".join(table(files))
    document.write_text(f"{before}{begin}\n\n{rows}\n\n{end}{after}", "utf-8")


def main() -> None:
    """Run or read, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], epilog="What follows -- goes to pytest."
    )
    parser.add_argument("--read", type=Path, help="the JSON file of an earlier run")
    parser.add_argument("--missed", help="print the lines not reached under this path")
    parser.add_argument("--into", type=Path, help="a document whose table is written again")
    parser.add_argument("pytest", nargs="*", help="options for pytest, after --")
    options = parser.parse_args()
    report = options.read or ROOT / "runs" / "coverage.json"
    if options.read is None:
        measure(report, options.pytest)
    files = json.loads(report.read_text("utf-8"))["files"]
    print("\n".join(table(files) if options.missed is None else missed(files, options.missed)))
    if options.into:
        write_into(options.into, files)


if __name__ == "__main__":
    main()
