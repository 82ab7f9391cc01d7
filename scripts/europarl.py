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

`results.json` collects the runs, `analysis.json` the analyses, `rivals.json` the rivals. --gather collects the finished
runs and trains nothing, also while another process trains. --tables FILE prints the tables of a results.json and exits.
"""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from l0drop.bench.timing import interleaved
from l0drop.data.metrics import bleu
from l0drop.data.text import read_lines
from l0drop.data.whole import locked, whole_folder, write_whole
from l0drop.decoding.text import load
from l0drop.models.quiet import quiet_libraries
from l0drop.recipe import Recipe, TextCorpus, load_recipe
from l0drop.report.figures import draw_all, quality_and_time
from l0drop.runs.analysis import Analysis, SweepAnalysis
from l0drop.runs.json_file import as_json, write_json
from l0drop.runs.provenance import provenance
from l0drop.runs.run import RunFolder, RunMetrics
from l0drop.runs.study import Rival, Rivals, StudyResults
from l0drop.runs.sweep import SweepFolder
from l0drop.runs.table import in_markdown
from l0drop.study.analysis.parts import analyze, analyze_sweep, typical_point
from l0drop.study.analysis.subject import Reading, opened
from l0drop.study.distillation import NO_TEACHER, WAYS, Distillation, folder_name, way_named
from l0drop.study.seeds import builds_on, gather, text_in, train_all
from l0drop.study.sweep import RULES, UNGATED, rule_point, target_point, write_summary
from l0drop.training.assemble import load_dense
from result_tables.labels import label
from result_tables.quality import rules_table, seeds_table, single_table

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
PARTS = ("seeds", "sweep", "rules", "layers", "scratch", "curve", "tried", "rivals")
HALF = 0.46
"""Nearly half: runs end up to 1.7 points above their target."""
ZERO, MASK = (0.3, 0.4, HALF, 0.6, 0.7), (HALF,)
SEEDED = (HALF, 0.3)
"""Targets trained with every seed: nearly half, and one at which little should be lost."""
LAYERED = ("zero", "mask")
"""Gatings of models with gates between layers."""
RIVALS = ("on", f"zero-{HALF:g}", "cut")
BEAMS = (1, 2, 4)
GENERATION: dict[str, Any] = {"length_penalty": 0.6, "max_new_tokens": 128}
RIVALS_FILE = "rivals.json"
DISTILLED_DENSE = 2
"""Seeds of the continued baseline distilled the same way: it shows how much of a gain is due to distillation."""
TRANSLATORS = 3
"""Processes that translate while others train; each takes up to 24 GiB of a GPU."""
MARGIN = 0.5
"""The largest acceptable loss in BLEU."""
CUT = Path("cut", "base-s1")
"""The folder of the baseline with a decoder of one layer."""
WHAT = "Europarl English-German sentences, cased BLEU"
COMPARED = {f"{how}{rule}": f"learned-as-{rule}" for rule in RULES for how in ("", "random-as-")} | {
    f"layers-{gating}": f"zero-{HALF:g}" for gating in LAYERED
}
"""Systems that are also compared with a learned gate of about the same sparsity."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/europarl"))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--systems", nargs="*", help="systems of these parts, such as zero-0.46 (default: all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--baselines", type=int, help="number of independent baselines (default: one per seed)")
    parser.add_argument("--distil", type=way_named, choices=WAYS, default="both", help="how gated models are distilled")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads per run")
    parser.add_argument("--set", action="append", default=[], help="a.b=value, for every run")
    parser.add_argument("--baseline", action="append", default=[], help="a.b=value, for runs that start from scratch")
    parser.add_argument(
        "--fine-tune", action="append", default=[], help="a.b=value, for runs that start from a baseline"
    )
    parser.add_argument("--analyzed", type=int, default=1000, help="number of test sentences to analyse")
    parser.add_argument("--timed", type=int, default=128, help="number of sentences to time rivals on")
    parser.add_argument("--gather", action="store_true", help="train nothing, collect the finished runs")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="print the tables of a results.json")
    arguments = parser.parse_args()
    if arguments.tables is not None:
        print(tables(StudyResults.read(arguments.tables)))
        return
    if arguments.data is None:
        parser.error("--data: name the folder that holds the text")
    study = Study(arguments)
    parts = set(arguments.parts)
    if arguments.gather:
        study.plan(parts)
    else:
        study.train(parts)
        if "rivals" in parts and not study.systems:
            study.time_rivals(arguments.timed)
        if "sweep" in parts and not study.systems:
            study.analyze()
    study.gather()


def tables(found: StudyResults) -> str:
    """Markdown: systems of several seeds, systems of one seed, and rules next to gates at their rates, if present."""
    parts = [single_table(found)]
    if any(system.against_on is not None for system in found.systems.values()):
        parts.insert(0, seeds_table(found))
    if any(rule in found.systems for rule in RULES):
        parts.append(rules_table(found))
    return "\n\n".join(map(in_markdown, parts))


class Study:
    """The recipes of all runs in one folder."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.runs: Path = arguments.runs
        self.systems: list[str] = arguments.systems or []
        self.seeds = range(1, arguments.seeds + 1)
        self.parallel, self.threads = arguments.parallel, arguments.threads
        self.common = [*text_in(arguments.data, "en", "de"), *arguments.set]
        self.of_baselines, self.of_fine_tuned = arguments.baseline, arguments.fine_tune
        self.starts = min(arguments.baselines or arguments.seeds, arguments.seeds)
        self.distil: str = arguments.distil
        self.reading = Reading(sentences=arguments.analyzed)
        source, target = (Path(self.given(f"data.train.{side}")) for side in ("source", "target"))
        self.distillation = Distillation(source, target, self.runs)
        self.console = Console(stderr=True)
        self.recipes: dict[str, Recipe] = {}
        quiet_libraries()

    def train(self, parts: set[str]) -> None:
        """Train all of these parts; translate, score and analyse as soon as the runs for it are finished."""
        recipes = self.plan(parts)
        then: dict[tuple[str, ...], Callable[[], None]] = {}
        if not self.systems or any(self.reads_outputs(recipe) for recipe in recipes):
            then["on-s1",] = partial(self.translate, parts)
        if self.selects("cut", "rivals", parts):
            then["base-s1",] = self.cut
        if "rivals" in parts and not self.systems:
            then[tuple(f"{name}-s1" for name in RIVALS)] = self.score_rivals
        for gating in LAYERED:
            if self.selects(f"layers-{gating}", "layers", parts):
                then["on-s1", f"layers-{gating}-s1"] = partial(self.analyze_layers, gating)
        more = {
            f"{rule}-s1": partial(self.at_the_rate_of, rule) for rule in RULES if self.selects(rule, "rules", parts)
        }
        train_all(recipes, self.runs, self.parallel, self.threads, self.console, then, more)

    def selects(self, system: str, part: str, parts: set[str]) -> bool:
        """Whether this system of a part was selected."""
        return part in parts and (not self.systems or system in self.systems)

    def reads_outputs(self, recipe: Recipe) -> bool:
        """Whether a run trains on the teacher's outputs."""
        text = recipe.data.train
        made = (str(self.distillation.outputs), str(self.distillation.mixed[1]))
        return isinstance(text, TextCorpus) and text.target in made

    def plan(self, parts: set[str]) -> list[Recipe]:
        """All recipes that are known now. Gates at the rate of a rule are known once the rule is trained."""
        recipes = [*self.baselines(parts), *self.continued(parts), *self.fine_tuned(parts), *self.from_scratch(parts)]
        recipes = self.wanted(self.selected(recipes))
        for rule in RULES:
            if self.selects(rule, "rules", parts) and RunFolder(self.runs / f"{rule}-s1").is_finished:
                self.at_the_rate_of(rule)
        return recipes

    def selected(self, recipes: list[Recipe]) -> list[Recipe]:
        """The recipes of the selected systems and of the runs that they need."""
        if not self.systems:
            return recipes
        by_name = {recipe.name: recipe for recipe in recipes}
        of_system = {name: name.rpartition("-s")[0] for name in by_name}
        if unknown := sorted({*self.systems} - {*of_system.values()}):
            known = ", ".join(dict.fromkeys(of_system.values()))
            raise SystemExit(f"--systems: {', '.join(unknown)}: unknown in these parts, which have {known}")
        taken = [name for name, system in of_system.items() if system in self.systems]
        for name in taken:  # the list grows
            needed = builds_on(by_name[name], self.runs)
            if self.reads_outputs(by_name[name]):
                needed.append(self.run_of("on").name)
            if by_name[name].model.init == str(self.runs / CUT):
                needed.append(self.run_of("base").name)
            taken += [other for other in needed if other in by_name and other not in taken]
        return [recipe for recipe in recipes if recipe.name in taken]

    def wanted(self, recipes: list[Recipe]) -> list[Recipe]:
        """Remember these recipes for `gather`, and return them."""
        self.recipes |= {recipe.name: recipe for recipe in recipes}
        return recipes

    def new(self, name: str, seed: int, *overrides: str) -> Recipe:
        values = [*self.common, *self.of_baselines, *overrides, f"seed={seed}", f"name={name}-s{seed}"]
        return load_recipe(RECIPES / "europarl-base.yaml", values)

    def given(self, field: str) -> str:
        """The value of a field that is set for all runs."""
        return [value.partition("=")[2] for value in self.common if value.startswith(f"{field}=")][-1]

    def undistilled(self, name: str, seed: int, *overrides: str) -> Recipe:
        """A run that starts from a baseline and is not distilled."""
        return self.tuned(name, seed, *overrides, NO_TEACHER, way="no")

    def tuned(self, name: str, seed: int, *overrides: str, way: str | None = None) -> Recipe:
        """A run that starts from the baseline of its seed; seeds share baselines if there are fewer of these.

        way: how it is distilled (default: as the command line says)."""
        baseline = self.run_of("base", (seed - 1) % self.starts + 1)
        start = [*self.common, f"model.init={baseline}", f"l0drop.target_sparsity={HALF}"]
        start += self.distillation.overrides(way or self.distil, self.run_of("on", seed))
        values = [*start, *self.of_fine_tuned, *overrides, f"seed={seed}", f"name={name}-s{seed}"]
        return load_recipe(RECIPES / "europarl-target50.yaml", values)

    def run_of(self, name: str, seed: int = 1) -> Path:
        return self.runs / f"{name}-s{seed}"

    def baselines(self, parts: set[str]) -> list[Recipe]:
        seeds = self.seeds if "seeds" in parts else self.seeds[:1]
        return [self.new("base", seed) for seed in seeds[: self.starts]]

    def from_scratch(self, parts: set[str]) -> list[Recipe]:
        """Runs that start from random weights and that no other run needs."""
        recipes = []
        steps = self.new("base", 1).train.steps + self.undistilled("on", 1).train.steps
        if "scratch" in parts:
            dropping = (f"l0drop={{target_sparsity: {HALF}, start: 1.0}}", "train.steer_every=50")
            recipes.append(self.new("scratch", 1, *dropping, f"train.steps={steps}"))
        if "curve" in parts:
            recipes.append(self.new("small-vocabulary", 1, "tokenizer.vocab_size=4000"))
            recipes.append(self.new("half", 1, *self.half()))
        return recipes

    def half(self) -> list[str]:
        """Overrides to train on the first half of the text, written to separate files. Its documents are unordered."""
        values = []
        for side, ending in (("source", "en"), ("target", "de")):
            lines = list(read_lines(self.given(f"data.train.{side}")))
            file = self.runs / f"half.{ending}"
            if not file.exists():
                write_whole(file, "".join(f"{line}\n" for line in lines[: len(lines) // 2]))
            values.append(f"data.train.{side}={file}")
        return values

    def continued(self, parts: set[str]) -> list[Recipe]:
        """The continued baselines: the reference of all comparisons, and the teachers."""
        seeds = self.seeds if "seeds" in parts else self.seeds[:1]
        return [self.undistilled("on", seed, *UNGATED) for seed in seeds]

    def translate(self, parts: set[str]) -> None:
        """Write the teacher's outputs on the training text."""
        ways = WAYS if "tried" in parts else [self.distil]
        self.distillation.write(self.run_of("on"), ways, min(self.parallel, TRANSLATORS))

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

    def fine_tuned(self, parts: set[str]) -> list[Recipe]:
        """Runs that start from a baseline and are distilled from a continued one; runs that others need come first."""
        seeds = self.seeds if "seeds" in parts else self.seeds[:1]
        targets = SEEDED if "seeds" in parts else (HALF,)
        recipes = [self.tuned(f"zero-{HALF:g}", seed) for seed in seeds]
        if "seeds" in parts and self.distil != "no":
            recipes += [self.tuned("on-taught", seed, *UNGATED) for seed in seeds[:DISTILLED_DENSE]]
        for target in targets[1:]:
            recipes += [self.tuned(f"zero-{target:g}", seed, f"l0drop.target_sparsity={target}") for seed in seeds]
        if "rules" in parts:
            recipes += [self.tuned(rule, 1, *rule_point(rule).overrides) for rule in RULES]
        if "rivals" in parts:
            recipes.append(self.tuned("cut", 1, f"model.init={self.runs / CUT}", *UNGATED))
        if "sweep" in parts:
            points = [("zero", target) for target in ZERO if target not in targets] + [("mask", t) for t in MASK]
            for gating, target in points:
                values = (f"l0drop.gating={gating}", f"l0drop.target_sparsity={target}")
                recipes.append(self.tuned(f"{gating}-{target:g}", 1, *values))
        if "layers" in parts:
            for gating in LAYERED:
                between = (f"l0drop.gating={gating}", "l0drop.layerwise=true")
                recipes.append(self.tuned(f"layers-{gating}", 1, *between))
        if "tried" in parts:
            recipes += self.other_ways()
        return recipes

    def other_ways(self) -> list[Recipe]:
        """Other ways to the same sparsity. Longer and faster training has its own continued baseline."""
        recipes = [self.tuned(f"zero-{folder_name(way)}", 1, way=way) for way in WAYS if way != self.distil]
        falling = ("train.learning_rate=8e-4", "train.schedule=linear")
        longer = (f"train.steps={2 * recipes[0].train.steps}",)
        for name, values in (("falling", falling), ("long", longer)):
            recipes.append(self.undistilled(f"on-{name}", 1, *values, *UNGATED))
            recipes.append(self.tuned(f"zero-{name}", 1, *values))
        return recipes

    def at_the_rate_of(self, rule: str) -> list[Recipe]:
        """A learned and a random gate at the rate of a rule on the validation text."""
        scored = RunMetrics.read(RunFolder(self.run_of(rule)).metrics).valid
        assert scored is not None
        assert scored.sparsity is not None
        rate = round(scored.sparsity, 3)
        learned = self.tuned(f"learned-as-{rule}", 1, f"l0drop.target_sparsity={rate}")
        chance = self.tuned(f"random-as-{rule}", 1, *rule_point(f"random:{rate}").overrides)
        return self.wanted([learned, chance])

    def gather(self) -> None:
        statistics = self.runs / "statistics.json.gz"
        found = gather(self.runs, self.recipes, WHAT, MARGIN, COMPARED, statistics)
        found.write(self.runs / "results.json")
        if "on" in found.systems:
            self.console.print(tables(found), highlight=False, markup=False)
        self.gather_analyses()

    def score_rivals(self) -> None:
        """Score the rivals on all test text."""
        sources, truth = self.test_text("source"), self.test_text("target")
        rows = []
        for name in RIVALS:
            model = load(self.run_of(name))
            for beams in BEAMS:
                texts = [result.text for result in model.generate(sources, num_beams=beams, **GENERATION)]
                rows.append(Rival(label(name), f"{name}-s1", beams, bleu(texts, truth)))
        Rivals(WHAT, rows).write(self.runs / RIVALS_FILE)

    def time_rivals(self, timed: int) -> None:
        """Add CPU times of one thread on the first test sentences to the scores of the rivals."""
        file = self.runs / RIVALS_FILE
        found = Rivals.read(file)
        torch.set_num_threads(1)
        models = {row.run: load(self.runs / row.run, "cpu") for row in found.rows}
        few = self.test_text("source")[:timed]
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
        continued = SweepFolder(folder).continued.path
        for name, run in {continued.name: "on-s1", **{p.name: f"zero-{p.value:g}-s1" for p in points}}.items():
            link = folder / name
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(Path("..", run), target_is_directory=True)
        write_summary(folder, self.tuned("sweep", 1), points)
        swept = analyze_sweep(folder, self.reading, baseline=str(continued))
        swept.write(SweepFolder(folder).analysis)
        point = folder / typical_point(swept)
        with opened(str(point), self.reading, baseline=str(continued)) as subject:
            analyze(subject).write(RunFolder(point).analysis)
        draw_all(folder)
        draw_all(point)

    def analyze_layers(self, gating: str) -> None:
        """Analyse the share that gates drop, layer by layer."""
        run = self.run_of(f"layers-{gating}")
        with opened(str(run), self.reading, baseline=str(self.run_of("on"))) as subject:
            analyze(subject, ["gates", "groups"]).write(RunFolder(run).analysis)

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
            write_json(RunFolder(self.runs).analysis, {"what": WHAT, **as_json(found)})


if __name__ == "__main__":
    main()
