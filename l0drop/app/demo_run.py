"""The demo: on each of two toy tasks a dense model, the same model continued, and a sparse one, in minutes.

runs/demo/
  metrics.json  report.html
  documents/    baseline/  continued/  sparse/  metrics.json  sentences.svg  report.html  report.md
  translation/  the same
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from transformers import AutoModelForSeq2SeqLM

from l0drop.bench.timing import interleaved, ratio
from l0drop.core.groups import group_of
from l0drop.data.batches import collate
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.metrics import Score, scorer_of
from l0drop.data.sources import ToyText
from l0drop.data.toy import ToyPair
from l0drop.data.whole import write_whole
from l0drop.decoding.corpus import decode_corpus, encoder_inputs, length_batches
from l0drop.decoding.folder import generation_of
from l0drop.recipe import Evaluate, Recipe, RecipeError, ToyCorpus, parse_recipe
from l0drop.report import write_report
from l0drop.report.figures import draw_all
from l0drop.report.picture import PicturedSentence, sentences_svg
from l0drop.runs.demo import DemoSentence, DemoTask, Word
from l0drop.runs.evaluation import Judging
from l0drop.runs.provenance import provenance
from l0drop.runs.run import RunFolder, RunMetrics
from l0drop.study.analysis.parts import analyze
from l0drop.study.analysis.subject import Reading, opened
from l0drop.study.evaluate import evaluate
from l0drop.study.evaluation_text import read_test_text
from l0drop.study.parallel import train_in_parallel
from l0drop.study.systems import System
from l0drop.training.run import open_run, prepare, train

CLASSES = ("content", "function", "punctuation", "rest", "later pieces of words", "end of sentence")
ANALYSED = ("mass", "maps", "gates", "groups", "words", "places", "entropy")
"""The parts of the analysis that take seconds."""
ROUNDS = 3
SHOWN_WORDS = 60
"""Of a long source in the picture."""


@dataclass(frozen=True)
class Task:
    """The settings in which the tasks differ, chosen so that both take less than 5 minutes on two cores."""

    name: str
    """As recipes call it."""
    about: str
    minutes: float
    """On two cores."""
    metric: str
    languages: tuple[str, str]
    """Of source and target."""
    train: dict[str, Any]
    """The toy corpus to train on."""
    test: dict[str, Any]
    """The toy corpus to validate and test on."""
    longest: tuple[int, int]
    """Tokens of a source and of a target."""
    vocabulary: int
    layers: tuple[int, int]
    """Of encoder and decoder. On long sources the encoder's layers take most of the time."""
    steps: tuple[int, int]
    """To train the baseline, and to fine-tune it."""
    warmup: int
    batch_tokens: int
    target: float
    """Target sparsity."""


TASKS = {
    "documents": Task(
        name="summarization",
        about="summarize eight news reports of one event, about 650 tokens",
        minutes=2.5,
        metric="rouge",
        languages=("en", "en"),
        train={"pairs": 10_000, "reports": 8, "min_reports": 1},
        test={"pairs": 160, "reports": 8},
        longest=(940, 64),
        vocabulary=1_500,
        layers=(1, 2),
        steps=(450, 260),
        warmup=100,
        batch_tokens=6_000,
        target=0.7,
    ),
    "translation": Task(
        name="translation",
        about="translate English sentences of about 15 tokens to German",
        minutes=1.9,
        metric="bleu",
        languages=("en", "de"),
        train={"pairs": 40_000, "small": True},
        test={"pairs": 300, "small": True},
        longest=(48, 48),
        vocabulary=500,
        layers=(2, 1),
        steps=(800, 850),
        warmup=150,
        batch_tokens=1_500,
        target=0.4,
    ),
}


@dataclass(frozen=True)
class DemoSettings:
    """Of one demo run. target: the target sparsity; None is the task's."""

    gating: str = "zero"
    target: float | None = None
    seed: int = 1

    def of(self, task: str) -> dict[str, Any]:
        target = TASKS[task].target if self.target is None else self.target
        return {"task": task, "gating": self.gating, "target_sparsity": target, "seed": self.seed}


def demo_recipes(task: str, settings: DemoSettings, folder: Path) -> dict[str, Recipe]:
    """The three experiments of a task. `continued` trains for the same number of steps as `sparse`, without gates."""
    own, seed = TASKS[task], settings.seed
    corpora = {"train": own.train, "valid": {**own.test, "pairs": own.test["pairs"] // 2}, "test": own.test}
    common: dict[str, Any] = {
        "task": own.name,
        "seed": seed,
        "about": f"The demo's {task} task: text made by l0drop's own grammar.",
        "data": {
            **{split: {"toy": task, "seed": seed, "split": split, **corpus} for split, corpus in corpora.items()},
            "max_source": own.longest[0],
            "max_target": own.longest[1],
        },
        "evaluate": {"metric": own.metric, "beams": 4, "sentences": 100},
    }
    sizes = {"d_model": 128, "heads": 4, "ffn": 256, "positions": 1024}
    sizes |= {"encoder_layers": own.layers[0], "decoder_layers": own.layers[1]}
    dropouts = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    quiet = {"save_every": 10_000, "eval_every": 10_000, "batch_tokens": own.batch_tokens}
    start = {"steps": own.steps[0], "learning_rate": 4e-3, "warmup": own.warmup, "log_every": 100, **quiet}
    more = {"steps": own.steps[1], "learning_rate": 2e-3, "schedule": "linear", "warmup": 20, "log_every": 10, **quiet}
    more |= {"steer_every": max(1, own.steps[1] // 30), "steer_gain": 0.15}
    init = {"init": str(folder / "baseline")}
    gate = {"gating": settings.gating, "target_sparsity": settings.of(task)["target_sparsity"], "start": 1.0}
    new = {"tokenizer": {"vocab_size": own.vocabulary}, "model": {"transformer": {**sizes, **dropouts}}, "train": start}
    return {
        "baseline": parse_recipe({"name": "baseline", **common, **new}, "demo"),
        "continued": parse_recipe({"name": "continued", **common, "model": init, "train": more}, "demo"),
        "sparse": parse_recipe({"name": "sparse", **common, "model": init, "l0drop": gate, "train": more}, "demo"),
    }


def run_task(folder: Path, task: str, settings: DemoSettings, console: Console) -> DemoTask:
    """Train the three models, decode, measure and report; returns the results.

    Finished runs are not repeated, and a task that was finished with the same settings is only read.
    """
    recipes = demo_recipes(task, settings, folder)
    for recipe in recipes.values():
        try:
            open_run(recipe, folder)
        except RecipeError as error:
            raise ValueError(
                f"{folder}: holds a demo with other settings; choose another --folder, or delete this one"
            ) from error
    if (metrics := finished_task(folder, settings.of(task))) is not None:
        console.print(f"{task}: finished before; delete {folder} to repeat it", markup=False)
        return metrics
    number = _Numbered(task, console)
    number.heading("train a small dense model")
    train(recipes["baseline"], folder, console)
    number.heading("fine-tune it with gates (sparse) and without (continued)")
    train_both([recipes["continued"], recipes["sparse"]], folder, console)
    results = {name: train(recipe, folder, Console(quiet=True)) for name, recipe in recipes.items()}
    number.heading("decode on the short and on the full memory")
    with waiting(f"decoding, {ROUNDS} rounds each", console):
        metrics = measured(folder, task, settings, recipes["sparse"], results)
    number.heading("analyse and report")
    with waiting("writing the report", console):
        metrics.write(RunFolder(folder).metrics)
        write_task_report(folder, task, recipes["sparse"])
    return metrics


def finished_task(folder: Path, settings: dict[str, Any]) -> DemoTask | None:
    """The results of a task that was finished with these settings."""
    if not RunFolder(folder).is_finished or not RunFolder(folder).report.exists():
        return None
    found = DemoTask.read(RunFolder(folder).metrics)
    return found if settings.items() <= vars(found).items() else None


class _Numbered:
    """Prints the headings of a task's phases."""

    def __init__(self, task: str, console: Console, phases: int = 4) -> None:
        self.task, self.console, self.phases, self.phase = task, console, phases, 0

    def heading(self, text: str) -> None:
        self.phase += 1
        self.console.print(f"\n[bold]{self.task} {self.phase}/{self.phases}[/]  {text}", highlight=False)


@contextmanager
def waiting(text: str, console: Console) -> Iterator[None]:
    """A line with the elapsed time, while the block runs."""
    columns = (TextColumn("{task.description}"), SpinnerColumn(finished_text=" "), TimeElapsedColumn())
    with Progress(*columns, console=console) as line:
        added = line.add_task(text, total=1)
        yield
        line.update(added, completed=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that CPU time does not include waiting threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def train_both(recipes: Sequence[Recipe], folder: Path, console: Console) -> None:
    """Train two models at the same time: models this small gain little from a second thread each."""
    threads = torch.get_num_threads()
    todo = [recipe for recipe in recipes if not RunFolder(folder / recipe.name).is_finished]
    for _ in train_in_parallel(
        todo, folder, min(2, threads), max(1, threads // 2), console, lambda name, seconds: None
    ):
        pass


def measured(
    folder: Path, task: str, settings: DemoSettings, recipe: Recipe, results: dict[str, RunMetrics]
) -> DemoTask:
    """Decode the test set with the sparse model on either memory, and count which words it dropped."""
    model = AutoModelForSeq2SeqLM.from_pretrained(RunFolder(folder / "sparse").model)
    _, tokenizers, corpora = prepare(recipe, folder, Console(quiet=True))
    corpus, training, test = corpora["test"], recipe.data.train, recipe.data.test
    assert isinstance(corpus, TokenizedCorpus)
    assert isinstance(training, ToyCorpus)
    assert isinstance(test, ToyCorpus)
    pairs = list(ToyText(test).pairs())
    references = [pair.target for pair in pairs]
    texts: dict[str, list[str]] = {}

    def decode(memory: str, sentences: int = len(corpus)) -> None:
        with model.dial(dense=memory == "dense"):
            texts[memory] = decode_corpus(
                model, corpus, range(sentences), tokenizers.target, pad_id=tokenizers.source.pad_token_id,
                batch_tokens=recipe.evaluate.batch_tokens,
                generation=generation_of(recipe),
            ).texts  # fmt: skip

    with one_thread():
        timings = interleaved(
            {"short": lambda: decode("short"), "dense": lambda: decode("dense")},
            ROUNDS,
            warm_up=lambda: decode("short", min(20, len(corpus))),
        )
        made_by = provenance()
    words = split_words(model, corpus, tokenizers.source, pairs)
    systems = {name: found.test for name, found in results.items() if found.test is not None}
    sparsity = systems["sparse"].sparsity
    assert sparsity is not None
    shown, by_share = representative(words, sparsity), frequent_words(words)
    examples = [
        DemoSentence(
            source=words[line][:SHOWN_WORDS],
            words=len(words[line]),
            outputs={memory: texts[memory][line] for memory in ("dense", "short")},
            encodings={
                "dense": (size := int(corpus.source_lengths[line])),
                "short": size - dropped_pieces(words[line]),
            },
        )
        for line in shown
    ]
    write_whole(folder / "sentences.svg", sentences_svg([pictured(example) for example in examples]))
    return DemoTask(
        **settings.of(task),
        systems=systems,
        sparsity=sparsity,
        source_tokens=float(corpus.source_lengths.mean()),
        difference_to_continued=systems["sparse"].score.value - systems["continued"].score.value,
        blind_score=blind(training, references, recipe.evaluate),
        dense_score=scorer_of(recipe.evaluate)(texts["dense"], references),
        outputs_equal_short_and_dense=sum(a == b for a, b in zip(texts["short"], texts["dense"], strict=True)),
        decoding_cpu_seconds={name: timing.cpu for name, timing in timings.items()},
        dense_by_short_cpu=ratio(timings, "dense", "short"),
        dropped_by_class=dropped_by_class(words),
        most_dropped=dict(by_share[:8]),
        least_dropped=dict(by_share[::-1][:8]),
        sentences=examples,
        made_by=made_by,
    )


def dropped_by_class(sentences: list[list[Word]]) -> dict[str, float]:
    """Shares of dropped pieces."""
    pieces, closed = Counter[str](), Counter[str]()
    for word in (word for sentence in sentences for word in sentence):
        for index, (_, is_dropped) in enumerate(word.pieces):
            kind = word.kind if index == 0 else "later pieces of words"
            pieces[kind] += 1
            closed[kind] += is_dropped
    return {kind: closed[kind] / pieces[kind] for kind in CLASSES if pieces[kind]}


def frequent_words(sentences: list[list[Word]]) -> list[tuple[str, float]]:
    """Frequent words with the shares of their dropped occurrences, the most dropped first."""
    words, dropped = Counter[str](), Counter[str]()
    for word in (word for sentence in sentences for word in sentence):
        words[word.text] += 1
        dropped[word.text] += word.dropped
    frequent = [word for word, count in words.most_common(60) if count >= 10]
    most = sorted(frequent, key=lambda word: (-dropped[word] / words[word], -words[word]))
    return [(word, dropped[word] / words[word]) for word in most]


def write_task_report(folder: Path, task: str, recipe: Recipe) -> None:
    """Compare `sparse` with `continued` sentence by sentence, analyse the gates, and write the task's report."""
    sparse = folder / "sparse"
    judging = Judging(metric=recipe.evaluate.text_metric, languages=TASKS[task].languages)
    systems = [System(sparse)], [System(RunFolder(folder / "continued").outputs_on("test"))]
    evaluate(*systems, read_test_text(sparse), judging, generation_of(recipe)).write(RunFolder(sparse).evaluation)
    with opened(str(sparse), Reading()) as subject:
        analyze(subject, ANALYSED).write(RunFolder(sparse).analysis)
    draw_all(sparse)
    write_report(folder)


def blind(training: ToyCorpus, references: list[str], evaluate: Evaluate, tried: int = 20) -> Score:
    """The score of one output for every input: the best of some training targets. Reading the source must beat it."""
    few = references[:50]
    candidates = [pair.target for pair in islice(ToyText(training).pairs(), tried)]
    score = scorer_of(evaluate)
    best = max(candidates, key=lambda target: score([target] * len(few), few).value)
    return score([best] * len(references), references)


def representative(sentences: list[list[Word]], sparsity: float, count: int = 3) -> list[int]:
    """The indices of those of the first hundred sentences whose sparsity is closest to the corpus's."""

    def distance(index: int) -> float:
        pieces = sum(len(word.pieces) for word in sentences[index])
        return abs(dropped_pieces(sentences[index]) / pieces - sparsity)

    return sorted(range(min(100, len(sentences))), key=distance)[:count]


def dropped_pieces(sentence: list[Word]) -> int:
    return sum(dropped for word in sentence for _, dropped in word.pieces)


def pictured(example: DemoSentence) -> PicturedSentence:
    """A sentence as the picture takes it."""
    pieces = [
        (piece, dropped, word.space_before and index == 0)
        for word in example.source
        for index, (piece, dropped) in enumerate(word.pieces)
    ]
    sizes = example.encodings
    labels = {
        "dense": f"dense memory, {sizes['dense']} encodings",
        "short": f"short memory, {sizes['short']} encodings",
    }
    first = "" if example.words <= SHOWN_WORDS else f"its first {SHOWN_WORDS} words, "
    outputs = {labels[memory]: example.outputs[memory] for memory in labels}
    return PicturedSentence(pieces, outputs, f"source, {first}dropped encodings struck out")


@torch.no_grad()
def split_words(model: Any, corpus: TokenizedCorpus, tokenizer: Any, pairs: list[ToyPair]) -> list[list[Word]]:
    """Every source word with its class and its dropped pieces; EOS at the end."""
    kept: dict[int, np.ndarray] = {}
    for indices in length_batches(corpus.source_lengths, 8_000):
        batch = collate([corpus[int(i)] for i in indices], tokenizer.pad_token_id)
        gates = model.get_encoder()(**encoder_inputs(batch, model.device, True)).gates.values
        for index, values in zip(indices, gates, strict=True):
            kept[int(index)] = (values != 0).numpy()
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
                    # the piece for the space before a word has the same offset as the word's first letter
                    pieces.append((pair.source[max(a, shown) : min(b, end)], not bool(kept_)))
                    shown = max(shown, min(b, end))
            if pieces:  # words beyond the length limit have none
                words.append(Word(text, group_of(tag), tuple(pieces), start > position))
            position = end
        length = int(corpus.source_lengths[number])
        words.append(Word("</s>", "end of sentence", (("</s>", not bool(kept[number][length - 1])),), True))
        sentences.append(words)
    return sentences
