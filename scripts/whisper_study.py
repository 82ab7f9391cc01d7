"""Train Whisper tiny.en with several gates at once on one GPU, and evaluate all models on the same recordings.

    python scripts/whisper_study.py teach ROOT           # the dense model's transcripts; before, on any machine
    python scripts/whisper_study.py run ROOT OUT         # all of the following, for one plan, within --until seconds

    python scripts/whisper_study.py lists ROOT           # lists of clips, joined clips
    python scripts/whisper_study.py prepare ROOT         # features and the teacher's distributions, once for all
    python scripts/whisper_study.py plan NAME            # the models of a plan, which fit on one GPU side by side
    python scripts/whisper_study.py model ROOT NAME      # train and evaluate one model; one process for each
    python scripts/whisper_study.py judge ROOT           # compare the transcripts of all models
    python scripts/whisper_study.py collect ROOT OUT     # results, logs and weights as few files
    python scripts/whisper_study.py publish ROOT OUT     # docs/results/whisper-tiny-LIST.json: no texts, no words
    python scripts/whisper_study.py small RUN OUT NAME=EVALUATION ...   # docs/results/whisper-tiny-small.json: a run of
                                                         # recipes/whisper-tiny-small.yaml, its folders of evaluations
    python scripts/whisper_study.py restore DELTA WHISPER FOLDER   # a trained model's folder from what was collected
    python scripts/whisper_study.py opened MODEL WHISPER FOLDER    # its weights, padding cut, no learned gate

ROOT holds whisper-tiny/ (a Hugging Face folder), speech/ (folders of clips with transcripts.tsv: file, speaker, text)
and teacher.tsv (file, the dense model's transcript, the same with times). The recipes are those of
recipes/whisper-tiny-*.yaml on these texts. All models train for the same number of steps: each measures its speed in a
short run first, and the slowest decides how many fit until `--train-until` seconds after `--start`. Later plans in the
same ROOT train for as many steps. `run` checks first that packages and files are there. A process that fails does not
stop the others, but without data there is nothing to train on; its log is in ROOT/logs.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = "continued"
MODELS: dict[str, dict[str, Any]] = {
    REFERENCE: {},
    "covered": {"gating": "mask", "gate": "open", "lambda_": 0.0},
    **{f"zero-{percent}": {"target_sparsity": percent / 100} for percent in range(20, 100, 10)},
    "elastic": {"target_sparsity": 0.6, "elastic": True, "elastic_range": (0.1, 1.0)},
    "early-1": {"gating": "mask", "layerwise": [1], "target_sparsity": 0.55},
    "early-2": {"gating": "mask", "layerwise": [2], "target_sparsity": 0.65},
    "zero-50-whole": {"target_sparsity": 0.5, "cut": 0.0},
    "zero-70-slow": {"target_sparsity": 0.7, "steer_over": 0.6, "anneal": 0.0, "settle": 0.25},
    "zero-70-fixed": {"target_sparsity": 0.7, "settle": 0.0, "fixed_gates": 0.25},
}
"""Settings of the section `l0drop`, or of the one that `SECTIONS` names.

NAME-seed-2 is the same model with another seed. `elastic` is trained for the dial, so it alone gives a curve.
"""
TRAIN = ("elastic", "elastic_range", "steer_over", "anneal", "settle", "fixed_gates")
SECTIONS = {**dict.fromkeys(TRAIN, "train"), "cut": "data"}
SEED = "-seed-"
PLANS = {
    "first": (REFERENCE, "covered", "zero-70", "elastic", "early-1"),
    "curve": ("zero-20", "zero-40", "zero-50", "zero-60", "zero-80"),
    "causes": ("zero-70-slow", "zero-70-fixed", "zero-90", "zero-30", "zero-50-whole"),
    "seeds": (f"zero-70{SEED}2", f"{REFERENCE}{SEED}2", f"zero-70{SEED}3", f"{REFERENCE}{SEED}3", "early-2"),
}
"""Models that are trained side by side, in this order of importance. `first` has the reference of all."""
BRING = ("zero-70", "early-1", "covered", "elastic", "zero-50")
"""Models whose weights are collected, the most important first."""


@dataclass(frozen=True)
class Listed:
    """Recordings that all models transcribe. seconds: the time that one model needs for them beside four others.

    file: the list in speech/. generation: settings beside the recipe's; None takes one of them away.
    """

    file: str
    margin: float
    seconds: float
    generation: dict[str, Any] = field(default_factory=dict)

    def settings(self, recipe: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in (recipe | self.generation).items() if value is not None}


LISTS = {
    "pooled": Listed("pooled.tsv", 0.3, 10),
    "joined": Listed("joined.tsv", 0.3, 10),
    "long": Listed("long.tsv", 0.5, 35, {"max_new_tokens": None}),  # a full window with times may need more
    "timed": Listed("joined.tsv", 0.3, 12, {"return_timestamps": True, "max_new_tokens": None}),
}
DIALS = (0.3, 0.8, 0.6, 0.1, 0.5, 0.2, 0.4, 0.7)
"""Shares of rows to keep, in the order in which they are transcribed while there is time."""
MOST_STEPS = 4000
MOST_TOKENS = 200
"""Of a target."""
PILOT = 24
LEVELS = 47
"""Levels on either side of 0 for changes of weights: a model then fits into 16 MiB."""
BATCH = 64
"""Clips decoded at once."""
PARTS = ("train", "audio_only", "valid", "test", "test_other", "long")
"""Folders in speech/."""
GRACE = 15
"""Seconds after `--until` in which models may finish what they have begun."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plan").add_argument("name", choices=PLANS)
    for name in ("teach", "run", "lists", "prepare", "model", "judge", "collect", "publish"):
        command = commands.add_parser(name)
        command.add_argument("root", type=Path)
        command.add_argument("--plan", choices=PLANS, default="first")
        if name == "model":
            command.add_argument("name")
        if name in ("run", "model"):
            command.add_argument("--start", type=float, default=time.time(), help="seconds since 1970")
            command.add_argument("--train-until", type=float, default=430)
            command.add_argument("--until", type=float, default=550)
            command.add_argument("--steps", type=int, help="instead of measuring")
            command.add_argument("--set", action="append", default=[], dest="settings", help="train.KEY=VALUE")
            command.add_argument("--limit", type=int, help="clips per list, to try the script out")
        if name in ("run", "collect", "publish"):
            command.add_argument("out", type=Path)
        if name in ("run", "collect"):
            command.add_argument("--weights", type=int, default=3)
    single = commands.add_parser("small")
    for name in ("run", "out"):
        single.add_argument(name, type=Path)
    single.add_argument("evaluations", nargs="+", metavar="NAME=FOLDER")
    single.add_argument("--cpu-seconds", nargs="+", default=[], metavar="PHASE=SECONDS")
    restoring = commands.add_parser("restore")
    for name in ("delta", "whisper", "folder"):
        restoring.add_argument(name, type=Path)
    opening = commands.add_parser("opened")
    for name in ("model", "whisper", "folder"):
        opening.add_argument(name, type=Path)
    a = parser.parse_args()
    if a.command == "plan":
        print(*PLANS[a.name], sep="\n")
        return
    if a.command == "small":
        small(a)
        return
    if a.command == "opened":
        opened(a.model, a.whisper, a.folder)
        return
    if a.command == "restore":
        restore(a.delta, a.whisper, a.folder)
        return
    a.root = a.root.resolve()
    commands_by_name = {
        "teach": teach, "run": run, "lists": lists, "prepare": prepared, "model": model, "judge": judge,
        "collect": collect, "publish": publish,
    }  # fmt: skip
    commands_by_name[a.command](a)


# --- data ----------------------------------------------------------------------------------------------------------


def rows(folder: Path) -> list[tuple[str, str, str]]:
    lines = (folder / "transcripts.tsv").read_text(encoding="utf-8").splitlines()
    return [(f"{folder.name}/{name}", speaker, text) for name, speaker, text in (line.split("\t") for line in lines)]


def teach(a: argparse.Namespace) -> None:
    """Write teacher.tsv: every training clip with the dense model's transcripts, without and with times."""
    from l0drop.data.audio_list import AudioList
    from l0drop.data.text import TsvFile
    from l0drop.decoding.speech import load_speech
    from l0drop.training.speech import TeacherTranscripts

    speech = a.root / "speech"
    files = [file for part in ("train", "audio_only") for file, _, _ in rows(speech / part)]
    listed = speech / "taught.tsv"
    listed.write_text("".join(f"{file}\n" for file in files), encoding="utf-8")
    generation = {"num_beams": 1, "max_new_tokens": MOST_TOKENS, "do_sample": False, "return_timestamps": False}
    taught = TeacherTranscripts(
        audio=AudioList(listed, TsvFile(listed, 0, None)),
        load=lambda: load_speech(a.root / "whisper-tiny"),
        identity={},
        generation=generation,
        seconds=window(a.root),
        with_times=True,
        transcribed=lambda clips: print(f"{clips} of {len(files)} clips", flush=True),
    )
    lines = [f"{pair.source}\t{pair.target}\t{taught.timed(pair)}\n" for pair in taught]
    (a.root / "teacher.tsv").write_text("".join(lines), encoding="utf-8")


def lists(a: argparse.Namespace) -> None:
    """Write speech/*.tsv, and the clips of a speaker joined to 25 to 30 seconds."""
    speech = a.root / "speech"
    taught = [line.split("\t") for line in (a.root / "teacher.tsv").read_text(encoding="utf-8").splitlines()]
    good = [(file, text, "" if repeats(timed) else timed) for file, text, timed in taught if text and not repeats(text)]
    (speech / "train.tsv").write_text("".join("\t".join(clip) + "\n" for clip in good), encoding="utf-8")
    print(f"{len(good)} of {len(taught)} clips have a usable transcript", flush=True)
    if not good:
        raise SystemExit("teacher.tsv: there is nothing to train on")
    pooled = rows(speech / "test") + rows(speech / "test_other")
    found = {"valid": rows(speech / "valid"), "pooled": pooled, "joined": joined(speech, pooled, window(a.root))}
    found["long"] = rows(speech / "long")
    for name, clips in found.items():
        (speech / f"{name}.tsv").write_text("".join("\t".join(clip) + "\n" for clip in clips), encoding="utf-8")
        print(name, len(clips))


def repeats(text: str) -> bool:
    """Whether a transcript repeats itself, by Whisper's own criterion."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) > 2.4


def window(root: Path) -> float:
    """The seconds of one window of the model: 30 with OpenAI's."""
    from transformers import WhisperFeatureExtractor

    from l0drop.data.audio import RATE

    return float(WhisperFeatureExtractor.from_pretrained(root / "whisper-tiny").n_samples) / RATE


def joined(speech: Path, clips: list[tuple[str, str, str]], longest: float) -> list[tuple[str, str, str]]:
    """Clips of one speaker one after the other, in files of 5/6 to 6/6 of the longest number of seconds."""
    import numpy as np
    import soundfile

    from l0drop.data.audio import RATE, read_audio

    (speech / "joined").mkdir(exist_ok=True)
    pause = np.zeros(round(0.01 * longest * RATE), dtype=np.float32)
    found: list[tuple[str, str, str]] = []
    parts: list[Any] = []
    texts: list[str] = []
    before = ""
    for file, speaker, text in [*clips, ("", "", "")]:
        samples = read_audio(speech / file).samples if file else pause
        length = sum(map(len, parts)) + len(pause) * len(parts)
        if parts and (speaker != before or length + len(samples) > longest * RATE):
            if length - len(pause) >= 5 / 6 * longest * RATE:
                name = f"joined/{len(found):03}.wav"
                window = np.concatenate([piece for part in parts for piece in (part, pause)][:-1])
                soundfile.write(speech / name, window, RATE, subtype="PCM_16")
                found.append((name, before, " ".join(texts)))
            parts, texts = [], []
        parts.append(samples)
        texts.append(text)
        before = speaker
    return found


def recipe_of(a: argparse.Namespace, name: str, steps: int, settings: list[str] | None = None) -> Any:
    from l0drop.recipe import load_recipe
    from l0drop.recipe.recipe import Recipe

    kind, _, seed = name.partition(SEED)
    known = "sparse" if MODELS[kind].get("target_sparsity") else kind
    values = load_recipe(ROOT / "recipes" / f"whisper-tiny-{known}.yaml").model_dump()
    values |= {"name": name, "seed": int(seed or 1)}
    values["about"] = "Whisper tiny.en distilled from itself: its transcripts are the texts of the training list."
    speech = str(a.root / "speech")
    values["data"] |= {
        "train": {"tsv": f"{speech}/train.tsv", "timed_column": 2},
        "valid": {"tsv": f"{speech}/valid.tsv", "target_column": 2, "speaker_column": 1},
        "test": None,
        "max_target": MOST_TOKENS,
    }
    values["model"]["pretrained"] = str(a.root / "whisper-tiny")
    values["train"] |= {
        "steps": steps,
        "warmup": max(1, min(50, steps // 8)),
        "targets": "references",
        "precision": "bf16" if has_gpu() else "fp32",
        "save_every": steps,
        "eval_every": 10**6,
    }
    values["evaluate"] |= {"sentences": 92}
    if "lambda_" in MODELS[kind]:
        values["l0drop"]["target_sparsity"] = None
    for key, value in MODELS[kind].items():
        values[SECTIONS.get(key, "l0drop")][key] = value
    for setting in settings or []:
        key, _, value = setting.partition("=")
        section, field = key.split(".")
        values[section][field] = json.loads(value)
    return Recipe.model_validate(values)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def prepared(a: argparse.Namespace) -> None:
    """Features and distributions, in runs/shared/data; `ready` appears when they are complete."""
    from l0drop.training.run import prepare

    started = time.time()
    recipe = recipe_of(a, REFERENCE, 10).model_copy(update={"name": "shared"})
    _, _, corpora = prepare(recipe, a.root / "runs")
    (a.root / "ready").touch()
    print(f"prepared {[len(corpus) for corpus in corpora.values()]} clips in {time.time() - started:.0f} s", flush=True)


def link(a: argparse.Namespace, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "extractor", "tokenizer"):
        if not (folder / name).exists():
            os.symlink(a.root / "runs" / "shared" / name, folder / name)


# --- all models of a plan ------------------------------------------------------------------------------------------


def run(a: argparse.Namespace) -> None:
    """Lists, data, all models of a plan and the plain one side by side, then their comparison."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no process of it goes on
    check_inputs(a.root)
    a.out.mkdir(parents=True, exist_ok=True)
    lists(a)
    names = [*PLANS[a.plan], *([] if (a.root / "results" / "base").exists() else ["base"])]
    limits = ["--start", str(a.start), "--train-until", str(a.train_until), "--until", str(a.until)]
    options = [*limits, *(f"--set={setting}" for setting in a.settings)]
    options += [f"--{name}={value}" for name in ("steps", "limit") if (value := getattr(a, name)) is not None]
    commands = {} if (a.root / "ready").exists() else {"prepare": ["prepare", str(a.root)]}
    commands |= {name: ["model", str(a.root), name, "--plan", a.plan, *options] for name in names}
    failed = processes(a.root, commands, a.start + a.until + GRACE)
    for step in (judge, collect):
        step(a)
    print(f"[{time.time() - a.start:5.0f} s] done", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


def check_inputs(root: Path) -> None:
    """Everything that a long run would otherwise miss late."""
    packages = [name for name in ("soundfile", "soxr", "jiwer") if importlib.util.find_spec(name) is None]
    if packages:
        raise SystemExit(f"install {' '.join(packages)}: pip install 'l0drop[audio]'")
    needed = [root / "teacher.tsv", root / "whisper-tiny" / "model.safetensors"]
    needed += [root / "speech" / part / "transcripts.tsv" for part in PARTS]
    if missing := [str(file) for file in needed if not file.exists()]:
        raise SystemExit(f"missing: {', '.join(missing)}")


def processes(root: Path, commands: dict[str, list[str]], end: float) -> list[str]:
    """Run commands of this script at the same time; those that failed. Without data, or at the end, all are stopped."""
    logs = root / "logs"
    logs.mkdir(exist_ok=True)
    threads = max(1, (os.cpu_count() or 1) // len(commands))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
    failed: list[str] = []
    with contextlib.ExitStack() as stack:
        running = {}
        for name, words in commands.items():
            log = stack.enter_context((logs / f"{name}.log").open("w"))
            running[name] = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *words], stdout=log, stderr=log, env=environment
            )
            stack.callback(stop, running[name])
        while running and time.time() < end:
            time.sleep(0.5)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode:
                    failed.append(name)
                    print(f"{name} failed:\n{(logs / f'{name}.log').read_text()[-2000:]}", flush=True)
            if "prepare" in failed:
                raise SystemExit("there is no data to train on")
        for name in running:
            print(f"{name} was stopped:\n{(logs / f'{name}.log').read_text()[-500:]}", flush=True)
        return [*failed, *running]


def stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# --- one model -----------------------------------------------------------------------------------------------------


def model(a: argparse.Namespace) -> None:
    import torch

    if has_gpu():
        torch.backends.cuda.enable_cudnn_sdp(False)
    import l0drop.training.run as run_module  # loads while data is prepared

    clock = lambda: time.time() - a.start  # noqa: E731
    say = lambda text: print(f"[{clock():5.0f} s] {text}", flush=True)  # noqa: E731
    while not (a.root / "ready").exists():
        if clock() > a.train_until:
            raise SystemExit("the data was never ready")
        time.sleep(0.5)
    say("data is ready")
    runs = a.root / "runs"
    (a.root / "rates").mkdir(exist_ok=True)
    if a.name != "base":
        steps = a.steps or measured_steps(a, clock, say)
        recipe = recipe_of(a, a.name, steps, a.settings)
        link(a, runs / a.name)
        started = time.time()
        metrics = run_module.train(recipe, runs)
        say(f"trained {steps} steps in {time.time() - started:.0f} s; {metrics.calibration}")
        if has_gpu():
            say(f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most")
        compact(a.root / "whisper-tiny", runs / a.name, a.root / "deltas" / f"{a.name}.npz")
        say("weights are compact")
    for name, keep in work_of(a.name):
        what = name if keep is None else f"{name} with keep {keep}"
        if clock() > a.until - LISTS[name].seconds:
            say(f"no time for {what}")
            continue
        transcripts(a, name, keep)
        say(f"{what} is transcribed")


def work_of(name: str) -> list[tuple[str, float | None]]:
    """The lists that a model transcribes, and the shares of rows that it keeps, the most important first."""
    settings = {} if name == "base" else MODELS[name.partition(SEED)[0]]
    first, *others = [(listed, None) for listed in LISTS]
    dials = [(first[0], keep) for keep in DIALS] if settings.get("target_sparsity") else []
    return [first, *dials, *others] if settings.get("elastic") else [first, *others, *dials]


def measured_steps(a: argparse.Namespace, clock: Any, say: Any) -> int:
    """The number of steps that fits, the same for all models."""
    seconds = pilot(a)
    say(f"{seconds * 1000:.0f} ms per step in the pilot run")
    rates = a.root / "rates"
    (rates / f"{a.name}.partial").write_text(str(seconds))
    (rates / f"{a.name}.partial").rename(rates / f"{a.name}.txt")
    waited = time.time()
    chosen = rates / "steps"
    while not chosen.exists():
        found = [float(path.read_text()) for path in rates.glob("*.txt")]
        late = time.time() - waited > 45
        if len(found) == len(PLANS[a.plan]) or late:
            # beside each other all the time, models are slower than some pilots were
            steps = max(20, min(MOST_STEPS, int(0.82 * (a.train_until - clock()) / max(found))))
            own = rates / f"steps-{a.name}"
            own.write_text(str(steps))
            with contextlib.suppress(FileExistsError):
                os.link(own, chosen)  # the first one decides
        time.sleep(0.1)
    steps = int(chosen.read_text())
    say(f"{steps} steps")
    return steps


def pilot(a: argparse.Namespace) -> float:
    """Seconds per step of a short run that is thrown away."""
    from transformers import TrainerCallback

    from l0drop.training.assemble import build_model
    from l0drop.training.run import prepare
    from l0drop.training.trainer import L0DropTrainer

    class Times(TrainerCallback):
        times: list[float] = []  # noqa: RUF012

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            self.times.append(time.perf_counter())

    recipe = recipe_of(a, a.name, PILOT, a.settings)
    link(a, a.root / "pilots" / a.name)
    folder, tokenizers, corpora = prepare(recipe, a.root / "pilots")
    network, teacher = build_model(recipe, tokenizers)
    times = Times()
    L0DropTrainer(recipe, network, corpora, [], tokenizers, folder, teacher, [times]).train()
    half = PILOT // 2
    return (times.times[-1] - times.times[half - 1]) / (PILOT - half)


def transcripts(a: argparse.Namespace, name: str, keep: float | None) -> None:
    from l0drop.data.spoken import read_spoken
    from l0drop.decoding.folder import generation_of
    from l0drop.study.speech.transcripts import transcribed
    from l0drop.study.systems import System

    listed = LISTS[name]
    clips = read_spoken(a.root / "speech" / listed.file)[: a.limit]
    generation = listed.settings(generation_of(recipe_of(a, REFERENCE, 10)))
    generation |= {} if keep is None else {"keep": keep}
    found = transcribed(System(system_path(a, a.name)), clips, generation, batch_size=BATCH)
    folder = a.root / "results" / a.name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / (f"{name}.json" if keep is None else f"{name}-keep-{keep}.json")
    file.write_text(json.dumps(asdict(found), default=str))


def system_path(a: argparse.Namespace, name: str) -> Path:
    return a.root / "whisper-tiny" if name == "base" else a.root / "runs" / name


# --- weights as differences ----------------------------------------------------------------------------------------


def compact(whisper: Path, run: Path, delta: Path) -> None:
    """Round the trained weights: differences to the start in few levels, with a scale per row.

    The run's model is replaced, so that the evaluated model is the collected one.
    """
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    base = load_file(whisper / "model.safetensors")
    file = run / "model" / "model.safetensors"
    trained = load_file(file)
    arrays: dict[str, Any] = {}
    for name, value in trained.items():
        start = base[name].float() if name in base else None
        if start is None:
            arrays[f"whole:{name}"] = value.numpy()
        elif not torch.equal(start, value.float()):
            difference = value.float() - start
            scale = difference.abs().amax(-1, keepdim=True).clamp_min(1e-12) / LEVELS
            levels = (difference / scale).round().to(torch.int8)
            arrays[f"levels:{name}"], arrays[f"scale:{name}"] = levels.numpy(), scale.numpy()
            trained[name] = (start + levels.float() * scale).to(value.dtype)
    save_file(trained, file, metadata={"format": "pt"})
    delta.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(delta, **arrays)


def restore(delta: Path, whisper: Path, folder: Path) -> None:
    """The model of `compact`: `folder` has its other files, or is a run whose model folder has them."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    target = folder / "model" if (folder / "model").is_dir() else folder
    weights = {name: value.float() for name, value in load_file(whisper / "model.safetensors").items()}
    arrays = np.load(delta)
    for key in arrays.files:
        kind, _, name = key.partition(":")
        if kind == "whole":
            weights[name] = torch.from_numpy(arrays[key])
        elif kind == "levels":
            weights[name] = weights[name] + torch.from_numpy(arrays[key]).float() * torch.from_numpy(
                arrays[f"scale:{name}"]
            )
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})


def opened(gated: Path, whisper: Path, folder: Path) -> None:
    """A model that only cuts its padding, with the weights of a gated one, to time it where its own are missing."""
    from safetensors.torch import load_file
    from transformers import AutoModelForSpeechSeq2Seq

    from l0drop import L0DropConfig, sparsify

    base = AutoModelForSpeechSeq2Seq.from_pretrained(whisper).float()
    weights = load_file(gated / "model.safetensors")
    base.load_state_dict({name: value for name, value in weights.items() if "gate" not in name}, strict=False)
    shutil.copytree(whisper, folder)
    sparsify(base, L0DropConfig(gating="mask", gate="open", lambda_=0.0, cut_padding=0.5)).save_pretrained(folder)


# --- results -------------------------------------------------------------------------------------------------------


def judge(a: argparse.Namespace) -> None:
    """Evaluation folders, one per list: every model of all plans against the continued one."""
    from l0drop.data.spoken import read_spoken
    from l0drop.data.text import file_stamp
    from l0drop.runs.evaluation import FileStamp
    from l0drop.runs.speech import EndToEnd, SpeechJudging
    from l0drop.study.speech import evaluate
    from l0drop.study.speech.transcripts import Transcribed
    from l0drop.study.systems import System

    def read(file: Path) -> Transcribed:
        values = json.loads(file.read_text())
        return Transcribed(**{**values, "time": EndToEnd(**values["time"])})

    trained = dict.fromkeys(model for plan in PLANS.values() for model in plan)
    for name, listed in LISTS.items():
        results = a.root / "results"
        names = [model for model in ("base", *trained) if (results / model / f"{name}.json").exists()]
        if REFERENCE not in names or len(names) < 2:
            print(f"{name}: too few transcripts")
            continue
        file = a.root / "speech" / listed.file
        outputs = {model: read(results / model / f"{name}.json") for model in names}
        clips = read_spoken(file)[: len(outputs[REFERENCE].texts)]
        others = [model for model in names if model != REFERENCE]
        evaluation, counts = evaluate.evaluate_transcripts(
            [System(system_path(a, model)) for model in others],
            [outputs[model] for model in others],
            System(system_path(a, REFERENCE)),
            outputs[REFERENCE],
            clips,
            SpeechJudging(margin=listed.margin),
            FileStamp(**file_stamp(file)),
        )
        folder = a.root / "evaluation" / name
        folder.mkdir(parents=True, exist_ok=True)
        counts.write(folder / "statistics.json.gz")
        evaluation.write(folder / "metrics.json")
        for model in (*others, REFERENCE):
            found = outputs[model]
            shares = () if found.sparsity is None else (found.sparsity, found.sparsity_of_all)
            dropped = " ".join(f"{100 * share:.1f}" for share in shares) or "- -"
            path = str(system_path(a, model))
            record = next((one for one in evaluation.systems if one.name == path), evaluation.baseline)
            assert record is not None
            tail = f" tail {record.tail.rising} up {record.tail.falling} down" if record.tail else ""
            rates = " ".join(f"{speaker}:{one.wer:.1f}" for speaker, one in record.speakers.items())
            print(f"{name:7} {model:16} dropped {dropped:10} WER {record.scores['wer'].value:.2f}{tail} | {rates}")
        for kind, rates_of_seeds in by_seed(evaluation).items():
            print(f"{name:7} {kind:16} {len(rates_of_seeds)} seeds: WER", *(f"{rate:.2f}" for rate in rates_of_seeds))


def by_seed(evaluation: Any) -> dict[str, list[float]]:
    """The error rates of models that were trained with several seeds."""
    found: dict[str, list[float]] = {}
    for one in (evaluation.baseline, *evaluation.systems):
        found.setdefault(Path(one.name).name.partition(SEED)[0], []).append(one.scores["wer"].value)
    return {kind: rates for kind, rates in found.items() if len(rates) > 1}


def collect(a: argparse.Namespace) -> None:
    """speech.tar.gz with everything but weights, and a file of weights per model."""
    a.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(a.out / "speech.tar.gz", "w:gz", compresslevel=6) as archive:
        for name in ("results", "evaluation", "rates", "logs"):
            if (a.root / name).exists():
                archive.add(a.root / name, name)
        for run in (a.root / "runs").glob("*"):
            names = ("recipe.yaml", "log.jsonl", "metrics.json", "outputs")
            for path in (*(run / name for name in names), *(run / "model").glob("*.json")):
                if path.exists() and run.name != "shared":
                    archive.add(path, path.relative_to(a.root).as_posix())
    ready = [name for name in BRING if (a.root / "deltas" / f"{name}.npz").exists()]
    for name in ready[: a.weights]:
        shutil.copy(a.root / "deltas" / f"{name}.npz", a.out / f"{name}.npz")
    print({path.name: path.stat().st_size for path in a.out.iterdir()})


def publish(a: argparse.Namespace) -> None:
    """What may be shown: scores, sparsities, differences, speakers and counts; no transcripts and no file names."""
    from l0drop.data.speech_metrics import wer
    from l0drop.data.spoken import read_spoken

    for name in LISTS:
        file = a.root / "evaluation" / name / "metrics.json"
        if not file.exists():
            print(f"{name}: no evaluation")
            continue
        content = without_names(json.loads(file.read_text()))
        run_away = runaways(a.root, name, content)
        for system in (*content["systems"], content["baseline"]):
            model = Path(system["name"]).name
            system["name"] = "whisper-tiny" if model in ("whisper-tiny", "base") else f"whisper-tiny-{model}"
            run = a.root / "runs" / model
            if (run / "recipe.yaml").exists():
                system["recipe"] = settings_of(run)
            if name == "pooled":
                clips = read_spoken(a.root / "speech" / "pooled.tsv")
                texts = json.loads((a.root / "results" / _key(model) / "pooled.json").read_text())["texts"]
                for part in ("test", "test_other"):
                    chosen = [i for i in range(len(texts)) if clips[i].name.startswith(f"{part}/")]
                    if chosen:
                        score = wer([texts[i] for i in chosen], [clips[i].text for i in chosen])
                        system[part] = {"wer": score.value, "clips": len(chosen)}
                chosen = [i for i in range(len(texts)) if i not in run_away]
                if chosen:
                    score = wer([texts[i] for i in chosen], [clips[i].text for i in chosen])
                    system["without_runaways"] = {"wer": score.value, "clips": len(chosen)}
                system["dial"] = []
                for dialled in sorted((a.root / "results" / _key(model)).glob("pooled-keep-*.json")):
                    found = json.loads(dialled.read_text())
                    score = wer(found["texts"], [clip.text for clip in clips[: len(texts)]])
                    row = {"keep": float(dialled.stem.rpartition("-")[2]), "wer": score.value}
                    system["dial"].append(row | {key: found[key] for key in ("sparsity", "sparsity_of_all")})
        a.out.mkdir(parents=True, exist_ok=True)
        target = a.out / f"whisper-tiny-{name}.json"
        target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(target)


def small(a: argparse.Namespace) -> None:
    """The evaluations of one run as a file for docs/results."""
    content: dict[str, Any] = {"recipe": settings_of(a.run), "evaluations": {}}
    content["calibration"] = json.loads((a.run / "metrics.json").read_text())["calibration"]
    phases = (one.partition("=") for one in a.cpu_seconds)
    content["cpu_seconds"] = {phase: int(seconds) for phase, _, seconds in phases}
    for name, _, folder in (one.partition("=") for one in a.evaluations):
        found = without_names(json.loads((Path(folder) / "metrics.json").read_text()))
        for system in (*found["systems"], found["baseline"]):
            system["name"] = Path(system["name"]).name
        content["evaluations"][name] = found
    target = a.out / "whisper-tiny-small.json"
    target.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(target)


def without_names(evaluation: dict[str, Any]) -> dict[str, Any]:
    """An evaluation without the names of folders and clips."""
    for system in (*evaluation["systems"], evaluation["baseline"]):
        (system.get("tail") or {}).pop("worst", None)
        for stamp in system["files"]:
            stamp["path"] = Path(stamp["path"]).name
    evaluation["audio"].pop("path", None)
    return evaluation


def settings_of(run: Path) -> dict[str, Any]:
    """The settings of a run that results depend on."""
    from l0drop.recipe import load_recipe

    recipe = load_recipe(run / "recipe.yaml")
    return {
        "l0drop": None if recipe.l0drop is None else recipe.l0drop.model_dump(mode="json"),
        "train": recipe.train.model_dump(mode="json"),
        "seed": recipe.seed,
        **{key: getattr(recipe.data, key) for key in ("join", "timestamps", "cut")},
    }


def runaways(root: Path, name: str, evaluation: dict[str, Any]) -> set[int]:
    """The clips whose transcript by some model is a runaway."""
    from l0drop.data.speech_metrics import clip_errors
    from l0drop.data.spoken import read_spoken

    references = [clip.text for clip in read_spoken(root / "speech" / LISTS[name].file)]
    found: set[int] = set()
    for system in (*evaluation["systems"], evaluation["baseline"]):
        file = root / "results" / _key(Path(system["name"]).name) / f"{name}.json"
        errors = clip_errors(json.loads(file.read_text())["texts"], references)
        found |= {i for i, clip in enumerate(errors) if clip.is_runaway}
    return found


def _key(model: str) -> str:
    return "base" if model == "whisper-tiny" else model


if __name__ == "__main__":
    main()
