"""Match two images, draw what was matched, find templates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from matcher import terminal
from matcher.commands.building import build_one
from matcher.options import (
    Device,
    Grow,
    ImageFile,
    MaskFile,
    Method,
    OptionItems,
    Out,
    OutFolder,
    Picture,
    Scales,
    TruthFile,
    Turns,
    Weights,
    check_label,
    fields_from,
    weights_from,
)

if TYPE_CHECKING:
    from matcher.types import TemplateHit


def match_images(
    image0: ImageFile,
    image1: ImageFile,
    method: Method = "loftr",
    out: Out = None,
    picture: Picture = None,
    mask0: MaskFile = None,
    mask1: MaskFile = None,
    device: Device = "auto",
    weights: Weights = "default",
    refine: Annotated[bool, typer.Option(help="Move matches to sub-pixel places.")] = True,
    grow: Grow = True,
    turns: Turns = None,
    scale: Scales = [],  # noqa: B006  typer copies it
    option: OptionItems = [],  # noqa: B006
) -> None:
    """Match two images."""
    from matcher import images, matching, storage

    masks = [None if mask is None else images.read_mask(mask) for mask in (mask0, mask1)]
    with terminal.working(f"loading {method}"):
        stages = {"refine": refine, "grow": grow, "turns": turns, "scales": scale or None}
        options = {"weights": weights_from(weights), **stages, **fields_from(option)}
        made = matching.create(method, device=device, **options)
    with terminal.working(f"matching by {method}"):
        start = time.perf_counter()
        found = matching.match(made, image0, image1, mask0=masks[0], mask1=masks[1])
        seconds = time.perf_counter() - start
    written = [] if out is None else [storage.save_matches(found, out)]
    if picture is not None:
        from matcher.explore import plots

        title = f"{method}   {image0.name} ↔ {image1.name}"
        written.append(plots.draw_matches(image0, image1, found, picture, title=title))
    warning = "; untrained, so they mean nothing" if found.untrained else ""
    count = f"{len(found)} {'match' if len(found) == 1 else 'matches'}"
    terminal.finish(f"{count} by {method} in {seconds:.2f} s{warning}", written)


def draw_pictures(
    image0: ImageFile,
    image1: ImageFile,
    method: Annotated[
        str,
        typer.Option("--method", "-m", callback=check_label, help="NAME, or NAME:option=value."),
    ] = "superglue",
    truth: TruthFile = None,
    resize: Annotated[int, typer.Option(min=64, help="Larger images are shrunk to it.")] = 640,
    device: Device = "auto",
    out: OutFolder = Path("runs/pictures"),
) -> None:
    """Draw all there is to see of a pair: matches, models, stages, attention."""
    from matcher.explore import opened, pictures

    makers = {method: partial(build_one, method, device)}
    pair = opened.open_pair(opened.find_pair(image0, image1, truth), makers, resize)
    with terminal.working("drawing"):
        drawn = pictures.draw_pair(pair, method, out)
    terminal.finish(f"{len(drawn)} pictures", drawn)


def find_templates(
    template: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help="One or more templates.")
    ],
    scene: ImageFile,
    threshold: Annotated[float | None, typer.Option(help="Least score, above 0 up to 1.")] = None,
    angles: Annotated[
        tuple[float, float] | None, typer.Option(help="From and to, degrees counter-clockwise.")
    ] = None,
    scales: Annotated[tuple[float, float] | None, typer.Option(help="From and to.")] = None,
    out: Out = None,
    picture: Picture = None,
    option: OptionItems = [],  # noqa: B006  typer copies it
) -> None:
    """Find templates in a scene: where, how turned, how large."""
    from matcher import storage, templates

    given = {"threshold": threshold, "angles": angles, "scales": scales}
    options = fields_from(option) | {name: v for name, v in given.items() if v is not None}
    wanted = template if len(template) > 1 else template[0]
    with terminal.working("searching"):
        start = time.perf_counter()
        search = templates.search(wanted, scene, **options)
        seconds = time.perf_counter() - start
    terminal.print_table([_hit(hit, template) for hit in search.hits])
    for path, report in zip(template, search.reports, strict=True):
        if report.status != "searched":
            terminal.print_line(f"{path}: {report.status}, {report.reason}")
        elif report.best_rejected and not search.hits:
            terminal.print_line(f"{path}: best score {report.best_rejected:.2f}, no hit")
    written = [] if out is None else [storage.save_hits(search.hits, out)]
    if picture is not None:
        from matcher.explore import plots

        written.append(plots.draw_hits(scene, search.hits, picture, title=scene.name))
    count = f"{len(search.hits)} {'detection' if len(search.hits) == 1 else 'detections'}"
    terminal.finish(f"{count} in {seconds:.2f} s", written)


def _hit(hit: TemplateHit, templates: Sequence[Path]) -> dict[str, str]:
    """Write one hit as cells."""
    return {
        "template": templates[hit.template].name,
        "x": f"{hit.x:.2f}",
        "y": f"{hit.y:.2f}",
        "angle °": f"{hit.angle_degrees:.2f}",
        "scale": f"{hit.scale:.4f}",
        "score": f"{hit.score:.4f}",
        "detail": f"{hit.detail:.2f}",
    }
