"""Files that lie, explode, run code or lead elsewhere: each is one named error, or only what it is."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import sqlite3
import struct
import sys
import warnings
import zipfile
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from matcher import datasets, decoding, images, reading, storage, terminal, weights
from matcher.evaluation import pictures, records, report, runner, tables
from matcher.evaluation.truth_file import read_truth
from matcher.sfm import pairs
from matcher.sfm.cameras import cameras_of
from matcher.sfm.checking import check_database
from matcher.sfm.database import read_database
from matcher.sfm.photos import Photo
from matcher.training import models
from matcher.types import Homography, Pair

FUZZER = Path(__file__).parents[1] / "scripts" / "fuzz.py"
EXECUTIONS = 25  # of each reader here; scripts/fuzz.py runs any number


@pytest.fixture(scope="module")
def fuzzer():
    if not FUZZER.is_file():
        pytest.skip("scripts/fuzz.py is not here")
    sys.path.append(str(FUZZER.parent))
    spec = importlib.util.spec_from_file_location("fuzz", FUZZER)
    module = sys.modules["fuzz"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(FUZZER.parent))
    return module


@pytest.fixture(scope="module")
def examples(fuzzer):
    """The whole files that are damaged."""
    return sys.modules["fuzz_readers"]


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_of_every_kind_are_read_or_refused_by_name(fuzzer, tmp_path):
    for reader in fuzzer.readers(tmp_path):
        result = fuzzer.fuzz(reader, EXECUTIONS, 0, tmp_path)

        assert not result.defects, (reader.name, list(result.defects))
        assert result.executions == EXECUTIONS


def test_the_fuzzer_tells_errors_without_a_name_and_slow_readers(fuzzer, tmp_path, monkeypatch):
    def careless(path):
        return {"a": 1}[path.read_bytes()]

    broken = fuzzer.fuzz(fuzzer.Reader("broken", [(".bin", b"abc")], careless), 3, 0, tmp_path)
    monkeypatch.setattr(fuzzer, "SLOW", -1.0)
    slow = fuzzer.fuzz(fuzzer.Reader("slow", [(".bin", b"abc")], Path.read_bytes), 3, 0, tmp_path)

    assert all(defect.startswith("KeyError") for defect in broken.defects)
    assert len(broken.defects) >= 1
    assert list(slow.defects) == ["more than -1 s"]


@given(st.binary(max_size=200))
@settings(max_examples=40, deadline=None)
def test_any_bytes_are_no_image_or_one(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = images.read(data)
        except images.ImageError:
            return
    assert np.isfinite(image).all()


@given(st.text(st.characters(codec="ascii"), max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_line_is_no_record_or_a_whole_one(line):
    with pytest.raises(ValueError, match="no record"):
        records.Record.of_line(line)


# --- images -------------------------------------------------------------------------------------


def test_a_picture_that_claims_to_be_huge_is_refused_before_it_is_unpacked(tmp_path):
    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 9))
    (tmp_path / "bomb.png").write_bytes(bomb + chunk(b"IEND", b""))

    for source in (bomb, tmp_path / "bomb.png"):
        with pytest.raises(images.ImageError, match=r"cannot be read: it has more pixels than"):
            images.read(source)


def test_no_picture_starts_a_program(tmp_path):
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
    (tmp_path / "a.eps").write_bytes(eps)

    with pytest.raises(images.ImageError, match=r"a\.eps cannot be read: EPS is a program"):
        images.read(tmp_path / "a.eps")


def test_a_header_of_spaces_takes_no_time():
    header = b"P6" + b" " * 5000 + b"#\r2 1 65535 "

    picture = images.read(b"P6 #c\n 2 1 255 " + bytes(range(6)))
    with pytest.raises(images.ImageError):
        images.read(header + b"\0")

    assert picture.shape == (1, 2, 3)


@pytest.mark.parametrize("error", [KeyError("x"), struct.error("unpack"), MemoryError()])
def test_whatever_a_decoder_raises_is_an_image_error(monkeypatch, error):
    def fail(_):
        raise error

    data = io.BytesIO()
    PilImage.new("L", (3, 2)).save(data, "PNG")
    monkeypatch.setattr(decoding, "_shallow", fail)

    with pytest.raises(images.ImageError, match="the image cannot be read: "):
        images.read(data.getvalue())


def test_what_is_no_file_is_passed_over_and_links_in_a_circle_end(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "inner").mkdir()
    for name in ("one", "two"):
        (tmp_path / "inner" / name).symlink_to(tmp_path, target_is_directory=True)
    PilImage.new("L", (3, 2)).save(tmp_path / "inner" / "a.png")

    found, skipped = images.list_images(tmp_path, recursive=True)

    assert found == [tmp_path / "inner" / "a.png"]
    assert skipped[tmp_path / "pipe"] == "it is no file"
    with pytest.raises(images.ImageError, match="pipe cannot be read: it is no file"):
        images.read(tmp_path / "pipe")


def test_a_large_film_is_refused_by_its_head_alone(tmp_path):
    with (tmp_path / "film.mp4").open("wb") as file:
        file.truncate(2**40)  # sparse: it would not fit in memory

    with pytest.raises(images.ImageError, match="it is no image of a known format"):
        images.read(tmp_path / "film.mp4")
    assert images.list_images(tmp_path)[0] == []


@pytest.mark.parametrize("value", [float("nan"), -5, 10**9, "wide", (1, 2)])
def test_a_focal_length_that_makes_no_sense_counts_as_missing(tmp_path, monkeypatch, value):
    monkeypatch.setattr(PilImage.Exif, "get_ifd", lambda *_: {0xA405: value})
    PilImage.new("L", (30, 20)).save(tmp_path / "a.png")

    cameras, _ = cameras_of([Photo("a.png", tmp_path / "a.png")])

    assert cameras[0].params[0] == pytest.approx(36.0)
    assert not cameras[0].known


# --- arrays and weights -------------------------------------------------------------------------


class Exploit:
    def __reduce__(self):
        return os.mkdir, ("exploited",)


def npz(path, entries, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def npy(header, body=b""):
    text = (header + " " * (117 - len(header)) + "\n").encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + body


def test_archives_that_unpack_to_far_more_than_their_size_are_refused(tmp_path):
    bomb = npz(tmp_path / "bomb.npz", {"a.npy": b"\0" * (reading.SMALL + 1)})
    assert bomb.stat().st_size < 2**20

    with pytest.raises(
        ValueError, match=r"bomb\.npz is no npz file of arrays: its \d+ bytes would"
    ):
        reading.read_npz(bomb)
    bomb.rename(tmp_path / "bomb.pth")
    with pytest.raises(ValueError, match=r"bomb\.pth is no whole file of tensors: its \d+ bytes"):
        weights.state_dict(tmp_path / "bomb.pth")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (10000000000000,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "__import__('os').mkdir('exploited')",
        "(" * 90,
    ],
)
def test_headers_of_arrays_that_lie_are_refused(tmp_path, monkeypatch, header):
    monkeypatch.chdir(tmp_path)
    whole = npy(header, pickle.dumps([Exploit()]))
    (tmp_path / "a.npy").write_bytes(whole)
    npz(tmp_path / "a.npz", {"a.npy": whole})

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"a\.npy is no array: "):
            reading.read_npy("a.npy")
        with pytest.raises(ValueError, match=r"a\.npz is no npz file of arrays: "):
            reading.read_npz("a.npz")

    assert not Path("exploited").exists()


def test_checkpoints_run_nothing_and_claim_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": Exploit()}, "code.pth")
    torch.save({"a": torch.ones(1).expand(10**12)}, "endless.pth")
    Path("plain.pth").write_bytes(pickle.dumps({"a": Exploit()}, 2))

    for name in ("code.pth", "plain.pth"):
        with pytest.raises(
            ValueError, match=f"{name} is no whole file of tensors: it is damaged, or"
        ):
            weights.state_dict(name)
    with pytest.raises(ValueError, match=r"endless\.pth is no file of plain tensors: its tensors"):
        weights.state_dict("endless.pth")
    assert not Path("exploited").exists()


def test_safetensors_whose_header_lies_are_refused(tmp_path):
    for number, head in enumerate(
        [
            struct.pack("<Q", 2**62),
            struct.pack("<Q", 2) + b"{]",
            struct.pack("<Q", 62)
            + b'{"a":{"dtype":"F32","shape":[9999999],"data_offsets":[0,39999]}}',
        ]
    ):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(head)
        with pytest.raises(ValueError, match=f"{number}.safetensors is no whole file of tensors"):
            weights.state_dict(path)


# --- text ---------------------------------------------------------------------------------------


def test_lists_and_manifests_that_cannot_be_read_are_named(tmp_path):
    for name, data, message in (
        ("deep.json", b"[" * 100_000, r"deep\.json is no JSON: "),
        ("deep.toml", b"a = " + b"[" * 100_000, r"deep\.toml is no TOML: "),
        ("bytes.json", b"\xff\xfe", r"bytes\.json is no JSON: "),
        ("bytes.toml", b"\xff\xfe", r"bytes\.toml is no TOML: "),
        ("bytes.txt", b"\xff\xfe", r"bytes\.txt is no text in UTF-8: "),
        ("rows.toml", b"pair = [1]", r"rows\.toml must have tables"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=message):
            datasets.benchmark(tmp_path / name)
    with pytest.raises(ValueError, match=r"bytes\.txt is no text"):
        pairs.listed(tmp_path / "bytes.txt", ["a", "b"])
    with pytest.raises(ValueError, match=r"bytes\.txt is no text"):
        read_truth(tmp_path / "bytes.txt", "a", "b")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image0": "../secret.png"}, "image0 leaves the folder of the benchmark"),
        ({"image0": "/etc/passwd"}, "image0 leaves the folder of the benchmark"),
        ({"image1": "link/secret.png"}, "image1 leaves the folder of the benchmark"),
        ({"level": 10**400}, "level must be a number"),
        ({"level": float("nan")}, "level must be a number"),
        ({"H_0to1": [[10**400, 0, 0]] * 3}, "H_0to1 must be numbers"),
        ({"id": "\udcff"}, r"id must be text, not '\\udcff'"),
        ({"size0": 7}, "size0 is 7, and the image is"),
        ({"image1": "text.png"}, "image1 is no image: it is no image of a known format"),
        ({"type": "disparity", "disparity0": "text.png"}, "disparity0 cannot be read"),
    ],
)  # fmt: skip
def test_entries_cannot_lead_out_of_their_folder_or_lie(tmp_path, changes, message):
    inner = tmp_path / "inner"
    inner.mkdir()
    for path in (tmp_path / "secret.png", inner / "a.png", inner / "b.png"):
        PilImage.new("L", (4, 3)).save(path)
    (inner / "text.png").write_text("text")
    (inner / "link").symlink_to(tmp_path, target_is_directory=True)
    entry = {"id": "a", "dataset": "d", "type": "homography", "image0": "a.png", "image1": "b.png"}
    entry |= {} if "type" in changes else {"H_0to1": np.eye(3).tolist()}
    (inner / "pairs.json").write_text(records.json.dumps([entry | changes]))

    with pytest.raises(ValueError, match=message):
        datasets.benchmark(inner / "pairs.json")


@pytest.mark.parametrize("method", ["loftr", "superglue"])
def test_a_recipe_of_absurd_size_is_refused_before_it_fills_the_memory(tmp_path, method):
    front_end = 'front_end = "xfeat"\n' if method == "superglue" else ""
    text = (
        f'method = "{method}"\n{front_end}[network]\nlayers = 2222222222\n[start]\nbackbone = "x"\n'
    )
    (tmp_path / "recipe.toml").write_text(text)

    with pytest.raises(ValueError, match="layers must be at least 1 and at most 64"):
        models.load(tmp_path)


def test_a_recipe_says_what_it_lacks(tmp_path):
    (tmp_path / "recipe.toml").write_text('method = "loftr"')

    with pytest.raises(ValueError, match=r"recipe\.toml lacks 'network'"):
        models.load(tmp_path)


def test_records_of_other_types_are_no_records(tmp_path):
    score = records.Score(5, (0.1,), 4, "ok")
    good = records.Record("k", "m", "p", "g", records.Kind.POSE, records.Outcome.OK, score)
    path = tmp_path / "records.jsonl"
    line = good.line()
    bad = (
        line.replace('"matches": 5', '"matches": "5"'),
        line.replace('"matches": 5', '"matches": true'),
        line.replace('"precision": [0.1]', '"precision": [[0.1]]'),
        line.replace('"score": {', '"score": [], "seconds": {'),
        "[" * 100_000 + "\n",
        "7\n",
    )
    path.write_text("".join([*bad, line]))

    assert records.RecordFile(path).records == {"k": good}


# --- databases and h5 ---------------------------------------------------------------------------


@pytest.fixture
def database(examples, tmp_path):
    path = tmp_path / "a.db"
    path.write_bytes(examples.databases(tmp_path)[1][1])
    return path


def change(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    ("statements", "error", "message"),
    [
        (
            ["DROP TABLE images",
             "CREATE VIEW images AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
             " SELECT x AS image_id, 'a' || x AS name, 1 AS camera_id FROM c"],
            OSError, "images is no plain table",
        ),
        (["UPDATE keypoints SET data = zeroblob(9000000)"], ValueError, "cannot reshape"),
        (["UPDATE keypoints SET rows = 'many'"], ValueError, "is no database of tie points"),
        (["UPDATE keypoints SET data = 'text'"], ValueError, "is no database of tie points"),
        (["UPDATE images SET camera_id = 99"], ValueError, "images name camera_id 99, which is not"),
        (["UPDATE keypoints SET image_id = 99 WHERE image_id = 1"], ValueError, "image_id 99, which"),
        (["UPDATE matches SET pair_id = 5"], ValueError, "matches name a pair of images"),
        (["UPDATE cameras SET model = 77"], ValueError, "camera 1 has model 77"),
        (["UPDATE images SET name = '../../x' WHERE image_id = 1"], ValueError, r"'\.\./\.\./x'"),
        (["DROP TABLE matches"], ValueError, "no such table: matches"),
    ],
)  # fmt: skip
def test_databases_that_compute_or_lie_are_refused(database, statements, error, message):
    change(database, *statements)

    with pytest.raises(error, match=message):
        read_database(database)


def test_a_damaged_page_is_an_error_that_names_the_database(database):
    data = bytearray(database.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    database.write_bytes(data)

    for read in (read_database, check_database):
        with pytest.raises((OSError, ValueError), match=r"a\.db is no database"):
            read(database)


def test_links_and_files_elsewhere_are_not_followed_by_hloc_files(examples, tmp_path):
    h5py = pytest.importorskip("h5py")
    examples.hloc_files(tmp_path)
    features, matches = tmp_path / "features.h5", tmp_path / "matches.h5"
    (tmp_path / "secret").write_bytes(bytes(range(256)))
    whole = features.read_bytes()

    def replaced(make):
        features.write_bytes(whole)
        with h5py.File(features, "r+") as file:
            del file["0.png/keypoints"]
            make(file["0.png"])
        return examples.read_hloc(features, matches, ["0.png", "1.png"])

    space = h5py.h5s.create_simple((8, 2))
    for make, message in (
        (lambda g: g.__setitem__("keypoints", h5py.ExternalLink("x.h5", "/a")), "is a link to"),
        (lambda g: g.__setitem__("keypoints", h5py.SoftLink("/1.png/keypoints")), "is a link to"),
        (
            lambda g: g.create_dataset(
                "keypoints", (8, 2), "f4", external=[(str(tmp_path / "secret"), 0, 64)]
            ),
            "lies in another file",
        ),
        (lambda g: g.create_dataset("keypoints", (10**9, 2), "f4", chunks=True), "are not stored"),
        (
            lambda g: g.create_dataset("keypoints", data=np.zeros((8, 3))),
            r"must be \(N, 2\) finite",
        ),
        (lambda g: g.create_dataset("keypoints", data=[b"a"]), "must be numbers in 2 dimensions"),
        (lambda g: None, "there is no 0.png/keypoints"),
    ):
        with pytest.raises(ValueError, match=message):
            replaced(make)
    assert space.shape == (8, 2)


# --- what is shown ------------------------------------------------------------------------------


def test_names_cannot_steer_a_terminal(capsys):
    terminal.print_line("a\x1b]0;title\x07b\x9b2J")
    terminal.fail("c\x1b[31md", 1)
    terminal.print_table([{"name": "e\x1b[2Jf"}])

    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    assert "\x9b" not in out
    assert "a�]0;title�b�2J" in out


@pytest.mark.filterwarnings("ignore")
def test_names_in_a_report_are_text_and_no_markup(tmp_path):
    evil = '</script><img src=x onerror=alert(1)>$\\frac{$ |"\n& | \u2028'
    for number in (0, 1):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 64), np.uint8)
        PilImage.fromarray(pixels).save(tmp_path / f"{number}$<b>.png")
    paths = [tmp_path / f"{number}$<b>.png" for number in (0, 1)]
    pair = Pair(evil, *paths, Homography(np.eye(3)), group=evil)

    def same(image0, image1):
        y, x = np.mgrid[8:40:8, 8:56:8]
        points = np.stack([x, y], axis=2).reshape(-1, 2).astype(np.float32)
        return points, points

    def fail(image0, image1):
        raise ValueError(evil)

    methods = {evil: same, "fails": fail}
    evaluation = runner.evaluate(methods, [pair], out=tmp_path / "out")
    pictures.draw(evaluation, methods, [pair], tmp_path / "out")
    written = report.write_report(evaluation, tmp_path / "out")

    texts = [path.read_text() for path in written if path.suffix in (".html", ".md", ".svg")]
    assert len(texts) >= 2
    assert not any("<img src=x" in text or "<b>.png" in text for text in texts)
    lines = tables.markdown(evaluation).splitlines()
    assert {line.replace("\\|", "").count("|") for line in lines if line.startswith("|")} == {
        lines[0].count("|")
    }


def test_unfinished_names_are_nobody_elses(tmp_path):
    with storage.replacing(tmp_path / "a") as one, storage.replacing(tmp_path / "a") as two:
        assert one != two
        one.write_bytes(b"1")
        two.write_bytes(b"2")

    assert (tmp_path / "a").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
