"""The state of a search in slots, and its settings, as tensors that a captured step reads and writes.

Every slot has its own position, so slots are refilled independently. Reordering beams copies no keys or values:
`ancestors` says which beam's slot in the cache holds each position of a hypothesis. Arrays that a step reorders have
two sides; a step reads one and writes the other.

Shapes: B slots, k beams, R = B·k rows, T positions, V vocabulary, L layers, I width of all heads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from l0drop.decoding.search import NEVER, Search, length_penalty

BANNED, SUPPRESSED, BANNED_FIRST, EOS, FORCED_FIRST, FORCED_LAST = (1 << bit for bit in range(6))
"""What a token is to a search: bits of `SearchTensors.flags`."""

MAX_LENGTH, MIN_LENGTH, RETURNED, STOPS_WHEN_FULL, IS_GNMT, DIVISOR, HAS_FIRST, HAS_LAST = range(8)
FIRST_TIME, NO_TIMES, END_OF_TEXT, LATEST_START, NO_REPEAT_NGRAM = range(8, 13)
"""Positions in `SearchTensors.numbers`."""

AT_LENGTH, AT_NEXT, AT_END = range(3)
"""The length that divides a running score when it is compared with finished ones: `SearchTensors.numbers[DIVISOR]`."""

PROGRAMS = 1056
"""Blocks of threads that keep a large GPU busy: eight for each of 132 multiprocessors."""

SPLIT_ROWS = 128
"""The least keys per split of an attention."""


def split_count(programs: int, rows: int) -> int:
    """Parts into which an attention's keys are split, so that there is work for all multiprocessors: a power of 2.

    programs: blocks of threads without a split. rows: the number of keys.
    """
    wanted = min(PROGRAMS // max(1, programs), rows // SPLIT_ROWS)
    return 1 << max(0, wanted.bit_length() - 1) if wanted > 1 else 1


@dataclass(frozen=True, eq=False)
class State:
    """The hypotheses of all slots. Lengths count the start token.

    length, given [B]: tokens so far, and tokens that outputs begin with. open [B]: whether the slot is being decoded.
    offset, rows [B]: the first row of its memory, and their number. error [B]: whether a score was not finite, of any
    sentence of a slot.
    current [R]: the last tokens. scores [B, k]. tokens, ancestors [2, B, k, T]: of the running hypotheses; the side in
    use is (length - 1) % 2. done_tokens [2, B, k, T] with side done_side [B], done_scores, done_length, done [B, k]:
    the finished hypotheses, best first. keys, values [L, R, T, I]: of the target.
    """

    length: Tensor
    given: Tensor
    open: Tensor
    error: Tensor
    offset: Tensor
    rows: Tensor
    current: Tensor
    scores: Tensor
    tokens: Tensor
    ancestors: Tensor
    done_tokens: Tensor
    done_side: Tensor
    done_scores: Tensor
    done_length: Tensor
    done: Tensor
    keys: Tensor
    values: Tensor

    @classmethod
    def empty(
        cls, slots: int, beams: int, positions: int, layers: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> "State":
        """Buffers of closed slots."""

        def ints(*shape: int, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=torch.int32, device=device)

        cache = (layers, slots * beams, positions, width)
        return cls(
            length=ints(slots, value=1),
            given=ints(slots, value=1),
            open=ints(slots),
            error=ints(slots),
            offset=torch.zeros(slots, dtype=torch.int64, device=device),
            rows=ints(slots),
            current=torch.zeros(slots * beams, dtype=torch.int64, device=device),
            scores=torch.zeros(slots, beams, device=device),
            tokens=ints(2, slots, beams, positions),
            ancestors=ints(2, slots, beams, positions),
            done_tokens=ints(2, slots, beams, positions),
            done_side=ints(slots),
            done_scores=torch.zeros(slots, beams, device=device),
            done_length=ints(slots, beams),
            done=ints(slots, beams),
            keys=torch.zeros(cache, dtype=dtype, device=device),
            values=torch.zeros(cache, dtype=dtype, device=device),
        )

    @property
    def slots(self) -> int:
        return len(self.length)

    @property
    def beams(self) -> int:
        return self.scores.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values())

    def fill(self, slots: Tensor, offset: Tensor, rows: Tensor, given_FP: Tensor) -> None:
        """Begin F sentences in these slots, with the P tokens that their outputs begin with.

        `error` stays: it is read when all sentences are finished.
        """
        last = given_FP.shape[1] - 1
        for name, value in (("length", 1), ("given", last + 1), ("done_side", 0)):
            getattr(self, name)[slots] = value
        self.offset[slots], self.rows[slots] = offset, rows
        self.current.view(self.slots, self.beams)[slots] = given_FP[:, :1]
        self.scores[slots] = NEVER
        self.scores[slots, 0] = 0.0
        self.tokens[:, slots, :, : last + 1] = given_FP[:, None].to(torch.int32)
        self.done_scores[slots], self.done_length[slots], self.done[slots] = NEVER, last + 1, 0
        self.open[slots] = 1

    def finished(self, slots: Tensor, fill: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [F, k, T], scores [F, k] and lengths [F, k] of the finished hypotheses in these slots, best first."""
        tokens = self.done_tokens[self.done_side[slots].long(), slots].long()
        length = self.done_length[slots].long()
        behind = torch.arange(tokens.shape[2], device=tokens.device) >= length[..., None]
        return tokens.masked_fill(behind, fill), self.done_scores[slots], length


@dataclass(eq=False)
class SearchTensors:
    """The settings of a search as tensors: a captured step reads them, so that searches share it.

    flags [V]: bits that say what each token is. numbers: single numbers, at the positions named above.
    divisors [T + 1]: the length penalty for each number of new tokens. repetition [1]: the penalty on repeated tokens.
    """

    flags: Tensor
    numbers: Tensor
    divisors: Tensor
    repetition: Tensor
    search: Search

    @classmethod
    def of(cls, search: Search, vocabulary: int, positions: int, device: torch.device) -> "SearchTensors":
        flags = torch.zeros(vocabulary, dtype=torch.uint8)
        for bit, tokens in (
            (BANNED, search.banned),
            (SUPPRESSED, search.suppressed),
            (BANNED_FIRST, search.banned_first),
            (EOS, search.eos),
            (FORCED_FIRST, () if search.forced_first is None else (search.forced_first,)),
            (FORCED_LAST, search.forced_last),
        ):
            for token in set(tokens):
                flags[token] += bit
        numbers = torch.zeros(13, dtype=torch.int32)
        numbers[MAX_LENGTH], numbers[MIN_LENGTH], numbers[RETURNED] = (
            search.max_length,
            search.min_length,
            search.returned,
        )
        numbers[STOPS_WHEN_FULL] = search.stops_when_full
        numbers[IS_GNMT] = search.penalty_style == "gnmt" and not search.early_stopping
        at_end = AT_END if search.length_penalty > 0 else AT_NEXT
        if not numbers[IS_GNMT]:
            at_end = AT_END if search.early_stopping == "never" and search.length_penalty > 0 else AT_LENGTH
        numbers[DIVISOR] = at_end
        numbers[NO_REPEAT_NGRAM] = search.no_repeat_ngram
        numbers[HAS_FIRST], numbers[HAS_LAST] = search.forced_first is not None, bool(search.forced_last)
        if (times := search.timestamps) is not None:
            latest = -1 if times.latest_start is None else times.latest_start
            numbers[FIRST_TIME : LATEST_START + 1] = torch.tensor([times.first, times.none, times.eos, latest])
        # a length of 0 is never read, but 0 to a negative power is an error
        divisors = [1.0, *(length_penalty(new, search) for new in range(1, positions + 1))]
        penalty = torch.tensor([float(search.repetition_penalty)])
        return cls(flags.to(device), numbers.to(device), torch.tensor(divisors).to(device), penalty.to(device), search)

    def update(self, other: "SearchTensors") -> None:
        """Overwrite these tensors, which a captured step reads, with those of another search."""
        for name in ("flags", "numbers", "divisors", "repetition"):
            getattr(self, name).copy_(getattr(other, name))
        self.search = other.search


def kinds_of(search: Search) -> tuple[bool, ...]:
    """What decides which kernels a step runs. Searches that differ in other settings share a captured step."""
    return (
        search.normalizes_first,
        search.renormalize,
        search.timestamps is not None,
        search.no_repeat_ngram > 0,
        search.repetition_penalty != 1.0,
    )
