"""Hostile requests at the port of a running explorer: each is refused, and the next one answered."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

_QUESTION = {"text": "a + b = 1", "scores": {"a": 1.0}, "tau": 0.1}
_HOST = "127.0.0.1:{port}"
_SECONDS = 60.0  # for an answer to a question
_PATIENCE = 2.0  # for one to what is hostile; silence may be because more could come
_LONGEST = 100_000  # bytes of an answer: the page is longer, and nobody hostile gets it


@dataclass(frozen=True)
class Reply:
    """What came back for one request; code 0: the line was closed without a word."""

    kind: str
    code: int
    odd: str  # what should not have come; empty where all is well


def _post(body: bytes, *, length: str | None = None, more: str = "", host: str = _HOST) -> bytes:
    length = str(len(body)) if length is None else length
    head = f"POST /solve HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{more}"
    return head.encode() + f"Content-Length: {length}\r\nConnection: close\r\n\r\n".encode() + body


def _get(path: str, more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {_HOST}\r\n{more}Connection: close\r\n\r\n".encode()


def _value(rng: random.Random) -> object:
    """Anything that is no question, or part of one."""
    odd: list[object] = [
        None,
        True,
        -1,
        1e308,
        "x" * 3000,
        "\u0000",
        [],
        {},
        [[]] * 50,
        {"a": {"a": {}}},
        "1e999",
        "\ud800",
    ]
    return rng.choice(odd)


def _wrong_fields(rng: random.Random) -> bytes:
    question: dict[str, object] = dict(_QUESTION)
    for name in rng.sample(["text", "scores", "tau"], rng.randint(1, 3)):
        question[name] = _value(rng)
    question[rng.choice(["text", "scores", "__class__", "objective"])] = _value(rng)
    return _post(json.dumps(question).encode())


def _cut(rng: random.Random) -> bytes:
    whole = _post(json.dumps(_QUESTION).encode())
    return whole[: rng.randrange(1, len(whole))]


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 5000)).replace(b"{", b"(")


_LENGTHS = ("-1", "1e3", "0x10", "99999999999999999999", "", "2, 3")
_CHUNKS = (b"ZZ\r\n", b"-1\r\n\r\n", b"FFFFFFFFF\r\na")
_HOSTS = ("evil.example", "[::1]", "127.0.0.1:99999", "a" * 3000)
_ORIGINS = ("null", "http://evil.example", "file://")
_PATHS = ("/../../etc/passwd", "//etc", "/%00", "/%2e%2e/x", "/solve?" + "a" * 9000, "*")
_METHODS = (b"PUT", b"DELETE", b"TRACE", b"CONNECT", b"\x00")
_ROWS = ("__import__('os') <= 1", "9**9**9**9 * a <= 1", "(" * 3000, "a <= 1\n" * 5000)
_KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "noise": _noise,
    "cut": _cut,
    "noise in place of JSON": lambda rng: _post(_noise(rng)),
    "deep JSON": lambda rng: _post(rng.choice([b"[", b'{"a":']) * rng.randrange(1_000, 30_000)),
    "wrong fields": _wrong_fields,
    "false length": lambda rng: _post(b"{}", length=rng.choice(_LENGTHS)),
    "more than it says": lambda rng: _post(b"{" * 200, length=str(rng.randrange(100))),
    "too long": lambda rng: _post(b" " * 2_000_000),
    "chunks that lie": lambda rng: _post(b"", more="Transfer-Encoding: chunked\r\n") + rng.choice(_CHUNKS),
    "another host": lambda rng: _post(b"{}", host=rng.choice(_HOSTS)),
    "another page": lambda rng: _post(b"{}", more=f"Origin: {rng.choice(_ORIGINS)}\r\n"),
    "long header": lambda rng: _get("/none", "A: " + "b" * rng.randrange(70_000, 300_000) + "\r\n"),
    "many headers": lambda rng: _get("/none", "".join(f"H{i}: 1\r\n" for i in range(rng.randrange(100, 3000)))),
    "another path": lambda rng: _get(rng.choice(_PATHS)),
    "another method": lambda rng: rng.choice(_METHODS) + _get("/solve")[3:],
    "code in the rows": lambda rng: _post(json.dumps(_QUESTION | {"text": rng.choice(_ROWS)}).encode()),
}


def send(port: int, kind: str, request: bytes, seconds: float) -> Reply:
    """Send one, and read what is said to it for so long."""
    reply = b""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
        try:
            line.sendall(request.replace(b"{port}", str(port).encode()))
            while len(reply) < _LONGEST and (part := line.recv(65536)):
                reply += part
        except OSError:  # silence, or closed by the other side before all was sent
            pass
    if not reply:
        return Reply(kind, 0, "")
    words = reply.split(b" ", 2)
    code = int(words[1]) if words[0].startswith(b"HTTP/1.") and words[1].isdigit() else -1
    body = reply.partition(b"\r\n\r\n")[2]
    odd = ""
    if b"Traceback" in reply or code in (-1, 500):
        odd = reply[:300].decode(errors="replace")
    elif b"<textarea" in body or len(reply) >= _LONGEST:
        odd = "was given the page"
    return Reply(kind, code, odd)


def _question(port: int) -> Reply:
    """A plain question, asked again while the explorer is busy with those that were withdrawn."""
    until = time.monotonic() + _SECONDS
    while True:
        reply = send(port, "a question", _post(json.dumps(_QUESTION).encode()), _SECONDS)
        if reply.code != 503 or time.monotonic() > until:
            return reply
        time.sleep(0.2)


def asked(port: int, count: int, seed: int) -> list[Reply]:
    """So many requests, of every kind in turn; after each the explorer must still answer a question."""
    rng = random.Random(seed)
    replies = []
    for i in range(count):
        kind = list(_KINDS)[i % len(_KINDS)]
        reply = send(port, kind, _KINDS[kind](rng), _PATIENCE)
        after = _question(port)
        if not reply.odd and after.code != 200:
            reply = Reply(kind, reply.code, f"the next question got {after.code} {after.odd}")
        replies.append(reply)
    return replies
