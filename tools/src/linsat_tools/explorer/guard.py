"""Who may talk to the explorer: only pages that it served itself, on this machine."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

NAMES = ("127.0.0.1", "localhost")
_HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class Guard:
    """Rejects requests whose Host or Origin is foreign, and adds headers that keep the page to itself.

    Another site that gets the browser to call this machine still sends its own Origin; one that makes its own name
    point at this machine (DNS rebinding) still sends its own Host. Both get 403 and reach nothing.
    """

    def __init__(self, app: ASGIApp, *, port: int, policy: str) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}
        self.headers = [*_HEADERS.items(), (b"content-security-policy", policy.encode("ascii"))]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            return

        async def send_with_headers(message: dict) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self.headers]
            await send(message)

        rejection = self._rejection(Request(scope))
        answer = self.app if rejection is None else PlainTextResponse(rejection + "\n", status_code=403)
        await answer(scope, receive, send_with_headers)  # type: ignore[arg-type]

    def _rejection(self, request: Request) -> str | None:
        hosts, origins = request.headers.getlist("host"), request.headers.getlist("origin")
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return f"rejected: this page is served to {' and '.join(sorted(self.hosts))} only."
        if len(origins) > 1 or (origins and origins[0].lower() not in self.origins):
            return "rejected: the request comes from a page of another origin."
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "rejected: the request comes from a page of another site."
        return None
