"""The sections of a recipe that name its text and its subwords."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from l0drop.recipe.checks import Count, Faults, Flag, Index, Section, Text, rule


class TextCorpus(Section):
    """Two text files of equally many lines, plain, .gz or .xz; without `target`, source text alone."""

    kind: ClassVar[str] = "source"
    target_key: ClassVar[str] = "target"

    source: Text
    target: Text | None = None
    tagged: Flag = False
    """The source has a Penn tag at each word: The_DT house_NN ._. Rules by part of speech then need no tagger."""

    @property
    def has_targets(self) -> bool:
        return self.target is not None


class TsvCorpus(Section):
    """One file with columns between tabs, counted from 0; `target_column: null` for source text alone."""

    kind: ClassVar[str] = "tsv"
    target_key: ClassVar[str] = "target_column"

    tsv: Text
    source_column: Index = 0
    target_column: Index | None = 1

    @property
    def has_targets(self) -> bool:
        return self.target_column is not None

    @rule
    def _columns_differ(self) -> Faults:
        if self.source_column == self.target_column:
            yield "target_column", f"is {self.target_column}, the same as source_column"


class JsonlCorpus(Section):
    """One JSON object per line; fields are names or dotted paths such as `translation.en`."""

    kind: ClassVar[str] = "jsonl"
    target_key: ClassVar[str] = "target_field"

    jsonl: Text
    source_field: Text
    target_field: Text | None = None

    @property
    def has_targets(self) -> bool:
        return self.target_field is not None


class HubCorpus(Section):
    """A Hugging Face dataset: a name on the hub or a local folder."""

    kind: ClassVar[str] = "hub"
    target_key: ClassVar[str] = "target_field"

    hub: Text
    config: Text | None = None
    split: Text
    source_field: Text
    """A name or a dotted path such as `translation.en`."""
    target_field: Text | None = None

    @property
    def has_targets(self) -> bool:
        return self.target_field is not None


class ToyCorpus(Section):
    """Made up by a grammar: no download."""

    kind: ClassVar[str] = "toy"
    target_key: ClassVar[str] = "toy"

    toy: Literal["translation", "documents"]
    pairs: Count
    split: Literal["train", "valid", "test"]
    seed: Index = 1
    reports: Count = 3
    """How many reports a document holds; `documents` only."""
    small: Flag = False
    """Few words and simple sentences, for a model that is trained in a minute; `translation` only."""

    @property
    def has_targets(self) -> bool:
        return True

    @rule
    def _documents_are_not_small(self) -> Faults:
        if self.small and self.toy == "documents":
            yield "small", "is true, but only the toy translation can be small"


CORPORA = (TextCorpus, TsvCorpus, JsonlCorpus, HubCorpus, ToyCorpus)
CORPUS_KINDS = tuple(corpus.kind for corpus in CORPORA)


def _corpus_tag(corpus: Any) -> str | None:
    if isinstance(corpus, CORPORA):
        return f"<{corpus.kind}>"
    kinds = [kind for kind in CORPUS_KINDS if kind in corpus] if isinstance(corpus, Mapping) else []
    return f"<{kinds[0]}>" if len(kinds) == 1 else None


Corpus = Annotated[
    Annotated[TextCorpus, Tag("<source>")]
    | Annotated[TsvCorpus, Tag("<tsv>")]
    | Annotated[JsonlCorpus, Tag("<jsonl>")]
    | Annotated[HubCorpus, Tag("<hub>")]
    | Annotated[ToyCorpus, Tag("<toy>")],
    Discriminator(
        _corpus_tag,
        custom_error_type="corpus_kind",
        custom_error_message=f"should have exactly one of {', '.join(CORPUS_KINDS)} (source: text files)",
    ),
]
"""Parallel text; which kind it is follows from its keys."""


class Data(Section):
    """The text to train on, to measure on while training, and to score at the end."""

    train: Corpus
    valid: Corpus
    test: Corpus | None = None
    documents: Flag = False
    """Join neighbouring lines as long as they fit the limits below; a line blank on both sides ends a document."""
    max_source: Annotated[Count, Field(ge=2)] = 256
    """Subwords of a source, EOS included; what is longer is cut."""
    max_target: Annotated[Count, Field(ge=2)] = 256
    """The same for targets."""
    source_prefix: str = ""
    """Put before every source, such as "summarize: " for T5."""
    source_lang: Text | None = None
    """Of models that know several languages, such as eng_Latn for NLLB; left out, the tokenizer's own."""
    target_lang: Text | None = None
    """The same of targets."""
    language: Text = "en"
    """Of the source, for rules by part of speech: their tagger has to know it."""
    tagger: Text = "perceptron"
    """For rules by part of speech: l0drop's own perceptron, or nltk, spacy, spacy:MODEL where they are installed."""

    @property
    def is_tagged(self) -> bool:
        return getattr(self.train, "tagged", False)

    @rule
    def _tags_are_everywhere(self) -> Faults:
        tagged = getattr(self.train, "tagged", False)
        for name in ("valid", "test"):
            corpus = getattr(self, name)
            if corpus is not None and getattr(corpus, "tagged", False) != tagged:
                yield f"{name}.tagged", f"should be {str(tagged).lower()}, as in train: all text has tags, or none"

    @rule
    def _tagged_text_stays_as_it_is(self) -> Faults:
        if getattr(self.train, "tagged", False):
            for name in ("documents", "source_prefix"):
                if getattr(self, name):
                    yield name, "does not go together with text that has tags"


class Tokenizer(Section):
    """Where subwords come from: trained on the training text, or taken from a model.

    Left out for a model with `pretrained` or `init`, which brings its own.
    """

    vocab_size: Count | None = None
    """Train BPE with so many subwords."""
    shared: Flag = True
    """One vocabulary for both sides; false trains one for each."""
    pretrained: Text | None = None
    """A Hugging Face name or a folder."""

    @rule
    def _trained_or_pretrained(self) -> Faults:
        if self.vocab_size is not None and self.pretrained is not None:
            yield "pretrained", "a tokenizer is trained (vocab_size) or pretrained; leave one of them out"

    @rule
    def _only_trained_ones_can_be_separate(self) -> Faults:
        if not self.shared and self.vocab_size is None:
            yield "shared", "false needs vocab_size: only tokenizers that are trained here can be separate"
