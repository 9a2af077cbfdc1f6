"""Named, versioned protocols: which pairs, at what size, fitted and counted by which rules.

Each is a file `data/protocols/NAME.toml`; a figure is compared with others of the same name and
version only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matcher import assets
from matcher.datasets import load_layout
from matcher.evaluation.settings import Settings
from matcher.types import Pair


@dataclass(frozen=True)
class Protocol:
    """The rules of one published or own table.

    Attributes:
        name: Of the file.
        title: What it measures, as a phrase.
        version: Changes with whatever changes figures.
        source: Where the rules come from.
        layout: Of the data; see `matcher.datasets.load_layout`. "manifest" where they are made.
        settings: How pairs are resized, fitted and counted.
        pairs: Their number in the complete data; 0 where it is not fixed.
        keypoints: Budget of methods that have one; None leaves it to them.
        options: Of the layout.
        deviations: In what the figures may differ from those of the published code.
        obtain: How to get the data, where the layout does not say.
    """

    name: str
    title: str
    version: int
    source: str
    layout: str
    settings: Settings
    pairs: int = 0
    keypoints: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    deviations: tuple[str, ...] = ()
    obtain: str = ""

    def __str__(self) -> str:
        """Write all but the settings as one paragraph, for reports."""
        budget = f" {self.keypoints} keypoints an image at most." if self.keypoints else ""
        unlike = "".join(f" Deviation: {each}." for each in self.deviations)
        return f"{self.name}, version {self.version}: {self.title}. {self.source}.{budget}{unlike}"

    def load(self, root: str | Path, *, partial: bool = False) -> list[Pair]:
        """Load the pairs.

        Args:
            root: Folder of the data in their published layout.
            partial: Take what is there; figures of a part cannot be compared with others'.

        Raises:
            FileNotFoundError: Data are missing; the message says which and how to get them.
            ValueError: There are fewer or more pairs than the protocol has; or a wrong entry.
        """
        try:
            found = load_layout(self.layout, root, **self.options)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error} {self.obtain}".strip()) from error
        if self.pairs and len(found) != self.pairs and not partial:
            raise ValueError(
                f"{root} has {len(found)} pairs, {self.name} has {self.pairs}: figures of a part "
                "cannot be compared with others'; partial=True (--partial) takes it all the same"
            )
        return found


def names() -> list[str]:
    """List the protocols."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def protocol(name: str) -> Protocol:
    """Read a protocol.

    Raises:
        ValueError: There is no such protocol.
    """
    path = _folder() / f"{name}.toml"
    if name not in names():
        raise ValueError(f"no protocol {name!r}; there are {', '.join(names())}")
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    settings = Settings.of(values.pop("settings"))
    deviations = tuple(values.pop("deviations", ()))
    return Protocol(name=name, settings=settings, deviations=deviations, **values)


def _folder() -> Path:
    return assets.folder("data") / "protocols"
