"""The options of the command line: their types, names, checks and readers."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from matcher import methods

FINDER = "find"  # `matcher.find`, where templates are searched
DEFAULT_METHODS = "ncc,superglue,loftr"  # those that need no optional package


class RefineChoice(StrEnum):
    """Whether matches are scored as found, refined, or both."""

    OFF = "off"
    ON = "on"
    BOTH = "both"


def _check_method(name: str) -> str:
    if name not in methods.names():
        raise typer.BadParameter(f"no method {name!r}; there are {', '.join(methods.names())}")
    return name


def check_label(label: str) -> str:
    """Check a method with its options: "superglue:front_end=aliked"."""
    _check_method(label.partition(":")[0])
    return label


def _check_methods(names: str) -> str:
    """Check a comma-separated list."""
    return ",".join(check_label(name) for name in _listed(names))


def _check_measured(names: str) -> str:
    """Check a comma-separated list that may have the template finder too."""
    listed = _listed(names)
    return ",".join(n if n.partition(":")[0] == FINDER else check_label(n) for n in listed)


def _listed(names: str) -> list[str]:
    listed = [name.strip() for name in names.split(",") if name.strip()]
    if not listed:
        raise typer.BadParameter(f"no methods; there are {', '.join(methods.names())}")
    return listed


def _check_ending(*allowed: str) -> Callable[[Path | None], Path | None]:
    """Refuse a file name before the work is done, not after."""

    def check(path: Path | None) -> Path | None:
        if path is not None and path.suffix.lower() not in allowed:
            raise typer.BadParameter(f"{path} must end in {', '.join(allowed)}")
        return path

    return check


def _check_option(items: list[str]) -> list[str]:
    for item in items:
        if "=" not in item:
            raise typer.BadParameter(f"{item!r} must be name=value")
    return items


ImageFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Image file.")]
MaybeImage = Annotated[Path | None, typer.Argument(exists=True, dir_okay=False, help="Image file.")]
Method = Annotated[
    str, typer.Option("--method", "-m", callback=_check_method, help="One of `matcher methods`.")
]
Methods = Annotated[
    str,
    typer.Option(
        "--methods",
        "-m",
        callback=_check_methods,
        help="Names with commas between; NAME:option=value too.",
    ),
]
Measured = Annotated[
    str,
    typer.Option(
        "--methods",
        "-m",
        callback=_check_measured,
        help="Names with commas between; NAME:option=value too; find for `matcher find`.",
    ),
]
Grow = Annotated[
    bool,
    typer.Option(
        "--grow/--no-grow", help="Add matches that correlation finds between the refined ones."
    ),
]
Turns = Annotated[
    bool | None,
    typer.Option(
        "--turns/--no-turns",
        help="Try quarter turns of image 1 where a pair does not match.",
        show_default="superglue and loftr do",
    ),
]
Scales = Annotated[
    list[float],
    typer.Option(
        "--scale",
        help="Try either image at this factor of its size too; repeatable. superglue and loftr "
        "try 0.5 and 2 unasked, unless --no-turns.",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
Weights = Annotated[str, typer.Option(help="default, a file or folder, or none (random weights).")]
Out = Annotated[
    Path | None,
    typer.Option(callback=_check_ending(".npz", ".csv", ".json"), help="Write .npz, .csv, .json."),
]
OutFolder = Annotated[Path, typer.Option(file_okay=False, help="Folder for the results.")]
Picture = Annotated[
    Path | None,
    typer.Option(
        callback=_check_ending(".png", ".jpg", ".pdf", ".svg"), help="Draw .png, .jpg, .pdf, .svg."
    ),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html", callback=_check_ending(".html"), help="Write a page of one file, and end."
    ),
]
TruthFile = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="Homography (3 x 3) or manifest."),
]
MaskFile = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="Picture, bright where allowed.")
]
OptionItems = Annotated[
    list[str],
    typer.Option("--option", "-o", callback=_check_option, help="Field of the method: name=value."),
]


def weights_from(text: str) -> str | None:
    """Read the option `--weights`."""
    return None if text == "none" else text


def method_from(text: str) -> tuple[str, dict[str, Any]]:
    """Read a method and its options: "superglue:front_end=aliked:max_keypoints=2048".

    Raises:
        ValueError: An option has no value.
    """
    name, *items = text.strip().split(":")
    for item in items:
        if "=" not in item:
            raise ValueError(f"{item!r} in {text!r} must be option=value")
    return name, fields_from(items)


def fields_from(items: Sequence[str]) -> dict[str, Any]:
    """Read name=value items; values are Python literals, in TOML's spelling too, else text."""
    fields: dict[str, Any] = {}
    for item in items:
        name, _, text = item.partition("=")
        text = {"true": "True", "false": "False"}.get(text, text)
        try:
            fields[name.strip()] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            fields[name.strip()] = text
    return fields
