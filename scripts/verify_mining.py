"""Mine a folder of photographs whose cameras are known, and measure the pairs against the truth.

The folder holds `images/` and `cameras.json`: by file name K (3 x 3), R and t (camera from world).

    python scripts/verify_mining.py FOLDER [--teacher aliked-lightglue]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import matcher
from matcher.geometry.two_view import Pose, fundamental_from_pose, sampson_distance
from matcher.images import list_images
from matcher.mining.miner import mine
from matcher.mining.pair_file import Collection, MinedPair
from matcher.types import Matrix

THRESHOLDS = (0.5, 1.0, 2.0, 4.0)  # pixels of the photographs


def errors(
    collection: Collection, pair: MinedPair, cameras: dict[str, dict[str, Matrix]]
) -> Matrix:
    """Measure (N,) distances of a pair's matches from the true epipolar geometry, in pixels."""
    camera0, camera1 = (cameras[collection.images[row].name] for row in (pair.image0, pair.image1))
    rotation = camera1["R"] @ camera0["R"].T
    pose = Pose(rotation, camera1["t"] - rotation @ camera0["t"])
    fundamental = fundamental_from_pose(pose, camera0["K"], camera1["K"])
    return sampson_distance(pair.points0, pair.points1, fundamental)


def main() -> None:
    """Print a table: how many pairs and matches, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--teacher", default="aliked-lightglue")
    arguments = parser.parse_args()
    known = json.loads((arguments.folder / "cameras.json").read_text("utf-8"))
    cameras = {
        name: {key: np.array(camera[key]) for key in "KRt"} for name, camera in known.items()
    }
    photographs, _ = list_images(arguments.folder / "images")
    start = time.process_time()
    collection = mine(photographs, matcher.create(arguments.teacher, refine=False))
    seconds = time.process_time() - start
    print(f"{len(photographs)} photographs, {len(collection.pairs)} pairs, {seconds:.0f} CPU s")
    if not collection.pairs:
        return
    all_errors = [errors(collection, pair, cameras) for pair in collection.pairs]
    together = np.concatenate(all_errors)
    print(f"{len(together)} matches, {len(together) / len(all_errors):.0f} a pair")
    medians = np.array([np.median(each) for each in all_errors])
    for limit in THRESHOLDS:
        share, pairs = np.mean(together <= limit), np.mean(medians <= limit)
        print(f"within {limit} px: {share:.3f} of the matches, {pairs:.3f} of the pairs' medians")


if __name__ == "__main__":
    main()
