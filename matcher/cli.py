"""The command `matcher`: what it is made of, and how it ends.

Exit codes: 0 done (finding nothing is done too), 1 failed, 2 wrong usage, 130 interrupted. Results go to standard
output, progress and errors to standard error. A failure is one line; `--debug`, anywhere on the
command line, shows where it came from.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

import matcher
from matcher import terminal
from matcher.commands import (
    about,
    benchmarking,
    comparing,
    evaluating,
    exporting,
    matching,
    mining,
    models,
    sfm,
    training,
    watching,
)

_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # which typer does not export
_INTERRUPTED = 130  # what a shell reports after Ctrl-C

app = typer.Typer(
    help="Find the points of two images that show the same spot.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Callable[..., Any]] = {
    "match": matching.match_images,
    "find": matching.find_templates,
    "draw": matching.draw_pictures,
    "compare": comparing.compare_methods,
    "explore": comparing.explore_pair,
    "evaluate": evaluating.evaluate_methods,
    "report": evaluating.write_report,
    "bench": benchmarking.bench,
    "watch": watching.watch,
    "mine": mining.mine,
    "samples": training.samples,
    "train": training.train,
    "export": exporting.export,
    "methods": about.list_methods,
    "doctor": about.doctor,
    "selftest": about.selftest,
    "licences": about.show_licences,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(models.app, name="models")
app.add_typer(sfm.app, name="sfm")


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
        return terminal.fail(_told(error), 1)
    if code == _INTERRUPTED:  # some versions of typer return it, others raise
        return terminal.fail("interrupted", _INTERRUPTED)
    return int(code) if isinstance(code, int) else 0


_NO_MEMORY = "can't allocate memory", "bad_alloc", "Insufficient memory"  # torch, C++, OpenCV


def _told(error: Exception) -> str:
    """Write what failed, and where that is known, what to do."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; `pip install tiepoint` brings it"
    if isinstance(error, OSError | ValueError | ImportError):
        return str(error)
    if isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY):
        return f"the memory does not do: take smaller images or fewer points ({error})"
    return f"{type(error).__name__}: {error}"


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
