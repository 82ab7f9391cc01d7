"""The paper's claims, one by one: a verdict, and the evidence from the published files.

A verdict is a judgement, written next to the numbers that it rests on. "Not contradicted" marks evidence from one seed,
from one baseline or from unequal training. Read the verdicts again when the numbers change.
"""

import itertools
from typing import NamedTuple

from l0drop.runs.table import Table
from result_tables import files
from result_tables.files import read
from result_tables.labels import CONTINUED, SAME_WAY, STUDIES
from result_tables.quality import layers_of
from result_tables.speed import ratio
from result_tables.studies import PublishedStudy

ONE_SEED = "not contradicted (one seed)"
NOT_RUN = ("WMT14 En-De", "WMT18 Zh-En", "CNN/Daily Mail", "WikiSum")
"""Tasks of the paper that no study here covers."""


class Claim(NamedTuple):
    paper: str
    verdict: str
    evidence: str
    text: str


def claims_table() -> Table:
    claims = [*cheap(), *content_words(), *attention(), *gates(), *ways(), *rules(), *speed(), *layers(), *not_run()]
    return Table(["the paper's claim", "verdict here", "evidence", "text, seeds"], claims)


def cheap() -> list[Claim]:
    paper = read("paper")["cheap"]
    said = f"About {paper['sparsity']:.0%} of the encodings can be dropped for at most {paper['bleu_lost']} BLEU"
    multi30k, europarl = PublishedStudy.read("multi30k-translated"), PublishedStudy.read("europarl")
    best, found = multi30k.against("zero-0.47"), europarl.against("zero-0.46")
    captions = (
        f"{multi30k.dropped('zero-0.47'):.1%} dropped: {best.difference:+.2f} to the continued baseline (bound "
        f"{best.lower:+.2f}). To the continued baseline distilled the same way: "
        f"{multi30k.difference('zero-0.47', SAME_WAY):+.2f}, no bound"
    )
    sentences = (
        f"{europarl.dropped('zero-0.46'):.1%} dropped: {found.difference:+.2f} to the continued baseline (bound "
        f"over seeds and sentences {found.lower:+.2f}). To the continued baseline distilled the same way: "
        f"{europarl.difference('zero-0.46', SAME_WAY):+.2f}, two seeds, no bound"
    )
    return [
        Claim(said, "not contradicted (sparse distilled, reference not)", captions, "Multi30k, five baselines"),
        Claim("the same", "not contradicted (one baseline)", sentences, "Europarl, five seeds, one baseline"),
    ]


def content_words() -> list[Claim]:
    study, points = PublishedStudy.read("europarl-6000"), files.sweep_analysis("europarl-analysis").points
    systems = ("zero-0.3", "zero-0.47", "zero-0.7")
    scores = [study.score(system, seed=1) for system in systems]
    groups = [point.groups.groups for point in points if point.groups is not None]
    content = [100 * (group["content"].sparsity or 0.0) for group in groups]
    steps = (
        f"from {_percent(one.sparsity)} to {_percent(other.sparsity)} dropped: {after - before:.0f} points more "
        f"content words, {low - high:+.1f} BLEU"
        for (one, other), (before, after), (high, low) in zip(
            itertools.pairwise(points), itertools.pairwise(content), itertools.pairwise(scores), strict=True
        )
    )
    share = {name: _percent(found.sparsity) for name, found in groups[1].items()}
    order = (
        f"at {_percent(points[1].sparsity)} dropped: function words {share['function']}, punctuation "
        f"{share['punctuation']}; later pieces {share['BPEO']}, first pieces {share['BPEH']}"
    )
    first = "Punctuation goes first, then function words; the later pieces of a word before its first piece"
    return [
        Claim("Quality falls steeply once content words go", ONE_SEED, "; ".join(steps), "Europarl, one seed"),
        Claim(first, "in part: function words go before punctuation (one seed)", order, "Europarl, one seed"),
    ]


def attention() -> list[Claim]:
    paper, points = read("paper")["attention"], files.sweep_analysis("europarl-analysis").points
    assert points[1].mass is not None
    systems = points[1].mass.systems
    dense, kept, sparse = (systems[name] for name in ("baseline", "baseline_kept", "sparse"))
    mass = (
        f"{dense.mean:.2f} to {sparse.mean:.2f} at {_percent(points[1].sparsity)} dropped; the dense model already "
        f"gives the kept words {kept.mean:.2f}. Share below {paper['threshold']}: {_percent(dense.share_under)} to "
        f"{_percent(sparse.share_under)}"
    )

    def entropies(which: str) -> str:
        return "; ".join(
            f"{_percent(point.sparsity)} dropped: {getattr(point.entropy.sparse, which):.2f} nats against "
            f"{getattr(point.entropy.baseline, which):.2f}"
            for point in points
            if point.entropy is not None
        )

    said = (
        f"A kept word gets more attention ({paper['mean_dense']:.2f} to {paper['mean_sparse']:.2f}), and the share of "
        f"words below {paper['threshold']} shrinks tenfold"
    )
    return [
        Claim(said, "in part: direction, not size (one seed)", mass, "Europarl, one seed"),
        Claim(
            "The entropy of the encoder's attention at kept positions rises above the baseline's",
            "in part: at the highest sparsity only (one seed)",
            entropies("kept"),
            "Europarl, one seed",
        ),
        Claim(
            "That of dropped positions follows the baseline's on a larger scale",
            ONE_SEED,
            entropies("dropped"),
            "Europarl, one seed",
        ),
    ]


def gates() -> list[Claim]:
    between = {"zero": 0.0, "any": 0.0}
    for study in map(PublishedStudy.read, STUDIES):
        for name, system in study.systems.items():
            found = [
                (run.test.gates.gates_between or 0.0) if run.test and run.test.gates else 0.0 for run in system.runs
            ]
            gating = (system.recipe.get("l0drop") or {}).get("gating", "zero")
            for kind in ("any", "zero") if gating == "zero" and name != "elastic" else ("any",):
                between[kind] = max(between[kind], *found)
    inner = max(gates.between for gates in itertools.chain.from_iterable(layers_of("europarl-layers").values()))
    evidence = (
        f"at least {1 - between['any']:.1%} of the gates in every run, {1 - between['zero']:.1%} with `zero`, "
        f"{1 - inner:.1%} between layers"
    )
    return [Claim("Gates are often exactly 0 or 1 at test time", "yes", evidence, "Multi30k and Europarl, every run")]


def ways() -> list[Claim]:
    study, paper = PublishedStudy.read("europarl-small"), read("paper")["scratch"]
    evidence = (
        f"{study.score('scratch'):.2f} from scratch and {study.score('zero-0.47'):.2f} fine-tuned, both at "
        f"{study.dropped('scratch'):.0%}. λ is steered, not ramped; only the fine-tuned model is distilled"
    )
    said = (
        "Training from scratch with a ramp equals fine-tuning "
        f"({paper['from_scratch']} and {paper['fine_tuned']} at λ = {paper['lambda']})"
    )
    return [Claim(said, "not contradicted (one seed, unequal training)", evidence, "Europarl, one seed")]


def rules() -> list[Claim]:
    study, paper = PublishedStudy.read("europarl-variants"), read("paper")["rules"]
    less = {rule: study.against(rule, f"learned-as-{rule}").difference for rule in ("pos", "freq", "group", "inv_freq")}
    chance = [study.against(f"random-as-{rule}", f"learned-as-{rule}").difference for rule in less]
    close = (
        f"`pos` {less['pos']:+.2f}, `freq` {less['freq']:+.2f}, `group` {less['group']:+.2f} to a learned gate at the "
        f"same rate. Random gates: {max(chance):+.2f} at best"
    )
    lost = {rule: study.difference(rule, CONTINUED) for rule in ("freq", "inv_freq")}
    frequent = "; ".join(
        f"dropping {kind} words ({study.dropped(rule):.0%}): {lost[rule]:+.2f}"
        for kind, rule in (("frequent", "freq"), ("rare", "inv_freq"))
    )
    said = f"Rules come close to the learned gate ({paper['lowest']:+.2f} to {paper['highest']:+.2f} BLEU)"
    return [
        Claim(said, "`pos`, `freq`: not contradicted; `group` loses more (one seed)", close, "Europarl, one seed"),
        Claim(
            "Frequent words are easier to drop than rare ones",
            f"{ONE_SEED}; no difference with a smaller vocabulary",
            frequent,
            "Europarl, one seed",
        ),
    ]


def speed() -> list[Claim]:
    paper = read("paper")["tasks"]
    lengths = {"mt": "30", "cnndm": "400", "wikisum": "2,048"}
    evidence = []
    for phase, name in (("end_to_end", "end to end"), ("decode", "decoding alone")):
        times = (
            f"{ratio(files.decoding(f'decode-{shape}'), phase, 'engine-short', 'engine-dense')} at {tokens}"
            for shape, tokens in lengths.items()
        )
        evidence.append(f"{name}: {', '.join(times)} tokens")
    said = (
        f"Decoding is {paper['WMT14 En-De']['speed_up']} times as fast for sentences, "
        f"{paper['CNN/Daily Mail']['speed_up']} for articles, {paper['WikiSum']['speed_up']} for long documents (a GPU)"
    )
    return [
        Claim(
            said,
            "in part: direction; smaller end to end (CPU)",
            "; ".join(evidence),
            "random weights, [speed](speed.md)",
        )
    ]


def layers() -> list[Claim]:
    study, paper = PublishedStudy.read("europarl-variants"), read("paper")["layers"]
    first, second, *_, last = (one.sparsity for one in layers_of("europarl-layers")["layers-zero"])
    lost = study.against("layers-zero", "zero-0.46").difference
    evidence = (
        f"first layer {first:.0%}, second {second:.0%}, last {last:.0%} dropped; {lost:+.2f} BLEU to gates after the "
        "last layer only"
    )
    shares = paper["sparsity"]
    said = (
        f"Gates between encoder layers: early layers keep nearly everything (first {shares[0]:.0%}, third "
        f"{shares[2]:.1%}, last {shares[-1]:.0%} dropped), and {paper['bleu_lost']} BLEU is lost"
    )
    return [Claim(said, "in part: the loss; early layers drop far more (one seed)", evidence, "Europarl, one seed")]


def not_run() -> list[Claim]:
    tasks = read("paper")["tasks"]
    return [
        Claim(
            f"{task}: {found['dense']:.2f} dense, {found['sparse']:.2f} with {found['sparsity']:.1%} dropped "
            f"({found['metric']})",
            "not run",
            "none",
            "-",
        )
        for task, found in ((task, tasks[task]) for task in NOT_RUN)
    ]


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
