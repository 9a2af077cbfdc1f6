"""Make the methods that a command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matcher import terminal
from matcher.options import method_from

if TYPE_CHECKING:
    from matcher.types import Matcher


def build(
    names: str,
    device: str,
    keypoints: int | None = None,
    *,
    refine: bool = False,
    grow: bool = False,
    turns: bool | None = None,
) -> dict[str, Matcher]:
    """Make methods, by the label of their rows.

    Args:
        names: With commas between them.
        device: As in `matcher.create`.
        keypoints: A budget for those that have one.
        refine: As in `matcher.create`.
        grow: Likewise.
        turns: Likewise.
    """
    from matcher import matching

    stages = {"refine": refine, "grow": grow, "turns": turns}
    named = ["turns"] * bool(turns) + ["grow" if grow else "refine"] * refine
    made = {}
    for label in names.split(","):
        name, fields = method_from(label)
        options: dict[str, Any] = {"device": device, **stages, **fields}
        with terminal.working(f"loading {label}"):
            try:
                budget: dict[str, Any] = {} if keypoints is None else {"max_keypoints": keypoints}
                method = matching.create(name, **(budget | options))
            except TypeError:  # the method has no such budget
                method = matching.create(name, **options)
        made[" + ".join([label, *named])] = method
    return made


def build_one(label: str, device: str) -> Matcher:
    """Make one method, without the stages round it."""
    return build(label, device, turns=False)[label]
