"""Tables of Whisper tiny.en with trained gates: error rates, speakers, tail risk, and times on one CPU core."""

from collections.abc import Iterator, Mapping
from typing import Any

from l0drop.runs.table import Table
from result_tables.files import read

PREFIX = "whisper-tiny"
SYSTEMS = {
    "continued": "dense, continued",
    "": "dense, plain tiny.en",
    "covered": "padding cut, no gate",
    "zero-50": "sparse `zero`, target 0.5",
    "zero-74-settled": "sparse `zero`, target 0.74",
    "early-1": "early gate, target 0.55",
}
"""The models of the study by the ends of their names. The first one is the reference."""
RACED = {
    "dense": "engine, dense",
    "ctranslate2": "CTranslate2, dense",
    "cut padding": "engine, padding cut",
    "zero-74": "engine, sparse `zero`",
    "early-1": "engine, early gate",
}
RIVAL = "cut padding"


def evaluation(name: str) -> dict[str, dict[str, Any]]:
    """The systems of an evaluation, by the ends of their names."""
    content = read(f"{PREFIX}-{name}")
    found = [content["baseline"], *content["systems"]]
    by_name = {system["name"].removeprefix(PREFIX).removeprefix("-"): system for system in found}
    return {name: by_name[name] for name in SYSTEMS if name in by_name}


def wer_of(system: Mapping[str, Any]) -> float:
    return float(system["scores"]["wer"]["value"])


def rates_table(name: str) -> Table:
    """Every system: what it drops, its error rate, and the difference to the continued dense model."""
    rows = []
    for system, found in evaluation(name).items():
        dropped = [_share(found.get(key)) for key in ("sparsity", "sparsity_of_all")]
        against = found.get("differences", {}).get("wer")
        row = [SYSTEMS[system], *dropped, f"{wer_of(found):.2f}", "-" if against is None else _difference(against)]
        rows.append([*row, "-" if against is None else _verdict(against)])
    head = ["system, one seed", "covered rows dropped", "all rows dropped", "WER"]
    return Table([*head, 'difference to "dense, continued" [95%]', "at most the margin worse?"], rows)


def _difference(against: Mapping[str, Any]) -> str:
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(against["difference"], *against["interval"])


def _verdict(against: Mapping[str, Any]) -> str:
    if against["non_inferior"]:
        return f"yes ({against['margin']})"
    return f"no ({against['margin']})" if against["lower"] > against["margin"] else f"not shown ({against['margin']})"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def speakers_table(name: str = "pooled") -> Table:
    """The error rate of each speaker and of both lists, without the plain model."""
    found = {system: one for system, one in evaluation(name).items() if system}
    first = next(iter(found.values()))
    rows = [
        [f"all of `{part}`, {first[part]['clips']} clips", *(f"{one[part]['wer']:.1f}" for one in found.values())]
        for part in ("test", "test_other")
    ]
    for speaker, record in first["speakers"].items():
        rates = (f"{one['speakers'][speaker]['wer']:.1f}" for one in found.values())
        rows.append([f"speaker {speaker}, {record['words']:,} words", *rates])
    return Table(["WER", *(SYSTEMS[system] for system in found)], rows)


def tail_table(name: str = "pooled") -> Table:
    """Single clips, numbers and names, against the continued dense model."""
    found = {system: one for system, one in evaluation(name).items() if "tail" in one}
    tails = [one["tail"] for one in found.values()]
    points = f"{tails[0]['threshold']:g}"
    rows = [
        [f"clips whose WER rises by more than {points} points", *(str(tail["rising"]) for tail in tails)],
        [f"clips whose WER falls by more than {points} points", *(str(tail["falling"]) for tail in tails)],
        *([f"{what} transcripts", *(str(tail[key]["system"]) for tail in tails)] for what, key in _ODD.items()),
        [
            "WER without clips where any model runs away",
            *(f"{one['without_runaways']['wer']:.2f}" for one in found.values()),
        ],
    ]
    for kind in ("numbers", "names"):
        changes = (f"{tail[kind]['lost']}, {tail[kind]['gained']}" for tail in tails)
        rows.append([f"{kind} lost, gained, of {tails[0][kind]['expected']}", *changes])
    return Table(["", *(SYSTEMS[system] for system in found)], rows)


_ODD = {"empty": "empty", "runaway": "runaways"}


def races() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Search, type of the weights, and the results of the systems."""
    for search, results in read("whisper-tiny-race")["results"].items():
        for dtype in ("float32", "int8"):
            ending = f", {dtype}"
            own = {name.removesuffix(ending): one for name, one in results.items() if name.endswith(ending)}
            yield search, dtype, own


def race_tables() -> dict[str, Table]:
    """By search: error rate on the raced clips, seconds, and speed-ups in CPU time."""
    clips = read("whisper-tiny-race")["clips"]
    tables: dict[str, list[list[str]]] = {}
    for search, dtype, systems in races():
        for name, one in systems.items():
            row = [f"{RACED[name]}, {dtype}", "-" if name == RIVAL else f"{one['wer']:.2f}"]
            times = (f"{one['total'][phase]['cpu'] / clips:.3f}" for phase in ("encode", "decode"))
            row.append(", ".join(times))
            row += [_times(systems, name, slow) for slow in ("dense", "ctranslate2", RIVAL)]
            tables.setdefault(search, []).append(row)
    over = ["speed-up over dense", "speed-up over CTranslate2", "speed-up over padding cut"]
    return {
        f"whisper-race-{search.rpartition(' ')[2]}": Table(
            [search, "WER, these clips", "encode, decode: CPU s per clip", *over], rows
        )
        for search, rows in tables.items()
    }


def speed_up(systems: Mapping[str, Any], fast: str, slow: str, clock: str = "cpu") -> float:
    """The time of a system end to end, over all clips, divided by that of another."""
    return float(systems[slow]["total"]["end_to_end"][clock] / systems[fast]["total"]["end_to_end"][clock])


def _times(systems: Mapping[str, Any], fast: str, slow: str) -> str:
    return "-" if fast == slow else f"{speed_up(systems, fast, slow):.2f}"


def timestamps_table() -> Table:
    """Full windows without and with timestamps."""
    without = evaluation("joined")
    rows = []
    for name, one in read(f"{PREFIX}-timestamps")["systems"].items():
        system = name.removeprefix(PREFIX).removeprefix("-")
        row = [SYSTEMS[system], f"{wer_of(without[system]):.2f}", f"{one['wer']:.2f}"]
        both = (without[system]["scores"]["wer"]["details"], one["details"])
        rows.append([*row, ", ".join(f"{details['deletions']:.0f}" for details in both)])
    words = f"deletions without, with, of {one['details']['length']:,.0f} words"
    return Table(["full windows", "WER without timestamps", "WER with timestamps", words], rows)


def small_table() -> Table:
    """A short training with timestamps on a CPU: short clips and long recordings, against the dense model."""
    rows = []
    for recordings, found in read(f"{PREFIX}-small")["evaluations"].items():
        (sparse,), dense = found["systems"], found["baseline"]
        against = sparse["differences"]["wer"]
        skipped = sparse["tail"]["skipped"]
        rows.append([
            f"{found['clips']} {recordings}", f"{wer_of(dense):.2f}", f"{wer_of(sparse):.2f}", _difference(against),
            _share(sparse["sparsity"]), f"{skipped['baseline']}, {skipped['system']}",
        ])  # fmt: skip
    head = ["recordings", "WER, dense", "WER, sparse `zero`", "difference [95%]", "covered rows dropped"]
    return Table([*head, "words skipped: dense, sparse"], rows)


def speech_tables() -> dict[str, Table]:
    found = {f"whisper-tiny-{name}": rates_table(name) for name in ("pooled", "joined", "long")}
    found |= {"whisper-tiny-speakers": speakers_table(), "whisper-tiny-tail": tail_table()}
    found["whisper-tiny-timestamps"] = timestamps_table()
    found["whisper-tiny-small"] = small_table()
    return found | race_tables()


def speech_numbers() -> dict[str, str]:
    """Numbers in running text."""
    pooled, joined, long = map(evaluation, ("pooled", "joined", "long"))
    found = {
        f"whisper-{system or 'plain'}-{name}": f"{wer_of(one):.2f}"
        for name, evaluated in (("pooled", pooled), ("joined", joined), ("long", long))
        for system, one in evaluated.items()
    }
    for name, evaluated in (("pooled", pooled), ("joined", joined), ("long", long)):
        for system, one in evaluated.items():
            if one.get("differences"):
                found[f"whisper-{system or 'plain'}-{name}-loss"] = f"{one['differences']['wer']['difference']:+.2f}"
    for system, one in pooled.items():
        if one.get("sparsity"):
            found[f"whisper-{system}-dropped"] = f"{one['sparsity']:.0%}"
    found |= {
        f"whisper-{system or 'plain'}-without": f"{one['without_runaways']['wer']:.2f}"
        for system, one in pooled.items()
    }
    ratios: dict[str, list[float]] = {}
    for _, _, systems in races():
        for fast in ("zero-74", "early-1", RIVAL):
            for slow in ("dense", "ctranslate2", RIVAL):
                if fast != slow:
                    ratios.setdefault(f"{fast}-over-{slow}".replace(" ", "-"), []).append(speed_up(systems, fast, slow))
    for name, values in ratios.items():
        found[f"whisper-{name}"] = f"{min(values):.2f} to {max(values):.2f}"
    sparse = ratios["zero-74-over-dense"] + ratios["early-1-over-dense"]
    found["whisper-sparse-over-dense"] = f"{min(sparse):.2f} to {max(sparse):.2f}"
    found["whisper-race-clips"] = str(read("whisper-tiny-race")["clips"])
    return found
