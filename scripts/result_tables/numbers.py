"""Single numbers in running text, by name: `<!-- number: NAME -->VALUE<!-- /number -->`."""

from l0drop.bench.cost_model import PAYS
from l0drop.runs.gpu_benchmark import GpuDecodeBenchmark, GpuTextBenchmark
from l0drop.runs.prediction import SpeedPrediction
from l0drop.runs.training_benchmark import TrainingSpeed
from result_tables import files
from result_tables.files import RESULTS, TOYS, read
from result_tables.labels import CONTINUED, SAME_WAY
from result_tables.speech import speech_numbers
from result_tables.speed import ratio
from result_tables.studies import PublishedStudy


def all_numbers() -> dict[str, str]:
    parts = of_the_paper(), of_quality(), of_speed(), of_gpu(), of_training(), of_toys(), speech_numbers()
    return {name: number for part in parts for name, number in part.items()}


def of_the_paper() -> dict[str, str]:
    paper = read("paper")
    low, high = (f"{100 * share:.0f}" for share in paper["comparable"]["sparsity"])
    return {
        "paper-dropped": f"{low} to {high}%",
        "paper-dropped-long": f"{paper['tasks']['WikiSum']['sparsity']:.1%}",
        "paper-speed-up-long": f"{paper['tasks']['WikiSum']['speed_up']}",
        "paper-scratch": f"{paper['scratch']['from_scratch']}",
        "paper-fine-tuned": f"{paper['scratch']['fine_tuned']}",
    }


def of_quality() -> dict[str, str]:
    multi30k, europarl, earlier = map(PublishedStudy.read, ("multi30k-translated", "europarl", "europarl-four-pairs"))
    rivals = {(row.run, row.beams): row.score.value for row in files.rivals("europarl-rivals").rows}
    dense, beam_2, sparse = (rivals[run] for run in (("on-s1", 4), ("on-s1", 2), ("zero-0.46-s1", 4)))
    return {
        "multi30k-dropped": f"{multi30k.dropped('zero-0.47'):.1%}",
        "multi30k-same-way": f"{multi30k.difference('zero-0.47', SAME_WAY):+.2f}",
        "multi30k-continued": f"{multi30k.difference('zero-0.47', CONTINUED):+.2f}",
        "multi30k-bound": f"{multi30k.against('zero-0.47').lower:+.2f}",
        "multi30k-distilling-gains": f"{multi30k.difference(SAME_WAY, CONTINUED):+.2f}",
        "repetition-dropped": f"{read('multi30k-repetition')['sparsity']:.1%}",
        "europarl-dropped": f"{europarl.dropped('zero-0.46'):.1%}",
        "europarl-same-way": f"{europarl.difference('zero-0.46', SAME_WAY):+.2f}",
        "europarl-continued": f"{europarl.difference('zero-0.46', CONTINUED):+.2f}",
        "europarl-bound": f"{europarl.against('zero-0.46').lower:+.2f}",
        "europarl-distilling-gains": f"{europarl.difference(SAME_WAY, CONTINUED):+.2f}",
        "europarl-earlier": f"{earlier.difference('zero-0.46', CONTINUED):+.2f}",
        "europarl-earlier-bound": f"{earlier.against('zero-0.46').lower:+.2f}",
        "beam-2-difference": f"{beam_2 - dense:+.2f}",
        "beam-4-sparse-difference": f"{sparse - dense:+.2f}",
    }


def of_speed() -> dict[str, str]:
    found = {}
    for shape in ("multi30k", "europarl", "mt", "cnndm", "wikisum"):
        own = shape in ("multi30k", "europarl")
        timed = files.decoding(f"decode-{shape}") if own else files.decoding_of_shape(shape)
        for name, prefix in (("engine", "speed"), ("engine-int8", "speed-int8")):
            found[f"{prefix}-{shape}"] = ratio(timed, "end_to_end", f"{name}-short", f"{name}-dense")
    systems = files.decoding("decode-ragged").systems
    for name, key in (("engine", "speed-one-document"), ("engine-int8", "speed-int8-one-document")):
        short, dense = (systems[f"{name}-{memory}"].latency_ms for memory in ("short", "dense"))
        assert short is not None
        assert dense is not None
        found[key] = f"{dense.cpu.p50 / short.cpu.p50:.2f}"
    one = files.decoding("decode-one-sentence")
    for name, key in (("engine", "speed-one-sentence"), ("engine-int8", "speed-int8-one-sentence")):
        found[key] = ratio(one, "end_to_end", f"{name}-short", f"{name}-dense")
    predicted = SpeedPrediction.read(RESULTS / "predict.json")
    (long,) = [cell for cell in predicted.table if (cell.batch, cell.source) == (32, 512)]
    pays_from = predicted.pays_from["32"]["both"]
    assert pays_from is not None
    pays = {
        "pays": f"{PAYS:g}×",
        "pays-from-32": f"{round(pays_from, -1)}",
        "predicted-512": f"{long.speed_up['both']:.2f}×",
    }
    int8 = files.evaluation("int8-evaluation").first
    bleu = int8.differences["bleu"]
    rounded = {
        "int8-bleu": f"{bleu.system:.2f}",
        "int8-bleu-float32": f"{bleu.baseline:.2f}",
        "int8-bleu-bounds": f"{bleu.lower:+.2f} and {bleu.upper:+.2f}",
        "int8-same": f"{int8.same_outputs}",
    }
    return found | pays | rounded


def of_gpu() -> dict[str, str]:
    result = GpuDecodeBenchmark.read(RESULTS / "decode-gpu.json")
    ratios = [ratio for shape in result.shapes.values() for ratio in shape.ratios]

    def times(phase: str, system: str, by: str) -> list[float]:
        return [r.times for r in ratios if (r.phase, r.system, r.by) == (phase, system, by)]

    dense = times("decode", "ct2-bfloat16", "engine-dense")
    whole = times("end_to_end", "ct2-bfloat16", "engine-short")
    alone = times("decode", "engine-dense", "engine-short")
    texts = [GpuTextBenchmark.read(RESULTS / f"decode-gpu-{name}.json") for name in ("europarl", "windows")]
    real = [r.times for text in texts for r in text.ratios if (r.system, r.by) == ("ct2-bfloat16", "engine-short")]
    assert texts[0].sparsity is not None
    return {
        "gpu-copy": f"{result.bytes_per_second / 1e12:.2f}",
        "gpu-dense-least": f"{min(dense):.1f}",
        "gpu-dense-most": f"{max(dense):.1f}",
        "gpu-whole-least": f"{min(whole):.1f}",
        "gpu-whole-most": f"{max(whole):.1f}",
        "gpu-short-most": f"{max(alone):.2f}",
        "gpu-text-dropped": f"{texts[0].sparsity:.0%}",
        "gpu-text-least": f"{min(real):.1f}",
        "gpu-text-most": f"{max(real):.1f}",
    }


def of_training() -> dict[str, str]:
    result = TrainingSpeed.read(RESULTS / "training-speed.json")
    return {
        "training-over-defaults": f"{result.times_theirs:.1f}",
        "training-over-cudnn-off": f"{result.times_theirs_with_cudnn_attention_off:.1f}",
        "training-gate-cost": f"{result.gate_overhead:.1%}",
        "training-curves-difference": f"{result.curves.difference:.4f}",
        "training-curves-noise": f"{result.curves.noise:.4f}",
    }


def of_toys() -> dict[str, str]:
    (run,) = files.evaluation("learned-against-random", TOYS).runs
    return {
        "toy-learned-over-random": f"{run.differences['bleu'].difference:.2f}",
        "toy-learned-over-random-bound": f"{run.differences['bleu'].lower:.2f}",
    }
