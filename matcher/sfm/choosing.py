"""Choose pairs by a name on the command line: what is known of the photos, and how they look."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from matcher.sfm import pairs
from matcher.sfm.frontend import FrontEnd
from matcher.sfm.gps import positions_of
from matcher.sfm.mapping import read_model
from matcher.sfm.pairs import NamePair

COVISIBLE = "covisible:"  # before the folder of a model
FEW = 60  # images up to which all pairs are matched where nothing else is asked for


@dataclass(frozen=True)
class PairChoice:
    """Which images are matched.

    Attributes:
        kind: "exhaustive"; "sequential" with loops closed by retrieval; "retrieval"; "gps" takes the
            nearest by the positions in the files; "auto" is exhaustive for up to 60 images, else
            retrieval; or a path: of a list of pairs, or of a model's folder, by whose poses those
            are taken that stand near and look the same way; or "covisible:" and a model's folder, by
            how many of its points two images both see. Retrieval finds the partners of images whose
            position or pose is not known.
        overlap: Next images of a sequence that each is matched with.
        partners: Most that an image chooses by retrieval, position, pose or points in common.
    """

    kind: str = "auto"
    overlap: int = 10
    partners: int = 20


def choose_pairs(choice: PairChoice, front_end: FrontEnd, folder: str | Path) -> list[NamePair]:
    """Choose pairs of described images.

    Raises:
        ValueError: There is no such kind and no such path, or no image has a position or a pose.
    """
    kind = choice.kind
    if kind == "auto":
        kind = "exhaustive" if len(front_end.photos) <= FEW else "retrieval"
    if kind in _KINDS:
        return _KINDS[kind](choice, front_end)
    if kind.startswith(COVISIBLE) and Path(kind.removeprefix(COVISIBLE)).is_dir():
        return _by_points(choice, front_end)
    if Path(kind).is_dir():
        return _by_model(choice, front_end)
    if not Path(kind).is_file():
        raise ValueError(
            f"no pairs {kind!r}; there are auto, {', '.join(sorted(_KINDS))}, "
            "the path of a list or of a model's folder, or covisible: and a model's folder"
        )
    return pairs.listed(kind, list(front_end.photos), folder)


def _exhaustive(_: PairChoice, front_end: FrontEnd) -> list[NamePair]:
    return pairs.exhaustive(list(front_end.photos))


def _retrieval(choice: PairChoice, front_end: FrontEnd, min_distance: int = 0) -> list[NamePair]:
    names = list(front_end.photos)
    vectors = pairs.pool(names, front_end.description)
    return pairs.retrieved(names, vectors, choice.partners, min_distance)


def _sequential(choice: PairChoice, front_end: FrontEnd) -> list[NamePair]:
    names = list(front_end.photos)
    loops = _retrieval(choice, front_end, choice.overlap + 1)
    return pairs.union(names, pairs.sequential(names, choice.overlap), loops)


def _by_gps(choice: PairChoice, front_end: FrontEnd) -> list[NamePair]:
    metres = pairs.metres_from_gps(positions_of(front_end.photos.values()))
    near = pairs.near_positions(metres, choice.partners)
    return _completed(near, metres, "a GPS position", choice, front_end)


def _by_model(choice: PairChoice, front_end: FrontEnd) -> list[NamePair]:
    views = read_model(choice.kind).views
    poses = {name: views[name].pose for name in front_end.photos if name in views}
    near = pairs.from_poses(poses, choice.partners)
    return _completed(near, poses, f"a pose in {choice.kind}", choice, front_end)


def _by_points(choice: PairChoice, front_end: FrontEnd) -> list[NamePair]:
    folder = choice.kind.removeprefix(COVISIBLE)
    views = read_model(folder).views
    seen = {name: views[name].seen for name in front_end.photos if name in views}
    points = {name: rows[rows >= 0].tolist() for name, rows in seen.items()}
    near = pairs.covisible(points, choice.partners)
    return _completed(near, points, f"points in {folder}", choice, front_end)


def _completed(
    near: list[NamePair],
    known: Collection[str],
    what: str,
    choice: PairChoice,
    front_end: FrontEnd,
) -> list[NamePair]:
    """Add the pairs of images of which nothing is known, by retrieval."""
    names = list(front_end.photos)
    if not known:
        raise ValueError(f"none of {len(names)} images has {what}")
    unknown = set(names) - set(known)
    if not unknown:
        return near
    return pairs.union(
        names, near, [pair for pair in _retrieval(choice, front_end) if unknown & set(pair)]
    )


_Kind: TypeAlias = Callable[[PairChoice, FrontEnd], list[NamePair]]
_KINDS: dict[str, _Kind] = {
    "exhaustive": _exhaustive,
    "gps": _by_gps,
    "retrieval": _retrieval,
    "sequential": _sequential,
}
