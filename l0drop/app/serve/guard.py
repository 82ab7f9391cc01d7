"""What every request passes: host, origin, key, concurrency, security headers, errors as answers, log."""

import asyncio
import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import Awaitable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from l0drop.app.serve.requests import Problem, error_response, json_response
from l0drop.app.serve.service import Service

log = logging.getLogger("l0drop.serve")

OPEN_PATHS = frozenset({"/", "/healthz", "/readyz", "/health", "/frontend/settings"})
"""Answered without a key."""
KEY_IN_BODY = frozenset({"/translate", "/detect", "/languages"})
"""LibreTranslate's clients send the key as a field of the body; these routes check it themselves."""
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


def require_key(request: Request, key: Any) -> None:
    """For routes of KEY_IN_BODY: raise a Problem unless header or body have a valid key."""
    access: Access = request.app.state.access
    if not access.keys:
        return
    client = access.client(bearer(request)) or access.client(key if isinstance(key, str) else None)
    if client is None:
        raise Problem(403, "Invalid API key")
    request.scope["l0drop.client"] = client


def client_of(request: Request) -> str:
    """Whose turn it is in the queue: the key's owner, else the address."""
    return request.scope.get("l0drop.client") or (request.client.host if request.client else "unknown")


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
        self._in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        began, status = time.perf_counter(), 0

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

        self._in_progress += 1
        self.service.metrics.in_progress.inc()
        try:
            refused = self._refusal(request)
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
            self._in_progress -= 1
            self.service.metrics.in_progress.dec()
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.perf_counter() - began
            self.service.metrics.requests.labels(route, str(status)).inc()
            self.service.metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %d %.3f s", request.method, route, status, seconds)

    def _refusal(self, request: Request) -> Response | None:
        """The answer to a request that may not pass."""
        access, path = self.access, request.scope["path"]
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if access.hosts and host not in access.hosts:
            return json_response({"error": "Host: this service does not answer to this name"}, 421)
        origin = request.headers.get("origin")
        if origin is not None and not self._is_own(request, origin) and not self._is_allowed(origin):
            return json_response({"error": "Origin: requests from other sites are not accepted"}, 403)
        if request.method == "OPTIONS" and origin is not None and self._is_allowed(origin):
            return Response(status_code=204)
        if path in OPEN_PATHS:
            return None
        if self._in_progress > self.service.limits.requests:
            return json_response({"error": "too many requests in progress"}, 503, {"Retry-After": "1"})
        if access.keys and path not in KEY_IN_BODY:
            client = access.client(bearer(request))
            if client is None:
                message = "a valid key is needed: Authorization: Bearer KEY"
                return _unauthorized(path, message)
            request.scope["l0drop.client"] = client
        return None

    def _is_own(self, request: Request, origin: str) -> bool:
        return urlsplit(origin).netloc == request.headers.get("host")

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


def _unauthorized(path: str, message: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"}
    if path.startswith("/v1/audio"):
        return json_response({"error": openai_error(401, message)}, 401, headers)
    return json_response({"error": message}, 401, headers)


def openai_error(status: int, message: str) -> dict[str, Any]:
    """OpenAI's form of an error."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": None, "code": None}


async def on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    if request.scope["path"].startswith("/v1/audio/"):
        return json_response({"error": openai_error(error.status, error.message)}, error.status, error.headers)
    return error_response(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message = {404: "there is no such path", 405: "this path does not take this method"}.get(error.status_code)
    return json_response({"error": message or error.detail}, error.status_code, error.headers)
