"""How the command prints: results to standard output, progress and errors to standard error."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_WIDE = 240  # columns of a table that goes to a file or a pipe


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal that something is going on."""
    with Console(stderr=True).status(f"{what} …"):
        yield


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how much of a long piece of work is done; yields a function of (done, total)."""
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal  # where it would leave an empty line
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def print_table(rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of text under the columns that some row fills; nothing for no rows."""
    if not rows:
        return
    titles = [title for title in rows[0] if any(row[title] for row in rows)]
    table = Table(*titles, header_style="bold", box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(row[title])) for title in titles))
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table)


def print_line(line: str, style: str = "") -> None:
    """Print one line as it is."""
    Console(soft_wrap=True).print(Text(printable(line), style=style))


def printable(text: str) -> str:
    """Replace what would steer a terminal: names of files may hold any letters."""
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for letter in text
    )


def finish(summary: str, written: Iterable[Path] = ()) -> None:
    """Print the one line that ends a command: what was found, and which files were written."""
    paths = ", ".join(map(str, written))
    print_line(summary + (f"; wrote {paths}" if paths else ""))


def announce(address: str, *, browser: bool) -> None:
    """Tell where a page is served, and open it where that is wanted."""
    print_line(f"{address}   Ctrl-C ends it")
    if browser:
        webbrowser.open(address)


def fail(message: str, code: int) -> int:
    """Print an error as one red line; return the exit code."""
    line = printable(" ".join(message.split()))
    Console(stderr=True, soft_wrap=True).print(Text(f"error: {line}", style="red"))
    return code
