"""The counts of the training benchmark, and a run from end to end."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from l0drop.bench.random_models import transformer_base
from l0drop.bench.training import (
    EOS,
    OURS,
    OURS_GATED,
    THEIRS,
    THEIRS_OFF,
    Benchmark,
    Size,
    synthetic_corpus,
    training_flops,
)
from l0drop.report.benchmark import training_speed_table
from l0drop.runs.training_benchmark import TrainingSpeed

MODEL = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 48, "max_position_embeddings": 256,
}  # fmt: skip
TINY = Size(
    MODEL, vocabulary=200, sentences=600, batch_tokens=800, precision="fp32", before=1, steps=2, slow_before=1,
    epochs_before=0, slow_steps=1, rounds=1, curve_steps=30,
)  # fmt: skip


def test_flops_are_those_that_torch_counts():
    model = transformer_base(200, **MODEL).train()
    model.set_attn_implementation("eager")  # so that torch counts all products
    B, N, T = 3, 11, 7
    ids = torch.randint(3, 200, (B, N))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=ids[:, :T]).logits.sum().backward()
    causal_half = 6 * MODEL["decoder_layers"] * MODEL["d_model"] * B * T * T
    found = training_flops(model.config, np.full(B, N), np.full(B, T))
    assert found + causal_half == counter.get_total_flops()


def test_the_corpus_is_ragged_and_translates_word_by_word():
    corpus = synthetic_corpus(TINY)
    assert len(set(corpus.source_lengths)) > 20
    example = corpus[5]
    assert example.source[-1] == example.target[-1] == EOS
    pairs: dict[int, set[int]] = {}
    for example in corpus:
        if len(example.source) == len(example.target):
            for source, target in zip(example.source[:-1], example.target[:-1], strict=True):
                pairs.setdefault(int(source), set()).add(int(target))
    assert len(pairs) > 20
    assert all(len(targets) == 1 for targets in pairs.values())


@pytest.mark.slow
def test_every_system_is_measured_on_the_same_tokens(tmp_path):
    result = Benchmark("cpu", TINY).run(say=lambda text: None)
    assert list(result.rounds) == [THEIRS, THEIRS_OFF, OURS, OURS_GATED]
    per_step = {name: results[0].tokens_per_step for name, results in result.rounds.items()}
    assert per_step[THEIRS_OFF] == per_step[OURS] == per_step[OURS_GATED]
    for results in result.rounds.values():
        assert 0 < results[0].mfu < results[0].mfu_of_positions
    speeds = result.tokens_per_second
    assert result.times_theirs == pytest.approx(speeds[OURS] / speeds[THEIRS])
    curves = result.curves.cross_entropy
    assert len(curves["plain"]) == 30
    assert curves["fast"] == curves["plain"] != curves["plain, other dropout"]  # on a CPU both are the plain path
    result.write(tmp_path / "speed.json")
    assert TrainingSpeed.read(tmp_path / "speed.json") == result
    title, table = training_speed_table(result)
    assert "fp32, batches of 800 padded tokens" in title
    assert [row[0].replace(",\n  ", ", ") for row in table.rows] == list(result.rounds)
