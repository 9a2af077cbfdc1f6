"""Run methods on the pairs of a benchmark and keep what came of each, whatever came of it.

    methods = {"sift": matcher.methods.build("sift"), "mine": my_function}
    evaluation = evaluate(methods, datasets.sample_pairs(), Settings(refine="both"), out="results")

A method has `describe` and `match`, or is a function of two images that returns `Matches` or
(points0, points1). Each method describes each image once; a pair that fails is recorded with its
reason and counts as the worst result; an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from matcher import datasets, storage
from matcher.datasets import Fingerprint
from matcher.evaluation.environment import Environment
from matcher.evaluation.identity import identity
from matcher.evaluation.records import Record, RecordFile, finite
from matcher.evaluation.session import Method, Session
from matcher.evaluation.settings import FOUND, Settings
from matcher.matching import Refined
from matcher.reading import read_json, refusing
from matcher.types import DenseMap, Pair, TwoViewDepth

Progress: TypeAlias = Callable[[int, int, Record], None]  # done, of how many, the latest


@dataclass(frozen=True)
class Evaluation:
    """Everything that an evaluation found, and what it rests on.

    Attributes:
        settings: The rules.
        environment: Versions, code and machine.
        data: What the pairs were.
        methods: What each label stood for: class, options, weights.
        records: One a row and pair, by method and then in the order of the pairs.
        protocol: What the rules are called, with their version and source; empty for one's own.
    """

    settings: Settings
    environment: Environment
    data: Fingerprint
    methods: Mapping[str, str]
    records: tuple[Record, ...]
    protocol: str = ""


def evaluate(
    methods: Mapping[str, Method],
    pairs: Sequence[Pair],
    settings: Settings = Settings(),  # noqa: B008  frozen
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
    protocol: str = "",
) -> Evaluation:
    """Run every method on every pair.

    Args:
        methods: By the label of their rows. With refinement on they are given as found: made by
            `matcher.methods.build` or by `matcher.create(..., refine=False)`.
        pairs: From `matcher.datasets`, with unique names.
        settings: The rules.
        out: Folder for `records.jsonl`, written as results come, and `run.json`. Results that it
            holds already for the same method, files, settings and code are not computed again.
        progress: Called after each record.
        protocol: What the rules are called; it goes into the report.

    Raises:
        ValueError: No methods or pairs, a name twice, a method that would be refined twice, or a
            truth that the settings cannot measure.
    """
    _check(methods, pairs, settings)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    file = RecordFile(None if folder is None else folder / "records.jsonl")
    environment = Environment.here()
    names = {label: identity(method) for label, method in methods.items()}
    hashes = {pair.name: datasets.pair_key(pair) for pair in pairs}
    rules = f"{settings} {environment.code}"
    keys: list[str] = []
    for label, method in methods.items():
        session = Session(method, settings)
        for pair in pairs:
            wanted = {
                row: _hash(row, names[label], hashes[pair.name], rules)
                for row in (label + stage for stage in settings.stages)
            }
            keys += wanted.values()
            if not all(file.done(key) for key in wanted.values()):
                for record in session.run(pair, wanted):
                    file.add(record)
            if progress is not None:
                total = len(methods) * len(pairs) * len(wanted)
                progress(len(keys), total, file.records[keys[-1]])
    records = tuple(file.records[key] for key in keys)
    data = datasets.fingerprint(pairs)
    evaluation = Evaluation(settings, environment, data, names, records, protocol)
    if folder is not None:
        storage.write(folder / "run.json", _header(evaluation).encode())
    return evaluation


def read_evaluation(folder: str | Path) -> Evaluation:
    """Read what `evaluate` left in a folder.

    Raises:
        FileNotFoundError: No evaluation ended there.
        ValueError: Records that `run.json` lists are missing.
    """
    folder = Path(folder)
    records = RecordFile(folder / "records.jsonl").records
    header = read_json(folder / "run.json")
    with refusing(folder / "run.json", "header of an evaluation"):
        found = Evaluation(
            Settings.of(header["settings"]),
            Environment(**header["environment"]),
            Fingerprint(**{k: _tuples(v) for k, v in header["data"].items()}),
            {str(label): str(identity) for label, identity in header["methods"].items()},
            tuple(records[key] for key in header["records"] if key in records),
            str(header["protocol"]),
        )
    if missing := len(header["records"]) - len(found.records):
        raise ValueError(f"{folder / 'records.jsonl'} lacks {missing} records of run.json")
    return found


def _check(methods: Mapping[str, Method], pairs: Sequence[Pair], settings: Settings) -> None:
    if not methods:
        raise ValueError("no methods to evaluate")
    if not pairs:
        raise ValueError("no pairs to evaluate on")
    names = [pair.name for pair in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"pair names must be unique: {', '.join(twice)}")
    refined = [label for label, method in methods.items() if isinstance(method, Refined)]
    if refined and settings.stages != (FOUND,):
        raise ValueError(f"{', '.join(refined)} would be refined twice: create with refine=False")
    if settings.measure == "resized":
        dense = [p.name for p in pairs if isinstance(p.truth, (DenseMap, TwoViewDepth))]
        if dense:
            raise ValueError(f"dense truth is measured in original pixels only: {dense[0]}")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def _header(evaluation: Evaluation) -> str:
    """Write everything but the records, and their keys in their order."""
    values = {
        "protocol": evaluation.protocol,
        "settings": finite(asdict(evaluation.settings)),
        "environment": asdict(evaluation.environment),
        "data": asdict(evaluation.data),
        "methods": dict(evaluation.methods),
        "records": [record.key for record in evaluation.records],
    }
    return json.dumps(values, indent=1, allow_nan=False) + "\n"


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
