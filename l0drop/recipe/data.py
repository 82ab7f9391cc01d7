"""The sections of a recipe that name its text and its tokenizer."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from l0drop.recipe.checks import Count, Faults, Flag, Index, Number, Section, Text, Width, rule


class TextCorpus(Section):
    """Two text files with the same number of lines, plain, .gz or .xz. Without `target`: source text only."""

    kind: ClassVar[str] = "source"
    target_key: ClassVar[str] = "target"

    source: Text
    """The file with the source text, one sentence (or document) per line."""
    target: Text | None = None
    """The file with the target text: line n translates line n of the source. Default: source text only."""
    tagged: Flag = False
    """Whether each source word carries its Penn tag (The_DT house_NN ._.), so that rules by part of speech need no
    tagger."""

    @property
    def has_targets(self) -> bool:
        return self.target is not None


class TsvCorpus(Section):
    """One file with tab-separated columns, counted from 0. `target_column: null` means source text only.

    For `task: transcription`, the source is the path of an audio file, relative to the folder of this file, and the
    target is its text.
    """

    kind: ClassVar[str] = "tsv"
    target_key: ClassVar[str] = "target_column"

    tsv: Text
    """The file; .gz and .xz are unpacked."""
    source_column: Index = 0
    """The column of the source text."""
    target_column: Index | None = 1
    """The column of the target text; null for source text only."""
    speaker_column: Index | None = None
    """For audio: the column that names the speaker, so that `l0drop evaluate` can tell speakers apart. Default: no
    such column."""
    timed_column: Index | None = None
    """For audio: the column with the text and its times, for `data.timestamps`. It is written as Whisper's outputs are:
    <|0.00|> the first part<|4.20|><|4.60|> the next one<|8.00|>. Blank where they are not known. Default: no such
    column."""

    @property
    def has_targets(self) -> bool:
        return self.target_column is not None

    @rule
    def _columns_differ(self) -> Faults:
        if self.source_column == self.target_column:
            yield "target_column", f"is {self.target_column}, the same as source_column"


class JsonlCorpus(Section):
    """One file with a JSON object per line.

    For `task: transcription`, the source is the path of an audio file, relative to the folder of this file, and the
    target is its text.
    """

    kind: ClassVar[str] = "jsonl"
    target_key: ClassVar[str] = "target_field"

    jsonl: Text
    """The file; .gz and .xz are unpacked."""
    source_field: Text
    """The field with the source text: a name, or a dotted path such as `translation.en`."""
    target_field: Text | None = None
    """The field with the target text. Default: source text only."""
    speaker_field: Text | None = None
    """For audio: the field that names the speaker, so that `l0drop evaluate` can tell speakers apart. Default: no such
    field."""
    timed_field: Text | None = None
    """For audio: the field with the text and its times, for `data.timestamps`, as in `timed_column` of a TSV file.
    Default: no such field."""

    @property
    def has_targets(self) -> bool:
        return self.target_field is not None


class HubCorpus(Section):
    """A Hugging Face dataset: a name on the hub or a local folder."""

    kind: ClassVar[str] = "hub"
    target_key: ClassVar[str] = "target_field"

    hub: Text
    """The name of the dataset, or its folder."""
    config: Text | None = None
    """The configuration of the dataset, such as `de-en`. Default: the dataset's own default."""
    split: Text
    """The split of the dataset, such as `train` or `train[:400000]`."""
    source_field: Text
    """The field with the source text: a name, or a dotted path such as `translation.en`."""
    target_field: Text | None = None
    """The field with the target text. Default: source text only."""

    @property
    def has_targets(self) -> bool:
        return self.target_field is not None


class ToyCorpus(Section):
    """Text generated from a small grammar, so nothing is downloaded."""

    kind: ClassVar[str] = "toy"
    target_key: ClassVar[str] = "toy"

    toy: Literal["translation", "documents"]
    """`translation`: sentence pairs. `documents`: several reports of one event, with a summary as the target."""
    pairs: Count
    """The number of sentence (or document) pairs to generate."""
    split: Literal["train", "valid", "test"]
    """The split; no sentence of one split occurs in another."""
    seed: Index = 1
    """The seed of the generator."""
    reports: Count = 3
    """The number of reports in a document (`documents` only)."""
    min_reports: Count | None = None
    """Let the number of reports vary from this to `reports`, with more short documents than long ones; default: always
    `reports` (`documents` only)."""
    small: Flag = False
    """Use few words and simple sentences, for a model that trains in a minute (`translation` only)."""

    @property
    def has_targets(self) -> bool:
        return True

    @rule
    def _documents_are_not_small(self) -> Faults:
        if self.small and self.toy == "documents":
            yield "small", "is true, but only the toy translation can be small"

    @rule
    def _report_counts_fit(self) -> Faults:
        if self.min_reports is not None and self.toy == "translation":
            yield "min_reports", "is set, but only the toy documents consist of reports"
        elif self.min_reports is not None and self.min_reports > self.reports:
            yield "min_reports", f"{self.min_reports} is more than reports, {self.reports}"


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
"""Text with or without targets; its keys say which kind of corpus it is."""

HELD_OUT = 500
"""The default number of lines held out for each split."""


class Data(Section):
    """The text to train on, to validate on during training, and to score at the end."""

    train: Corpus
    """The text to train on."""
    valid: Corpus | None = None
    """The text to validate on. Default: lines held out of `train`, which leave the training text."""
    test: Corpus | None = None
    """The text to score at the end. Default: none if `valid` is given, otherwise more lines held out of `train`."""
    held_out: Count | None = None
    """The number of different source lines to hold out of `train` for each of the missing `valid` and `test`. Default:
    500, or a twentieth of the lines in a file of fewer than 10,000."""
    documents: Flag = False
    """Join neighbouring lines into one example as long as they fit `max_source` and `max_target`; a line that is blank
    on both sides ends a document."""
    join: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """For audio: the share of the clips of a step that are joined with further random clips, up to 30 seconds, so that
    the model sees full windows too."""
    join_steps: Flag = False
    """For audio: join all clips of a step, or none of them, so that short clips are not padded to the length of joined
    ones. `join` is then the share of such steps."""
    timestamps: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """For audio: the share of examples whose target has Whisper's timestamps, which long recordings need. With
    `train.targets: teacher`, the teacher transcribes each training clip once more, with timestamps."""
    cut: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """For audio: the share of joined examples with timestamps that go on until the end of the window, where their last
    clip is cut. The target then ends with the beginning of the first incomplete segment, as in windows of a long
    recording. Needs `join` and `timestamps`."""
    max_source: Annotated[Count, Field(ge=2)] = 256
    """The maximum length of a source in subwords, EOS included; longer ones are cut."""
    max_target: Annotated[Count, Field(ge=2)] = 256
    """The maximum length of a target in subwords, EOS included; longer ones are cut."""
    source_prefix: str = ""
    """Text to put before every source, such as "summarize: " for T5."""
    source_lang: Text | None = None
    """The language of the source for a multilingual model, such as eng_Latn for NLLB. Default: the tokenizer's."""
    target_lang: Text | None = None
    """The language of the target for a multilingual model. Default: the tokenizer's."""
    language: Text = "en"
    """The language of the source: for rules by part of speech, whose tagger must support it, and for a multilingual
    Whisper, which is told the language of the audio."""
    tagger: Text = "perceptron"
    """The tagger for rules by part of speech: `perceptron` (l0drop's own), or nltk, spacy, spacy:MODEL if installed."""

    @property
    def is_tagged(self) -> bool:
        return getattr(self.train, "tagged", False)

    @property
    def held_out_splits(self) -> tuple[str, ...]:
        """The splits whose lines are held out of the training text."""
        if self.valid is not None:
            return ()
        return ("valid", "test") if self.test is None else ("valid",)

    def origin(self, split: str) -> tuple[Any, ...]:
        """The corpus that a split is read from (None if there is no such split), and how lines are held out of it."""
        held_out = self.held_out_splits
        if not held_out or (split not in held_out and split != "train"):
            return (getattr(self, split),)
        return self.train, split, held_out, self.held_out

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of a run, in order."""
        there = {"train", *self.held_out_splits, *(name for name in ("valid", "test") if getattr(self, name))}
        return tuple(name for name in ("train", "valid", "test") if name in there)

    @rule
    def _held_out_lines_are_needed(self) -> Faults:
        if self.held_out is not None and self.valid is not None:
            yield "held_out", "has no effect, because valid is given; remove one of them"

    @rule
    def _clips_are_cut_where_times_say_so(self) -> Faults:
        if self.cut and not (self.join and self.timestamps):
            yield "cut", "needs join and timestamps: only joined clips with timestamps are cut"

    @rule
    def _documents_are_not_torn_apart(self) -> Faults:
        if self.documents and self.valid is None:
            yield "valid", "is missing; with documents, lines cannot be held out of the training text"

    @rule
    def _tags_are_everywhere(self) -> Faults:
        tagged = getattr(self.train, "tagged", False)
        for name in ("valid", "test"):
            corpus = getattr(self, name)
            if corpus is not None and getattr(corpus, "tagged", False) != tagged:
                yield f"{name}.tagged", f"should be {str(tagged).lower()}, as in train: all text has tags, or none"

    @rule
    def _tagged_text_is_not_changed(self) -> Faults:
        if getattr(self.train, "tagged", False):
            for name in ("documents", "source_prefix"):
                if getattr(self, name):
                    yield name, "cannot be combined with tagged text"


class Tokenizer(Section):
    """The tokenizer: trained on the training text, or taken from a model.

    Omit this section with `model.pretrained` or `model.init`, whose tokenizer is used.
    """

    vocab_size: Width | None = None
    """Train a BPE tokenizer with this number of subwords. Needed for a new model, unless `pretrained` is given."""
    shared: Flag = True
    """Whether source and target share one vocabulary; false trains one for each."""
    pretrained: Text | None = None
    """A tokenizer to use instead of training one: a Hugging Face name or a folder."""

    @rule
    def _trained_or_pretrained(self) -> Faults:
        if self.vocab_size is not None and self.pretrained is not None:
            yield "pretrained", "a tokenizer is either trained (vocab_size) or pretrained; remove one of them"

    @rule
    def _only_trained_ones_can_be_separate(self) -> Faults:
        if not self.shared and self.vocab_size is None:
            yield "shared", "false needs vocab_size: only tokenizers that are trained here can be separate"
