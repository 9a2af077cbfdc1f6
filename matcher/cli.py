"""The command `matcher`: one function a command; it prints through `terminal`, nothing else prints.

Exit codes: 0 done (finding nothing is done too), 1 failed, 2 wrong usage, 130 interrupted. Results go to standard
output, progress and errors to standard error. A failure is one line; `--debug`, anywhere on the
command line, shows where it came from.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import matcher
from matcher import methods, sfm_commands, terminal
from matcher.benchmark.command import bench
from matcher.export.command import export
from matcher.mining.command import mine
from matcher.options import (
    DEFAULT_METHODS,
    Device,
    HtmlFile,
    ImageFile,
    MaskFile,
    MaybeImage,
    Method,
    Methods,
    OptionItems,
    Out,
    OutFolder,
    Picture,
    RefineChoice,
    TruthFile,
    Turns,
    Weights,
    check_label,
    fields_from,
    method_from,
    weights_from,
)
from matcher.tracking.command import watch
from matcher.training.command import samples, train

if TYPE_CHECKING:
    from matcher.evaluation.compare import Comparison
    from matcher.types import Matcher, TemplateHit

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # which typer does not export
_INTERRUPTED = 130  # what a shell reports after Ctrl-C

app = typer.Typer(
    help="Find the points of two images that show the same spot.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(help="Trained weights: list, fetch, check.", no_args_is_help=True)
app.add_typer(models_app, name="models")
app.add_typer(sfm_commands.app, name="sfm")
app.command("bench")(bench)
app.command("export")(export)
app.command("mine")(mine)
app.command("train")(train)
app.command("samples")(samples)
app.command("watch")(watch)


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; return its exit code."""
    debug = "--debug" in arguments
    try:
        arguments = [argument for argument in arguments if argument != "--debug"]
        code = app(args=arguments, prog_name="matcher", standalone_mode=False)
    except _USAGE_ERROR as error:
        return terminal.fail(getattr(error, "format_message", error.__str__)(), 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except Exception as error:
        if debug:
            raise
        if isinstance(error, ModuleNotFoundError):
            return terminal.fail(f"{error}; `pip install tiepoint` brings it", 1)
        kind = "" if isinstance(error, OSError | ValueError | ImportError) else type(error).__name__
        return terminal.fail(f"{kind}: {error}".lstrip(": "), 1)
    if code == _INTERRUPTED:  # some versions of typer return it, others raise
        return terminal.fail("interrupted", _INTERRUPTED)
    return code if isinstance(code, int) else 0


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"tiepoint {matcher.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command("match")
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
    turns: Turns = False,
    option: OptionItems = [],  # noqa: B006  typer copies it
) -> None:
    """Match two images."""
    from matcher import images, matching, storage

    masks = [None if mask is None else images.read_mask(mask) for mask in (mask0, mask1)]
    with terminal.working(f"loading {method}"):
        options = {"weights": weights_from(weights), **fields_from(option)}
        made = matching.create(method, device=device, refine=refine, turns=turns, **options)
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


@app.command("find")
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
    written = [] if out is None else [storage.save_hits(search.hits, out)]
    if picture is not None:
        from matcher.explore import plots

        written.append(plots.draw_hits(scene, search.hits, picture, title=scene.name))
    count = f"{len(search.hits)} {'detection' if len(search.hits) == 1 else 'detections'}"
    terminal.finish(f"{count} in {seconds:.2f} s", written)


@app.command("compare")
def compare_methods(
    image0: ImageFile,
    image1: ImageFile,
    methods_: Methods = DEFAULT_METHODS,
    truth: TruthFile = None,
    refine: Annotated[bool, typer.Option(help="Move matches to sub-pixel places.")] = True,
    turns: Turns = False,
    device: Device = "auto",
    out: OutFolder = Path("runs/compare"),
) -> None:
    """Compare methods on one pair: a table, a picture for each method, and matches.npz."""
    from matcher.evaluation.compare import compare
    from matcher.evaluation.truth_file import read_truth
    from matcher.types import Homography

    known = None if truth is None else read_truth(truth, image0, image1)
    made = _build(methods_, device, refine, turns)
    with terminal.working(f"comparing {', '.join(made)}"):
        found = compare(image0, image1, made, known, out=out)
    error = "corner error px" if isinstance(known, Homography) else "pose error °"
    terminal.print_table([_compared(comparison, error) for comparison in found])
    pictures = [each.picture for each in found if each.picture is not None]
    terminal.finish(f"{len(found)} methods compared", [out / "matches.npz", *pictures])
    raise typer.Exit(any(":" in each.reason for each in found))


@app.command("explore")
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

    makers = {label: partial(_build_one, label, device) for label in methods_.split(",")}
    pair = opened.open_pair(opened.find_pair(image0, image1, truth), makers, resize)
    if html is None:
        server.serve(pair, port, partial(terminal.announce, browser=browser))
        return
    with terminal.working("recording"):
        page = static_page.static_page(pair)
    terminal.finish(f"{len(makers)} methods recorded", [write(html, page)])


@app.command("draw")
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

    makers = {method: partial(_build_one, method, device)}
    pair = opened.open_pair(opened.find_pair(image0, image1, truth), makers, resize)
    with terminal.working("drawing"):
        drawn = pictures.draw_pair(pair, method, out)
    terminal.finish(f"{len(drawn)} pictures", drawn)


@app.command("evaluate")
def evaluate_methods(
    benchmark: Annotated[
        str,
        typer.Argument(help="sample, synthetic, a protocol, or a list of pairs: .json .toml .txt."),
    ],
    methods_: Methods = DEFAULT_METHODS,
    refine: Annotated[RefineChoice, typer.Option(help="Score matches refined.")] = RefineChoice.ON,
    root: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder of the benchmark's data.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Take what is there of a protocol's pairs.")
    ] = False,
    resize: Annotated[
        int | None, typer.Option(min=0, help="Long side, 640 if not given; 0 keeps sizes.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Robust fits a pair, pooled; 1 if not given.")
    ] = None,
    device: Device = "auto",
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder for the report; a rerun resumes.")
    ] = None,
) -> None:
    """Run methods over the pairs of a benchmark, print their figures and write a report."""
    from matcher.evaluation import benchmarks, pictures, report, runner, tables

    chosen = benchmarks.find(
        benchmark, root, partial=partial, long_side=resize, repeats=repeats
    ).refined(refine.value)
    made = _build(methods_, device, keypoints=chosen.keypoints)
    with terminal.bar("evaluating") as advance:
        evaluation = runner.evaluate(
            made,
            chosen.pairs,
            chosen.settings,
            out=out,
            progress=lambda done, of, _: advance(done, of),
            protocol=chosen.protocol,
        )
    terminal.print_table([tables.cells(row) for row in tables.table(evaluation)])
    written: list[Path] = []
    if out is not None:
        with terminal.working("drawing the worst and best pairs"):
            pictures.draw(evaluation, made, chosen.pairs, out)
        written = report.write_report(evaluation, out)
    failed = [record for record in evaluation.records if record.outcome != "ok"]
    for record in failed:
        terminal.fail(f"{record.method}, {record.pair}: {record.detail}", 1)
    count = f"{len(chosen.pairs)} pairs, {len(made)} methods, {len(failed)} failed"
    terminal.finish(count, written)
    raise typer.Exit(bool(failed))


@app.command("report")
def write_report(
    folders: Annotated[
        list[Path], typer.Argument(exists=True, file_okay=False, help="From evaluate --out.")
    ],
    readme: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Put the results between its markers."),
    ] = None,
) -> None:
    """Write the reports of stored evaluations again, or their results into a document."""
    from matcher.evaluation import readme as document
    from matcher.evaluation import report, runner

    found = {folder: runner.read_evaluation(folder) for folder in folders}
    if readme is not None:
        written = [document.update(readme, {path.name: each for path, each in found.items()})]
    else:
        written = [path for folder in found for path in report.write_report(found[folder], folder)]
    terminal.finish(f"{len(found)} {'evaluation' if len(found) == 1 else 'evaluations'}", written)


@app.command("methods")
def list_methods() -> None:
    """List the methods."""
    for name in methods.names():
        typer.echo(f"{name:20} {_summary(name)}")


@app.command()
def doctor() -> None:
    """Show versions, OpenCV variants, devices and weights; exit with 1 if something is wrong."""
    from matcher.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        style = "red" if finding.problem else ""
        line = f"{finding.subject:32} {finding.found}"
        terminal.print_line(line, style)
    problems = sum(finding.problem for finding in findings)
    typer.echo(f"{problems} {'problem' if problems == 1 else 'problems'}")
    raise typer.Exit(bool(problems))


@app.command()
def selftest(
    methods_: Methods = DEFAULT_METHODS,
    image: Annotated[Path | None, typer.Option(exists=True, help="Default: a sample.")] = None,
    device: Device = "auto",
) -> None:
    """Match an image with itself by each method; badly loaded weights fail here."""
    from matcher.doctor import self_test

    failed = 0
    for name, method in _build(methods_, device).items():
        with terminal.working(name):
            result = self_test(method, image)
        failed += not result.passed
        share = f"{result.in_place} of {result.matches} matches in place"
        typer.echo(f"{name:20} {'passed' if result.passed else 'FAILED'}: {share}")
    raise typer.Exit(bool(failed))


@app.command("licences")
def show_licences(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the licence of the package, of each set of weights and of each dependency."""
    from matcher.licences import licences

    found = [asdict(licence) for licence in licences()]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    terminal.print_table([{key: str(value) for key, value in row.items()} for row in found])
    restricted = sum(row["restricted"] for row in found)
    typer.echo(f"{len(found)} parts, {restricted} restricted: never fetched without your consent")


@models_app.command("list")
def list_models() -> None:
    """List the sets of weights and where they are."""
    from matcher import weights
    from matcher.registry import registry

    rows = [
        {
            "name": name,
            "what": known.title,
            "MB": f"{known.size / 1e6:.1f}",
            "licence": known.licence,
            "state": weights.status(name),
        }
        for name, known in sorted(registry().items())
    ]
    terminal.print_table(rows)
    typer.echo(f"fetched weights lie in {weights.cache_folder()}")


@models_app.command("fetch")
def fetch_models(
    names: Annotated[list[str], typer.Argument(help="Names from `matcher models list`.")],
    accept_licence: Annotated[
        str | None, typer.Option(help="Short name of the restricted licence that you accept.")
    ] = None,
) -> None:
    """Fetch sets of weights from their publishers, checked by sha256."""
    from matcher import weights

    for name in names:
        with terminal.working(f"fetching {name}"):
            path = weights.fetch(name, accept_licence)
        typer.echo(f"{name} {path}")


@models_app.command("check")
def check_models() -> None:
    """Check all weights that are here; exit with 1 if one is damaged."""
    from matcher import weights
    from matcher.registry import registry

    states = {name: weights.status(name) for name in sorted(registry())}
    for name, state in states.items():
        typer.echo(f"{name:24} {state}")
    raise typer.Exit("damaged" in states.values())


def _summary(name: str) -> str:
    """Read the first line of a method's docstring, without importing its networks."""
    found = importlib.util.find_spec(f"{methods.__name__}.{name.replace('-', '_')}")
    source = Path(found.origin).read_text("utf-8") if found and found.origin else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _build(
    names: str,
    device: str,
    refine: bool = False,
    turns: bool = False,
    keypoints: int | None = None,
) -> dict[str, Matcher]:
    """Make methods, by the label of their rows; `keypoints` is a budget for those that have one."""
    from matcher import matching

    made = {}
    for label in names.split(","):
        name, fields = method_from(label)
        options = {"device": device, "refine": refine, "turns": turns, **fields}
        with terminal.working(f"loading {label}"):
            try:
                budget = {} if keypoints is None else {"max_keypoints": keypoints}
                method = matching.create(name, **(budget | options))
            except TypeError:  # the method has no such budget
                method = matching.create(name, **options)
        made[" + ".join([label, *["turns"] * turns, *["refine"] * refine])] = method
    return made


def _build_one(label: str, device: str) -> Matcher:
    return _build(label, device)[label]


def _hit(hit: TemplateHit, templates: Sequence[Path]) -> dict[str, str]:
    """Write one hit as cells."""
    return {
        "template": templates[hit.template].name,
        "x": f"{hit.x:.2f}",
        "y": f"{hit.y:.2f}",
        "angle °": f"{hit.angle_degrees:.2f}",
        "scale": f"{hit.scale:.4f}",
        "score": f"{hit.score:.4f}",
    }


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
