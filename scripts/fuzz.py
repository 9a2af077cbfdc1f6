"""Feed every reader with damaged files, and tell what it does with them.

    python scripts/fuzz.py --executions 2000 --seed 0

Each execution changes a whole file a little, at random but repeatably, and reads it. A reader may
return or raise ValueError or OSError; anything else is a defect, as is a second of work or half a
gigabyte of memory.
"""

from __future__ import annotations

import argparse
import io
import logging
import random
import resource
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fuzz_readers import Reader, readers

SLOW = 1.0  # seconds
LARGE = 512.0  # MiB
TOKENS = (b"0", b"-1", b"nan", b"1e999", b"[", b"{", b'"', b"\0", b"../", b"9" * 400, b"\xff\xfe")
WORDS = (b"\xff" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0" * 4, b"\x80\0\0\0")


@dataclass
class Result:
    """What a reader did with damaged files: how many it read, refused, and got wrong."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    defects: dict[str, bytes] = field(default_factory=dict)
    peak_mib: float = 0.0


def damage(data: bytes, chance: random.Random) -> bytes:
    """Change a file; archives half the time inside, with checksums that are right again."""
    if data.startswith(b"PK") and chance.random() < 0.5:
        with suppress(Exception):  # an archive that is damaged already
            return _damage_inside(data, chance)
    return _damage_bytes(data, chance)


def _damage_inside(data: bytes, chance: random.Random) -> bytes:
    """Change one member of an archive and pack all again."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
        chosen = chance.choice(old.namelist() or [""])
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, _damage_bytes(content, chance) if name == chosen else content)
    return packed.getvalue()


def _damage_bytes(data: bytes, chance: random.Random) -> bytes:
    """Change bytes in one to four places: flipped, overwritten, cut out, repeated, cut off."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(changed) + 1)
        if chance.random() < 0.5:  # heads of files say what the rest means
            start = min(start, chance.randrange(64))
        stop = min(len(changed), start + chance.randint(1, 16))
        kind = chance.randrange(6)
        if kind == 0 and start < len(changed):
            changed[start] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[start : start + 4] = chance.choice(WORDS)
        elif kind == 2:
            changed[start:start] = chance.choice(TOKENS)
        elif kind == 3:
            del changed[start:stop]
        elif kind == 4:
            changed[start:start] = changed[start:stop] * chance.randint(1, 40)
        else:
            del changed[max(start, 1) :]
    return bytes(changed)


def fuzz(reader: Reader, executions: int, seed: int, folder: Path) -> Result:
    """Let one reader read that many damaged files."""
    chance = random.Random(f"{reader.name} {seed}")
    result = Result()
    before = _peak_mib()
    for _ in range(executions):
        ending, data = chance.choice(reader.seeds)
        path = folder / f"damaged{ending}"
        path.write_bytes(damage(data, chance))
        outcome = attempt(reader, path, SLOW)
        result.executions += 1
        result.outcomes[outcome] += 1
        if outcome not in ("read", "refused"):
            result.defects.setdefault(outcome, path.read_bytes())
    result.peak_mib = _peak_mib() - before
    if result.peak_mib > LARGE:
        result.defects.setdefault(f"more than {LARGE:g} MiB", b"")
    return result


def attempt(reader: Reader, path: Path, most: float) -> str:
    """Let a reader read one file: "read", "refused", or what is wrong with it.

    Args:
        reader: The reader.
        path: The file.
        most: Seconds of work that it may take.
    """
    answer, start = "read", time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except (ValueError, OSError):
        answer = "refused"
    except Exception as error:  # what the fuzzer looks for
        return f"{type(error).__name__}: {error}"[:100]
    return answer if time.process_time() - start <= most else f"more than {most:g} s"


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Fuzz the chosen readers and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--executions", type=int, default=500, help="Of each reader.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Part of the names of the readers.")
    parser.add_argument("--keep", type=Path, help="Folder for the files that showed a defect.")
    options = parser.parse_args()
    logging.disable()  # of what is damaged, the readers that go on without it write a line
    print(f"{'reader':30} {'executions':>10} {'read':>6} {'refused':>8} {'defects':>8} {'MiB':>6}")
    with tempfile.TemporaryDirectory() as scratch:
        for reader in readers(Path(scratch)):
            if options.only not in reader.name:
                continue
            result = fuzz(reader, options.executions, options.seed, Path(scratch))
            read, refused = result.outcomes["read"], result.outcomes["refused"]
            print(
                f"{reader.name:30} {result.executions:10} {read:6} {refused:8} "
                f"{len(result.defects):8} {result.peak_mib:6.0f}",
                flush=True,
            )
            for number, (defect, data) in enumerate(result.defects.items()):
                print(f"    {defect}")
                if options.keep:
                    options.keep.mkdir(parents=True, exist_ok=True)
                    (options.keep / f"{reader.name} {number}").write_bytes(data)


if __name__ == "__main__":
    main()
