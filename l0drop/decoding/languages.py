"""The languages of multilingual tokenizers: NLLB, mBART, M2M100."""

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

    Models begin with the language's token where their decoder starts with one, and force it behind the start where it
    does not.
    """
    token = language_id(tokenizer, language, "target_lang")
    name = "decoder_start_token_id" if starts_with in language_ids(tokenizer) else "forced_bos_token_id"
    return {name: token}
