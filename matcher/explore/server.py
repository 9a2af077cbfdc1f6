"""Serve the explorer to the browser on this machine, and to nobody else.

The server listens on the loopback address only. It answers requests that name that address as their
host, and none that another site's page sends. It reads no file by name: what is open was opened by
the command or sent by the page, and images are held to limits before they are decoded.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import resources
from typing import Any
from urllib.parse import unquote

from matcher.explore import payload
from matcher.explore.opened import MOST_BYTES, Opened
from matcher.explore.static_page import SCRIPTS, static_page
from matcher.extras import require
from matcher.images import ImageError

ADDRESS = "127.0.0.1"
MOST_CONNECTIONS = 16  # a browser opens six; each may send one image of the largest size
_WANTED_BY = "matcher explore"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_FILES = {"explorer.css": "text/css", **dict.fromkeys(SCRIPTS, "text/javascript")}


def serve(opened: Opened, port: int, started: Callable[[str], None]) -> None:
    """Serve until the process is interrupted.

    Args:
        opened: The pair to begin with.
        port: Where to listen; 0 for any free one.
        started: Called with the page's address once the server can be reached.

    Raises:
        OSError: Something else listens there.
        ImportError: starlette or uvicorn is missing.
    """
    uvicorn = require("uvicorn", _WANTED_BY)
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((ADDRESS, port))
        listening.listen()
        port = listening.getsockname()[1]
        app = create_app(opened, port)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
        )
        threading.Thread(target=_warm_up, args=(opened,), daemon=True).start()
        started(f"http://{ADDRESS}:{port}/")
        uvicorn.Server(config).run(sockets=[listening])


def _warm_up(opened: Opened) -> None:
    """Match by the first method before the page asks; what fails here fails again there, and is told."""
    try:
        opened.fitted(next(iter(opened.makers)))
    except Exception:
        return


def create_app(opened: Opened, port: int) -> Guard:
    """Make the ASGI application for one port.

    Raises:
        ImportError: starlette is missing.
    """
    require("starlette", _WANTED_BY)
    applications = require("starlette.applications", _WANTED_BY)
    routing = require("starlette.routing", _WANTED_BY)
    page = _Page(opened)
    routes = [
        routing.Route("/", page.index),
        *(routing.Route(f"/{name}", page.file) for name in _FILES),
        routing.Route("/image/{side:int}", page.image),
        routing.Route("/api/pair", page.pair),
        routing.Route("/api/matches", page.matches),
        routing.Route("/api/pixels", page.pixels),
        routing.Route("/api/answer", page.answer),
        routing.Route("/api/images/{side:int}", page.exchange, methods=["POST"]),
        routing.Route("/export", page.export),
    ]
    gone = require("starlette.requests", _WANTED_BY).ClientDisconnect
    handlers = dict.fromkeys((ValueError, ImportError, gone), page.refuse) | {Exception: page.fail}
    app = applications.Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, {f"{name}:{port}" for name in (ADDRESS, "localhost")})


class Guard:
    """Let through what the page itself asks for, and nothing that another site asks a browser for."""

    def __init__(self, app: Callable[..., Awaitable[None]], hosts: set[str]) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, with the headers that keep the page to itself."""
        if scope["type"] != "http":
            return
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        reason = self._reason_to_refuse(headers)
        if reason is None:
            await self.app(scope, receive, _with_headers(send))
            return
        text = require("starlette.responses", _WANTED_BY).PlainTextResponse
        await text(reason, status_code=403)(scope, receive, _with_headers(send))

    def _reason_to_refuse(self, headers: dict[str, list[str]]) -> str | None:
        """Look at every header of a name: one that comes twice may not hide behind the other."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return "this page answers on its own address only"
        own = {"origin": {f"http://{hosts[0]}"}, "sec-fetch-site": {"none", "same-origin"}}
        if any(not set(headers.get(name, ())) <= allowed for name, allowed in own.items()):
            return "another site's page may not ask here"
        return None


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *extra]
        await send(message)

    return sending


class _Page:
    """The answers to the page's requests; which pair is open changes when it sends an image."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self._responses = require("starlette.responses", _WANTED_BY)
        self._concurrency = require("starlette.concurrency", _WANTED_BY)

    def index(self, _: Any) -> Any:
        return self._file("index.html", "text/html")

    def file(self, request: Any) -> Any:
        name = request.url.path.removeprefix("/")  # one of the routes', never anything else
        return self._file(name, _FILES[name])

    def image(self, request: Any) -> Any:
        side = _side(request)
        return self._responses.Response(self.opened.shown[side].jpeg(), media_type="image/jpeg")

    def pair(self, _: Any) -> Any:
        return self._json(payload.of_pair(self.opened))

    def matches(self, request: Any) -> Any:
        opened = self.opened
        return self._json(payload.of_matches(opened.fitted(request.query_params.get("method", ""))))

    def pixels(self, request: Any) -> Any:
        opened = self.opened
        point = _point(request, opened)
        return self._json(payload.of_pixels(opened.pixels(point), opened.true_place(point)))

    def answer(self, request: Any) -> Any:
        opened = self.opened
        fitted = opened.fitted(request.query_params.get("method", ""))
        return self._json(payload.of_answer(fitted, _point(request, opened), opened))

    def export(self, _: Any) -> Any:
        headers = {"content-disposition": "attachment; filename=explorer.html"}
        page = static_page(self.opened)
        return self._responses.Response(page, media_type="text/html", headers=headers)

    async def exchange(self, request: Any) -> Any:
        """Take the bytes of an image file for one side of the pair."""
        side = _side(request)
        if request.headers.get("content-type") != "application/octet-stream":
            raise ImageError("send the bytes of an image file as application/octet-stream")
        name = unquote(request.headers.get("x-file-name", "image"))
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > MOST_BYTES:
                raise ImageError(f"the file has more than {MOST_BYTES >> 20} MiB")
        exchanged = self.opened.with_image
        self.opened = await self._concurrency.run_in_threadpool(exchanged, side, bytes(data), name)
        return self.pair(request)

    def refuse(self, _: Any, error: Exception) -> Any:
        return self._json({"error": str(error)}, 422)

    def fail(self, _: Any, error: Exception) -> Any:
        return self._json({"error": f"{type(error).__name__}: {error}"}, 500)

    def _json(self, value: payload.Json, status: int = 200) -> Any:
        return self._responses.Response(
            payload.encode(value), status_code=status, media_type="application/json"
        )

    def _file(self, name: str, kind: str) -> Any:
        text = resources.files("matcher.explore").joinpath("page", name).read_text("utf-8")
        return self._responses.Response(text, media_type=kind)


def _side(request: Any) -> int:
    side: int = request.path_params["side"]
    if side not in (0, 1):
        raise ValueError(f"a pair has images 0 and 1, not {side}")
    return side


def _point(request: Any, opened: Opened) -> payload.Point:
    """Read (x, y), a pixel of image 0."""
    height, width = opened.shown[0].working_size
    x, y = (float(request.query_params.get(name, "nan")) for name in ("x", "y"))
    if not (math.isfinite(x) and math.isfinite(y) and 0 <= x < width and 0 <= y < height):
        raise ValueError(f"x and y must be a pixel of the {width} x {height} image, not {x}, {y}")
    return x, y
