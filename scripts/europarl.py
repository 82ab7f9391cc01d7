"""The paper's claims on Europarl English-German: seeds, a sweep, rules, gates between layers, from scratch, rivals.

    python scripts/europarl.py --data data/europarl --runs runs/europarl --parallel 4 --set train.compile=true

The data folder holds train, valid and test as .en and .de (.gz and .xz are unpacked). Every model is an ordinary run of
`recipes/europarl-base.yaml` or `recipes/europarl-target50.yaml` under --runs, named SYSTEM-sSEED, so an interrupted
study resumes. Gated models are distilled from the continued baseline, as --distil says
(`l0drop/study/distillation.py`): token-level from the run of their seed, sequence-level from the first seed's outputs
on the training text, or both. --parts selects:

    seeds      baselines, continued baselines and `zero` at nearly half and at 0.3, with every seed; two continued
               baselines that are distilled the same way
    sweep      `zero` at five sparsities and `mask` at one, seed 1, in runs/europarl/sweep with analysis and figures
    rules      the paper's four rules, each next to a learned and a random gate at its rate
    layers     gates between the encoder's layers, `zero` and `mask`, with the share that each layer drops
    scratch    gates from the start, for the steps of a baseline and its fine-tuning
    curve      baselines on half of the text and with a vocabulary of 4,000
    tried      other ways to nearly half: distilled in another way or not at all; twice the steps, or a higher learning
               rate that falls to 0, each with a continued baseline trained in the same way
    rivals     dense and sparse at beam 1, 2 and 4, and the baseline with its decoder cut to one layer, fine-tuned and
               distilled like the sparse model: BLEU against CPU seconds of one thread

--systems selects single systems of these parts, by name without the seed, and the runs that they need (a rule brings
the gates at its rate). Rivals are then not timed, the sweep is not analysed, and results.json has these systems only.

--confirm trains other systems: variants that a screening has chosen (`multi30k.py --screen`), and the tuned reference,
each baseline with its own teacher's outputs. The test text is decoded once, when everything is chosen (`tuned.py`). A
baseline needs no other one, so they can be trained one by one:

    python scripts/europarl.py --data data/europarl --runs runs/confirmed --confirm fixed settled --seeds 1
    python scripts/europarl.py --data data/europarl --runs runs/confirmed --confirm fixed settled --seeds 1 \
        --first-seed 2 --reference on-taught-falling

`results.json` collects the runs, `analysis.json` the analyses, `rivals.json` the rivals. --gather collects the finished
runs and trains nothing, also while another process trains. --tables FILE prints the tables of a results.json and exits.
"""

import argparse
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch

from l0drop.bench.timing import interleaved
from l0drop.data.metrics import bleu
from l0drop.data.text import read_lines
from l0drop.data.whole import locked, whole_folder, write_whole
from l0drop.decoding.text import load
from l0drop.recipe import Recipe
from l0drop.report.figures import draw_all, quality_and_time
from l0drop.runs.analysis import Analysis, SweepAnalysis
from l0drop.runs.json_file import as_json, write_json
from l0drop.runs.provenance import provenance
from l0drop.runs.run import RunFolder, RunMetrics
from l0drop.runs.study import Rival, Rivals, StudyResults
from l0drop.runs.sweep import SweepFolder
from l0drop.runs.table import Table
from l0drop.study.analysis.parts import analyze, analyze_sweep, typical_point
from l0drop.study.analysis.subject import Reading, opened
from l0drop.study.distillation import WAYS, folder_name
from l0drop.study.seeds import Then
from l0drop.study.study import BASE, Options, Study, SystemRecipe, at_target, continued
from l0drop.study.sweep import RULES, UNGATED, rule_point, target_point, write_summary
from l0drop.training.assemble import load_dense
from result_tables.labels import label
from result_tables.quality import rules_table, seeds_table, single_table
from study_command import carry_out, options_of, parser_of
from tuned import Confirming, add_confirming, confirming_of, tuned_tables

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
HALF = 0.46
"""Nearly half: runs end up to 1.7 points above their target."""
ZERO, MASK = (0.3, 0.4, HALF, 0.6, 0.7), (HALF,)
SEEDED = (HALF, 0.3)
"""Targets trained with every seed: nearly half, and one at which little should be lost."""
CONFIRMED = (HALF, 0.7)
"""Targets of confirming runs."""
LAYERED = ("zero", "mask")
"""Gatings of models with gates between layers."""
RIVALS = ("on", f"zero-{HALF:g}", "cut")
BEAMS = (1, 2, 4)
GENERATION: dict[str, Any] = {"length_penalty": 0.6, "max_new_tokens": 128}
RIVALS_FILE = "rivals.json"
DISTILLED_DENSE = 2
"""Seeds of the continued baseline distilled the same way: it shows how much of a gain is due to distillation."""
CUT = Path("cut", "base-s1")
"""The folder of the baseline with a decoder of one layer."""


class Europarl(Study):
    """analyzed: the number of test sentences to analyse. timed: the number of sentences to time rivals on."""

    what = "Europarl English-German sentences, cased BLEU"
    base_recipe, sparse_recipe = RECIPES / "europarl-base.yaml", RECIPES / "europarl-target50.yaml"
    endings = ("en", "de")
    margin = 0.5
    parts = ("seeds", "sweep", "rules", "layers", "scratch", "curve", "tried", "rivals")
    fine_tuning = (f"l0drop.target_sparsity={HALF}",)
    compared: ClassVar[Mapping[str, str]] = {
        **{f"{how}{rule}": f"learned-as-{rule}" for rule in RULES for how in ("", "random-as-")},
        **{f"layers-{gating}": f"zero-{HALF:g}" for gating in LAYERED},
    }
    """Systems that are also compared with a learned gate of about the same sparsity."""
    decoders = 3
    """Each takes up to 24 GiB of a GPU."""

    def __init__(self, options: Options, analyzed: int = 1000, timed: int = 128) -> None:
        super().__init__(options if "seeds" in options.parts else replace(options, seeds=1))
        self.reading, self.timed = Reading(sentences=analyzed), timed

    def systems(self) -> list[SystemRecipe]:
        parts = self.options.parts
        targets = SEEDED if "seeds" in parts else SEEDED[:1]
        systems = [SystemRecipe(f"zero-{HALF:g}")]
        if "seeds" in parts and self.options.distil != "no":
            systems.append(SystemRecipe("on-taught", UNGATED, seeds=DISTILLED_DENSE))
        systems += [at_target(f"zero-{target:g}", target) for target in targets[1:]]
        if "rules" in parts:
            systems += [SystemRecipe(rule, rule_point(rule).overrides, seeds=1) for rule in RULES]
        if "rivals" in parts:
            start = f"model.init={self.runs / CUT}"
            systems.append(SystemRecipe("cut", (start, *UNGATED), seeds=1, needs=(self.run_of(BASE).name,)))
        if "sweep" in parts:
            points = [("zero", target) for target in ZERO if target not in targets] + [("mask", t) for t in MASK]
            for gating, target in points:
                systems.append(at_target(f"{gating}-{target:g}", target, f"l0drop.gating={gating}", seeds=1))
        if "layers" in parts:
            for gating in LAYERED:
                between = (f"l0drop.gating={gating}", "l0drop.layerwise=true")
                systems.append(SystemRecipe(f"layers-{gating}", between, seeds=1))
        if "tried" in parts:
            systems += self.other_ways()
        if "scratch" in parts:
            systems.append(self.from_scratch())
        if "curve" in parts:
            vocabulary = ("tokenizer.vocab_size=4000",)
            systems.append(SystemRecipe("small-vocabulary", vocabulary, seeds=1, from_scratch=True))
            systems.append(SystemRecipe("half", self.half(), seeds=1, from_scratch=True))
        return systems

    def other_ways(self) -> list[SystemRecipe]:
        """Other ways to the same sparsity. Longer and faster training has its own continued baseline."""
        others = [way for way in WAYS if way != self.options.distil]
        systems = [SystemRecipe(f"zero-{folder_name(way)}", seeds=1, distil=way) for way in others]
        falling = ("train.learning_rate=8e-4", "train.schedule=linear")
        longer = (f"train.steps={2 * self.recipe(continued('on')).train.steps}",)
        for name, values in (("falling", falling), ("long", longer)):
            systems.append(continued(f"on-{name}", *values, seeds=1))
            systems.append(SystemRecipe(f"zero-{name}", values, seeds=1))
        return systems

    def from_scratch(self) -> SystemRecipe:
        """Gates from the start, for the steps of a baseline and its fine-tuning."""
        both = SystemRecipe(BASE, from_scratch=True), continued("on")
        steps = sum(self.recipe(system).train.steps for system in both)
        dropping = (f"l0drop={{target_sparsity: {HALF}, start: 1.0}}", "train.steer_every=50", f"train.steps={steps}")
        return SystemRecipe("scratch", dropping, seeds=1, from_scratch=True)

    def half(self) -> tuple[str, ...]:
        """Overrides to train on the first half of the text, written to separate files. Its documents are unordered."""
        values = []
        for side, ending in zip(("source", "target"), self.endings, strict=True):
            lines = list(read_lines(self.given(f"data.train.{side}")))
            file = self.runs / f"half.{ending}"
            if not file.exists():
                write_whole(file, "".join(f"{line}\n" for line in lines[: len(lines) // 2]))
            values.append(f"data.train.{side}={file}")
        return tuple(values)

    def follow_ups(self) -> dict[str, Callable[[], list[SystemRecipe]]]:
        return {self.run_of(rule).name: partial(self.at_the_rate_of, rule) for rule in RULES}

    def at_the_rate_of(self, rule: str) -> list[SystemRecipe]:
        """A learned and a random gate at the rate of a rule on the validation text."""
        scored = RunMetrics.read(RunFolder(self.run_of(rule)).metrics).valid
        assert scored is not None
        assert scored.sparsity is not None
        rate = round(scored.sparsity, 3)
        chance = SystemRecipe(f"random-as-{rule}", rule_point(f"random:{rate}").overrides, seeds=1)
        return [at_target(f"learned-as-{rule}", rate, seeds=1), chance]

    def background(self) -> Then:
        tasks: dict[tuple[str, ...], Callable[[], None]] = {}
        if self.trains("cut"):
            tasks[self.run_of(BASE).name,] = self.cut
        if "rivals" in self.options.parts and not self.options.systems:
            tasks[tuple(self.run_of(name).name for name in RIVALS)] = self.score_rivals
        for name in (f"layers-{gating}" for gating in LAYERED):
            if self.trains(name):
                tasks[self.run_of("on").name, self.run_of(name).name] = partial(self.analyze_layers, name)
        return tasks

    def train(self, recipes: Sequence[Recipe]) -> None:
        """Train; then time the rivals and analyse the sweep, if no single systems are selected."""
        super().train(recipes)
        if "rivals" in self.options.parts and not self.options.systems:
            self.time_rivals()
        if "sweep" in self.options.parts and not self.options.systems:
            self.analyze()

    def gather(self) -> StudyResults:
        found = super().gather()
        self.gather_analyses()
        return found

    @staticmethod
    def tables(found: StudyResults) -> list[Table]:
        """Systems of several seeds, systems of one seed, and rules next to gates at their rates; or confirming runs."""
        if tuned := tuned_tables(found):
            return tuned
        tables = [single_table(found)]
        if any(system.against_on is not None for system in found.systems.values()):
            tables.insert(0, seeds_table(found))
        if any(rule in found.systems for rule in RULES):
            tables.append(rules_table(found))
        return tables

    def cut(self) -> None:
        """Write the baseline with only the first layer of its decoder, as a folder to start from."""
        folder, base = self.runs / CUT, self.run_of("base")
        if folder.exists():
            return
        model = load_dense(str(base))
        model.get_decoder().layers = model.get_decoder().layers[:1]
        model.config.decoder_layers = 1
        with locked(folder), whole_folder(folder) as unfinished:
            model.save_pretrained(unfinished / "model")
            for name in ("tokenizer", "tokenizer_target"):
                if (base / name).exists():  # the second only with separate vocabularies
                    shutil.copytree(base / name, unfinished / name)

    def score_rivals(self) -> None:
        """Score the rivals on all test text."""
        sources, truth = self.test_text("source"), self.test_text("target")
        rows = []
        for name in RIVALS:
            model = load(self.run_of(name))
            for beams in BEAMS:
                texts = [result.text for result in model.generate(sources, num_beams=beams, **GENERATION)]
                rows.append(Rival(label(name), f"{name}-s1", beams, bleu(texts, truth)))
        Rivals(self.what, rows).write(self.runs / RIVALS_FILE)

    def time_rivals(self) -> None:
        """Add CPU times of one thread on the first test sentences to the scores of the rivals."""
        file = self.runs / RIVALS_FILE
        found = Rivals.read(file)
        torch.set_num_threads(1)
        models = {row.run: load(self.runs / row.run, "cpu") for row in found.rows}
        few = self.test_text("source")[: self.timed]
        calls = [partial(models[row.run].generate, few, num_beams=row.beams, **GENERATION) for row in found.rows]
        timings = interleaved({str(index): call for index, call in enumerate(calls)}, rounds=3)
        rows = [
            replace(row, cpu_seconds=timings[str(index)].cpu, sentences=len(few))
            for index, row in enumerate(found.rows)
        ]
        found = replace(found, rows=rows, made_by=provenance())
        found.write(file)
        write_whole(file.with_suffix(".svg"), quality_and_time(found, "rivals").svg)

    def test_text(self, side: str) -> list[str]:
        return [line for line in read_lines(self.given(f"data.test.{side}")) if line.strip()]

    def analyze(self) -> None:
        """Analyse the finished part of the sweep, in a folder that `l0drop report` reads, and draw its figures."""
        folder = self.runs / "sweep"
        points = [target_point(target) for target in ZERO if RunFolder(self.runs / f"zero-{target:g}-s1").is_finished]
        reference = SweepFolder(folder).continued.path
        for name, run in {reference.name: "on-s1", **{p.name: f"zero-{p.value:g}-s1" for p in points}}.items():
            link = folder / name
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(Path("..", run), target_is_directory=True)
        write_summary(folder, self.recipe(SystemRecipe("sweep")), points)
        swept = analyze_sweep(folder, self.reading, baseline=str(reference))
        swept.write(SweepFolder(folder).analysis)
        point = folder / typical_point(swept)
        with opened(str(point), self.reading, baseline=str(reference)) as subject:
            analyze(subject).write(RunFolder(point).analysis)
        draw_all(folder)
        draw_all(point)

    def analyze_layers(self, system: str) -> None:
        """Analyse the share that gates drop, layer by layer."""
        folder = self.run_of(system)
        with opened(str(folder), self.reading, baseline=str(self.run_of("on"))) as subject:
            analyze(subject, ["gates", "groups"]).write(RunFolder(folder).analysis)

    def gather_analyses(self) -> None:
        """Collect all finished analyses in one file, without sentences of the text."""
        sweep = SweepFolder(self.runs / "sweep")
        found: dict[str, Analysis | SweepAnalysis] = {}
        if sweep.analysis.exists():
            swept = found["sweep"] = SweepAnalysis.read(sweep.analysis)
            if (point := sweep.run(typical_point(swept)).analysis).exists():
                found["point"] = replace(Analysis.read(point), maps=None)
        for name in (f"layers-{gating}" for gating in LAYERED):
            if (file := RunFolder(self.run_of(name)).analysis).exists():
                found[name] = Analysis.read(file)
        if found:
            write_json(RunFolder(self.runs).analysis, {"what": self.what, **as_json(found)})


class Confirmed(Confirming):
    """The variants that a screening chose, against the tuned reference."""

    what = Europarl.what
    base_recipe, sparse_recipe = Europarl.base_recipe, Europarl.sparse_recipe
    endings, margin, decoders = Europarl.endings, Europarl.margin, Europarl.decoders
    by_document = True


def main() -> None:
    parser = parser_of(Europarl, __doc__, Path("runs/europarl"))
    parser.add_argument("--analyzed", type=int, default=1000, help="number of test sentences to analyse")
    parser.add_argument("--timed", type=int, default=128, help="number of sentences to time rivals on")
    add_confirming(parser, CONFIRMED)

    def study(arguments: argparse.Namespace) -> Study:
        if arguments.confirm:
            return confirming_of(Confirmed, arguments, parser)
        return Europarl(options_of(arguments), arguments.analyzed, arguments.timed)

    carry_out(Europarl, parser, study)


if __name__ == "__main__":
    main()
