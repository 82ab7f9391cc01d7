"""Tables of a screening: many variants, compared and chosen on the validation text alone."""

import statistics
from typing import NamedTuple

from l0drop.runs.evaluation import Compared, Difference
from l0drop.runs.study import SeedRun, StudiedSystem, StudyResults
from l0drop.runs.table import Table
from l0drop.study.verdict import verdict
from result_tables.labels import CONTINUED, SAME_WAY, SYSTEMS, label
from result_tables.studies import PublishedStudy

ONE_BASELINE = "no verdict: one baseline"
"""A bound over sentences speaks for one pair of models only."""


class Tuned(NamedTuple):
    """A system at the length penalty with its best mean score on the validation text."""

    name: str
    penalty: float
    valid: float


def tuned(found: StudyResults, name: str) -> Tuned | None:
    """None if a run was not scored at several length penalties."""
    runs = found.systems[name].runs
    if any(run.length_penalties is None for run in runs):
        return None
    penalties = [row.length_penalty for row in runs[0].length_penalties or ()]
    means = {penalty: statistics.mean(_at(run, penalty) for run in runs) for penalty in penalties}
    best = max(means, key=lambda penalty: means[penalty])
    return Tuned(name, best, means[best])


def screened_table(found: StudyResults) -> Table:
    """Every system on the validation text. Test scores are left out, so that nobody chooses by them."""
    study = PublishedStudy(found)
    rows = []
    for name in found.systems:
        if (best := tuned(found, name)) is None:
            continue
        sparsity = study.dropped(name)
        row = [label(name), f"{sparsity:.1%}" if sparsity else "-", str(len(study.runs(name)))]
        rows.append([*row, f"{study.score(name, 'valid'):.2f}", f"{best.penalty:g}", f"{best.valid:.2f}"])
    head = ["system", "dropped", "seeds", "BLEU, valid", "best length penalty on valid", "BLEU, valid, at it"]
    return Table(head, rows)


def chosen_table(found: StudyResults) -> Table:
    """The best systems on the validation text, of the dense models and of each target.

    Only systems with as many steps as the continued baseline take part; both sides are chosen in the same way.
    """
    groups = _groups(found, _steps(found, CONTINUED))
    dense = groups.pop("dense", None)
    rows = []
    for group, best in {"dense": dense, **groups}.items():
        if best is None:
            continue
        row = [group, label(best.name), f"{best.penalty:g}", f"{best.valid:.2f}"]
        pairs = {} if dense is None or best is dense else _scores(found, dense)
        each = [score - pairs[seed] for seed, score in _scores(found, best).items() if seed in pairs]
        by_seed = ", ".join(f"{one:+.2f}" for one in each)
        rows.append([*row, f"{statistics.mean(each):+.2f} ({by_seed})" if each else "-"])
    head = ["among", "chosen on valid", "length penalty", "BLEU, valid"]
    return Table([*head, "valid: less the chosen dense model (by seed)"], rows)


def candidates_table(found: StudyResults) -> Table:
    """The variants by their mean score on the validation text over all targets; the first two are to be confirmed.

    Only variants with all targets and as many seeds as the others take part.
    """
    targets = _targets(found)
    means = {variant: statistics.mean(each) for variant, each in _variants(found).items() if len(each) == len(targets)}
    order = sorted(means, key=lambda variant: -means[variant])
    rows = [[str(place), f"`{variant}`", f"{means[variant]:.2f}"] for place, variant in enumerate(order, 1)]
    return Table(["rank", "variant", f"BLEU, valid, mean over targets {' and '.join(targets)}"], rows)


def confirmed_table(found: StudyResults) -> Table:
    """Each variant on the test text against the reference; a verdict needs three baselines."""
    study = PublishedStudy(found)
    tested = [name for name, system in found.systems.items() if all(run.test is not None for run in system.runs)]
    references = [name for name in tested if name.startswith(SAME_WAY)]
    rows = []
    for name in tested:
        system = found.systems[name]
        row = [label(name), f"{study.dropped(name):.1%}" if _target(found, name) else "-"]
        row += [f"{study.score(name, 'valid'):.2f}", f"{study.score(name):.2f}"]
        against = next((one for other in references if (one := _against(system, other)) is not None), None)
        if against is None:
            rows.append([*row, "-", "-"])
            continue
        low, high = against.interval
        one_pair = isinstance(against, Difference)
        bound = f"{against.lower:+.2f}, {ONE_BASELINE if one_pair else verdict(against, 'BLEU').label}"
        rows.append([*row, f"{against.difference:+.2f} [{low:+.2f}, {high:+.2f}]", bound])
    reference = label(references[0]) if references else SYSTEMS[SAME_WAY]
    head = ["system", "dropped", "BLEU, valid", "BLEU, test", f'test: difference to "{reference}"']
    return Table([*head, "bound on test"], rows)


def _against(system: StudiedSystem, other: str) -> Compared | None:
    return system.against.get(other) or system.one_seed.get(other)


def steps_table(found: StudyResults) -> Table:
    """The validation score of both sides by the number of steps, at the best length penalty; unchanged otherwise."""
    sides = {SAME_WAY: SYSTEMS[SAME_WAY], **{f"zero-{target}": label(f"zero-{target}") for target in _targets(found)}}
    cells: dict[int, dict[str, str]] = {}
    for side in sides:
        for name in found.systems:
            best = tuned(found, name) if name == side or name == f"{side}-{_steps(found, name)}-steps" else None
            if best is not None:
                cells.setdefault(_steps(found, name), {})[side] = f"{best.valid:.2f}"
    rows = [[f"{steps:,}", *(cells[steps].get(side, "-") for side in sides)] for steps in sorted(cells)]
    return Table(["steps", *(f"{title}: BLEU, valid" for title in sides.values())], rows)


def _at(run: SeedRun, penalty: float) -> float:
    return next(row.valid for row in run.length_penalties or () if row.length_penalty == penalty)


def _scores(found: StudyResults, best: Tuned) -> dict[int, float]:
    """Validation scores by seed."""
    return {run.seed: _at(run, best.penalty) for run in found.systems[best.name].runs}


def _variants(found: StudyResults) -> dict[str, list[float]]:
    """The score of each variant at each target, for systems with all seeds and the continued baseline's steps."""
    scores: dict[str, list[float]] = {}
    most = max(len(system.runs) for name, system in found.systems.items() if _target(found, name) is not None)
    for name, system in found.systems.items():
        target, best = _target(found, name), tuned(found, name)
        if target is None or best is None or len(system.runs) < most:
            continue
        if _steps(found, name) == _steps(found, CONTINUED):
            scores.setdefault(name.removeprefix(f"zero-{target}").removeprefix("-") or "plain", []).append(best.valid)
    return scores


def _steps(found: StudyResults, name: str) -> int:
    return int(found.systems[name].recipe["train"]["steps"])


def _target(found: StudyResults, name: str) -> str | None:
    target = (found.systems[name].recipe.get("l0drop") or {}).get("target_sparsity")
    return None if target is None else f"{target:g}"


def _targets(found: StudyResults) -> list[str]:
    every = dict.fromkeys(_target(found, name) for name in found.systems)
    return [target for target in every if target is not None]


def _groups(found: StudyResults, steps: int) -> dict[str, Tuned]:
    """The best system of each group: dense models that are distilled the same way, and each target."""
    best: dict[str, Tuned] = {}
    for name in found.systems:
        target = _target(found, name)
        group = "dense" if name.startswith(SAME_WAY) else None if target is None else f"target {target}"
        if group is None or _steps(found, name) != steps or (one := tuned(found, name)) is None:
            continue
        if group not in best or one.valid > best[group].valid:
            best[group] = one
    return best
