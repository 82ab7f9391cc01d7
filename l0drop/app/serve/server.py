"""The Starlette application: routes, lifespan, uvicorn."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import h11
import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from l0drop.app.serve import huggingface, libretranslate, native, openai, page, speech
from l0drop.app.serve.guard import Access, Guard, on_http_exception, on_problem
from l0drop.app.serve.openapi import description
from l0drop.app.serve.requests import Problem, json_response
from l0drop.app.serve.service import Service


def application(
    service: Service, access: Access | None = None, detector: libretranslate.Detector | None = None
) -> Starlette:
    """The ASGI application of a service."""
    access = access or Access()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        await service.stop()

    app = Starlette(
        routes=[
            Route("/", page.show, methods=["GET"]),
            Route("/healthz", _alive, methods=["GET"]),
            Route("/readyz", _ready, methods=["GET"]),
            Route("/metrics", _metrics, methods=["GET"]),
            Route("/openapi.json", _openapi, methods=["GET"]),
            Route("/v1/generate", native.generate, methods=["POST"]),
            Route("/v1/explain", native.explain, methods=["POST"]),
            Route("/v1/transcribe", speech.transcribe, methods=["POST"]),
            Route("/v1/audio/transcriptions", openai.transcribe, methods=["POST"]),
            Route("/v1/models", openai.list_models, methods=["GET"]),
            Route("/v1/models/{name:path}", openai.get_model, methods=["GET"]),
            Route("/models/{name:path}", huggingface.run_task, methods=["POST"]),
            Route("/translate", libretranslate.translate, methods=["POST"]),
            Route("/detect", libretranslate.detect, methods=["POST"]),
            Route("/languages", libretranslate.languages, methods=["GET"]),
            Route("/frontend/settings", libretranslate.settings, methods=["GET"]),
            Route("/health", libretranslate.health, methods=["GET"]),
        ],
        middleware=[Middleware(Guard, service=service, access=access)],
        exception_handlers={Problem: on_problem, HTTPException: on_http_exception},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would repeat the client's Host header
    app.state.service, app.state.access, app.state.detector = service, access, detector
    app.state.began = int(time.time())
    return app


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which ends connections that wait too long for the client.

    head_seconds: for the head of a request. answer_seconds: until the client has taken an answer that was written.
    """

    head_seconds = 15.0
    answer_seconds = 60.0
    _head_timer: asyncio.TimerHandle | None = None
    _answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._head_timer is None:  # the beginning of another head, for which uvicorn would wait without end
            self._head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._stop_answer_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_answer_timer()

    def resume_writing(self) -> None:
        self._stop_answer_timer()
        super().resume_writing()
        self._start_answer_timer()

    def on_response_complete(self) -> None:
        self._stop_answer_timer()
        self._start_answer_timer()
        super().on_response_complete()

    def _start_answer_timer(self) -> None:
        """Wait for the client to take what has been written: closing would wait for it without end."""
        if self._answer_timer is None and self.transport.get_write_buffer_size():
            self._answer_timer = self.loop.call_later(self.answer_seconds, self._abort_unless_taken)

    def _abort_unless_taken(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def _stop_answer_timer(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def uvicorn_config(app: Starlette, **options: Any) -> uvicorn.Config:
    """uvicorn's settings; SIGTERM ends the server after the requests that were accepted."""
    service: Service = app.state.service
    limits = service.limits
    seconds = {"head_seconds": limits.header_seconds, "answer_seconds": limits.answer_seconds}
    protocol = type("Protocol", (TimedProtocol,), seconds)
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(limits.seconds) + 5,
        **options,
    )


async def _alive(request: Request) -> Response:
    """`GET /healthz`: the process answers."""
    return json_response({"status": "ok"})


async def _ready(request: Request) -> Response:
    """`GET /readyz`: the models are loaded and have decoded once."""
    ready = request.app.state.service.ready
    return json_response({"status": "ready" if ready else "preparing"}, 200 if ready else 503)


async def _metrics(request: Request) -> Response:
    """`GET /metrics`, for Prometheus."""
    return Response(request.app.state.service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


async def _openapi(request: Request) -> Response:
    """`GET /openapi.json`"""
    return json_response(description(request.app.state.service, request.app.state.access))
