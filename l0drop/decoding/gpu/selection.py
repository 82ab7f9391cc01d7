"""Kernels from logits to the next hypotheses, in Triton: what `search.py` does in one step, for all slots.

`_best_of_block` reads the logits once: each program finds the best tokens of one row in one block of the vocabulary,
with the block's part of the sum of exponentials. `_advance` finishes a sentence: it joins the blocks, chooses
candidates, moves complete ones to the finished hypotheses, continues the others, and decides whether the slot stays
open. Some settings need a kernel before these two: `_mark` looks for repetitions, `_time_limits` for the timestamps
that may follow. Scores are in float32, and ties go to the smaller index.

Shapes as in `state.py`; C candidates, W blocks of the vocabulary.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from l0drop.decoding.gpu import state as layout
from l0drop.decoding.gpu.state import SearchTensors, State
from l0drop.decoding.search import NEVER

BLOCK = 4096
"""Tokens per program of the first kernel."""

# kernels can read global constants of this type only
_NEVER = tl.constexpr(NEVER)
_MAX_LENGTH = tl.constexpr(layout.MAX_LENGTH)
_MIN_LENGTH = tl.constexpr(layout.MIN_LENGTH)
_RETURNED = tl.constexpr(layout.RETURNED)
_STOPS_WHEN_FULL = tl.constexpr(layout.STOPS_WHEN_FULL)
_IS_GNMT = tl.constexpr(layout.IS_GNMT)
_DIVISOR = tl.constexpr(layout.DIVISOR)
_HAS_FIRST = tl.constexpr(layout.HAS_FIRST)
_HAS_LAST = tl.constexpr(layout.HAS_LAST)
_FIRST_TIME = tl.constexpr(layout.FIRST_TIME)
_NO_TIMES = tl.constexpr(layout.NO_TIMES)
_END_OF_TEXT = tl.constexpr(layout.END_OF_TEXT)
_LATEST_START = tl.constexpr(layout.LATEST_START)
_NO_REPEAT_NGRAM = tl.constexpr(layout.NO_REPEAT_NGRAM)
_BANNED = tl.constexpr(layout.BANNED)
_SUPPRESSED = tl.constexpr(layout.SUPPRESSED)
_BANNED_FIRST = tl.constexpr(layout.BANNED_FIRST)
_EOS = tl.constexpr(layout.EOS)
_FORCED_FIRST = tl.constexpr(layout.FORCED_FIRST)
_FORCED_LAST = tl.constexpr(layout.FORCED_LAST)
_AT_NEXT = tl.constexpr(layout.AT_NEXT)
_AT_END = tl.constexpr(layout.AT_END)
# bits that `_mark` sets for a token of a row
_OCCURRED = tl.constexpr(1)
_REPEATS = tl.constexpr(2)


def choose(logits_RV: Tensor, state: State, settings: SearchTensors) -> None:
    """Advance every open slot by one token."""
    search = settings.search
    rows, vocabulary = logits_RV.shape
    count = min(search.candidates, vocabulary)
    blocks = triton.cdiv(vocabulary, BLOCK)
    best = torch.empty(rows, blocks, count, dtype=torch.float32, device=logits_RV.device)
    token = torch.empty(rows, blocks, count, dtype=torch.int32, device=logits_RV.device)
    sums = torch.empty(rows, blocks, 2, dtype=torch.float32, device=logits_RV.device)
    beams, positions = state.beams, state.tokens.shape[3]
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    has_marks = search.no_repeat_ngram > 0 or search.repetition_penalty != 1.0
    marks = torch.zeros(rows if has_marks else 0, vocabulary, dtype=torch.uint8, device=logits_RV.device)
    if has_marks:
        _mark[(rows,)](
            marks, settings.numbers, state.length, state.given, state.open, state.tokens,
            BEAMS=beams, SLOTS=state.slots, T=positions, V=vocabulary, COPY=min(128, positions), num_warps=4,
        )  # fmt: skip
    if search.repetition_penalty != 1.0 and search.normalizes_first:
        # the penalty multiplies log-probabilities, so the whole sum is needed first
        logits_RV = logits_RV.float().log_softmax(-1)
    has_times = search.timestamps is not None
    limits = torch.empty(rows if has_times else 0, 3, dtype=torch.int32, device=logits_RV.device)
    if has_times:
        _time_limits[(rows,)](
            limits, logits_RV, settings.flags, settings.numbers, marks, settings.repetition, state.length, state.given,
            state.open, state.tokens,
            BEAMS=beams, SLOTS=state.slots, T=positions, V=vocabulary, HAS_MARKS=has_marks, BLOCK=block,
            COPY=min(128, positions), num_warps=8,
        )  # fmt: skip
    _best_of_block[(rows, blocks)](
        best, token, sums, logits_RV, settings.flags, settings.numbers, marks, settings.repetition, state.length,
        state.given, state.open, limits,
        BEAMS=beams, V=vocabulary, C=count, W=blocks,
        NORMALIZES_FIRST=search.normalizes_first and not search.renormalize, HAS_MARKS=has_marks, HAS_TIMES=has_times,
        BLOCK=block, num_warps=8 if vocabulary > 1024 else 4,
    )  # fmt: skip
    candidates = search.candidates
    _advance[(state.slots,)](
        best, token, sums, settings.flags, settings.numbers, settings.divisors, state.length, state.given, state.open,
        state.error, state.current, state.scores, state.tokens, state.ancestors, state.done_tokens, state.done_side,
        state.done_scores, state.done_length, state.done,
        BEAMS=beams, BEAM_TILE=triton.next_power_of_2(beams), SLOTS=state.slots, T=positions, W=blocks, C=count,
        CANDIDATES=candidates, CANDIDATE_TILE=triton.next_power_of_2(candidates),
        TILE=triton.next_power_of_2(beams * blocks * count), BLOCKS=triton.next_power_of_2(blocks),
        COPY=min(128, positions), num_warps=1 if beams * blocks * count <= 512 else 4,
    )  # fmt: skip


@triton.jit
def _first(values, best, index):  # type: ignore[no-untyped-def]
    """The first position of the largest element."""
    return tl.min(tl.where(values == best, index, 1 << 30), 0)


@triton.jit
def _taken(values, index, chosen):  # type: ignore[no-untyped-def]
    """The element of a vector of integers at a position."""
    return tl.sum(tl.where(index == chosen, values, 0), 0)


@triton.jit
def _constrained(x, flags, inside, NUMBERS, length, given):  # type: ignore[no-untyped-def]
    """Logits under `search.constrain`, in its order: banned, too short, forced, suppressed, banned at the beginning."""
    has_first = tl.load(NUMBERS + _HAS_FIRST)
    x = tl.where((flags & _BANNED) != 0, float("-inf"), x)
    too_short = tl.where(length < tl.load(NUMBERS + _MIN_LENGTH), _EOS, 0)
    x = tl.where((flags & too_short) != 0, float("-inf"), x)
    forces_first = (has_first != 0) & (length == 1)
    x = tl.where(forces_first, tl.where((flags & _FORCED_FIRST) != 0, 0.0, float("-inf")), x)
    forces_last = (tl.load(NUMBERS + _HAS_LAST) != 0) & (length == tl.load(NUMBERS + _MAX_LENGTH) - 1)
    x = tl.where(forces_last, tl.where((flags & _FORCED_LAST) != 0, 0.0, float("-inf")), x)
    x = tl.where((flags & _SUPPRESSED) != 0, float("-inf"), x)
    is_first = tl.where(length == given + has_first, _BANNED_FIRST, 0)
    x = tl.where((flags & is_first) != 0, float("-inf"), x)
    return tl.where(inside, x, float("-inf"))


@triton.jit
def _without_repetition(x, marks, REPETITION):  # type: ignore[no-untyped-def]
    """Scores under `search.penalize_repetition` and `search.ban_repeated_ngrams`."""
    penalty = tl.load(REPETITION)
    x = tl.where((marks & _OCCURRED) != 0, tl.where(x < 0, x * penalty, x / penalty), x)
    return tl.where((marks & _REPEATS) != 0, float("-inf"), x)


@triton.jit
def _mark(  # type: ignore[no-untyped-def]
    MARKS, NUMBERS, LENGTH, GIVEN, OPEN, TOKENS,
    BEAMS: tl.constexpr, SLOTS: tl.constexpr, T: tl.constexpr, V: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Mark the tokens that occurred in a row's hypothesis, then those that would complete an n-gram again."""
    row = tl.program_id(0).to(tl.int64)
    slot = row // BEAMS
    length = tl.load(LENGTH + slot)
    if (tl.load(OPEN + slot) != 0) & (length >= tl.load(GIVEN + slot)):
        tokens = TOKENS + (((length - 1) % 2) * SLOTS * BEAMS + row) * T
        for start in range(0, length, COPY):
            time = start + tl.arange(0, COPY)
            token = tl.load(tokens + time, mask=time < length, other=0)
            tl.store(MARKS + row * V + token, _OCCURRED, mask=time < length)
        tl.debug_barrier()  # a token may get both marks, from different threads
        size = tl.load(NUMBERS + _NO_REPEAT_NGRAM)
        if size > 0:
            for start in range(0, length - size + 1, COPY):
                first = start + tl.arange(0, COPY)
                repeats = first < length - size + 1
                for index in range(size - 1):
                    now = tl.load(tokens + length - size + 1 + index)
                    then = tl.load(tokens + first + index, mask=first < length - size + 1, other=-1)
                    repeats = repeats & (then == now)
                token = tl.load(tokens + first + size - 1, mask=repeats, other=0)
                tl.store(MARKS + row * V + token, _OCCURRED | _REPEATS, mask=repeats)


@triton.jit
def _time_limits(  # type: ignore[no-untyped-def]
    LIMITS, LOGITS, FLAGS, NUMBERS, MARKS, REPETITION, LENGTH, GIVEN, OPEN, TOKENS,
    BEAMS: tl.constexpr, SLOTS: tl.constexpr, T: tl.constexpr, V: tl.constexpr, HAS_MARKS: tl.constexpr,
    BLOCK: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    """Whisper's rules for timestamps (`search.follow_timestamps`) for one row, as limits: the first text token that is
    allowed, the first timestamp that is allowed, and the first one after it that is not."""
    row = tl.program_id(0).to(tl.int64)
    slot = row // BEAMS
    length = tl.load(LENGTH + slot)
    given = tl.load(GIVEN + slot)
    if (tl.load(OPEN + slot) != 0) & (length >= given):
        first = tl.load(NUMBERS + _FIRST_TIME)
        latest_start = tl.load(NUMBERS + _LATEST_START)
        from_text = 0
        from_time = first
        to_time = first * 0 + V
        if length == given:
            from_text = first
            to_time = tl.where(latest_start >= 0, tl.minimum(first + latest_start + 1, V), V)
        else:
            tokens = TOKENS + (((length - 1) % 2) * SLOTS * BEAMS + row) * T
            last = (tl.load(tokens + length - 1) >= first).to(tl.int32)
            before = (tl.load(tokens + tl.maximum(length - 2, 0)) >= first).to(tl.int32)
            before = tl.where(length - given > 1, before, 1)
            newest = -1
            for start in range(given, length, COPY):
                time = start + tl.arange(0, COPY)
                token = tl.load(tokens + time, mask=time < length, other=0)
                newest = tl.maximum(newest, tl.max(tl.where((token >= first) & (time < length), time, -1), 0))
            closes = last * (1 - before)
            newest_time = tl.load(tokens + tl.maximum(newest, 0)) + 1 - closes
            from_time = tl.where(newest >= 0, newest_time, first)
            to_time = tl.where(last * before == 1, first, V)
            from_text = tl.where(closes == 1, tl.load(NUMBERS + _END_OF_TEXT), 0)
        # a timestamp follows if all of them together are more likely than every text token
        top = float("-inf")
        total = 0.0
        best_text = float("-inf")
        for start in range(0, V, BLOCK):
            token = start + tl.arange(0, BLOCK)
            inside = token < V
            x = tl.load(LOGITS + row * V + token, mask=inside, other=float("-inf")).to(tl.float32)
            flags = tl.load(FLAGS + token, mask=inside, other=0)
            if HAS_MARKS:
                marks = tl.load(MARKS + row * V + token, mask=inside, other=0)
                x = _without_repetition(x, marks, REPETITION)
            x = _constrained(x, flags, inside, NUMBERS, length, given)
            x = tl.where(token == tl.load(NUMBERS + _NO_TIMES), float("-inf"), x)
            text = tl.where((token < first) & (token >= from_text), x, float("-inf"))
            x = tl.where((token >= first) & (token >= from_time) & (token < to_time), x, float("-inf"))
            best_text = tl.maximum(best_text, tl.max(text, 0))
            higher = tl.maximum(top, tl.max(x, 0))
            safe = tl.where(higher == float("-inf"), 0.0, higher)
            total = total * tl.exp(top - safe) + tl.sum(tl.exp(x - safe), 0)
            top = higher
        from_text = tl.where(top + tl.log(total) > best_text, first, from_text)
        tl.store(LIMITS + row * 3, from_text)
        tl.store(LIMITS + row * 3 + 1, from_time)
        tl.store(LIMITS + row * 3 + 2, to_time)


@triton.jit
def _best_of_block(  # type: ignore[no-untyped-def]
    BEST, TOKEN, SUMS, LOGITS, FLAGS, NUMBERS, MARKS, REPETITION, LENGTH, GIVEN, OPEN, LIMITS,
    BEAMS: tl.constexpr, V: tl.constexpr, C: tl.constexpr, W: tl.constexpr, NORMALIZES_FIRST: tl.constexpr,
    HAS_MARKS: tl.constexpr, HAS_TIMES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    slot = row // BEAMS
    length = tl.load(LENGTH + slot)
    given = tl.load(GIVEN + slot)
    if (tl.load(OPEN + slot) != 0) & (length >= given):
        index = tl.arange(0, BLOCK)
        token = block * BLOCK + index
        inside = token < V
        x = tl.load(LOGITS + row * V + token, mask=inside, other=float("-inf")).to(tl.float32)
        flags = tl.load(FLAGS + token, mask=inside, other=0)
        if NORMALIZES_FIRST:
            top = tl.max(x, 0)
            total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), 0)
        if HAS_MARKS:
            marks = tl.load(MARKS + row * V + token, mask=inside, other=0)
            x = _without_repetition(x, marks, REPETITION)
        x = _constrained(x, flags, inside, NUMBERS, length, given)
        if HAS_TIMES:
            is_time = token >= tl.load(NUMBERS + _FIRST_TIME)
            from_time = tl.load(LIMITS + row * 3 + 1)
            to_time = tl.load(LIMITS + row * 3 + 2)
            x = tl.where(token < tl.load(LIMITS + row * 3), float("-inf"), x)
            x = tl.where(is_time & ((token < from_time) | (token >= to_time)), float("-inf"), x)
            x = tl.where(token == tl.load(NUMBERS + _NO_TIMES), float("-inf"), x)
        if NORMALIZES_FIRST:
            # forced tokens have log-probability 0: nothing is subtracted from them
            forces_first = (tl.load(NUMBERS + _HAS_FIRST) != 0) & (length == 1)
            is_forced = forces_first | (
                (tl.load(NUMBERS + _HAS_LAST) != 0) & (length == tl.load(NUMBERS + _MAX_LENGTH) - 1)
            )
            top = tl.where(is_forced, tl.where(block == 0, 0.0, float("-inf")), top)
            total = tl.where(is_forced, tl.where(block == 0, 1.0, 0.0), total)
        else:
            top = tl.max(x, 0)
            total = tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), 0)
        tl.store(SUMS + (row * W + block) * 2, top)
        tl.store(SUMS + (row * W + block) * 2 + 1, total)
        out = (row * W + block) * C
        for c in range(C):
            value = tl.max(x, 0)
            chosen = _first(x, value, index)
            tl.store(BEST + out + c, value)
            tl.store(TOKEN + out + c, (block * BLOCK + chosen).to(tl.int32))
            x = tl.where(index == chosen, float("-inf"), x)


@triton.jit
def _advance(  # type: ignore[no-untyped-def]
    BEST, TOKEN, SUMS, FLAGS, NUMBERS, DIVISORS, LENGTH, GIVEN, OPEN, ERROR, CURRENT, SCORES, TOKENS, ANCESTORS,
    DONE_TOKENS, DONE_SIDE, DONE_SCORES, DONE_LENGTH, DONE,
    BEAMS: tl.constexpr, BEAM_TILE: tl.constexpr, SLOTS: tl.constexpr, T: tl.constexpr, W: tl.constexpr,
    C: tl.constexpr, CANDIDATES: tl.constexpr, CANDIDATE_TILE: tl.constexpr, TILE: tl.constexpr,
    BLOCKS: tl.constexpr, COPY: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0).to(tl.int64)
    if tl.load(OPEN + slot) != 0:
        length = tl.load(LENGTH + slot)
        given = tl.load(GIVEN + slot)
        side = (length - 1) % 2
        beam = tl.arange(0, BEAM_TILE)
        is_beam = beam < BEAMS
        old = (side * SLOTS + slot) * BEAMS * T
        new = ((1 - side) * SLOTS + slot) * BEAMS * T
        scores = tl.load(SCORES + slot * BEAMS + beam, mask=is_beam, other=float("-inf"))
        parents = beam
        if length < given:
            tokens = tl.load(TOKENS + old + beam * T + length, mask=is_beam, other=0)
        else:
            # the best tokens of all blocks, with log-probability and the score of their hypothesis
            n = tl.arange(0, TILE)
            is_real = n < BEAMS * W * C
            n_beam = n // (W * C)
            value = tl.load(BEST + slot * BEAMS * W * C + n, mask=is_real, other=float("-inf"))
            n_token = tl.load(TOKEN + slot * BEAMS * W * C + n, mask=is_real, other=0)
            log_total = tl.zeros((TILE,), tl.float32)
            so_far = tl.zeros((TILE,), tl.float32)
            block = tl.arange(0, BLOCKS)
            is_broken = 0
            for b in range(BEAMS):
                of_block = SUMS + ((slot * BEAMS + b) * W + block) * 2
                tops = tl.load(of_block, mask=block < W, other=float("-inf"))
                totals = tl.load(of_block + 1, mask=block < W, other=0.0)
                top = tl.max(tops, 0)
                total = top + tl.log(tl.sum(totals * tl.exp(tops - top), 0))
                is_broken += tl.where((total < float("inf")) & (total > float("-inf")), 0, 1)
                log_total = tl.where(n_beam == b, total, log_total)
                so_far = tl.where(n_beam == b, tl.sum(tl.where(beam == b, scores, 0.0), 0), so_far)
            value = tl.where(is_real, (value - log_total) + so_far, float("-inf"))
            # broken scores must not loop; the host raises an error
            value = tl.where(value == value, value, float("-inf"))

            # candidates, best first; where there are fewer, they have the score NEVER
            c = tl.arange(0, CANDIDATE_TILE)
            is_candidate = c < CANDIDATES
            c_score = tl.where(is_candidate, _NEVER, float("-inf"))
            c_beam = tl.zeros((CANDIDATE_TILE,), tl.int32)
            c_token = tl.zeros((CANDIDATE_TILE,), tl.int32)
            is_left = is_real
            for i in range(CANDIDATES):
                if i < BEAMS * C:
                    best = tl.max(value, 0)
                    # the first of the best that are left, also where all are -inf
                    chosen = tl.min(tl.where(is_left & (value == best), n, TILE), 0)
                    c_score = tl.where(c == i, best, c_score)
                    c_beam = tl.where(c == i, chosen // (W * C), c_beam)
                    c_token = tl.where(c == i, _taken(n_token, n, chosen), c_token)
                    value = tl.where(n == chosen, float("-inf"), value)
                    is_left = is_left & (n != chosen)

            # complete candidates among the best join the finished hypotheses
            flags = tl.load(FLAGS + c_token, mask=is_candidate, other=0)
            at_end = length + 1 >= tl.load(NUMBERS + _MAX_LENGTH)
            has_ended = is_candidate & (tl.where(at_end, _EOS, flags & _EOS) != 0)
            is_among_best = has_ended & (c < BEAMS)
            done_scores = tl.load(DONE_SCORES + slot * BEAMS + beam, mask=is_beam, other=float("-inf"))
            done_length = tl.load(DONE_LENGTH + slot * BEAMS + beam, mask=is_beam, other=0)
            done = tl.load(DONE + slot * BEAMS + beam, mask=is_beam, other=1)
            stops_when_full = tl.load(NUMBERS + _STOPS_WHEN_FULL) != 0
            if tl.sum(is_among_best.to(tl.int32), 0) > 0:
                is_full = tl.min(done, 0) != 0
                complete = c_score / tl.load(DIVISORS + length + 1 - given)
                complete += tl.where(stops_when_full & is_full, _NEVER, 0.0)
                complete = tl.where(is_among_best, complete, complete + _NEVER)
                complete = tl.where(is_candidate, complete, float("-inf"))
                done_side = tl.load(DONE_SIDE + slot)
                done_old = (done_side * SLOTS + slot) * BEAMS * T
                done_new = ((1 - done_side) * SLOTS + slot) * BEAMS * T
                new_scores = done_scores
                new_length = done_length
                new_done = done
                first = done_scores
                for i in range(BEAMS):
                    best_done = tl.max(first, 0)
                    best_new = tl.max(complete, 0)
                    from_done = best_done >= best_new
                    which = tl.where(from_done, _first(first, best_done, beam), _first(complete, best_new, c))
                    was_done = _taken(done, beam, which)
                    was_length = _taken(done_length, beam, which)
                    now_done = _taken(is_among_best.to(tl.int32), c, which)
                    token = _taken(c_token, c, which)
                    source = _taken(c_beam, c, which)
                    new_scores = tl.where(beam == i, tl.where(from_done, best_done, best_new), new_scores)
                    new_length = tl.where(beam == i, tl.where(from_done, was_length, length + 1), new_length)
                    new_done = tl.where(beam == i, tl.where(from_done, was_done, now_done), new_done)
                    first = tl.where(beam == tl.where(from_done, which, -1), float("-inf"), first)
                    complete = tl.where(c == tl.where(from_done, -1, which), float("-inf"), complete)
                    old_end = tl.where(from_done, was_length, 0)
                    new_end = tl.where(from_done, 0, length)
                    end = tl.where(from_done, was_length, length + 1)
                    for start in range(0, end, COPY):
                        time = start + tl.arange(0, COPY)
                        copied = tl.load(DONE_TOKENS + done_old + which * T + time, mask=time < old_end, other=0)
                        copied += tl.load(TOKENS + old + source * T + time, mask=time < new_end, other=0)
                        copied = tl.where(time == tl.where(from_done, -1, length), token, copied)
                        tl.store(DONE_TOKENS + done_new + i * T + time, copied, mask=time < end)
                done_scores = new_scores
                done_length = new_length
                done = new_done
                tl.store(DONE_SCORES + slot * BEAMS + beam, done_scores, mask=is_beam)
                tl.store(DONE_LENGTH + slot * BEAMS + beam, done_length, mask=is_beam)
                tl.store(DONE + slot * BEAMS + beam, done, mask=is_beam)
                tl.store(DONE_SIDE + slot, 1 - done_side)

            # the best incomplete candidates continue
            running = tl.where(has_ended, c_score + _NEVER, c_score)
            tokens = tl.zeros((BEAM_TILE,), tl.int32)
            for i in range(BEAMS):
                best = tl.max(running, 0)
                chosen = _first(running, best, c)
                scores = tl.where(beam == i, best, scores)
                parents = tl.where(beam == i, _taken(c_beam, c, chosen), parents)
                tokens = tl.where(beam == i, _taken(c_token, c, chosen), tokens)
                running = tl.where(c == chosen, float("-inf"), running)
            tl.store(SCORES + slot * BEAMS + beam, scores, mask=is_beam)

            # does the slot stay open?
            max_length = tl.load(NUMBERS + _MAX_LENGTH)
            new_tokens = length + 1 - given
            which_divisor = tl.load(NUMBERS + _DIVISOR)
            at = tl.where(which_divisor == _AT_NEXT, new_tokens + 1, new_tokens)
            at = tl.where(which_divisor == _AT_END, max_length - given, at)
            at = tl.minimum(at, T)
            candidate = tl.sum(tl.where(beam == 0, scores, 0.0), 0) / tl.load(DIVISORS + at)
            lowest = tl.min(tl.where(is_beam, done_scores, float("inf")), 0)
            is_done = done != 0
            worst = tl.where(is_done, lowest, _NEVER)
            can_improve = tl.max((is_beam & (candidate > worst)).to(tl.int32), 0)
            last = tl.load(NUMBERS + _RETURNED) - 1
            last_score = tl.sum(tl.where(beam == last, tl.where(is_done, done_scores, _NEVER), 0.0), 0)
            can_improve = tl.where(tl.load(NUMBERS + _IS_GNMT) != 0, (candidate > last_score).to(tl.int32), can_improve)
            is_full = tl.min(tl.where(is_beam, done, 1), 0) != 0
            stays = (can_improve != 0) & ((stops_when_full & is_full) == 0) & (length + 1 < max_length)
            tl.store(OPEN + slot, stays.to(tl.int32))
            if is_broken > 0:
                tl.store(ERROR + slot, 1)

        # move the running hypotheses to the other side, and add the new tokens
        for i in range(BEAMS):
            parent = _taken(parents, beam, i)
            token = _taken(tokens, beam, i)
            for start in range(0, length + 1, COPY):
                time = start + tl.arange(0, COPY)
                kept = tl.load(TOKENS + old + parent * T + time, mask=time < length, other=0)
                kept = tl.where(time == length, token, kept)
                tl.store(TOKENS + new + i * T + time, kept, mask=time < length + 1)
                ancestor = tl.load(ANCESTORS + old + parent * T + time, mask=time < length - 1, other=0)
                ancestor = tl.where(time == length - 1, parent, ancestor)
                tl.store(ANCESTORS + new + i * T + time, ancestor, mask=time < length)
        tl.store(CURRENT + slot * BEAMS + beam, tokens.to(tl.int64), mask=is_beam)
        tl.store(LENGTH + slot, length + 1)
