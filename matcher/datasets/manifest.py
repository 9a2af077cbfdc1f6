"""Read manifests: a JSON list or a TOML file, one entry a pair.

    {"id": "facade", "dataset": "real", "type": "pose", "image0": "a.jpg", "image1": "b.jpg",
     "size0": [640, 480], "size1": [640, 480], "note": "", "K0": ..., "K1": ..., "R_0to1": ...,
     "t_0to1": ...}

Paths are relative to the manifest and stay in its folder; sizes are (width, height); `level` is a
number on what the data set varies; `turns`, [0, 1], are the quarter turns, counter-clockwise, by
which the images are turned to be matched, and the truth is of the files as they are. By type:

    homography, template   H_0to1: (3, 3), pixels of image 1 from pixels of image 0 (the template)
    placed                 x, y, angle_degrees, scale: where the template, image 0, lies in image 1,
                           as a `matcher.TemplateHit` says it; measured by place, turn and size
    labelled               points0, points1: (N, 2) pixels of the same spots, marked by hand
    pose                   K0, K1: (3, 3); R_0to1: (3, 3); t_0to1: (3,), of any unit
    depth                  the same with depth0, depth1: .npy or grey pictures, times depth_scale,
                           in the unit of t_0to1
    disparity              disparity0: a grey image; x1 = x0 - value * disparity_scale, 0 unknown
    unrelated              nothing: every match is wrong
    unknown                nothing is known

In TOML each pair is a table `[[pair]]`; id, dataset and type may be left out, and follow from the
names of the images, of the file, and from the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matcher import assets
from matcher.datasets.entries import Entry, pairs_of
from matcher.reading import read_json, read_toml
from matcher.types import Pair


def sample_pairs() -> list[Pair]:
    """Load the pairs that ship with the package."""
    return load_pairs(assets.folder("data") / "pairs.json")


def load_pairs(manifest: str | Path) -> list[Pair]:
    """Load a manifest, .json or .toml, in its order.

    Raises:
        FileNotFoundError: The manifest or images are missing; the message lists them.
        ValueError: Not a list, a name twice, or a wrong entry; the message names its place.
    """
    manifest = Path(manifest)
    tables = _toml_tables(manifest) if manifest.suffix == ".toml" else read_json(manifest)
    if not isinstance(tables, list) or not all(map(_is_table, tables)):
        raise ValueError(f"{manifest} must be a list of pairs")
    places = [f"{manifest}, pair {n} ({t.get('id', 'no id')})" for n, t in enumerate(tables, 1)]
    return pairs_of(
        [Entry(table, manifest.parent, place) for table, place in zip(tables, places, strict=True)]
    )


def _toml_tables(path: Path) -> Any:
    """Read the tables [[pair]] and fill in what follows from their keys."""
    known = read_toml(path)
    tables = known.get("pair", [])
    if set(known) - {"pair"} or not isinstance(tables, list) or not all(map(_is_table, tables)):
        raise ValueError(f"{path} must have tables [[pair]] and nothing else")
    return [
        {
            "id": f"{table.get('image0')}-{table.get('image1')}",
            "dataset": path.stem,
            "type": _kind(table),
            **table,
        }
        for table in tables
    ]


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _kind(table: Mapping[str, Any]) -> str:
    """Tell the type of an entry from the truth that it has."""
    kinds = {
        "scale": "placed",
        "points0": "labelled",
        "H_0to1": "homography",
        "depth0": "depth",
        "K0": "pose",
        "disparity0": "disparity",
    }
    return next((kind for key, kind in kinds.items() if key in table), "unknown")
