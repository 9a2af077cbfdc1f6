"""Trained weights: list, fetch, check."""

from __future__ import annotations

from typing import Annotated

import typer

from matcher import terminal

app = typer.Typer(help="Trained weights: list, fetch, check.", no_args_is_help=True)


@app.command("list")
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


@app.command("fetch")
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


@app.command("check")
def check_models() -> None:
    """Check all weights that are here; exit with 1 if one is damaged."""
    from matcher import weights
    from matcher.registry import registry

    states = {name: weights.status(name) for name in sorted(registry())}
    for name, state in states.items():
        typer.echo(f"{name:24} {state}")
    raise typer.Exit("damaged" in states.values())
