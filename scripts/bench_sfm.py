"""Reconstruct scenes with known cameras by several methods, and print how well and how fast.

    python scripts/bench_sfm.py FOLDER ... [--methods superglue,loftr,sift] [--stages] [--out DIR]

A scene is a folder with `images/` and `cameras.json` (by image name: width, height, K, R and t of
camera_from_world). Cameras are given to every method; models are aligned to the known centres.
`colmap-sift` is pycolmap's own pipeline: its SIFT, its matcher, its verification, its mapper, without
our last adjustment; `+ polished` has that too.
With `--stages` a method has rows without growing (`placed`) and without placing (`as found`) too.
Methods take options: `superglue:max_keypoints=2048`. With `--merging`, the matches of one
semi-dense method become tracks by merging, and by rounding to grids of 1 and 4 pixels. With
`--sizing`, six images are described and matched, and processor seconds and bytes a unit are printed, with
what they come to for a million images of 20 pairs each.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from matcher import terminal
from matcher.extras import require
from matcher.geometry.two_view import Pose
from matcher.options import method_from
from matcher.sfm.accuracy import compare_cameras
from matcher.sfm.cameras import Camera, cameras_of
from matcher.sfm.database import write_database
from matcher.sfm.distribution import Alone
from matcher.sfm.frontend import FrontEnd, MethodChoice
from matcher.sfm.mapping import MapOptions, Model, make_models
from matcher.sfm.pairs import exhaustive
from matcher.sfm.photos import list_photos
from matcher.sfm.pipeline import Settings, Stages, reconstruct, tie
from matcher.sfm.sharpening import sharpen
from matcher.sfm.tracks import MergeOptions, build_tracks
from matcher.types import Matches

MAPPING = MapOptions(keep_intrinsics=True, threads=1)


def main() -> None:
    """Print a table for the scenes, or one for the ways of merging."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("scenes", type=Path, nargs="+")
    parser.add_argument("--methods", default="superglue,loftr,sift,colmap-sift")
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--merging", action="store_true")
    parser.add_argument("--sizing", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/sfm"))
    given = parser.parse_args()
    require("pycolmap", "the comparison").logging.minloglevel = 2
    rows: list[dict[str, str]] = []
    for scene in given.scenes:
        for name in given.methods.split(","):
            out = given.out / scene.name / name
            way = _merged if given.merging else _sized if given.sizing else _mapped
            found = _staged(scene, name, out) if given.stages else way(scene, name, out)
            print(*found, sep="\n", file=sys.stderr, flush=True)
            rows += found
    terminal.print_table(rows)


def _truth(scene: Path) -> tuple[dict[str, Pose], dict[str, Camera]]:
    known = json.loads((scene / "cameras.json").read_text())
    poses = {name: Pose(np.array(each["R"]), np.array(each["t"])) for name, each in known.items()}
    cameras = {
        name: Camera.pinhole((each["height"], each["width"]), np.array(each["K"]))
        for name, each in known.items()
    }
    return poses, cameras


def _mapped(scene: Path, name: str, out: Path) -> list[dict[str, str]]:
    """Run a method with all stages, or pycolmap's own pipeline."""
    if name != "colmap-sift":
        return [_reconstructed(scene, name, out, Settings(mapping=MAPPING))]
    poses, cameras = _truth(scene)
    start = time.perf_counter(), time.process_time()
    database = _colmap(scene, cameras, out)
    rows = []
    for label, polish in ((name, 0.0), (f"{name} + polished", MAPPING.polish)):
        mapping = replace(MAPPING, polish=polish)
        models = make_models(database, scene / "images", out / "sparse", mapping)
        rows.append(_row(scene, label, models, poses, start))
    return rows


def _staged(scene: Path, name: str, out: Path) -> list[dict[str, str]]:
    """Run a method with all stages, without growing, and without placing."""
    grown = Settings(mapping=MAPPING)
    placed = replace(grown, grow=False)
    # What is not placed needs the usual threshold, and the mapper's own adjustment.
    usual = replace(MAPPING, polish=0.0)
    found = replace(placed, sharpen=False, verify=grown.found, mapping=usual)
    ways = {name: grown, f"{name} + placed": placed, f"{name} + as found": found}
    return [_reconstructed(scene, name, out, way, label) for label, way in ways.items()]


def _reconstructed(
    scene: Path, name: str, out: Path, settings: Settings, label: str = ""
) -> dict[str, str]:
    poses, cameras = _truth(scene)
    start = time.perf_counter(), time.process_time()
    settings = replace(settings, method=_choice(name))
    result = reconstruct(scene / "images", out, settings, cameras=cameras)
    return _row(scene, label or name, result.models, poses, start)


def _choice(name: str) -> MethodChoice:
    return MethodChoice(*method_from(name))


def _colmap(scene: Path, cameras: dict[str, Camera], out: Path) -> Path:
    """Run pycolmap's own SIFT, matching and verification with the same cameras."""
    pycolmap = require("pycolmap", "the comparison")
    out.mkdir(parents=True, exist_ok=True)
    database = out / "colmap.db"
    database.unlink(missing_ok=True)
    first = next(iter(cameras.values()))
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model = "PINHOLE"
    reader.camera_params = ",".join(map(str, first.params))
    mode = pycolmap.CameraMode.SINGLE
    pycolmap.extract_features(database, scene / "images", camera_mode=mode, reader_options=reader)
    pycolmap.match_exhaustive(database)
    return database


def _row(
    scene: Path,
    label: str,
    models: Sequence[Model],
    poses: dict[str, Pose],
    start: tuple[float, float],
) -> dict[str, str]:
    """Write one row; `start` is the clock's and the processor's."""
    if not models:
        return {"scene": scene.name, "method": label, "registered": f"0/{len(poses)}"}
    model = models[0]
    accuracy, summary = compare_cameras(model, poses), model.summary
    return {
        "scene": scene.name,
        "method": label,
        "registered": f"{accuracy.registered}/{accuracy.total}",
        "centre median / largest": f"{accuracy.centre_median:.4f} / {accuracy.centre_largest:.4f}",
        "rotation ° median / largest": f"{accuracy.rotation_median:.4f} / "
        f"{accuracy.rotation_largest:.4f}",
        "points": f"{summary['points']}",
        "track length": f"{summary['track length']:.2f}",
        "reprojection px": f"{summary['reprojection error px']:.3f}",
        "minutes": f"{(time.perf_counter() - start[0]) / 60:.1f}",
        "processor minutes": f"{(time.process_time() - start[1]) / 60:.1f}",
    }


def _merged(scene: Path, name: str, out: Path) -> list[dict[str, str]]:
    """Make tracks of one method's matches in several ways."""
    poses, cameras = _truth(scene)
    photos = list_photos(scene / "images")
    front_end = FrontEnd(photos, out, _choice(name))
    stages = Stages(front_end, Alone(front_end))
    pairs = exhaustive([photo.name for photo in photos])
    stages.describe()
    stages.match(pairs)
    kept = cameras_of(photos, known=cameras)
    by_name = {p.name: kept[0][i] for p, i in zip(photos, kept[1], strict=True)}
    geometries = stages.verify(pairs, by_name, Settings().found)
    found = {
        pair: front_end.found(pair).select(each.inliers)
        for pair, each in geometries.items()
        if not each.rejection
    }
    ways: dict[str, tuple[dict[tuple[str, str], Matches], float]] = {
        "merged within 2 px": (found, 2.0),
        "rounded to 1 px": (_rounded(found, 1), 0.0),
        "rounded to 4 px": (_rounded(found, 4), 0.0),
    }
    rows = []
    for label, (matches, radius) in ways.items():
        tracks = build_tracks(matches, list(front_end.photos), MergeOptions(radius))
        sharp = sharpen(tracks, front_end.place)
        for more, each in (("", tracks), (" + placed", sharp)):
            start = time.perf_counter(), time.process_time()
            options = Settings().verify if more else Settings().found
            tied = tie(each, pairs, kept, front_end.long_side, options)
            path = out / f"{label}{more}.db"
            path.unlink(missing_ok=True)
            write_database(path, tied)
            mapping = MAPPING if more else replace(MAPPING, polish=0.0)
            models = make_models(path, scene / "images", out / "merging", mapping)
            row = _row(scene, f"{name}, {label}{more}", models, poses, start)
            rows.append({**row, "tracks before mapping": f"{each.mean_length:.2f}"})
    return rows


def _sized(scene: Path, name: str, out: Path) -> list[dict[str, str]]:
    """Measure what a unit of each stage costs, in a folder of its own so that nothing is done yet."""
    photos = list_photos(scene / "images")[:6]
    folder = out / f"sizing-{time.time_ns()}"
    front_end = FrontEnd(photos, folder, _choice(name))
    stages = Stages(front_end, Alone(front_end))
    names = [photo.name for photo in photos]
    pairs = exhaustive(names)
    cameras = _truth(scene)[1]
    seconds = {"describe": _seconds(stages.describe)}
    seconds["match"] = _seconds(lambda: stages.match(pairs))
    options = Settings().found
    seconds["verify"] = _seconds(lambda: stages.verify(pairs, cameras, options))
    geometries = stages.verify(pairs, cameras, options)
    bare = replace(Settings(), sharpen=False)
    seconds["merge"] = _seconds(lambda: stages.tracks(geometries, bare))
    placed = _seconds(lambda: stages.tracks(geometries, replace(Settings(), grow=False)))
    seconds["place"] = placed - seconds["merge"]
    seconds["grow"] = _seconds(lambda: stages.tracks(geometries, Settings())) - placed
    size = {
        part: sum(f.stat().st_size for f in (folder / part).rglob("*.npz"))
        for part in ("descriptions", "matches")
    }
    return [
        _unit(
            f"{name}, {part}",
            taken,
            len(photos) if part == "describe" else len(pairs),
            size.get({"describe": "descriptions", "match": "matches"}.get(part, ""), 0),
        )
        for part, taken in seconds.items()
    ]


def _seconds(work: Callable[[], object]) -> float:
    """Measure processor seconds: what a busy machine takes away does not count."""
    start = time.process_time()
    work()
    return time.process_time() - start


def _unit(label: str, seconds: float, count: int, size: int) -> dict[str, str]:
    """Write the cost of one unit, and of a million images with 20 pairs each."""
    units = 1_000_000 if label.endswith("describe") else 20_000_000
    return {
        "stage": label,
        "of": "image" if units == 1_000_000 else "pair",
        "ms": f"{1e3 * seconds / count:.1f}",
        "KB": f"{size / count / 1e3:.1f}" if size else "",
        "core hours for 1 M images": f"{seconds / count * units / 3600:,.0f}",
        "TB for 1 M images": f"{size / count * units / 1e12:.2f}" if size else "",
    }


def _rounded(found: dict[tuple[str, str], Matches], step: float) -> dict[tuple[str, str], Matches]:
    """Round both ends of all matches to a grid, as peers do."""
    return {
        pair: replace(
            each,
            points0=(np.round(each.points0 / step) * step).astype(np.float32),
            points1=(np.round(each.points1 / step) * step).astype(np.float32),
        )
        for pair, each in found.items()
    }


if __name__ == "__main__":
    main()
