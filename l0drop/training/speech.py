"""From a recipe for audio to its feature extractor and clips, with a teacher's transcripts if it asks for them."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, WhisperFeatureExtractor

from l0drop.data.audio import RATE, Audio
from l0drop.data.audio_list import AudioList, open_audio
from l0drop.data.clip_targets import TopTokens
from l0drop.data.clips import ClipCorpus
from l0drop.data.prepare_clips import Given, prepare_clips
from l0drop.data.speech_targets import SpeechTargets, timed_text
from l0drop.data.text import Pair
from l0drop.data.tokenizer import TokenizerPair, fingerprint
from l0drop.data.whole import locked, whole_folder
from l0drop.decoding.folder import first_line
from l0drop.decoding.speech import SpeechModel
from l0drop.recipe import Recipe
from l0drop.training.assemble import check_teacher, load_dense, model_folder, teacher_name, weights_stamp
from l0drop.training.bars import NO_BARS, Bars
from l0drop.training.corpora import has_teacher_outputs

WINDOW = 64
"""The number of clips that are read and transcribed before more are read."""
EXTRACTOR = "extractor"
"""The folder of a run with its feature extractor and the model's generation settings."""


def build_extractor(recipe: Recipe, folder: Path) -> tuple[Any, GenerationConfig]:
    """The feature extractor and the generation settings in the run's folder, or those of the model it starts from."""
    own = folder / EXTRACTOR
    if not own.is_dir():
        start = recipe.model.init or recipe.model.pretrained
        assert start is not None
        found = model_folder(start)
        path = str(found) if found.is_dir() else start
        try:
            extractor = WhisperFeatureExtractor.from_pretrained(path)
            settings = GenerationConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{start}: task: transcription needs a Whisper with its feature extractor and generation_config.json "
                f"({first_line(error)})"
            ) from error
        with locked(own), whole_folder(own) as partial:
            extractor.save_pretrained(partial)
            settings.save_pretrained(partial)
    return WhisperFeatureExtractor.from_pretrained(own), GenerationConfig.from_pretrained(own)


def build_clips(recipe: Recipe, folder: Path, tokenizers: TokenizerPair, bars: Bars = NO_BARS) -> dict[str, ClipCorpus]:
    """The clips of a run's splits; missing ones are written."""
    extractor, settings = build_extractor(recipe, folder)
    start = recipe.model.init or recipe.model.pretrained or ""
    targets = SpeechTargets.of(tokenizers.target, settings, recipe.data.language, start)
    load = functools.cache(functools.partial(_load_teacher, recipe, extractor, tokenizers))
    corpora = {}
    for split in recipe.data.splits:
        audio: AudioList | TeacherTranscripts = open_audio(recipe.data, split)
        by_teacher = has_teacher_outputs(recipe, split)
        timed = split == "train" and recipe.data.timestamps > 0
        teacher = distributions(recipe, load, split)
        with bars.phase(f"{split}: clips {'transcribed' if by_teacher else 'read'}") as update:
            if by_teacher:
                assert isinstance(audio, AudioList)
                audio = _taught(recipe, audio, tokenizers, extractor, targets, load, update, timed)
            corpora[split] = prepare_clips(
                audio,
                targets,
                extractor,
                folder / "data" / split,
                max_target=recipe.data.max_target,
                timed=timed,
                teacher=teacher,
                progress=None if by_teacher else update,
                instead=Path(recipe.model.init) / "data" / split if recipe.model.init is not None else None,
            )
    return corpora


def _taught(
    recipe: Recipe,
    audio: AudioList,
    tokenizers: TokenizerPair,
    extractor: Any,
    targets: SpeechTargets,
    load: Callable[[], SpeechModel],
    update: Callable[[int], None],
    timed: bool,
) -> "TeacherTranscripts":
    teacher, name = recipe.train.teacher, teacher_name(recipe)
    assert teacher is not None
    return TeacherTranscripts(
        audio=audio,
        load=load,
        identity={"model": name, "weights": weights_stamp(name), "tokenizer": fingerprint(tokenizers.target)},
        generation={
            "num_beams": teacher.beams,
            "max_new_tokens": teacher.max_new_tokens or recipe.data.max_target,
            "do_sample": False,
            **targets.generation,
        },
        seconds=round(extractor.n_samples) / RATE,
        with_times=timed,
        transcribed=update,
    )


def _load_teacher(recipe: Recipe, extractor: Any, tokenizers: TokenizerPair) -> SpeechModel:
    name = teacher_name(recipe)
    model = load_dense(name).eval().to("cuda" if torch.cuda.is_available() else "cpu")
    if recipe.train.teacher is not None and recipe.train.teacher.top is not None:
        check_teacher(model, recipe, name, tokenizers)
    return SpeechModel("train.teacher", model, extractor, tokenizers.target)


def distributions(recipe: Recipe, load: Callable[[], SpeechModel], split: str) -> "TeacherDistributions | None":
    """The teacher whose distributions are stored with a split, if the recipe says so."""
    teacher = recipe.train.teacher
    if split != "train" or teacher is None or teacher.top is None:
        return None
    name = teacher_name(recipe)
    return TeacherDistributions(load, teacher.top, {"model": name, "weights": weights_stamp(name), "top": teacher.top})


@dataclass(frozen=True)
class TeacherDistributions:
    """A dense Whisper's log-probabilities of its `top` most likely tokens, for clips that are prepared."""

    load: Callable[[], SpeechModel]
    top: int
    identity: dict[str, Any]

    @torch.no_grad()
    def __call__(self, features: Tensor, targets: Sequence[Given]) -> list[TopTokens]:
        model = self.load().model
        if self.top > model.config.vocab_size:
            raise ValueError(
                f"train.teacher.top: {self.top} is more than the teacher's {model.config.vocab_size} tokens"
            )
        encoded = model.get_encoder()(features[None].to(model.device, model.dtype))
        found = []
        for target in targets:
            inputs = torch.tensor([target.tokens], device=model.device)
            logits = model(encoder_outputs=encoded, decoder_input_ids=inputs).logits
            values, ids = logits[0, target.prompt - 1 :].float().log_softmax(-1).topk(self.top)
            found.append(TopTokens(values.cpu().numpy(), ids.cpu().numpy()))
        return found


@dataclass(frozen=True)
class TeacherTranscripts:
    """A list of audio files with the teacher's transcripts as texts; silence has a blank one, and is skipped."""

    audio: AudioList
    load: Callable[[], SpeechModel]
    identity: dict[str, Any]
    generation: dict[str, Any]
    seconds: float
    """The longest clip."""
    with_times: bool = False
    """Whether the teacher transcribes every clip once more, with times."""
    transcribed: Callable[[int], None] = lambda clips: None
    """Called with the number of clips transcribed so far."""
    times: dict[int, str] = field(default_factory=dict)
    """The texts with times of the lines read so far."""

    @property
    def file(self) -> Path:
        return self.audio.file

    def read(self, pair: Pair, most_seconds: float) -> Audio:
        return self.audio.read(pair, most_seconds)

    def timed(self, pair: Pair) -> str:
        """The teacher's transcript with times of a line that was read."""
        return self.times.get(pair.line, "")

    def inputs(self) -> list[dict[str, Any]]:
        return [*self.audio.inputs(), {"teacher": self.identity, **self.generation}]

    def __iter__(self) -> Iterator[Pair]:
        model = self.load()  # only if transcripts are missing
        settings = model.settings(self.generation)
        pairs, done = iter(self.audio), 0
        while window := list(islice(pairs, WINDOW)):
            texts = [""] * len(window)
            heard = [i for i, pair in enumerate(window) if pair.source.strip()]
            clips = [self.read(window[i], self.seconds) for i in heard]
            for batch in model.batches(clips):
                audio = [clips[i] for i in batch]
                for index, result in zip(batch, model.decode(audio, settings), strict=True):
                    texts[heard[index]] = result.text
                if self.with_times:
                    timed = model.decode(audio, {**settings, "return_timestamps": True})
                    for index, result in zip(batch, timed, strict=True):
                        segments = ((part.start, part.end, part.text) for part in result.segments)
                        self.times[window[heard[index]].line] = timed_text(segments)
                done += len(batch)
                self.transcribed(done)
            for pair, text in zip(window, texts, strict=True):
                yield pair._replace(target=text)
