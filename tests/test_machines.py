"""Machines that fail for real: no memory, no room, no rights, no locks, wrong clocks, killed processes."""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
import resource
import shutil
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PilImage
from sfm_scenes import CAMERA

import matcher
from matcher import cli, datasets, downloads, weights
from matcher.evaluation import runner
from matcher.evaluation.records import Outcome
from matcher.evaluation.runner import read_evaluation
from matcher.sfm.database import write_database
from matcher.sfm.frontend import FrontEnd, MethodChoice
from matcher.sfm.photos import list_photos
from matcher.sfm.store import write_arrays
from matcher.sfm.tiepoints import TiePoints

PACKAGE = Path(matcher.__file__).parent
CHOICE = MethodChoice("ncc", {"max_keypoints": 60}, "cpu")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes as Linux has")


@pytest.fixture
def pictures(tmp_path, texture):
    folder = tmp_path / "pictures"
    folder.mkdir()
    large = texture(90, 120, sigma=2.0)
    for number, (x, y) in enumerate(((0, 0), (5, 2), (3, 7), (8, 4))):
        PilImage.fromarray(large[y : y + 72, x : x + 96]).save(folder / f"{number}.png")
    names = [f"{one}.png {other}.png\n" for one in range(4) for other in range(one + 1, 4)]
    (folder / "pairs.txt").write_text("".join(names))
    return folder


# Children of a server that has imported everything and computed nothing: they start at once.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(
    ["matcher.cli", "matcher.methods.loftr", "matcher.methods.ncc", "matcher.evaluation.runner"]
)


def start(arguments, said, out=os.devnull, *, room=None, spare=None):
    """Run a command in a process of its own.

    Args:
        arguments: Of the command line.
        said: File for its errors.
        out: File for its results.
        room: Bytes of the largest file that it may write.
        spare: MiB that it may take, over what it has with its method made.
    """
    arguments = [str(each) for each in arguments]
    child = CHILDREN.Process(target=_child, args=(arguments, said, out, room, spare))
    child.start()
    return child


def run(arguments, said, **how):
    """Run a command in a process of its own; give its code and its errors."""
    child = start(arguments, said, **how)
    child.join(120)
    return child.exitcode, said.read_text()


def _child(arguments, said, out, room, spare):
    for place, path in ((1, out), (2, said)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), place)
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room,) * 2)
    if spare is not None:
        matcher.create(arguments[arguments.index("--method") + 1])
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + spare * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most,) * 2)
    code = cli.run(arguments)
    sys.stdout.flush()
    if room is not None:
        os._exit(code)  # what measures coverage could not write either
    sys.exit(code)


def evaluating(pictures, out):
    return ["evaluate", str(pictures / "pairs.txt"), "--methods", "ncc", "--out", str(out)]


def found_in(folder):
    return [(each.pair, each.score) for each in read_evaluation(folder).records]


# --- memory and room ----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "spare"), [("ncc", 30), ("ncc", 100), ("loftr", 60)])
def test_without_memory_a_command_ends_with_one_line_and_code_1(tmp_path, method, spare):
    noise = np.random.default_rng(0).integers(0, 255, (1500, 2000), np.uint8)
    PilImage.fromarray(noise).save(tmp_path / "large.png")
    pair = tmp_path / "large.png", tmp_path / "large.png"
    arguments = ["match", *pair, "--method", method, "--out", tmp_path / "out/m.npz"]

    code, said = run(arguments, tmp_path / "said", spare=spare)

    assert code == 1, said
    assert re.fullmatch(
        r"error: (the memory does not do: take smaller images or fewer points \(.*\)|"
        r".*large\.png cannot be read: MemoryError)\n",
        said,
    )
    assert not (tmp_path / "out").exists()


def test_a_pair_without_memory_is_a_failure_that_the_next_run_tries_again(pictures, tmp_path):
    def greedy(image0, image1):
        if asked.append(0) or len(asked) <= 3:
            np.zeros(2**50)
        return np.zeros((0, 2)), np.zeros((0, 2))

    asked = []
    pairs = datasets.benchmark(pictures / "pairs.txt")
    failed = runner.evaluate({"greedy": greedy}, pairs, out=tmp_path / "out").records
    again = runner.evaluate({"greedy": greedy}, pairs, out=tmp_path / "out").records

    memory = [each.detail.startswith(("MemoryError", "_ArrayMemoryError")) for each in failed]
    assert memory == [True] * 3 + [False] * 3
    assert all(each.outcome is Outcome.OK for each in again)
    assert len(asked) == 9


def test_a_file_that_grows_too_large_is_not_there(pictures, tmp_path):
    pair = pictures / "0.png", pictures / "1.png"
    arguments = ["match", *pair, "--method", "ncc", "--out", tmp_path / "out/m.npz"]

    code, said = run(arguments, tmp_path / "said", room=300)

    assert code == 1
    assert re.fullmatch(r"error: .*File too large.*\n", said)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("room", [700, 2500, 5000])
def test_an_evaluation_without_room_goes_on_when_there_is_some(pictures, tmp_path, room):
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert cli.run(evaluating(pictures, whole)) == 0

    code, said = run(evaluating(pictures, out), tmp_path / "said", room=room)

    assert code == 1
    assert re.fullmatch(r"error: .*(No space left on device|File too large).*\n", said)
    assert not (out / "index.html").exists()
    assert cli.run(evaluating(pictures, out)) == 0
    assert found_in(out) == found_in(whole)


def test_a_database_without_room_keeps_what_it_had(tmp_path):
    path = write_database(tmp_path / "a.db", tied(3))
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        with pytest.raises(OSError, match=r"a\.db cannot be written: .*(full|I/O)"):
            write_database(path, tied(30_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert path.read_bytes() == before
    write_database(path, tied(30_000))
    assert len(path.read_bytes()) > len(before)


def tied(count):
    names = ("a.png", "b.png")
    points = np.random.default_rng(count).uniform(0, 20, (count, 2)).astype(np.float32)
    rows = np.stack([np.arange(count)] * 2, axis=1)
    return TiePoints(names, (CAMERA,), (0, 0), dict.fromkeys(names, points), {names: rows})


@pytest.mark.parametrize("arguments", [["methods"], ["licences"], ["--help"]])
def test_results_that_nobody_takes_are_an_error_and_no_traceback(arguments, tmp_path):
    code, said = run(arguments, tmp_path / "said", out="/dev/full")

    assert code == 1
    assert re.fullmatch(r"error: .*No space left on device.*\n", said)


# --- rights and locks ---------------------------------------------------------------------------


def test_a_folder_that_may_only_be_read_is_named(pictures, tmp_path, capsys):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "out"
        folder.mkdir()
        folder.chmod(0o555)
        Path(name).chmod(0o755)
        shutil.copytree(pictures, Path(name) / "pictures")
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)  # root may write everywhere
        try:
            codes = [
                cli.run(evaluating(Path(name) / "pictures", folder / "run")),
                cli.run(evaluating(Path(name) / "pictures", folder)),
            ]
        finally:
            if root:
                os.seteuid(0)
        left = list(folder.iterdir())

    assert codes == [1, 1]
    assert capsys.readouterr().err.count("Permission denied") == 2
    assert not left


NO_LOCKS = """
#include <errno.h>
int fcntl(int file, int what, ...);
int flock(int file, int how) { errno = ENOLCK; return -1; }
int lockf(int file, int how, long size) { errno = ENOLCK; return -1; }
static int refuse(int file, int what, void *lock, int (*real)(int, int, ...)) {
    if (what == 5 || what == 6 || what == 7) { errno = ENOLCK; return -1; }
    return real(file, what, lock);
}
#define _GNU_SOURCE
void *dlsym(void *, const char *);
int fcntl64(int file, int what, void *lock) {
    return refuse(file, what, lock, (int (*)(int, int, ...))dlsym((void *)-1L, "fcntl64"));
}
int fcntl(int file, int what, ...) {
    void *lock; __builtin_va_list rest;
    __builtin_va_start(rest, what); lock = __builtin_va_arg(rest, void *); __builtin_va_end(rest);
    return refuse(file, what, lock, (int (*)(int, int, ...))dlsym((void *)-1L, "fcntl"));
}
"""


@pytest.fixture(scope="module")
def no_locks(tmp_path_factory):
    """Give the environment of a process for which every lock of a file fails, as on some networks."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler makes the file system without locks")
    folder = tmp_path_factory.mktemp("locks")
    (folder / "locks.c").write_text(NO_LOCKS)
    shared = folder / "locks.so"
    subprocess.run(
        [compiler, "-w", "-shared", "-fPIC", "-o", shared, folder / "locks.c", "-ldl"], check=True
    )
    return os.environ | {"LD_PRELOAD": str(shared)}


def test_only_databases_need_locks(pictures, tmp_path, no_locks):
    both = f"""
import sys
from matcher import cli
from matcher.sfm import database
database._WAIT = 0.1
print(cli.run({evaluating(pictures, tmp_path / "out")!r}))
sys.exit(cli.run(["sfm", "map", {str(pictures)!r}, "-m", "ncc", "--out", {str(tmp_path / "sfm")!r}]))
"""
    done = subprocess.run(
        [sys.executable, "-c", both], env=no_locks, capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines()[-1] == "0"
    assert len({each.pair for each in read_evaluation(tmp_path / "out").records}) == 6
    assert done.returncode == 1
    assert re.search(r"cannot be written: .* choose a folder on a local disk", done.stderr)
    assert list((tmp_path / "sfm").rglob("matches/*.npz"))  # finished work is kept


# --- clocks and other processes -----------------------------------------------------------------


def test_no_module_asks_for_the_time_of_day_or_the_times_of_files():
    asked = {"time.time", "time.time_ns", "time.localtime", "datetime.now", "os.path.getmtime"}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                assert node.attr not in ("st_mtime", "st_ctime", "st_atime", "st_mtime_ns"), path
                assert ast.unparse(node) not in asked, (path, node.lineno)


def test_clocks_that_jump_change_no_result_and_nothing_is_made_again(pictures, tmp_path):
    out = tmp_path / "out"
    assert cli.run(evaluating(pictures, out)) == 0
    lines = (out / "records.jsonl").read_bytes()

    for year in (1970, 1979, 2106):  # before the first year of zip archives, after 32 bits
        for path in [*pictures.iterdir(), *out.iterdir()]:
            os.utime(path, ((year - 1970) * 31_557_600.0,) * 2)
        assert cli.run(evaluating(pictures, out)) == 0
        front_end = FrontEnd(list_photos(pictures), tmp_path / "kept", CHOICE)
        assert bool(front_end.undescribed()) == (year == 1970)
        front_end.describe(front_end.undescribed() or ["0.png"])

    assert (out / "records.jsonl").read_bytes() == lines


def test_archives_hold_no_time(tmp_path, monkeypatch):
    arrays = {"points": np.zeros((3, 2))}
    first = write_arrays(tmp_path / "a.npz", arrays).read_bytes()
    monkeypatch.setattr(time, "localtime", lambda *_: time.struct_time((2050, *[1] * 8)))

    assert write_arrays(tmp_path / "b.npz", arrays).read_bytes() == first


def test_two_runs_on_one_folder_both_end_well(pictures, tmp_path):
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert cli.run(evaluating(pictures, alone)) == 0

    both = [start(evaluating(pictures, shared), tmp_path / f"said {run}") for run in range(2)]
    for child in both:
        child.join(120)

    assert [child.exitcode for child in both] == [0, 0]
    assert found_in(shared) == found_in(alone)
    assert not list(shared.glob(".*.part"))


def test_a_run_that_is_killed_for_real_goes_on(pictures, tmp_path):
    alone, out = tmp_path / "alone", tmp_path / "out"
    assert cli.run(evaluating(pictures, alone)) == 0

    for records in (1, 3):
        child = start(evaluating(pictures, out), tmp_path / "said")
        while child.is_alive() and lines(out) < records:
            time.sleep(0.001)
        child.kill()
        child.join()
    assert cli.run(evaluating(pictures, out)) == 0

    assert found_in(out) == found_in(alone)


def lines(folder):
    path = folder / "records.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


# --- networks -----------------------------------------------------------------------------------


@pytest.fixture
def address(request):
    """Serve an answer of raw bytes once and hang up."""

    class Once(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(4096)
            self.request.sendall(request.param)

    with socketserver.TCPServer(("127.0.0.1", 0), Once) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/weights"
        server.shutdown()
        thread.join()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n"


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(HEAD, id="half the head"),
        pytest.param(HEAD + b"\r\n" + bytes(900), id="half the file"),
        pytest.param(HEAD[:17] + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", id="no chunk"),
        pytest.param(b"SSH-2.0-other\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 503 Busy\r\n\r\n", id="busy"),
    ],
    indirect=True,
)
def test_weights_that_arrive_by_half_are_refused_and_not_kept(address, tmp_path, monkeypatch):
    monkeypatch.setenv("MATCHER_WEIGHTS", str(tmp_path / "cache"))
    missing = next(each for each in weights.registry().values() if weights.find(each.name) is None)
    entry = replace(missing, address=address, package="no-such-package-of-ours")
    monkeypatch.setattr("matcher.weights.entry", lambda _: entry)
    monkeypatch.setattr(
        downloads.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", "none")
    )

    with pytest.raises(OSError, match=f"could not fetch {entry.name}: "):
        weights.fetch(entry.name, entry.licence)

    assert not list((tmp_path / "cache").iterdir())
    assert weights.status(entry.name) == "missing"
