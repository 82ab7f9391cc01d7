"""One thread in which clients take turns, so that reading the inputs of one client does not hold up the others."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from l0drop.decoding.splitting import Steps

T = TypeVar("T")

TURN = 0.01
"""Seconds of a turn: the step in progress at its end is the last one."""


class Turns:
    """Runs work in steps. After each turn it is the next client's turn; a client's own requests follow each other."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # the first client is the next one
        self._is_busy = False

    async def run(self, client: str, steps: Steps[T]) -> T:
        """The result of the steps. If it is cancelled, no further step begins."""
        found: list[T] = []
        while not found:
            async with self._turn(client):
                found = await asyncio.get_running_loop().run_in_executor(self._thread, _turn, steps)
        return found[0]

    def close(self) -> None:
        """Accept no more work, and do not wait for the step in progress."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def _turn(self, client: str) -> AsyncIterator[None]:
        if self._is_busy:
            mine = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(client, deque()).append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if not mine.cancelled():  # it was given the turn and cannot use it
                    self._pass_on()
                raise
        self._is_busy = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            requests = self._waiting.pop(client)
            following = requests.popleft()
            if requests:
                self._waiting[client] = requests
            if not following.done():
                following.set_result(None)
                return
        self._is_busy = False


def in_one_step(work: Callable[[], T]) -> Steps[T]:
    """Work that cannot be interrupted."""
    yield
    return work()


def _turn(steps: Steps[T]) -> list[T]:
    """The result, if the steps of this turn are the last ones."""
    until = time.monotonic() + TURN
    try:
        while time.monotonic() < until:
            next(steps)
    except StopIteration as done:
        return [done.value]
    return []
