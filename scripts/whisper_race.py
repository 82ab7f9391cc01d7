"""Time trained Whispers clip by clip on one CPU core, and score what they write.

    python scripts/whisper_race.py LIST WHISPER NAME=FOLDER ... --json docs/results/whisper-tiny-race.json

LIST is a TSV file with file, speaker and text. WHISPER is the dense model: our engine and CTranslate2 decode it. Each
FOLDER is a gated model. Every system is a process with one thread, in float32 and in int8. The systems take turns clip
by clip, in alternating order, so that all of them meet the same disturbances. Times are from features to tokens. The
file has times by clip, and neither names of clips nor texts.
"""

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer

from l0drop.bench.decoding import PHASES, build_system, timed
from l0drop.bench.peers import ctranslate2_library
from l0drop.bench.remote import running
from l0drop.bench.speech_workloads import AudioFiles
from l0drop.bench.timing import in_turns
from l0drop.data.audio import read_audio
from l0drop.data.speech_metrics import wer
from l0drop.data.spoken import SpokenClip, read_spoken
from l0drop.runs.benchmark import Seconds
from l0drop.runs.json_file import write_json
from l0drop.runs.provenance import provenance

SECONDS = (2.0, 15.0)
"""Shortest and longest clip."""
KINDS = {
    "float32": {"dense": "engine-dense", "ctranslate2": "ct2-float32", "gated": "engine-short"},
    "int8": {"dense": "engine-int8-dense", "ctranslate2": "ct2-int8", "gated": "engine-int8-short"},
}
"""The benchmark's names of systems."""


class Runner:
    """One system in its process, with all clips."""

    def __init__(self, kind: str, clips: AudioFiles) -> None:
        torch.set_num_threads(1)
        transformers.logging.disable_progress_bar()
        model, self.batches = clips.load()
        self.peer = build_system(kind, model, 1, **clips.generation)

    def decode(self, number: int) -> tuple[list[int], dict[str, Seconds]]:
        """The tokens of a clip, and the seconds of each phase."""
        found, seconds = timed(self.peer, [self.batches[number]])
        return found[0][0], seconds


def race(systems: dict[str, tuple[str, str]], clips: list[SpokenClip], listed: Path, beams: int) -> dict[str, Any]:
    """Every system on every clip. systems: kind and model folder. listed: a list of exactly these clips."""
    builders = {
        name: (Runner, (kind, AudioFiles(folder, listed, clips=len(clips), batch=1, max_new_tokens=200, beams=beams)))
        for name, (kind, folder) in systems.items()
    }
    texts: dict[str, list[str]] = {name: [] for name in systems}
    tokens = dict.fromkeys(systems, 0)
    seconds: dict[str, dict[str, dict[str, list[float]]]] = {
        name: {phase: {"cpu": [], "wall": []} for phase in PHASES} for name in systems
    }
    readers = {folder: AutoTokenizer.from_pretrained(folder) for _, folder in systems.values()}
    with running(builders, preload=["l0drop.bench.decoding"]) as remotes:
        for remote in remotes.values():
            for number in (0, len(clips) // 2, len(clips) - 1):
                remote.ask("decode", number)
        for name, number in in_turns(dict.fromkeys(systems, len(clips))):
            found, needed = remotes[name].ask("decode", number)
            tokens[name] += len(found)
            texts[name].append(readers[systems[name][1]].decode(found, skip_special_tokens=True))
            for phase, both in needed.items():
                seconds[name][phase]["cpu"].append(round(both.cpu, 4))
                seconds[name][phase]["wall"].append(round(both.wall, 4))
    scores = {name: wer(found, [clip.text for clip in clips]) for name, found in texts.items()}
    return {
        name: {
            "wer": scores[name].value,
            "signature": scores[name].signature,
            "details": scores[name].details,
            "tokens": tokens[name],
            "total": {phase: {clock: sum(all_) for clock, all_ in both.items()} for phase, both in timing.items()},
            "seconds": timing,
        }
        for name, timing in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path)
    parser.add_argument("whisper")
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--every", type=int, default=1, help="take every n-th clip")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--json", type=Path, required=True)
    a = parser.parse_args()
    ctranslate2_library()
    gated = dict(one.split("=", 1) for one in a.models)
    lengths = {clip: read_audio(clip.file).seconds for clip in read_spoken(a.list)}
    chosen = [clip for clip, length in lengths.items() if SECONDS[0] <= length <= SECONDS[1]][:: a.every]
    chosen.sort(key=lambda clip: -lengths[clip])  # the benchmark's order
    systems = {}
    for dtype, kinds in KINDS.items():
        for name in ("dense", "ctranslate2", *gated):
            systems[f"{name}, {dtype}"] = (kinds.get(name, kinds["gated"]), gated.get(name, a.whisper))
    listed = a.list.parent / f"{a.list.stem}-race.tsv"
    listed.write_text("".join(f"{clip.name}\n" for clip in chosen), encoding="utf-8")
    results = {}
    for beams in a.beams:
        results[f"beam {beams}"] = race(systems, chosen, listed, beams)
        content = {
            "what": "recordings decoded one by one on one CPU core, from features to tokens, in turns",
            "clips": len(chosen),
            "seconds_of_audio": sum(lengths[clip] for clip in chosen),
            "shortest_and_longest": SECONDS,
            "every": a.every,
            "max_new_tokens": 200,
            "results": results,
            **asdict(replace(provenance(), threads=1)),
        }
        write_json(a.json, content)
        for name, found in results[f"beam {beams}"].items():
            total = found["total"]["end_to_end"]
            print(f"beam {beams}, {name}: WER {found['wer']:.2f}, {total['cpu']:.1f} CPU s, {total['wall']:.1f} s")


if __name__ == "__main__":
    main()
