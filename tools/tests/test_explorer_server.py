"""The explorer's server: to whom it answers, how much it reads, how long it waits."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys

import pytest

import linsat
from linsat_tools.explorer import serve
from linsat_tools.explorer.server import LARGEST_QUESTION, MOST_WAITING, build_page
from linsat_tools.explorer.worker import Worker
from tests.helpers.explorer_server import request, running_explorer

pytest.importorskip("starlette", reason="starlette is not installed (extra explore)")
pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra explore)")

JSON = {"Content-Type": "application/json"}
QUESTION = json.dumps({"text": "a + b = 1", "scores": {"a": 1.0}, "tau": 0.1}).encode()


@pytest.fixture(scope="module")
def port():
    with running_explorer() as found:
        yield found


def test_the_page_is_served_with_a_policy_that_keeps_it_to_itself(port):
    status, headers, body = request(port, "GET", "/")
    assert status == 200
    page = body.decode()
    assert "<textarea" in page
    assert not re.search(r"(src|href)=\"?(https?:)?//", page)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in headers


def test_a_question_is_answered(port):
    status, headers, body = request(port, "POST", "/solve", QUESTION, JSON)
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert sum(json.loads(body)["x"]) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "localhost", "", "127.0.0.1.evil:{port}"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("POST", "/solve")])
def test_foreign_hosts_are_refused(port, host, method, path):
    status, _, body = request(port, method, path, QUESTION, JSON | {"Host": host.format(port=port)})
    assert status == 403
    assert b"rejected" in body
    assert b"<textarea" not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Origin": "http://127.0.0.1:{port}.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_foreign_pages_are_refused(port, headers):
    filled = {name: value.format(port=port) for name, value in headers.items()}
    status, _, body = request(port, "POST", "/solve", QUESTION, JSON | filled)
    assert status == 403
    assert b'"x"' not in body


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_own_pages_are_served(port, name):
    headers = JSON | {"Host": f"{name}:{port}", "Origin": f"http://{name}:{port}", "Sec-Fetch-Site": "same-origin"}
    assert request(port, "POST", "/solve", QUESTION, headers)[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_form_of_another_site_can_send_is_refused(port, kind):
    assert request(port, "POST", "/solve", QUESTION, {"Content-Type": kind})[0] == 415


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b"\xff\xfe\x00", 400, "not JSON"),
        (b"[" * 50_000, 400, "not JSON"),
        (b"9" * 50_000, 400, "not JSON"),
        (b"[]", 200, "the question is a list"),
        (b'{"text": "a <= 1", "tau": NaN}', 200, "tau is nan"),
        (b'{"text": "a <= 1", "tau": 1e999}', 200, "tau is inf"),
        (b'{"text": "\\ud800 <= 1"}', 200, "line 1, column 1"),
        (b'{"text": "a\\nb"}', 200, "line 1, column 2"),
        (b" " * (LARGEST_QUESTION + 1), 413, "too large"),
    ],
)
def test_odd_questions_get_one_line(port, body, status, said):
    found, _, reply = request(port, "POST", "/solve", body, JSON)
    message = json.loads(reply)["message"]
    assert (found, said in message) == (status, True), message
    assert "\n" not in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/solve", 405),
        ("POST", "/", 405),
        ("PUT", "/solve", 405),
        ("GET", "/etc/passwd", 404),
        ("GET", "/../pyproject.toml", 404),
    ],
)
def test_nothing_else_is_there(port, method, path, status):
    assert request(port, method, path)[0] == status


def test_it_listens_on_loopback_only(port):
    # The whole of 127/8 is loopback, but the socket is bound to 127.0.0.1 alone.
    with socket.socket() as other:
        other.settimeout(5)
        assert other.connect_ex(("127.0.0.2", port)) != 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; tells this machine's own address
        except OSError:
            return
        address = probe.getsockname()[0]
    if not address.startswith("127."):
        with socket.socket() as other:
            other.settimeout(5)
            assert other.connect_ex((address, port)) != 0


@pytest.mark.parametrize("port", [-1, 65536, 1.5, "80", True, None])
def test_what_is_no_port_is_refused(port):
    with pytest.raises(linsat.ConstraintError, match=r"port is .*; expected a whole number from 0"):
        serve(port, False)


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        with pytest.raises(linsat.ConstraintError, match=rf"port {number} cannot be used .*--port 0"):
            serve(number, False)


def test_presets_cannot_end_the_script():
    page, _ = build_page()
    assert page.count("</script>") == 1


# ---------------------------------------------------------------------- the process that solves

# Answers "slow" never, "die" by ending, "cut" by half an answer, anything else with its process id.
FAKE = """
import json, os, sys, time
print("ready", flush=True)
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "slow":
        time.sleep(600)
    if text == "die":
        raise SystemExit
    if text == "cut":
        print('{"state": "sol', flush=True)
        continue
    print(json.dumps({"state": "solved", "pid": os.getpid()}), flush=True)
"""


def _ask_in_turn(*texts: str, seconds: float = 20.0, code: str = FAKE) -> list[dict]:
    async def run() -> list[dict]:
        worker = Worker(seconds=seconds, command=[sys.executable, "-S", "-c", code])
        try:
            return [await worker.ask(json.dumps({"text": text}).encode()) for text in texts]
        finally:
            await worker.stop()

    return asyncio.run(run())


def test_a_solve_that_takes_too_long_is_stopped_and_the_next_one_works():
    before, slow, after = _ask_in_turn("fine", "slow", "fine", seconds=1.5)
    assert slow == {"state": "error", "message": "stopped: solving took longer than 1.5 s."}
    assert before["state"] == after["state"] == "solved"
    assert before["pid"] != after["pid"]


@pytest.mark.parametrize("how", ["die", "cut"])
def test_a_process_that_ends_is_started_again(how):
    before, ended, after = _ask_in_turn("fine", how, "fine")
    assert ended == {"state": "error", "message": "the solving process ended; it is started again."}
    assert before["pid"] != after["pid"]


def test_a_process_that_cannot_start_says_so():
    with pytest.raises(RuntimeError, match="did not start.*linsat info"):
        _ask_in_turn("fine", code="raise SystemExit(3)")


def test_a_withdrawn_question_does_not_answer_the_next():
    async def run() -> dict:
        worker = Worker(command=[sys.executable, "-S", "-c", FAKE])
        try:
            await worker.ask(b'{"text": "fine"}')
            withdrawn = asyncio.create_task(worker.ask(b'{"text": "slow"}'))
            await asyncio.sleep(0.2)
            withdrawn.cancel()
            with pytest.raises(asyncio.CancelledError):
                await withdrawn
            return await worker.ask(b'{"text": "fine"}')
        finally:
            await worker.stop()

    assert asyncio.run(run())["state"] == "solved"


def test_too_many_questions_at_once_are_turned_away():
    from linsat_tools.explorer.server import _Questions

    questions = _Questions(Worker())
    questions.waiting = MOST_WAITING

    class Asked:
        headers = {"content-type": "application/json"}  # noqa: RUF012

        async def stream(self):
            yield QUESTION

    reply = asyncio.run(questions.reply(Asked()))
    assert reply.status_code == 503
