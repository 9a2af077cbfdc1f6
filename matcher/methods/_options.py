"""Share a method's options out between the dataclasses of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

_Options = TypeVar("_Options")


def split(
    kind: type[_Options], options: Mapping[str, Any], **defaults: Any
) -> tuple[_Options, dict[str, Any]]:
    """Make one part's options, and give back those that are not its own.

    Args:
        kind: A dataclass.
        options: The method's options.
        **defaults: Where the method's differ from the dataclass's.
    """
    own = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    mine = defaults | {name: value for name, value in options.items() if name in own}
    return kind(**mine), {name: value for name, value in options.items() if name not in own}
