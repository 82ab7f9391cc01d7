"""What every request passes: host, origin, key, concurrency, security headers, errors as answers, log."""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from l0drop.app.serve.limits import Limits
from l0drop.app.serve.requests import SLOT, Problem, json_response
from l0drop.app.serve.service import Held, Service

log = logging.getLogger("l0drop.serve")

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/health", "/frontend/settings"})
"""Answered without a key."""
HEALTH_PATHS = frozenset({"/healthz", "/readyz", "/health"})
"""Those of them that answer by any name, because probes ask by address, or without a Host header."""
KEY_IN_BODY = {"/translate": ("POST",), "/detect": ("POST",), "/languages": ("GET", "HEAD")}
"""LibreTranslate's clients send the key as `api_key`; with these methods the routes check it themselves."""
CLIENT, ARRIVED = "l0drop.client", "l0drop.arrived"
"""Names in the scope of a request: the owner of its key, and when its head arrived."""
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}
LOCAL = ("localhost", "127.0.0.1", "::1")

T = TypeVar("T")


@dataclass(frozen=True)
class Access:
    """Who may use the service.

    keys: any of them opens everything; none are needed if it is empty. hosts: names by which it may be addressed; any
    if it is empty. origins: web origins other than its own that may call it.
    """

    keys: Sequence[str] = ()
    hosts: Collection[str] = ()
    origins: Collection[str] = ()

    def client(self, key: str | None) -> str | None:
        """An identifier of the key's owner; None if the key is wrong. Takes equally long for every key."""
        given = hashlib.sha256((key or "").encode("utf-8", "surrogatepass")).digest()
        found = None
        for index, own in enumerate(self.keys):
            if hmac.compare_digest(hashlib.sha256(own.encode()).digest(), given):
                found = f"key {index + 1}"
        return found


def bearer(request: Request) -> str | None:
    """The key in the Authorization header."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else None


class Slot:
    """A request among those in progress. It counts as that of a stranger until its key has been found.

    held: the bytes that all requests hold.
    """

    def __init__(self, limits: Limits, taken: Counter[str], held: Held) -> None:
        self._limits, self._taken, self._held = limits, taken, held
        self._kind, self._bytes = "", 0

    def take(self, kind: Literal["strangers", "requests"]) -> None:
        """Count among requests of this kind; a Problem if there are too many."""
        if self._taken[kind] >= getattr(self._limits, kind):
            raise Problem(503, "too many requests in progress", {"Retry-After": "1"})
        self._leave()
        self._taken[kind] += 1
        self._kind = kind

    def hold(self, size: int) -> None:
        """Count bytes of the body, up to the end of the request; a Problem if all requests hold too many."""
        self._held.take(size)
        self._bytes += size

    def free(self) -> None:
        self._leave()
        self._held.give(self._bytes)
        self._bytes = 0

    def _leave(self) -> None:
        if self._kind:
            self._taken[self._kind] -= 1
            self._kind = ""


def require_key(request: Request, key: Any) -> None:
    """For routes of KEY_IN_BODY: raise a Problem unless the header had a valid key, or `key` is one."""
    access: Access = request.app.state.access
    if not access.keys or CLIENT in request.scope:
        return
    client = access.client(key if isinstance(key, str) else None)
    if client is None:
        raise Problem(403, "Invalid API key", {"Connection": "close"})
    request.scope[SLOT].take("requests")
    request.scope[CLIENT] = client


def client_of(request: Request) -> str:
    """Whose turn it is in the queue: the key's owner, else the address."""
    return request.scope.get(CLIENT) or (request.client.host if request.client else "unknown")


def deadline_of(request: Request, seconds: float | None = None) -> float:
    """The time by which it must be answered: so many seconds after its head arrived, at most those of the service."""
    most = request.app.state.service.limits.seconds
    return float(request.scope[ARRIVED]) + min(most if seconds is None else seconds, most)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled when the client closes the connection. The body must have been read."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Problem(499, "the client closed the connection")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await one


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, service: Service, access: Access) -> None:
        self.app, self.service, self.access = app, service, access
        self._taken: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        began, status = time.monotonic(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message["headers"]}
                added = {**HEADERS, **self._cors(request)}
                message["headers"] = [
                    *message["headers"],
                    *((n.encode(), v.encode()) for n, v in added.items() if n.lower().encode() not in present),
                ]
            await send(message)

        slot = scope[SLOT] = Slot(self.service.limits, self._taken, self.service.held)
        scope[ARRIVED] = began
        self.service.metrics.in_progress.inc()
        try:
            refused = self._refusal(request, slot)
            if refused is not None:
                await refused(scope, receive, send_with_headers)
            else:
                await self.app(scope, receive, send_with_headers)
        except Exception:
            # a fault of ours: the log has the traceback, the client does not
            log.exception("%s %r failed", request.method, request.scope["path"])
            if status:  # the answer has begun
                raise
            await json_response({"error": "the service failed on this request"}, 500)(scope, receive, send_with_headers)
        finally:
            slot.free()
            self.service.metrics.in_progress.dec()
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - began
            self.service.metrics.requests.labels(route, str(status)).inc()
            self.service.metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.3f s", request.method, route, status, seconds)

    def _refusal(self, request: Request, slot: Slot) -> Response | None:
        """The answer to a request that may not pass; one that may pass takes a slot."""
        try:
            self._check_sites(request)
            if request.method == "OPTIONS" and self._cors(request):
                return Response(status_code=204)
            if request.scope["path"] not in OPEN_PATHS:
                self._check_key(request, slot)
        except Problem as problem:
            return problem_response(request, problem)
        return None

    def _check_sites(self, request: Request) -> None:
        """Refuse other names of this service than its own, and pages of other sites."""
        hosts, given, origin = self.access.hosts, request.headers.get("host"), request.headers.get("origin")
        host = _site(f"//{given or ''}", "Host").hostname
        if hosts and host not in hosts and request.scope["path"] not in HEALTH_PATHS:
            raise Problem(421, "Host: this service does not answer to this name")
        if origin is not None and _site(origin, "Origin").netloc != given and not self._is_allowed(origin):
            raise Problem(403, "Origin: requests from other sites are not accepted")

    def _check_key(self, request: Request, slot: Slot) -> None:
        """Find the owner of the key in the header. A request whose key may follow in its body is a stranger's."""
        path = request.scope["path"]
        client = self.access.client(bearer(request))
        if not self.access.keys or client is not None:
            slot.take("requests")
            if client is not None:
                request.scope[CLIENT] = client
        elif path not in KEY_IN_BODY:
            raise Problem(401, "a valid key is needed: Authorization: Bearer KEY", {"WWW-Authenticate": "Bearer"})
        elif request.method in KEY_IN_BODY[path]:
            slot.take("strangers")
        else:
            raise Problem(403, "Invalid API key")

    def _is_allowed(self, origin: str) -> bool:
        return origin in self.access.origins or "*" in self.access.origins

    def _cors(self, request: Request) -> dict[str, str]:
        origin = request.headers.get("origin")
        if origin is None or not self._is_allowed(origin):
            return {}
        return {
            "Access-Control-Allow-Origin": "*" if "*" in self.access.origins else origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Allow-Methods": "GET, POST, OPTIONS",
            "Vary": "Origin",
        }


def _site(url: str, header: str) -> SplitResult:
    """The parts of a header's address."""
    try:
        return urlsplit(url)
    except ValueError:
        raise Problem(400, f"{header}: is not an address") from None


def openai_error(status: int, message: str) -> dict[str, Any]:
    """OpenAI's form of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": None, "code": None}


def problem_response(request: Request, problem: Problem) -> Response:
    """The error in the form of the path's dialect."""
    if request.scope["path"].startswith("/v1/audio/"):
        error: Any = openai_error(problem.status, problem.message)
    else:
        error = problem.message
    return json_response({"error": error}, problem.status, problem.headers)


async def on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return problem_response(request, error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message = {404: "there is no such path", 405: "this path does not take this method"}.get(error.status_code)
    return problem_response(request, Problem(error.status_code, message or error.detail, error.headers))
