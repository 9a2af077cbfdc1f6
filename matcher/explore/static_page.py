"""Write one pair as a page of one file that opens without a server: the same page, with its answers inside."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

import numpy as np

from matcher.explore import payload
from matcher.explore.opened import Opened

SCRIPTS = ("source.js", "draw.js", "explorer.js")  # in this order
COLUMNS = 12  # of points of image 0 that can be chosen; rows as the image's shape asks
_MAP_COLUMNS = 160  # of a recorded NCC map


def static_page(opened: Opened) -> bytes:
    """Ask every method about points all over image 0, and put the answers into the page.

    Args:
        opened: A pair; each of its methods matches it where it did not yet, and raises what it raises.

    Returns:
        HTML.
    """
    points = _points(opened)
    recorded: payload.Json = {
        "pair": payload.of_pair(opened),
        "images": [_data_address("image/jpeg", shown.jpeg()) for shown in opened.shown],
        "points": points,
        "pixels": [
            payload.of_pixels(opened.pixels(point), opened.true_place(point), _MAP_COLUMNS)
            for point in points
        ],
        "methods": _methods(opened, points),
    }
    return _inlined(payload.encode(recorded).decode()).encode()


def _points(opened: Opened) -> list[payload.Point]:
    """Choose a point in each cell of a grid: the first method's best match there, else its middle."""
    height, width = opened.shown[0].working_size
    rows = max(1, round(COLUMNS * height / width))
    size = np.array([width / COLUMNS, height / rows])
    matches = opened.fitted(next(iter(opened.makers))).probe.matches
    best: dict[tuple[int, int], payload.Point] = {}
    for x, y in matches.points0.round().tolist():
        best.setdefault((int(x // size[0]), int(y // size[1])), (x, y))
    middles = {
        (column, row): (round((column + 0.5) * size[0]), round((row + 0.5) * size[1]))
        for row in range(rows)
        for column in range(COLUMNS)
    }
    return [best.get(cell, middle) for cell, middle in middles.items()]


def _methods(opened: Opened, points: list[payload.Point]) -> payload.Json:
    """Record each method that works, by label."""
    recorded: payload.Json = {}
    for label in opened.makers:
        fitted = opened.fitted(label)
        answers = [payload.of_answer(fitted, point, opened) for point in points]
        recorded[label] = {"matches": payload.of_matches(fitted), "answers": answers}
    return recorded


def _inlined(recorded: str) -> str:
    """Put style, scripts and record into the page; nothing else may run or load there."""
    folder = resources.files("matcher.explore").joinpath("page")
    page, style = (
        folder.joinpath(name).read_text("utf-8") for name in ("index.html", "explorer.css")
    )
    script = "\n".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    before, _, rest = page.partition("<!-- style -->")
    _, _, rest = rest.partition("<!-- end of style -->")
    body, _, rest = rest.partition("<!-- scripts -->")
    _, _, after = rest.partition("<!-- end of scripts -->")
    parts = [
        before,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n',
        f"<style>{style}</style>",
        body,
        f'<script type="application/json" id="recorded">{recorded}</script>\n',
        f"<script>{script}</script>",
        after,
    ]
    return "".join(parts)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data_address(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
