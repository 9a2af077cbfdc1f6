"""Find a benchmark by the name that a user gives: its pairs, and the rules that go with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from matcher import datasets
from matcher.evaluation import protocols
from matcher.evaluation.settings import Refine, Settings
from matcher.types import Pair


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Pairs with the rules to measure them by.

    Attributes:
        pairs: In their order.
        settings: The rules.
        protocol: What they are called, with version and source; empty for a list of one's own.
        keypoints: Budget of methods that have one; None leaves it to them.
        turns: Whether methods try quarter turns of image 1; None leaves it to them. No protocol
            does: what is turned is a matter of its list.
    """

    pairs: list[Pair]
    settings: Settings
    protocol: str = ""
    keypoints: int | None = None
    turns: bool | None = None

    def refined(self, refine: Refine, grow: bool = False) -> Benchmark:
        """Score matches as found, refined, or both, and grown too."""
        return replace(self, settings=replace(self.settings, refine=refine, grow=grow))


def find(
    name: str,
    root: str | Path | None = None,
    *,
    partial: bool = False,
    long_side: int | None = None,
    repeats: int | None = None,
) -> Benchmark:
    """Load a benchmark.

    Args:
        name: "sample", "synthetic", the name of a protocol, or the path of a list of pairs.
        root: Folder of a protocol's data, or where pairs that are made lie or shall lie.
        partial: Take what is there of a protocol's pairs.
        long_side: At which images are matched, 0 for all as they are; None for 640 pixels. A
            protocol fixes it.
        repeats: Robust fits of every pair; None for one. A protocol fixes it.

    Raises:
        FileNotFoundError: Data are missing; the message says which and how to get them.
        ValueError: A protocol without a root or with other rules, or a list with a wrong entry.
    """
    if name in protocols.names():
        given = {"resize": long_side, "repeats": repeats}
        if fixed := [option for option, value in given.items() if value is not None]:
            raise ValueError(f"{name} fixes its rules: it takes no {' and no '.join(fixed)}")
        return _of_protocol(protocols.protocol(name), root, partial)
    settings = Settings(repeats=repeats or 1)
    if long_side is not None:
        settings = replace(settings, long_side=long_side or None)
    if name == "synthetic":
        from matcher.evaluation import synthetic  # noqa: PLC0415  torch, for this one only

        title = f"synthetic, version {synthetic.VERSION}: pairs made from the shipped photographs."
        return Benchmark(synthetic.synthetic_pairs(root), settings, title)
    _check_known(name)
    return Benchmark(datasets.benchmark(name), settings)


def _of_protocol(protocol: protocols.Protocol, root: str | Path | None, partial: bool) -> Benchmark:
    if protocol.layout == "manifest":
        from matcher.evaluation import synthetic_templates  # noqa: PLC0415  torch, as above

        root = synthetic_templates.template_folder(root)
    if root is None:
        obtain = protocol.obtain or datasets.LAYOUTS[protocol.layout].obtain
        raise ValueError(f"{protocol.name} needs --root, the folder of its data. {obtain}")
    pairs = protocol.load(root, partial=partial)
    whole = not protocol.pairs or len(pairs) == protocol.pairs
    words = "" if whole else f" Only {len(pairs)} of its {protocol.pairs} pairs."
    title = f"{protocol}{words}"
    return Benchmark(pairs, protocol.settings, title, protocol.keypoints, turns=False)


def _check_known(name: str) -> None:
    if name != "sample" and not Path(name).suffix:
        known = ", ".join(["sample", "synthetic", *protocols.names()])
        raise ValueError(f"no benchmark {name!r}; there are {known}, and lists .json, .toml, .txt")
