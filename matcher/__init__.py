"""Find the points of two images that show the same spot of the scene.

    import matcher

    method = matcher.create("loftr")
    matches = matcher.match(method, "a.jpg", "b.jpg")

Names are loaded when first used, so `import matcher` needs neither torch nor any optional package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matcher.growth import grow
    from matcher.images import read
    from matcher.matching import create, match
    from matcher.methods import names as list_methods
    from matcher.refinement import refine
    from matcher.templates import find
    from matcher.tracking.tracker import Tracker
    from matcher.types import Description, Matcher, Matches, Pair, ScoreMap, TemplateHit

__version__ = "0.1.0"

_HOME = {
    "Description": "types",
    "Matcher": "types",
    "Matches": "types",
    "Pair": "types",
    "ScoreMap": "types",
    "TemplateHit": "types",
    "Tracker": "tracking.tracker",
    "create": "matching",
    "find": "templates",
    "grow": "growth",
    "list_methods": "methods",
    "match": "matching",
    "read": "images",
    "refine": "refinement",
}

__all__ = [
    "Description",
    "Matcher",
    "Matches",
    "Pair",
    "ScoreMap",
    "TemplateHit",
    "Tracker",
    "create",
    "find",
    "grow",
    "list_methods",
    "match",
    "read",
    "refine",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'matcher' has no attribute {name!r}")
    try:
        module = importlib.import_module(f"matcher.{_HOME[name]}")
    except ModuleNotFoundError as error:
        message = f"matcher.{name} needs {error.name}, which `pip install tiepoint` brings"
        raise ImportError(message, name=error.name) from error
    return getattr(module, "names" if name == "list_methods" else name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
