"""Each search step compared with numpy, and whole searches with slow ones in plain Python."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, WhisperTimeStampLogitsProcessor

from l0drop.decoding import search as s
from l0drop.decoding.search import Candidates, Hypotheses, Search
from tests.models import whispers

V = 11


def a_search(**changes):
    values = {"max_length": 9, "start": 1, "eos": (2,), "pad": 0, "beams": 3, **changes}
    return Search(**values)


def scores(rows, seed=0):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)


def tokens(rows, length, seed=0):
    return torch.randint(0, V, (rows, length), generator=torch.Generator().manual_seed(seed))


# --- scores of the next token ------------------------------------------------------------------------------------


def test_ban_and_force():
    x = scores(2)
    banned = s.ban(x.clone(), (3, 5)).numpy()
    assert np.isneginf(banned[:, [3, 5]]).all()
    others = [v for v in range(V) if v not in (3, 5)]
    assert (banned[:, others] == x.numpy()[:, others]).all()
    forced = s.force(x, (4,)).numpy()
    assert (forced[:, 4] == 0).all()
    assert np.isneginf(np.delete(forced, 4, 1)).all()


def test_repetition_penalty():
    x = torch.randn(3, V, generator=torch.Generator().manual_seed(1))
    seen = tokens(3, 5)
    expected = x.numpy().copy()
    for row in range(3):
        for token in set(seen[row].tolist()):
            expected[row, token] = (
                expected[row, token] * 1.7 if expected[row, token] < 0 else expected[row, token] / 1.7
            )
    np.testing.assert_allclose(s.penalize_repetition(x, seen, 1.7).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_repeated_ngrams_are_banned(size):
    for seed in range(20):
        seen = torch.randint(0, 3, (4, 7), generator=torch.Generator().manual_seed(seed))
        banned = torch.isneginf(s.ban_repeated_ngrams(torch.zeros(4, 3), seen, size))
        for row, token in itertools.product(range(4), range(3)):
            sequence = [*seen[row].tolist(), token]
            ngrams = [tuple(sequence[i : i + size]) for i in range(len(sequence) - size + 1)]
            assert bool(banned[row, token]) == (ngrams[-1] in ngrams[:-1])


def test_ngrams_longer_than_the_text_are_not_banned():
    x = scores(2)
    assert s.ban_repeated_ngrams(x, tokens(2, 2), 3) is x


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_timestamp_rules_are_hugging_faces(data):
    first, given_tokens = whispers.NO_TIMESTAMPS + 1, data.draw(st.integers(1, 3))
    new = data.draw(st.integers(0, 6))
    token = st.one_of(st.integers(0, whispers.EOS), st.integers(first, whispers.VOCABULARY - 1))
    rows = data.draw(st.lists(st.lists(token, min_size=new, max_size=new), min_size=1, max_size=4))
    latest = data.draw(st.sampled_from([None, 0, 10]))
    text = torch.tensor([[whispers.START] * given_tokens + row for row in rows])
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    logits = torch.randn(len(rows), whispers.VOCABULARY, generator=generator)
    config = GenerationConfig(
        no_timestamps_token_id=whispers.NO_TIMESTAMPS, eos_token_id=whispers.EOS, max_initial_timestamp_index=latest
    )
    expected = WhisperTimeStampLogitsProcessor(config, begin_index=given_tokens)(text, logits)
    rules = s.Timestamps(first, whispers.NO_TIMESTAMPS, whispers.EOS, latest)
    assert torch.equal(s.follow_timestamps(logits.clone(), text[:, given_tokens:], rules), expected)


def test_top_k():
    x = scores(4)
    kept = s.keep_top_k(x, 3).numpy()
    for row in range(4):
        best = np.argsort(-x.numpy()[row])[:3]
        assert set(np.flatnonzero(np.isfinite(kept[row]))) == set(best)
    assert s.keep_top_k(x, 0) is x
    assert s.keep_top_k(x, V) is x


@pytest.mark.parametrize("mass", [0.01, 0.3, 0.7, 0.95])
def test_top_p(mass):
    x = scores(5, seed=3)
    kept = np.isfinite(s.keep_top_p(x, mass).numpy())
    for row in range(5):
        order = np.argsort(-x.numpy()[row])
        probabilities = np.exp(x.numpy()[row].astype(np.float64))
        count = 1
        while probabilities[order[:count]].sum() < mass:
            count += 1
        assert set(np.flatnonzero(kept[row])) == set(order[:count])


def test_constraints_apply_at_their_lengths():
    search = a_search(min_length=4, forced_first=5, forced_last=(2,), banned=(7,), banned_first=(6,))
    x = scores(1)

    def allowed(length):
        constrained = s.constrain(x.clone(), torch.ones(1, length, dtype=torch.long), search)
        return set(np.flatnonzero(np.isfinite(constrained[0].numpy())))

    everything = set(range(V))
    assert allowed(1) == {5}
    assert allowed(2) == everything - {7, 2, 6}  # the first free token follows the forced one
    assert allowed(3) == everything - {7, 2}
    assert allowed(4) == everything - {7}
    assert allowed(8) == {2}


def test_a_suppressed_token_is_excluded_even_if_it_is_forced():
    search = a_search(forced_last=(2, 7), suppressed=(7,))
    constrained = s.constrain(scores(1), torch.ones(1, 8, dtype=torch.long), search)
    assert set(np.flatnonzero(np.isfinite(constrained[0].numpy()))) == {2}


def test_beam_search_constrains_log_probabilities_and_greedy_search_logits():
    logits = torch.randn(2, V, generator=torch.Generator().manual_seed(2)) * 3
    seen = tokens(2, 4)
    beam = s.next_scores(logits, seen, 4, a_search(repetition_penalty=2.0))
    assert torch.equal(beam, s.penalize_repetition(logits.log_softmax(-1), seen, 2.0))
    greedy = s.next_scores(logits, seen, 4, a_search(beams=1, repetition_penalty=2.0))
    assert torch.equal(greedy, s.penalize_repetition(logits, seen, 2.0).log_softmax(-1))


# --- one step ----------------------------------------------------------------------------------------------------


def running(search, sentences, length, seed=0):
    state = s.start(search, sentences, "cpu")
    generator = torch.Generator().manual_seed(seed)
    shape = (sentences, search.beams, length - 1)
    state.tokens[:, :, 1:length] = torch.randint(3, V, shape, generator=generator)
    spread = -torch.rand(sentences, search.beams, generator=generator).sort(-1).values * 4
    return state._replace(scores=spread)


def test_expand_takes_the_best_of_all_beams():
    search = a_search()
    state = running(search, 2, 3)
    x = scores(6)
    got = s.expand(x, state, search)
    for b in range(2):
        total = state.scores[b].numpy()[:, None] + x.view(2, 3, V)[b].numpy()
        best = np.argsort(-total.ravel())[: search.candidates]
        np.testing.assert_array_equal(got.beam[b].numpy(), best // V)
        np.testing.assert_array_equal(got.token[b].numpy(), best % V)
        np.testing.assert_array_equal(got.scores[b].numpy(), total.ravel()[best])


def test_expand_from_one_row_per_sentence():
    search = a_search()
    got = s.expand(scores(2), s.start(search, 2, "cpu"), search)
    assert (got.beam == 0).all()
    assert got.token.shape == (2, 6)


def test_expand_with_fewer_tokens_than_candidates():
    search = a_search(beams=8)
    got = s.expand(scores(1), s.start(search, 1, "cpu"), search)
    assert got.scores.shape == (1, 16)
    assert (got.scores[0, V:] == s.NEVER).all()


@pytest.mark.parametrize("vocabulary", [7, 128, 8_192, 8_200, 32_001])
def test_best_of_rows_equals_topk(vocabulary):
    x = torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(5))
    x[1, :] = -torch.inf
    x[1, -1] = 0.0
    count = min(8, vocabulary)
    values, indices = s.best_of_rows(x, count)
    assert torch.equal(values, x.topk(count).values)
    assert torch.equal(x.gather(1, indices), values)
    assert all(len(set(row)) == count for row in indices.tolist())


def test_extended_appends_to_the_continued_hypothesis():
    search = a_search()
    state = running(search, 2, 4)
    candidates = s.expand(scores(6), state, search)
    got = s.extended(state, candidates, 4).numpy()
    for b, c in itertools.product(range(2), range(6)):
        expected = state.tokens[b, candidates.beam[b, c]].numpy().copy()
        expected[4] = candidates.token[b, c]
        np.testing.assert_array_equal(got[b, c], expected)


def test_ends_at_eos_and_at_the_limit():
    search = a_search(eos=(2, 5))
    candidates = Candidates(torch.zeros(1, 4), torch.zeros(1, 4).long(), torch.tensor([[2, 3, 5, 4]]))
    assert s.ends(candidates, 3, search).tolist() == [[True, False, True, False]]
    assert s.ends(candidates, 8, search).all()


@pytest.mark.parametrize(("style", "expected"), [("hf", 7**0.6), ("gnmt", (12 / 6) ** 0.6)])
def test_length_penalty(style, expected):
    assert s.length_penalty(7, a_search(length_penalty=0.6, penalty_style=style)) == pytest.approx(expected)


def test_finish_takes_only_the_best_beams_and_keeps_the_best():
    search = a_search(length_penalty=1.0)
    state = running(search, 1, 4)._replace(
        done_scores=torch.tensor([[-0.9, s.NEVER, s.NEVER]]), done=torch.tensor([[True, False, False]])
    )
    candidates = Candidates(
        torch.tensor([[-2.0, -3.0, -8.0, -8.5, -9.0, -9.5]]), torch.zeros(1, 6).long(), torch.full((1, 6), 3)
    )
    ended = torch.tensor([[True, False, True, True, False, True]])
    marked = torch.arange(6).view(1, 6, 1).expand(1, 6, 9)
    got = s.finish(state, candidates, marked, ended, 4, search)
    assert got.done_scores[0].tolist() == pytest.approx(
        [-0.5, -0.9, -2.0]
    )  # the fourth ends, but is not among the best
    assert got.done.all()
    assert got.done_tokens[0, 0, 0] == 0
    assert got.done_tokens[0, 2, 0] == 2
    assert got.done_length[0].tolist() == [5, 1, 5]


def test_finish_adds_nothing_to_a_closed_sentence():
    search = a_search()
    state = running(search, 1, 4)._replace(
        done_scores=torch.tensor([[-5.0, -6.0, -7.0]]), done=torch.ones(1, 3).bool(), open=torch.tensor([False])
    )
    candidates = s.expand(scores(3), state, search)
    got = s.finish(state, candidates, s.extended(state, candidates, 4), torch.ones(1, 6).bool(), 4, search)
    assert got.done_scores[0].tolist() == [-5.0, -6.0, -7.0]


def test_select_continues_incomplete_candidates():
    search = a_search()
    state = running(search, 1, 4)
    candidates = Candidates(
        torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]]), torch.tensor([[2, 1, 0, 2, 1, 0]]), torch.arange(6)[None]
    )
    ended = torch.tensor([[True, False, False, True, False, False]])
    got, beam = s.select(state, candidates, s.extended(state, candidates, 4), ended, search)
    assert got.scores[0].tolist() == [-2.0, -3.0, -5.0]
    assert beam[0].tolist() == [1, 0, 1]
    assert got.tokens[0, :, 4].tolist() == [1, 2, 4]


def closes(search, running_score, done_scores, length=5):
    """Whether a sentence with this best running score and these finished scores is closed."""
    count = len(done_scores)
    values = [*done_scores, *[s.NEVER] * (search.beams - count)]
    state = s.start(search, 1, "cpu")._replace(
        scores=torch.tensor([[running_score, *[-50.0] * (search.beams - 1)]]),
        done_scores=torch.tensor([values]),
        done=torch.tensor([[i < count for i in range(search.beams)]]),
    )
    return not bool(s.still_open(state, length, search).open)


def test_hf_stops_when_the_best_running_score_is_below_the_worst_finished_one():
    search = a_search(beams=2, length_penalty=1.0)
    assert not closes(search, -1.0, [-0.1])  # not enough finished
    assert closes(search, -4.4, [-0.5, -1.0])  # -4.4 / 4 < -1.0
    assert not closes(search, -3.9, [-0.5, -1.0])
    never = a_search(beams=2, length_penalty=1.0, early_stopping="never")
    assert not closes(never, -4.4, [-0.5, -1.0])  # -4.4 / 8 > -1.0
    assert closes(never, -8.1, [-0.5, -1.0])
    early = a_search(beams=2, early_stopping=True)
    assert closes(early, -0.1, [-0.5, -1.0])
    assert not closes(early, -0.1, [-0.5])


def test_gnmt_stops_when_no_running_hypothesis_can_win():
    search = a_search(beams=2, length_penalty=1.0, penalty_style="gnmt")
    assert not closes(search, -1.0, [-0.5])  # at length 8 it may become -1 / (13/6) = -0.46
    assert closes(search, -1.2, [-0.5])  # only one hypothesis is to be returned
    assert not closes(a_search(beams=2, length_penalty=1.0, penalty_style="gnmt", returned=2), -1.2, [-0.5])


def test_every_sentence_closes_at_the_limit():
    assert closes(a_search(), -0.1, [], length=9)


# --- whole searches ----------------------------------------------------------------------------------------------


def table(seed):
    """A random language model: log-probabilities of the next token by position and last token, with frequent EOS.

    They depend on the position, because otherwise the same transitions in another order would tie.
    """
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(9, V, V)) * 2
    logits[:, :, 2] += 1.0
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def run(search, tables):
    stacked = torch.tensor(np.stack(tables), dtype=torch.float32)
    state = s.start(search, len(tables), "cpu")
    for length in range(1, search.max_length):
        last = state.tokens[:, :, length - 1]
        logits = torch.stack([stacked[b, length][last[b]] for b in range(len(tables))]).flatten(0, 1)
        state, _ = s.beam_step(logits, state, length, search)
    return state


def slow_beam_search(search, language):
    """Reference beam search for one sentence, in plain Python."""
    k = search.beams
    live, done = [(0.0, [search.start])], []
    for length in range(1, search.max_length):
        candidates = sorted(
            ((score + language[length, seq[-1], token], [*seq, token]) for score, seq in live for token in range(V)),
            key=lambda c: -c[0],
        )[: search.candidates]
        last = length + 1 == search.max_length
        for score, seq in candidates[:k]:
            if seq[-1] in search.eos or last:
                done.append((score / s.length_penalty(length, search), seq))
        done = sorted(done, key=lambda c: -c[0])[:k]
        live = [c for c in candidates if c[1][-1] not in search.eos][:k]
        if last:
            break
        if search.early_stopping is True or k == 1:
            if len(done) == k:
                break
        elif len(done) == k:
            at = search.max_length - 1 if search.early_stopping == "never" and search.length_penalty > 0 else length
            if not live[0][0] / s.length_penalty(at, search) > done[-1][0]:
                break
    return done


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    beams=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    early=st.sampled_from([True, False, "never"]),
)
def test_beam_search_equals_the_slow_one(seed, beams, penalty, early):
    search = a_search(beams=beams, length_penalty=penalty, early_stopping=early, returned=beams)
    languages = [table(seed), table(seed + 1)]
    state = run(search, languages)
    for b, language in enumerate(languages):
        expected = slow_beam_search(search, language)
        assert int(state.done[b].sum()) == len(expected)
        for rank, (score, sequence) in enumerate(expected):
            assert float(state.done_scores[b, rank]) == pytest.approx(score, abs=1e-5)
            assert state.done_tokens[b, rank, : len(sequence)].tolist() == sequence
            assert int(state.done_length[b, rank]) == len(sequence)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), penalty=st.sampled_from([0.0, 0.6, 1.0]), returned=st.integers(1, 3))
def test_gnmt_stopping_loses_nothing(seed, penalty, returned):
    """The returned hypotheses equal those of a search that runs to the length limit."""
    search = a_search(penalty_style="gnmt", length_penalty=penalty, beams=3, returned=returned)
    stopped = run(search, [table(seed)])
    state = s.start(search, 1, "cpu")
    stacked = torch.tensor(table(seed), dtype=torch.float32)
    for length in range(1, search.max_length):
        logits = stacked[length][state.tokens[0, :, length - 1]]
        state, _ = s.beam_step(logits, state._replace(open=torch.tensor([True])), length, search)
    assert torch.equal(stopped.done_tokens[:, :returned], state.done_tokens[:, :returned])
    assert torch.equal(stopped.done_scores[:, :returned], state.done_scores[:, :returned])


def test_sampling_draws_from_the_distribution():
    search = a_search(sample=True, beams=20_000, returned=20_000, max_length=2, top_k=4, temperature=1.5)
    logits = torch.randn(1, V, generator=torch.Generator().manual_seed(4)) * 2
    state, _ = s.sample_step(logits, s.start(search, 1, "cpu"), 1, search, torch.Generator().manual_seed(0))
    drawn = np.bincount(state.done_tokens[0, :, 1].numpy(), minlength=V) / 20_000
    best = np.argsort(-logits[0].numpy())[:4]
    weights = np.exp(logits[0].numpy()[best].astype(np.float64) / 1.5)
    expected = np.zeros(V)
    expected[best] = weights / weights.sum()
    assert np.abs(drawn - expected).max() < 4 * math.sqrt(0.25 / 20_000)
    assert float(state.done_scores[0, 0]) == pytest.approx(np.log(expected[int(state.done_tokens[0, 0, 1])]), abs=1e-5)


def test_samples_end_at_their_first_eos():
    search = a_search(sample=True, beams=50, returned=50, max_length=7)
    state = s.start(search, 1, "cpu")
    logits = torch.zeros(50, V)
    logits[:, 2] = 1.0
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 7):
        state, _ = s.sample_step(logits, state, length, search, generator)
    assert state.done.all()
    assert not state.open.any()
    for sequence, length in zip(state.done_tokens[0].tolist(), state.done_length[0].tolist(), strict=True):
        assert sequence[length - 1] == 2 or length == 7
        assert 2 not in sequence[: length - 1]
        assert set(sequence[length:]) <= {search.pad}


def test_take_selects_sentences():
    state = running(a_search(), 3, 4)
    some = state.take(torch.tensor([2, 0]))
    assert isinstance(some, Hypotheses)
    assert torch.equal(some.tokens[0], state.tokens[2])
    assert torch.equal(some.open, state.open[[2, 0]])


# --- edges -------------------------------------------------------------------------------------------------------


def test_unused_positions_are_filled_as_in_generate():
    """Beam search writes EOS if the padding token is 0; greedy search and samples always write padding."""
    for changes, fill in (
        ({"pad": 0}, 2), ({"pad": 5}, 5), ({"pad": 0, "eos": ()}, 0), ({"pad": 0, "beams": 1}, 0),
        ({"pad": 0, "sample": True}, 0), ({"pad": 5, "beams": 1}, 5),
    ):  # fmt: skip
        begun = s.start(a_search(**changes), 2, "cpu")
        assert begun.tokens[:, :, 0].eq(1).all()
        assert begun.tokens[:, :, 1:].eq(fill).all()
        assert begun.done_tokens.equal(begun.tokens)


def test_everything_is_made_on_the_device_of_the_logits():
    search = a_search(no_repeat_ngram=2, banned=(3,), forced_last=(2,), min_length=2)
    assert {tensor.device.type for tensor in s.start(search, 2, "meta")} == {"meta"}
    begun = s.start(search, 2, "meta")
    after, beam = s.beam_step(torch.empty(2, V, device="meta"), begun, 1, search)
    assert {tensor.device.type for tensor in (*after, beam)} == {"meta"}
    s.force(torch.empty(2, V, device="meta"), (2,))
    sampled = a_search(sample=True, beams=2)
    after, beam = s.sample_step(torch.empty(2, V, device="meta"), s.start(sampled, 2, "meta"), 1, sampled)
    assert {tensor.device.type for tensor in (*after, beam)} == {"meta"}


@pytest.mark.parametrize("beams", [1, 3])
def test_scores_are_float32_and_logits_stay_as_they_are(beams):
    logits = torch.randn(3, V, dtype=torch.float64)
    search = a_search(beams=beams, banned=(4,))
    for given_logits in (logits, logits.float()):
        before = given_logits.clone()
        found = s.next_scores(given_logits, tokens(3, 4), 4, search)
        assert found.dtype == torch.float32
        assert given_logits.equal(before)


def test_every_constraint_is_used():
    seen = torch.tensor([[1, 3, 4, 3]])
    found = s.constrain(scores(1), seen, a_search(no_repeat_ngram=2))
    assert found.isneginf().nonzero().tolist() == [[0, 4]]
    assert s.constrain(scores(1), seen[:, :2], a_search(no_repeat_ngram=2)).isfinite().all()
    first = a_search(banned_first=(5,))
    assert s.constrain(scores(1), seen[:, :1], first).isneginf().nonzero().tolist() == [[0, 5]]
    assert s.constrain(scores(1), seen[:, :2], first).isfinite().all()
    after_forced = a_search(banned_first=(5,), forced_first=7)
    assert s.constrain(scores(1), seen[:, :1], after_forced).isfinite().nonzero().tolist() == [[0, 7]]
    assert s.constrain(scores(1), seen[:, :2], after_forced).isneginf().nonzero().tolist() == [[0, 5]]


def test_an_ngram_as_long_as_the_text_may_not_be_repeated():
    found = s.ban_repeated_ngrams(scores(1), torch.tensor([[4]]), 1)
    assert found.isneginf().nonzero().tolist() == [[0, 4]]
    banned = s.ban(scores(1), ())
    assert banned.isfinite().all()


def test_one_best_token_and_a_mass_of_one():
    x = scores(2)
    assert s.keep_top_k(x, 1).isfinite().sum(1).tolist() == [1, 1]
    assert s.keep_top_p(x, 1.0) is x
    even = torch.zeros(1, 4)  # 0.25 each: the sums are exact
    kept = s.keep_top_p(even, 0.5)
    assert kept.isfinite().sum() == 2
    assert kept.isneginf().sum() == 2


def test_scores_that_are_not_numbers_are_counted_and_explained():
    search = a_search(beams=2)
    begun = s.start(search, 2, "cpu")
    wrong = begun._replace(scores=torch.tensor([[torch.nan, torch.inf], [-torch.inf, torch.nan]]))
    assert int(s.broken(wrong, torch.tensor([True, True]))) == 3
    assert int(s.broken(wrong, torch.tensor([False, True]))) == 1
    assert int(s.broken(begun, torch.tensor([True, True]))) == 0
    for value in (torch.nan, torch.inf):
        logits = torch.zeros(2, V, dtype=torch.float16)
        logits[1, 3] = value
        message = (
            "^scores: the decoder gives NaN or infinite scores for output token 4, in float16; its weights are "
            "damaged, or its values too large for this dtype: try float32$"
        )
        with pytest.raises(ValueError, match=message):
            s.refuse_broken(logits, 4, search)
    fine = torch.zeros(2, V)
    rest = "allow no output token 4, or make its score infinite; choose other values$"
    with pytest.raises(ValueError, match=f"^the settings: {rest}"):
        s.refuse_broken(fine, 4, search)
    with pytest.raises(ValueError, match=f"^`bad_words_ids`, `min_length`: {rest}"):
        s.refuse_broken(fine, 4, a_search(banned=(3,), min_length=2))


def test_samples_of_several_sentences_follow_the_generator_and_stop_counting():
    search = a_search(sample=True, beams=2, no_repeat_ngram=1, max_length=6)
    tables = scores(2, 3)

    def draw(seed):
        hypotheses, generator = s.start(search, 2, "cpu"), torch.Generator().manual_seed(seed)
        for length in range(1, 6):
            logits = tables if length == 1 else tables.repeat_interleave(2, 0)
            hypotheses, beam = s.sample_step(logits, hypotheses, length, search, generator)
            assert beam.tolist() == [[0, 1], [0, 1]]
        return hypotheses

    torch.manual_seed(0)
    one = draw(5)
    torch.manual_seed(1)
    same = draw(5)
    assert one.tokens.equal(same.tokens)
    assert one.scores.equal(same.scores)
    for seed in range(30):
        found = draw(seed)
        for row in found.tokens.flatten(0, 1).tolist():
            written = row[1 : row.index(2)] if 2 in row[1:] else row[1:]
            assert len({1, *written}) == len(written) + 1, "no token is repeated"
        assert found.done.all()
        assert (found.scores <= 0).all(), "a finished sample gains nothing"
        torch.testing.assert_close(found.done_scores * (found.done_length - 1), found.scores)


def test_a_full_sentence_takes_no_worse_or_better_hypothesis_with_early_stopping():
    search = a_search(beams=2, early_stopping=True)
    begun = s.start(search, 2, "cpu")
    full = begun._replace(
        done=torch.tensor([[True, True], [True, False]]), done_scores=torch.tensor([[-1.0, -2.0], [-1.0, s.NEVER]])
    )
    candidates = Candidates(
        torch.tensor([[-0.1, -0.2]] * 2), torch.zeros(2, 2, dtype=torch.long), torch.full((2, 2), 2)
    )
    ended = torch.ones(2, 2, dtype=torch.bool)
    found = s.finish(full, candidates, s.extended(full, candidates, 1), ended, 1, search)
    assert found.done_scores[0].tolist() == [-1.0, -2.0]
    torch.testing.assert_close(found.done_scores[1], torch.tensor([-0.1, -0.2]))
    closed = s.still_open(found._replace(scores=torch.zeros(2, 2), done=full.done), 3, search)
    assert closed.open.tolist() == [False, True]


@pytest.mark.parametrize("penalty", [-1.0, 0.0])
def test_without_a_positive_penalty_gnmt_divides_by_the_next_length(penalty):
    """A negative penalty favours short outputs: the next step is the best that can come."""
    search = a_search(beams=2, returned=1, penalty_style="gnmt", length_penalty=penalty, max_length=20)
    finished = -1.0001 / s.length_penalty(4 + 1, search)
    for score, is_open in ((-1.0, True), (-1.0002, False)):
        hypotheses = s.start(search, 1, "cpu")._replace(
            scores=torch.tensor([[score, s.NEVER]]), done=torch.tensor([[True, False]]),
            done_scores=torch.tensor([[finished, s.NEVER]]),
        )  # fmt: skip
        assert s.still_open(hypotheses, 5, search).open.tolist() == [is_open]
