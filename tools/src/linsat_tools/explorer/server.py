"""The explorer's web server: one page, and one address that answers questions."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linsat.errors import ConstraintError
from linsat_tools.explorer.presets import PRESETS
from linsat_tools.explorer.worker import Worker

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

DEFAULT_PORT = 8765
LOOPBACK = "127.0.0.1"  # never another address: anyone who reaches the port may use the page
LARGEST_QUESTION = 64_000  # bytes
MOST_WAITING = 8  # questions; more are turned away
_PAGE = Path(__file__).parent / "page"


def serve(port: int = DEFAULT_PORT, open_browser: bool = True, *, announce: Callable[[str], None] = print) -> None:
    """Serve the explorer on this machine until interrupted.

    Args:
        port: of 127.0.0.1; 0 takes any free one.
        open_browser: open the page in the default browser once it is served.
        announce: gets the line with the address.

    Raises:
        ConstraintError: the port is not a port, or taken.
    """
    import uvicorn

    listening = _listen(port)
    try:
        port = listening.getsockname()[1]
        address = f"http://{LOOPBACK}:{port}/"

        def ready() -> None:
            announce(f"linsat explorer: {address}   (Ctrl-C stops it)")
            if open_browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        app = make_app(port, ready=ready)
        # Both are pure Python, so the explorer needs no compiled extras.
        config = uvicorn.Config(app, log_level="error", loop="asyncio", http="h11", ws="none", server_header=False)
        with contextlib.suppress(KeyboardInterrupt):  # the way to stop it
            uvicorn.Server(config).run(sockets=[listening])
    finally:
        listening.close()


def _listen(port: int) -> socket.socket:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise ConstraintError(f"port is {port!r}; expected a whole number from 0 (any free one) to 65535.")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((LOOPBACK, port))
        listening.listen()  # from here on a browser may come; it waits until the server has started
    except OSError as error:
        listening.close()
        raise ConstraintError(
            f"port {port} cannot be used ({error.strerror}). Fix: --port 0 takes a free one."
        ) from None
    return listening


def make_app(port: int, *, worker: Worker | None = None, ready: Callable[[], None] | None = None) -> ASGIApp:
    """The application: GET / is the page, POST /solve answers one question (`linsat_tools.explorer.answer`).

    Args:
        port: the one that Host and Origin must name.
        worker: what solves.
        ready: called when the server is up.
    """
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    from linsat_tools.explorer.guard import Guard

    page, policy = build_page()
    solver = worker or Worker()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if ready is not None:
            ready()
        warming = asyncio.create_task(solver.warm_up())
        yield
        warming.cancel()
        await solver.stop()

    async def show(request: Request) -> Response:
        return HTMLResponse(page)

    routes = [Route("/", show, methods=["GET"]), Route("/solve", _Questions(solver).reply, methods=["POST"])]
    return Guard(Starlette(routes=routes, lifespan=lifespan), port=port, policy=policy)


class _Questions:
    """Reads questions within limits and hands them to the worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.waiting = 0

    async def reply(self, request: Request) -> Response:
        from starlette.requests import ClientDisconnect
        from starlette.responses import JSONResponse

        def reject(status: int, message: str) -> JSONResponse:
            return JSONResponse({"state": "error", "message": message}, status_code=status)

        # Forms of other sites can send text/plain without asking; application/json they cannot.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return reject(415, "the question has another content type; expected application/json.")
        body = b""
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > LARGEST_QUESTION:
                    return reject(413, f"the question is too large; expected at most {LARGEST_QUESTION} bytes.")
        except ClientDisconnect:
            return reject(400, "the question ends before its length.")  # nobody is there to read it
        try:
            question = json.loads(body)
        except (ValueError, RecursionError):
            return reject(400, "the question is not JSON; expected an object.")
        if self.waiting >= MOST_WAITING:
            return reject(503, "too many questions at once. Fix: ask again.")
        self.waiting += 1
        try:
            answer: dict[str, Any] = await self.worker.ask(json.dumps(question).encode("ascii"))
        except RuntimeError as error:
            return reject(500, str(error))
        finally:
            self.waiting -= 1
        return JSONResponse(answer)


def build_page() -> tuple[str, str]:
    """The page with its style and script inside, and the policy that lets it run these and load nothing else."""
    style, script = ((_PAGE / name).read_text(encoding="utf-8") for name in ("explorer.css", "explorer.js"))
    presets = json.dumps([asdict(preset) for preset in PRESETS]).replace("<", "\\u003c")
    script = script.replace("/*PRESETS*/", presets)
    page = (_PAGE / "explorer.html").read_text(encoding="utf-8")
    page = page.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src 'self'; "
        f"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
