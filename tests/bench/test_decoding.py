"""The decoding benchmark on a tiny model."""

import json
import statistics
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from l0drop.app import cli
from l0drop.bench.agreement import compare
from l0drop.bench.decoding import COMPARED, PHASES, decode_benchmark
from l0drop.bench.peers import SYSTEMS
from l0drop.bench.timing import in_turns
from l0drop.bench.workloads import SHAPES, RandomModel, TextFile
from l0drop.report.benchmark import brief, decode_table, speed_up_table
from l0drop.runs.benchmark import DecodeBenchmark, DecodeBenchmarks, GateCounts, Seconds, Shape, TokenAgreement
from l0drop.runs.json_file import as_json
from l0drop.runs.table import for_terminal
from tests.decoding import folders

TINY = {
    "vocabulary": 120, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def result():
    workload = RandomModel(Shape(batch=5, source=40, target=9, dropped=0.6), changes=TINY)
    return decode_benchmark(workload, rounds=3, slow_rounds=2, say=lambda _: None)


def test_systems_agree(result):
    assert result.sentences == 5
    agreement = dict(result.agreement)
    assert agreement.pop("hf-dense") is None, "the reference"
    for name in ("engine-short", "engine-dense", "hf-short", "ct2-float32"):
        found = agreement[name]
        assert (found.must_agree, found.same + found.tied, found.different) == (True, 5, 0), name
    assert agreement["ct2-float32"].reference == "engine-dense, without gates"
    assert not any(agreement[name].must_agree for name in SYSTEMS if "int8" in name)


def test_pairs_are_compared_within_rounds(result):
    pairs = [(row.phase, row.system, row.by) for row in result.ratios]
    assert pairs == list(COMPARED)
    for row in result.ratios:
        one, other = (result.systems[name].seconds[row.phase].cpu for name in (row.system, row.by))
        assert row.times == pytest.approx(statistics.median(a / b for a, b in zip(one, other, strict=False)))


def test_the_result_is_complete_json(result, tmp_path):
    result.write(tmp_path / "bench.json")
    assert DecodeBenchmark.read(tmp_path / "bench.json") == result
    result = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    made_by = {"l0drop", "commit", "python", "torch", "transformers", "device", "threads"}
    found = {"sentences", "gates", "generation", "systems", "ratios", "agreement", "notes", "ctranslate2"}
    assert result.keys() == {"version", "what", "shape", "changes", "gating"} | found | made_by
    assert list(result["systems"]) == list(SYSTEMS)
    for name, system in result["systems"].items():
        rounds = 2 if name.startswith("hf") else 3
        assert system["rounds"] == rounds
        assert system["tokens"] == 5 * 9
        for phase in PHASES:
            cpu, wall = system["seconds"][phase]["cpu"], system["seconds"][phase]["wall"]
            assert len(cpu) == len(wall) == rounds
            assert system["median"][phase] == {"cpu": statistics.median(cpu), "wall": statistics.median(wall)}
        parts = zip(*(system["seconds"][phase]["cpu"] for phase in PHASES), strict=True)
        assert all(abs(encode + decode - both) < 1e-9 for encode, decode, both in parts)
        reference = result["systems"]["engine-short"]["seconds"]["decode"]["cpu"]
        ratios = [a / b for a, b in zip(system["seconds"]["decode"]["cpu"], reference, strict=False)]
        assert system["times_engine_short"]["decode"] == pytest.approx(statistics.median(ratios))
        assert system["sentences_per_second"] == pytest.approx(5 / system["median"]["end_to_end"]["wall"])


def test_sparsity_and_memory_match_the_shape(result):
    assert result.gates == GateCounts(
        sparsity=pytest.approx(0.6), source_tokens=200, longest_source=40, longest_memory=16 + 1
    )
    memory = {name: system.memory for name, system in result.systems.items()}
    row = 2 * 2 * 32 * 4
    assert memory["hf-dense"].cross_cache == 5 * 4 * 40 * row
    assert memory["engine-short"].cross_cache == 5 * 17 * row
    assert memory["ct2-float32"].cross_cache is None
    assert all(memory[name].weights > 0 for name in SYSTEMS)
    if sys.platform == "linux":
        assert all(memory[name].beyond_loaded > 0 for name in SYSTEMS)


@pytest.mark.parametrize("name", SHAPES)
def test_the_fixed_gate_keeps_the_share_of_each_shape(name):
    shape = SHAPES[name]
    model, (batch,) = RandomModel(Shape(2, shape.source, 1, shape.dropped), changes={**TINY, "vocabulary": 10}).load()
    assert batch.input_ids.shape == (2, shape.source)
    gates = model.gate(batch.input_ids[..., None].float(), batch.attention_mask.bool())
    assert abs(float((gates.values == 0).float().mean()) - shape.dropped) <= 0.5 / shape.source + 1e-6


def test_peaks_include_the_cross_attention_cache():
    """Here Hugging Face's dense keys and values are by far the largest allocation."""
    workload = RandomModel(Shape(8, 1500, 2, 0.9), changes={**TINY, "d_model": 64, "max_position_embeddings": 1600})
    systems = decode_benchmark(workload, ("engine-short", "hf-dense"), rounds=1, say=lambda _: None).systems
    held = systems["hf-dense"].memory.cross_cache
    assert held == 8 * 4 * 1500 * 2 * 2 * 64 * 4
    if sys.platform == "linux":
        peaks = {name: system.memory.beyond_loaded for name, system in systems.items()}
        assert peaks["hf-dense"] > held
        assert peaks["hf-dense"] > peaks["engine-short"]


def test_ties_are_counted_separately_from_differences():
    reference = [[[1, 2], [3, 4]], [[5, 6], [7]]]
    other = [[[1, 2], [3, 9]], [[5, 8], [7]]]
    scores = {(3, 4): -1.0, (3, 9): -1.00005, (5, 6): -1.0, (5, 8): -1.2}

    def score(outputs):
        return [scores[tuple(tokens)] for _, _, tokens in outputs]

    found = compare(other, reference, score, reference="hf-dense", must_agree=True)
    gap = pytest.approx(0.2)
    assert found == TokenAgreement("hf-dense", True, same=2, tied=1, different=1, largest_score_gap=gap)
    assert as_json(found)["largest_score_gap"] == gap


def test_systems_take_turns():
    assert list(in_turns({"a": 3, "b": 1, "c": 2})) == [
        ("a", 0), ("b", 0), ("c", 0), ("c", 1), ("a", 1), ("a", 2)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "input.txt"
    lines = [folders.SENTENCES[n % 3] for n in range(7)]
    file.write_text("\n".join([*lines[:3], "", *lines[3:], "the ninth line"]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def model_folder(baseline, tmp_path_factory):
    return folders.sparse(baseline, tmp_path_factory.mktemp("sparse") / "model")


def test_text_is_read_in_batches_of_similar_length(model_folder, text):
    workload = TextFile(str(model_folder), text, sentences=8, batch=3)
    _, batches = workload.load()
    assert [len(batch) for batch in batches] == [3, 3, 1], "the blank line and the ninth are skipped"
    lengths = [int(length) for batch in batches for length in batch.attention_mask.sum(1)]
    assert lengths == sorted(lengths, reverse=True)
    assert all(batch.attention_mask.sum(1).max() == batch.input_ids.shape[1] for batch in batches)


def test_a_model_without_a_gate_drops_nothing(baseline, text):
    model, _ = TextFile(str(baseline), text).load()
    assert type(model).__name__ == "L0DropMarianMTModel"
    workload = TextFile(str(baseline), text, sentences=4, max_new_tokens=8)
    systems = ("engine-short", "ct2-float32")
    result = decode_benchmark(workload, systems, rounds=1, say=lambda _: None)
    assert result.gates.sparsity == 0
    assert result.agreement["ct2-float32"].different == 0


def test_the_command_decodes_text(model_folder, text, tmp_path, monkeypatch, capsys):
    output = tmp_path / "decode.json"
    arguments = ["--input", text, "--sentences", 5, "--max-new-tokens", 10, "--rounds", 2, "--json", output]
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", model_folder, *arguments)
    assert code == 0, said
    result = json.loads(output.read_text())
    assert result["sentences"] == 4
    assert result["input"]["path"] == str(text)
    assert 0 < result["gates"]["sparsity"] < 1
    for name in SYSTEMS:
        assert name in said
        latency = result["systems"][name]["latency_ms"]["wall"]
        assert 0 < latency["p50"] <= latency["p99"]
        if name != "hf-dense" and "int8" not in name:
            assert result["agreement"][name]["different"] == 0


def test_the_command_decodes_a_custom_shape(tmp_path, monkeypatch, capsys):
    def tiny(workload, *arguments, **settings):
        return decode_benchmark(replace(workload, changes=TINY), *arguments, **settings)

    monkeypatch.setattr("l0drop.bench.decoding.decode_benchmark", tiny)
    options = "--shape mt --batch 2 --source 12 --target 2 --dropped 0.5 --rounds 1 --systems engine-short,engine-dense"
    output = tmp_path / "shape.json"
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *options.split(), "--json", output)
    assert code == 0, said
    assert "2 sentences, beam 4, longest source 12, 50.0% dropped" in said
    assert "Dropping 50.0% of the encodings makes our engine" in said
    assert "engine-short over engine-dense, end to end" in said
    result = json.loads(output.read_text())
    assert result["shape"] == {"batch": 2, "source": 12, "target": 2, "dropped": 0.5}
    assert list(result["systems"]) == ["engine-short", "engine-dense"]
    assert result["ctranslate2"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--input x", "input: needs a model folder"),
        ("--sentences 3", "sentences: needs a model folder"),
        ("folder", "input: missing; name a text file"),
        ("folder --input x --source 3", "source: is for random weights"),
        ("folder --input x --shape mt", "shape: is for random weights"),
        ("--shape books", "whisper-large-v3, whisper-turbo, got 'books'"),
        ("--dropped 1.5", "dropped: expected a share in [0, 1), got 1.5"),
        ("--systems engine-short,gpu", "systems: expected some of engine-short,"),
        ("./nowhere --input x --systems hf-short", "./nowhere: there is no such folder"),
    ],
)
def test_errors_name_the_argument(arguments, message, monkeypatch, capsys):
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *arguments.split())
    assert code == 2
    assert message in said


def l0drop(monkeypatch, capsys, *arguments: object) -> tuple[int, str]:
    """Run a command in this process: its exit code and its output, with single spaces for line breaks."""
    monkeypatch.setattr(sys, "argv", ["l0drop", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), " ".join((captured.out + captured.err).split())


def test_the_command_decodes_several_shapes(tmp_path, monkeypatch, capsys):
    def tiny(workload, *arguments, **settings):
        return decode_benchmark(replace(workload, changes=TINY), *arguments, **settings)

    monkeypatch.setattr("l0drop.bench.decoding.decode_benchmark", tiny)
    options = "--shape mt,cnndm --batch 2 --source 12 --target 2 --rounds 1 --systems engine-short,engine-dense"
    output = tmp_path / "shapes.json"
    code, said = l0drop(monkeypatch, capsys, "bench", "decode", *options.split(), "--json", output)
    assert code == 0, said
    assert "cnndm: Dropping 50.0% of the encodings" in said
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content.keys() >= {"shapes", "device", "threads", "torch", "commit", "version"}
    found = DecodeBenchmarks.read(output)
    assert list(found.shapes) == ["mt", "cnndm"]
    assert found.made_by == found.shapes["mt"].made_by


def rendered(titled) -> str:
    title, table = titled
    console = Console(width=80)
    with console.capture() as captured:
        console.print(for_terminal(table, title, compact=True))
    return captured.get()


def test_tables_keep_every_name_at_80_columns(result):
    slow = dict.fromkeys(PHASES, Seconds(1234.5, 1234.5))
    systems = {
        name: replace(
            system,
            sentences_per_second=11_750.0,
            median=slow,
            memory=replace(system.memory, beyond_loaded=12_345 << 20),
        )
        for name, system in result.systems.items()
    }
    large = replace(result, systems=systems)
    shapes = {"wikisum": large, "cnndm": large, "mt": large}
    for titled in (decode_table(large), speed_up_table({"text": large}), speed_up_table(shapes)):
        shown = rendered(titled)
        assert "\u2026" not in shown
        assert "e+" not in shown
        assert max(map(len, shown.splitlines())) <= 80
        assert all(name in shown for name in SYSTEMS if "hf-short" not in name)


def test_unexpected_differences_are_marked(result):
    wrong = replace(result.agreement["engine-short"], same=4, tied=0, different=1)
    _, table = decode_table(replace(result, agreement={**result.agreement, "engine-short": wrong}))
    marked = [row[0] for row in table.rows if row[-1] in table.styles]
    assert (marked, table.styles) == (["engine-short"], {"4/5 !": "bad"})
    assert "!: tokens differ" in table.note
    assert "!: tokens differ" not in decode_table(result)[1].note


def test_numbers_are_plain():
    numbers = {11_750.0: "11,750", 123.4: "123", 12.345: "12.3", 1.2345: "1.23", 0.1234: "0.12", 0.01234: "0.0123"}
    assert {number: brief(number) for number in numbers} == numbers
