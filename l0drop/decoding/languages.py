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
