"""The cost model on times computed from known costs, and the command on a tiny model."""

import json
import random
import statistics
from types import SimpleNamespace

import pytest
import torch
import transformers

from l0drop import L0DropConfig, sparsify
from l0drop.bench import predict
from l0drop.bench.cost_model import DECODE, ENCODE, PAYS, Prediction, Sizes, fit, total
from l0drop.bench.predict import BATCHES, CHECKS, WORTHWHILE, Bench, Question, answer, points
from l0drop.core.memory import has_shared_row
from l0drop.runs.benchmark import Shape
from l0drop.runs.json_file import as_json
from l0drop.runs.prediction import SpeedPrediction
from tests.bench.test_decoding import l0drop
from tests.decoding import folders
from tests.models import zoo
from tests.snippets import ROOT

SIZES = Sizes(beams=4, memory=512, activations=2048)
DECODE_COSTS = {
    "start": 3e-3, "step": 1.4e-2, "row": 8e-4, "prefix": 2e-6, "memory_row": 7e-5, "attended": 3e-6, "large": 2e-5,
}  # fmt: skip
ENCODE_COSTS = {"start": 1e-2, "token": 4e-4, "attended": 1.6e-7, "large": 3e-5}
PREDICTION = Prediction(SIZES, DECODE_COSTS, ENCODE_COSTS)


def test_counts_match_a_decoding_counted_token_by_token():
    batch, rows, target, beams = 3, 50, 7, 4
    counted = dict.fromkeys(DECODE, 0.0)
    counted["start"] += 1
    for sentence in range(batch):
        counted["memory_row"] += rows
        for token in range(target):
            counted["step"] += sentence == 0
            counted["row"] += 1 if token == 0 else beams
            counted["prefix"] += beams * token
            counted["attended"] += rows
    assert SIZES.decode(batch, rows, target) == counted
    pairs = sum(1 for _ in range(3) for _ in range(20) for _ in range(20))
    assert SIZES.encode(3, 20) == {"start": 1, "token": 60, "attended": pairs, "large": 0}


def test_tensors_are_large_from_32_mebibytes():
    rows = 32 * 2**20 // (4 * 512)
    assert SIZES.decode(1, rows - 1, 2)["large"] == 0
    assert SIZES.decode(1, rows, 2)["large"] == rows
    assert SIZES.encode(4, 1023)["large"] == 0
    assert SIZES.encode(4, 1024)["large"] == 4096


def test_large_tensors_cost_nothing_extra_on_a_gpu():
    sizes = Sizes(beams=4, memory=512, activations=2048, pages=False)
    assert sizes.decode(8, 1 << 20, 2)["large"] == sizes.encode(8, 1 << 20)["large"] == 0


def test_weights_are_in_bfloat16_on_a_gpu(monkeypatch):
    places = []

    def placed(model, *place):
        places.append(place)
        return model

    monkeypatch.setattr(torch.nn.Module, "to", placed)
    model = sparsify(zoo.build("marian")).eval()
    monkeypatch.setattr(predict, "RandomModel", lambda shape: SimpleNamespace(load=lambda: (model, [])))
    assert Question(device="cuda").load().model is model
    assert places[-1] == ("cuda", torch.bfloat16)


def test_the_points_identify_every_cost():
    decode, encode = points(2048, 4096)
    for shapes, counts, costs in ((decode, SIZES.decode, DECODE_COSTS), (encode, SIZES.encode, ENCODE_COSTS)):
        occurs = [counts(*shape) for shape in shapes]
        found = fit(occurs, [total(costs, count) for count in occurs])
        assert found == pytest.approx(costs, rel=1e-6)


def test_noise_is_not_amplified():
    generator = random.Random(0)
    occurs = [SIZES.decode(*shape) for shape in points(2048, None)[0]]
    errors = []
    for _ in range(10):
        seconds = [total(DECODE_COSTS, count) * generator.gauss(1, 0.04) for count in occurs]
        costs = fit(occurs, seconds)
        assert min(costs.values()) >= 0
        for batch, source, dropped in CHECKS:
            for rows in (source, SIZES.kept(source, dropped)):
                count = SIZES.decode(batch, rows, 64)
                errors.append(abs(total(costs, count) / total(DECODE_COSTS, count) - 1))
    assert statistics.median(errors) < 0.03
    assert max(errors) < 0.12


def test_costs_are_not_negative_and_zero_if_never_counted():
    """Without the bound, a falling line would get a negative slope."""
    found = fit([{"start": 1, "token": n, "large": 0} for n in (1, 2, 3)], [3.0, 2.0, 1.0])
    assert found["token"] == 0
    assert found["large"] == 0
    # the constant c that minimises (c/3 - 1)² + (c/2 - 1)² + (c/1 - 1)²
    assert found["start"] == pytest.approx((1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1))


def test_points_and_checks_share_no_shape():
    decode, encode = points(2048, None)
    for batch, source, dropped in CHECKS:
        assert (batch, source) not in encode
        for rows in (source, SIZES.kept(source, dropped)):
            assert all((batch, rows) != point[:2] for point in decode)


def test_points_stay_within_short_models():
    decode, encode = points(20, 10)
    assert max(source for _, source in encode) == 20
    assert max(target for *_, target in decode) == 10
    assert min(min(shape) for shape in decode + encode) >= 1


def test_the_speed_up_grows_with_the_share_dropped():
    for batch in (1, 8, 32):
        for phase in ("decode", "both"):
            times = [PREDICTION.speed_up(Shape(batch, 700, 64, share / 20))[phase] for share in range(20)]
            assert times == sorted(times)
            assert times[0] < 1 < times[1], "with nothing dropped, the short memory has one extra row"


def test_both_is_encoding_and_decoding():
    shape = Shape(8, 600, 64, 0.5)
    seconds, times = PREDICTION.seconds(shape), PREDICTION.speed_up(shape)
    assert seconds["encode"] == pytest.approx(1e-2 + 4800 * 4e-4 + 4800 * 600 * 1.6e-7 + 4800 * 3e-5)
    short = total(DECODE_COSTS, SIZES.decode(8, 301, 64))
    assert seconds["short"] == short
    assert times["both"] == pytest.approx((seconds["encode"] + seconds["dense"]) / (seconds["encode"] + short))
    assert 1 < times["both"] < times["decode"]


def test_pays_from_is_the_shortest_length_with_enough_gain():
    for batch in (1, 8):
        found = PREDICTION.pays_from(batch, 64, 0.5, 2048)
        for phase, source in found.items():
            assert PREDICTION.speed_up(Shape(batch, source, 64, 0.5))[phase] >= PAYS
            assert PREDICTION.speed_up(Shape(batch, source - 1, 64, 0.5))[phase] < PAYS
    assert PREDICTION.pays_from(1, 64, 0.5, 100) == {"decode": None, "both": None}
    assert PREDICTION.pays_from(1, 64, 0.0, 300) == {"decode": None, "both": None}


def test_a_gain_that_vanishes_at_long_sources_has_no_start():
    """Encoding grows with the square of the length, so the speed-up falls again at some length."""
    slow = Prediction(SIZES, DECODE_COSTS, {**ENCODE_COSTS, "attended": 2e-6})
    pays = [n for n in range(1, 2049) if slow.speed_up(Shape(8, n, 64, 0.5))["both"] >= PAYS]
    assert pays[0] > 1
    assert pays[-1] < 2048
    assert slow.pays_from(8, 64, 0.5, 2048)["both"] is None
    assert slow.pays_from(8, 64, 0.5, 2048)["decode"] is not None
    assert slow.pays_from(8, 64, 0.5, pays[-1])["both"] is not None


def test_the_published_prediction_matches_its_costs():
    stored = SpeedPrediction.read(ROOT / "docs" / "results" / "predict.json")
    prediction = Prediction(Sizes(**vars(stored.sizes)), stored.costs["decode"], stored.costs["encode"])
    for batch, found in stored.pays_from.items():
        shape = stored.target, stored.sparsity, stored.longest_source
        assert prediction.pays_from(int(batch), *shape) == found


def test_the_answer_leads_with_the_verdict():
    both = {batch: PREDICTION.speed_up(Shape(batch, 2048, 64, 0.7))["both"] for batch in (1, 8, 32)}
    least, most = min(both.values()), max(both.values())
    assert least > PAYS
    yes = answer(PREDICTION, 0.7, 64, 2048, source=2048)
    assert yes == f"Yes: a short memory would decode sources of 2048 tokens {least:.2f} to {most:.2f} x as fast."
    assert answer(PREDICTION, 0.7, 64, 2048, source=10).startswith(
        "No: a short memory would decode sources of 10 tokens"
    )
    one, many = (PREDICTION.pays_from(batch, 64, 0.5, 2048)["both"] for batch in (1, 32))
    anywhere = answer(PREDICTION, 0.5, 64, 2048)
    assert anywhere.startswith(f"Yes, for sources longer than {many} tokens at batch 32 or {one} at batch 1: ")
    assert " a short memory would decode 1.05 to " in anywhere
    assert answer(PREDICTION, 0.5, 64, 30).startswith("No: a short memory would save less than 5% at every length")
    slow = Prediction(SIZES, DECODE_COSTS, {**ENCODE_COSTS, "attended": 3e-6})
    assert answer(slow, 0.9, 64, 2048).startswith("Only at some lengths: up to ")
    both = {n: [PREDICTION.speed_up(Shape(batch, n, 64, 0.5))["both"] for batch in BATCHES] for n in range(1, 2049)}
    mixed = next(n for n, gains in both.items() if min(gains) < PAYS and max(gains) >= WORTHWHILE)
    assert answer(PREDICTION, 0.5, 64, 2048, source=mixed).startswith("It depends on the batch size: ")


def test_a_best_gain_below_a_tenth_is_not_a_yes():
    gains = {n: PREDICTION.speed_up(Shape(32, n, 64, 0.5))["both"] for n in range(1, 2049)}
    first = next(n for n, gain in gains.items() if gain >= PAYS)
    assert answer(PREDICTION, 0.5, 64, 2048, source=first).startswith(
        f"Hardly: a short memory would decode sources of {first}"
    )
    longest = next(n for n, gain in gains.items() if gain >= WORTHWHILE) - 1
    best = f"{gains[longest]:.2f} x as fast ({longest} tokens, batch 32)"
    assert answer(PREDICTION, 0.5, 64, longest) == f"Hardly: a short memory would decode at most {best}."
    assert answer(PREDICTION, 0.5, 64, longest + 1).startswith("Yes, ")


@pytest.mark.parametrize(("family", "gating"), [("marian", "zero"), ("t5", "mask"), ("bart", "mean")])
def test_memories_have_the_rows_that_are_predicted(family, gating):
    bench = Bench(sparsify(zoo.build(family), L0DropConfig(gating=gating)).eval(), beams=2)
    assert bench.sizes == Sizes(2, 32, 64, has_shared_row(gating))
    short, dense = (bench.encode(3, 40, 0.7, dense=dense) for dense in (False, True))
    assert set(short.rows.tolist()) == {bench.sizes.kept(40, 0.7)} == {12 + has_shared_row(gating)}
    assert dense.memory.states.shape[1] == 40
    assert set(bench.memory(3, 40).rows.tolist()) == {40}
    bench.decode(bench.memory(3, 40), 5)
    assert bench.engine.memory_bytes == 3 * 40 * 2 * 2 * 32 * 4


def test_unsupported_models_are_refused():
    with pytest.raises(ValueError, match="`model`: the layer-wise variant"):
        Bench(sparsify(zoo.build("marian"), L0DropConfig(gating="mask", layerwise=True)), beams=2)
    with pytest.raises(ValueError, match="`model`: L0DropLED.* decodes through generate"):
        Bench(sparsify(zoo.build("led")), beams=2)


@pytest.fixture(scope="module")
def model_folder(baseline, tmp_path_factory):
    return folders.sparse(baseline, tmp_path_factory.mktemp("sparse") / "model")


def test_the_command_predicts_and_checks(model_folder, tmp_path, monkeypatch, capsys):
    text, output = tmp_path / "text.txt", tmp_path / "predict.json"
    text.write_text("".join(f"{sentence}\n" for sentence in folders.SENTENCES), encoding="utf-8")
    arguments = ["--input", text, "--target", 6, "--beams", 2, "--rounds", 1, "--check", "--json", output]
    code, said = l0drop(monkeypatch, capsys, "bench", "predict", model_folder, *arguments)
    assert code == 0, said
    result = json.loads(output.read_text())
    assert {**as_json(SpeedPrediction.read(output)), "version": 1} == result
    assert said.index(result["answer"]) < said.index("Assumed: ") < said.index("Speed-up of the short over the dense")
    assert f"{result['sparsity']:.0%} of the encodings dropped, outputs of 6 tokens, beam 2" in said
    assert f"sources of {result['source']} tokens" in result["answer"], "the mean of the input"
    assert 0 < result["sparsity"] < 1
    assert result["input"]["path"] == str(text)
    assert result.keys() >= {"commit", "torch", "device", "threads", "notes", "costs", "points"}
    assert (result["costs"]["decode"].keys(), result["costs"]["encode"].keys()) == (DECODE.keys(), ENCODE.keys())
    sizes = Sizes(**result["sizes"])
    for point in result["points"]["decode"]:
        count = sizes.decode(point["batch"], point["rows"], point["target"])
        assert point["fitted"] == pytest.approx(total(result["costs"]["decode"], count))
        assert point["median"] == point["seconds"][0] > 0
    assert {row["batch"] for row in result["table"]} == {1, 8, 32}
    assert max(row["source"] for row in result["table"]) <= result["longest_source"]
    assert [row["shape"]["batch"] for row in result["check"]] == [8, 2, 24]
    for row in result["check"]:
        for phase in ("encode", "dense", "short"):
            assert row["error"][phase] == pytest.approx(row["predicted"][phase] / row["measured"][phase] - 1)


def test_a_model_without_a_gate_needs_a_sparsity(baseline, tmp_path, monkeypatch, capsys):
    output = tmp_path / "predict.json"
    arguments = ["--sparsity", 0.7, "--target", 4, "--beams", 1, "--rounds", 1, "--json", output]
    transformers.logging.enable_progress_bar()
    code, said = l0drop(monkeypatch, capsys, "bench", "predict", baseline, *arguments)
    assert code == 0, said
    assert "Loading weights" not in said
    result = json.loads(output.read_text())
    assert (result["sparsity"], result["check"], result["input"], result["source"]) == (0.7, [], None, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--sparsity 1", "sparsity: expected a share in [0, 1), got 1.0"),
        ("--input x", "input: needs a model to read it"),
        ("folder", "sparsity: missing; give the share to drop"),
        ("--source 5000", "source: 5000 is more than the 2048 tokens"),
        ("./nowhere --sparsity 0.5", "./nowhere: there is no such folder"),
        ("BASELINE --input x", "sparsity: missing, and BASELINE has no gate"),
        ("BASELINE --sparsity 0.5 --target 5000", "target: 5000 is more than the decoder's"),
    ],
)
def test_errors_name_the_argument(arguments, message, baseline, monkeypatch, capsys):
    given = arguments.replace("BASELINE", str(baseline)).split()
    code, said = l0drop(monkeypatch, capsys, "bench", "predict", *given)
    assert code == 2
    assert message.replace("BASELINE", str(baseline)) in said


def test_numbers_below_one_raise():
    with pytest.raises(ValueError, match="`beams`: expected at least 1, got 0"):
        Question(beams=0)
    with pytest.raises(ValueError, match="`target`: expected at least 1, got -1"):
        Question(target=-1)
