"""Train the English tagger of l0drop on a treebank, and measure its accuracy and speed.

    python scripts/train_tagger.py data/ewt/train.tagged.xz data/ewt/test.tagged.xz

A treebank file has one sentence per line, each word as word_TAG with Penn tags; plain, .gz or .xz. The weights in
packages/l0drop-tagger come from UD English-EWT (CC BY-SA 4.0): form and XPOS of each word in its train and test files.
"""

import argparse
import gzip
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from l0drop.core.groups import TAGS, group_of, label_number
from l0drop.data.tagger import FORMAT, OFFSETS, SCALE, PerceptronTagger, tag_features, word_features
from l0drop.data.text import read_lines

WEIGHTS = Path(__file__).resolve().parents[1] / "packages/l0drop-tagger/l0drop_tagger/ewt.json.gz"
Sentence = list[tuple[str, str]]


def read_treebank(path: Path) -> list[Sentence]:
    """Sentences as lists of word and tag; a ValueError names the line of a tag that is not a Penn tag."""
    sentences = []
    for number, line in enumerate(read_lines(path), 1):
        sentence = []
        for item in line.split():
            word, _, tag = item.rpartition("_")
            try:
                label_number(tag)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {item!r}: {error}") from error
            sentence.append((word, tag))
        if sentence:
            sentences.append(sentence)
    return sentences


class Trainer:
    """The averaged perceptron: after each error, features get more weight for the right tag, less for the chosen one.

    The result is the mean of the weights over all steps. `late` sums each change times the step of the change, so the
    mean is weights - late / steps.
    """

    def __init__(self, sentences: Sequence[Sentence], seed: int) -> None:
        self.tags = [tag for tag in TAGS if any(tag == t for sentence in sentences for _, t in sentence)]
        self.random = random.Random(seed)
        self.rows: dict[str, int] = {}
        names = (*self.tags, "-")
        self.after = [[[self._row(f) for f in tag_features(b, s)] for s in names] for b in names]
        self.examples = [self._example(sentence) for sentence in sentences]
        self.weights = np.zeros((len(self.rows), len(self.tags)), dtype=np.float64)
        self.late = np.zeros_like(self.weights)
        self.steps = 0

    def _row(self, feature: str) -> int:
        return self.rows.setdefault(feature, len(self.rows))

    def _example(self, sentence: Sentence) -> tuple[list[list[int]], list[int]]:
        words = [None, None, *(word for word, _ in sentence), None, None]
        features = [
            [self._row(feature) for offset in OFFSETS for feature in word_features(words[i + 2 + offset], offset)]
            for i in range(len(sentence))
        ]
        return features, [self.tags.index(tag) for _, tag in sentence]

    def epoch(self) -> float:
        """Train on every sentence once, in random order; return the share of correct tags."""
        right = 0
        for features, tags in self.random.sample(self.examples, len(self.examples)):
            before = second = len(self.tags)
            for rows, tag in zip(features, tags, strict=True):
                self.steps += 1
                active = rows + self.after[before][second]
                chosen = int(self.weights[active].sum(0).argmax())
                right += chosen == tag
                if chosen != tag:
                    distinct = list(set(active))  # two suffixes of a short word can be the same feature
                    self.weights[distinct, tag] += 1
                    self.weights[distinct, chosen] -= 1
                    self.late[distinct, tag] += self.steps
                    self.late[distinct, chosen] -= self.steps
                before, second = chosen, before
        return right / sum(len(tags) for _, tags in self.examples)

    def averaged(self, smallest: float) -> dict[str, list[int]]:
        """Features with weights of at least `smallest`, in the format of the file."""
        mean = self.weights - self.late / max(1, self.steps)
        whole = np.where(np.abs(mean) < smallest, 0, np.rint(mean * SCALE)).astype(int)
        return dict(self._stored(whole))

    def _stored(self, whole: np.ndarray) -> Iterator[tuple[str, list[int]]]:
        for feature, row in sorted(self.rows.items()):
            (used,) = whole[row].nonzero()
            if used.size:
                yield feature, [number for tag in used.tolist() for number in (tag, int(whole[row, tag]))]


def accuracy(tagger: PerceptronTagger, sentences: Sequence[Sentence]) -> dict[str, float]:
    """Shares of correct tags and correct groups, and words per second."""
    start = time.perf_counter()
    chosen = [tag for tags in tagger.tag([[word for word, _ in sentence] for sentence in sentences]) for tag in tags]
    seconds = time.perf_counter() - start
    truth = [tag for sentence in sentences for _, tag in sentence]
    pairs = list(zip(chosen, truth, strict=True))
    return {
        "accuracy": sum(a == b for a, b in pairs) / len(pairs),
        "accuracy of groups": sum(group_of(a) == group_of(b) for a, b in pairs) / len(pairs),
        "words per second": len(pairs) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument(
        "--treebank",
        default="UD English-EWT, CC BY-SA 4.0",
        help="its name and licence",
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--smallest", type=float, default=0.7, help="drop smaller weights")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    train, test = read_treebank(options.train), read_treebank(options.test)
    start = time.perf_counter()
    trainer = Trainer(train, options.seed)
    for epoch in range(options.epochs):
        print(f"epoch {epoch + 1}: {trainer.epoch():.2%} of the training tags correct")
    print(f"trained in {time.perf_counter() - start:.0f} s")
    weights = trainer.averaged(options.smallest)
    measured = accuracy(PerceptronTagger(trainer.tags, weights, "just trained"), test)
    stored = {
        "format": FORMAT,
        "treebank": options.treebank,
        "epochs": options.epochs,
        "seed": options.seed,
        "smallest": options.smallest,
        "accuracy on its test set": round(measured["accuracy"], 4),
        "tags": trainer.tags,
        "weights": weights,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(stored, ensure_ascii=False, separators=(",", ":"))
    partial = options.out.with_name(f".{options.out.name}.partial")
    partial.write_bytes(gzip.compress(text.encode(), mtime=0))
    partial.replace(options.out)
    print(f"{options.out}: {len(weights):,} features, {options.out.stat().st_size / 1e6:.2f} MB")
    print(f"on {options.test}: {measured['accuracy']:.2%} of the tags correct, ", end="")
    print(f"{measured['accuracy of groups']:.2%} of the groups, {measured['words per second']:,.0f} words per second")


if __name__ == "__main__":
    main()
