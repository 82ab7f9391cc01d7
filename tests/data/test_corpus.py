import gzip
import json
import lzma
import os
import pickle
import random
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, PreTrainedTokenizerFast

from l0drop.data.corpus import Summary, TokenizedCorpus
from l0drop.data.prepare import prepare_corpus, usable_pairs
from l0drop.data.sources import Prefixed
from l0drop.data.text import CorpusError, HubDataset, JsonlFile, Pair, TextFiles, TsvFile, one_line, read_lines
from l0drop.data.tokenizer import TokenizerPair, train_tokenizer
from tests.mutations import KINDS, fields, mutated

SOURCES = ["The cat sleeps.", "", "A dog, a big dog, runs.", "Nobody came.", "", "It rains", "one two three four"]
TARGETS = ["Die Katze schläft.", "", "Ein Hund rennt.", "", "Waise", "Es regnet", "eins zwei drei vier"]


def lines_of(count: int, seed: int, words: int = 12) -> list[str]:
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(500)]
    return [" ".join(rng.choices(lexicon, k=rng.randint(1, words))) + "." for _ in range(count)]


def write(path: Path, lines: Sequence[str]) -> Path:
    content = "".join(f"{line}\n" for line in lines).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".xz":
        content = lzma.compress(content)
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    letters = " ".join(ascii_lowercase)
    sources, targets = [letters, *SOURCES, *lines_of(300, seed=1)], [*TARGETS, *lines_of(300, seed=2)]
    return train_tokenizer(sources, targets, vocab_size=300)


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def decoded(tokenizers: TokenizerPair, ids: np.ndarray | None) -> str:
    assert ids is not None
    return str(tokenizers.source.decode(ids, skip_special_tokens=True))


@pytest.fixture
def files(tmp_path: Path) -> TextFiles:
    return TextFiles(write(tmp_path / "text.en", SOURCES), write(tmp_path / "text.de", TARGETS))


# --- reading text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["txt", "gz", "xz"])
def test_two_files_yield_every_line_in_order_repeatedly(tmp_path: Path, ending: str) -> None:
    text = TextFiles(write(tmp_path / f"a.{ending}", SOURCES), write(tmp_path / f"b.{ending}", TARGETS))
    expected = [Pair(*pair, line) for line, pair in enumerate(zip(SOURCES, TARGETS, strict=True), 1)]
    assert list(text) == expected
    assert list(text) == expected


def test_source_only_text_has_no_targets(tmp_path: Path) -> None:
    text = TextFiles(write(tmp_path / "a", SOURCES))
    assert text.source_only
    assert [pair.source for pair in text] == SOURCES
    assert all(pair.target is None for pair in text)


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("\ufeffone\r\ntwo\u2028still two\x0bstill\n\nthree \t\nlast".encode())
    assert list(read_lines(path)) == ["one", "two\u2028still two\x0bstill", "", "three \t", "last"]


def test_an_output_is_one_line_of_a_file_and_is_read_back(tmp_path: Path) -> None:
    outputs = ["two\r\nlines", " edges ", "one\u2028sentence\x0bstill", "", "\n"]
    path = tmp_path / "outputs.txt"
    path.write_bytes("".join(f"{one_line(output)}\n" for output in outputs).encode())
    assert list(read_lines(path)) == ["two lines", " edges ", "one\u2028sentence\x0bstill", "", " "]


@pytest.mark.parametrize(("left", "right"), [(5, 3), (3, 5)])
def test_an_error_names_files_of_different_length_and_both_counts(tmp_path: Path, left: int, right: int) -> None:
    source, target = write(tmp_path / "s", ["x"] * left), write(tmp_path / "t", ["y"] * right)
    with pytest.raises(CorpusError, match=re.escape(f"{source} has {left} lines but {target} has {right}")):
        list(TextFiles(source, target))


@pytest.mark.parametrize("ending", ["txt", "gz"])
def test_an_error_names_line_and_byte_of_invalid_utf8(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.{ending}"
    with (gzip.open if ending == "gz" else open)(path, "wb") as file:
        file.write("Größe\n".encode() + b"ab\xff\n")
    with pytest.raises(CorpusError, match=re.escape(str(path)) + ", line 2: .* byte 10"):
        list(read_lines(path))


def test_missing_empty_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="nowhere: No such file"):
        list(read_lines(tmp_path / "nowhere"))
    with pytest.raises(CorpusError, match="empty: the file is empty"):
        list(read_lines(write(tmp_path / "empty", [])))
    for ending in ("gz", "xz"):
        whole = write(tmp_path / f"whole.{ending}", lines_of(200, seed=0)).read_bytes()
        (tmp_path / f"cut.{ending}").write_bytes(whole[: len(whole) // 2])
        (tmp_path / f"plain.{ending}").write_bytes(b"just text\n")
        for name in ("cut", "plain"):
            with pytest.raises(CorpusError, match=rf"{name}\.{ending}: damaged"):
                list(read_lines(tmp_path / f"{name}.{ending}"))


def test_tsv(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", ["1\teins\tone", "", "2\tzwei\ttwo"])
    assert list(TsvFile(path, source=2, target=1)) == [Pair("one", "eins", 1), Pair("", "", 2), Pair("two", "zwei", 3)]
    assert list(TsvFile(path, source=2, target=None))[2] == Pair("two", None, 3)


@pytest.mark.parametrize("bad", ["no tab at all", "one\ttwo\tthree"])
def test_tsv_lines_with_a_different_number_of_columns_are_refused(tmp_path: Path, bad: str) -> None:
    path = write(tmp_path / "a.tsv", ["a\tb", bad])
    with pytest.raises(CorpusError, match=rf"a\.tsv, line 2: {bad.count(chr(9)) + 1} tab-separated columns"):
        list(TsvFile(path))


def test_a_missing_tsv_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"line 1: 2 tab-separated columns, expected at least 4"):
        list(TsvFile(write(tmp_path / "a.tsv", ["a\tb"]), target=3))


def test_jsonl(tmp_path: Path) -> None:
    rows = [{"translation": {"en": "one", "de": "eins"}}, {"translation": {"en": "two", "de": "zwei"}}]
    path = write(tmp_path / "a.jsonl", [json.dumps(rows[0]), "", json.dumps(rows[1])])
    expected = [Pair("one", "eins", 1), Pair("", "", 2), Pair("two", "zwei", 3)]
    assert list(JsonlFile(path, "translation.en", "translation.de")) == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "not JSON"),
        ('["a list"]', "expected a JSON object"),
        ('{"source": "a"}', "no field 'target'; available: source"),
        ('{"source": "a", "target": 3}', "field 'target' holds int"),
        (r'{"source": "a", "target": "b\ud83d"}', "field 'target' has half of a surrogate pair at character 1"),
        ("[" * 200_000, "not JSON"),
        ("9" * 5_000, "not JSON"),
    ],
)
def test_an_error_names_a_bad_jsonl_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path / "a.jsonl", ['{"source": "a", "target": "b"}', line])
    with pytest.raises(CorpusError, match=rf"a\.jsonl, line 2: {re.escape(complaint)}"):
        list(JsonlFile(path))


def test_hugging_face_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"en": "one", "de": "eins"}, {"en": "two", "de": "zwei"}]
    saved = datasets.Dataset.from_dict({"translation": rows})
    saved.save_to_disk(tmp_path / "single")
    datasets.DatasetDict(valid=saved).save_to_disk(tmp_path / "splits")
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder / "train.jsonl", [json.dumps({"translation": row}) for row in rows])

    expected = [Pair("one", "eins", 1), Pair("two", "zwei", 2)]
    for name, split in (("single", "train"), ("splits", "valid"), ("files", "train")):
        text = HubDataset(str(tmp_path / name), "translation.en", "translation.de", split=split)
        assert list(text) == expected
        assert text.inputs() == text.inputs()
    assert list(HubDataset(str(tmp_path / "single"), "translation.en", None))[1] == Pair("two", None, 2)
    with pytest.raises(CorpusError, match=r"row 1: no field 'translation\.fr'"):
        list(HubDataset(str(tmp_path / "single"), "translation.fr", None))
    with pytest.raises(CorpusError, match="no split 'train', only valid"):
        list(HubDataset(str(tmp_path / "splits"), "translation.en", None))
    with pytest.raises(CorpusError, match=r"cannot load the dataset .*nope"):
        list(HubDataset(str(folder), "translation.en", None, split="nope"))


def test_without_datasets_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=re.escape("(datasets): pip install 'l0drop[hub]'")):
        list(HubDataset("some/name", "a", "b"))


# --- preparing a corpus -----------------------------------------------------------------------------------------------


def test_a_corpus_holds_the_tokenizer_s_ids_and_counts_skipped_lines(
    files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    corpus = prepare_corpus(files, tokenizers, tmp_path / "corpus", max_source=50, max_target=50)
    kept = [0, 2, 5, 6]
    assert len(corpus) == len(kept)
    assert corpus.target_lengths is not None
    for index, line in enumerate(kept):
        example = corpus[index]
        assert example.index == index
        assert example.source.tolist() == tokenizers.source(SOURCES[line]).input_ids
        assert example.target is not None
        assert example.target.tolist() == tokenizers.target(TARGETS[line]).input_ids
        assert corpus.source_lengths[index] == len(example.source)
        assert corpus.target_lengths[index] == len(example.target)
    assert corpus[-1].index == 3
    with pytest.raises(IndexError):
        corpus[4]
    assert corpus.summary == Summary(
        lines=7,
        pairs=4,
        blank=1,
        one_sided=2,
        source_tokens=int(corpus.source_lengths.sum()),
        target_tokens=int(corpus.target_lengths.sum()),
    )


def test_more_pairs_than_a_chunk_stay_in_order(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    sources, targets = lines_of(2_500, seed=3, words=4), lines_of(2_500, seed=4, words=4)
    text = TextFiles(write(tmp_path / "s", sources), write(tmp_path / "t", targets))
    calls: list[int] = []
    corpus = prepare_corpus(text, tokenizers, tmp_path / "c", max_source=9, max_target=99, progress=calls.append)
    assert calls == [1000, 2000, 2500]
    for index in (0, 999, 1000, 2001, 2499):
        example = corpus[index]
        expected = tokenizers.source(sources[index], truncation=True, max_length=9).input_ids
        assert example.source.tolist() == expected
        assert example.target is not None
        assert example.target.tolist() == tokenizers.target(targets[index]).input_ids
    whole = tokenizers.source(sources).input_ids
    assert corpus.summary.truncated_source == sum(len(ids) > 9 for ids in whole) > 0
    assert corpus.summary.truncated_target == 0
    assert all(corpus[index].source[-1] == tokenizers.source.eos_token_id for index in range(0, 2500, 50))


def test_truncation_removes_unknown_words_before_eos(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    text = TextFiles(write(tmp_path / "s", ["The cat sleeps 漢 漢"]))
    ids = prepare_corpus(text, tokenizers, tmp_path / "c", max_source=4, max_target=4)[0].source.tolist()
    whole = tokenizers.source("The cat sleeps 漢 漢").input_ids
    assert tokenizers.source.unk_token_id in whole
    assert ids == [*whole[:3], tokenizers.source.eos_token_id]


def test_truncation_keeps_special_tokens(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["<unk>", "<s>", "</s>", "<xx>", *"abcdefg"])
    tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>", "additional_special_tokens": ["<xx>"]})
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s> <xx>", special_tokens=[("<s>", 1), ("</s>", 2), ("<xx>", 3)]
    )
    text = TextFiles(write(tmp_path / "s", ["a b c d e f g", "a b"]))
    corpus = prepare_corpus(text, TokenizerPair(tokenizer, tokenizer), tmp_path / "c", max_source=6, max_target=6)
    assert corpus[0].source.tolist() == tokenizer("a b c d e f g", truncation=True, max_length=6).input_ids
    assert tokenizer.decode(corpus[0].source) == "<s> a b c </s> <xx>"
    assert tokenizer.decode(corpus[1].source) == "<s> a b </s> <xx>"


def test_an_error_names_a_line_without_tokens(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["<unk>", "a"])
    tokenizer.backend_tokenizer.normalizer = Replace("!", " ")
    text = TextFiles(write(tmp_path / "s", ["a", "!"]))
    with pytest.raises(CorpusError, match="line 2: the tokenizer produces no token for the source"):
        prepare_corpus(text, TokenizerPair(tokenizer, tokenizer), tmp_path / "c", max_source=6, max_target=6)


def test_limits_without_room_are_refused(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_target=1 leaves no room"):
        prepare_corpus(files, tokenizers, tmp_path / "c", max_source=5, max_target=1)


def test_source_only_corpus(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    text = TextFiles(write(tmp_path / "s", SOURCES))
    corpus = prepare_corpus(text, tokenizers, tmp_path / "c", max_source=50, max_target=50)
    assert len(corpus) == 5
    assert corpus.target_lengths is None
    assert corpus[1].target is None
    assert corpus.summary.blank == 2


def test_documents_are_joined_up_to_both_limits(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    sources = ["a b", "c d", "e f", "", "g h", "lonely", "i j", "k " * 30]
    targets = ["x", "y", "z z z z z z", "", "u", "", "v", "w"]
    text = TextFiles(write(tmp_path / "s", sources), write(tmp_path / "t", targets))

    def size(line: str) -> int:
        return len(tokenizers.source(line, add_special_tokens=False).input_ids)

    max_source = size("a b c d e f") + 1
    max_target = size("x y z z z z z z")  # one token too few for the third line and EOS
    corpus = prepare_corpus(
        text, tokenizers, tmp_path / "c", max_source=max_source, max_target=max_target, documents=True
    )
    assert [decoded(tokenizers, example.target) for example in corpus] == ["x y", "z z z z z z", "u v", "w"]
    assert [decoded(tokenizers, example.source) for example in corpus][:3] == ["a b c d", "e f", "g h i j"]
    assert len(corpus[3].source) == max_source
    assert corpus.summary.truncated_source == 1
    assert corpus.summary.truncated_target == 0
    assert (corpus.summary.lines, corpus.summary.blank, corpus.summary.one_sided) == (8, 1, 1)


def test_a_joined_document_has_the_prefix_once(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    lines = ["a b", "c d", "e f", "", "g h"]
    text = Prefixed(TextFiles(write(tmp_path / "s", lines), write(tmp_path / "t", lines)), "x y ")
    max_source = len(tokenizers.source("x y a b c d").input_ids)
    limits = {"max_source": max_source, "max_target": 30}
    corpus = prepare_corpus(text, tokenizers, tmp_path / "c", **limits, documents=True)
    sources = ["x y a b c d", "x y e f", "x y g h"]
    assert [decoded(tokenizers, example.source) for example in corpus] == sources
    assert [decoded(tokenizers, example.target) for example in corpus] == ["a b c d", "e f", "g h"]
    assert corpus.summary.truncated_source == 0
    assert [pair.source for pair in usable_pairs(text, tokenizers, **limits, documents=True)] == sources
    with pytest.raises(ValueError, match="max_source=3 leaves no room next to the prefix 'x y '"):
        prepare_corpus(text, tokenizers, tmp_path / "d", max_source=3, max_target=30, documents=True)


def test_joined_documents_always_fit(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    lines = [line for speech in range(60) for line in [*lines_of(speech % 9 + 1, seed=speech), ""]]
    text = TextFiles(write(tmp_path / "s", lines), write(tmp_path / "t", lines))
    longest = max(len(ids) for ids in tokenizers.source(lines).input_ids)
    corpus = prepare_corpus(text, tokenizers, tmp_path / "c", max_source=longest, max_target=longest, documents=True)
    assert corpus.summary.truncated_source == corpus.summary.truncated_target == 0
    assert len(corpus) < len(lines) - 60
    joined = " ".join(decoded(tokenizers, example.source) for example in corpus)
    assert joined == " ".join(line for line in lines if line)


@dataclass
class Positions:
    """Hints: each token's position in the sequence, and the number of characters of its text."""

    names: Sequence[str] = ("position", "characters")
    fingerprint: str = "1"

    def __call__(self, texts: Sequence[str], encoding: BatchEncoding) -> Mapping[str, Sequence[Sequence[int]]]:
        sizes = [len(ids) for ids in encoding["input_ids"]]
        return {
            "position": [list(range(size)) for size in sizes],
            "characters": [[len(text)] * size for text, size in zip(texts, sizes, strict=True)],
        }


def test_hints_are_truncated_like_their_tokens(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    corpus = prepare_corpus(
        files, tokenizers, tmp_path / "c", max_source=4, max_target=50, annotator=Positions(fingerprint="2")
    )
    assert set(corpus.hint_names) == {"position", "characters"}
    whole = len(tokenizers.source(SOURCES[2]).input_ids)
    assert whole > 4
    assert corpus[1].hints["position"].tolist() == [0, 1, 2, whole - 1]
    assert corpus[1].hints["characters"].tolist() == [len(SOURCES[2])] * 4


def test_hints_of_the_wrong_length_are_refused(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    class Wrong(Positions):
        def __call__(self, texts: Sequence[str], encoding: BatchEncoding) -> Mapping[str, Sequence[Sequence[int]]]:
            return {name: [[0]] * len(texts) for name in self.names}

    with pytest.raises(ValueError, match="hint 'position'"):
        prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=9, annotator=Wrong())


def test_large_vocabularies_keep_their_ids(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["<unk>", *(f"w{i}" for i in range(1, 70_000))])
    text = TextFiles(write(tmp_path / "s", ["w1 w69999 w65536"]))
    corpus = prepare_corpus(text, TokenizerPair(tokenizer, tokenizer), tmp_path / "c", max_source=9, max_target=9)
    assert corpus[0].source.tolist() == [1, 69_999, 65_536]


# --- replacing a corpus -----------------------------------------------------------------------------------------------


def test_equal_requests_reuse_a_corpus_and_others_replace_it(
    files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    out = tmp_path / "c"

    def prepare(text: TextFiles, **options: Any) -> int:
        prepare_corpus(text, tokenizers, out, **({"max_source": 20, "max_target": 20} | options))
        return out.stat().st_ino

    first = prepare(files)
    assert prepare(files) == first
    moved = TextFiles(write(tmp_path / "elsewhere.en", SOURCES), write(tmp_path / "elsewhere.de", TARGETS))
    assert prepare(moved) == first
    inodes = [
        first,
        prepare(files, max_source=21),
        prepare(files, documents=True),
        prepare(files, annotator=Positions()),
    ]
    assert all(before != after for before, after in pairwise(inodes))
    write(tmp_path / "text.de", [*TARGETS[:-1], "etwas anderes"])
    prepare(files)
    assert decoded(tokenizers, TokenizedCorpus.open(out)[3].target) == "etwas anderes"
    (out / "target.ids").write_bytes(b"")
    prepare(files)
    assert len(TokenizedCorpus.open(out)) == 4
    assert {path.name for path in tmp_path.iterdir() if path.name.startswith(".")} <= {".c.lock"}


def test_a_failed_run_leaves_nothing(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    write(tmp_path / "text.de", TARGETS[:-1])
    with pytest.raises(CorpusError, match=r"7 lines .* 6"):
        prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=9)
    assert {path.name for path in tmp_path.iterdir()} <= {"text.en", "text.de", ".c.lock"}


def test_a_failed_run_keeps_the_previous_corpus(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=9)
    write(tmp_path / "text.de", TARGETS[:-1])
    with pytest.raises(CorpusError):
        prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=9)
    assert len(TokenizedCorpus.open(tmp_path / "c")) == 4


def test_text_without_a_pair_is_refused(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    text = TextFiles(write(tmp_path / "s", ["", "a"]), write(tmp_path / "t", ["", ""]))
    with pytest.raises(CorpusError, match=r"s, .*t: each of the 2 lines is blank"):
        prepare_corpus(text, tokenizers, tmp_path / "c", max_source=9, max_target=9)
    assert not (tmp_path / "c").exists()


def test_folders_with_other_files_are_not_replaced(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    thesis = tmp_path / "documents" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with pytest.raises(CorpusError, match="not a prepared corpus"):
        prepare_corpus(files, tokenizers, thesis.parent, max_source=9, max_target=9)
    assert thesis.read_text() == "years of work"


KILLED = """
import os, signal, sys
from pathlib import Path
from l0drop.data.prepare import prepare_corpus
from l0drop.data.text import TextFiles
from l0drop.data.tokenizer import load_tokenizers

folder = Path(sys.argv[1])
kill = lambda lines: os.kill(os.getpid(), signal.SIGKILL)
text = TextFiles(folder / "text.en", folder / "text.de")
prepare_corpus(text, load_tokenizers(folder), folder / "c", max_source=9, max_target=9, progress=kill)
"""


def test_a_killed_run_is_cleaned_up_by_the_next(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    tokenizers.save(tmp_path)
    assert run_python(KILLED, tmp_path).returncode == -signal.SIGKILL
    assert not (tmp_path / "c").exists()
    assert (tmp_path / ".c.partial").exists()
    assert len(prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=9)) == 4
    assert not (tmp_path / ".c.partial").exists()


# --- opening a corpus -------------------------------------------------------------------------------------------------


def test_unknown_formats_and_truncated_files_are_refused(
    files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    prepare_corpus(files, tokenizers, out, max_source=9, max_target=9)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(CorpusError, match="format 99, but this version reads format 1"):
        TokenizedCorpus.open(out)
    (out / "manifest.json").write_text(json.dumps(manifest)[:40])
    with pytest.raises(CorpusError, match="cannot be read"):
        TokenizedCorpus.open(out)
    (out / "manifest.json").write_text(json.dumps(manifest))
    whole = (out / "source.ids").read_bytes()
    (out / "source.ids").write_bytes(whole[:-1])
    with pytest.raises(
        CorpusError, match=rf"source\.ids has {len(whole) - 1} bytes, but the manifest says {len(whole)}"
    ):
        TokenizedCorpus.open(out)
    with pytest.raises(CorpusError, match="not a prepared corpus"):
        TokenizedCorpus.open(tmp_path / "nowhere")


def test_a_changed_corpus_is_noticed_and_prepared_again(
    files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    out = tmp_path / "c"

    def prepare() -> list[list[int]]:
        corpus = prepare_corpus(files, tokenizers, out, max_source=9, max_target=9)
        return [example.source.tolist() for example in corpus]

    expected = prepare()
    for name in ("source.ids", "source.offsets", "target.ids", "target.offsets"):
        content = bytearray((out / name).read_bytes())
        content[0] ^= 1
        (out / name).write_bytes(content)
        with pytest.raises(CorpusError, match=rf"{name}: was changed after it was written; prepare the corpus again"):
            TokenizedCorpus.open(out).check()
        assert prepare() == expected
        TokenizedCorpus.open(out).check()


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_manifest_is_noticed(kind: str, files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    out = tmp_path / "c"
    prepare_corpus(files, tokenizers, out, max_source=9, max_target=9)
    manifest = json.loads((out / "manifest.json").read_text())
    for field in fields(manifest):
        changed = mutated(manifest, field, kind)
        if changed == manifest or (field == ("sha256",) and kind == "delete"):  # as earlier versions wrote it
            continue
        (out / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(CorpusError, match=r"manifest\.json: .*prepare the corpus again"):
            TokenizedCorpus.open(out)


def test_a_pickle_holds_the_path_and_not_the_data(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    text = TextFiles(write(tmp_path / "s", lines_of(2_000, seed=5)))
    corpus = prepare_corpus(text, tokenizers, tmp_path / "c", max_source=99, max_target=99)
    pickled = pickle.dumps(corpus)
    assert len(pickled) < 1_000
    copy = pickle.loads(pickled)
    np.testing.assert_array_equal(copy.source_lengths, corpus.source_lengths)
    np.testing.assert_array_equal(copy[1234].source, corpus[1234].source)


OPENED = """
import sys
sys.modules["datasets"] = sys.modules["pyarrow"] = None
from l0drop.data.corpus import TokenizedCorpus
print(TokenizedCorpus.open(sys.argv[1])[1].source.tolist())
"""


def test_opening_needs_neither_datasets_nor_pyarrow(
    files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path
) -> None:
    corpus = prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=9)
    result = run_python(OPENED, tmp_path / "c")
    assert json.loads(result.stdout) == corpus[1].source.tolist(), result.stderr


def test_the_manifest_describes_the_inputs(files: TextFiles, tokenizers: TokenizerPair, tmp_path: Path) -> None:
    corpus = prepare_corpus(files, tokenizers, tmp_path / "c", max_source=9, max_target=8)
    request = corpus.manifest["request"]
    assert [item["path"] for item in request["inputs"]] == [str(files.source), str(files.target)]
    assert request["inputs"][0]["size"] == Path(files.source).stat().st_size
    assert request["tokenizers"] == tokenizers.fingerprints
    assert request["limits"] == {"source": 9, "target": 8}
    assert corpus.manifest["summary"] == asdict(corpus.summary)


PEAK = """
import resource, sys
from pathlib import Path
from l0drop.data.prepare import prepare_corpus
from l0drop.data.text import TextFiles
from l0drop.data.tokenizer import load_tokenizers

folder = Path(sys.argv[1])
tokenizers = load_tokenizers(folder)
for name in ("small", "small2", "large"):
    text = TextFiles(folder / name[:5], folder / name[:5])
    prepare_corpus(text, tokenizers, folder / f"{name}.corpus", max_source=500, max_target=500)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_text(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    lines = lines_of(1_500, seed=6, words=60)
    write(tmp_path / "small", lines)
    write(tmp_path / "large", lines * 10)
    tokenizers.save(tmp_path)
    result = run_python(PEAK, tmp_path, TOKENIZERS_PARALLELISM="false")
    _, small, large = (int(line) for line in result.stdout.split())
    held = TokenizedCorpus.open(tmp_path / "large.corpus").source_lengths.sum() * 2 * 8 / 1024  # ids as lists, in KiB
    assert held > 15_000
    assert large - small < 0.2 * held, (small, large, held)


def run_python(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | environment,
    )
