"""Say under which licence each part may be used: the package, weights, data, dependencies."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from matcher import weights
from matcher.assets import folder
from matcher.registry import registry


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
    """List what the installed package requires; nothing for a checkout."""
    try:
        requirements = importlib.metadata.requires("tiepoint") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for name in sorted({re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in requirements}):
        try:
            about = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        terms = f"https://pypi.org/project/{name}/"
        found.append(Licence(name, "dependency", _declared(about), terms))
    return found


def _declared(about: importlib.metadata.PackageMetadata) -> str:
    """Read what a distribution declares: the expression, the classifier, or the first words."""
    if "License-Expression" in about:
        return str(about["License-Expression"])
    for classifier in about.get_all("Classifier") or []:
        if classifier.startswith("License ::"):
            return str(classifier).rpartition(" :: ")[2]
    return (about["License"] or "").strip().partition("\n")[0][:60] or "not declared"
