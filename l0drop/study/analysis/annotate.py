"""Labels of source tokens: parts of speech if a tagger knows the language, and pieces of split words always."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import BatchEncoding, PreTrainedTokenizerBase

from l0drop.core.groups import GROUPS, LABELS, group_of
from l0drop.data.hints import TextAnnotator, labels
from l0drop.data.hints import annotator_for as annotator_of_model
from l0drop.data.prepare import Annotator
from l0drop.data.tagger import TaggedWord
from l0drop.data.words import token_spans, token_words
from l0drop.models.patterns import LABEL

_GROUP_OF_LABEL = torch.tensor([GROUPS.index(group_of(label)) for label in LABELS])
_EOS, _PIECES = LABELS.index("EOS"), torch.tensor([LABELS.index(name) for name in ("EOS", "BPEH", "BPEO")])
_UNKNOWN = [TaggedWord(0, 0, "XX")]  # one tag for all words

COMMON = frozenset(
    re.findall(
        r"\w+", "the of and to a an in is it that was for on with as are at be this from by i you he she we they not or"
    )
)
"""A third of the words in English text, and hardly any in other languages."""
ENGLISH = 0.1
_SAMPLE = 500


@dataclass(frozen=True)
class Marks:
    """Marks of a batch's tokens, [B, N]: indices into `GROUPS` (None for untagged text), whether a token is a whole
    word, whether the tokenizer added it. Padding counts as added."""

    groups: Tensor | None
    whole: Tensor
    special: Tensor


def marks(hints: Mapping[str, Tensor], tagged: bool) -> Marks:
    """The marks of a collated batch's hints."""
    label_BN = hints[LABEL].clamp_min(_EOS)  # padding is -1
    whole_BN = ~torch.isin(label_BN, _PIECES)
    return Marks(_GROUP_OF_LABEL[label_BN] if tagged else None, whole_BN, label_BN == _EOS)


@dataclass(frozen=True)
class Tagging:
    """A tagger, see `open_tagger`, and the source language; if that is assumed, the text is checked for it."""

    tagger: str = "perceptron"
    language: str = "en"
    assumed: bool = True


@dataclass(frozen=True)
class Untagged:
    """Labels without a tagger: EOS, BPEH, BPEO, and XX for every whole word."""

    tokenizer: PreTrainedTokenizerBase
    names: tuple[str, ...] = (LABEL,)
    fingerprint: str = "untagged"

    def __call__(self, texts: Sequence[str], encoding: BatchEncoding) -> Mapping[str, Sequence[Sequence[int]]]:
        spans = token_spans(self.tokenizer, texts, encoding)
        rows = [token_words(text, row) for text, row in zip(texts, spans, strict=True)]
        return {LABEL: [labels(row, _UNKNOWN) for row in rows]}


@dataclass(frozen=True)
class Both:
    """The hints of a rule and those of the analysis; if both have a hint of the same name, the rule's."""

    rule: Annotator
    analysis: Annotator

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.analysis.names, *self.rule.names)))

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.rule.fingerprint} {self.analysis.fingerprint}".encode()).hexdigest()

    def __call__(self, texts: Sequence[str], encoding: BatchEncoding) -> Mapping[str, Sequence[Sequence[int]]]:
        return {**self.analysis(texts, encoding), **self.rule(texts, encoding)}


def annotator_for(
    model: Path | str, tokenizer: PreTrainedTokenizerBase, tagging: Tagging, sources: Iterable[str]
) -> tuple[Annotator, str | None]:
    """The annotator for a model's source text, and the reason if it cannot group words."""
    rule = annotator_of_model(model, tokenizer)
    why: str | None = None
    analysis: Annotator = Untagged(tokenizer)
    if tagging.assumed and tagging.language == "en" and not looks_english(sources):
        why = 'the source does not look like English, the only language of the tagger; if it is, give `language="en"`'
    else:
        try:
            analysis = TextAnnotator((LABEL,), tokenizer, tagging.tagger, tagging.language)
        except ValueError as error:
            why = str(error)
    if rule is not None and LABEL in rule.names:
        return rule, None
    return analysis if rule is None else Both(rule, analysis), why


def looks_english(sources: Iterable[str]) -> bool:
    """Whether common English words are frequent in the first lines of a text."""
    words = [word for line in islice(sources, _SAMPLE) for word in re.findall(r"\w+", line.lower())]
    return sum(word in COMMON for word in words) >= ENGLISH * max(1, len(words))
