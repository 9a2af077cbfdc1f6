"""The readers that scripts/fuzz.py and scripts/fuzz_guided.py try, with whole files for each."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as PilImage
from safetensors.torch import save_file

from matcher import datasets, images, weights
from matcher.datasets import labelled, posed
from matcher.evaluation.records import Kind, Outcome, Record, RecordFile, Score
from matcher.evaluation.runner import evaluate, read_evaluation
from matcher.evaluation.truth_file import read_truth
from matcher.explore import opened, server
from matcher.extras import require
from matcher.features import _storage as descriptions
from matcher.geometry.two_view import Pose
from matcher.methods import ncc
from matcher.mining.pair_file import Collection, MinedPair, load_pairs, save_pairs
from matcher.sfm import pairs
from matcher.sfm.cameras import Camera
from matcher.sfm.checking import check_database
from matcher.sfm.database import read_database, write_database
from matcher.sfm.geometry import Config, Rejection, TwoViewGeometry
from matcher.sfm.hloc import read_hloc, write_hloc
from matcher.sfm.mapping import read_model
from matcher.sfm.store import read_arrays, write_arrays
from matcher.sfm.tiepoints import TiePoints
from matcher.training.models import load as load_model


@dataclass(frozen=True)
class Reader:
    """A reader and whole files of its kind.

    Attributes:
        name: What it reads.
        seeds: Whole files by ending.
        read: Takes the path of a damaged one.
    """

    name: str
    seeds: Sequence[tuple[str, bytes]]
    read: Callable[[Path], object]


def readers(folder: Path) -> list[Reader]:
    """Make whole files for every reader."""
    names = [f"{number}.png" for number in range(3)]
    for number, name in enumerate(names):
        PilImage.new("L", (32, 24), 40 * number).save(folder / name)
    return [
        Reader("images", _pictures(), images.load),
        Reader("safetensors and checkpoints", _checkpoints(folder), weights.state_dict),
        Reader("recipes (TOML)", _recipes(), _read_recipe),
        Reader("manifests (JSON, TOML)", _manifests(), datasets.benchmark),
        Reader("pair lists", _lists(), datasets.benchmark),
        Reader("pair lists of sfm", _lists(), lambda path: pairs.listed(path, names)),
        Reader("truth of a pair", _truths(), lambda path: read_truth(path, "0.png", "1.png")),
        Reader("mined pairs (npz)", _mined(folder), load_pairs),
        Reader("descriptions (npz)", _descriptions(folder), descriptions.load),
        Reader("stored matches (npz)", _shards(folder), read_arrays),
        Reader("records (JSON lines)", _records(), RecordFile),
        Reader("stored evaluations (JSON)", _evaluations(folder), _read_evaluation),
        Reader("objects of MegaDepth (npz)", _objects(), posed._object_arrays),
        Reader("labelled points", [(".txt", b"1 2 3 4\n5.5,6,7,8\n")], labelled._points),
        Reader("COLMAP databases", databases(folder), _read_database),
        *([Reader("COLMAP models", _models(folder), _read_model)] if find_spec("pycolmap") else []),
        *([Reader("hloc (h5)", hloc_files(folder), _read_hloc)] if find_spec("h5py") else []),
        *([Reader("requests (HTTP)", _requests(), _ask(folder))] if find_spec("starlette") else []),
    ]


def _pictures() -> list[tuple[str, bytes]]:
    chance = np.random.default_rng(0)
    pixels = chance.integers(0, 255, (24, 32, 3), np.uint8)
    colours, grey = PilImage.fromarray(pixels), PilImage.fromarray(pixels[:, :, 0])
    exif = PilImage.Exif()
    exif[0x0112] = 6
    made = []
    for picture, kind, options in (
        (colours, "PNG", {}),
        (grey, "PNG", {"exif": exif}),
        (colours, "JPEG", {"exif": exif}),
        (colours, "TIFF", {"compression": "tiff_lzw"}),
        (grey.convert("I;16"), "TIFF", {}),
        (grey.convert("I;16"), "PNG", {}),
        (colours, "PPM", {}),
        (colours.convert("P"), "GIF", {}),
        (colours, "BMP", {}),
        (colours, "WEBP", {}),
        (colours, "TGA", {}),
        (colours, "ICO", {}),
        (colours, "JPEG2000", {}),
        (colours, "PCX", {}),
        (colours, "DDS", {}),
    ):
        data = io.BytesIO()
        picture.save(data, kind, **options)
        made.append((f".{kind.lower()}", data.getvalue()))
    return made


def _checkpoints(folder: Path) -> list[tuple[str, bytes]]:
    state = {"conv.weight": torch.ones(4, 3), "conv.bias": torch.zeros(4)}
    save_file(state, folder / "whole.safetensors")
    made = [(".safetensors", (folder / "whole.safetensors").read_bytes())]
    for archive in (True, False):
        data = io.BytesIO()
        torch.save({"state_dict": state}, data, _use_new_zipfile_serialization=archive)
        made.append((".pth", data.getvalue()))
    return made


def _recipes() -> list[tuple[str, bytes]]:
    text = """method = "loftr"
tensors_sha256 = "0"
[network]
layers = 2
[start]
backbone = "nothing"
[training]
batch = 2
minutes = 1.0
[training.mix]
scenes = 0.5
"""
    return [(".toml", text.encode())]


def _read_recipe(path: Path) -> None:
    home = path.parent / "model"
    home.mkdir(exist_ok=True)
    (home / "recipe.toml").write_bytes(path.read_bytes())
    try:
        load_model(home)
    except TypeError as error:  # Python's own, for a key that does not exist: it names the key
        raise ValueError(str(error)) from error


def _manifests() -> list[tuple[str, bytes]]:
    rows = [[1.0, 0, 2], [0, 1, 3], [0, 0, 1]]
    entry: dict[str, Any] = {
        "id": "a",
        "dataset": "d",
        "type": "homography",
        "image0": "0.png",
        "image1": "1.png",
    }
    entry |= {"size0": [32, 24], "level": 2, "H_0to1": rows}
    views: dict[str, Any] = {
        "id": "b",
        "dataset": "d",
        "type": "pose",
        "image0": "1.png",
        "image1": "2.png",
    }
    eye = np.eye(3).tolist()
    camera = [[30.0, 0, 16], [0, 30, 12], [0, 0, 1]]
    views |= {"K0": camera, "K1": camera, "R_0to1": eye, "t_0to1": [1, 0, 0]}
    text = f'[[pair]]\nimage0 = "0.png"\nimage1 = "1.png"\nH_0to1 = {rows}\n'
    return [(".json", json.dumps([entry, views]).encode()), (".toml", text.encode())]


def _lists() -> list[tuple[str, bytes]]:
    camera = "30 0 16 0 30 12 0 0 1"
    pose = f"0.png 1.png {camera} {camera} 1 0 0 0 1 0 0 0 1 1 0 0\n"
    return [(".txt", b"# pairs\n0.png 1.png\n1.png 2.png\n"), (".txt", pose.encode())]


def _truths() -> list[tuple[str, bytes]]:
    data = io.BytesIO()
    np.save(data, np.eye(3))
    return [(".txt", b"1 0 2\n0 1 3\n0 0 1\n"), (".npy", data.getvalue())]


def _mined(folder: Path) -> list[tuple[str, bytes]]:
    points = np.arange(12, dtype=np.float32).reshape(6, 2)
    linear = np.tile(np.eye(2, dtype=np.float32), (6, 1, 1))
    pair = MinedPair(0, 1, points, points, points[:, 0], linear)
    made = Collection((folder / "0.png", folder / "1.png"), ((24, 32), (24, 32)), (pair,))
    return [(".npz", save_pairs(made, folder / "whole.npz").read_bytes())]


def _descriptions(folder: Path) -> list[tuple[str, bytes]]:
    picture = np.random.default_rng(0).random((24, 32), np.float32)
    described = ncc.build(device="cpu").describe([picture])[0]
    return [(".npz", descriptions.save(described, folder / "whole.npz").read_bytes())]


def _shards(folder: Path) -> list[tuple[str, bytes]]:
    arrays = {"keys": np.array(["a", "b"]), "points0": np.zeros((3, 2), np.float32)}
    return [(".npz", write_arrays(folder / "whole.npz", arrays).read_bytes())]


def _records() -> list[tuple[str, bytes]]:
    found = Score(5, (0.1, 0.2, 0.3), 4, "ok", ((1.0,), (2.0,)))
    record = Record("k", "ncc", "a", "d", Kind.HOMOGRAPHY, Outcome.OK, found, sizes=((24, 32),))
    return [(".jsonl", 2 * record.line().encode())]


def _evaluations(folder: Path) -> list[tuple[str, bytes]]:
    manifest = folder / "pairs.txt"
    manifest.write_text("0.png 1.png\n")
    out = folder / "evaluation"
    evaluate({"none": lambda *_: (np.zeros((0, 2)),) * 2}, datasets.benchmark(manifest), out=out)
    return [(".json", (out / "run.json").read_bytes())]


def _read_evaluation(path: Path) -> None:
    shutil.copy(path, path.parent / "evaluation" / "run.json")
    read_evaluation(path.parent / "evaluation")


def _objects() -> list[tuple[str, bytes]]:
    data = io.BytesIO()
    infos = np.array([((0, 1), 0.5, np.zeros((2, 2))), ((1, 2), 0.7, np.ones((2, 2)))], object)
    np.savez(data, allow_pickle=True, pair_infos=infos, poses=np.eye(4)[None])
    return [(".npz", data.getvalue())]


def _models(folder: Path) -> list[tuple[str, bytes]]:
    """Make a small model of COLMAP; the ending of a seed is the name of a file of it."""
    pycolmap = require("pycolmap", "models")
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig, options.num_points3D = 1, 3, 8
    model = pycolmap.synthesize_dataset(options)
    seeds = []
    for form, write in (("binary", model.write_binary), ("text", model.write_text)):
        home = folder / f"model {form}"
        home.mkdir()
        write(str(home))
        seeds += [(f" {form} {path.name}", path.read_bytes()) for path in sorted(home.iterdir())]
    return seeds


def _read_model(path: Path) -> None:
    _, form, name = path.name.split(" ")
    with tempfile.TemporaryDirectory() as copy:
        home = Path(shutil.copytree(path.parent / f"model {form}", copy, dirs_exist_ok=True))
        shutil.copy(path, home / name)
        read_model(home)


def tie_points() -> TiePoints:
    """Make three images with matches and geometry."""
    names = ("0.png", "1.png", "2.png")
    rows = np.stack([np.arange(20)] * 2, axis=1)
    keypoints = {name: 20 * np.random.default_rng(0).random((20, 2), np.float32) for name in names}
    geometry = TwoViewGeometry(
        np.ones(20, bool), Config.PLANAR, Rejection.NONE, np.eye(3), np.eye(3), np.eye(3),
        Pose(np.eye(3), np.array([1.0, 0, 0])),
    )  # fmt: skip
    pair = {(names[0], names[1]): rows}
    camera = Camera.guessed((24, 32))
    return TiePoints(names, (camera,), (0, 0, 0), keypoints, pair, {(names[0], names[1]): geometry})


def databases(folder: Path) -> list[tuple[str, bytes]]:
    """Write whole COLMAP databases of both schemas."""
    paths = [write_database(folder / f"whole{v}.db", tie_points(), v) for v in ("3", "4")]
    return [(".db", path.read_bytes()) for path in paths]


def _read_database(path: Path) -> None:
    check_database(path)
    read_database(path)


def hloc_files(folder: Path) -> list[tuple[str, bytes]]:
    """Write the two whole files of hloc."""
    features, matches, _ = write_hloc(folder, tie_points())
    return [("features.h5", features.read_bytes()), ("matches.h5", matches.read_bytes())]


def _read_hloc(path: Path) -> None:
    whole = {name: path.with_name(f"{name}.h5") for name in ("features", "matches")}
    kind = "features" if path.name.endswith("features.h5") else "matches"
    chosen = whole | {kind: path}
    read_hloc(chosen["features"], chosen["matches"])


def _requests() -> list[tuple[str, bytes]]:
    head = b"host: 127.0.0.1:80\ncontent-type: application/octet-stream\nx-file-name: a%20b\n\n"
    paths = [b"/", b"/api/pair", b"/api/answer?method=ncc&x=10&y=8", b"/image/0", b"/export"]
    asked = [(".http", b"GET " + path + b"\n" + head) for path in paths]
    sent = [(".http", b"POST /api/images/0\n" + head + data) for _, data in _pictures()[:4]]
    return asked + 2 * sent


def _ask(folder: Path) -> Callable[[Path], object]:
    """Make a function that sends a request to the explorer, and raises where the answer is a 500."""
    pair = opened.find_pair(folder / "0.png", folder / "1.png")
    makers = {"ncc": lambda: ncc.build(device="cpu")}
    app = server.create_app(opened.open_pair(pair, makers, 640), 80)

    def ask(path: Path) -> None:
        head, _, body = path.read_bytes().partition(b"\n\n")
        first, *lines = head.split(b"\n")
        method, _, target = first.partition(b" ")
        route, _, query = target.partition(b"?")
        sent: list[Any] = []
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http",
            "method": method.decode("latin-1"), "path": route.decode("utf-8", "replace"),
            "raw_path": route, "query_string": query, "root_path": "", "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 80),
            "headers": [(k.lower(), v) for k, _, v in (line.partition(b": ") for line in lines)],
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(app(scope, receive, send))
        if sent[0]["status"] >= 500:
            raise RuntimeError(f"status {sent[0]['status']}: {sent[-1].get('body', b'')[:80]!r}")
        if sent[0]["status"] >= 400:
            raise ValueError(str(sent[0]["status"]))

    return ask
