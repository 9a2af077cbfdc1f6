"""Feed the readers of scripts/fuzz.py with files that atheris makes, guided by the branches they reach.

    python scripts/fuzz_guided.py --minutes 5

`pip install atheris` brings it, for Linux. One reader after the other has a process of its own and an
equal share of the time. It begins with whole files, keeps whatever reaches a new branch of this
package or of the parsers that it calls, and damages that further. What counts as a defect is what
scripts/fuzz.py says; one is printed once, and its file kept.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import atheris

PARSERS = ("matcher", "PIL", "tomllib", "json", "zipfile", "pickle", "h5py", "starlette")
LARGEST = 8192  # bytes of a file


def load_fuzzer() -> ModuleType:
    """Import scripts/fuzz.py and what it reads with, so that their branches are seen."""
    sys.path.insert(0, str(Path(__file__).parent))
    with atheris.instrument_imports(include=list(PARSERS)):
        import fuzz  # noqa: PLC0415  here, and no earlier
    return fuzz


class Target:
    """One reader, as libFuzzer calls it: the first byte of its input chooses the file's ending."""

    def __init__(self, fuzzer: ModuleType, reader: Any, scratch: Path, keep: Path) -> None:
        self.fuzzer, self.reader, self.scratch, self.keep = fuzzer, reader, scratch, keep
        self.endings = sorted({ending for ending, _ in reader.seeds})
        self.defects: set[str] = set()

    def corpus(self) -> Path:
        """Write the reader's whole files, as inputs."""
        folder = self.scratch / "corpus"
        folder.mkdir()
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
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{self.reader.name} {len(self.defects)}{path.suffix}").write_bytes(
                data[1:]
            )
            print(f"defect: {outcome}", file=sys.stderr, flush=True)


def watch(name: str, seconds: int, keep: Path) -> None:
    """Fuzz one reader in this process, which ends with it."""
    logging.disable()
    fuzzer = load_fuzzer()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        reader = next(each for each in fuzzer.readers(scratch) if each.name == name)
        target = Target(fuzzer, reader, scratch, keep)
        options = [f"-max_total_time={seconds}", "-print_final_stats=1", f"-max_len={LARGEST}"]
        options += ["-timeout=20", "-rss_limit_mb=3072", f"-artifact_prefix={keep}/"]
        arguments = [sys.argv[0], *options, str(target.corpus())]
        atheris.Setup(arguments, target, custom_mutator=target.mutate)
        atheris.Fuzz()


def row(name: str, seconds: int, keep: Path) -> tuple[str, list[str]]:
    """Let another process fuzz a reader; give the row of the table, and the defects."""
    command = [sys.executable, __file__, "--reader", name, "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--keep", str(keep)], capture_output=True, text=True, errors="replace",
        check=False,
    )  # fmt: skip
    said = done.stderr
    executions = re.findall(r"number_of_executed_units:\s+(\d+)", said)
    branches = re.findall(r"cov: (\d+)", said)
    memory = re.findall(r"peak_rss_mb:\s+(\d+)", said)
    defects = re.findall(r"^defect: (.*)$", said, re.MULTILINE)
    if done.returncode:
        defects.append(f"ended with {done.returncode}: {said[-300:]}")
    values = [each[-1] if each else "-" for each in (executions, branches, memory)]
    return f"| {name} | {' | '.join(values)} | {len(defects)} |", defects


def main() -> None:
    """Fuzz the chosen readers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="for all readers together")
    parser.add_argument("--only", default="", help="part of the names of the readers")
    parser.add_argument("--keep", type=Path, default=Path("runs/fuzz"), help="for the files")
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.reader:
        watch(options.reader, options.seconds, options.keep)
        return
    sys.path.insert(0, str(Path(__file__).parent))
    from fuzz_readers import readers  # noqa: PLC0415  as above

    options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        names = [each.name for each in readers(Path(folder)) if options.only in each.name]
    seconds = max(1, round(60 * options.minutes / len(names)))
    print(f"{seconds} s a reader\n| reader | executions | branches | peak MiB | defects |")
    print("|---|---|---|---|---|")
    for name in names:
        line, defects = row(name, seconds, options.keep)
        print("\n".join([line, *(f"    {defect}" for defect in defects)]), flush=True)


if __name__ == "__main__":
    main()
