"""The languages of multilingual tokenizers: NLLB, mBART, M2M100."""

from typing import Any

from transformers import PreTrainedTokenizerBase


def language_id(tokenizer: PreTrainedTokenizerBase, language: str, setting: str) -> int:
    """The token of a language; `setting` is what the user calls it."""
    ids = language_ids(tokenizer)
    codes = getattr(tokenizer, "lang_code_to_id", None)
    found = codes.get(language) if codes else tokenizer.convert_tokens_to_ids(language)
    if found is None or found not in ids:
        known = sorted(codes) if codes else tokenizer.convert_ids_to_tokens(sorted(ids))
        raise ValueError(
            f"{setting}: {language!r} is no language of this model; it knows {len(known)}, such as "
            f"{', '.join(known[:6])}"
        )
    return int(found)


def language_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The tokens of all languages."""
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes:
        return set(codes.values())
    ordinary = (
        getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "bos", "unk", "cls", "sep", "mask")
    )
    return set(tokenizer.all_special_ids) - set(ordinary)


def speaks_several(tokenizer: PreTrainedTokenizerBase) -> bool:
    return hasattr(tokenizer, "src_lang")


def begin_in(tokenizer: PreTrainedTokenizerBase, language: str, starts_with: int | None) -> dict[str, int]:
    """The generation setting that makes a model write a language; `starts_with` is the decoder's first token.

    Where the tokenizer ends targets with their language, as that of the first mBART does, training puts it before the
    text: the decoder starts with it, unless it always starts with something else. All others write it first.
    """
    token, known = language_id(tokenizer, language, "target_lang"), language_ids(tokenizer)
    if not known & {_last_of_targets(tokenizer, language)}:
        name = "decoder_start_token_id" if starts_with in known else "forced_bos_token_id"
        return {name: token}
    return {"decoder_start_token_id": token} if starts_with is None or starts_with in known else {}


def _last_of_targets(tokenizer: Any, language: str) -> int:
    """The token that ends every target; a call for targets would leave its language behind, so that is put back."""
    before = getattr(tokenizer, "tgt_lang", None)
    tokenizer.tgt_lang = language
    try:
        return int(tokenizer(text_target="")["input_ids"][-1])
    finally:
        tokenizer.tgt_lang = before
