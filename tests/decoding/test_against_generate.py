"""The engine and Hugging Face's generate with random settings: the same tokens, unless scores tie."""

import functools
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.decoding.settings import _DEFAULTS
from tests.models import zoo

FAMILIES = tuple(family for family in zoo.FAMILIES if family != "led")  # LED decodes through generate
TIE = 1e-6
IMPOSSIBLE = -1e8
"""Hypotheses with a lower score fill up a result that has too few possible ones; their tokens are arbitrary."""

token = st.integers(0, zoo.VOCABULARY - 1)
tokens = st.lists(token, min_size=1, max_size=12, unique=True)
ends = st.one_of(st.just(2), tokens.map(lambda ids: [2, *(i for i in ids if i != 2)]))


@st.composite
def generations(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of a search, each of them present or not."""
    longest = draw(st.integers(1, 9))
    beams = draw(st.sampled_from([1, 1, 2, 3, 5]))
    sample = beams == 1 and draw(st.booleans())
    chosen = draw(
        st.fixed_dictionaries(
            {"eos_token_id": ends},
            optional={
                "early_stopping": st.sampled_from([True, False, "never"]),
                "repetition_penalty": st.sampled_from([0.8, 1.0, 1.3]),
                "length_penalty": st.sampled_from([-1.0, 0.0, 0.6, 1.0, 2.0]),
                "no_repeat_ngram_size": st.integers(0, 3),
                "bad_words_ids": st.lists(token.map(lambda one: [one]), min_size=1, max_size=5),
                "renormalize_logits": st.booleans(),
                "forced_bos_token_id": token,
                "forced_eos_token_id": st.one_of(token, tokens),
                "suppress_tokens": tokens,
                "begin_suppress_tokens": tokens,
                "pad_token_id": token,
                "bos_token_id": token,
                "decoder_start_token_id": token,
            },
        )
    )
    chosen |= draw(st.sampled_from([{"max_new_tokens": longest}, {"max_length": longest + 1}]))
    least = draw(st.integers(0, longest))
    chosen |= draw(st.sampled_from([{}, {"min_new_tokens": least}, {"min_length": least}]))
    if sample:  # the best of one token is certain
        cold = {"temperature": draw(st.sampled_from([0.5, 1.0, 2.0])), "top_p": draw(st.sampled_from([0.3, 1.0]))}
        return {**chosen, **cold, "do_sample": True, "top_k": 1}
    return {**chosen, "num_beams": beams, "num_return_sequences": draw(st.integers(1, beams)), "do_sample": False}


dials = st.sampled_from([{}, {}, {"keep": 0.3}, {"max_memory": 4}, {"shift": 1.0}, {"dense": True}])


@functools.cache
def gated(family: str, gating: str) -> tuple[Any, Engine]:
    model = zoo.spread_gates(sparsify(zoo.build(family).double(), L0DropConfig(gating=gating)))
    return model, Engine(model, linears="plain")


def test_every_setting_is_drawn() -> None:
    drawn: set[str] = set()

    @settings(max_examples=200, database=None, derandomize=True)
    @given(generations())
    def collect(generation: dict[str, Any]) -> None:
        drawn.update(generation)

    collect()
    assert drawn == set(_DEFAULTS)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(FAMILIES),
    st.sampled_from(["zero", "mask", "weight", "mean"]),
    generations(),
    dials,
    st.integers(0, 99),
)
@example(
    "marian", "zero",
    {"max_new_tokens": 4, "num_beams": 2, "forced_eos_token_id": [2, 9], "suppress_tokens": [9, 4],
     "eos_token_id": [2, 9], "num_return_sequences": 2, "do_sample": False}, {}, 0,
)  # fmt: skip
@example(
    "marian", "zero",
    {"max_new_tokens": 1, "num_beams": 3, "forced_eos_token_id": 7, "begin_suppress_tokens": [7], "do_sample": False},
    {}, 0,
)  # fmt: skip
@example(
    "marian", "zero",
    {"max_new_tokens": 2, "num_beams": 2, "forced_bos_token_id": 1, "begin_suppress_tokens": [1],
     "renormalize_logits": True, "repetition_penalty": 0.8, "do_sample": False}, {}, 0,
)  # fmt: skip
def test_random_settings_give_the_tokens_of_generate(
    family: str, gating: str, generation: dict[str, Any], dial: dict[str, Any], seed: int
) -> None:
    compare(family, gating, generation, dial, zoo.ragged_batch((9, 4, 12), seed))


def compare(
    family: str, gating: str, generation: dict[str, Any], dial: dict[str, Any], batch: dict[str, torch.Tensor]
) -> None:
    """Raise unless the engine gives the tokens of generate, or refuses settings that allow none."""
    model, engine = gated(family, gating)
    ask = functools.partial(engine.generate, batch["input_ids"], batch["attention_mask"], **generation, **dial)
    with model.dial(**dial) if dial else nullcontext(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = model.generate(**batch, **generation, return_dict_in_generate=True, output_scores=True)
        except (ValueError, RuntimeError):  # a forced token is suppressed
            theirs = None
    if theirs is None or (generation.get("num_beams", 1) == 1 and nothing_allowed(theirs)):
        with pytest.raises(ValueError, match="allow no output token|is also in `suppress_tokens`"):
            ask()
        return
    try:
        ours = ask()
    except ValueError as refusal:
        if "allow no output token" in str(refusal) and nothing_allowed(theirs):
            return  # generate with beams goes on with arbitrary tokens
        raise
    forced = generation.get("forced_eos_token_id")
    assert_same(theirs, ours, forced if isinstance(forced, list) else [])


def nothing_allowed(theirs: Any) -> bool:
    """Whether the settings exclude every token of some step."""
    return any(bool((step.isnan() | (step == -torch.inf)).all(1).any()) for step in theirs.scores)


def assert_same(theirs: Any, ours: Any, forced: Sequence[int] = ()) -> None:
    """Several tokens of `forced` as the last token always tie."""
    assert ours.sequences.shape == theirs.sequences.shape
    assert bool((ours.sequences[:, 0] == theirs.sequences[:, 0]).all())
    differing = ours.sequences != theirs.sequences
    last = torch.tensor([*forced], dtype=torch.long)
    differing[:, -1] &= ~(torch.isin(ours.sequences[:, -1], last) & torch.isin(theirs.sequences[:, -1], last))
    differ = differing.any(1)
    if theirs.get("sequences_scores") is None:
        for row in differ.nonzero().flatten().tolist():
            step = int(differing[row].nonzero()[0]) - 1
            best = theirs.scores[step][row].topk(2).values
            assert float(best[0] - best[1]) < TIE, f"sentence {row} differs without a tie"
        return
    expected = theirs.sequences_scores.float()
    possible = (expected > IMPOSSIBLE) | (ours.scores > IMPOSSIBLE)
    torch.testing.assert_close(ours.scores[possible], expected[possible], atol=1e-5, rtol=1e-5)
    for row in (differ & possible).nonzero().flatten().tolist():
        others = ours.scores[possible].sub(ours.scores[row]).abs()
        assert int((others < TIE).sum()) > 1, f"hypothesis {row} differs without a tie"


def test_a_difference_without_a_tie_is_noticed() -> None:
    model, engine = gated("marian", "zero")
    batch = zoo.ragged_batch((9, 4, 12))
    for beams in (1, 3):
        arguments = {"num_beams": beams, "max_new_tokens": 5}
        theirs = model.generate(**batch, **arguments, return_dict_in_generate=True, output_scores=True)
        ours = engine.generate(batch["input_ids"], batch["attention_mask"], **arguments)
        ours.sequences[1, 3] += 1
        with pytest.raises(AssertionError, match="differs without a tie"):
            assert_same(theirs, ours)
