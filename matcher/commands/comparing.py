"""Compare methods on one pair: a table, pictures, a page to explore."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matcher import terminal
from matcher.commands.building import build, build_one
from matcher.options import (
    DEFAULT_METHODS,
    Device,
    Grow,
    HtmlFile,
    ImageFile,
    MaybeImage,
    Methods,
    OutFolder,
    TruthFile,
    Turns,
)

if TYPE_CHECKING:
    from matcher.evaluation.compare import Comparison


def compare_methods(
    image0: ImageFile,
    image1: ImageFile,
    methods_: Methods = DEFAULT_METHODS,
    truth: TruthFile = None,
    refine: Annotated[bool, typer.Option(help="Move matches to sub-pixel places.")] = True,
    grow: Grow = True,
    turns: Turns = None,
    device: Device = "auto",
    out: OutFolder = Path("runs/compare"),
) -> None:
    """Compare methods on one pair: a table, a picture for each method, and matches.npz."""
    from matcher.evaluation.compare import compare
    from matcher.evaluation.truth_file import read_truth
    from matcher.types import Homography

    known = None if truth is None else read_truth(truth, image0, image1)
    made = build(methods_, device, refine=refine, grow=grow, turns=turns)
    with terminal.working(f"comparing {', '.join(made)}"):
        found = compare(image0, image1, made, known, out=out)
    error = "corner error px" if isinstance(known, Homography) else "pose error °"
    terminal.print_table([_compared(comparison, error) for comparison in found])
    pictures = [each.picture for each in found if each.picture is not None]
    terminal.finish(f"{len(found)} methods compared", [out / "matches.npz", *pictures])
    raise typer.Exit(any(":" in each.reason for each in found))


def explore_pair(
    image0: MaybeImage = None,
    image1: MaybeImage = None,
    methods_: Methods = "superglue,loftr,ncc",
    truth: TruthFile = None,
    html: HtmlFile = None,
    resize: Annotated[int, typer.Option(min=64, help="Larger images are shrunk to it.")] = 640,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: Device = "auto",
) -> None:
    """See in a local web page how each stage answers a point; without images, of a sample pair."""
    from matcher.explore import opened, server, static_page
    from matcher.storage import write

    makers = {label: partial(build_one, label, device) for label in methods_.split(",")}
    pair = opened.open_pair(opened.find_pair(image0, image1, truth), makers, resize)
    if html is None:
        server.serve(pair, port, partial(terminal.announce, browser=browser))
        return
    with terminal.working("recording"):
        page = static_page.static_page(pair)
    terminal.finish(f"{len(makers)} methods recorded", [write(html, page)])


def _compared(found: Comparison, error: str) -> dict[str, str]:
    """Write one method's results as cells; `error` is the title of the model's error."""
    shares = [found.precision(pixels) for pixels in (1, 3, 5)]
    known = [share for share in shares if share is not None]
    return {
        "method": found.method,
        "matches": f"{len(found.matches)}",
        "inliers": f"{int(found.inliers.sum())}",
        "% within 1/3/5 px": " / ".join(f"{100 * share:.1f}" for share in known),
        error: "" if found.model_error is None else f"{found.model_error:.3f}",
        "describe ms": f"{1000 * found.describe_seconds:.0f}",
        "match ms": f"{1000 * found.match_seconds:.0f}",
        "peak MiB": f"{found.peak_mib:.0f}",
        "result": found.reason,
    }
