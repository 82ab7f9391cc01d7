"""A queue per model for the texts of all connections, and the worker thread that decodes them in batches.

A batch holds texts of one model and one search, with any dials, of similar expected memory length. Clients take turns:
the next text is that of the client who has received the least work so far. Models do not wait for each other.
Everything but decoding runs on the event loop.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from l0drop.app.serve.metrics import Metrics
from l0drop.app.serve.models import Served, ServedSpeech
from l0drop.app.serve.requests import Problem
from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.decoding.results import Explained, Result
from l0drop.decoding.speech import Transcript
from l0drop.decoding.text import OutOfMemoryError

log = logging.getLogger("l0drop.serve")

GATHER_SHARE, GATHER_MOST = 0.05, 0.02
"""An idle worker waits for more texts: this share of the last batch's seconds, at most so many seconds."""
PATIENCE = 0.5
"""A text that has waited so many seconds joins any batch of its model and search, whatever its length."""
MOST_REMEMBERED = 1000
"""Clients without waiting texts whose work is remembered while others wait."""
BEAMS = 4
"""A batch has room for so many beams of every text; with more, it holds fewer texts."""
SHORTEST = 16
"""Expected memory lengths below this count as equal."""


@dataclass(frozen=True)
class OutputBounds:
    """Hypotheses of a search for one text, and the bounds of the new tokens of each."""

    beams: int = 1
    least: int = 0
    most: int = 1

    def expected(self, length: int) -> int:
        """As many tokens as the source has, within the bounds."""
        return min(self.most, max(self.least, length))


@dataclass(eq=False)
class Item:
    """A text in the queue. `run` replaces the decoding of a batch for an item that is decoded alone.

    is_counted: whether the metrics of live traffic count it.
    """

    served: Served | ServedSpeech
    source: Any
    settings: Mapping[str, Any]
    client: str
    deadline: float
    run: Callable[[], Any] | None = None
    alone: bool = False
    bounds: OutputBounds = OutputBounds()
    is_counted: bool = True
    future: "asyncio.Future[DecodedItem]" = field(init=False)
    queued: float = field(init=False)
    together: Hashable = field(init=False)
    """Items with the same value can be decoded in one batch."""
    length: int = field(init=False)
    length_class: int = field(init=False)
    """Items of one class have expected memory lengths within a factor of two."""

    def arrive(self, search: Hashable, now: float) -> None:
        """Compute what every look at the queue needs. search: identifies the settings."""
        self.future, self.queued = asyncio.get_running_loop().create_future(), now
        self.together = (self.served.name, search, self.served.kind(self.source))
        self.length = self.served.length(self.source)
        self.length_class = math.ceil(math.log2(max(SHORTEST, self.served.expected_rows(self.source))))

    @property
    def is_over(self) -> bool:
        """Whether nobody waits for it: its client has gone, or its deadline has passed."""
        return self.future.done()

    @property
    def is_single(self) -> bool:
        """Whether it is decoded in a batch of its own."""
        return self.alone or self.run is not None

    @property
    def cost(self) -> int:
        return self.length * self.bounds.beams

    @property
    def new_tokens(self) -> int:
        """The expected length of its output."""
        return self.bounds.expected(self.length)


class ItemBatch:
    """Items that are decoded together, as long as their tokens stay within the budget of their model.

    The budget counts padded source tokens; the output tokens of all beams may be BEAMS times as many. On a GPU it is
    larger: there, the engine refills slots of finished sentences with the next sentences of the batch.
    """

    def __init__(self, first: Item) -> None:
        self.items = [first]
        self._tokens = first.served.batch_tokens
        self._longest = self._counted(first.length)
        self._most_new = self._counted(first.new_tokens)

    @property
    def is_full(self) -> bool:
        """Whether no item, however short, fits in."""
        return self.items[0].is_single or not self._has_room(self._longest, self._most_new)

    def add(self, item: Item) -> bool:
        """Take the item, if it fits in."""
        first = self.items[0]
        if first.is_single or item.is_single or item.together != first.together:
            return False
        if item.length_class != first.length_class and time.monotonic() - item.queued < PATIENCE:
            return False
        longest = max(self._longest, self._counted(item.length))
        most_new = max(self._most_new, self._counted(item.new_tokens))
        if not self._has_room(longest, most_new):
            return False
        self.items.append(item)
        self._longest, self._most_new = longest, most_new
        return True

    def _counted(self, tokens: int) -> int:
        return max(tokens, self.items[0].served.least_tokens)

    def _has_room(self, longest: int, most_new: int) -> bool:
        texts, beams = len(self.items) + 1, self.items[0].bounds.beams
        return texts * longest <= self._tokens and texts * beams * most_new <= BEAMS * self._tokens


@dataclass(frozen=True)
class DecodedItem:
    """A decoded text. queue_seconds: it waited. decode_seconds: its batch took. batch: texts in it."""

    result: Any
    queue_seconds: float
    decode_seconds: float
    batch: int


class FairQueue:
    """Items by client; `take` serves the client with the least work so far."""

    def __init__(self) -> None:
        self._items: dict[str, deque[Item]] = {}
        self._work: dict[str, float] = {}
        self.count = 0

    def put(self, item: Item) -> None:
        waiting = self._items.setdefault(item.client, deque())
        if not waiting:  # a new client starts level with the others: it has no credit from its absence
            least = min((self._work[client] for client, items in self._items.items() if items), default=0.0)
            self._work[item.client] = max(self._work.get(item.client, 0.0), least)
        waiting.append(item)
        self.count += 1

    def drop(self, is_over: Callable[[Item], bool]) -> list[Item]:
        """Remove items that are no longer wanted."""
        gone: list[Item] = []
        for client, items in list(self._items.items()):
            over = {item for item in items if is_over(item)}
            if over:
                gone += over
                self._items[client] = deque(item for item in items if item not in over)
        self.count -= len(gone)
        self._forget()
        return gone

    def take(self, begin: Callable[[Item], ItemBatch]) -> list[Item]:
        """The next batch: the first item in turn begins it, others in turn join it until it is full."""
        batch: ItemBatch | None = None
        passed: dict[str, list[Item]] = {}
        turns = [(self._work[client], order, client) for order, client in enumerate(self._items)]
        heapify(turns)
        while turns and not (batch and batch.is_full):
            _, order, client = heappop(turns)
            items = self._items[client]
            while items:
                item = items.popleft()
                if batch is None:
                    batch = begin(item)
                elif not batch.add(item):
                    passed.setdefault(client, []).append(item)
                    continue
                self._work[client] += item.cost
                heappush(turns, (self._work[client], order, client))
                break
        for client, left in passed.items():
            self._items[client].extendleft(reversed(left))
        taken = batch.items if batch else []
        self.count -= len(taken)
        self._forget()
        return taken

    def _forget(self) -> None:
        """Drop clients without items, so that memory does not grow with the number of clients seen."""
        for client in [client for client, items in self._items.items() if not items]:
            del self._items[client]
        if not self._items or len(self._work) > len(self._items) + MOST_REMEMBERED:
            self._work = {client: self._work[client] for client in self._items}


class Lane:
    """The queue of one model and the thread that decodes it, so that no model waits for another one's batches."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.queue = FairQueue()
        self.wake = asyncio.Event()
        self.per_text = 0.05  # a running mean of decoding seconds per text, for Retry-After
        self._last_seconds = 0.0
        self._worker = ThreadPoolExecutor(1, "decoding")
        self._loop = asyncio.create_task(self._run(), name="scheduler")

    def close(self) -> None:
        """Accept nothing more; `join` waits for the batch in progress."""
        self._loop.cancel()

    def join(self) -> None:
        self._worker.shutdown()

    async def _run(self) -> None:
        while True:
            if not self.queue.count:
                self.wake.clear()
                await self.wake.wait()
                await asyncio.sleep(min(GATHER_MOST, GATHER_SHARE * self._last_seconds))
            batch = self.queue.take(ItemBatch)
            self.scheduler.queue_changed()
            if not batch:
                continue
            try:
                await self._decode(batch)
            except Exception as error:  # a fault of ours fails this batch, and must not end the lane
                log.exception("%s: a batch failed", batch[0].served.name)
                for item in batch:
                    if not item.is_over:
                        item.future.set_exception(error)

    async def _decode(self, batch: Sequence[Item]) -> None:
        """Decode a batch in the worker thread, and give every item its outcome."""
        began = time.monotonic()
        outcomes = await asyncio.get_running_loop().run_in_executor(self._worker, _decode, batch)
        seconds = time.monotonic() - began
        self._last_seconds = seconds
        self.per_text = 0.9 * self.per_text + 0.1 * seconds / len(batch)
        self.scheduler.observe(batch, outcomes, began, seconds)
        for item, outcome in zip(batch, outcomes, strict=True):
            if item.is_over:
                continue
            if isinstance(outcome, BaseException):
                item.future.set_exception(_problem(outcome))
            else:
                item.future.set_result(DecodedItem(outcome, began - item.queued, seconds, len(batch)))


class Scheduler:
    """Accepts texts on the event loop and decodes them in one worker thread per model."""

    def __init__(self, metrics: Metrics, queue: int) -> None:
        self.metrics, self.most = metrics, queue
        self._lanes: dict[int, Lane] = {}

    async def stop(self) -> None:
        """End after the texts that were accepted."""
        while self.waiting:
            await asyncio.sleep(0.01)
        for lane in self._lanes.values():
            lane.close()
        for lane in self._lanes.values():
            await asyncio.to_thread(lane.join)

    def lane(self, served: Served | ServedSpeech) -> Lane:
        """The lane of a model; two names of one model share it."""
        key = id(served.model)
        if key not in self._lanes:
            self._lanes[key] = Lane(self)
        return self._lanes[key]

    @property
    def waiting(self) -> int:
        """Texts in the queues of all models."""
        return sum(lane.queue.count for lane in self._lanes.values())

    def check_room(self, served: Served | ServedSpeech, texts: int) -> None:
        """Raise a Problem unless the queue has room for so many texts, the pieces of long texts counted one by one."""
        if texts > self.most:
            raise Problem(413, f"the request has {texts:,} texts after splitting; the queue holds {self.most:,}")
        if self.waiting + texts > self.most:
            lane = self.lane(served)
            seconds = max(1, math.ceil(lane.queue.count * lane.per_text))
            raise Problem(503, "the queue is full; try again later", {"Retry-After": str(min(seconds, 60))})

    async def decode(self, items: Sequence[Item]) -> list[DecodedItem]:
        """The results of items of one model and one search, in order.

        Cancelling it, a deadline that passes, or one failure takes its other items off the queue.
        """
        self.check_room(items[0].served, len(items))
        lane = self.lane(items[0].served)
        now = time.monotonic()
        search = tuple(sorted((name, repr(value)) for name, value in items[0].settings.items()))
        for item in items:
            item.arrive(search, now)
            lane.queue.put(item)
        self.queue_changed()
        lane.wake.set()
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, items[0].deadline - now)):
                return await asyncio.gather(*(item.future for item in items))
        except TimeoutError:
            late = [item for item in items if not item.future.done() or item.future.cancelled()]
            self.metrics.expired.inc(sum(item.is_counted for item in late))
            raise expired() from None
        finally:
            for item in items:
                item.future.cancel()
            if any(item.future.cancelled() for item in items):
                lane.queue.drop(lambda item: item.future.cancelled())
                self.queue_changed()

    def observe(self, batch: Sequence[Item], outcomes: Sequence[Any], began: float, seconds: float) -> None:
        """Learn from the outcomes of a batch, and count those of live traffic."""
        metrics, name = self.metrics, batch[0].served.name
        counted = sum(item.is_counted for item in batch)
        if counted:
            metrics.batch_texts.labels(name).observe(counted)
            metrics.batch_seconds.labels(name).observe(seconds)
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Result) and isinstance(item.served, Served):
                item.served.observe(item.source, outcome)
            if item.is_counted:
                metrics.queue_seconds.observe(began - item.queued)
                self._count(name, outcome)

    def _count(self, name: str, outcome: Any) -> None:
        metrics = self.metrics
        if isinstance(outcome, StoppedError):
            metrics.stopped.labels(name).inc()
        elif isinstance(outcome, BaseException):
            metrics.failed.labels(name).inc()
        elif isinstance(outcome, Transcript):
            metrics.audio_seconds.labels(name).inc(outcome.seconds)
            metrics.source_tokens.labels(name).inc(outcome.covered)
            metrics.kept_tokens.labels(name).inc(len(outcome.kept))
            metrics.kept_share.labels(name).observe(1 - outcome.sparsity)
        elif isinstance(outcome, Result):
            metrics.source_tokens.labels(name).inc(outcome.source_tokens)
            metrics.kept_tokens.labels(name).inc(len(outcome.kept))
            metrics.output_tokens.labels(name).inc(outcome.output_tokens)
            if outcome.source_tokens:
                metrics.kept_share.labels(name).observe(len(outcome.kept) / outcome.source_tokens)

    def queue_changed(self) -> None:
        self.metrics.queued.set(self.waiting)


def expired() -> Problem:
    """A request whose deadline has passed."""
    return Problem(504, "the deadline passed before the answer was ready", {"Retry-After": "5"})


class StoppedError(Exception):
    """Nobody waits for the batch any more."""


def _decode(batch: Sequence[Item]) -> list[Result | Explained | Transcript | Exception]:
    """An outcome per item, in the worker thread. If a batch fails, its halves are tried, so only the cause fails."""
    first = batch[0]

    def stop_if_over(*progress: Any) -> None:
        if all(item.is_over for item in batch):
            raise StoppedError

    try:
        stop_if_over()
        if first.run is not None:
            return [first.run()]
        return first.served.decode([item.source for item in batch], first.settings, stop_if_over)
    except StoppedError as error:
        return [error] * len(batch)
    except Exception as error:
        if len(batch) == 1:
            return [error]
    middle = len(batch) // 2
    return _decode(batch[:middle]) + _decode(batch[middle:])


def _problem(error: BaseException) -> BaseException:
    if isinstance(error, OutOfMemoryError) or is_out_of_memory(error):
        return Problem(507, "the input does not fit into the service's memory; send a shorter one")
    return error
