"""The paper's claims on Europarl English-German sentences: seeds, a sweep, rules, layers, from scratch, rivals.

    python scripts/europarl.py --data data/europarl --runs runs/europarl --parallel 4 --set train.compile=true

The folder holds train, valid and test, as .en and .de (.gz and .xz are unpacked). Everything is an ordinary run of
`recipes/europarl-base.yaml` and `recipes/europarl-target50.yaml` under --runs, named SYSTEM-sSEED, so it goes on where
it stopped. What is gated is taught by the baseline trained on, as --teach says (`l0drop/study/distillation.py`): by its
distributions, with its seed, by its translations of the training text, with the first seed, or by both. --parts
chooses:

    seeds      baselines, the baselines trained on and `zero` at nearly half and at 0.3, with every seed; two of the
               baselines trained on and taught too
    sweep      `zero` at five sparsities and `mask` at one, seed 1, in runs/europarl/sweep with analysis and figures
    rules      the four rules of the paper, and beside each a learned and a random gate at its rate
    layers     gates between the encoder's layers, `zero` and `mask`, with what each layer drops
    scratch    dropping from the start, for as many steps as a baseline and its fine-tuning
    curve      what more data and another configuration bring: half of the text, a vocabulary of 4,000
    tried      other ways to nearly half: taught otherwise or not at all; twice the steps, or a higher learning rate
               that falls to 0, each with the baseline trained on in its way
    rivals     dense and sparse at beam 1, 2 and 4, and the baseline with its decoder cut to one layer, trained on and
               taught as what is sparse: BLEU against seconds of one CPU thread

--systems takes some of them alone, by name without its seed, and what those build on (a rule brings the gates at its
rate); rivals are then not timed and the sweep is not analysed, and results.json has these systems alone, until all are
gathered again.

`results.json` gathers what the runs say, `analysis.json` what was measured of them, `rivals.json` the rivals. With
--gather, gather what is there, also while another process trains; with --tables FILE, print the tables of a
results.json and do nothing else.
"""

import argparse
import json
import shutil
from collections.abc import Callable
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
from l0drop.runs.provenance import provenance
from l0drop.study.analysis.parts import RESULT, analyze, analyze_sweep, typical_point
from l0drop.study.analysis.parts import write as write_analysis
from l0drop.study.analysis.subject import Reading, opened
from l0drop.study.distillation import NO_TEACHER, WAYS, Distillation, folder_name, way_named
from l0drop.study.seeds import TITLES, builds_on, gather, interval, single_table, table, text_in, title, train_all
from l0drop.study.sweep import RULES, UNGATED, continued_run, is_finished, rule_point, target_point, write_summary
from l0drop.training.assemble import load_dense

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
PARTS = ("seeds", "sweep", "rules", "layers", "scratch", "curve", "tried", "rivals")
HALF = 0.46
"""Nearly half: runs end above what they are asked for, by up to 1.7 points."""
ZERO, MASK = (0.3, 0.4, HALF, 0.6, 0.7), (HALF,)
SEEDED = (HALF, 0.3)
"""What is trained with every seed: nearly half, first, and a sparsity at which little should be lost."""
LAYERED = ("zero", "mask")
"""How gates between layers close."""
RIVALS = ("on", f"zero-{HALF:g}", "cut")
BEAMS = (1, 2, 4)
GENERATION: dict[str, Any] = {"length_penalty": 0.6, "max_new_tokens": 128}
RIVALS_FILE = "rivals.json"
TAUGHT = 2
"""Seeds of the baseline that is trained on and taught as the gated models are: how much of a gain is the teacher's."""
TRANSLATORS = 3
"""Processes that translate, beside training; each takes up to 24 GiB of a GPU."""
MARGIN = 0.5
"""The loss of BLEU that is small enough to accept."""
CUT = Path("cut", "base-s1")
"""Where the baseline with a decoder of one layer is put."""
WHAT = "Europarl English-German sentences, cased BLEU"
BESIDE = {f"{how}{rule}": f"learned-as-{rule}" for rule in RULES for how in ("", "random-as-")} | {
    f"layers-{gating}": f"zero-{HALF:g}" for gating in LAYERED
}
"""What is compared with a learned gate of about its sparsity, beside the baseline trained on."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/europarl"))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--systems", nargs="*", help="of these parts, such as zero-0.46; left out, all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--baselines", type=int, help="seeds that have a baseline of their own; left out, all")
    parser.add_argument("--teach", type=way_named, choices=WAYS, default="both", help="what gated models learn from")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each")
    parser.add_argument("--set", action="append", default=[], help="a.b=value, for every run")
    parser.add_argument("--baseline", action="append", default=[], help="a.b=value, for what starts anew")
    parser.add_argument("--fine-tune", action="append", default=[], help="a.b=value, for what follows a baseline")
    parser.add_argument("--analyzed", type=int, default=1000, help="test sentences that are analysed")
    parser.add_argument("--timed", type=int, default=128, help="sentences that the rivals are timed on")
    parser.add_argument("--gather", action="store_true", help="train nothing, gather what is there so far")
    parser.add_argument("--tables", type=Path, metavar="FILE", help="print the tables of a results.json")
    arguments = parser.parse_args()
    if arguments.tables is not None:
        print(tables(json.loads(arguments.tables.read_text(encoding="utf-8"))))
        return
    if arguments.data is None:
        parser.error("--data: say where the text is")
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


TITLES_HERE = {
    **TITLES,
    "on-taught": "baseline trained on, taught",
    "scratch": "zero, from scratch",
    "layers-zero": "zero, between layers too",
    "layers-mask": "mask, between layers too",
    "half": "baseline on half of the text",
    "small-vocabulary": "baseline with a vocabulary of 4,000",
    "one-layer": "decoder of one layer",
    "cut": "decoder cut to one layer",
    "on-long": "baseline trained on, twice as long",
    "zero-long": "zero, twice as long",
    "on-falling": "baseline trained on, 8e-4 falling to 0",
    "zero-falling": "zero, 8e-4 falling to 0",
    "zero-no": "zero, not taught",
    "zero-distributions": "zero, taught distributions",
    "zero-text": "zero, on the teacher's translations",
    "zero-both": "zero, taught distributions on the teacher's translations",
    "zero-mixed": "zero, taught distributions on translations and references",
    **{rule: f"rule `{rule}`" for rule in RULES},
    **{f"learned-as-{rule}": f"zero at the rate of `{rule}`" for rule in RULES},
    **{f"random-as-{rule}": f"random at the rate of `{rule}`" for rule in RULES},
}


def tables(found: dict[str, Any]) -> str:
    """Markdown: the systems of several seeds, then those of one, each against the baseline trained on with its seed;
    then rules beside gates at their rates, where there are such."""
    parts = [single_table(found, TITLES_HERE)]
    if any("against_on" in system for system in found["systems"].values()):
        parts.insert(0, table(found, TITLES_HERE))
    if any(rule in found["systems"] for rule in RULES):
        parts.append(rules_table(found))
    return "\n\n".join(parts)


def rules_table(found: dict[str, Any]) -> str:
    """Markdown: what rules drop and score on test text, beside a learned and a random gate at the rate of each.

    Differences are to the learned gate, with intervals over sentences.
    """
    lines = [
        "| rule | dropped: rule, learned, random | BLEU: rule | learned | random | rule less learned | "
        "random less learned |",
        "|---" * 7 + "|",
    ]
    systems = found["systems"]
    for rule in RULES:
        names = (rule, f"learned-as-{rule}", f"random-as-{rule}")
        if not all(name in systems for name in names):
            continue
        tests = [systems[name]["runs"][0]["test"] for name in names]
        scores = [test["score"]["value"] for test in tests]
        row = [f"`{rule}`", ", ".join(f"{test['sparsity']:.1%}" for test in tests), *(f"{s:.2f}" for s in scores)]
        for name, score in ((names[0], scores[0]), (names[2], scores[2])):
            row.append(f"{score - scores[1]:+.2f}{interval(systems[name], names[1])}")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


class Study:
    """All runs of one folder, by what they start from."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.runs: Path = arguments.runs
        self.systems: list[str] = arguments.systems or []
        self.seeds = range(1, arguments.seeds + 1)
        self.parallel, self.threads = arguments.parallel, arguments.threads
        self.common = [*text_in(arguments.data, "en", "de"), *arguments.set]
        self.of_baselines, self.of_following = arguments.baseline, arguments.fine_tune
        self.starts = min(arguments.baselines or arguments.seeds, arguments.seeds)
        self.teach: str = arguments.teach
        self.reading = Reading(sentences=arguments.analyzed)
        source, target = (Path(self.given(f"data.train.{side}")) for side in ("source", "target"))
        self.distillation = Distillation(source, target, self.runs)
        self.console = Console(stderr=True)
        self.recipes: dict[str, Recipe] = {}
        quiet_libraries()

    def train(self, parts: set[str]) -> None:
        """Train all of these parts, and do beside it what needs some of the runs alone."""
        recipes = self.plan(parts)
        then: dict[tuple[str, ...], Callable[[], None]] = {}
        if not self.systems or any(self.learns_from_text(recipe) for recipe in recipes):
            then["on-s1",] = partial(self.translate, parts)
        if self.takes("cut", "rivals", parts):
            then["base-s1",] = self.cut
        if "rivals" in parts and not self.systems:
            then[tuple(f"{name}-s1" for name in RIVALS)] = self.score_rivals
        for gating in LAYERED:
            if self.takes(f"layers-{gating}", "layers", parts):
                then["on-s1", f"layers-{gating}-s1"] = partial(self.analyze_layers, gating)
        more = {f"{rule}-s1": partial(self.at_the_rate_of, rule) for rule in RULES if self.takes(rule, "rules", parts)}
        train_all(recipes, self.runs, self.parallel, self.threads, self.console, then, more)

    def takes(self, system: str, part: str, parts: set[str]) -> bool:
        """Whether this system of a part is asked for."""
        return part in parts and (not self.systems or system in self.systems)

    def learns_from_text(self, recipe: Recipe) -> bool:
        """Whether it is taught by translations."""
        text = recipe.data.train
        made = (str(self.distillation.outputs), str(self.distillation.mixed[1]))
        return isinstance(text, TextCorpus) and text.target in made

    def plan(self, parts: set[str]) -> list[Recipe]:
        """All that can be said before the first run is there, and what can be said by now, to be gathered."""
        recipes = [*self.baselines(parts), *self.trained_on(parts), *self.following(parts), *self.apart(parts)]
        recipes = self.wanted(self.chosen(recipes))
        for rule in RULES:
            if self.takes(rule, "rules", parts) and is_finished(self.runs, f"{rule}-s1"):
                self.at_the_rate_of(rule)
        return recipes

    def chosen(self, recipes: list[Recipe]) -> list[Recipe]:
        """Those of the systems that were asked for, and what they build on."""
        if not self.systems:
            return recipes
        by_name = {recipe.name: recipe for recipe in recipes}
        of_system = {name: name.rpartition("-s")[0] for name in by_name}
        if unknown := sorted({*self.systems} - {*of_system.values()}):
            there = ", ".join(dict.fromkeys(of_system.values()))
            raise SystemExit(f"--systems: {', '.join(unknown)}: not of these parts, which have {there}")
        taken = [name for name, system in of_system.items() if system in self.systems]
        for name in taken:  # which grows
            needed = builds_on(by_name[name], self.runs)
            if self.learns_from_text(by_name[name]):
                needed.append(self.run_of("on").name)
            if by_name[name].model.init == str(self.runs / CUT):
                needed.append(self.run_of("base").name)
            taken += [other for other in needed if other in by_name and other not in taken]
        return [recipe for recipe in recipes if recipe.name in taken]

    def wanted(self, recipes: list[Recipe]) -> list[Recipe]:
        """The same, kept in mind for `gather`."""
        self.recipes |= {recipe.name: recipe for recipe in recipes}
        return recipes

    def new(self, name: str, seed: int, *overrides: str) -> Recipe:
        values = [*self.common, *self.of_baselines, *overrides, f"seed={seed}", f"name={name}-s{seed}"]
        return load_recipe(RECIPES / "europarl-base.yaml", values)

    def given(self, field: str) -> str:
        """What a field is set to for all runs."""
        return [value.partition("=")[2] for value in self.common if value.startswith(f"{field}=")][-1]

    def trained(self, name: str, seed: int, *overrides: str) -> Recipe:
        """A run that starts from a baseline and is not taught."""
        return self.tuned(name, seed, *overrides, NO_TEACHER, teach="no")

    def tuned(self, name: str, seed: int, *overrides: str, teach: str | None = None) -> Recipe:
        """A run that starts from a baseline, that of its seed, or where there are fewer, from the first again."""
        baseline = self.run_of("base", (seed - 1) % self.starts + 1)
        start = [*self.common, f"model.init={baseline}", f"l0drop.target_sparsity={HALF}"]
        start += self.distillation.overrides(teach or self.teach, self.run_of("on", seed))
        values = [*start, *self.of_following, *overrides, f"seed={seed}", f"name={name}-s{seed}"]
        return load_recipe(RECIPES / "europarl-target50.yaml", values)

    def run_of(self, name: str, seed: int = 1) -> Path:
        return self.runs / f"{name}-s{seed}"

    def baselines(self, parts: set[str]) -> list[Recipe]:
        seeds = self.seeds if "seeds" in parts else self.seeds[:1]
        return [self.new("base", seed) for seed in seeds[: self.starts]]

    def apart(self, parts: set[str]) -> list[Recipe]:
        """What starts from random weights, and no other run waits for."""
        recipes = []
        steps = self.new("base", 1).train.steps + self.trained("on", 1).train.steps
        if "scratch" in parts:
            dropping = (f"l0drop={{target_sparsity: {HALF}, start: 1.0}}", "train.steer_every=50")
            recipes.append(self.new("scratch", 1, *dropping, f"train.steps={steps}"))
        if "curve" in parts:
            recipes.append(self.new("small-vocabulary", 1, "tokenizer.vocab_size=4000"))
            recipes.append(self.new("half", 1, *self.half()))
        return recipes

    def half(self) -> list[str]:
        """The first half of the training text, as files of its own; its documents are in no order."""
        values = []
        for side, ending in (("source", "en"), ("target", "de")):
            lines = list(read_lines(self.given(f"data.train.{side}")))
            file = self.runs / f"half.{ending}"
            if not file.exists():
                write_whole(file, "".join(f"{line}\n" for line in lines[: len(lines) // 2]))
            values.append(f"data.train.{side}={file}")
        return values

    def trained_on(self, parts: set[str]) -> list[Recipe]:
        """The baselines trained on, with which all is compared, and which teach."""
        seeds = self.seeds if "seeds" in parts else self.seeds[:1]
        return [self.trained("on", seed, *UNGATED) for seed in seeds]

    def translate(self, parts: set[str]) -> None:
        """What is taught by text needs the text."""
        ways = WAYS if "tried" in parts else [self.teach]
        self.distillation.write(self.run_of("on"), ways, min(self.parallel, TRANSLATORS))

    def cut(self) -> None:
        """The baseline with the first layer of its decoder alone, as a folder to start from."""
        folder, base = self.runs / CUT, self.run_of("base")
        if folder.exists():
            return
        model = load_dense(str(base))
        model.get_decoder().layers = model.get_decoder().layers[:1]
        model.config.decoder_layers = 1
        with locked(folder), whole_folder(folder) as partial:
            model.save_pretrained(partial / "model")
            for name in ("tokenizer", "tokenizer_target"):
                if (base / name).exists():  # the second only where vocabularies are separate
                    shutil.copytree(base / name, partial / name)

    def following(self, parts: set[str]) -> list[Recipe]:
        """What starts from a baseline and is taught by one that was trained on; first what others wait for."""
        seeds = self.seeds if "seeds" in parts else self.seeds[:1]
        targets = SEEDED if "seeds" in parts else (HALF,)
        recipes = [self.tuned(f"zero-{HALF:g}", seed) for seed in seeds]
        if "seeds" in parts and self.teach != "no":
            recipes += [self.tuned("on-taught", seed, *UNGATED) for seed in seeds[:TAUGHT]]
        for target in targets[1:]:
            recipes += [self.tuned(f"zero-{target:g}", seed, f"l0drop.target_sparsity={target}") for seed in seeds]
        if "rules" in parts:
            recipes += [self.tuned(rule, 1, *rule_point(rule, "--parts").overrides) for rule in RULES]
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
        """Other ways to the same sparsity, each beside the baseline trained on in that way."""
        recipes = [self.tuned(f"zero-{folder_name(way)}", 1, teach=way) for way in WAYS if way != self.teach]
        falling = ("train.learning_rate=8e-4", "train.schedule=linear")
        longer = (f"train.steps={2 * recipes[0].train.steps}",)
        for name, values in (("falling", falling), ("long", longer)):
            recipes.append(self.trained(f"on-{name}", 1, *values, *UNGATED))
            recipes.append(self.tuned(f"zero-{name}", 1, *values))
        return recipes

    def at_the_rate_of(self, rule: str) -> list[Recipe]:
        """A learned and a random gate at the rate that a rule has on the validation text."""
        metrics = json.loads((self.run_of(rule) / "metrics.json").read_text(encoding="utf-8"))
        rate = round(metrics["valid"]["sparsity"], 3)
        learned = self.tuned(f"learned-as-{rule}", 1, f"l0drop.target_sparsity={rate}")
        chance = self.tuned(f"random-as-{rule}", 1, *rule_point(f"random:{rate}", "--parts").overrides)
        return self.wanted([learned, chance])

    def gather(self) -> None:
        found = gather(self.runs, self.recipes, WHAT, MARGIN, BESIDE)
        write_whole(self.runs / "results.json", json.dumps(found, indent=1) + "\n")
        if "on" in found["systems"]:
            self.console.print(tables(found), highlight=False, markup=False)
        self.gather_analyses()

    def score_rivals(self) -> None:
        """Quality of what costs about as much, on all test text."""
        sources, truth = self.test_text("source"), self.test_text("target")
        rows = []
        for name in RIVALS:
            model = load(self.run_of(name))
            for beams in BEAMS:
                texts = [result.text for result in model.generate(sources, num_beams=beams, **GENERATION)]
                system = {"system": title(name, TITLES_HERE), "run": f"{name}-s1", "beams": beams}
                rows.append({**system, "score": bleu(texts, truth).as_json()})
        write_whole(self.runs / RIVALS_FILE, json.dumps({"what": WHAT, "rows": rows}, indent=1) + "\n")

    def time_rivals(self, timed: int) -> None:
        """Time of one CPU thread on the first sentences of the test text, beside the scores that are there."""
        file = self.runs / RIVALS_FILE
        found = json.loads(file.read_text(encoding="utf-8"))
        torch.set_num_threads(1)
        models = {row["run"]: load(self.runs / row["run"], "cpu") for row in found["rows"]}
        few = self.test_text("source")[:timed]
        calls = [
            partial(models[row["run"]].generate, few, num_beams=row["beams"], **GENERATION) for row in found["rows"]
        ]
        timings = interleaved({str(place): call for place, call in enumerate(calls)}, rounds=3)
        for place, row in enumerate(found["rows"]):
            row |= {"cpu_seconds": timings[str(place)].cpu, "sentences": len(few)}
        write_whole(file, json.dumps({**found, **provenance()}, indent=1) + "\n")
        write_whole(file.with_suffix(".svg"), quality_and_time(found | provenance(), "rivals").svg)

    def test_text(self, side: str) -> list[str]:
        return [line for line in read_lines(self.given(f"data.test.{side}")) if line.strip()]

    def analyze(self) -> None:
        """What is there of the sweep in the form that `l0drop report` reads, analysed, with its figures."""
        folder = self.runs / "sweep"
        points = [target_point(target) for target in ZERO if is_finished(self.runs, f"zero-{target:g}-s1")]
        for name, run in {continued_run(folder): "on-s1", **{p.name: f"zero-{p.value:g}-s1" for p in points}}.items():
            link = folder / name
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(Path("..", run), target_is_directory=True)
        write_summary(folder, self.tuned("sweep", 1), points)
        continued = str(folder / continued_run(folder))
        swept = analyze_sweep(folder, self.reading, baseline=continued)
        write_analysis(swept, folder / RESULT)
        point = folder / typical_point(swept)
        with opened(str(point), self.reading, baseline=continued) as subject:
            write_analysis(analyze(subject), point / RESULT)
        draw_all(folder)
        draw_all(point)

    def analyze_layers(self, gating: str) -> None:
        """What gates between layers drop, layer by layer."""
        run = self.run_of(f"layers-{gating}")
        with opened(str(run), self.reading, baseline=str(self.run_of("on"))) as subject:
            write_analysis(analyze(subject, ["gates", "groups"]), run / RESULT)

    def gather_analyses(self) -> None:
        """All analyses that are there in one file, without sentences of the text."""
        sweep = self.runs / "sweep"
        files = {"sweep": sweep / RESULT} | {f"layers-{g}": self.run_of(f"layers-{g}") / RESULT for g in LAYERED}
        found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
        point = sweep / typical_point(found["sweep"]) / RESULT if "sweep" in found else None
        if point is not None and point.exists():
            found["point"] = json.loads(point.read_text(encoding="utf-8"))
            found["point"].pop("maps", None)
        if found:
            write_analysis({"what": WHAT, **found}, self.runs / RESULT)


if __name__ == "__main__":
    main()
