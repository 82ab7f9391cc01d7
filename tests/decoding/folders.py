"""Tiny model folders with tokenizers, for `load`, `l0drop translate` and `l0drop explain`."""

from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers as hf

from l0drop import L0DropConfig, sparsify
from tests.models import zoo

SENTENCES = ["the dog sees a cat .", "a river knows the stone a road the bird .", "a tree likes the house ."]


def sparse(baseline: Path, folder: Path, **config: Any) -> Path:
    """The tiny baseline with gates that drop about half of the tokens of SENTENCES."""
    tokenizer = hf.AutoTokenizer.from_pretrained(baseline / "model")
    model = sparsify(hf.AutoModelForSeq2SeqLM.from_pretrained(baseline / "model"), L0DropConfig(**config)).eval()
    if config.get("gate", "learned") == "learned":
        zoo.spread_gates(model, batch=tokenizer(SENTENCES, return_tensors="pt", padding=True))
    return saved(model, tokenizer, folder)


def saved(model: Any, tokenizer: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def resized(family: str, tokenizer: Any, **config: Any) -> Any:
    """A tiny random model of a family for a tokenizer."""
    torch.manual_seed(0)
    model_class, base = zoo._FAMILIES[family]
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    values = {**base.to_dict(), "vocab_size": len(tokenizer) + 8, **ids, "decoder_start_token_id": ids["eos_token_id"]}
    if family == "marian":
        values["decoder_vocab_size"] = values["vocab_size"]
    return model_class(type(base)(**{**values, **config})).eval()


def sentencepiece_model(folder: Path, name: str, normalization: str = "nmt_nfkc") -> Path:
    """A SentencePiece model trained on the tiny corpus."""
    text = folder / f"{name}.txt"
    text.write_text("".join(line + "\n" for line in [*SENTENCES * 20, "fine office 12 files", "Ünder"]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / name), vocab_size=60, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_name=normalization,
    )  # fmt: skip
    return folder / f"{name}.model"


def marian_tokenizer(folder: Path) -> hf.MarianTokenizer:
    """Marian's own slow tokenizer with SentencePiece models."""
    import json

    model = sentencepiece_model(folder, "spm")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    names = [pieces.id_to_piece(i) for i in range(len(pieces))]
    known = ["</s>", "<unk>", *(name for name in names if name not in ("<unk>", "<s>", "</s>")), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(known)}))
    return hf.MarianTokenizer(source_spm=str(model), target_spm=str(model), vocab=str(folder / "vocab.json"))
