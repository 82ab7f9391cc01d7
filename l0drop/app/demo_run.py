"""The demo: a baseline, the baseline trained on, and a sparse model, on a corpus of our own grammar, in minutes.

runs/demo/  baseline/  trained-on/  sparse/  metrics.json  sentences.svg  report.html  report.md
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from l0drop.bench.timing import interleaved, ratio
from l0drop.core.groups import group_of
from l0drop.data.batches import collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.metrics import Score
from l0drop.data.sources import ToyText
from l0drop.data.toy import ToyPair
from l0drop.data.whole import write_whole
from l0drop.decoding.corpus import decode_corpus, encoder_inputs, length_batches
from l0drop.recipe import Evaluate, Recipe, ToyCorpus, parse_recipe
from l0drop.report import write_report
from l0drop.report.figures import draw_all
from l0drop.report.picture import sentences_svg
from l0drop.runs.provenance import provenance
from l0drop.study.analysis.parts import RESULT, analyze
from l0drop.study.analysis.parts import write as write_analysis
from l0drop.study.analysis.subject import Reading, opened
from l0drop.study.evaluate import Judging, evaluate, read_test_text
from l0drop.study.evaluate import write as write_evaluation
from l0drop.study.parallel import train_in_parallel
from l0drop.study.sweep import is_finished
from l0drop.study.systems import System
from l0drop.training.run import open_run, prepare, train
from l0drop.training.settings import decoding, scored

CLASSES = ("content", "function", "punctuation", "rest", "later pieces of words", "end of sentence")
SYSTEMS = ("baseline", "trained-on", "sparse")


@dataclass(frozen=True)
class Word:
    """A source word, its class, and which of its pieces were dropped."""

    text: str
    kind: str
    pieces: tuple[tuple[str, bool], ...]
    space_before: bool

    @property
    def dropped(self) -> bool:
        """Nothing of the word is left."""
        return all(dropped for _, dropped in self.pieces)


@dataclass(frozen=True)
class Task:
    """What differs between the demo's two tasks: chosen so that a few minutes on two cores are enough."""

    name: str
    metric: str
    toy: dict[str, Any]
    pairs: tuple[int, int, int]
    longest: tuple[int, int]
    vocabulary: int
    layers: tuple[int, int]
    """Of encoder and decoder; where the source is long, encoder layers are what costs time."""
    steps: tuple[int, int]
    """Of the baseline, and of what follows it."""
    warmup: int
    batch_tokens: int
    target: float


TASKS = {
    "translation": Task(
        name="translation",
        metric="bleu",
        toy={"small": True},
        pairs=(40_000, 400, 400),
        longest=(48, 48),
        vocabulary=500,
        layers=(2, 1),
        steps=(1_500, 900),
        warmup=200,
        batch_tokens=1_500,
        target=0.42,
    ),
    "documents": Task(
        name="summarization",
        metric="rouge",
        toy={"reports": 2},
        pairs=(12_000, 200, 200),
        longest=(320, 64),
        vocabulary=1_500,
        layers=(1, 2),
        steps=(400, 300),
        warmup=100,
        batch_tokens=6_000,
        target=0.7,
    ),
}


def demo_recipes(task: str, gating: str, target: float, seed: int, folder: Path) -> dict[str, Recipe]:
    """The three experiments. The baseline is trained on without a gate for as long as the gate is trained: the fair
    comparison."""
    own = TASKS[task]
    splits = dict(zip(("train", "valid", "test"), own.pairs, strict=True))
    common: dict[str, Any] = {
        "task": own.name,
        "seed": seed,
        "about": "Made up by l0drop's own grammar.",
        "data": {
            **{name: {"toy": task, "seed": seed, **own.toy, "pairs": n, "split": name} for name, n in splits.items()},
            "max_source": own.longest[0],
            "max_target": own.longest[1],
        },
        "evaluate": {"metric": own.metric, "beams": 4, "sentences": 100},
    }
    sizes = {"d_model": 128, "heads": 4, "ffn": 256, "positions": 512}
    sizes |= {"encoder_layers": own.layers[0], "decoder_layers": own.layers[1]}
    dropouts = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    quiet = {"save_every": 10_000, "eval_every": 10_000, "log_every": 100, "batch_tokens": own.batch_tokens}
    start = {"steps": own.steps[0], "learning_rate": 4e-3, "warmup": own.warmup, **quiet}
    more = {"steps": own.steps[1], "learning_rate": 2e-3, "schedule": "linear", "warmup": 20, **quiet}
    more |= {"steer_every": own.steps[1] // 30, "steer_gain": 0.15}
    init = {"init": str(folder / "baseline")}
    gate = {"gating": gating, "target_sparsity": target, "start": 1.0}
    new = {"tokenizer": {"vocab_size": own.vocabulary}, "model": {"transformer": {**sizes, **dropouts}}, "train": start}
    return {
        "baseline": parse_recipe({"name": "baseline", **common, **new}, "demo"),
        "trained-on": parse_recipe({"name": "trained-on", **common, "model": init, "train": more}, "demo"),
        "sparse": parse_recipe({"name": "sparse", **common, "model": init, "l0drop": gate, "train": more}, "demo"),
    }


def run_demo(
    folder: Path, task: str, gating: str, target: float | None, seed: int, console: Console, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train the three models, decode, measure; returns what is written to metrics.json."""
    target = TASKS[task].target if target is None else target
    recipes = demo_recipes(task, gating, target, seed, folder)
    say("1/4  training a small baseline")
    train(recipes["baseline"], folder, console)
    say(
        f"2/4  fine-tuning it to a sparsity of {target:.0%} with gating {gating}; beside it, training on without a gate"
    )
    train_both([recipes["trained-on"], recipes["sparse"]], folder, console)
    results = {name: train(recipe, folder, Console(quiet=True)) for name, recipe in recipes.items()}
    say("3/4  decoding on the short and on the dense memory")
    recipe = recipes["sparse"]
    model = AutoModelForSeq2SeqLM.from_pretrained(folder / "sparse" / "model")
    _, tokenizers, corpora = prepare(recipe, folder, Console(quiet=True))
    corpus = corpora["test"]
    test = recipe.data.test
    assert isinstance(test, ToyCorpus)
    pairs = list(ToyText(test).pairs())
    texts: dict[str, list[str]] = {}

    def decode(name: str) -> None:
        with model.dial(dense=name == "dense"):
            texts[name] = decode_corpus(
                model, corpus, range(len(corpus)), tokenizers.target, pad_id=tokenizers.source.pad_token_id,
                **decoding(recipe),
            ).texts  # fmt: skip

    timings = interleaved({"short": lambda: decode("short"), "dense": lambda: decode("dense")}, rounds=3)
    words = split_words(model, corpus, tokenizers.source, pairs)
    dropped, seen = Counter[str](), Counter[str]()
    by_word: Counter[str] = Counter()
    by_word_seen: Counter[str] = Counter()
    for sentence in words:
        for word in sentence:
            for place, (_, is_dropped) in enumerate(word.pieces):
                kind = word.kind if place == 0 else "later pieces of words"
                seen[kind] += 1
                dropped[kind] += is_dropped
            by_word_seen[word.text] += 1
            by_word[word.text] += word.dropped
    frequent = [w for w, n in by_word_seen.most_common(60) if n >= 10]
    most = sorted(frequent, key=lambda w: (-by_word[w] / by_word_seen[w], -by_word_seen[w]))
    references = [pair.target for pair in pairs]
    training = recipe.data.train
    assert isinstance(training, ToyCorpus)
    metrics: dict[str, Any] = {
        "task": task,
        "gating": gating,
        "target_sparsity": target,
        "seed": seed,
        "systems": {name: result["test"] for name, result in results.items()},
        "sparsity": results["sparse"]["test"]["sparsity"],
        "difference_to_trained_on": results["sparse"]["test"]["score"]["value"]
        - results["trained-on"]["test"]["score"]["value"],
        "blind_score": blind(training, references, recipe.evaluate).as_json(),
        "dense_score": scored(texts["dense"], references, recipe.evaluate).as_json(),
        "outputs_equal_short_and_dense": sum(a == b for a, b in zip(texts["short"], texts["dense"], strict=True)),
        "decoding_cpu_seconds": {name: timing.cpu for name, timing in timings.items()},
        "dense_by_short_cpu": ratio(timings, "dense", "short"),
        "dropped_by_class": {k: dropped[k] / seen[k] for k in CLASSES if seen[k]},
        "most_dropped": {w: by_word[w] / by_word_seen[w] for w in most[:8]},
        "least_dropped": {w: by_word[w] / by_word_seen[w] for w in most[::-1][:8]},
        **provenance(),
    }
    shown = representative(words, metrics["sparsity"])
    metrics["sentences"] = [[asdict(word) for word in sentence[:60]] for sentence in shown]
    write_whole(folder / "sentences.svg", sentences_svg([drawn(sentence) for sentence in shown]))
    write_whole(folder / "metrics.json", json.dumps(metrics, indent=1, ensure_ascii=False) + "\n")
    say("4/4  looking at what was dropped, and writing the report")
    write_demo_report(folder, recipe)
    return metrics


def train_both(recipes: Sequence[Recipe], folder: Path, console: Console) -> None:
    """Two models this small gain little from a second thread each, and much from training at the same time."""
    if torch.get_num_threads() == 1:
        for recipe in recipes:
            train(recipe, folder, console)
        return
    for recipe in recipes:
        open_run(recipe, folder)
    todo = [recipe for recipe in recipes if not is_finished(folder, recipe.name)]
    for _ in train_in_parallel(todo, folder, 2, torch.get_num_threads() // 2, console, lambda name, seconds: None):
        pass


SHOWN = ("mass", "maps", "gates", "groups", "words", "places", "entropy")
"""The parts of the analysis that take seconds."""


def write_demo_report(folder: Path, recipe: Recipe) -> None:
    """Compare sparse and trained-on sentence by sentence, analyse the gates, and write report.html."""
    sparse = folder / "sparse"
    settings = {
        "num_beams": recipe.evaluate.beams,
        "length_penalty": recipe.evaluate.length_penalty,
        "max_new_tokens": recipe.evaluate.max_new_tokens or recipe.data.max_target,
    }
    judging = Judging(metric=recipe.evaluate.metric, margin=1.0)
    systems = [System(sparse)], [System(folder / "trained-on")]
    write_evaluation(sparse / "evaluation", *evaluate(*systems, read_test_text(sparse), judging, settings))
    with opened(str(sparse), Reading()) as subject:
        write_analysis(analyze(subject, SHOWN), sparse / RESULT)
    draw_all(sparse)
    write_report(folder)


def blind(training: ToyCorpus, references: list[str], evaluate: Evaluate, tried: int = 20) -> Score:
    """What can be had without reading: the same output for every input, the best of some training targets."""
    few = references[:50]
    candidates = [pair.target for pair in islice(ToyText(training).pairs(), tried)]
    best = max(candidates, key=lambda target: scored([target] * len(few), few, evaluate).value)
    return scored([best] * len(references), references, evaluate)


def representative(sentences: list[list[Word]], sparsity: float, count: int = 3) -> list[list[Word]]:
    """Of the first hundred sentences, those that dropped a share nearest to the corpus's; neither best nor worst."""

    def distance(sentence: list[Word]) -> float:
        pieces = [dropped for word in sentence for _, dropped in word.pieces]
        return abs(sum(pieces) / len(pieces) - sparsity)

    return sorted(sentences[:100], key=distance)[:count]


def drawn(sentence: list[Word]) -> list[tuple[str, bool, bool]]:
    """A sentence as pieces for the picture."""
    return [
        (piece, dropped, word.space_before and place == 0)
        for word in sentence
        for place, (piece, dropped) in enumerate(word.pieces)
    ]


@torch.no_grad()
def split_words(model: Any, corpus: TokenizedCorpus, tokenizer: Any, pairs: list[ToyPair]) -> list[list[Word]]:
    """Every source word with its class and whether it was dropped, EOS at the end."""
    kept: dict[int, np.ndarray] = {}
    for rows in length_batches(corpus.source_lengths, 8_000):
        batch = collate([corpus[int(i)] for i in rows], tokenizer.pad_token_id)
        gates = model.get_encoder()(**encoder_inputs(batch, model.device, True)).gates.values
        for row, values in zip(rows, gates, strict=True):
            kept[int(row)] = (values != 0).numpy()
    sentences = []
    for number, pair in enumerate(pairs):
        offsets = tokenizer(pair.source, return_offsets_mapping=True)["offset_mapping"]
        flags = kept[number][: len(offsets)]
        words, position = [], 0
        for text, tag in zip(pair.words, pair.tags, strict=True):
            start = pair.source.index(text, position)
            end = start + len(text)
            pieces, shown = list[tuple[str, bool]](), start
            for (a, b), kept_ in zip(offsets, flags, strict=False):
                if a < end and b > start and b > a:
                    # a piece for the space before a word has its first letter's place, which the next piece has too
                    pieces.append((pair.source[max(a, shown) : min(b, end)], not bool(kept_)))
                    shown = max(shown, min(b, end))
            if pieces:  # words beyond the length limit are not there
                words.append(Word(text, group_of(tag), tuple(pieces), start > position))
            position = end
        length = int(corpus.source_lengths[number])
        words.append(Word("</s>", "end of sentence", (("</s>", not bool(kept[number][length - 1])),), True))
        sentences.append(words)
    return sentences
