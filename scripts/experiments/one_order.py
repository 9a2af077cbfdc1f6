"""Tell how far a table moves that rests on one run of RANSAC.

    matcher evaluate superglue-sample --root FOLDER --refine off -m METHOD --out RUN
    python scripts/experiments/one_order.py RUN

The protocol fits every pair 20 times, each time with the matches in another order, and pools the
errors. Published tables fit once. Here every order is a table of its own: what it may say, on the same
matches.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from matcher import terminal
from matcher.evaluation.metrics import auc

LIMITS = 5.0, 10.0, 20.0  # degrees


def main(
    run: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Of `--out`.")],
) -> None:
    """Print mean, deviation and range of the AUC of single orders, by method."""
    errors: dict[str, list[list[float]]] = defaultdict(list)
    for line in (run / "records.jsonl").read_text("utf-8").splitlines():
        record = json.loads(line)
        if record["kind"] == "pose" and record["score"]:
            found = [np.inf if each is None else each for each in record["score"]["errors"][0]]
            errors[record["method"]].append(found)
    rows = []
    for method, pairs in errors.items():
        orders = np.array(pairs).T  # (orders, pairs)
        tables = 100 * np.array([auc(one, LIMITS) for one in orders])
        for limit, column in zip(LIMITS, tables.T, strict=True):
            rows.append(
                {
                    "method": method,
                    "pairs": str(len(pairs)),
                    "AUC at": f"{limit:.0f}°",
                    "mean of one order": f"{column.mean():.1f}",
                    "deviation": f"{column.std():.1f}",
                    "range": f"{column.min():.1f} to {column.max():.1f}",
                }
            )
    terminal.print_table(rows)


if __name__ == "__main__":
    typer.run(main)
