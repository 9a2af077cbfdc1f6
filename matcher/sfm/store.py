"""Results on disk, found again by what they were made from; whole or not there.

A description lies in a file of its own. Matches lie in files of many pairs (shards), because a
million images have more pairs than a file system likes files. What a killed run leaves half
written has another name and is never read; a file that a disk damaged counts as missing.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matcher.reading import read_npz
from matcher.storage import write
from matcher.types import Description, Matches

_log = logging.getLogger(__name__)
Arrays = Mapping[str, NDArray[Any]]
_PLAIN = ("points", "scores", "descriptors", "scales", "angles")


def write_arrays(path: Path, arrays: Arrays) -> Path:
    """Write named arrays as npz, whole or not at all."""
    data = io.BytesIO()
    np.savez(data, allow_pickle=False, **dict(arrays))
    return write(path, data.getvalue())


def read_arrays(path: Path, names: Sequence[str] = ()) -> dict[str, NDArray[Any]] | None:
    """Read what `write_arrays` wrote; None where there is no such file or it is damaged.

    Args:
        path: The file.
        names: Of the arrays to read; all where there are none.
    """
    try:
        return read_npz(path, names=names)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s is damaged (%s) and will be made again", path, error)
        return None


@dataclass(frozen=True)
class Descriptions:
    """Descriptions in a folder, by key; their images are not kept, but read again."""

    folder: Path

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.npz"

    def __contains__(self, key: str) -> bool:
        return self._path(key).is_file()

    def save(self, key: str, description: Description) -> None:
        """Keep a description."""
        arrays: dict[str, NDArray[Any]] = {
            name: getattr(description, name)
            for name in _PLAIN
            if getattr(description, name) is not None
        }
        arrays |= {f"maps.{name}": value for name, value in description.maps.items()}
        arrays |= {
            "method": np.array(description.method),
            "untrained": np.array(description.untrained),
        }
        write_arrays(self._path(key), arrays)

    def load(self, key: str, image: NDArray[np.float32], mask: Any) -> Description | None:
        """Read a description; None where there is none.

        Args:
            key: What it was saved under.
            image: (H, W) grey image that it was made from.
            mask: Its mask, or None.
        """
        arrays = read_arrays(self._path(key))
        if arrays is None:
            return None
        maps = {
            name.removeprefix("maps."): value
            for name, value in arrays.items()
            if name.startswith("maps.")
        }
        plain = {name: arrays.get(name) for name in _PLAIN}
        method, untrained = str(arrays["method"]), bool(arrays["untrained"])
        return Description(method, image, mask, **plain, maps=maps, untrained=untrained)  # type: ignore[arg-type]


class MatchStore:
    """Matches in a folder, by the key of their pair; only points, scores and flags are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place: dict[str, tuple[Path, int]] = {}
        self._seen: set[Path] = set()
        self._latest: tuple[Path | None, dict[str, NDArray[Any]]] = (None, {})

    def refresh(self) -> None:
        """Look for shards that other processes have finished."""
        for path in sorted(self.folder.glob("*.npz")):
            if path in self._seen:
                continue
            self._seen.add(path)
            arrays = read_arrays(path, ("keys",))
            self._place |= {
                str(key): (path, row) for row, key in enumerate((arrays or {}).get("keys", ()))
            }

    def __contains__(self, key: str) -> bool:
        return key in self._place

    def save(self, shard: str, found: Mapping[str, Matches]) -> None:
        """Write the matches of some pairs as one shard."""
        counts = [len(matches) for matches in found.values()]
        columns = {
            name: np.concatenate([getattr(matches, name) for matches in found.values()])
            for name in ("points0", "points1", "scores")
        }
        untrained = [matches.untrained for matches in found.values()]
        header = {
            "keys": np.array(list(found)),
            "ends": np.cumsum(counts),
            "untrained": np.array(untrained),
        }
        path = write_arrays(self.folder / f"{shard}.npz", header | columns)
        self._seen.add(path)
        self._place |= {key: (path, row) for row, key in enumerate(found)}

    def load(self, key: str) -> Matches:
        """Read the matches of one pair.

        Raises:
            KeyError: They are not there; `refresh` looks for new shards.
            OSError: The shard was damaged after it had been listed.
        """
        path, row = self._place[key]
        if self._latest[0] != path:
            arrays = read_arrays(path)
            if arrays is None:
                raise OSError(f"{path} is damaged: delete it and match again")
            self._latest = path, arrays
        arrays = self._latest[1]
        start = int(arrays["ends"][row - 1]) if row else 0
        rows = slice(start, int(arrays["ends"][row]))
        points0, points1, scores = (arrays[name][rows] for name in ("points0", "points1", "scores"))
        return Matches(points0, points1, scores, untrained=bool(arrays["untrained"][row]))
