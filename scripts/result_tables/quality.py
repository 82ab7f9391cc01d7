"""Tables of translation quality."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from l0drop.runs.analysis import GateShares
from l0drop.runs.evaluation import EvaluatedRun
from l0drop.runs.study import Rival, Rivals, StudiedSystem, StudyResults
from l0drop.runs.table import Table
from l0drop.study.analysis import tables as analysis_tables
from l0drop.study.seeds import continued_of
from l0drop.study.sweep import RULES
from result_tables import files
from result_tables.files import TOYS, read
from result_tables.labels import CONTINUED, SAME_WAY, START, STUDIES, SYSTEMS, label
from result_tables.studies import PublishedStudy, count, distilled

MAIN = {
    "[Multi30k](results/multi30k.md), distilled (both)": ("multi30k-translated", "zero-0.47"),
    "[Europarl](results/europarl.md), distilled (both)": ("europarl", "zero-0.46"),
    "[Multi30k](results/multi30k.md), distilled (token)": ("multi30k", "zero-0.5"),
    "[Multi30k](results/multi30k.md), distilled (token), fewer dropped": ("multi30k", "zero-0.3"),
}
"""A row of the table of tasks: the study and its sparse system. All of them use the paper's gating."""
TOY_TASKS = {
    "[Toy translation](results/toy.md), not distilled": ("translation", "target-0.5"),
    "[Toy documents](results/toy.md), not distilled, ROUGE-L": ("documents", "target-0.7"),
}
BASELINES = {
    "europarl-tried": "zero-both",
    "europarl-6000": "zero-0.47",
    "europarl-four-pairs": "zero-0.46",
    "europarl": "zero-0.46",
}
"""Europarl with baselines of several lengths, and the sparse models at nearly half, distilled (both)."""
TAUGHT = re.compile(r"taught(?: by the dense model)?")
"""The word of the published trials for token-level distillation."""
CLOSED = {"dense": "dense, continued"}
"""Words of the published files, and of the tables."""
LESS_CONTINUED = f'difference to "{SYSTEMS[CONTINUED]}"'
LESS_SAME_WAY = f'difference to "{SYSTEMS[SAME_WAY]}"'
EVALUATIONS = {"Multi30k": "multi30k-evaluation", "Europarl": "europarl-evaluation"}


def tasks_table() -> Table:
    """One line per task: the sparse models against both dense references."""
    rows = []
    for task, (name, system) in MAIN.items():
        study = PublishedStudy.read(name)
        rows.append(
            [
                task,
                f"{study.dropped(system):.1%}",
                _valid_and_test(study, system, CONTINUED),
                study.bound(system),
                _valid_and_test(study, system, SAME_WAY) if SAME_WAY in study.systems else "not measured",
                f"{len(study.runs(system))} / {study.baselines}",
            ]
        )
    toys = read("targets", TOYS)["targets"]
    for task, (corpus, run) in TOY_TASKS.items():
        (point,) = (point for point in toys[corpus]["points"] if point["run"] == run)
        lost = point["score"]["value"] - toys[corpus]["reference"]["score"]["value"]
        row = [task, f"{point['sparsity']:.1%}", f"test {lost:+.2f}", "none: one seed", "not distilled"]
        rows.append([*row, "1 / 1"])
    head = ["task", "dropped", LESS_CONTINUED, "test bound of this difference", LESS_SAME_WAY]
    return Table([*head, "seeds / independent baselines"], rows)


def _valid_and_test(study: PublishedStudy, system: str, other: str) -> str:
    few = len(study.differences(system, other))
    seeds = "" if few == len(study.runs(system)) else f" ({count(few, 'seed')})"
    return ", ".join(f"{split} {study.difference(system, other, split):+.2f}" for split in ("valid", "test")) + seeds


def same_way_table(tasks: Sequence[str]) -> Table:
    """Sparse models against the continued baseline distilled the same way, seed by seed. No outputs were kept."""
    rows = []
    for task in tasks:
        name, system = next(found for found in MAIN.values() if found[0] == task)
        study = PublishedStudy.read(name)
        for split in ("valid", "test"):
            each = study.differences(system, SAME_WAY, split)
            seeds = ", ".join(f"{one:+.2f}" for one in each)
            title = STUDIES[name].partition(",")[0]
            rows.append([title, split, f"{statistics.mean(each):+.2f}", seeds, str(study.baselines)])
    return Table(["task", "text", "mean difference in BLEU", "by seed", "independent baselines"], rows)


def repetition_table(found: Mapping[str, Any]) -> Table:
    """A later repetition on Multi30k: differences in BLEU on four test sets."""
    rows = [
        [test["text"], f"{test['less_continued']:+.2f}", f"{test['less_continued_distilled_the_same_way']:+.2f}"]
        for test in found["tests"]
    ]
    return Table(["test set", LESS_CONTINUED, LESS_SAME_WAY], rows)


def seeds_table(found: StudyResults, labels: Mapping[str, str] = SYSTEMS) -> Table:
    """Every system of at least two seeds with its difference to the continued baseline."""
    study = PublishedStudy(found)
    rows = []
    for name, system in study.systems.items():
        runs = system.runs
        if len(runs) < 2:
            continue
        sparsity = study.dropped(name)
        row = [_with_way(name, system, labels) + f", {count(len(runs), 'seed')}"]
        row.append(f"{sparsity:.1%}" if sparsity else "-")
        for split in ("valid", "test"):
            values = list(study.scores(name, split).values())
            row.append(f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}")
        if (against := system.against_on) is None:
            row += ["-", "-"]
        else:
            low, high = against.interval
            row.append(f"{against.difference:+.2f} [{low:+.2f}, {high:+.2f}]")
            row.append(study.bound(name))
        rows.append(row)
    head = ["system", "dropped", "BLEU, valid", "BLEU, test", f"test: {LESS_CONTINUED}"]
    return Table([*head, "bound on test"], rows)


def _with_way(name: str, system: StudiedSystem, labels: Mapping[str, str]) -> str:
    title = label(name, labels)
    gated = bool(system.recipe.get("l0drop"))
    return f"{title}, distilled ({distilled(system.recipe)})" if gated and "distilled" not in title else title


def single_table(found: StudyResults, labels: Mapping[str, str] = SYSTEMS) -> Table:
    """Every system of one seed with its difference to the continued baseline of that seed.

    The interval is over sentences. It is empty where outputs were not compared.
    """
    study = PublishedStudy(found)
    rows = []
    for name, system in study.systems.items():
        if len(system.runs) != 1:
            continue
        sparsity = study.dropped(name)
        row = [label(name, labels), f"{sparsity:.1%}" if sparsity else "-"]
        row += [f"{study.score(name, split):.2f}" for split in ("valid", "test")]
        other = continued_of(name, study.systems)
        compared = name != CONTINUED and len(study.differences(name, other)) == 1
        compared = compared and study.is_trained_like(name, other)
        row += [f"{study.difference(name, other, split):+.2f}" if compared else "-" for split in ("valid", "test")]
        row[-1] += interval(system, CONTINUED)
        rows.append(row)
    head = ["system, one seed", "dropped", "BLEU, valid", "BLEU, test"]
    return Table([*head, *(f"{split}: {LESS_CONTINUED}" for split in ("valid", "test"))], rows)


def interval(system: StudiedSystem, other: str) -> str:
    """Over sentences, of one seed against another system; empty where they were not compared."""
    compared = system.one_seed.get(other)
    return "" if compared is None else " [{:+.2f}, {:+.2f}]".format(*compared.interval)


def rules_table(found: StudyResults) -> Table:
    """Rules next to a learned and a random gate that were trained to drop as much. Differences are on test text."""
    systems = found.systems
    rows = []
    for rule in RULES:
        names = (rule, f"learned-as-{rule}", f"random-as-{rule}")
        if not all(name in systems for name in names):
            continue
        runs = [systems[name].runs[0] for name in names]
        scores = [run.value() for run in runs]
        row = [f"`{rule}`", ", ".join(f"{run.sparsity:.1%}" for run in runs)]
        row.append(", ".join(f"{score:.2f}" for score in scores))
        for name, score in ((names[0], scores[0]), (names[2], scores[2])):
            row.append(f"{score - scores[1]:+.2f}{interval(systems[name], names[1])}")
        rows.append(row)
    head = ["rule", "dropped: rule, learned, random", "BLEU: rule, learned, random", "rule less learned"]
    return Table([*head, "random less learned"], rows)


def elastic_table(found: StudyResults) -> Table:
    """One elastic model at several settings of the dial next to models trained for each setting."""
    study = PublishedStudy(found)
    rows = []
    for run in study.runs("elastic"):
        for row in run.dial or ():
            keep = row.keep
            own = CONTINUED if keep == 1 else "zero-0.5" if keep is None else f"zero-{1 - keep:.1g}"
            other = study.scores(own).get(run.seed) if own in study.systems else None
            title = "as trained" if keep is None else f"{keep:g}"
            value = "-" if other is None else f"{other:.2f}"
            rows.append([title, f"{row.sparsity:.1%}", f"{row.score.value:.2f}", value])
    return Table(["`keep`", "dropped", "BLEU, elastic model", "BLEU, model trained for it"], rows)


def targets_table() -> Table:
    """The largest distance to the target sparsity on test text; runs beyond 2 points by name."""
    rows = []
    for name, title in STUDIES.items():
        missed: list[tuple[float, str]] = []
        asked = set()
        for system, content in PublishedStudy.read(name).systems.items():
            if (target := (content.recipe.get("l0drop") or {}).get("target_sparsity")) is None:
                continue
            asked.add(f"{100 * target:g}")
            missed += [(100 * ((run.sparsity or 0.0) - target), label(system)) for run in content.runs]
        missed.sort(key=lambda one: -abs(one[0]))
        beyond = [f"{points:+.1f} ({system})" for points, system in missed if abs(points) > 2]
        furthest = [*beyond, f"{missed[len(beyond)][0]:+.1f}"]
        rows.append([title, str(len(missed)), ", ".join(sorted(asked)), ", then ".join(furthest)])
    return Table(["study", "sparse runs", "target, %", "largest distance on test text, points"], rows)


def baselines_table(studies: Mapping[str, StudyResults]) -> Table:
    """Where sparse and dense models end, by the length of the baseline's training."""
    rows = []
    for name, sparse in BASELINES.items():
        study = PublishedStudy(studies[name])
        seeds = study.scores(sparse)  # the other seeds have nothing to be compared with
        starts = [score for seed, score in study.scores(START).items() if seed in seeds]
        dense = [score for seed, score in study.scores(CONTINUED).items() if seed in seeds]
        steps = [study.systems[system].recipe["train"]["steps"] for system in (START, CONTINUED)]
        row = [f"{steps[0]:,} + {steps[1]:,}", str(len(seeds)), f"{statistics.mean(starts):.2f}"]
        row += [f"{statistics.mean(dense):.2f}", f"{study.score(sparse):.2f} at {study.dropped(sparse):.1%}"]
        rows.append([*row, f"{study.difference(sparse, CONTINUED):+.2f}"])
    head = ["steps: baseline + fine-tuning", "seeds", "BLEU, dense, start", "BLEU, dense, continued"]
    return Table([*head, "BLEU, sparse, distilled (both)", "sparse less dense, continued"], rows)


def choices_tables(found: Mapping[str, Any]) -> tuple[Table, Table]:
    """Trials on the validation text: of the baseline with one seed, of fine-tuning with two."""
    baselines = [[name, f"{tried['valid_bleu']:.2f}"] for name, tried in found["baseline"].items()]
    tuned = [
        [TAUGHT.sub("distilled (token)", name), ", ".join(f"{score:.2f}" for score in tried["valid_bleu"])]
        for name, tried in found["fine_tuning"].items()
    ]
    return (
        Table(["baseline", "BLEU, valid"], baselines),
        Table(["learning rate of fine-tuning", "BLEU, valid, two seeds"], tuned),
    )


def rivals_table(found: Rivals) -> Table:
    """Quality and time of systems at several beams."""
    rows = []
    for row in found.rows:
        times = [1000 * seconds / (row.sentences or 1) for seconds in row.cpu_seconds]
        span = [f"{statistics.median(times):.0f}", f"{min(times):.0f} to {max(times):.0f}"]
        rows.append([system_of(row), str(row.beams), f"{row.score.value:.2f}", *span])
    head = ["system", "beams", "BLEU, test", "CPU ms per sentence, median", "CPU ms, all rounds"]
    return Table(head, rows)


def system_of(row: Rival) -> str:
    """The label of a timed system, by the name of its run."""
    return label(re.sub(r"-s\d+$", "", row.run))


def layers_table(name: str) -> Table:
    """The share dropped after each encoder layer, by model."""
    layered = layers_of(name)
    rows = [
        [str(layer), *(f"{gates.sparsity:.1%}" for gates in layers)]
        for layer, layers in enumerate(zip(*layered.values(), strict=True), start=1)
    ]
    return Table(["gates after encoder layer", *map(label, layered)], rows)


def layers_of(name: str) -> dict[str, list[GateShares]]:
    """The gates after each encoder layer, by model."""
    found = {part: files.analysis(name, part).gates for part in read(name) if part.startswith("layers-")}
    return {part: gates.layers for part, gates in found.items() if gates is not None}


def tail_table() -> Table:
    """Single sentences and words: sparse models against the continued baseline, from `l0drop evaluate`."""
    found = [files.evaluation(name) for name in EVALUATIONS.values()]

    def span(runs: Sequence[EvaluatedRun], key: str) -> str:
        shares = [getattr(run.tail_or_agreement.chrf, key) for run in runs]
        return f"{min(shares):.1%} to {max(shares):.1%}"

    def words(runs: Sequence[EvaluatedRun], kind: str) -> str:
        tails = [getattr(run.tail_or_agreement, kind) for run in runs]
        lost, gained = (sum(getattr(tail, key) for tail in tails) for key in ("lost", "gained"))
        return f"{lost} lost, {gained} gained, of {tails[0].expected} per seed"

    rows = [["chrF2, mean difference", *(f"{one.over_seeds['chrf'].difference:+.2f}" for one in found)]]
    for key, text in (("losing", "lose"), ("gaining", "gain")):
        rows.append([f"sentences that {text} more than 20 chrF", *(span(one.runs, key) for one in found)])
    same = [[(run.same_outputs or 0) / one.scored for run in one.runs] for one in found]
    rows.append(["outputs identical to the dense model's", *(f"{min(s):.0%} to {max(s):.0%}" for s in same)])
    rows += [[f"{kind}, all seeds", *(words(one.runs, kind) for one in found)] for kind in ("names", "numbers")]
    rows.append(["negations, all seeds", *(words(one.runs, "negations") for one in found)])
    return Table(['sparse against "dense, continued"', *EVALUATIONS], rows)


def analyses_tables(name: str) -> dict[str, Table]:
    """Dropped groups of words, attention, and the cost of closing gates."""
    sweep = files.sweep_analysis(name).points
    closed = analysis_tables.interventions_table(files.analysis(name, "point"))
    rows = [[CLOSED.get(cell, cell) for cell in row] for row in closed.rows]
    contents = {
        "groups": analysis_tables.groups_table(sweep),
        "mass": analysis_tables.mass_table(sweep),
        "entropy": analysis_tables.entropy_table(sweep),
        "closed": Table(["model", "closed gates", "share", "dropped", "cross-entropy", "BLEU"], rows),
    }
    return {part: replace(table, note="") for part, table in contents.items()}
