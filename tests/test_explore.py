"""The explorer behind its page: what is watched, asked, encoded, refused and served."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image as PilImage

from matcher import assets, cli, images, matching
from matcher.explore import opened, payload, pictures, server, static_page
from matcher.explore.probe import probe
from matcher.explore.watching import watched
from matcher.images import ImageError
from matcher.nn.loftr import Config as LoftrConfig
from matcher.nn.loftr import LoFTR
from matcher.nn.pointsets import PointSet
from matcher.nn.superglue import Config, SuperGlue
from matcher.types import Homography, Pair, ScoreMap, Unrelated

DX, DY = 24, -16
PHOTO = assets.folder("data") / "photos" / "china.jpg"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two crops of one photograph: (x, y) of the first is (x + 24, y - 16) of the second."""
    photo = PilImage.open(PHOTO).convert("RGB")
    folder = tmp_path_factory.mktemp("crops")
    paths = [folder / "first.png", folder / "second.png"]
    photo.crop((100, 60, 420, 300)).save(paths[0])
    photo.crop((100 - DX, 60 - DY, 420 - DX, 300 - DY)).save(paths[1])
    return paths


@pytest.fixture(scope="module")
def shift():
    return Homography(np.array([[1.0, 0, DX], [0, 1, DY], [0, 0, 1]]))


@pytest.fixture(scope="module")
def pair(files, shift):
    def make(name):
        return lambda: matching.create(name, device="cpu", refine=False)

    makers = {name: make(name) for name in ("superglue", "loftr", "ncc")}
    return opened.open_pair(Pair("crops", *files, shift), makers, 640)


def encoded(size, kind="PNG"):
    data = io.BytesIO()
    PilImage.new("RGB", size, (90, 120, 30)).save(data, kind)
    return data.getvalue()


# --- watching and asking ------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["superglue", "loftr", "ncc"])
def test_every_stage_peaks_at_the_true_place(pair, label):
    asked = pair.fitted(label).probe
    points0, points1 = asked.matches.points0[:20], asked.descriptions[1].points
    near = dict.fromkeys(("before", "attention", "after", "assignment", "match"), 0)

    for point in points0:
        answer = asked.answer((float(point[0]), float(point[1])))
        true = asked.descriptions[0].points[answer.token] + [DX, DY]
        found = {"before": answer.before, "after": answer.after, "assignment": answer.assignment}
        if len(answer.attention):
            found["attention"] = answer.attention.mean((0, 1))
        for name, scores in found.items():
            if scores is not None:
                near[name] += np.linalg.norm(points1[scores.argmax()] - true) < 6
        place = asked.matches.points1[answer.match] - asked.matches.points0[answer.match]
        near["match"] += np.linalg.norm(place - [DX, DY]) < 0.5

    assert near["match"] >= 19
    assert near["before"] >= 17
    if label != "ncc":
        assert min(near.values()) >= 17


def test_attention_weights_sum_to_one_and_are_those_of_the_layer(pair):
    asked = pair.fitted("superglue").probe

    answer = asked.answer((100.0, 100.0))

    assert answer.attention.shape == (6, 1, len(asked.descriptions[1]))
    np.testing.assert_allclose(answer.attention.sum(2), 1, atol=1e-5)
    rows = asked.attention(6, np.array([answer.token]))
    np.testing.assert_allclose(rows[:, 0], answer.attention[5], atol=1e-6)
    with pytest.raises(ValueError, match="layer must be 1 to 6, not 7"):
        asked.attention(7, np.array([0]))


@pytest.mark.parametrize("label", ["superglue", "loftr"])
def test_the_assignment_is_the_methods_own(pair, label):
    asked = pair.fitted(label).probe
    method = matching.create(label, device="cpu", refine=False)
    point = tuple(asked.found.points0[0])

    answer = asked.answer(point)
    own = method.score_map(asked.descriptions, point)

    assert asked.assignment.startswith({"superglue": "optimal", "loftr": "dual"}[label])
    np.testing.assert_allclose(own.scores.max(), answer.assignment.max(), rtol=1e-3)
    assert (
        own.best == tuple(asked.descriptions[1].points[answer.assignment.argmax()])
        or label == "loftr"
    )
    if label == "superglue":
        np.testing.assert_allclose(answer.assignment.sum() + answer.dustbin, 1, atol=0.05)


def test_watching_changes_nothing_and_leaves_no_hooks(files):
    method = matching.create("superglue", device="cpu", refine=False, turns=False)
    pictures_ = tuple(map(images.read, files))
    described = method.describe(list(pictures_))
    plain = method.match([tuple(described)])[0]

    asked = probe(method, pictures_)

    np.testing.assert_array_equal(plain.points1, asked.found.points1)
    assert all(not module._forward_hooks for module in method.network.modules())


def test_the_published_superglue_can_be_watched():
    network = SuperGlue(Config(layers=2)).eval()
    with watched(network) as trace, torch.inference_mode():
        network(*(_points(count) for count in (30, 20)))

    assert [(len(c.tokens0), len(c.tokens1)) for c in trace.crossings] == [(30, 20)] * 2
    weights = trace.crossings[1].weights(3)
    assert weights.shape == (4, 20)
    torch.testing.assert_close(weights.sum(1), torch.ones(4))
    assert [len(tokens) for tokens in trace.compared] == [30, 20]
    assert trace.log_assignment.shape == (31, 21)
    assert trace.of(30, 20).compared
    assert not trace.of(29, 20).crossings


def _points(count):
    generator = torch.Generator().manual_seed(count)
    points = torch.rand((1, count, 2), generator=generator) * 100
    descriptors = torch.randn((1, count, 256), generator=generator)
    return PointSet(points, torch.ones(1, count), descriptors, torch.tensor([[100.0, 100.0]]))


def test_the_published_loftr_can_be_watched():
    network = LoFTR(LoftrConfig(layers=2)).prepare()
    tokens0, tokens1 = torch.randn(1, 30, 256), torch.randn(1, 20, 256)

    with watched(network) as trace, torch.inference_mode():
        network.loftr_coarse(tokens0, tokens1)

    assert [(len(c.tokens0), len(c.tokens1)) for c in trace.crossings] == [(30, 20)] * 2
    torch.testing.assert_close(trace.crossings[0].weights(5).sum(1), torch.ones(8))
    assert [len(tokens) for tokens in trace.related] == [30, 20]


def test_pruned_layers_are_left_out_of_the_answer(files):
    method = matching.create("superglue", device="cpu", refine=False, adaptive=True)

    asked = probe(method, tuple(map(images.read, files)))
    answer = asked.answer((100.0, 100.0))

    assert 1 <= asked.layers <= len(asked.at_work)
    assert answer.attention.shape[2] == len(asked.descriptions[1])


def test_an_image_without_tokens_has_empty_answers(files):
    blank = np.full((120, 160), 0.5, np.float32)
    method = matching.create("superglue", device="cpu", refine=False)

    asked = probe(method, (blank, images.read(files[1])))
    answer = asked.answer((10.0, 10.0))

    assert len(asked.matches) == 0
    if not len(asked.descriptions[0]):
        assert answer.token == -1
        assert answer.assignment is None


# --- opening ------------------------------------------------------------------------------------


def test_large_images_are_shrunk_and_errors_are_in_given_pixels(files, shift, pair):
    small = opened.open_pair(Pair("crops", *files, shift), pair.makers, 160)

    fitted = small.fitted("ncc")

    assert small.shown[0].working_size == (120, 160)
    assert small.shown[0].size == (240, 320)
    assert np.median(fitted.errors) < 1
    np.testing.assert_allclose(small.true_place((50, 60)), (50 + DX / 2, 60 + DY / 2))
    assert fitted.model == "homography"


def test_the_patch_of_pixels_is_found_where_it_is(pair):
    assert pair.pixels((150.0, 120.0)).best == (150 + DX, 120 + DY)


def test_without_truth_nothing_is_known(files, pair):
    unknown = pair.with_image(0, files[0].read_bytes(), "again")

    assert unknown.truth is None
    assert unknown.true_place((1, 1)) is None
    assert unknown.fitted("ncc").errors is None
    assert pair.truth is not None
    unrelated = opened.open_pair(Pair("x", *files, Unrelated()), pair.makers, 640)
    assert unrelated.true_place((1, 1)) is None


def test_methods_and_images_that_are_not_there_are_refused(pair):
    with pytest.raises(ValueError, match="no method 'nc' here; there are superglue, loftr, ncc"):
        pair.fitted("nc")
    with pytest.raises(ImageError, match="cannot be read"):
        pair.with_image(0, b"no image", "x")
    with pytest.raises(ImageError, match="the image has 8000 x 8000 pixels, more than 50,000,000"):
        pair.with_image(0, _lying_png(8000), "bomb.png")
    with pytest.raises(ImageError, match="the image has 12000 x 12000 pixels"):
        pair.with_image(0, _lying_png(12000), "bomb.png")
    with pytest.raises(ImageError, match="more pixels than PIL.Image.MAX_IMAGE_PIXELS"):
        pair.with_image(0, _lying_png(60000), "bomb.png")


def _lying_png(side):
    """Make a PNG whose header claims far more pixels than it has."""
    data = bytearray(encoded((8, 8)))
    data[16:24] = side.to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def test_files_beyond_the_limit_are_refused(pair, monkeypatch):
    monkeypatch.setattr(opened, "MOST_BYTES", 2**20)
    with pytest.raises(ImageError, match="the file has more than 1 MiB"):
        pair.with_image(1, bytes(2**20 + 1), "long")


def test_two_images_or_none_make_a_pair(files):
    assert opened.find_pair(None, None).name == "light"
    assert opened.find_pair(files[0], files[1]).truth is None
    with pytest.raises(ValueError, match="give two images, or none for a sample pair"):
        opened.find_pair(files[0], None)


# --- encoding -----------------------------------------------------------------------------------


def test_json_can_stand_in_a_page_and_holds_no_nan():
    text = payload.encode({"name": "</script><script>alert(1)</script>&"}).decode()

    assert not set("<>&") & set(text)
    assert json.loads(text)["name"].startswith("</script>")
    with pytest.raises(ValueError, match="not JSON compliant"):
        payload.encode({"x": float("nan")})
    assert payload._listed(np.array([1.234, np.nan, np.inf])) == [1.23, None, None]


def test_brightness_keeps_the_best_and_negative_scores_are_dark():
    told = payload._scored(np.array([-1, 0, 0.25, 1], np.float32), None)
    rooted = payload._scored(
        np.array([0, 0.25, 1], np.float32), np.eye(3, 2, dtype=np.float32), True
    )

    assert list(base64.b64decode(told["levels"])) == [0, 0, 64, 255]
    assert list(base64.b64decode(rooted["levels"])) == [0, 128, 255]
    assert rooted["peak"] == [0, 0]
    assert payload._scored(np.zeros(0, np.float32), None) is None


def test_shrunk_maps_keep_their_peak():
    scores = np.zeros((50, 70), np.float32)
    scores[33, 61] = 1
    y, x = np.divmod(np.arange(3500), 70)
    score_map = ScoreMap(np.stack([x, y], 1).astype(np.float32), scores.ravel(), (50, 70))

    told = payload.of_pixels(score_map, None, 32)

    levels = np.frombuffer(base64.b64decode(told["levels"]), np.uint8)
    assert (told["rows"], told["columns"], told["step"]) == (17, 24, 3)
    assert divmod(int(levels.argmax()), told["columns"]) == (33 // 3, 61 // 3)
    assert told["peak"] == [61, 33]


# --- serving ------------------------------------------------------------------------------------


@pytest.fixture
def ask(pair):
    """Send one request to the application, as the page does unless told otherwise."""
    pytest.importorskip("starlette")
    app = server.create_app(pair, 8000)

    def send(path, method="GET", headers=None, body=b""):
        sent = []
        plain = {"host": "127.0.0.1:8000", **(headers or {})}
        route, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "scheme": "http", "path": route, "raw_path": route.encode(), "query_string": query.encode(),
            "root_path": "", "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 8000),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in plain.items()],
        }  # fmt: skip
        parts = [body[i : i + 65536] for i in range(0, len(body), 65536)] or [b""]

        async def receive():
            if not parts:
                return {"type": "http.disconnect"}
            part = parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def gather(message):
            sent.append(message)

        asyncio.run(app(scope, receive, gather))
        told = {k.decode(): v.decode("latin-1") for k, v in sent[0]["headers"]}
        return sent[0]["status"], told, b"".join(m.get("body", b"") for m in sent[1:])

    return send


def test_the_page_and_its_answers_are_served(ask):
    status, headers, body = ask("/")

    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"explorer.js" in body
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    for name in static_page.SCRIPTS:
        assert ask(f"/{name}")[1]["content-type"].startswith("text/javascript")
    assert ask("/image/1")[2].startswith(b"\xff\xd8")
    told = json.loads(ask("/api/pair")[2])
    assert (told["methods"], told["truth"]) == (["superglue", "loftr", "ncc"], True)
    matches = json.loads(ask("/api/matches?method=superglue")[2])
    assert matches["layers"] == 6
    answer = json.loads(ask("/api/answer?method=superglue&x=100&y=90")[2])
    assert len(answer["attention"]) == 6
    np.testing.assert_allclose(np.subtract(answer["true"], answer["token"]), [DX, DY], atol=1e-3)
    assert json.loads(ask("/api/pixels?x=100&y=90")[2])["peak"] == [100 + DX, 90 + DY]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"host": "evil.example"}, "own address only"),
        ({"host": "127.0.0.1:9"}, "own address only"),
        ({"host": ""}, "own address only"),
        ({"origin": "http://evil.example"}, "another site"),
        ({"origin": "null"}, "another site"),
        ({"sec-fetch-site": "cross-site"}, "another site"),
        ({"sec-fetch-site": "same-site"}, "another site"),
    ],
)
def test_other_hosts_and_sites_are_refused(ask, headers, reason):
    for path, method in (("/", "GET"), ("/api/pair", "GET"), ("/api/images/0", "POST")):
        status, told, body = ask(path, method, headers)

        assert status == 403
        assert reason in body.decode()
        assert "access-control-allow-origin" not in told


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/%2e%2e/pyproject.toml", "//etc/passwd", "/page/index.html",
     "/explorer.js/../server.py", "/image/../../etc/passwd", "/api/images/0/../1"],
)  # fmt: skip
def test_no_path_reads_a_file(ask, path):
    assert ask(path)[0] in (404, 405)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/answer?method=ncc&x=1e9&y=2", "x and y must be a pixel of the 320 x 240 image"),
        ("/api/answer?method=ncc&x=nan&y=2", "x and y must be a pixel"),
        ("/api/answer?method=ncc", "x and y must be a pixel"),
        ("/api/pixels?x=a&y=2", "could not convert string to float"),
        ("/api/matches?method=../ncc", "no method '../ncc' here"),
        ("/image/7", "a pair has images 0 and 1, not 7"),
    ],
)
def test_bad_questions_are_told_why(ask, path, message):
    status, _, body = ask(path)

    assert status == 422
    assert message in json.loads(body)["error"]


def test_pictures_can_be_sent_and_their_names_are_only_names(ask):
    name = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%0A../../x.png"
    headers = {"content-type": "application/octet-stream", "x-file-name": name}

    status, _, body = ask("/api/images/0", "POST", headers, encoded((90, 60), "JPEG"))

    told = json.loads(body)
    assert status == 200
    assert told["images"][0]["name"] == "<img src=x onerror=alert(1)>�../../x.png"
    assert (told["images"][0]["width"], told["truth"]) == (90, False)
    assert ask("/api/matches?method=ncc")[0] == 200


def test_what_is_no_picture_is_refused_and_the_pair_stays(ask, monkeypatch):
    headers = {"content-type": "application/octet-stream"}

    assert "cannot be read" in ask("/api/images/0", "POST", headers, b"nothing")[2].decode()
    assert ask("/api/images/0", "POST", {"content-type": "text/plain"}, encoded((9, 9)))[0] == 422
    assert ask("/api/images/3", "POST", headers, encoded((9, 9)))[0] == 422
    monkeypatch.setattr(server, "MOST_BYTES", 2**20)
    status, _, body = ask("/api/images/0", "POST", headers, bytes(2**21))
    assert (status, "more than 1 MiB" in body.decode()) == (422, True)
    assert json.loads(ask("/api/pair")[2])["images"][0]["name"] == "first.png"


def test_a_method_that_fails_is_told(files):
    pytest.importorskip("starlette")

    def fail():
        raise ImportError("method 'x' needs kornia: pip install 'tiepoint[baselines]'")

    page = server._Page(opened.open_pair(Pair("x", *files), {"x": fail}, 640))

    with pytest.raises(ImportError, match="needs kornia"):
        page.matches(SimpleNamespace(query_params={"method": "x"}))
    assert page.refuse(None, ImportError("needs kornia")).status_code == 422
    assert b"KeyError" in page.fail(None, KeyError("k")).body


# --- writing ------------------------------------------------------------------------------------


def test_a_page_of_one_file_holds_everything(pair, monkeypatch):
    monkeypatch.setattr(static_page, "COLUMNS", 3)

    page = static_page.static_page(pair).decode()

    assert page.count("<script>") == 1
    assert 'src="source.js"' not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    record = page.partition('id="recorded">')[2].partition("</script>")[0]
    told = json.loads(record)
    assert list(told["methods"]) == ["superglue", "loftr", "ncc"]
    assert len(told["points"]) == len(told["pixels"]) == 6
    assert all(len(each["answers"]) == 6 for each in told["methods"].values())


def test_all_pictures_of_a_pair_are_drawn(pair, tmp_path):
    drawn = pictures.draw_pair(pair, "superglue", tmp_path)

    names = {path.stem for path in drawn}
    assert {"matches", "inliers", "truth", "overlay", "keypoints-0", "keypoints-1"} <= names
    assert {
        "stage-1-pixels",
        "stage-3-attention",
        "stage-5-assignment",
        "layers",
        "attention",
    } <= names
    assert all(path.stat().st_size > 0 for path in drawn)


def test_a_pair_without_matches_is_drawn_too(pair, tmp_path):
    blank = encoded((90, 60))
    none = pair.with_image(0, blank, "a").with_image(1, blank, "b")

    drawn = pictures.draw_pair(none, "loftr", tmp_path)

    assert {path.stem for path in drawn} >= {"matches", "keypoints-0"}


def test_the_commands_write_a_page_and_pictures(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(static_page, "COLUMNS", 2)
    named = [str(path) for path in files]

    assert cli.run(["explore", *named, "-m", "ncc", "--html", str(tmp_path / "a.html")]) == 0
    assert cli.run(["draw", *named, "-m", "ncc", "--out", str(tmp_path / "b")]) == 0
    assert cli.run(["explore", named[0]]) == 1
    assert cli.run(["explore", *named, "--html", "x.txt"]) == 2
    assert cli.run(["draw", *named, "-m", "nc"]) == 2

    out, err = capsys.readouterr()
    assert "1 methods recorded; wrote" in out
    assert "give two images, or none for a sample pair" in err
    assert (tmp_path / "a.html").read_text("utf-8").startswith("<!doctype html>")
    assert (tmp_path / "b" / "matches.png").exists()
