"""What quality is left, and what was tried on the way there."""

import re
import statistics
from collections.abc import Mapping
from typing import Any

from l0drop.report.markdown import table as markdown_table
from l0drop.study.analysis import tables as analysis_tables
from l0drop.study.seeds import verdict
from result_tables.files import markdown
from result_tables.speed import ratio

STUDIES = {
    "multi30k": "Multi30k",
    "multi30k-translated": "Multi30k, sparse ones taught by translations too",
    "europarl": "Europarl, sparse ones taught by translations too",
}
"""Those of several seeds, as the README calls them."""
SPEEDS = {
    ("multi30k-translated", "zero-0.47"): "decode-multi30k",
    ("europarl", "zero-0.46"): "decode-europarl",
}
"""Where decoding was timed at the length of a study's text, and a sparsity within a tenth of a point of it."""
BASELINES = {
    "europarl-tried": "zero-both",
    "europarl-6000": "zero-0.47",
    "europarl-four-pairs": "zero-0.46",
    "europarl": "zero-0.46",
}
"""Europarl with baselines of several lengths, and the gated models at nearly half that were taught alike."""
STEERED = {
    "multi30k": "Multi30k",
    "multi30k-translated": "Multi30k, taught by translations too",
    "europarl": "Europarl, baseline of 11,000 steps",
    "europarl-four-pairs": "the same, four pairs",
    "europarl-6000": "Europarl, baseline of 6,000 steps",
    "europarl-variants": "the same, gates between layers and at the rates of rules",
    "europarl-short": "Europarl, shorter",
    "europarl-tried": "the same, taught otherwise",
    "europarl-small": "Europarl, second configuration",
}
"""All studies, as the table of targets calls them: in each, models were steered to one."""
DENSE = {"on": "0", "on-taught": "0, taught alike"}


def quality_table(studies: Mapping[str, Mapping[str, Any]], timed: Mapping[str, Mapping[str, Any]]) -> str:
    """What several seeds of the paper's gating lose against the baseline trained on, and what decoding gains.

    timed: the measurements that `SPEEDS` names.
    """
    rows = []
    for study, found in studies.items():
        of_study = []
        for name, system in found["systems"].items():
            if len(system["runs"]) < 2 or not (name in DENSE or re.fullmatch(r"zero-[0-9.]+", name)):
                continue
            tests = [run["test"] for run in system["runs"]]
            sparsity = statistics.mean(test.get("sparsity", 0.0) for test in tests)
            score = statistics.mean(test["score"]["value"] for test in tests)
            row = [STUDIES[study], f"{sparsity:.1%}" if sparsity else DENSE[name], f"{score:.2f}"]
            if (against := system.get("against_on")) is None:
                row += ["", ""]
            else:
                low, high = against["interval"]
                row += [f"{against['difference']:+.2f} [{low:+.2f}, {high:+.2f}]", verdict(against)]
            by = SPEEDS.get((study, name))
            row.append(ratio(timed[by], "decode", "engine-dense", "engine-short") if by else "")
            of_study.append((sparsity, row))
        rows += [row for _, row in sorted(of_study)]
    head = ["task", "encodings dropped", "BLEU, test", "against the baseline trained on as long"]
    return markdown([*head, "non-inferior at 0.5 BLEU", "decoding, dense / short"], rows)


def targets_table(studies: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str]) -> str:
    """How far the furthest run is from the sparsity asked for, on its test text; what is beyond 2 points by name."""
    rows = []
    for study, called in STEERED.items():
        missed: list[tuple[float, str]] = []
        asked = set()
        for name, system in studies[study]["systems"].items():
            if (target := (system["recipe"].get("l0drop") or {}).get("target_sparsity")) is None:
                continue
            asked.add(f"{100 * target:g}")
            missed += [(100 * (run["test"]["sparsity"] - target), titles.get(name, name)) for run in system["runs"]]
        missed.sort(key=lambda one: -abs(one[0]))
        beyond = [f"{points:+.1f} ({title})" for points, title in missed if abs(points) > 2]
        furthest = [*beyond, f"{missed[len(beyond)][0]:+.1f}"]
        rows.append([called, str(len(missed)), ", ".join(sorted(asked)), ", then ".join(furthest)])
    return markdown(["study", "runs", "asked for, %", "furthest from it, points"], rows)


def baselines_table(studies: Mapping[str, Mapping[str, Any]]) -> str:
    """Where gated models end, and where dense ones do, from baselines of several lengths."""
    rows = []
    for study, gated in BASELINES.items():
        systems = studies[study]["systems"]
        seeds = {run["seed"] for run in systems[gated]["runs"]}  # the others have nothing to be compared with
        runs = {name: [run for run in systems[name]["runs"] if run["seed"] in seeds] for name in ("base", "on", gated)}
        scores = {name: statistics.mean(run["test"]["score"]["value"] for run in runs[name]) for name in runs}
        steps = [systems[name]["recipe"]["train"]["steps"] for name in ("base", "on")]
        sparsity = statistics.mean(run["test"]["sparsity"] for run in runs[gated])
        row = [f"{steps[0]:,}, {steps[1]:,}", str(len(seeds)), *(f"{score:.2f}" for score in scores.values())]
        rows.append([*row, f"{sparsity:.1%}", f"{scores[gated] - scores['on']:+.2f}"])
    head = ["steps: baseline, then others", "seeds", "baseline", "trained on", "gated", "dropped"]
    return markdown([*head, "gated less trained on"], rows)


def choices_tables(found: Mapping[str, Any]) -> tuple[str, str]:
    """What was tried on the validation text: for the baseline, with one seed; for fine-tuning, with two."""
    baselines = ([name, f"{tried['valid_bleu']:.2f}"] for name, tried in found["baseline"].items())
    tuned = (
        [name, ", ".join(f"{score:.2f}" for score in tried["valid_bleu"])]
        for name, tried in found["fine_tuning"].items()
    )
    return markdown(["baseline", "BLEU, valid"], baselines), markdown(["learning rate", "BLEU, valid"], tuned)


def rivals_table(found: Mapping[str, Any]) -> str:
    """Quality and time of what costs about as much."""
    rows = []
    for row in found["rows"]:
        times = [1000 * seconds / row["sentences"] for seconds in row["cpu_seconds"]]
        span = [f"{statistics.median(times):.0f}", f"{min(times):.0f} to {max(times):.0f}"]
        rows.append([row["system"], str(row["beams"]), f"{row['score']['value']:.2f}", *span])
    return markdown(["system", "beams", "BLEU, test", "CPU time of a sentence, ms: median", "of all rounds"], rows)


def layers_table(found: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """What gates behind every layer drop, by the systems' titles."""
    layered = [(titles[name], analysis) for name, analysis in found.items() if name in titles]
    return markdown_table(analysis_tables.layers_table(layered))


def analyses_tables(found: Mapping[str, Any]) -> dict[str, str]:
    """What a sweep drops, where attention goes, and what closing gates by hand costs."""
    sweep = found["sweep"]["points"]
    contents = {
        "groups": analysis_tables.groups_table(sweep),
        "mass": analysis_tables.mass_table(sweep),
        "entropy": analysis_tables.entropy_table(sweep),
        "closed": analysis_tables.interventions_table(found["point"]),
    }
    return {name: markdown_table(content) for name, content in contents.items()}
