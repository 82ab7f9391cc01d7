"""A service on a free port of this machine, in a thread of the test process or in a process of its own."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from l0drop.app.serve.guard import LOCAL, Access
from l0drop.app.serve.limits import Limits
from l0drop.app.serve.models import Models, Served
from l0drop.app.serve.server import application, uvicorn_config
from l0drop.app.serve.service import Service


@dataclass
class Running:
    """A service that answers at `url`."""

    url: str
    service: Service
    loop: asyncio.AbstractEventLoop
    loop_thread: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str, value: Any, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=value, timeout=30, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, **options)

    def metric(self, name: str, **labels: str) -> float:
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0


@contextmanager
def process(
    folder: Path, log: Path, *options: str, threads: int = 1, keys: str = ""
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`l0drop serve` in a process of its own, with one model named sparse; its address, once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from l0drop.app.cli import main; main()", "serve", f"sparse={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "L0DROP_KEYS": keys}
    with log.open("wb") as file:
        started = subprocess.Popen([*command, "--port", str(port), *options], stdout=file, stderr=file, env=environment)
    url, until = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < until, "the service did not become ready"
            try:
                if httpx.get(url + "/readyz").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url, started
    finally:
        started.kill()
        started.wait()


@contextmanager
def running(
    models: list[Served],
    access: Access | None = None,
    limits: Limits | None = None,
    detector: Any = None,
    **settings: Any,
) -> Iterator[Running]:
    service: list[Any] = []
    started = threading.Event()

    def run() -> None:
        async def main() -> None:
            made = Service(Models(models), limits or Limits(), **settings)
            app = application(made, access or Access(hosts=LOCAL), detector)
            server = uvicorn.Server(uvicorn_config(app, host="127.0.0.1", port=0))
            server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
            service.extend([made, server, asyncio.get_running_loop()])
            started.set()
            await server.serve()

        asyncio.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    made, server, loop = service
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    found = Running(f"http://127.0.0.1:{port}", made, loop, thread.name)
    while not made.ready:
        assert made.failure is None, made.failure
        time.sleep(0.005)
    try:
        yield found
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive(), "the service did not stop"
