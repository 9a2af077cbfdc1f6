"""Time the explorer on a 640 x 480 pair: first paint, and the answers for a clicked point.

Needs the extra `app`, playwright and Chromium. Limits: first paint 2 s, maps of a point 0.3 s.
"""

from __future__ import annotations

import queue
import shutil
import statistics
import threading
import time

import numpy as np
from playwright.sync_api import Page, sync_playwright

from matcher import assets, matching
from matcher.explore import opened, server
from matcher.types import Pair

_POINTS = 8  # clicked, each once
_METHODS = ("superglue", "loftr")


def main() -> None:
    """Print a table of medians and worst cases in milliseconds."""
    folder = assets.folder("data") / "images"
    pair = Pair("turn", folder / "turn_0.jpg", folder / "turn_1.jpg")  # 640 x 479
    makers = {
        name: lambda name=name: matching.create(name, refine=False, turns=False)
        for name in _METHODS
    }
    shown = opened.open_pair(pair, makers, 640)
    told: queue.Queue[str] = queue.Queue()
    threading.Thread(target=server.serve, args=(shown, 0, told.put), daemon=True).start()
    address = told.get()
    for name in _METHODS:
        shown.fitted(name)
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=shutil.which("chromium"))
        paints = [_first_paint(browser.new_page(), address) for _ in range(3)]
        _tell("first contentful paint", paints, 2000)
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        for name in _METHODS:
            page.goto(address)
            page.wait_for_selector("body[data-point]")
            page.select_option("#method", name)
            page.wait_for_selector("#stages:not(:has(.waiting))")
            _tell(f"{name}: click to all maps drawn", _clicks(page), 300)
        browser.close()


def _first_paint(page: Page, address: str) -> float:
    page.goto(address)
    page.wait_for_selector("body[data-point]")
    paint = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
    milliseconds = float(page.evaluate(paint))
    page.close()
    return milliseconds


def _clicks(page: Page) -> list[float]:
    """Click points all over image 0; each waits until every map of it is drawn."""
    box = page.locator("#frame0").bounding_box()
    if box is None:
        raise RuntimeError("the page has no image 0")
    times = []
    for x, y in np.random.default_rng(0).uniform(0.05, 0.95, (_POINTS, 2)):
        start = time.perf_counter()
        place = {"x": float(x * box["width"]), "y": float(y * box["height"])}
        page.locator("#frame0").click(position=place)  # type: ignore[arg-type]
        page.wait_for_selector("#stages:not(:has(.waiting))")
        times.append(1000 * (time.perf_counter() - start))
    return times


def _tell(what: str, times: list[float], limit: float) -> None:
    median, worst = statistics.median(times), max(times)
    print(
        f"{what:36} median {median:5.0f} ms  worst {worst:5.0f} ms  limit {limit:.0f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
