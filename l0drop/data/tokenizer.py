"""Subword tokenizers: train, save and load BPE, and tell which pieces begin a word."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from l0drop.data.whole import locked, whole_folder
from l0drop.models.config_file import read_object, reason

PAD, EOS, UNK, BOS = SPECIAL_TOKENS = ("<pad>", "</s>", "<unk>", "<s>")

_SPACE = "▁"
# A space stays with the punctuation mark after it, so that decoding restores it ("well - known" is not "well-known")
# and no token is a lone space. The symbols are ASCII punctuation that Unicode does not classify as punctuation.
_MARK = Regex(rf"{_SPACE}?[\p{{P}}$+<=>^`|~]")

_FLAGS = ("clean_up_tokenization_spaces", "split_special_tokens", "add_prefix_space", "do_lower_case")
_SPECIAL = re.compile(r"(bos|eos|unk|pad|sep|cls|mask)_token")


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of both sides; with a shared vocabulary they are the same object."""

    source: PreTrainedTokenizerBase
    target: PreTrainedTokenizerBase

    @property
    def shared(self) -> bool:
        return self.source is self.target

    @property
    def fingerprints(self) -> dict[str, str]:
        """Fingerprint of each side, for manifests."""
        return {"source": fingerprint(self.source), "target": fingerprint(self.target)}

    def save(self, folder: Path | str) -> None:
        """Write `tokenizer/` and, for separate vocabularies, `tokenizer_target/` into `folder`.

        `tokenizer/` is written last: if it exists, the pair is complete.
        """
        source, target = _folders(folder)
        if not self.shared:
            _save(self.target, target)
        elif target.exists():
            shutil.rmtree(target)
        _save(self.source, source)


def train_tokenizer(
    source: Iterable[str], target: Iterable[str] | None = None, *, vocab_size: int, shared: bool = True
) -> TokenizerPair:
    """Train BPE on lines of text, which are read once.

    Words are separated by spaces and punctuation; every punctuation mark is a word. White space is collapsed and
    characters are composed (NFC); decoding restores such text exactly. Each sequence ends with EOS, and the names of
    special tokens have no meaning inside text. In scripts without spaces, everything between two punctuation marks is
    one "word", and training holds each distinct word in memory.
    """
    if shared:
        tokenizer = _train(chain(source, target or ()), vocab_size)
        return TokenizerPair(tokenizer, tokenizer)
    if target is None:
        raise ValueError("separate vocabularies (shared=False) need target text too")
    return TokenizerPair(_train(source, vocab_size), _train(target, vocab_size))


def load_tokenizers(folder: Path | str) -> TokenizerPair:
    """The tokenizers that `TokenizerPair.save` wrote into `folder`."""
    source, target = _folders(folder)
    if not source.is_dir():
        raise ValueError(f"{folder}: no tokenizer here, expected the folder {source.name}/")
    first = read_tokenizer(source)
    return TokenizerPair(first, read_tokenizer(target) if target.is_dir() else first)


def read_tokenizer(path: Path | str, **settings: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder or on the hub; ValueError names the folder, and the file and field if one is broken."""
    file = Path(path) / "tokenizer_config.json"
    for name, value in read_object(file).items() if file.is_file() else ():
        if (fault := _fault(name, value)) is not None:
            raise ValueError(f"{file}: {name}: expected {fault}, got {value!r}; restore the file")
    try:
        return AutoTokenizer.from_pretrained(path, **settings)
    except ImportError:
        raise
    except Exception as error:  # whatever a broken file causes in the libraries
        raise ValueError(f"{path}: no tokenizer could be loaded ({reason(error)})") from error


def _fault(name: str, value: Any) -> str | None:
    """The value that a field of tokenizer_config.json should have, if it has another kind."""
    if name == "model_max_length":
        whole = isinstance(value, int) or (isinstance(value, float) and (value == math.inf or value.is_integer()))
        fine = value is None or (whole and not isinstance(value, bool) and value >= 1)
        return None if fine else "a whole number, at least 1"
    if name == "model_input_names":
        fine = isinstance(value, list) and all(isinstance(one, str) for one in value)
        return None if fine else "a list of names"
    if name == "tokenizer_class":
        return None if value is None or isinstance(value, str) else "the name of a class"
    if name in _FLAGS:
        return None if isinstance(value, bool) else "true or false"
    if _SPECIAL.fullmatch(name):
        text = value.get("content") if isinstance(value, dict) else value
        fine = value is None or (isinstance(text, str) and not any("\ud800" <= char <= "\udfff" for char in text))
        return None if fine else "a token"
    return None


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of the files that determine a tokenizer's output: tokenizer.json, or a slow tokenizer's vocabulary."""
    languages = [getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang")]
    digest = hashlib.sha256(json.dumps(languages).encode())
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        # Earlier calls leave their truncation and padding settings behind; every call sets them again.
        content.pop("truncation", None)
        content.pop("padding", None)
        digest.update(json.dumps(content, sort_keys=True).encode())
    else:
        with TemporaryDirectory() as folder:
            for name in sorted(tokenizer.save_vocabulary(folder)):
                digest.update(Path(name).read_bytes())
    return digest.hexdigest()


def _train(lines: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(_SPACE, prepend_scheme="always"), pre_tokenizers.Split(_MARK, "isolated")]
    )
    tokenizer.decoder = decoders.Metaspace(_SPACE, prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), min_frequency=2, show_progress=False
    )
    tokenizer.train_from_iterator(_not_empty(lines), trainer)
    if tokenizer.get_vocab_size() > vocab_size:
        characters = tokenizer.get_vocab_size() - len(SPECIAL_TOKENS)
        raise ValueError(
            f"vocab_size={vocab_size} is too small: the text has {characters} different characters, "
            f"and there are {len(SPECIAL_TOKENS)} special tokens"
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, tokenizer.token_to_id(EOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        bos_token=BOS,
        split_special_tokens=True,  # "</s>" in a user's text is text, never the end of the sequence
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _not_empty(lines: Iterable[str]) -> Iterator[str]:
    seen = False
    for line in lines:
        seen = seen or bool(line.strip())
        yield line
    if not seen:
        raise ValueError("there is no text to train a tokenizer on")


def _folders(folder: Path | str) -> tuple[Path, Path]:
    return Path(folder) / "tokenizer", Path(folder) / "tokenizer_target"


def _save(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    with locked(folder), whole_folder(folder) as partial:
        tokenizer.save_pretrained(partial)
