"""Trained document models with fewer beams: quality and time, next to what dropping brings.

    python scripts/document_beams.py --runs runs/documents --systems on-s1 zero-0.6-s1 --beams 4 2 1 --json beams.json

Decodes the test examples of `europarl_documents.py`, each length apart, with every number of beams; sparse models also
on the full gated memory, with the most beams. Systems take turns after a round that warms up, and time is wall time
from text to text, in the batches that `load(...).generate` makes. Differences are to the first system with the most
beams.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from document_text import Documents
from l0drop.bench.timing import Stopwatch, in_turns
from l0drop.data.metrics import bleu
from l0drop.data.text import read_lines
from l0drop.decoding.text import TextModel, load
from l0drop.models.attention_kernels import without_cudnn_attention
from l0drop.models.quiet import quiet_libraries
from l0drop.runs.provenance import provenance
from l0drop.runs.study import BeamScore, BeamScores
from l0drop.study.sentence_statistics import statistics
from l0drop.study.significance import compare
from result_tables.documents import beams_table
from study_command import in_text

MARGIN = 0.5


class Entry(NamedTuple):
    """A system with a number of beams."""

    system: str
    beams: int
    dense: bool

    @property
    def name(self) -> str:
        return f"{self.system}, beam {self.beams}{', dense' if self.dense else ''}"


def entries(models: dict[str, TextModel], beams: list[int]) -> list[Entry]:
    """Every system with every number of beams; the first one is the reference."""
    short = [Entry(system, count, False) for count in sorted(beams, reverse=True) for system in models]
    return short + [Entry(system, max(beams), True) for system, model in models.items() if model.is_gated]


@without_cudnn_attention()
def measure(
    runs: Path, systems: list[str], beams: list[int], device: str, dtype: str, rounds: int, console: Console
) -> BeamScores:
    text = Documents.read(runs / "text" / "documents.json")
    sources, references = (list(read_lines(runs / "text" / f"test.{ending}")) for ending in ("en", "de"))
    models = {system: load(runs / system, device=device, dtype=dtype) for system in systems}
    rows: list[BeamScore] = []
    for length, lines in text.lines("test").items():
        entered = {entry.name: entry for entry in entries(models, beams)}
        seconds: dict[str, list[float]] = {name: [] for name in entered}
        outputs: dict[str, list[str]] = {}
        tokens: dict[str, int] = {}
        for name, number in in_turns(dict.fromkeys(entered, rounds + 1)):
            entry = entered[name]
            with (watch := Stopwatch(device)):
                results = models[entry.system].generate(
                    sources[lines], num_beams=entry.beams, **({"dense": True} if entry.dense else {})
                )
            if number:  # the first round warms up
                seconds[name].append(watch.seconds.wall)
            outputs[name] = [result.text for result in results]
            tokens[name] = sum(result.output_tokens for result in results)
            console.print(f"{length} tokens, round {number}, {name}: {watch.seconds.wall:.2f} s", highlight=False)
        counted = {name: statistics("bleu", found, references[lines]) for name, found in outputs.items()}
        reference = next(iter(entered))
        for name, entry in entered.items():
            difference = None
            if name != reference:
                difference = compare(counted[name], counted[reference], MARGIN, unit="document")
            score = bleu(outputs[name], references[lines])
            rows.append(
                BeamScore(
                    entry.system, entry.beams, int(length), entry.dense, score, seconds[name], tokens[name], difference
                )
            )
    what = "Europarl English-German documents, test text, cased BLEU"
    return BeamScores(what, dtype, rows, provenance(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="the folder of the study")
    parser.add_argument("--systems", nargs="+", required=True, help="runs in it; the first one is the reference")
    parser.add_argument("--beams", nargs="+", type=int, default=[4, 2, 1])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    quiet_libraries()
    console = Console(stderr=True)
    found = measure(given.runs, given.systems, given.beams, given.device, given.dtype, given.rounds, console)
    found.write(given.json)
    console.print(in_text([beams_table(found)]), highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
