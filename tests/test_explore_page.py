"""The explorer's page in a real browser: what a person with a mouse, keys or a phone meets."""

from __future__ import annotations

import base64
import queue
import re
import threading
from pathlib import Path
from shutil import which

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import assets, matching
from matcher.explore import opened, server, static_page
from matcher.types import Homography, Pair

playwright = pytest.importorskip("playwright.sync_api")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
CHROMIUM = which("chromium") or which("chromium-browser") or which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium on the system")

DX, DY = 24, -16
STAGES = ("pixels", "before", "attention", "after", "assignment", "match")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two crops of one photograph: (x, y) of the first is (x + 24, y - 16) of the second."""
    photo = PilImage.open(assets.folder("data") / "photos" / "china.jpg").convert("RGB")
    folder = tmp_path_factory.mktemp("crops")
    paths = [folder / "first.png", folder / "second.png"]
    photo.crop((100, 60, 420, 300)).save(paths[0])
    photo.crop((100 - DX, 60 - DY, 420 - DX, 300 - DY)).save(paths[1])
    return paths


@pytest.fixture(scope="module")
def pair(files):
    def make(name):
        return lambda: matching.create(name, device="cpu", refine=False)

    truth = Homography(np.array([[1.0, 0, DX], [0, 1, DY], [0, 0, 1]]))
    makers = {name: make(name) for name in ("superglue", "loftr")}
    made = opened.open_pair(Pair("crops", *files, truth), makers, 640)
    made.fitted("superglue")
    return made


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM)
        yield started
        started.close()


@pytest.fixture
def address(pair):
    """Serve a pair of its own to each test, so that exchanged pictures reach no other."""
    told = queue.Queue()
    serving = threading.Thread(target=server.serve, args=(pair, 0, told.put), daemon=True)
    serving.start()
    return told.get(timeout=60)


@pytest.fixture
def page(browser):
    """A page that fails the test on any error in it."""
    opened_page = browser.new_page(viewport={"width": 1200, "height": 800})
    errors = []
    opened_page.on("pageerror", lambda error: errors.append(str(error)))
    opened_page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    yield opened_page
    opened_page.close()
    assert errors == []


def visit(page, address):
    page.goto(address)
    page.wait_for_selector("body[data-point]", timeout=90_000)


def answered(page):
    page.wait_for_selector("#stages:not(:has(.waiting))", timeout=90_000)


def click(page, x, y):
    """Click pixel (x, y) of image 0 and wait for the answer."""
    box = page.locator("#frame0").bounding_box()
    scale = box["width"] / 320
    page.locator("#frame0").click(position={"x": (x + 0.5) * scale, "y": (y + 0.5) * scale})
    answered(page)


def peaks(page):
    told = {}
    for stage in STAGES:
        card = page.locator(f"#{stage}")
        told[stage] = (float(card.get_attribute("data-x")), float(card.get_attribute("data-y")))
    return told


def check_peaks(page, x, y):
    for stage, (peak_x, peak_y) in peaks(page).items():
        assert abs(peak_x - x - DX) < 5, stage
        assert abs(peak_y - y - DY) < 5, stage


def a_match(pair, row):
    return tuple(int(v) for v in pair.fitted("superglue").probe.matches.points0[row].round())


def test_a_click_shows_every_stage_peak_at_the_true_place(page, pair, address):
    visit(page, address)
    x, y = a_match(pair, 5)

    click(page, x, y)

    assert page.get_by_label("x", exact=True).input_value() == str(x)
    check_peaks(page, x, y)
    assert re.search(r"\d\.\d px from the true place", page.inner_text("#pixels .told"))
    assert f"Point {x}, {y}: matched to" in page.inner_text("#said")
    page.get_by_label("Layer").fill("6")
    assert page.inner_text("#layer-told") == "6 of 6"
    assert "Peak at" in page.locator("#attention canvas").get_attribute("aria-label")


def test_the_brightest_place_of_a_drawn_map_is_its_peak(page, pair, address):
    visit(page, address)
    x, y = a_match(pair, 3)

    click(page, x, y)
    shown = page.evaluate(
        """() => {
          const canvas = document.querySelector("#assignment canvas");
          const {width, height} = canvas, data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
          let best = 0, place = 0;
          for (let i = 0; i < data.length; i += 4) {
            const light = data[i] + data[i + 1] - data[i + 2];
            if (light > best) { best = light; place = i / 4; }
          }
          return [place % width / width * 320, Math.floor(place / width) / height * 240];
        }"""
    )

    np.testing.assert_allclose(shown, [x + DX, y + DY], atol=12)


def test_keys_move_the_point_and_go_through_the_matches(page, address):
    visit(page, address)
    page.locator("#frame0").focus()
    x, y = page.get_by_label("x", exact=True), page.get_by_label("y", exact=True)
    x.fill("100")
    x.press("Enter")
    y.fill("90")
    y.press("Enter")
    page.locator("#frame0").focus()

    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    answered(page)

    assert (x.input_value(), y.input_value()) == ("101", "100")
    page.keyboard.press("n")
    answered(page)
    assert "matched to" in page.inner_text("#said")
    assert page.locator("#said").get_attribute("aria-live") == "polite"


def test_all_controls_have_names_and_a_phone_needs_no_sideways_scrolling(page, address):
    page.set_viewport_size({"width": 390, "height": 844})

    visit(page, address)

    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button, canvas[role=img], [role=application]")]
          .filter((e) => !(e.labels?.length || e.ariaLabel || e.getAttribute("aria-label")
            || (e.tagName === "BUTTON" && e.textContent.trim()))).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    boxes = [page.locator(f"#frame{side}").bounding_box() for side in (0, 1)]
    assert boxes[1]["y"] > boxes[0]["y"] + boxes[0]["height"]


def test_methods_filters_and_overlay_can_be_changed(page, address):
    visit(page, address)

    page.get_by_label("Method").select_option("loftr")
    page.wait_for_selector("#assigned-by:text('dual softmax')", timeout=90_000)
    answered(page)
    total = page.inner_text("#count")
    page.get_by_label("Confidence from").fill("0.99")
    page.get_by_label("Colours show").select_option("score")

    assert page.inner_text("#count") != total
    assert "least confident" in page.inner_text("#legend")
    page.locator("#overlay-how").select_option("blink")
    assert "blink" in page.locator("#overlay").get_attribute("class")
    transform = page.locator("#curtain img").evaluate("image => image.style.transform")
    numbers = [float(v) for v in transform[9:-1].split(",")]
    scale = page.locator("#overlay").bounding_box()["width"] / 320
    np.testing.assert_allclose([numbers[12] / scale, numbers[13] / scale], [DX, DY], atol=0.3)


def test_pictures_are_opened_and_dropped_in(page, files, address):
    visit(page, address)
    name = "<img src=x onerror=alert(1)>.png"
    data = files[1].read_bytes()

    page.locator("input[type=file]").nth(0).set_input_files(
        {"name": name, "mimeType": "image/png", "buffer": data}
    )
    page.wait_for_selector("figcaption:has-text('onerror')", timeout=90_000)
    answered(page)
    page.evaluate(
        """(text) => {
          const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], "dropped.png"));
          const drop = new DragEvent("drop", { dataTransfer: transfer, bubbles: true });
          document.querySelector("#frame1").dispatchEvent(drop);
        }""",
        base64.b64encode(files[0].read_bytes()).decode(),
    )
    page.wait_for_selector("figcaption:has-text('dropped.png')", timeout=90_000)
    page.wait_for_selector("#summary:has-text('matches')", timeout=90_000)
    answered(page)

    assert name in page.locator("figcaption").nth(0).inner_text()
    x, y = (float(page.locator("#pixels").get_attribute(f"data-{axis}")) for axis in "xy")
    point = [float(v) for v in page.locator("body").get_attribute("data-point").split(",")]
    np.testing.assert_allclose([x - point[0], y - point[1]], [-DX, -DY], atol=4)


def test_what_is_no_picture_is_told(page, address):
    visit(page, address)

    page.locator("input[type=file]").nth(1).set_input_files(
        {"name": "x.png", "mimeType": "image/png", "buffer": b"nothing"}
    )
    page.wait_for_selector("#trouble:not([hidden])")

    assert "cannot be read" in page.inner_text("#trouble")


def test_a_saved_page_opens_without_a_server(page, address, tmp_path, monkeypatch):
    monkeypatch.setattr(static_page, "COLUMNS", 4)
    visit(page, address)
    with page.expect_download(timeout=120_000) as saving:
        page.get_by_role("button", name="Save as one page").click()
    path = tmp_path / "saved.html"
    saving.value.save_as(path)
    asked = []
    page.on("request", lambda request: asked.append(request.url))

    visit(page, path.as_uri())
    click(page, 40, 60)

    assert {Path(url).suffix for url in asked if not url.startswith("data:")} == {".html"}
    x, y = (float(v) for v in page.locator("body").get_attribute("data-point").split(","))
    peak = peaks(page)["pixels"]
    np.testing.assert_allclose(peak, [x + DX, y + DY], atol=1)
    assert not page.get_by_role("button", name="Save as one page").is_visible()
