"""Transcripts of a list of clips by a model, with its sparsity and time; or read from a file."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from l0drop.data.audio import RATE, Audio, AudioError, trimmed
from l0drop.data.spoken import SpokenClip
from l0drop.data.text import CorpusError, one_line, read_lines
from l0drop.decoding.folder import fingerprint
from l0drop.decoding.speech import BATCH_CLIPS, SpeechModel, load_speech
from l0drop.runs.json_file import Settings
from l0drop.runs.provenance import provenance
from l0drop.runs.speech import EndToEnd
from l0drop.study.systems import System

Advance = Callable[[int], None]
AT_ONCE = 64
"""Clips that are read before they are decoded in batches of similar length."""


@dataclass(frozen=True)
class Transcribed:
    """One text per clip. sparsity: of covered rows, sparsity_of_all: of all rows; None without gates or a model.

    seconds: of audio, after trimming. silent: clips without sound. long: recordings of more than one window.
    """

    texts: list[str]
    sparsity: float | None = None
    sparsity_of_all: float | None = None
    time: EndToEnd | None = None
    decoding: Settings | None = None
    seconds: float = 0.0
    silent: int = 0
    long: int = 0
    seconds_trimmed: float = 0.0


def read_clip(model: SpeechModel, clip: SpokenClip) -> Audio:
    """The audio of a clip; an error names its line in the list."""
    try:
        return model.read(clip.file, str(clip.file))
    except AudioError as error:
        raise CorpusError(f"line {clip.line} of the list: {error}") from error


def transcribed(
    system: System,
    clips: Sequence[SpokenClip],
    generation: Settings,
    *,
    trim: float | None = None,
    batch_size: int = BATCH_CLIPS,
    device: str | None = None,
    progress: Advance | None = None,
) -> Transcribed:
    """Decode the clips, or read the file of transcripts."""
    if not system.is_model:
        texts = list(read_lines(system.path))
        if len(texts) != len(clips):
            raise CorpusError(f"{system.path} has {len(texts)} lines but the list has {len(clips)} clips")
        return Transcribed(texts)
    return _decoded(
        load_speech(system.path, device, system.dtype),
        clips,
        generation,
        trim,
        batch_size,
        progress or (lambda _: None),
    )


def _decoded(
    model: SpeechModel,
    clips: Sequence[SpokenClip],
    generation: Settings,
    trim: float | None,
    batch_size: int,
    advance: Advance,
) -> Transcribed:
    settings = model.settings(generation)
    texts = [""] * len(clips)
    covered = kept = rows = rows_kept = silent = long = 0
    seconds = before = cpu = wall = 0.0
    warm = False
    for start in range(0, len(clips), AT_ONCE):
        audio = [read_clip(model, clip) for clip in clips[start : start + AT_ONCE]]
        before += sum(one.seconds for one in audio)
        if trim is not None:
            audio = [trimmed(one, trim) for one in audio]
        seconds += sum(one.seconds for one in audio)
        silent += sum(one.is_silent for one in audio)
        long += sum(model.is_long(one) for one in audio)
        batches = model.batches(audio, batch_size)
        advance(len(audio) - sum(map(len, batches)))
        for batch in batches:
            if not warm:  # the first call packs weights and fills caches; a second of a long recording is enough
                shortest = audio[batch[-1]]
                model.decode([Audio(shortest.name, shortest.samples[:RATE])], settings)
                warm = True
            cpu_before, wall_before = time.process_time(), time.perf_counter()
            found = model.decode([audio[index] for index in batch], settings)
            cpu, wall = cpu + time.process_time() - cpu_before, wall + time.perf_counter() - wall_before
            for index, one in zip(batch, found, strict=True):
                texts[start + index] = one_line(one.text)
                covered, kept = covered + one.covered, kept + len(one.kept)
                rows, rows_kept = rows + one.rows, rows_kept + one.rows_kept
            advance(len(batch))
    gated = model.is_gated and rows > 0
    beams = settings.get("num_beams") or model.model.generation_config.num_beams or 1
    made_by = asdict(provenance(model.model.device))
    return Transcribed(
        texts,
        sparsity=1 - kept / covered if gated else None,
        sparsity_of_all=1 - rows_kept / rows if gated else None,
        time=EndToEnd(cpu, wall, seconds, batch_size),
        decoding={
            **settings,
            "num_beams": beams,
            "dtype": model.dtype,
            "weights": fingerprint(model.name, model.model),
            **made_by,
        },
        seconds=seconds,
        silent=silent,
        long=long,
        seconds_trimmed=before - seconds,
    )
