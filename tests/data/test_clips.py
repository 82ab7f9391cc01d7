"""Prepared clips: features without padding, target tokens, joined clips, and lists with faults."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import soundfile
import torch

from l0drop.data.audio import log_mel
from l0drop.data.audio_list import AudioList
from l0drop.data.clip_targets import TopTokens
from l0drop.data.clips import ClipCorpus, unpacked_windows
from l0drop.data.corpus import TokenizedCorpus
from l0drop.data.prepare_clips import Given, prepare_clips
from l0drop.data.speech_targets import SpeechTargets
from l0drop.data.text import CorpusError, TsvFile
from tests.models import whispers

SECONDS = (0.48, 0.4799, 0.4677, 0.31, 0.2001, 0.05, 0.013)
TEXTS = ("b1 c2", "d3", "e4 f5 g6", "b1", "h7 b1", "c2", "d3 d3 d3 d3")


def targets(multilingual: bool = False) -> SpeechTargets:
    settings = whispers.build(multilingual=multilingual).generation_config
    return SpeechTargets.of(whispers.tokenizer(), settings, "en", "tiny")


def listed(
    folder: Path, sounds: dict[str, np.ndarray], texts: tuple[str, ...] = TEXTS, times: tuple[str, ...] | None = None
) -> AudioList:
    folder.mkdir(parents=True, exist_ok=True)
    for name, samples in sounds.items():
        soundfile.write(folder / name, samples, 16_000, subtype="FLOAT")
    lines = (f"{name}\t{text}\t{timed}\n" for name, text, timed in zip(sounds, texts, times or texts, strict=False))
    (folder / "list.tsv").write_text("".join(lines))
    file = folder / "list.tsv"
    return AudioList(file, TsvFile(file), None if times is None else TsvFile(file, 0, 2))


def tones() -> dict[str, np.ndarray]:
    """Clips of several lengths; the fourth has a quiet end, below the limit of the dynamic range."""
    sounds = {f"{i}.wav": whispers.tone(seconds, seed=i) for i, seconds in enumerate(SECONDS)}
    sounds["3.wav"][2000:] *= 1e-7
    return sounds


def prepared(folder: Path, audio: AudioList, **options: Any) -> ClipCorpus:
    settings = {"max_target": 20, **options}
    return prepare_clips(audio, targets(), whispers.extractor(), folder / "corpus", **settings)


def test_features_are_those_of_the_padded_clip(tmp_path: Path) -> None:
    sounds = tones()
    corpus = prepared(tmp_path, listed(tmp_path, sounds))
    extractor = whispers.extractor()
    shorter = 0
    for index, samples in enumerate(sounds.values()):
        clip = corpus[index]
        expected = log_mel(samples, extractor, padded=True).numpy()
        window = clip.window(whispers.FRAMES)
        assert np.abs(window - expected).max() < 2**-10, "float16"
        stored = len(clip.features)
        assert np.abs(window[:, stored:] - expected[:, stored:]).max(initial=0) < 1e-6, "padding is not rounded"
        assert clip.covered == max(1, len(samples) // 160)
        shorter += stored < whispers.FRAMES
    assert shorter >= 4
    assert corpus.summary.pairs == len(SECONDS)


def test_silence_is_padding_of_another_value(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, {"a.wav": np.zeros(1600, np.float32)}))
    assert np.all(corpus[0].window(whispers.FRAMES) == -1.5)


def test_joined_features_are_those_of_the_joined_audio(tmp_path: Path) -> None:
    sounds = {"quiet.wav": 0.01 * whispers.tone(0.2, 1), "loud.wav": whispers.tone(0.15, 2)}
    corpus = prepared(tmp_path, listed(tmp_path, sounds))
    quiet, loud = corpus[0], corpus[1]
    both = corpus.joined([0, 1])
    seam = len(quiet.features)
    samples = np.zeros(seam * 160 + len(sounds["loud.wav"]), np.float32)
    samples[: len(sounds["quiet.wav"])] = sounds["quiet.wav"]
    samples[seam * 160 :] = sounds["loud.wav"]
    expected = log_mel(samples, whispers.extractor(), padded=True).numpy()
    error = np.abs(both.window(whispers.FRAMES) - expected).max(0)
    assert error[np.abs(np.arange(whispers.FRAMES) - seam) > 2].max() < 2**-10
    alone = np.abs(quiet.window(whispers.FRAMES)[:, : seam - 3] - expected[:, : seam - 3]).max()
    assert alone > 0.01, "the louder clip raises the limit"
    assert both.covered == seam + loud.covered
    assert both.target.ids.tolist() == [*quiet.target.ids, *loud.target.ids]


def test_the_prompt_is_given_and_has_no_labels(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones()))
    batch = corpus.collate([corpus[0], corpus[3]])
    start, untimed, end = whispers.START, whispers.NO_TIMESTAMPS, whispers.EOS
    assert batch["decoder_input_ids"].tolist() == [[start, untimed, 1, 2], [start, untimed, 1, end]]
    assert batch["labels"].tolist() == [[-100, 1, 2, end], [-100, 1, end, -100]]
    assert batch["attention_mask"].sum(1).tolist() == [48, 31]
    assert batch["source_tokens"] == 24 + 16
    assert corpus.text(2) == "e4 f5 g6"


def test_a_multilingual_model_is_told_language_and_task() -> None:
    found = targets(multilingual=True)
    assert found.prompt == (whispers.START, 62, 64, whispers.NO_TIMESTAMPS)
    assert found.generation == {"return_timestamps": False, "language": "en", "task": "transcribe"}
    settings = whispers.build().generation_config
    with pytest.raises(ValueError, match=r"data\.language: tiny has no language 'fr'; it has 2: de, en"):
        SpeechTargets.of(whispers.tokenizer(), settings, "fr", "tiny")
    settings = whispers.build(multilingual=False).generation_config
    with pytest.raises(ValueError, match=r"data\.language: tiny knows English alone"):
        SpeechTargets.of(whispers.tokenizer(), settings, "de", "tiny")


def test_long_texts_are_cut_and_blank_ones_skipped(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), ("b1 c2 d3", "", *TEXTS[2:])), max_target=3)
    assert (corpus.summary.lines, corpus.summary.pairs, corpus.summary.one_sided) == (7, 6, 1)
    assert corpus.summary.truncated_target == 3
    assert corpus[0].target.ids.tolist() == [1, 2]
    assert corpus.text(0) == "b1 c2 d3"


def test_an_equal_request_is_not_written_again(tmp_path: Path) -> None:
    audio = listed(tmp_path, tones())
    manifest = tmp_path / "corpus" / "manifest.json"
    first = prepared(tmp_path, audio).made_from
    written = manifest.stat().st_mtime_ns
    assert prepared(tmp_path, audio).made_from == first
    assert manifest.stat().st_mtime_ns == written
    soundfile.write(tmp_path / "1.wav", whispers.tone(0.2, 9), 16_000, subtype="FLOAT")
    assert prepared(tmp_path, audio).made_from != first, "other audio"
    (tmp_path / "corpus" / "features").write_bytes(b"damaged")
    prepared(tmp_path, audio).check()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"there is no such file"),
        (b"no audio", r"cannot be read as audio"),
        (whispers.wav(0.6), r"has 0\.6 seconds, more than a window of 0\.48; cut it into shorter clips"),
        (whispers.wav(0.0), r"has no samples"),
    ],
    ids=["missing", "no audio", "long", "empty"],  # the bytes of a WAV file hold the time at which it was written
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, content: bytes | None, problem: str) -> None:
    audio = listed(tmp_path, tones())
    (tmp_path / "2.wav").unlink()
    if content is not None:
        (tmp_path / "2.wav").write_bytes(content)
    with pytest.raises(CorpusError, match=rf"list\.tsv, line 3: .*2\.wav: {problem}"):
        prepared(tmp_path, audio)
    assert not (tmp_path / "corpus").exists(), "whole or not at all"


def test_text_and_audio_are_not_mixed_up(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones()))
    with pytest.raises(CorpusError, match="holds audio, not text"):
        TokenizedCorpus.open(corpus.folder)
    manifest = json.loads((corpus.folder / "manifest.json").read_text())
    assert manifest["columns"]["features"]["dtype"] == "float16"
    assert torch.isfinite(corpus.collate([corpus[0]])["input_features"]).all()


def test_packed_clips_give_the_same_windows(tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "out", listed(tmp_path, tones()))
    clips = [corpus[0], corpus.joined([1, 2])]
    plain, packed = corpus.collate(clips), corpus.collate(clips, packed=True)
    found = unpacked_windows(packed, corpus.window, "cpu")
    assert torch.equal(found["input_features"], plain["input_features"])
    assert found.keys() == plain.keys()
    single = torch.from_numpy(np.stack([clip.window(corpus.window) for clip in clips]))
    assert torch.equal(single, plain["input_features"])


TIMES = (
    "<|0.00|> b1<|0.20|><|0.24|> c2<|0.48|>",
    "<|0.02|> d3<|0.40|>",
    "<|0.00|> e4 f5<|0.20|><|0.20|> g6<|0.46|>",
    "",
    "<|0.00|> h7 b1<|0.10|>",
    "<|0.00|> c2<|0.04|>",
    "<|0.00|> d3 d3<|0.02|>",
)
FIRST = whispers.NO_TIMESTAMPS + 1


def test_texts_with_times_are_targets_of_their_own(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), times=TIMES), timed=True)
    plain = prepared(tmp_path / "plain", listed(tmp_path, tones()))
    assert corpus.timed_lengths.tolist() == [6, 3, 7, 0, 4, 3, 4]
    assert plain.timed_lengths.tolist() == [0] * 7
    assert corpus.made_from != plain.made_from
    for index in range(7):
        assert corpus[index].target.ids.tolist() == plain[index].target.ids.tolist(), "without times"
    assert corpus.clip(0, timed=True).target.ids.tolist() == [FIRST, 1, FIRST + 10, FIRST + 12, 2, FIRST + 24]
    with pytest.raises(ValueError, match="clip 3 has no times"):
        corpus.clip(3, timed=True)


def test_times_have_labels_and_the_prompt_asks_for_them(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), times=TIMES), timed=True)
    batch = corpus.collate([corpus.clip(4, timed=True), corpus[4]])
    start, untimed, end = whispers.START, whispers.NO_TIMESTAMPS, whispers.EOS
    assert batch["decoder_input_ids"].tolist() == [[start, FIRST, 7, 1, FIRST + 5], [start, untimed, 7, 1, end]]
    assert batch["labels"].tolist() == [[FIRST, 7, 1, FIRST + 5, end], [-100, 7, 1, end, -100]]


def test_a_window_is_cut_within_its_last_clip(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), times=TIMES), timed=True)
    parts = [4, 2]
    clip, start = corpus.joined(parts, timed=True), len(corpus[4].features)
    assert len(clip.features) == clip.covered == corpus.window == whispers.FRAMES
    assert np.array_equal(clip.features[start:], corpus[2].features[: corpus.window - start])
    row = -(-start // 2)
    cut = [FIRST, 7, 1, FIRST + 5, FIRST + row, 4, 5, FIRST + row + 10, FIRST + row + 10]
    assert row + 10 < whispers.ROWS
    assert clip.target.ids.tolist() == cut
    (inputs,) = corpus.collate([clip])["decoder_input_ids"].tolist()
    assert inputs == [whispers.START, *cut]


def test_a_clip_begins_at_the_next_time_that_a_token_has(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), times=TIMES), timed=True)
    assert len(corpus[5].features) == 7
    found = corpus.joined([5, 4], timed=True).target.ids.tolist()
    assert found == [FIRST, 2, FIRST + 2, FIRST + 4, 7, 1, FIRST + 4 + 5]


def test_tokens_are_counted_as_they_are_joined(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), times=TIMES), timed=True)
    clips = [index for index in range(7) if corpus.timed_lengths[index]]
    several = [[one, other] for one in clips for other in clips] + [[6, 5, other] for other in clips]
    for parts in [[one] for one in clips] + several:
        assert corpus.timed_tokens(parts) == len(corpus.joined(parts, timed=True).target.ids), parts


class Echo:
    """A teacher that expects the very tokens that it is given, and EOS."""

    identity: ClassVar = {"model": "echo", "top": 2}

    def __call__(self, features: torch.Tensor, targets: Sequence[Given]) -> list[TopTokens]:
        return [self.rows([*target.tokens[target.prompt :], whispers.EOS]) for target in targets]

    @staticmethod
    def rows(tokens: list[int]) -> TopTokens:
        return TopTokens(np.tile([0.0, -9.0], (len(tokens), 1)), np.array([[token, 1] for token in tokens]))


def test_a_teacher_hears_both_texts_of_a_clip(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, listed(tmp_path, tones(), times=TIMES), timed=True, teacher=Echo())
    assert not corpus.timed_lengths[3], "so that rows and clips are counted apart"
    for index in range(7):
        for timed in (False, True) if corpus.timed_lengths[index] else (False,):
            target = corpus.clip(index, timed=timed).target
            assert target.teacher is not None
            assert target.teacher.ids[:, 0].tolist() == [*target.ids, whispers.EOS], (index, timed)
    clips = [corpus.joined([4, 2], timed=True), corpus[3], corpus.joined([5, 6, 4], timed=True)]
    batch = corpus.collate(clips)
    assert batch["teacher_ids"][:, 0].tolist() == batch["labels"][batch["labels"] != -100].tolist()


def test_times_that_do_not_fit_are_named_or_left_out(tmp_path: Path) -> None:
    late = ("<|0.00|> b1<|0.48|>", "<|0.02|> d3<|0.40|>", "<|0.00|> e4<|0.48|>", "<|0.00|> b1<|0.40|>")
    with pytest.raises(CorpusError, match=r"list\.tsv, line 4: text with times: the time 0\.40 is after the end"):
        prepared(tmp_path / "late", listed(tmp_path, tones(), times=late), timed=True)
    short = prepared(tmp_path / "short", listed(tmp_path, tones(), times=TIMES), timed=True, max_target=4)
    assert short.timed_lengths.tolist() == [0, 3, 0, 0, 0, 3, 0], "more than three tokens"
    with pytest.raises(CorpusError, match=r"none of its texts has times; set data\.timestamps: 0"):
        prepared(tmp_path / "none", listed(tmp_path, tones(), times=("",) * 7), timed=True)
