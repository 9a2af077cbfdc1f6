"""Say under which licence each part may be used: the package, weights, data, dependencies."""

from __future__ import annotations

import importlib.metadata
import re
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution

from matcher import weights
from matcher.assets import folder
from matcher.registry import registry

_EXTRAS = re.compile(r";.*\bextra\b")
_TOOLS = re.compile(r""";.*\bextra\s*==\s*['"](dev|docs)['"]""")


@dataclass(frozen=True)
class Licence:
    """The licence of one part.

    Attributes:
        part: Its name.
        kind: "code", "data", "weights" or "dependency".
        licence: SPDX identifier, or a short name where there is none.
        terms: Where its text is.
        restricted: True where it forbids some uses, so that it must be accepted by name.
        present: True where the part is on this machine.
    """

    part: str
    kind: str
    licence: str
    terms: str
    restricted: bool = False
    present: bool = True


def licences() -> list[Licence]:
    """List the package, the weights that it knows, and the packages that it imports."""
    code = Licence("tiepoint", "code", "Apache-2.0", "https://www.apache.org/licenses/LICENSE-2.0")
    data = Licence("sample pairs", "data", "free, by image", str(folder("data") / "README.md"))
    return [code, data, *_weights(), *_dependencies()]


def _weights() -> list[Licence]:
    return [
        Licence(
            name,
            "weights",
            known.licence,
            known.terms,
            known.restricted,
            weights.find(name) is not None,
        )
        for name, known in sorted(registry().items())
    ]


def _dependencies() -> list[Licence]:
    """List what is installed of all that the package requires; nothing for a checkout."""
    return [
        Licence(name, "dependency", declared(found.metadata), f"https://pypi.org/project/{name}/")
        for name, (found, _) in dependencies().items()
    ]


def dependencies() -> dict[str, tuple[Distribution, tuple[str, ...]]]:
    """Find the installed distributions that the package requires, itself or through others.

    Extras of the package count where they are installed, but for the tools of its developers;
    extras of others do not.

    Returns:
        Each distribution with the names of those that it requires itself, by name in lower case
        with "-", sorted; nothing where the package is not installed.
    """
    found: dict[str, tuple[Distribution, tuple[str, ...]]] = {}
    waiting = _required("tiepoint", extras=True)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        with suppress(importlib.metadata.PackageNotFoundError):
            needs = _required(name)
            found[name] = importlib.metadata.distribution(name), tuple(sorted(needs))
            waiting += needs
    kept = {name: (each, tuple(n for n in ns if n in found)) for name, (each, ns) in found.items()}
    return dict(sorted(kept.items()))


def _required(name: str, *, extras: bool = False) -> list[str]:
    """List the names that a distribution requires; none of one that is not installed."""
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    barred = _TOOLS if extras else _EXTRAS
    names = [re.match(r"[\w.-]+", text) for text in texts if not barred.search(text)]
    return [re.sub(r"[-_.]+", "-", each[0]).lower() for each in names if each]


def declared(about: importlib.metadata.PackageMetadata) -> str:
    """Read what a distribution declares: the expression, the classifier, or the first words."""
    if "License-Expression" in about:
        return str(about["License-Expression"])
    for classifier in about.get_all("Classifier") or []:
        if classifier.startswith("License ::"):
            return str(classifier).rpartition(" :: ")[2]
    return (about["License"] or "").strip().partition("\n")[0][:60] or "not declared"
