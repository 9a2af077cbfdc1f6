"""All stages in one call: from a folder of images to tie points, a database and models.

    from matcher.sfm.pipeline import Settings, reconstruct

    result = reconstruct("images", "out", Settings(method=MethodChoice("superglue")))
    print(result.models[0].summary)

Every stage keeps its results below the output folder and goes on where it was stopped:

    descriptions/, matches/   of the method, by content
    pairs.csv                 what became of each pair, and why
    database.db               for COLMAP and whoever reads its database
    sparse/                   models in COLMAP's form
    run.json                  settings, method and machine
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from matcher import images
from matcher.evaluation.environment import Environment
from matcher.geometry.cameras import scale_intrinsics
from matcher.sfm.cameras import Camera, cameras_of
from matcher.sfm.choosing import PairChoice, choose_pairs
from matcher.sfm.database import write_database
from matcher.sfm.distribution import Alone, Crew, Processes, RayCrew, cut
from matcher.sfm.frontend import BATCH, SHARD, FrontEnd, MethodChoice, VerifyJob
from matcher.sfm.geometry import TwoViewGeometry, VerifyOptions, verify_pair
from matcher.sfm.growing import Grown, grow_tracks
from matcher.sfm.mapping import MapOptions, Model, make_models
from matcher.sfm.photos import list_photos
from matcher.sfm.sharpening import Group, Placed, sharpen
from matcher.sfm.tiepoints import NamePair, Rows, TiePoints
from matcher.sfm.tracks import MergeOptions, Tracks, bounded, build_tracks
from matcher.storage import write

Progress: TypeAlias = Callable[[str, int, int], None]  # stage, done, of how many


@dataclass(frozen=True)
class Settings:
    """How a folder of images becomes tie points and models.

    Attributes:
        method: The method.
        long_side: Larger photos are shrunk to this before they are described; None keeps all.
        pairs: Which images are matched.
        camera_model: Of cameras that are not known.
        found: When matches count as found, in pixels of the described images.
        merge: How matches become tracks.
        sharpen: Whether correlation places the observations of tracks.
        grow: Whether corners between placed tracks become tracks too.
        verify: When tie points count, in pixels of the described images.
        mapping: How models are made; None makes none.
        schema: Of the database, "3" or "4".
        workers: Processes, or actors with `cluster`; 1 works in this process.
        cluster: Address of a Ray cluster, "local" for one of this machine; empty for none.
        gpus: Of each actor.
    """

    method: MethodChoice = field(default_factory=MethodChoice)
    long_side: int | None = 1600
    pairs: PairChoice = field(default_factory=PairChoice)
    camera_model: str = "SIMPLE_RADIAL"
    found: VerifyOptions = field(default_factory=VerifyOptions)
    merge: MergeOptions = field(default_factory=MergeOptions)
    sharpen: bool = True
    grow: bool = True
    verify: VerifyOptions = field(default_factory=lambda: VerifyOptions(threshold=1.0))
    mapping: MapOptions | None = field(default_factory=MapOptions)
    schema: str = "4"
    workers: int = 1
    cluster: str = ""
    gpus: float = 0


@dataclass(frozen=True, eq=False)
class PairReport:
    """What became of a pair.

    Attributes:
        pair: Names of its images.
        matches: That the method found.
        found: Of those, the inliers that went into tracks.
        tied: Keypoints of both images that are in one track.
        verified: Of those, the inliers.
        reason: Why the pair is of no use; empty where it is.
    """

    pair: NamePair
    matches: int
    found: int
    tied: int
    verified: int
    reason: str


@dataclass(frozen=True, eq=False)
class Result:
    """What a run made.

    Attributes:
        tie_points: In pixels of the photos.
        track_length: Mean number of images that see a track, before any model.
        reports: What became of each pair.
        database: Its file.
        models: The largest first; empty without mapping.
    """

    tie_points: TiePoints
    track_length: float
    reports: tuple[PairReport, ...]
    database: Path
    models: tuple[Model, ...]


def reconstruct(
    folder: str | Path,
    out: str | Path,
    settings: Settings | None = None,
    *,
    masks: str | Path | None = None,
    cameras: Mapping[str, Camera] | None = None,
    progress: Progress | None = None,
) -> Result:
    """Turn a folder of images into tie points, a database and models.

    Args:
        folder: Images, in sub-folders too.
        out: Folder for all that is made; a second run goes on there.
        settings: How.
        masks: Folder of masks, see `list_photos`.
        cameras: Cameras that are known, by name of the image.
        progress: Called as blocks of work are done.

    Raises:
        ValueError: No images, or a list of pairs that names others.
        ImportError: The method, pycolmap or Ray is missing.
    """
    settings, out = settings or Settings(), Path(out)
    photos = list_photos(folder, masks)
    make = partial(FrontEnd, photos, out, settings.method, settings.long_side)
    front_end = make()
    kept, camera_of = cameras_of(photos, settings.camera_model, cameras)
    by_name = {p.name: kept[i] for p, i in zip(photos, camera_of, strict=True)}
    write(out / "run.json", _header(settings).encode())
    with _crew(settings, make, front_end) as crew:
        stages = Stages(front_end, crew, progress)
        stages.describe()
        chosen = choose_pairs(settings.pairs, front_end, folder)
        stages.match(chosen)
        geometries = stages.verify(chosen, by_name, settings.found)
        tracks = stages.tracks(geometries, settings)
    tie_points = tie(tracks, chosen, (kept, camera_of), front_end.long_side, settings.verify)
    reports = tuple(_report(front_end, pair, geometries[pair], tie_points) for pair in chosen)
    write(out / "pairs.csv", _table(reports).encode())
    database = write_database(out / "database.db", tie_points, settings.schema)
    models: tuple[Model, ...] = ()
    if settings.mapping is not None:
        models = tuple(make_models(database, folder, out / "sparse", settings.mapping))
    return Result(tie_points, tracks.mean_length, reports, database, models)


def _crew(
    settings: Settings, make: Callable[[], FrontEnd], front_end: FrontEnd
) -> AbstractContextManager[Crew]:
    if settings.cluster:
        address = None if settings.cluster == "local" else settings.cluster
        return RayCrew(make, settings.workers, address, settings.gpus)
    if settings.workers > 1:
        return Processes(make, settings.workers)
    return nullcontext(Alone(front_end))


class Stages:
    """The stages that workers do, in their order."""

    def __init__(self, front_end: FrontEnd, crew: Crew, progress: Progress | None = None) -> None:
        self.front_end, self.crew = front_end, crew
        self._progress = progress

    def describe(self) -> None:
        """Describe the photos that are not yet described."""
        self._run("describe", cut(self.front_end.undescribed(), BATCH))

    def match(self, pairs: Sequence[NamePair]) -> None:
        """Match the pairs that are not yet matched."""
        self._run("match", cut(self.front_end.unmatched(pairs), SHARD))
        self.front_end.matches.refresh()

    def verify(
        self, pairs: Sequence[NamePair], cameras: Mapping[str, Camera], options: VerifyOptions
    ) -> dict[NamePair, TwoViewGeometry]:
        """Verify matched pairs, in pixels as described."""
        seen = {name: as_seen(camera, self.front_end.long_side) for name, camera in cameras.items()}
        jobs = [VerifyJob(pair, (seen[pair[0]], seen[pair[1]]), options) for pair in pairs]
        done = self._run("verify", cut(jobs, SHARD))
        return dict(zip(pairs, (each for block in done for each in block), strict=True))

    def tracks(self, geometries: Mapping[NamePair, TwoViewGeometry], settings: Settings) -> Tracks:
        """Merge the inliers of all pairs to tracks, place their observations, and let them grow."""
        found = {
            pair: self.front_end.found(pair).select(geometry.inliers)
            for pair, geometry in geometries.items()
            if not geometry.rejection
        }
        tracks = build_tracks(found, list(self.front_end.photos), settings.merge)
        if not settings.sharpen:
            return tracks
        placed = sharpen(tracks, self._place)
        if not settings.grow:
            return placed
        return bounded(grow_tracks(placed, list(found), self._grow), settings.merge.max_keypoints)

    def _place(self, groups: Sequence[Group]) -> list[Placed]:
        return [placed for block in self._run("place", cut(groups, BATCH)) for placed in block]

    def _grow(self, groups: Sequence[Group]) -> list[Grown]:
        return [grown for block in self._run("grow", cut(groups, BATCH)) for grown in block]

    def _run(self, stage: str, blocks: Sequence[Sequence[Any]]) -> list[Any]:
        """Let the crew do blocks; return the results in the order of the blocks."""
        results: list[Any] = [None] * len(blocks)
        for done, (number, result) in enumerate(self.crew.run(stage, blocks), start=1):
            results[number] = result
            if self._progress is not None:
                self._progress(stage, done, len(blocks))
        return results


def as_seen(camera: Camera, long_side: int | None) -> Camera:
    """Return the camera of a photo's shrunk copy: a pinhole where it is known, else a guess."""
    size = camera.height, camera.width
    small = size if long_side is None else images.fit_long_side(size, long_side)
    if not camera.known or camera.distorted:
        return Camera.guessed(small)
    return Camera.pinhole(small, scale_intrinsics(camera.intrinsics, size, small))


def tie(
    tracks: Tracks,
    pairs: Sequence[NamePair],
    cameras: tuple[Sequence[Camera], Sequence[int]],
    long_side: int | None,
    options: VerifyOptions,
) -> TiePoints:
    """Turn tracks into verified tie points, in pixels of the photos.

    Args:
        tracks: In pixels as described.
        pairs: Those that were matched: only they are written, with all tracks that both images see.
        cameras: The cameras of the photos, and the index of each photo's.
        long_side: Of the described images.
        options: When a pair counts; the threshold is of the described images.
    """
    kept, camera_of = cameras
    keypoints, numbers, weights, scales = {}, {}, {}, {}
    for image, name in enumerate(tracks.names):
        rows = np.flatnonzero(tracks.images == image)
        camera = kept[camera_of[image]]
        size = camera.height, camera.width
        small = size if long_side is None else images.fit_long_side(size, long_side)
        keypoints[name] = images.resize_points(tracks.points[rows], small, size)
        numbers[name], weights[name] = tracks.tracks[rows], tracks.weights[rows]
        scales[name] = max(size) / max(small)
    tied = {pair: _shared(numbers[pair[0]], numbers[pair[1]]) for pair in pairs}
    index = dict(zip(tracks.names, camera_of, strict=True))
    geometries = {}
    for pair, rows in tied.items():
        scaled = replace(options, threshold=options.threshold * max(scales[name] for name in pair))
        both = kept[index[pair[0]]], kept[index[pair[1]]]
        points = keypoints[pair[0]][rows[:, 0]], keypoints[pair[1]][rows[:, 1]]
        geometries[pair] = verify_pair(points, both, scaled)
    return TiePoints(
        tracks.names, tuple(kept), tuple(camera_of), keypoints, tied, geometries, weights
    )


def _shared(tracks0: Rows, tracks1: Rows) -> Rows:
    """List the rows (M, 2) of two images' keypoints that are in one track."""
    _, rows0, rows1 = np.intersect1d(tracks0, tracks1, assume_unique=True, return_indices=True)
    return np.stack([rows0, rows1], axis=1).astype(np.int64)


def _report(
    front_end: FrontEnd, pair: NamePair, first: TwoViewGeometry, tie_points: TiePoints
) -> PairReport:
    last = tie_points.geometries[pair]
    return PairReport(
        pair,
        len(front_end.found(pair)),
        int(first.inliers.sum()),
        len(tie_points.pairs[pair]),
        int(last.inliers.sum()),
        str(first.rejection or last.rejection),
    )


def _table(reports: Sequence[PairReport]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(
        ["image0", "image1", "matches", "found", "tied", "verified", "rejected because"]
    )
    for each in reports:
        numbers = [each.matches, each.found, each.tied, each.verified]
        writer.writerow([*each.pair, *numbers, each.reason])
    return text.getvalue()


def _header(settings: Settings) -> str:
    values = {"settings": asdict(settings), "environment": asdict(Environment.here())}
    return json.dumps(values, indent=1, default=str) + "\n"
