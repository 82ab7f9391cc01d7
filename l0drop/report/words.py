"""The summary in three sentences, and what stands in the tables, as plain text."""

from typing import Any

from l0drop.report.findings import Findings, Row

ROLES = {"baseline": "baseline", "reference": "baseline, trained on as long", "sparse": "learned gate", "rule": "rule"}
SIDES = ("system", "baseline", "reference")
KIND = "kind"
NON_INFERIOR, NOT_SHOWN = "non-inferior", "not shown"
FEW_SEEDS = "so few seeds say little about others"


def summary(findings: Findings) -> list[str]:
    """Three sentences: what there is, the verdict, its gain and its price."""
    return [_what(findings), _verdict(findings), _price(findings)]


def _what(findings: Findings) -> str:
    shares = sorted(row.sparsity for row in findings.points if row.sparsity is not None)
    if len(shares) > 1:
        return (
            f"{len(shares)} models that drop {shares[0]:.0%} to {shares[-1]:.0%} of their encodings were scored on "
            f"{findings.text}."
        )
    row = findings.shown
    if row is None or row.score is None:
        return f"{findings.name} has not been scored."
    drops = "" if row.sparsity is None else f"drops {row.sparsity:.1%} of its encodings and "
    over = f" over {findings.seeds} seeds" if findings.seeds > 1 else ""
    return f"{row.name} {drops}reaches {row.score:.2f} {findings.metric}{over} on {findings.text}."


def _verdict(findings: Findings) -> str:
    judged = [row for row in findings.points if row.lower is not None]
    if not judged:
        return "Whether that is as good as a baseline has not been tested."
    many, best = len(findings.points) > 1, findings.recommended
    to = f"non-inferior to {findings.compared_with} at a margin of {findings.margin:g} {findings.metric}"
    row = best or max(judged, key=lambda row: row.lower or 0)
    seeds = findings.over_seeds
    over = "" if seeds is None else f" over {seeds['seeds']} seeds"
    few = f" ({FEW_SEEDS})" if seeds is not None and seeds["few_seeds"] else ""
    bound = f"{row.difference:+.2f}{over}, with 95% confidence above {row.lower:+.2f}{few}"
    if best is not None:
        drops = f"{best.name}, which drops {best.sparsity:.1%}" if many else ""
        return f"{f'The sparsest that is {to} is {drops}' if many else f'It is {to}'}: its difference is {bound}."
    if many:
        return f"None is shown to be {to}: nearest comes {row.name} with a difference of {bound}."
    return f"It is not shown to be {to}: its difference is {bound}."


def _price(findings: Findings) -> str:
    row = findings.recommended or findings.shown
    speed = None if row is None else row.speed
    gain = "How fast it decodes was not measured"
    if speed is not None:
        gain = (
            f"Decoding takes {1 / speed.end_to_end:.0%} of the time that it takes on the dense memory ({speed.where})"
        )
    if findings.tail is None:
        return f"{gain}."
    chrf = findings.tail["chrf"]
    first = "of the first seed, " if findings.seeds > 1 else ""
    return (
        f"{gain}; {first}{chrf['losing']:.1%} of the sentences lose more than {chrf['threshold']:.0f} chrF against the "
        f"baseline, and {chrf['gaining']:.1%} gain as much."
    )


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def points_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Quality, sparsity and speed of every system; columns about which nothing is known are left out."""
    rows = findings.rows
    speeds = [None if row.speed is None else row.speed.end_to_end for row in rows]
    decoding = [None if row.speed is None else row.speed.decode for row in rows]
    columns = {
        "": [row.name for row in rows],
        "sparsity": [number(row.sparsity, ".1%") for row in rows],
        findings.metric: [number(row.score, ".2f") for row in rows],
        "difference": [number(row.difference, "+.2f") for row in rows],
        "95% bound": [number(row.lower, "+.2f") for row in rows],
        "verdict": [verdict(row, findings.margin) for row in rows],
        "speed-up": [number(speed, ".2f") for speed in speeds],
        "speed-up, decoder": [number(speed, ".2f") for speed in decoding],
        KIND: [ROLES[row.role] for row in rows],
    }
    shown = {name: cells for name, cells in columns.items() if not name or any(cells)}
    return list(shown), [list(line) for line in zip(*shown.values(), strict=True)]


def verdict(row: Row, margin: float) -> str:
    found = row.non_inferior(margin)
    return "" if found is None else NON_INFERIOR if found else NOT_SHOWN


def points_note(findings: Findings) -> str:
    """What the columns mean."""
    parts = [f"{findings.metric} on {findings.text}."]
    if findings.compared_with is not None:
        parts.append(f"Differences are to {findings.compared_with}.")
    seeds = findings.over_seeds
    if findings.seeds > 1:
        few = f"; {FEW_SEEDS}" if seeds is not None and seeds["few_seeds"] else ""
        parts.append(
            f"{'Scores' if seeds is None else 'Scores and differences'} are means over {findings.seeds} seeds{few}."
        )
    if any(row.lower is not None for row in findings.rows):
        bootstrap = "paired bootstrap" if seeds is None else f"bootstrap over seeds and {seeds['unit']}s"
        parts.append(
            f"95% bound: the difference is above it with 95% confidence (one-sided, {bootstrap}); non-inferior: the "
            f"bound is above {-findings.margin:g}."
        )
        if len(findings.points) > 1:
            parts.append("Each is tested by itself: of many, one may pass by chance.")
    where = sorted({row.speed.where for row in findings.rows if row.speed is not None})
    if where:
        parts.append(f"Speed-up: CPU time on the dense memory by that on the short one ({'; '.join(where)}).")
    return " ".join(parts)


def rules_table(findings: Findings) -> tuple[list[str], list[list[str]]]:
    """Table 2 of the paper: rules beside the learned gate and the baselines."""
    head, rows = points_table(findings)
    wanted = ("", "sparsity", findings.metric, "difference", KIND)
    places = [place for place, name in enumerate(head) if name in wanted]
    return [head[place] for place in places], [[row[place] for place in places] for row in rows]


def differences_table(evaluation: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """All metrics of one system against its baseline."""
    run = evaluation["runs"][0]
    cells = [
        [
            run["system"]["scores"][metric]["name"],
            f"{found['system']:.2f}",
            f"{found['baseline']:.2f}",
            f"{found['difference']:+.2f}",
            f"{found['interval'][0]:+.2f} to {found['interval'][1]:+.2f}",
            f"{found['lower']:+.2f}",
        ]
        for metric, found in run["differences"].items()
    ]
    return ["", "system", "baseline", "difference", "95% interval", "95% bound"], cells


def differences_note(evaluation: dict[str, Any]) -> str:
    metric = evaluation["judging"]["metric"]
    first = evaluation["runs"][0]["differences"][metric]
    note = f"Paired bootstrap over {first['units']:,} {first['unit']}s, {first['resamples']:,} resamples."
    if "over_seeds" not in evaluation:
        return note
    found = evaluation["over_seeds"][metric]
    each = ", ".join(f"{difference:+.2f}" for difference in found["differences"])
    few = f" {FEW_SEEDS[0].upper()}{FEW_SEEDS[1:]}." if found["few_seeds"] else ""
    return (
        f"{note} Of the first seed; over {found['seeds']} seeds the difference is {found['difference']:+.2f} ({each}), "
        f"with 95% confidence above {found['lower']:+.2f} (bootstrap over seeds and {found['unit']}s).{few}"
    )


def tail_table(tail: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Tail risk of one system against its baseline."""
    chrf, length = tail["chrf"], tail["length"]
    cells = [
        [f"sentences that {what} more than {chrf['threshold']:.0f} chrF", f"{chrf[share]:.1%}", "", ""]
        for what, share in (("lose", "losing"), ("gain", "gaining"))
    ]
    for name, what in {
        "numbers": "numbers of the source missing",
        "names": "names missing",
        "negations": "negations missing",
    }.items():
        found = tail[name]
        if found.get("expected") == 0:
            cells.append([f"{what}: there are none", "", "", ""])
        elif "missing" in found:
            shares = [number(found["missing"][side], ".1%") for side in SIDES]
            counts = f"of {found['expected']:,}; {found['lost']} lost, {found['gained']} gained"
            cells.append([f"{what} ({counts})", *shares])
        else:
            cells.append([f"{what}: not counted, {found['why']}", "", "", ""])
    for name, what, form in (
        ("ratio", "length by the reference's", ".3f"),
        ("under_half", "outputs under half of it", ".1%"),
        ("over_double", "outputs over double of it", ".1%"),
        ("empty", "empty outputs", "d"),
    ):
        cells.append([what, *(format(length[side][name], form) for side in SIDES[:2]), ""])
    return ["", *SIDES], cells


TAIL_NOTE = (
    "Missing: of what the source has. Lost: baseline and reference have it and the system has not; gained: the other "
    "way round. Names: capitalised words inside a sentence of the source that the reference has too. Negations: "
    "sentences with a word of a list."
)


def tail_note(findings: Findings) -> str:
    return " ".join(filter(None, [TAIL_NOTE, which_seed(findings)]))


def which_seed(findings: Findings) -> str:
    """Said of what is shown of one run, where the scores are of several."""
    return f"Of the first of {findings.seeds} seeds." if findings.seeds > 1 else ""


def controls_table(evaluation: dict[str, Any], metric: str) -> tuple[list[str], list[list[str]]] | None:
    """Scores with the wrong source; None where they were not asked for."""
    system = evaluation["runs"][0]["system"]
    if "controls" not in system:
        return None
    scores = {"own source": system["scores"][evaluation["judging"]["metric"]], **system["controls"]}
    return ["", metric], [[name.replace("_", " "), f"{score['value']:.2f}"] for name, score in scores.items()]
