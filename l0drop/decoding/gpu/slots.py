"""Search on a GPU: memories take slots, a captured step is replayed for every token, finished slots are refilled.

    Memory ─ project: keys and values of all rows, without padding ─▶ fill slots ─▶ replay ─▶ harvest ─▶ refill ─┐
                                                                          ▲─────────────────────────────────────┘

The host does not wait for the GPU inside a step. Every few steps it copies which slots are open, and reads the copy
after it has queued the next steps.

Shapes: B slots, k beams, n sentences, K memory rows, D model width.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from l0drop.core.memory import Memory
from l0drop.core.out_of_memory import is_out_of_memory
from l0drop.decoding.gpu.graphs import Graphs, free_bytes, on_device
from l0drop.decoding.gpu.state import SearchTensors, State, kinds_of, split_count
from l0drop.decoding.gpu.step import DecoderStep, Operations, is_supported
from l0drop.decoding.search import Search

SLOTS = (1, 2, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
"""Numbers of slots: a batch uses the smallest that suffices, so that few steps are captured."""

POSITIONS = tuple(32 << power for power in range(8))
"""Numbers of target positions for which steps are captured."""

STEPS = 4
"""Steps to queue before the host looks which slots are still open."""

REFILL_SHARE = 1 / 8
"""Slots are refilled when this share of them is finished: refilling has a fixed cost on the host."""

CAPTURED = 64
STATES_SHARE = 0.2
"""Captured steps to keep: at most so many, and at most this share of a GPU's memory for the buffers of their slots."""

MEMORY_SHARE = 0.6
"""The share of a GPU's free memory for keys and values of the memory; and for those of the target half of the rest."""

ARENA = 1 << 30
"""Bytes for keys and values of memories to begin with."""

MAX_BEAMS = 16


class Found(NamedTuple):
    """Tokens [n, returned, max_length], scores and lengths [n, returned] of the best hypotheses."""

    tokens: Tensor
    scores: Tensor
    lengths: Tensor


class BrokenScoresError(RuntimeError):
    """The decoder gave NaN or infinite scores."""


class CannotCaptureError(RuntimeError):
    """A step cannot be compiled for this GPU, or not be captured."""


def reason_against(model: Any, search: Search) -> str | None:
    """Why this search cannot run in slots; None if it can."""
    if model.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the dtype {str(model.dtype).removeprefix('torch.')}"
    if not is_supported(model):
        return f"the decoder of {type(model).__name__}"
    if torch.is_autocast_enabled(model.device.type):
        return "autocast"
    if find_spec("triton") is None:
        return "a machine without Triton"
    if search.beams > MAX_BEAMS:
        return f"num_beams={search.beams}"
    unsupported = {
        "max_new_tokens": search.max_length > POSITIONS[-1],
        "do_sample": search.sample,
    }
    return next((name for name, used in unsupported.items() if used), None)


@dataclass(frozen=True, eq=False)
class _Captured:
    """A step for a number of slots, beams and positions. `run` replays its graph, if it has one.

    A graph does not own what it reads, so all of it is here, or belongs to `Slots`.
    """

    state: State
    settings: SearchTensors
    distances: Tensor | None
    run: Any


class Slots:
    """Searches with one model. One thread at a time; others wait."""

    def __init__(self, model: Any, operations: Operations, capture: bool = True) -> None:
        self.step = DecoderStep(model, operations)
        self.device: torch.device = model.device
        self.capture = capture
        self.captured: OrderedDict[tuple[int, ...], _Captured] = OrderedDict()
        self.arena = torch.empty(0)
        self.bias = torch.empty(0)
        self.refused: str | None = None
        """Why a step could not be captured."""
        self._lock = threading.Lock()
        self._graphs = Graphs(self.device)

    @classmethod
    def on_gpu(cls, model: Any) -> "Slots":
        """With kernels and captured steps."""
        try:
            from l0drop.decoding.gpu import kernels  # needs Triton
        except (ImportError, OSError) as error:  # it is there, but a library that it needs is not
            raise CannotCaptureError(f"{type(error).__name__}: {error}") from error
        return cls(model, kernels)

    @property
    def copied_bytes(self) -> int:
        return self.step.copied_bytes

    def search(
        self, memory: Memory, rows: Sequence[int], search: Search, given_BP: Tensor | None, most: int = SLOTS[-1]
    ) -> tuple[Found, int]:
        """The best hypotheses for a batch of memories, and the size of their keys and values.

        rows: the number of rows of each memory. most: slots to use. Raises CannotCaptureError for every search once a
        step could not be captured.
        """
        found = self._empty(len(rows), search)
        if given_BP is None:
            given_BP = torch.full((len(rows), 1), search.start, device=self.device)
        with self._lock, torch.inference_mode():
            if self.refused is not None:
                raise CannotCaptureError(self.refused)
            try:
                return found, self._search(memory, rows, search, given_BP.to(self.device), found, most)
            except BaseException:
                self._graphs.wait()
                if self.refused is not None:
                    self._forget_all()
                raise

    def _search(
        self, memory: Memory, rows: Sequence[int], search: Search, given_BP: Tensor, found: Found, most: int
    ) -> int:
        """Write the best hypotheses into `found`; returns the largest size of keys and values."""
        largest = 0
        for part in self._parts(rows):
            chosen = on_device(part, self.device)
            lengths = [rows[sentence] for sentence in part]
            size = self._project(memory, chosen, lengths)
            self._decode(chosen, lengths, search, given_BP[chosen], found, most)
            largest = max(largest, size)
        return largest

    def free(self) -> None:
        """Free all buffers and captured steps, after an allocation failed; they are made again when needed."""
        with self._lock:
            self._forget_all()

    def _forget_all(self) -> None:
        self.captured.clear()  # captured steps read the arena
        self.arena = self.bias = torch.empty(0)

    def _empty(self, sentences: int, search: Search) -> Found:
        shape = (sentences, search.returned)
        return Found(
            torch.full((*shape, search.max_length), search.fill, device=self.device),
            torch.zeros(shape, device=self.device),
            torch.zeros(shape, dtype=torch.long, device=self.device),
        )

    # --- memories ------------------------------------------------------------------------------------------------

    def _parts(self, rows: Sequence[int]) -> list[list[int]]:
        """Sentences whose keys and values fit into the GPU's memory together, longest memory first."""
        order = sorted(range(len(rows)), key=lambda i: -rows[i])
        if self.arena.numel() and sum(rows) <= self.arena.shape[1]:
            return [order]  # asking for free memory takes longer than a step
        limit = self._most_rows()
        parts: list[list[int]] = [[]]
        used = 0
        for sentence in order:
            if parts[-1] and used + rows[sentence] > limit:
                parts.append([])
                used = 0
            parts[-1].append(sentence)
            used += rows[sentence]
        return parts

    def _most_rows(self) -> int:
        if self.device.type != "cuda":
            return 1 << 12
        return max(1, int(MEMORY_SHARE * (free_bytes(self.device) + self.arena.nbytes)) // self._row_bytes)

    @property
    def _row_bytes(self) -> int:
        return len(self.step.layers) * 2 * self.step.width * self.step.dtype.itemsize

    def _project(self, memory: Memory, chosen: Tensor, rows: list[int]) -> int:
        """Write keys, values and biases of these sentences' rows into the arena, one after the other; returns bytes."""
        total = sum(rows)
        if self.arena.numel() == 0 or total > self.arena.shape[1]:
            self._forget_all()
            # captured steps are made again when it grows: begin large
            capacity = max(total, min(ARENA // self._row_bytes, self._most_rows()))
            shape = (len(self.step.layers), capacity, 2 * self.step.width)
            arena = torch.empty(shape, dtype=self.step.dtype, device=self.device)
            bias = torch.empty(capacity, device=self.device, dtype=memory.bias.dtype)
            self.arena, self.bias = arena, bias  # both or none, if there is no memory left
        rows_n, offset_n = on_device([rows, _offsets(rows)], self.device)
        # the size is given, because repeat_interleave would wait for it
        sentence_K = torch.repeat_interleave(rows_n, output_size=total)
        row_K = torch.arange(total, device=self.device) - offset_n[sentence_K]
        where_K = chosen[sentence_K] * memory.states.shape[1] + row_K
        states_KD = memory.states.flatten(0, 1)[where_K]
        self.step.project(states_KD.to(self.step.dtype), self.arena[:, :total])
        self.bias[:total] = memory.bias.flatten()[where_K]
        return total * self._row_bytes

    # --- decoding ------------------------------------------------------------------------------------------------

    def _decode(
        self, sentences: Tensor, rows: list[int], search: Search, given_nP: Tensor, found: Found, most: int
    ) -> None:
        """Decode memories in the arena, longest first, in slots that are refilled."""
        count = len(rows)
        captured = self._captured(min(count, most), rows, search)
        state = captured.state
        rows_n, offset = on_device([rows, _offsets(rows)], self.device)
        rows_n = rows_n.to(torch.int32)
        state.open.zero_()
        state.error.zero_()
        occupied: list[int | None] = [None] * state.slots

        def fill(slots: Sequence[int], first: int) -> None:
            chosen = slice(first, first + len(slots))
            state.fill(on_device(slots, self.device), offset[chosen], rows_n[chosen], given_nP[chosen])
            for position, slot in enumerate(slots):
                occupied[slot] = first + position

        def harvest(slots: Sequence[int]) -> None:
            positions, closed = on_device([[occupied[slot] for slot in slots], list(slots)], self.device)
            index = sentences[positions]
            tokens, scores, lengths = state.finished(closed, search.fill)
            found.tokens[index] = tokens[:, : search.returned, : search.max_length]
            found.scores[index] = scores[:, : search.returned]
            found.lengths[index] = lengths[:, : search.returned]
            for slot in slots:
                occupied[slot] = None

        queued = min(count, state.slots)
        fill(range(queued), 0)
        watch = _Watch(state)
        longest, earliest = search.max_length - 1, max(search.given, search.min_length) - 1
        since = 0  # steps since slots were last filled
        while any(sentence is not None for sentence in occupied):
            steps = min(STEPS, longest - since) if since < longest else STEPS
            for _ in range(steps):
                captured.run()
            since += steps
            if since >= longest:
                closed = [slot for slot, sentence in enumerate(occupied) if sentence is not None]
            elif since < earliest and queued == min(count, state.slots):
                continue
            else:
                closed = [slot for slot in watch.closed() if occupied[slot] is not None]
            running = sum(sentence is not None for sentence in occupied)
            if not closed or (len(closed) < REFILL_SHARE * state.slots and len(closed) < running and queued < count):
                continue
            if queued == count and len(closed) < running:
                continue  # nothing to refill with: all are harvested at the end
            harvest(closed)
            if queued < count:
                new = closed[: count - queued]
                fill(new, queued)
                queued += len(new)
                since = 0
                watch.forget()
        if bool(state.error.any()):
            raise BrokenScoresError

    def _captured(self, sentences: int, rows: Sequence[int], search: Search) -> _Captured:
        """The step for so many sentences; captured if it is new."""
        positions = next(positions for positions in POSITIONS if positions >= search.max_length)

        def key_of(slots: int) -> tuple[int, ...]:
            splits = split_count(slots * self.step.heads, max(rows))
            return (slots, search.beams, search.candidates, positions, splits, *kinds_of(search))

        key = key_of(next((slots for slots in SLOTS if slots >= sentences), SLOTS[-1]))
        if key not in self.captured:
            key = key_of(min(key[0], self._most_slots(search)))
        known = self.captured.get(key)
        if known is not None:
            self.captured.move_to_end(key)
            if known.settings.search != search:
                known.settings.update(SearchTensors.of(search, self.step.vocabulary, positions, self.device))
            return known
        slots, splits = key[0], key[4]
        settings = SearchTensors.of(search, self.step.vocabulary, positions, self.device)
        size = slots * search.beams * positions * self._row_bytes
        self._make_room(size)
        state = State.empty(
            slots, search.beams, positions, len(self.step.layers), self.step.width, self.step.dtype, self.device
        )
        distances = self.step.distances(positions)
        made = _Captured(state, settings, distances, self._step(state, settings, splits, distances))
        self.captured[key] = made
        return made

    def _make_room(self, size: int) -> None:
        """Forget captured steps that were not used for the longest time."""
        limit = self._most_state_bytes()
        while self.captured and (
            len(self.captured) >= CAPTURED or size + sum(c.state.nbytes for c in self.captured.values()) > limit
        ):
            self.captured.popitem(last=False)

    def _most_state_bytes(self) -> int:
        if self.device.type != "cuda":
            return 1 << 40
        return int(STATES_SHARE * torch.cuda.get_device_properties(self.device).total_memory)

    def _most_slots(self, search: Search) -> int:
        """Slots whose keys and values of the target fit into the GPU's memory."""
        if self.device.type != "cuda":
            return SLOTS[-1]
        positions = next(positions for positions in POSITIONS if positions >= search.max_length)
        fit = int((1 - MEMORY_SHARE) / 2 * free_bytes(self.device)) // (self._row_bytes * positions * search.beams)
        return max(slots for slots in SLOTS if slots <= max(1, fit))

    def _step(self, state: State, settings: SearchTensors, splits: int, distances: Tensor | None) -> Any:
        def run() -> None:
            self.step(state, settings, self.arena, self.bias, splits, distances)

        if not self.capture:
            return run
        if not self.captured:
            self._graphs.forget()
        try:
            return self._graphs.capture(run)  # all slots are closed, so nothing changes
        except Exception as error:  # of a compiler, of a driver, of torch: their classes have nothing in common
            if is_out_of_memory(error):
                raise
            self.refused = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise CannotCaptureError(self.refused) from error


def _offsets(rows: Sequence[int]) -> list[int]:
    """The first row of each sentence's memory, one memory after the other."""
    return [0, *accumulate(rows[:-1])]


class _Watch:
    """Which slots are closed, read from a copy that was queued one call earlier."""

    def __init__(self, state: State) -> None:
        self.open = state.open
        on_gpu = state.open.is_cuda
        self.copies = [torch.empty_like(state.open, device="cpu", pin_memory=on_gpu) for _ in range(2)]
        self.events = [torch.cuda.Event() if on_gpu else None for _ in range(2)]
        self.calls = 0

    def closed(self) -> list[int]:
        """The slots that were closed at the last call; none at the first one."""
        now, before = self.calls % 2, (self.calls + 1) % 2
        self.copies[now].copy_(self.open, non_blocking=True)
        if (event := self.events[now]) is not None:
            event.record(torch.cuda.current_stream(self.open.device))  # of that GPU, which need not be the current one
        self.calls += 1
        if self.calls == 1:
            return []
        if (event := self.events[before]) is not None:
            event.synchronize()
        return [slot for slot, is_open in enumerate(self.copies[before].tolist()) if not is_open]

    def forget(self) -> None:
        """Slots were filled: the queued copies are out of date."""
        self.calls = 0
