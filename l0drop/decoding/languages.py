"""The languages of multilingual tokenizers: NLLB, mBART, M2M100."""

from typing import Any

from transformers import PreTrainedTokenizerBase


def language_id(tokenizer: PreTrainedTokenizerBase, language: str, setting: str) -> int:
    """The token id of a language; `setting` is the argument or the recipe's key that names it, for messages."""
    ids = language_ids(tokenizer)
    codes = getattr(tokenizer, "lang_code_to_id", None)
    found = codes.get(language) if codes else tokenizer.convert_tokens_to_ids(language)
    if found is None or found not in ids:
        known = sorted(codes) if codes else tokenizer.convert_ids_to_tokens(sorted(ids))
        raise ValueError(
            f"{setting}: {language!r} is not a language of this model; it has {len(known)}, such as "
            f"{', '.join(known[:6])}"
        )
    return int(found)


def language_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The token ids of all languages."""
    codes = getattr(tokenizer, "lang_code_to_id", None)
    if codes:
        return set(codes.values())
    ordinary = (
        getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "eos", "bos", "unk", "cls", "sep", "mask")
    )
    return set(tokenizer.all_special_ids) - set(ordinary)


def is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    return hasattr(tokenizer, "src_lang")


def target_language_setting(tokenizer: PreTrainedTokenizerBase, language: str, start: int | None) -> dict[str, int]:
    """The generation setting that selects the output language; `start` is the decoder's start token.

    The first mBART's tokenizer ends targets with their language, and training moves it to the front: the decoder starts
    with it, unless the model always starts with another token. All other models generate it as their first token.
    """
    token, known = language_id(tokenizer, language, "`target_lang`"), language_ids(tokenizer)
    if not known & {_last_of_targets(tokenizer, language)}:
        name = "decoder_start_token_id" if start in known else "forced_bos_token_id"
        return {name: token}
    return {"decoder_start_token_id": token} if start is None or start in known else {}


def _last_of_targets(tokenizer: Any, language: str) -> int:
    """The token that ends every target. Tokenizing a target sets the tokenizer's language, so it is restored."""
    before = getattr(tokenizer, "tgt_lang", None)
    tokenizer.tgt_lang = language
    try:
        return int(tokenizer(text_target="")["input_ids"][-1])
    finally:
        tokenizer.tgt_lang = before
