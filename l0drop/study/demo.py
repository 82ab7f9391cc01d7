"""The demo: a baseline, the baseline trained on, and a sparse model, on a corpus of our own grammar, in minutes.

runs/demo/  baseline/  trained-on/  sparse/  metrics.json  sentences.svg
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from transformers import AutoModelForSeq2SeqLM

from l0drop.data.batches import collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.sources import ToyText
from l0drop.data.toy import ToyPair, word_class
from l0drop.data.whole import write_whole
from l0drop.decoding.corpus import decode_corpus, encoder_inputs, length_batches
from l0drop.provenance import provenance
from l0drop.recipe import Recipe, ToyCorpus, parse_recipe
from l0drop.study.benchmark import interleaved, ratio
from l0drop.study.picture import sentences_svg
from l0drop.training.run import prepare, train
from l0drop.training.trainer import decoding, scored

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


def demo_recipes(task: str, gating: str, target: float, seed: int, folder: Path) -> dict[str, Recipe]:
    """The three experiments. The baseline is trained on without a gate for as long as the gate is trained: the fair
    comparison."""
    documents = task == "documents"
    toy = {"toy": task, "seed": seed} | ({"reports": 2} if documents else {"small": True})
    common: dict[str, Any] = {
        "task": "summarization" if documents else "translation",
        "seed": seed,
        "about": "Made up by l0drop's own grammar.",
        "data": {
            "train": {**toy, "pairs": 12_000 if documents else 40_000, "split": "train"},
            "valid": {**toy, "pairs": 200, "split": "valid"},
            "test": {**toy, "pairs": 200 if documents else 400, "split": "test"},
            "max_source": 320 if documents else 48,
            "max_target": 64 if documents else 48,
        },
        "evaluate": {"metric": "rouge" if documents else "bleu", "beams": 4, "sentences": 100},
    }
    sizes = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 1, "heads": 4, "ffn": 256, "positions": 512}
    dropouts = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    long, short = (700, 500) if documents else (900, 1_000)
    tokens = 6_000 if documents else 1_500
    quiet = {"save_every": 10_000, "eval_every": 10_000, "log_every": 100, "batch_tokens": tokens}
    start = {"steps": long, "learning_rate": 4e-3, "warmup": 200, **quiet}
    more = {"steps": short, "learning_rate": 2e-3, "schedule": "linear", "warmup": 20, **quiet}
    init = {"init": str(folder / "baseline")}
    gate = {"gating": gating, "target_sparsity": target, "start": 1.0}
    new = {
        "tokenizer": {"vocab_size": 1_500 if documents else 500},
        "model": {"transformer": {**sizes, **dropouts}},
        "train": start,
    }
    return {
        "baseline": parse_recipe({"name": "baseline", **common, **new}, "demo"),
        "trained-on": parse_recipe({"name": "trained-on", **common, "model": init, "train": more}, "demo"),
        "sparse": parse_recipe({"name": "sparse", **common, "model": init, "l0drop": gate, "train": more}, "demo"),
    }


def run_demo(
    folder: Path, task: str, gating: str, target: float, seed: int, console: Console, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train the three models, decode, measure; returns what is written to metrics.json."""
    recipes = demo_recipes(task, gating, target, seed, folder)
    titles = {
        "baseline": "1/4  training a small baseline",
        "trained-on": "2/4  training it on without a gate, for the fair comparison",
        "sparse": f"3/4  fine-tuning it to a sparsity of {target:.0%} with gating {gating}",
    }
    results = {}
    for name, recipe in recipes.items():
        say(titles[name])
        results[name] = train(recipe, folder, console)
    say("4/4  decoding on the short and on the dense memory")
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

    timings = interleaved({"short": lambda: decode("short"), "dense": lambda: decode("dense")}, rounds=1)
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
    metrics: dict[str, Any] = {
        "task": task,
        "gating": gating,
        "target_sparsity": target,
        "seed": seed,
        "systems": {name: result["test"] for name, result in results.items()},
        "sparsity": results["sparse"]["test"]["sparsity"],
        "difference_to_trained_on": results["sparse"]["test"]["score"]["value"]
        - results["trained-on"]["test"]["score"]["value"],
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
    return metrics


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
            pieces = tuple(
                (pair.source[max(a, start) : min(b, end)], not bool(kept_))
                for (a, b), kept_ in zip(offsets, flags, strict=False)
                if a < end and b > start and b > a
            )
            if pieces:  # words beyond the length limit are not there
                words.append(Word(text, word_class(tag), pieces, start > position))
            position = end
        length = int(corpus.source_lengths[number])
        words.append(Word("</s>", "end of sentence", (("</s>", not bool(kept[number][length - 1])),), True))
        sentences.append(words)
    return sentences
