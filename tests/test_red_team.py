"""An attacker on the web, or on the network, against the explorer as it is really served.

Each row of `ATTEMPTS` is bytes on the wire and the answer that they get; scripts/red_team.py prints them.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "red_team.py"


@pytest.fixture(scope="module")
def red_team():
    pytest.importorskip("uvicorn")
    pytest.importorskip("starlette")
    if not SCRIPT.is_file():
        pytest.skip("scripts/red_team.py is not here")
    spec = importlib.util.spec_from_file_location("red_team", SCRIPT)
    module = sys.modules["red_team"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def port(red_team, tmp_path_factory):
    return red_team.start(tmp_path_factory.mktemp("served"))


def test_every_attempt_is_answered_as_it_should_be(red_team, port):
    for attempt in red_team.attempts(port):
        answer = red_team.ask(port, attempt.request)

        assert answer.startswith(attempt.status), (attempt.name, answer[:300])
        assert attempt.told in answer, (attempt.name, answer[:300])
        assert b"root:" not in answer, attempt.name
        assert b"access-control-allow" not in answer.lower(), attempt.name


def test_every_page_forbids_foreign_scripts_and_frames(red_team, port):
    for path in (b"/", b"/explorer.js", b"/api/pair", b"/nothing", b"/export"):
        answer = red_team.ask(port, red_team.request(port, path)).lower()

        assert b"default-src 'none'" in answer
        assert b"frame-ancestors 'none'" in answer
        assert b"x-content-type-options: nosniff" in answer


def test_nobody_else_on_the_network_reaches_it(port):
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    for address in addresses - {"127.0.0.1", "::1"}:
        if address.startswith("127."):
            continue
        with pytest.raises(OSError, match=r"refused|unreachable|timed out|assign|not supported"):
            socket.create_connection((address, port), timeout=2)


def test_a_name_with_a_script_is_shown_and_not_run(red_team, port):
    name = b"%3C/script%3E%3Cscript%3Ealert(1)%3C/script%3E"
    sent = red_team.request(port, b"/api/images/0", b"POST", red_team.PICTURE, name)

    assert red_team.ask(port, sent).startswith(b"HTTP/1.1 200")

    page = red_team.ask(port, red_team.request(port, b"/export"))
    assert b"<script>alert" not in page
    assert b"\\u003cscript\\u003ealert" in page


def test_it_goes_on_answering_after_all_that(red_team, port):
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    for connection in connections:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: ")  # and never more

    answers: list[bytes] = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(red_team.ask(port, red_team.request(port, b"/api/pair")))
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for connection in connections:
        connection.close()

    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
