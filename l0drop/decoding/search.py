"""Beam search, greedy search and sampling as small pure functions on tensors of fixed shape, independent of models.

One step of beam search, from the logits of the running hypotheses to the next ones:

    logits ─ log_probabilities ─ constrain ─▶ expand ─▶ candidates ─┬─ finish ─▶ finished hypotheses
                                                                    └─ select ─▶ running hypotheses ─▶ still_open

The arithmetic (float32 scores, -1e9 for impossible choices, the order of operations) is that of Hugging Face's
`generate`, so that both choose the same tokens, including ties.

Shapes: B sentences, k beams, C candidates, R = B·k rows, T tokens including the start token, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn

import torch
from torch import Tensor

NEVER = -1.0e9
"""The score of candidates that must not be chosen. Finite, as in `generate`, so that scores can be added to it."""

BLOCK = 128
"""Block size in the search for the best tokens of a large vocabulary: block maxima come first."""

PenaltyStyle = Literal["hf", "gnmt"]


@dataclass(frozen=True)
class Search:
    """The settings of a search. Lengths count the start token, as `generate`'s max_length does.

    beams: hypotheses per sentence; 1 is greedy search. With `sample`, the number of independent samples.
    returned: hypotheses to return per sentence, best first.
    penalty_style: `hf` divides a score by len^α, `gnmt` by ((5+len)/6)^α; len counts new tokens, including the last.
    early_stopping: as in `generate`; with `gnmt` and False, a sentence stops when no running hypothesis can still win.
    banned, suppressed: tokens that are never generated, not even if forced in the case of `suppressed`.
    banned_first: tokens that are never the first new token.
    given: the number of tokens that outputs begin with, the start token included; new tokens follow them.
    timestamps: Whisper's rules for timestamp tokens.
    """

    max_length: int
    start: int
    eos: tuple[int, ...]
    pad: int
    beams: int = 1
    returned: int = 1
    min_length: int = 0
    length_penalty: float = 1.0
    penalty_style: PenaltyStyle = "hf"
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    forced_first: int | None = None
    forced_last: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    banned_first: tuple[int, ...] = ()
    renormalize: bool = False
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    given: int = 1
    timestamps: "Timestamps | None" = None

    @property
    def candidates(self) -> int:
        """Enough that k of them continue even if the best continuations of every beam end."""
        return max(2, 1 + len(self.eos)) * self.beams

    @property
    def normalizes_first(self) -> bool:
        """Beam search constrains log-probabilities, greedy search and sampling constrain logits: as `generate` does."""
        return self.beams > 1 and not self.sample

    @property
    def fill(self) -> int:
        """The token behind the end of outputs. Like `generate`, beams fill with EOS if the padding token is 0."""
        if self.pad or not self.normalizes_first or not self.eos:
            return self.pad
        return self.eos[0]

    @property
    def stops_when_full(self) -> bool:
        """Whether a sentence ends as soon as it has as many finished hypotheses as beams."""
        return self.early_stopping is True or self.beams == 1

    @property
    def changing_scores(self) -> tuple[str, ...]:
        """The settings in use that exclude tokens or change their scores, by generation_config's names."""
        used = {
            "repetition_penalty": self.repetition_penalty != 1.0,
            "no_repeat_ngram_size": self.no_repeat_ngram > 0,
            "bad_words_ids": bool(self.banned),
            "suppress_tokens": bool(self.suppressed),
            "begin_suppress_tokens": bool(self.banned_first),
            "min_length": self.min_length > 0,
            "forced_bos_token_id": self.forced_first is not None,
            "forced_eos_token_id": bool(self.forced_last),
            "temperature": self.sample and self.temperature != 1.0,
        }
        return tuple(name for name, is_used in used.items() if is_used)


@dataclass(frozen=True)
class Timestamps:
    """Whisper's rules: times come in pairs around segments, do not fall, and win if they are more likely than any text.

    first: the first timestamp token, all above it are timestamps too. none: the token that switches timestamps off.
    eos: the end of the output; all tokens below it are text. latest_start: the largest first time, in timestamp tokens.
    """

    first: int
    none: int
    eos: int
    latest_start: int | None = None


class Hypotheses(NamedTuple):
    """The state of a search.

    tokens [B, k, T], scores [B, k]: the running hypotheses, scores without length penalty.
    done_tokens [B, k, T], done_scores [B, k], done_length [B, k], done [B, k]: the finished ones, best first; `done` is
    False in empty slots.
    open [B]: whether running hypotheses of a sentence may still change its result.
    """

    tokens: Tensor
    scores: Tensor
    done_tokens: Tensor
    done_scores: Tensor
    done_length: Tensor
    done: Tensor
    open: Tensor

    def take(self, sentences: Tensor) -> "Hypotheses":
        """The hypotheses of these sentences."""
        return Hypotheses(*(tensor.index_select(0, sentences) for tensor in self))


class Candidates(NamedTuple):
    """Continuations of running hypotheses, best first: [B, C] each; `beam` is the index of the continued hypothesis."""

    scores: Tensor
    beam: Tensor
    token: Tensor


def start(search: Search, sentences: int, device: torch.device | str, given_BP: Tensor | None = None) -> Hypotheses:
    """One hypothesis per sentence with the start token or given ones; the other beams wait for the first step."""
    shape = (sentences, search.beams)
    tokens = torch.full((*shape, search.max_length), search.fill, device=device)
    tokens[:, :, 0] = search.start
    if given_BP is not None:
        tokens[:, :, : search.given] = given_BP[:, None]
    scores = torch.zeros(shape, device=device)
    if not search.sample:
        scores[:, 1:] = NEVER
    return Hypotheses(
        tokens,
        scores,
        tokens.clone(),
        torch.full(shape, NEVER, device=device),
        torch.full(shape, search.given, device=device),
        torch.zeros(shape, dtype=torch.bool, device=device),
        torch.ones(sentences, dtype=torch.bool, device=device),
    )


# --- scores of the next token ------------------------------------------------------------------------------------


def next_scores(logits_RV: Tensor, tokens_RT: Tensor, length: int, search: Search) -> Tensor:
    """[R, V], float32: the log-probability of every next token under the settings; -inf for tokens not allowed.

    `tokens_RT` are the hypotheses so far; their first `length` tokens are filled.
    """
    # a new tensor, because constraints write into it
    scores = logits_RV.float().log_softmax(-1) if search.normalizes_first else logits_RV.to(torch.float32, copy=True)
    scores = constrain(scores, tokens_RT[:, :length], search)
    if search.sample:
        scores = keep_top_p(keep_top_k(scores / search.temperature, search.top_k), search.top_p)
    if search.renormalize or not search.normalizes_first:
        scores = scores.log_softmax(-1)
    return scores


def constrain(scores_RV: Tensor, tokens_RT: Tensor, search: Search) -> Tensor:
    """Apply the settings that exclude or reweight tokens, in `generate`'s order. May write into its first argument."""
    length = tokens_RT.shape[1]
    if search.repetition_penalty != 1.0:
        scores_RV = penalize_repetition(scores_RV, tokens_RT, search.repetition_penalty)
    if search.no_repeat_ngram:
        scores_RV = ban_repeated_ngrams(scores_RV, tokens_RT, search.no_repeat_ngram)
    if search.banned:
        scores_RV = ban(scores_RV, search.banned)
    if length < search.min_length:
        scores_RV = ban(scores_RV, search.eos)
    if search.forced_first is not None and length == 1:
        scores_RV = force(scores_RV, (search.forced_first,))
    if search.forced_last and length == search.max_length - 1:
        scores_RV = force(scores_RV, search.forced_last)
    if search.suppressed:
        scores_RV = ban(scores_RV, search.suppressed)
    if search.banned_first and length == search.given + (search.forced_first is not None):
        scores_RV = ban(scores_RV, search.banned_first)
    if search.timestamps is not None:
        scores_RV = follow_timestamps(scores_RV, tokens_RT[:, search.given :], search.timestamps)
    return scores_RV


def ban(scores_RV: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Modifies `scores_RV`: a copy would be another pass over the whole vocabulary."""
    index = torch.tensor(tokens, device=scores_RV.device, dtype=torch.long)
    return scores_RV.index_fill_(1, index, -torch.inf)


def force(scores_RV: Tensor, tokens: tuple[int, ...]) -> Tensor:
    index = torch.tensor(tokens, device=scores_RV.device)
    return torch.full_like(scores_RV, -torch.inf).index_fill(1, index, 0.0)


def penalize_repetition(scores_RV: Tensor, tokens_RT: Tensor, penalty: float) -> Tensor:
    """Divide positive scores of tokens that occurred by the penalty, and multiply negative ones."""
    occurred = scores_RV.gather(1, tokens_RT)
    return scores_RV.scatter(1, tokens_RT, torch.where(occurred < 0, occurred * penalty, occurred / penalty))


def ban_repeated_ngrams(scores_RV: Tensor, tokens_RT: Tensor, size: int) -> Tensor:
    """Exclude every token that would complete an n-gram for the second time."""
    length = tokens_RT.shape[1]
    if length < size:
        return scores_RV
    ngrams_RWn = tokens_RT.unfold(1, size, 1)
    current_R1n = tokens_RT[:, None, length - size + 1 :]
    repeated_RW = (ngrams_RWn[..., :-1] == current_R1n).all(-1)
    banned_RV = torch.zeros_like(scores_RV, dtype=torch.int32)
    # amax: the same token may follow the same context with and without a match
    banned_RV.scatter_reduce_(1, ngrams_RWn[..., -1], repeated_RW.int(), "amax")
    return scores_RV.masked_fill(banned_RV.bool(), -torch.inf)


def follow_timestamps(scores_RV: Tensor, new_RT: Tensor, rules: Timestamps) -> Tensor:
    """Exclude what may not follow the new tokens so far. Modifies `scores_RV`."""
    first, length = rules.first, new_RT.shape[1]
    scores_RV[:, rules.none] = -torch.inf
    if length == 0:
        scores_RV[:, :first] = -torch.inf
        if rules.latest_start is not None:
            scores_RV[:, first + rules.latest_start + 1 :] = -torch.inf
    else:
        is_time_RT = new_RT >= first
        last_R = is_time_RT[:, -1]
        before_R = is_time_RT[:, -2] if length > 1 else torch.ones_like(last_R)
        opens_R1, closes_R1 = (last_R & before_R)[:, None], (last_R & ~before_R)[:, None]
        scores_RV[:, first:].masked_fill_(opens_R1, -torch.inf)
        scores_RV[:, : rules.eos].masked_fill_(closes_R1, -torch.inf)
        index_T = torch.arange(length, device=new_RT.device)
        latest_R1 = (is_time_RT * (index_T + 1)).amax(1, keepdim=True) - 1
        time_R1 = new_RT.gather(1, latest_R1.clamp_min(0)) + (~closes_R1).long()
        time_R1 = torch.where(latest_R1 >= 0, time_R1, first)
        times_S = torch.arange(first, scores_RV.shape[1], device=scores_RV.device)
        scores_RV[:, first:].masked_fill_(times_S < time_R1, -torch.inf)
    logprob_RV = scores_RV.log_softmax(-1)
    wins_R1 = logprob_RV[:, first:].logsumexp(-1) > logprob_RV[:, :first].amax(-1)
    scores_RV[:, :first].masked_fill_(wins_R1[:, None], -torch.inf)
    return scores_RV


def keep_top_k(scores_RV: Tensor, count: int) -> Tensor:
    """Keep the `count` best tokens of each row, and ties with the last of them; 0 keeps all."""
    if count <= 0 or count >= scores_RV.shape[1]:
        return scores_RV
    worst_R1 = scores_RV.topk(count, -1).values[:, -1:]
    return scores_RV.masked_fill(scores_RV < worst_R1, -torch.inf)


def keep_top_p(scores_RV: Tensor, mass: float) -> Tensor:
    """Keep the smallest set of best tokens with a total probability of at least `mass`."""
    if mass >= 1.0:
        return scores_RV
    ascending, order = scores_RV.sort(-1)
    below = ascending.softmax(-1).cumsum(-1)
    drop = below <= 1 - mass
    drop[:, -1] = False
    return scores_RV.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), -torch.inf)


# --- one step ----------------------------------------------------------------------------------------------------


def expand(scores_RV: Tensor, hypotheses: Hypotheses, search: Search) -> Candidates:
    """The best continuations of each sentence. In the first step there may be one row per sentence."""
    sentences = len(hypotheses.tokens)
    width = len(scores_RV) // sentences
    count = min(search.candidates, scores_RV.shape[1])
    # the best candidates of a sentence are among the best of their hypotheses
    best_RC, token_RC = best_of_rows(scores_RV, count)
    total_BkC = best_RC.view(sentences, width, count) + hypotheses.scores[:, :width, None]
    chosen = min(search.candidates, width * count)
    best, index = total_BkC.view(sentences, -1).topk(chosen)
    token = token_RC.view(sentences, -1).gather(1, index)
    if chosen < search.candidates:  # the vocabulary is smaller than the number of candidates
        missing = (0, search.candidates - chosen)
        best = torch.nn.functional.pad(best, missing, value=NEVER)
        index, token = torch.nn.functional.pad(index, missing), torch.nn.functional.pad(token, missing)
    return Candidates(best, index // count, token)


def best_of_rows(scores_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest elements of every row, largest first, and their indices, like `topk`.

    On a CPU, torch's `topk` partly sorts whole rows. For a large vocabulary it is faster to find the blocks with the
    largest maxima, which contain the largest elements, and to search only those.
    """
    vocabulary = scores_RV.shape[1]
    blocks = vocabulary // BLOCK
    if scores_RV.device.type != "cpu" or blocks < 4 * count:
        values, indices = scores_RV.topk(count)
        return values, indices
    whole = blocks * BLOCK
    blocks_RWb = scores_RV[:, :whole].unflatten(1, (blocks, BLOCK))
    block_RC = blocks_RWb.amax(-1).topk(count).indices
    inside = blocks_RWb.gather(1, block_RC[..., None].expand(-1, -1, BLOCK)).flatten(1)
    start_RC = block_RC * BLOCK
    index_inside = (start_RC[..., None] + torch.arange(BLOCK)).flatten(1)
    if whole < vocabulary:
        rest = torch.arange(whole, vocabulary).expand(len(scores_RV), -1)
        inside = torch.cat([inside, scores_RV[:, whole:]], 1)
        index_inside = torch.cat([index_inside, rest], 1)
    values, chosen = inside.topk(count)
    return values, index_inside.gather(1, chosen)


def extended(hypotheses: Hypotheses, candidates: Candidates, length: int) -> Tensor:
    """[B, C, T], the tokens of every candidate."""
    tokens = _pick(hypotheses.tokens, candidates.beam)
    tokens[:, :, length] = candidates.token
    return tokens


def ends(candidates: Candidates, length: int, search: Search) -> Tensor:
    """[B, C], whether a candidate is complete: it ends with EOS or reaches the length limit."""
    if length + 1 >= search.max_length:
        return torch.ones_like(candidates.token, dtype=torch.bool)
    eos = torch.tensor(search.eos, device=candidates.token.device, dtype=candidates.token.dtype)
    return torch.isin(candidates.token, eos)


def length_penalty(new_tokens: int, search: Search) -> float:
    """The divisor of a hypothesis's score."""
    if search.penalty_style == "gnmt":
        return ((5 + new_tokens) / 6) ** search.length_penalty
    return new_tokens**search.length_penalty


def finish(
    hypotheses: Hypotheses, candidates: Candidates, tokens_BCT: Tensor, ended_BC: Tensor, length: int, search: Search
) -> Hypotheses:
    """Add the complete candidates among the k best to the finished hypotheses, and keep the best k of these."""
    among_best = torch.zeros_like(ended_BC)
    among_best[:, : search.beams] = ended_BC[:, : search.beams]
    scores = candidates.scores / length_penalty(length + 1 - search.given, search)
    if search.stops_when_full:
        scores = scores + hypotheses.done.all(-1, keepdim=True).float() * NEVER
    scores = scores + (~hypotheses.open)[:, None].float() * NEVER
    scores = scores + (~among_best) * NEVER
    merged = torch.cat([hypotheses.done_scores, scores], 1)
    best = merged.topk(search.beams).indices
    lengths = torch.full_like(candidates.token, length + 1)
    return hypotheses._replace(
        done_tokens=_pick(torch.cat([hypotheses.done_tokens, tokens_BCT], 1), best),
        done_scores=merged.gather(1, best),
        done_length=torch.cat([hypotheses.done_length, lengths], 1).gather(1, best),
        done=torch.cat([hypotheses.done, among_best], 1).gather(1, best),
    )


def select(
    hypotheses: Hypotheses, candidates: Candidates, tokens_BCT: Tensor, ended_BC: Tensor, search: Search
) -> tuple[Hypotheses, Tensor]:
    """Continue with the k best incomplete candidates; also returns [B, k], the hypothesis each of them continues."""
    scores = candidates.scores + ended_BC.float() * NEVER
    best = scores.topk(search.beams).indices
    running = hypotheses._replace(tokens=_pick(tokens_BCT, best), scores=scores.gather(1, best))
    return running, candidates.beam.gather(1, best)


def still_open(hypotheses: Hypotheses, length: int, search: Search) -> Hypotheses:
    """Close the sentences whose result cannot change any more, or with `hf` is assumed not to.

    `length` counts the tokens of the running hypotheses. `hf` compares the best running score at its current length
    with the worst finished one. `gnmt` takes the length that is best for it, and the worst finished one to be returned.
    """
    new_tokens = length - search.given
    longest = search.max_length - search.given
    if search.penalty_style == "gnmt" and not search.early_stopping:
        divisor = length_penalty(longest if search.length_penalty > 0 else new_tokens + 1, search)
        worst = hypotheses.done_scores[:, search.returned - 1]
        worst = torch.where(hypotheses.done[:, search.returned - 1], worst, NEVER)
        can_improve = hypotheses.scores[:, 0] / divisor > worst
    else:
        at_end = search.early_stopping == "never" and search.length_penalty > 0
        divisor = length_penalty(longest if at_end else new_tokens, search)
        worst_Bk = torch.where(hypotheses.done, hypotheses.done_scores.amin(1, keepdim=True), NEVER)
        can_improve = (hypotheses.scores[:, :1] / divisor > worst_Bk).any(1)
    is_open = hypotheses.open & can_improve
    if search.stops_when_full:
        is_open = is_open & ~hypotheses.done.all(1)
    return hypotheses._replace(open=is_open & (length < search.max_length))


def beam_step(logits_RV: Tensor, hypotheses: Hypotheses, length: int, search: Search) -> tuple[Hypotheses, Tensor]:
    """From the logits after `length` tokens to the next hypotheses; also [B, k], the hypothesis each one continues."""
    width = len(logits_RV) // len(hypotheses.tokens)
    scores = next_scores(logits_RV, hypotheses.tokens[:, :width].flatten(0, 1), length, search)
    candidates = expand(scores, hypotheses, search)
    tokens = extended(hypotheses, candidates, length)
    ended = ends(candidates, length, search)
    finished = finish(hypotheses, candidates, tokens, ended, length, search)
    running, beam = select(finished, candidates, tokens, ended, search)
    return still_open(running, length + 1, search), beam


def broken(hypotheses: Hypotheses, open_B: Tensor) -> Tensor:
    """The number of NaN or +inf scores in the sentences of `open_B`; -inf is the score of an excluded token."""
    return (~(hypotheses.scores < torch.inf) & open_B[:, None]).sum()


def refuse_broken(logits_RV: Tensor, length: int, search: Search) -> NoReturn:
    """Raise ValueError that says whether the model or a setting gave the broken scores after `length` tokens."""
    if not bool((logits_RV < torch.inf).all()):
        raise ValueError(
            f"scores: the decoder gives NaN or infinite scores for output token {length}, in "
            f"{str(logits_RV.dtype).removeprefix('torch.')}; its weights are damaged, or its values too large for this "
            "dtype: try float32"
        )
    used = ", ".join(f"`{name}`" for name in search.changing_scores) or "the settings"
    raise ValueError(f"{used}: allow no output token {length}, or make its score infinite; choose other values")


def sample_step(
    logits_RV: Tensor, hypotheses: Hypotheses, length: int, search: Search, generator: torch.Generator | None = None
) -> tuple[Hypotheses, Tensor]:
    """Draw one token for each hypothesis. Hypotheses are independent and end at their first EOS."""
    sentences, count = hypotheses.scores.shape
    if len(logits_RV) < sentences * count:  # the first step: one row per sentence
        logits_RV = logits_RV.repeat_interleave(count, 0)
    scores = next_scores(logits_RV, hypotheses.tokens.flatten(0, 1), length, search)
    # multinomial fails on NaN, on a GPU for the whole process; the scores stay NaN and are noticed after the step
    token_R1 = torch.multinomial(torch.where(scores.isnan(), 1.0, scores.exp()), 1, generator=generator)
    gain = scores.gather(1, token_R1).view(sentences, count)
    token = torch.where(hypotheses.done, search.pad, token_R1.view(sentences, count))
    tokens = hypotheses.tokens.clone()
    tokens[:, :, length] = token
    total = hypotheses.scores + torch.where(hypotheses.done, 0.0, gain)
    candidates = Candidates(total, torch.arange(count, device=token.device).expand_as(token), token)
    ended = ends(candidates, length, search) & ~hypotheses.done
    done = hypotheses.done | ended
    result = hypotheses._replace(
        tokens=tokens,
        scores=total,
        done_tokens=torch.where(ended[..., None], tokens, hypotheses.done_tokens),
        done_scores=torch.where(
            ended, total / length_penalty(length + 1 - search.given, search), hypotheses.done_scores
        ),
        done_length=torch.where(ended, length + 1, hypotheses.done_length),
        done=done,
        open=~done.all(1),
    )
    return result, candidates.beam


def _pick(values: Tensor, index_BC: Tensor) -> Tensor:
    """Select from [B, k, ...] along k by index [B, C]."""
    shape = (*index_BC.shape, *values.shape[2:])
    return values.gather(1, index_BC.view(*index_BC.shape, *(1,) * (values.dim() - 2)).expand(shape))
