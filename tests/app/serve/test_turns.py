"""Clients take turns in one thread; work that nobody waits for ends, and does not hold up the end of the service."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from l0drop.app.serve.turns import TURN, Turns, in_one_step
from l0drop.decoding.splitting import Steps


def work(name: str, log: list[str], steps: int, seconds: float = 1.5 * TURN) -> Steps[str]:
    for _ in range(steps):
        time.sleep(seconds)
        log.append(name)
        yield
    return name


async def with_turns(main: Callable[[Turns], Any]) -> Any:
    turns = Turns("test")
    try:
        return await main(turns)
    finally:
        turns.close()


def test_clients_take_turns_and_requests_of_one_client_share_them() -> None:
    log: list[str] = []

    async def main(turns: Turns) -> list[str]:
        many = [turns.run("many", work(name, log, 10)) for name in ("many", "more", "most")]
        first = [asyncio.create_task(one) for one in many]
        await asyncio.sleep(2 * TURN)
        return await asyncio.gather(*first, turns.run("one", work("one", log, 4)))

    assert asyncio.run(with_turns(main)) == ["many", "more", "most", "one"]
    last = max(index for index, name in enumerate(log) if name == "one")
    assert last < 16, "every second step is that of the second client"


def test_short_steps_share_a_turn() -> None:
    log: list[str] = []

    async def main(turns: Turns) -> None:
        await asyncio.gather(*(turns.run(name, work(name, log, 3, 0)) for name in ("a", "b")))

    asyncio.run(with_turns(main))
    assert log == ["a", "a", "a", "b", "b", "b"]


def test_cancelled_work_ends_and_passes_its_turn_on() -> None:
    log: list[str] = []

    async def main(turns: Turns) -> str:
        tasks = [asyncio.create_task(turns.run(name, work(name, log, 50))) for name in ("a", "b", "c")]
        await asyncio.sleep(5 * TURN)
        for task in tasks:
            task.cancel()
        done = await turns.run("d", in_one_step(lambda: "done"))
        assert len(log) < 15
        before = len(log)
        await asyncio.sleep(4 * TURN)
        assert len(log) == before
        return done

    assert asyncio.run(with_turns(main)) == "done"


def test_errors_are_those_of_the_work() -> None:
    def failing() -> str:
        raise ValueError("boom")

    async def main(turns: Turns) -> str:
        with pytest.raises(ValueError, match="boom"):
            await turns.run("a", in_one_step(failing))
        return await turns.run("a", in_one_step(lambda: "next"))

    assert asyncio.run(with_turns(main)) == "next"


def test_closing_does_not_wait_for_the_step_in_progress() -> None:
    async def main(turns: Turns) -> float:
        task = asyncio.create_task(turns.run("a", work("a", [], 1, 0.5)))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        task.cancel()
        turns.close()
        return time.monotonic() - began

    assert asyncio.run(with_turns(main)) < 0.2
