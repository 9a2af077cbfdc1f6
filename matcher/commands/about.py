"""What there is, whether it works, and on which terms."""

from __future__ import annotations

import ast
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from matcher import methods, terminal
from matcher.commands.building import build
from matcher.options import DEFAULT_METHODS, Device, Methods


def list_methods() -> None:
    """List the methods."""
    for name in methods.names():
        typer.echo(f"{name:20} {_summary(name)}")


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


def selftest(
    methods_: Methods = DEFAULT_METHODS,
    image: Annotated[Path | None, typer.Option(exists=True, help="Default: a sample.")] = None,
    device: Device = "auto",
) -> None:
    """Match an image with itself by each method; badly loaded weights fail here."""
    from matcher.doctor import self_test

    failed = 0
    for name, method in build(methods_, device).items():
        with terminal.working(name):
            result = self_test(method, image)
        failed += not result.passed
        share = f"{result.in_place} of {result.matches} matches in place"
        typer.echo(f"{name:20} {'passed' if result.passed else 'FAILED'}: {share}")
    raise typer.Exit(bool(failed))


def show_licences(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    sbom: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write a bill of materials: CycloneDX, JSON."),
    ] = None,
) -> None:
    """List the licence of the package, of each set of weights and of each dependency."""
    from matcher.licences import licences

    if sbom is not None:
        from matcher.sbom import write_sbom

        terminal.finish(f"{write_sbom(sbom)} components", [sbom])
        return
    found = [asdict(licence) for licence in licences()]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    terminal.print_table([{key: str(value) for key, value in row.items()} for row in found])
    restricted = sum(row["restricted"] for row in found)
    typer.echo(f"{len(found)} parts, {restricted} restricted: never fetched without your consent")


def _summary(name: str) -> str:
    """Read the first line of a method's docstring, without importing its networks."""
    found = importlib.util.find_spec(f"{methods.__name__}.{name.replace('-', '_')}")
    source = Path(found.origin).read_text("utf-8") if found and found.origin else ""
    return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
