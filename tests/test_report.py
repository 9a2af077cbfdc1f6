"""The report of an evaluation: one page, offline, the same from the same results."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image as PilImage

from matcher import cli
from matcher.evaluation import charts, curves, pictures, readme, report, tables
from matcher.evaluation.records import Kind, Outcome, Record, Score
from matcher.evaluation.runner import evaluate, read_evaluation
from matcher.evaluation.settings import Settings
from matcher.geometry.cameras import transfer
from matcher.types import Homography, Matches, Pair, Unrelated

SHIFT = np.array([[1.0, 0, 8], [0, 1, -4], [0, 0, 1]])


def method(noise, wrong=0.0):
    """A function that matches by the known shift, some of it wrong, with fitting scores."""

    def match(image0, image1):
        generator = np.random.default_rng(0)
        points0 = generator.uniform(10, 80, (60, 2))
        points1 = transfer(SHIFT, points0) + generator.normal(0, noise, (60, 2))
        bad = generator.random(60) < wrong
        points1[bad] = generator.uniform(10, 80, (int(bad.sum()), 2))
        return Matches(points0, points1, np.where(bad, 0.2, 0.9)).sorted()

    return match


def broken(image0, image1):
    """A method that raises."""
    raise RuntimeError("<no> & never")


@pytest.fixture
def made(tmp_path, texture):
    """An evaluation of four methods with a sweep, unrelated pairs and failures; and its parts."""
    for number in range(6):
        PilImage.fromarray(texture(96, 128, number)).save(tmp_path / f"{number}.png")

    def pair(name, number, truth, group, level=None):
        return Pair(name, tmp_path / "0.png", tmp_path / f"{number}.png", truth, group, level)

    pairs = [pair(f"turn {n}", n, Homography(SHIFT), "rotation", 90.0 * n) for n in (1, 2, 3)]
    pairs += [pair("flat", 4, Homography(SHIFT), "flat"), pair("none", 5, Unrelated(), "strangers")]
    methods = {
        "good": method(0.2),
        "fair": method(1.0, 0.3),
        "poor": method(6.0, 0.8),
        "broken": broken,
    }
    settings = Settings(long_side=None, homography_thresholds=(3.0, 1.0))
    evaluation = evaluate(
        methods, pairs, settings, out=tmp_path / "out", protocol="tests, version 1: made up."
    )
    return evaluation, methods, pairs, tmp_path / "out"


def test_the_page_has_every_section_and_needs_nothing_else(made):
    evaluation, methods, pairs, folder = made
    drawn = pictures.draw(evaluation, methods, pairs, folder)

    page, *others = report.write_report(evaluation, folder)

    text = page.read_text("utf-8")
    for title in (
        "Ranking by homography AUC@3",
        "Speed against accuracy",
        "Error curves",
        "By data set",
        "Sweeps",
        "Precision over recall",
        "Reliability",
        "Time and memory",
        "Inlier thresholds",
        "Failures by reason",
        "Worst and best pairs",
        "What this rests on",
    ):
        assert f">{title}<" in text
    assert [path.name for path in others] == ["table.md", "table.csv", "table.json"]
    assert "<script" not in text
    assert re.findall(r'(?:src|href)="(?!data:)', text) == []
    assert "url(" not in text
    assert text.count("data:image/jpeg") == len(drawn) == 9  # three of three methods
    for fact in ("tests, version 1: made up.", "long_side=None", "numpy", "sha256"):
        assert fact in text
    assert "&lt;no&gt; &amp; never" in text
    assert "<no>" not in text


class Balance(HTMLParser):
    """Counts that every element that opens closes."""

    VOID = frozenset({"br", "meta", "img", "line", "circle", "polyline", "rect"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_well_formed(made):
    evaluation, _, _, folder = made

    checked = Balance()
    checked.feed(report.html(evaluation, folder))

    assert checked.open == []


def test_a_killed_and_resumed_run_makes_the_same_page(made):
    evaluation, methods, pairs, folder = made
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    whole = report.html(evaluation, folder)
    (folder / "records.jsonl").write_text("".join(lines[:7]) + lines[7][:50])
    (folder / "run.json").unlink()

    resumed = evaluate(
        methods, pairs, evaluation.settings, out=folder, protocol=evaluation.protocol
    )

    def without_times(text):
        return re.sub(r"<svg class=.chart.*?</svg>|<td>[\d.]+</td>", "", text)

    here = replace(resumed, environment=evaluation.environment)
    assert without_times(report.html(here, folder)) == without_times(whole)
    assert report.html(read_evaluation(folder), folder) == report.html(resumed, folder)


def test_methods_are_ranked_with_their_distance_to_the_first(made):
    evaluation, _, _, folder = made

    text = report.html(evaluation, folder)

    ranking = text[text.index("Ranking by") : text.index("Speed against")]
    names = re.findall(r"</span>(\w+)</td>", ranking)
    assert names == ["good", "fair", "poor", "broken"]
    assert "clear" in ranking


def test_a_benchmark_of_one_kind_has_only_its_sections(made, tmp_path):
    _, methods, pairs, _ = made
    evaluation = evaluate({"good": methods["good"]}, pairs[4:], Settings(long_side=None))

    text = report.html(evaluation, tmp_path)

    for title in ("Ranking by", "By data set", "Sweeps", "Inlier thresholds"):
        assert title not in text
    assert "None: every pair has a model or needs none." in text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_browser_shows_the_page_offline_without_errors(made, width, scheme):
    browsers = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium")
    evaluation, methods, pairs, folder = made
    pictures.draw(evaluation, methods, pairs, folder)
    page = report.write_report(evaluation, folder)[0]
    problems, asked = [], []

    with browsers.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        context = browser.new_context(
            viewport={"width": width, "height": 800}, offline=True, color_scheme=scheme
        )
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        wide = tab.evaluate("document.documentElement.scrollWidth")
        shown = tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
        outside = tab.evaluate(
            """[...document.querySelectorAll('svg.chart')].flatMap(svg => {
                const box = svg.getBoundingClientRect();
                return [...svg.querySelectorAll('text')].filter(text => {
                    const own = text.getBoundingClientRect();
                    return own.left < box.left - 1 || own.right > box.right + 1;
                }).map(text => text.textContent);
            })"""
        )
        browser.close()

    assert problems == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert wide <= width
    assert shown
    assert outside == []


def record(**values):
    defaults = {
        "key": "k",
        "method": "m",
        "pair": "p",
        "group": "g",
        "kind": Kind.HOMOGRAPHY,
        "outcome": Outcome.OK,
        "score": Score(),
    }
    return Record(**{**defaults, **values})


def test_the_error_curve_steps_at_every_error():
    records = [record(score=Score(errors=((error,),))) for error in (2.0, 1.0, np.inf, 30.0)]

    curve = curves.cumulative(records, Kind.HOMOGRAPHY, 10.0)

    assert curve == [(0, 0), (1, 0), (1, 0.25), (2, 0.25), (2, 0.5), (10, 0.5)]
    assert curves.cumulative(records, Kind.POSE, 10.0) == []


def test_precision_and_recall_add_up_over_pairs():
    high = Score(by_score=((0,) * 45 + (4,), (0,) * 45 + (3,)))
    low = Score(by_score=((6,), (1,)))

    curve = curves.precision_recall([record(score=high), record(score=low)])

    assert curve == [(0.75, 0.75), (1.0, 0.4)]
    assert curves.precision_recall([record()]) == []


def test_reliability_is_that_of_the_scores_themselves():
    generator = np.random.default_rng(0)
    scores = generator.random(20_000)
    right = generator.random(20_000) < scores**2
    bins = np.minimum((scores * 50).astype(int), 49)
    counts = tuple(np.bincount(bins, minlength=50).tolist())
    hits = tuple(np.bincount(bins[right], minlength=50).tolist())

    found = curves.reliability_of([record(score=Score(by_score=(counts, hits)))])

    expected = np.mean(scores - scores**2)  # 1/6
    assert found.expected_calibration_error == pytest.approx(expected, abs=0.01)


def test_the_front_holds_those_that_no_other_beats_in_both():
    points = {"slow": (9.0, 80.0), "quick": (1.0, 50.0), "bad": (2.0, 40.0), "same": (9.0, 80.0)}

    assert curves.pareto(points) == ["quick", "slow"]


def test_sweeps_need_three_levels():
    def at(level, share):
        return record(level=level, score=Score(precision=(0, share, 1)))

    assert curves.sweeps([at(1.0, 0.5), at(2.0, 0.5)]) == []
    (sweep,) = curves.sweeps([at(3.0, 0), at(1.0, 0.5), at(2.0, 0.2), at(2.0, 0.4)])
    assert sweep.curves["m"] == [(1.0, 0.5), (2.0, pytest.approx(0.3)), (3.0, 0.0)]


def test_the_worst_and_best_are_found_and_unrelated_pairs_count_only_when_taken_for_one():
    def errors(*values):
        return Score(precision=(0, 0, 0), errors=(values,), reason="ok")

    records = [record(pair=str(e), score=errors(e)) for e in (3.0, 1.0, np.inf, 2.0)]
    stranger = record(kind=Kind.UNRELATED, pair="x", score=Score(precision=(0, 0, 0)))
    accepted = replace(stranger, pair="y", score=replace(stranger.score, same_place=True))
    refused = replace(stranger, pair="z", score=replace(stranger.score, same_place=False))

    found = pictures.extremes([*records, accepted, refused], worst=3)

    assert {r.pair for r in found.worst} == {"inf", "y", "3.0"}
    assert [r.pair for r in found.best] == ["1.0"]
    assert "error 1 px" in pictures.caption(found.best[0])


@pytest.mark.parametrize(
    ("axis", "ticks"),
    [
        (charts.Axis("x", 0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (charts.Axis("x", 0, 20), [0, 5, 10, 15, 20]),
        (charts.Axis("x", 1, 4), [1, 1.5, 2, 2.5, 3, 3.5, 4]),
        (charts.Axis("x", 3, 60, logarithmic=True), [5, 10, 20, 50]),
        (charts.Axis("x", 1, 1e4, logarithmic=True), [1, 10, 100, 1000, 10000]),
        (charts.Axis("x", 0, 9, at=(2.0, 4.0)), [2, 4]),
    ],
)
def test_ticks_are_round(axis, ticks):
    assert axis.ticks() == pytest.approx(ticks)


def test_names_are_written_beside_points_without_overlap():
    series = [
        charts.Series(f"method {n}", "s0", [(5.0, 50.0 + n / 10)], (40.0, 60.0))
        for n in "123"
        for n in [int(n)]
    ]
    x, y = charts.Axis("ms", 1, 10, logarithmic=True), charts.Axis("AUC", 0, 100)

    drawn = charts.scatter(series, x, y, ["method 3"])

    heights = [float(h) for h in re.findall(r'y="([\d.]+)">method', drawn)]
    assert np.diff(sorted(heights)).min() >= 12


def test_rows_of_one_method_share_their_colour():
    styles = charts.style_of(["a", "a + refine", "a + grow", "b", *"cdefghi"])

    assert styles["a"] == "s0"
    assert styles["a + refine"] == "s0 dashed"
    assert styles["a + grow"] == "s0 thick"
    assert styles["b"] == "s1"
    assert styles["i"] == "s0 dotted"


def test_results_go_between_the_markers_of_a_document(made, tmp_path):
    evaluation, *_ = made
    document = tmp_path / "README.md"
    document.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")

    readme.update(document, {"made": evaluation})
    first = document.read_text()
    readme.update(document, {"made": evaluation})

    assert first.startswith("before\n")
    assert first.endswith("\nafter\n")
    assert "| made: method | homography AUC@3 | false accepts | ms a pair |" in first
    row = next(
        row for row in tables.table(evaluation) if (row.method, row.group) == ("good", "all")
    )
    assert f"| good | {tables.plus_minus(row.figures['homography AUC@3'])} |" in first
    assert document.read_text() == first
    document.write_text("no markers")
    with pytest.raises(ValueError, match=r"README\.md must have the lines <!-- results"):
        readme.update(document, {"made": evaluation})


def test_several_results_are_a_table_each_of_the_methods_that_each_ran(made, tmp_path):
    evaluation, *_ = made
    kept = tuple(record for record in evaluation.records if record.method == "good")
    document = tmp_path / "README.md"
    document.write_text(f"{readme.BEGIN}\n{readme.END}\n")

    readme.update(document, {"all": evaluation, "part": replace(evaluation, records=kept)})

    rows = [line for line in document.read_text().splitlines() if line.startswith("| ")]
    second = rows[next(at for at, row in enumerate(rows) if row.startswith("| part: method")) :]
    assert len(second) == 2
    assert second[1].startswith("| good | ")


def test_new_figures_are_measured(made):
    evaluation, *_ = made

    written = json.loads(tables.write_tables(evaluation, made[3])[2].read_text())

    figures = next(row for row in written if row["method"] == "good")["figures"]
    assert figures["covered area"]["value"] > 20
    assert abs(figures["bias x px"]["value"]) < 0.2
    assert "recall@3" not in figures  # a function describes no points


def test_the_commands_write_the_report_and_put_it_into_a_document(tmp_path, texture, capsys):
    large = texture(120, 160, 0, 2.0)
    PilImage.fromarray(large[8:104, 8:136]).save(tmp_path / "a.png")
    PilImage.fromarray(large[12:108, 0:128]).save(tmp_path / "b.png")
    pairs = tmp_path / "mine.toml"
    pairs.write_text(f'[[pair]]\nimage0 = "a.png"\nimage1 = "b.png"\nH_0to1 = {SHIFT.tolist()}\n')
    out, document = tmp_path / "out", tmp_path / "README.md"
    document.write_text(f"{readme.BEGIN}\n{readme.END}\n")

    codes = [
        cli.run(["evaluate", str(pairs), "--methods", "ncc", "--out", str(out)]),
        cli.run(["report", str(out)]),
        cli.run(["report", str(out), "--readme", str(document)]),
    ]

    assert codes == [0, 0, 0]
    assert len(list((out / "pictures").iterdir())) == 2  # refined, and grown
    assert "ncc + refine" in (out / "index.html").read_text("utf-8")
    assert "| ncc + refine |" in document.read_text("utf-8")
    assert "1 pairs, 1 methods, 0 failed" in capsys.readouterr().out
