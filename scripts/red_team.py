"""Attack the explorer as it is served, and print each attempt with the answer that it got.

python scripts/red_team.py
"""

from __future__ import annotations

import io
import socket
import struct
import tempfile
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as PilImage

from matcher.explore import opened, server
from matcher.methods import ncc

_ATTACKER = b"http://evil.example"


@dataclass(frozen=True)
class Attempt:
    """What is tried.

    Attributes:
        name: In words.
        request: Bytes on the wire.
        status: How the answer has to begin.
        told: What it has to say.
    """

    name: str
    request: bytes
    status: bytes
    told: bytes = b""


def _png(size: tuple[int, int], claimed: tuple[int, int] | None = None) -> bytes:
    """Encode a picture; its header may claim another size."""
    data = io.BytesIO()
    PilImage.new("L", size, 90).save(data, "PNG")
    whole = data.getvalue()
    if claimed is None:
        return whole
    head = b"IHDR" + struct.pack(">II", *claimed) + whole[24:29]
    return whole[:12] + head + struct.pack(">I", zlib.crc32(head)) + whole[33:]


PICTURE = _png((64, 48))


def request(
    port: int, path: bytes, method: bytes = b"GET", body: bytes = b"", name: bytes = b"a.png"
) -> bytes:
    """Write a request as the page itself sends it."""
    head = method + b" " + path + b" HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nconnection: close\r\n" % port
    if body:
        head += b"content-type: application/octet-stream\r\nx-file-name: " + name
        head += b"\r\ncontent-length: %d\r\n" % len(body)
    return head + b"\r\n" + body


def attempts(port: int) -> list[Attempt]:
    """List what is tried against a server."""
    return [*_paths(port), *_strangers(port), *_uploads(port), *_protocol(port)]


def _paths(port: int) -> list[Attempt]:
    missing = b"HTTP/1.1 404"
    return [
        Attempt(f"path {path.decode()}", request(port, path), missing)
        for path in (
            b"/../../../../etc/passwd",
            b"/%2e%2e/%2e%2e/etc/passwd",
            b"/..%2f..%2fetc%2fpasswd",
            b"/explorer.js%00.txt",
            b"//etc/passwd",
            b"/file:///etc/passwd",
            b"/..\\..\\etc\\passwd",
            b"/image/../../etc/passwd",
            b"/page/index.html",
        )
    ] + [
        Attempt("image 99999999999", request(port, b"/image/99999999999"), b"HTTP/1.1 422"),
        Attempt(
            "method as a path",
            request(port, b"/api/matches?method=../../os"),
            b"HTTP/1.1 422",
            b"no method",
        ),
        Attempt(
            "script as a method",
            request(port, b"/api/matches?method=%3Cscript%3E"),
            b"HTTP/1.1 422",
            b"\\u003cscript\\u003e",
        ),
    ]


def _strangers(port: int) -> list[Attempt]:
    own = b"host: 127.0.0.1:%d\r\n" % port
    plain, refused = request(port, b"/api/pair"), b"HTTP/1.1 403"
    post = request(port, b"/api/images/0", b"POST", PICTURE)
    return [
        Attempt("host of another site", plain.replace(own, b"host: evil.example\r\n"), refused),
        Attempt(
            "own host and another site's as one",
            plain.replace(own, b"host: 127.0.0.1:%d@evil.example\r\n" % port),
            b"HTTP/1.1 4",
        ),
        Attempt("two hosts", plain.replace(own, own + b"host: evil.example\r\n"), b"HTTP/1.1 4"),
        Attempt("no host", plain.replace(own, b""), b"HTTP/1.1 4"),
        Attempt("another port", plain.replace(own, b"host: 127.0.0.1:1\r\n"), refused),
        Attempt(
            "image sent by another site",
            post.replace(own, own + b"origin: " + _ATTACKER + b"\r\n"),
            refused,
        ),
        Attempt(
            "image sent by a sandboxed frame", post.replace(own, own + b"origin: null\r\n"), refused
        ),
        Attempt(
            "picture embedded by another site",
            request(port, b"/image/0").replace(own, own + b"sec-fetch-site: cross-site\r\n"),
            refused,
        ),
        Attempt(
            "two origins",
            post.replace(own, own + b"origin: http://127.0.0.1:%d\r\norigin: null\r\n" % port),
            refused,
        ),
        Attempt(
            "preflight of another site",
            request(port, b"/api/images/0", b"OPTIONS").replace(
                own, own + b"origin: " + _ATTACKER + b"\r\n"
            ),
            refused,
        ),
    ]


def _uploads(port: int) -> list[Attempt]:
    def post(body: bytes, name: bytes = b"a.png") -> bytes:
        return request(port, b"/api/images/0", b"POST", body, name)

    form = post(PICTURE).replace(b"application/octet-stream", b"multipart/form-data")
    return [
        Attempt("form of another type", form, b"HTTP/1.1 422", b"application/octet-stream"),
        Attempt("text as an image", post(b"<script>alert(1)</script>"), b"HTTP/1.1 422"),
        Attempt(
            "file of 65 MiB",
            post(bytes(opened.MOST_BYTES + 2**20)),
            b"HTTP/1.1 422",
            b"more than 64 MiB",
        ),
        Attempt(
            "picture that claims 10,000 x 9,000",
            post(_png((8, 8), (10_000, 9_000))),
            b"HTTP/1.1 422",
            b"more than 50,000,000",
        ),
        Attempt(
            "picture that claims 60,000 x 60,000",
            post(_png((8, 8), (60_000, 60_000))),
            b"HTTP/1.1 422",
            b"more pixels than",
        ),
        Attempt(
            "program as a picture (EPS)",
            post(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"),
            b"HTTP/1.1 422",
            b"is a program",
        ),
        Attempt(
            "name that leads out of the folder",
            post(PICTURE, b"..%2F..%2Fetc%2Fpasswd"),
            b"HTTP/1.1 200",
            b"../../etc/passwd",
        ),
        Attempt(
            "name with a script",
            post(PICTURE, b"%3Cimg src=x onerror=alert(1)%3E"),
            b"HTTP/1.1 200",
            b"\\u003cimg src=x",
        ),
        Attempt(
            "name that breaks a header",
            post(PICTURE, b"a%0d%0aset-cookie:%20x=1"),
            b"HTTP/1.1 200",
        ),
    ]


def _protocol(port: int) -> list[Attempt]:
    own = b"host: 127.0.0.1:%d\r\n" % port
    upgrade = b"upgrade: websocket\r\nsec-websocket-version: 13\r\n"
    upgrade += b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    socketed = request(port, b"/api/pair").replace(
        b"connection: close\r\n", b"connection: upgrade\r\n" + upgrade + b"connection: close\r\n"
    )
    smuggled = request(port, b"/api/images/0", b"POST", PICTURE).replace(
        own, own + b"transfer-encoding: chunked\r\n"
    )
    return [
        Attempt("no HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"HTTP/1.1 400"),
        Attempt(
            "header of 200 kB",
            request(port, b"/").replace(own, own + b"x: " + b"a" * 200_000 + b"\r\n"),
            b"HTTP/1.1 4",
        ),
        Attempt("delete", request(port, b"/image/0", b"DELETE"), b"HTTP/1.1 405"),
        Attempt("trace", request(port, b"/", b"TRACE"), b"HTTP/1.1 405"),
        Attempt("a second request hidden in the first", smuggled, b"HTTP/1.1 4"),
        Attempt("upgrade to a web socket", socketed, b"HTTP/1.1 "),
    ]


def start(folder: Path) -> int:
    """Serve a pair of pictures from a thread that ends with the process; return the port."""
    for number in (0, 1):
        pixels = np.random.default_rng(number).integers(0, 255, (48, 64), np.uint8)
        PilImage.fromarray(pixels).save(folder / f"{number}.png")
    pair = opened.find_pair(folder / "0.png", folder / "1.png")
    makers = {"ncc": lambda: ncc.build(device="cpu")}
    shown = opened.open_pair(pair, makers, 640)
    ready, addresses = threading.Event(), []

    def started(address: str) -> None:
        addresses.append(address)
        ready.set()

    threading.Thread(target=server.serve, args=(shown, 0, started), daemon=True).start()
    if not ready.wait(30):
        raise TimeoutError("the explorer did not start")
    return int(addresses[0].rstrip("/").rpartition(":")[2])


def ask(port: int, data: bytes, seconds: float = 20) -> bytes:
    """Send bytes; return all that comes back."""
    answer = b""
    with socket.create_connection((server.ADDRESS, port), timeout=seconds) as connection:
        with suppress(OSError):  # the server may have heard enough
            connection.sendall(data)
        with suppress(OSError):
            while part := connection.recv(65536):
                answer += part
    return answer


def main() -> None:
    """Try everything and print a table."""
    with tempfile.TemporaryDirectory() as scratch:
        port = start(Path(scratch))
        print(f"{'attempt':40} {'answer':28} {'as it should be'}")
        for attempt in attempts(port):
            answer = ask(port, attempt.request)
            good = answer.startswith(attempt.status) and attempt.told in answer
            first = answer.partition(b"\r\n")[0].decode("latin-1")
            print(f"{attempt.name:40} {first or 'closed':28} {'yes' if good else 'NO'}")


if __name__ == "__main__":
    main()
