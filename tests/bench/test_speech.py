"""The decoding benchmark on tiny Whispers: random weights, and recordings."""

import json
from dataclasses import replace

import pytest
import soundfile
import torch

from l0drop import Engine, L0DropConfig, sparsify
from l0drop.bench.decoding import decode_benchmark
from l0drop.bench.peers import ungated
from l0drop.bench.speech_peers import Clips, build_speech_peer, plain_whisper, prompt_of
from l0drop.bench.speech_workloads import RANDOM_SYSTEMS, SIZES, WHISPER_SHAPES, AudioFiles, RandomWhisper
from l0drop.report.benchmark import decode_table
from l0drop.runs.benchmark import DecodeBenchmark, Shape
from tests.bench.test_decoding import l0drop
from tests.models import whispers

TINY = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
}  # fmt: skip
SHAPE = Shape(batch=3, source=40, target=7, dropped=0.75)
TIMED = (
    *("engine-short", "engine-dense", "engine-inside-0", "engine-int8-inside-1"),
    *("hf-short", "hf-dense", "ct2-float32"),
)
SEARCHES = {
    "greedy": {"num_beams": 1, "max_new_tokens": 9},
    "beam": {"num_beams": 3, "max_new_tokens": 9, "early_stopping": True, "length_penalty": 1.0},
    "forced length": {"num_beams": 3, "max_new_tokens": 9, "min_new_tokens": 9, "early_stopping": True},
}


def closed(**options):
    """A multilingual Whisper that drops half of its rows, for the benchmark."""
    model = whispers.spread_gates(sparsify(whispers.build(), L0DropConfig(**{"gating": "zero", **options}))).eval()
    plain_whisper(model)
    return model


def clips():
    return Clips(whispers.features(), whispers.coverage().long())


@pytest.mark.parametrize("search", SEARCHES)
def test_all_systems_find_the_tokens_of_generate(search):
    model, batch = closed(), clips()
    way = {**SEARCHES[search], "language": "en"}
    found = {
        name: build_speech_peer(name, model, **way).generate(batch)
        for name in ("engine-short", "engine-dense", "hf-short", "hf-dense", "ct2-float32")
    }
    expected = model.generate(batch.features, **way).tolist()
    for row, tokens in zip(expected, found["hf-dense"], strict=True):
        text = tokens[:-1] if tokens[-1] == whispers.EOS else tokens
        assert row[: len(text)] == text
        assert set(row[len(text) :]) <= {whispers.EOS}
    for name in ("engine-short", "engine-dense", "hf-short"):
        assert found[name] == found["hf-dense"], name
    without = build_speech_peer("engine-short", ungated(model), **way).generate(batch)
    if search == "greedy":
        assert found["ct2-float32"] == without
    assert without != found["hf-dense"], "half of the gates are closed, so the outputs must differ"
    if search == "forced length":
        assert all(len(row) == 9 and whispers.EOS not in row for row in found["hf-dense"])


def test_beams_of_ctranslate2_without_suppressed_tokens():
    """With suppressed tokens it normalises in another order (see `CTranslate2SpeechPeer`)."""
    model, batch = closed(), clips()
    model.generation_config.suppress_tokens = model.generation_config.begin_suppress_tokens = None
    for search in ("greedy", "beam"):
        way = {**SEARCHES[search], "language": "en"}
        without = build_speech_peer("engine-short", ungated(model), **way).generate(batch)
        assert build_speech_peer("ct2-float32", model, **way).generate(batch) == without, search


def test_the_prompt_is_that_of_generate():
    for multilingual in (True, False):
        model = whispers.build(multilingual=multilingual)
        plain_whisper(model)
        language = {"language": "de"} if multilingual else {}
        window = Engine(model).generate(whispers.features(1), max_new_tokens=3, **language).windows[0]
        assert window.tokens[: window.given].tolist() == prompt_of(model.generation_config, **language)
    multilingual = whispers.build()
    with pytest.raises(ValueError, match="`language`: a multilingual Whisper needs one of de, en, got None"):
        prompt_of(multilingual.generation_config)


def test_int8_of_both_systems_decodes():
    model, batch = closed(), clips()
    for name in ("engine-int8-short", "engine-int8-dense", "ct2-int8"):
        tokens = build_speech_peer(name, model, **SEARCHES["forced length"], language="en").generate(batch)
        assert [len(row) for row in tokens] == [9] * len(batch)


@pytest.fixture(scope="module")
def result():
    workload = RandomWhisper("tiny", SHAPE, beams=2, changes={**TINY, "vocab_size": 51_865})
    assert workload.systems == RANDOM_SYSTEMS
    return decode_benchmark(workload, TIMED, rounds=1, say=lambda _: None)


def test_systems_agree_on_random_weights(result):
    assert tuple(result.systems) == TIMED
    agreement = dict(result.agreement)
    assert agreement.pop("hf-dense") is None
    for name, found in agreement.items():
        assert found.must_agree == ("int8" not in name and not name.startswith("ct2"))
        if "int8" not in name:
            assert (found.same + found.tied, found.different) == (3, 0), name
    assert agreement["engine-inside-0"].reference == "engine-dense, the same gates"
    assert agreement["ct2-float32"].reference == "engine-dense, without gates"
    assert {system.tokens for system in result.systems.values()} == {3 * 7}


def test_the_share_is_dropped_everywhere(result):
    assert result.gates.sparsity == result.gates.sparsity_of_all == pytest.approx(0.75)
    assert (result.gates.longest_source, result.gates.longest_memory) == (40, 10 + 1)
    assert result.variant_gates.keys() == {"0", "1"}
    for gates in result.variant_gates.values():
        assert gates.sparsity == pytest.approx(0.75)
        assert gates.longest_memory == 10
    caches = {name: system.memory.cross_cache for name, system in result.systems.items()}
    row = 2 * 2 * 32 * 4
    assert caches["engine-inside-0"] == 3 * 10 * row
    assert (caches["hf-dense"], caches["hf-short"]) == (3 * 2 * 40 * row, 3 * 2 * 11 * row)


def test_speed_ups_name_the_early_gates(result, tmp_path):
    pairs = {(one.system, one.by) for one in result.ratios}
    assert {("engine-dense", "engine-inside-0"), ("ct2-float32", "engine-inside-0")} <= pairs
    title, _ = decode_table(result)
    assert title.startswith("3 clips, beam 2, longest source 40, 75.0% dropped; ")
    result.write(tmp_path / "bench.json")
    assert DecodeBenchmark.read(tmp_path / "bench.json") == result


def test_sizes_are_those_of_openai():
    """The number of parameters that OpenAI states, in millions; the config says the rest."""
    import transformers as hf

    stated = {"tiny": 38, "small": 242, "large-v3": 1543, "turbo": 809}
    for name, size in SIZES.items():
        with torch.device("meta"):
            model = hf.WhisperForConditionalGeneration(hf.WhisperConfig(**size))
        assert round(sum(p.numel() for p in model.parameters()) / 1e6) == stated[name], name
    assert list(WHISPER_SHAPES) == [f"whisper-{name}" for name in SIZES]


# --- recordings --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("speech")
    for name, seconds in {"a": 0.2, "b": 0.4, "c": 0.3}.items():
        soundfile.write(root / f"{name}.wav", whispers.tone(seconds, len(name)), 16_000, subtype="FLOAT")
    (root / "list.tsv").write_text("a.wav\tone\n\nb.wav\ttwo\nc.wav\tthree\n", encoding="utf-8")
    whispers.save(whispers.spread_gates(sparsify(whispers.build(), L0DropConfig(gating="zero"))), root / "sparse")
    whispers.save(whispers.build(), root / "dense")
    early = sparsify(whispers.build(), L0DropConfig(gating="mask", layerwise=[1]))
    whispers.save(whispers.spread_gates(early), root / "early")
    return root


def test_the_command_decodes_recordings(folders, tmp_path, monkeypatch, capsys):
    output = tmp_path / "speech.json"
    options = ["--audio", folders / "list.tsv", "--baseline", folders / "dense", "--rival", folders / "early"]
    options += ["--batch", 2, "--beams", 2, "--max-new-tokens", 8, "--language", "en", "--rounds", 1]
    options += ["--systems", "engine-short,engine-dense,engine-baseline,engine-rival,engine-int8-rival,ct2-float32"]
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", folders / "sparse", *options, "--json", output)
    assert code == 0, said
    assert "3 clips, beam 2, longest source 24" in said
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["seconds_of_audio"] == pytest.approx(0.9)
    assert (content["baseline"], content["batch"]) == (str(folders / "dense"), 2)
    found = DecodeBenchmark.read(output)
    assert found.variant_gates["baseline"].sparsity == 0
    assert 0 < found.variant_gates["rival"].sparsity < 1
    assert found.gates.source_tokens == 10 + 20 + 15
    assert found.agreement["ct2-float32"].reference == "engine-baseline, without gates"
    for name, agreement in found.agreement.items():
        assert agreement is None or not agreement.must_agree or agreement.different == 0, name
    assert ("engine-rival", "engine-short") in {(one.system, one.by) for one in found.ratios}


def test_clips_are_batched_longest_first(folders):
    workload = AudioFiles(str(folders / "sparse"), folders / "list.tsv", batch=2)
    _, batches = workload.load()
    assert [len(batch) for batch in batches] == [2, 1]
    assert [int(n) for batch in batches for n in batch.attention_mask.sum(1)] == [40, 30, 20]
    assert len(replace(workload, clips=1).load()[1]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--audio x", "audio: needs a model folder"),
        ("folder --rival x --input y", "rival: needs --audio, a list of audio files"),
        ("folder --audio x --input y", "input: is for text"),
        ("folder --audio x --shape mt", "shape: is for random weights"),
        ("--shape whisper-huge", "whisper-large-v3, whisper-turbo, got 'whisper-huge'"),
        ("--shape mt --systems engine-inside-0", "systems: expected some of engine-short,"),
    ],
)
def test_errors_name_the_argument(arguments, message, monkeypatch, capsys):
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *arguments.split())
    assert code == 2
    assert message in said


def test_a_list_that_names_nothing_or_a_long_clip_is_refused(folders, tmp_path):
    (tmp_path / "list").write_text("\n\n", encoding="utf-8")
    with pytest.raises(ValueError, match="names no audio file"):
        AudioFiles(str(folders / "sparse"), tmp_path / "list").load()
    soundfile.write(tmp_path / "long.wav", whispers.tone(1.5), 16_000, subtype="FLOAT")
    (tmp_path / "list").write_text("long.wav\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"long.wav is longer than one window"):
        AudioFiles(str(folders / "sparse"), tmp_path / "list").load()
