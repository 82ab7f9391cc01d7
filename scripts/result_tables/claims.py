"""The paper's claims, one by one, with what was found here; every number is taken from the files of results.

Words such as "yes" are judgements. `holds` of a claim is written beside the numbers it rests on, to be read again when
these change.
"""

import itertools
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from result_tables.files import markdown, read
from result_tables.quality import STEERED
from result_tables.speed import ratio

RULES = ("pos", "freq", "group", "inv_freq")


class Claim(NamedTuple):
    """A row: what the paper says, what was found, on what, and whether it holds."""

    paper: str
    here: str
    on: str
    holds: str


def claims_table() -> str:
    claims = [*cheap(), *content_words(), *attention(), *gates(), *ways(), *rules(), *speed(), *layers()]
    return markdown(["the paper found", "here", "on what", "holds"], claims)


class Study:
    """Scores and sparsities of one file of results, by system."""

    def __init__(self, name: str) -> None:
        self.systems: dict[str, Any] = read(name)["systems"]

    def runs(self, system: str, seed: int | None = None) -> list[Mapping[str, Any]]:
        return [run for run in self.systems[system]["runs"] if seed is None or run["seed"] == seed]

    def score(self, system: str, split: str = "test", seed: int | None = None) -> float:
        return statistics.mean(run[split]["score"]["value"] for run in self.runs(system, seed))

    def dropped(self, system: str, seed: int | None = None) -> float:
        return statistics.mean(run["test"]["sparsity"] for run in self.runs(system, seed))

    def against(self, system: str, other: str = "on") -> Mapping[str, Any]:
        """Over seeds, or of one seed over sentences."""
        entry = self.systems[system]
        found: Mapping[str, Any] = entry["against_on"] if "against_on" in entry else entry["one_seed"][other]
        return found


def cheap() -> list[Claim]:
    """About 40% can be dropped for little."""
    said = "About 40% of the encodings can be dropped for at most 0.5 BLEU"
    taught, plain = Study("multi30k-translated"), Study("multi30k")
    best, low, half = taught.against("zero-0.47"), plain.against("zero-0.3"), plain.against("zero-0.5")
    below = taught.score("on-taught") - taught.score("zero-0.47")
    multi30k = (
        f"{taught.dropped('zero-0.47'):.0%} for nothing ({best['difference']:+.2f}, with 95% confidence at least "
        f"{best['lower']:+.2f}) if taught by translations too, but {below:.1f} below a baseline taught alike; else "
        f"{plain.dropped('zero-0.3'):.0%} for nothing ({low['difference']:+.2f}, at least {low['lower']:+.2f}) and "
        f"{plain.dropped('zero-0.5'):.0%} for {-half['difference']:.2f} (at most {-half['lower']:.2f})"
    )
    long, short = Study("europarl"), Study("europarl-6000")
    found, before = long.against("zero-0.46"), short.against("zero-0.47")
    (third,) = short.runs("zero-0.3")
    third_lost = short.score("on", seed=third["seed"]) - short.score("zero-0.3")
    gained = long.against("on-taught")
    europarl = (
        f"{long.dropped('zero-0.46'):.0%} for {-found['difference']:.2f} (at most {-found['lower']:.2f}), taught by "
        f"translations too, which brings a dense model {gained['difference']:+.2f} ({_seeds(gained)}). With a baseline "
        f"that was still learning {short.dropped('zero-0.47'):.0%} for {-before['difference']:.2f} (at most "
        f"{-before['lower']:.2f}, {_seeds(before)}), and {short.dropped('zero-0.3'):.0%} for {third_lost:.2f} "
        "(one seed)"
    )
    return [
        Claim(said, multi30k, f"Multi30k, {_seeds(best)}", "yes, if taught"),
        Claim("", europarl, f"Europarl, {_seeds(found)}", "yes, with a baseline that has ended learning"),
    ]


def content_words() -> list[Claim]:
    """What goes first, and what its loss costs."""
    study, analysis = Study("europarl-6000"), read("europarl-analysis")
    points = analysis["sweep"]["points"]
    systems = ["zero-0.3", "zero-0.47", "zero-0.7"]
    rates = [f"{100 * point['sparsity']:.0f}" for point in points]
    content = [100 * point["groups"]["groups"]["content"]["sparsity"] for point in points]

    def fall(split: str, place: int) -> float:
        one, other = (study.score(system, split, seed=1) for system in systems[place : place + 2])
        return one - other

    lost = {}
    for who, closed in analysis["point"]["interventions"]["systems"].items():
        scores = {(row["closed"], row["share"]): row["score"]["value"] for row in closed}
        lost[who] = {what: scores["nothing", 0.0] - score for (what, share), score in scores.items() if share == 0.5}
    steep = (
        f"from {rates[0]} to {rates[1]}% dropped, {content[1] - content[0]:.0f} points more of the content words and "
        f"{fall('test', 0):.1f} BLEU ({fall('valid', 0):.1f} on the validation text); from {rates[1]} to {rates[2]}%, "
        f"{content[2] - content[1]:.0f} points more and {fall('test', 1):.1f} BLEU ({fall('valid', 1):.1f}). Closed "
        f"by hand, content words cost {lost['baseline']['content words']:.1f} BLEU and as many function words "
        f"{lost['baseline']['function words']:.1f}, in the sparse model {lost['sparse']['content words']:.1f} and "
        f"{lost['sparse']['function words']:.1f}"
    )
    share = {name: f"{100 * found['sparsity']:.0f}" for name, found in points[1]["groups"]["groups"].items()}
    order = (
        f"at {rates[1]}% dropped: function words {share['function']}%, punctuation {share['punctuation']}, BPEO "
        f"{share['BPEO']}, content words {share['content']}, BPEH {share['BPEH']}"
    )
    first = "Punctuation goes first, then function words; the later pieces of a word (BPEO) before its first (BPEH)"
    return [
        Claim("Quality falls steeply once content words go", steep, "Europarl, one seed, three sparsities", "yes"),
        Claim(first, order, "the same", "yes, but function words before punctuation; not so between layers"),
    ]


def attention() -> list[Claim]:
    """How much attention kept words get, and how it is spread."""
    points = read("europarl-analysis")["sweep"]["points"]
    dense, middle, last = (
        points[place]["mass"]["systems"][whose] for place, whose in ((0, "baseline"), (1, "sparse"), (2, "sparse"))
    )
    chosen = points[1]["mass"]["systems"]["baseline_kept"]
    rates = [f"{100 * point['sparsity']:.0f}" for point in points]
    few = [f"{100 * one['share_under_0.6']:.0f}" for one in (dense, middle, last, chosen)]
    mass = (
        f"{dense['mean']:.2f} to {middle['mean']:.2f}, and from {few[0]} to {few[1]}% at {rates[1]}%, to {few[2]}% at "
        f"{rates[2]}%; the dense model gives the kept words {chosen['mean']:.2f} and leaves {few[3]}% of them under "
        f"0.6, so that at {rates[1]}% all of it is the choice of words. Over the kept words attention is more even"
    )

    def nats(who: str, which: str) -> str:
        return ", ".join(f"{point['entropy'][who][which]:.2f}" for point in points)

    entropy = (
        f"kept: {nats('sparse', 'kept')} nats at {', '.join(rates)}% beside {nats('baseline', 'kept')}; dropped: "
        f"{nats('sparse', 'dropped')} beside {nats('baseline', 'dropped')}"
    )
    paper = (
        "A kept word gets more attention (1.03 to 1.80), and the share of words under 0.6 shrinks tenfold, at 47%",
        "The entropy of the kept positions rises above the baseline's, that of the dropped follows it on a larger "
        "scale",
    )
    return [
        Claim(paper[0], mass, "Europarl, one seed", "the direction, not the size"),
        Claim(paper[1], entropy, "the same", f"kept: at {rates[2]}% alone; dropped: yes"),
    ]


def gates() -> list[Claim]:
    """Whether test-time gates decide."""
    between = {"zero": 0.0, "any": 0.0}
    for study in map(Study, STEERED):
        for name, system in study.systems.items():
            found = [run["test"].get("gates_between") or 0.0 for run in system["runs"]]
            gating = (system["recipe"].get("l0drop") or {}).get("gating", "zero")
            for kind in ("any", "zero") if gating == "zero" and name != "elastic" else ("any",):
                between[kind] = max(between[kind], *found)
    layers = [one["gates"]["layers"] for name, one in read("europarl-layers").items() if name.startswith("layers-")]
    inner = max(gates["between"] for gates in itertools.chain.from_iterable(layers))
    here = (
        f"{1 - between['any']:.1%} or more are, with `zero` at least {1 - between['zero']:.1%}; of gates between "
        f"layers at least {1 - inner:.1%}"
    )
    return [Claim("Gates are often exactly 0 or 1 at test time", here, "both, every run", "yes")]


def ways() -> list[Claim]:
    """From scratch against fine-tuning."""
    study = Study("europarl-small")
    here = (
        f"{study.score('scratch'):.2f} and {study.score('zero-0.47'):.2f} at {study.dropped('scratch'):.0%}, λ steered "
        "instead of ramped; the fine-tuned one is taught, the other not"
    )
    said = "Training from scratch with a ramp equals fine-tuning (27.03 and 27.04, at λ = 0.2)"
    return [Claim(said, here, "Europarl, second configuration, one seed", "yes")]


def rules() -> list[Claim]:
    """Rules beside learned gates at their rates."""
    study = Study("europarl-variants")
    of_rules = {rule: study.against(rule, f"learned-as-{rule}")["difference"] for rule in RULES}
    by_chance = sorted(study.against(f"random-as-{rule}", f"learned-as-{rule}")["difference"] for rule in RULES)
    close = (
        f"to a learned gate at the same rate: {', '.join(f'`{rule}` {of_rules[rule]:+.2f}' for rule in RULES)}; random "
        f"gates {by_chance[-1]:.2f} to {by_chance[0]:.2f}"
    )
    lost = {rule: -study.against(rule)["difference"] for rule in ("freq", "inv_freq")}
    frequent = (
        f"dropping frequent words loses {lost['freq']:.2f} at {study.dropped('freq'):.0%}, rare ones "
        f"{lost['inv_freq']:.2f} at {study.dropped('inv_freq'):.0%}; {-of_rules['freq']:.2f} and "
        f"{-of_rules['inv_freq']:.2f} below learned gates"
    )
    said = "Rule-based patterns come close (-0.24 to +0.05 BLEU to the learned gate)"
    return [
        Claim(said, close, "Europarl, one seed", "`pos` and `freq`"),
        Claim(
            "Frequent words are easier to drop than rare ones",
            frequent,
            "the same; in the second configuration hardly",
            "yes",
        ),
    ]


def speed() -> list[Claim]:
    """What decoding gains."""
    times = {
        shape: ratio(read(f"decode-{shape}"), "decode", "engine-dense", "engine-short")
        for shape in ("multi30k", "mt", "europarl", "cnndm", "wikisum")
    }
    both = {
        shape: read(f"decode-{shape}")["systems"]["engine-dense"]["times_engine_short"]["end_to_end"]
        for shape in ("mt", "cnndm", "wikisum")
    }
    here = (
        f"{times['multi30k']} at 15 tokens, {times['mt']} at 30, {times['europarl']} at 36, {times['cnndm']} at 400, "
        f"{times['wikisum']} at 2,048, decoding alone; with encoding {both['mt']:.2f} at 30, {both['cnndm']:.2f} at "
        f"400, {both['wikisum']:.2f} at 2,048. One CPU core, random weights; the paper has a GPU"
    )
    said = "Speed-up is about 1 for short sentences, 1.21 for articles, 1.65 for long documents"
    return [Claim(said, here, "[speed.md](speed.md)", "yes, of decoding, with less at 400")]


def layers() -> list[Claim]:
    """Gates between the encoder's layers."""
    study, analyses = Study("europarl-variants"), read("europarl-layers")
    dropped = {
        gating: ", ".join(f"{100 * one['sparsity']:.0f}" for one in analyses[f"layers-{gating}"]["gates"]["layers"])
        for gating in ("zero", "mask")
    }
    lost = {gating: -study.against(f"layers-{gating}", "zero-0.46")["difference"] for gating in dropped}
    here = (
        f"{dropped['zero']}% dropped with `zero`, {dropped['mask']}% with `mask`; {lost['zero']:.2f} and "
        f"{lost['mask']:.2f} lost, against `zero` behind the last layer alone"
    )
    said = (
        "Gates between the encoder's layers: the first layers keep nearly everything (0, 0, 8.6, 8.6, 8.7, 34% "
        "dropped), and 0.3 BLEU are lost"
    )
    return [Claim(said, here, "Europarl, one seed", "the loss; of the layers, the first alone")]


def _seeds(compared: Mapping[str, Any]) -> str:
    return f"{('no', 'one', 'two', 'three', 'four', 'five')[compared['seeds']]} seeds"
