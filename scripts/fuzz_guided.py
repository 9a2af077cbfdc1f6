"""Feed the readers of scripts/fuzz.py with files that atheris makes, guided by the branches they reach.

    python scripts/fuzz_guided.py --minutes 5

`pip install atheris` brings it, for Linux. One reader after the other has a fork of this process and an
equal share of the time. It begins with whole files, keeps whatever reaches a new branch of this
package or of the parsers that it calls, and damages that further. What counts as a defect is what
scripts/fuzz.py says; one is printed once, and its file kept.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import random
import re
import sys
import tempfile
from contextlib import redirect_stderr
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import atheris

PARSERS = ("matcher", "PIL", "tomllib", "json", "zipfile", "pickle", "h5py", "starlette")
LARGEST = 8192  # bytes of a file


def load_fuzzer() -> ModuleType:
    """Import scripts/fuzz.py and what it reads with, so that their branches are seen."""
    sys.path.insert(0, str(Path(__file__).parent))
    names = redirect_stderr(io.StringIO())  # of all that is instrumented
    with names, atheris.instrument_imports(include=list(PARSERS)):
        import fuzz  # noqa: PLC0415  here, and no earlier
    return fuzz


class Target:
    """One reader, as libFuzzer calls it: the first byte of its input chooses the file's ending."""

    def __init__(self, fuzzer: ModuleType, reader: Any, scratch: Path, keep: Path) -> None:
        self.fuzzer, self.reader, self.scratch, self.keep = fuzzer, reader, scratch, keep
        self.endings = sorted({ending for ending, _ in reader.seeds})
        self.defects: set[str] = set()
        keep.mkdir(parents=True, exist_ok=True)

    def corpus(self) -> Path:
        """Write the reader's whole files, as inputs."""
        folder = Path(tempfile.mkdtemp(dir=self.scratch))
        for number, (ending, data) in enumerate(self.reader.seeds):
            (folder / str(number)).write_bytes(bytes([self.endings.index(ending)]) + data)
        return folder

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        """Change an input as libFuzzer does, or as scripts/fuzz.py does."""
        chance = random.Random(seed)
        if chance.random() < 0.5 or not data:
            changed: bytes = atheris.Mutate(data, most)
            return changed
        return (data[:1] + bytes(self.fuzzer.damage(data[1:], chance)))[:most]

    def __call__(self, data: bytes) -> None:
        """Read one input, and keep it if that shows a defect."""
        path = self.scratch / f"damaged{self.endings[data[0] % len(self.endings) if data else 0]}"
        path.write_bytes(data[1:])
        slow = 3 * self.fuzzer.SLOW  # it is watched, which costs time
        outcome = self.fuzzer.attempt(self.reader, path, slow)
        if outcome not in ("read", "refused", *self.defects):
            self.defects.add(outcome)
            (self.keep / f"{self.reader.name} {len(self.defects)}{path.suffix}").write_bytes(
                data[1:]
            )
            print(f"defect: {outcome}", file=sys.stderr, flush=True)


def watch(target: Target, seconds: int, said: Path) -> None:
    """Fuzz one reader in this process, which ends with it."""
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    logging.disable()
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", f"-max_len={LARGEST}"]
    options += ["-timeout=600", "-rss_limit_mb=3072", f"-artifact_prefix={target.keep}/"]
    arguments = [sys.argv[0], *options, str(target.corpus())]
    atheris.Setup(arguments, target, custom_mutator=target.mutate)
    atheris.Fuzz()


def row(target: Target, seconds: int) -> tuple[str, list[str]]:
    """Let a fork of this process fuzz a reader; give the row of the table, and the defects."""
    said = target.scratch / "said"
    child = get_context("fork").Process(target=watch, args=(target, seconds, said))
    child.start()
    child.join()
    text = said.read_text("utf-8", "replace")
    executions = re.findall(r"number_of_executed_units:\s+(\d+)", text)
    branches = re.findall(r"cov: (\d+)", text)
    memory = re.findall(r"peak_rss_mb:\s+(\d+)", text)
    defects = re.findall(r"^defect: (.*)$", text, re.MULTILINE)
    if child.exitcode:
        defects.append(f"ended with {child.exitcode}: {text[-300:]}")
    values = [each[-1] if each else "-" for each in (executions, branches, memory)]
    return f"| {target.reader.name} | {' | '.join(values)} | {len(defects)} |", defects


def main() -> None:
    """Fuzz the chosen readers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="for all readers together")
    parser.add_argument("--only", default="", help="part of the names of the readers")
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="for the files")
    options = parser.parse_args()
    fuzzer = load_fuzzer()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        chosen = [each for each in fuzzer.readers(scratch) if options.only in each.name]
        seconds = max(1, round(60 * options.minutes / len(chosen)))
        print(f"{seconds} s a reader\n| reader | executions | branches | peak MiB | defects |")
        print("|---|---|---|---|---|", flush=True)
        for reader in chosen:
            line, defects = row(Target(fuzzer, reader, scratch, options.keep), seconds)
            print("\n".join([line, *(f"    {defect}" for defect in defects)]), flush=True)


if __name__ == "__main__":
    main()
