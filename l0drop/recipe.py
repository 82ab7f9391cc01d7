"""One experiment as typed, validated data: what a recipe may say, and how it is read and written.

A recipe is a YAML file with the sections of `Recipe`; `load_recipe` reads it and reports everything that is wrong with
it at once. Relative paths in a recipe are relative to the working directory, not to the recipe.

This module imports neither torch nor transformers, so that a wrong recipe fails at once.
"""

import copy
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    Strict,
    StringConstraints,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

# --- what every section can do ----------------------------------------------------------------------------------------


class RecipeError(ValueError):
    """A recipe that cannot be used; one line per error, each with the file, the key and what is wrong with it."""


Faults = Iterator[tuple[str, str]]
"""Keys, relative to their section, and what is wrong with them."""

_RuleMethod = TypeVar("_RuleMethod", bound=Callable[[Any], Faults])


def _rule(method: _RuleMethod) -> _RuleMethod:
    """Mark a method of a section that yields the faults between its fields, each right by itself.

    Where other fields are wrong, the rule still runs, on an object that only has the right ones.
    """
    method.__dict__["is_rule"] = True
    return method


class Section(BaseModel):
    """A part of a recipe: frozen, without unknown keys, and checked by its rules."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="wrap")
    @classmethod
    def _find_all_faults(cls, values: Any, build: ModelWrapValidatorHandler[Self]) -> Self:
        """Build the section, or raise all that is wrong with it: with its fields, and between those that are right."""
        faults: list[tuple[tuple[int | str, ...], str]] = []
        section: Self | None = None
        try:
            section = build(values)
        except ValidationError as error:
            for details in error.errors(include_url=False):
                place = tuple(part for part in details["loc"] if part not in _CORPUS_TAGS)
                faults.append((place, _message(cls, details)))
        fields = section if section is not None else _right(cls, values)
        for rule in [method for method in vars(cls).values() if getattr(method, "is_rule", False)]:
            try:
                for key, message in rule(fields):
                    faults.append((tuple(key.split(".")), message))
            except AttributeError:  # a field that the rule needs is not right
                if section is not None:
                    raise
        if section is None or faults:
            raise ValidationError.from_exception_data(cls.__name__, [_ready(*fault) for fault in faults])
        return section


_READY = "ready"  # the type of errors whose message is ready to be shown


def _ready(place: tuple[int | str, ...], message: str) -> InitErrorDetails:
    return {"type": PydanticCustomError(_READY, "{message}", {"message": message}), "loc": place, "input": None}


def _right(section: type[Section], values: Any) -> SimpleNamespace:
    """The fields of a section that are right by themselves; of sections inside it, what is right in them."""
    fields = SimpleNamespace()
    if not isinstance(values, Mapping):
        return fields
    for name, field in section.model_fields.items():
        if name not in values:
            if not field.is_required():
                setattr(fields, name, field.get_default(call_default_factory=True))
            continue
        try:
            alone: Any = Annotated[field.annotation, field]
            setattr(fields, name, TypeAdapter(alone).validate_python(values[name]))
        except ValidationError:
            if (inner := _section_of(field.annotation)) is not None:
                setattr(fields, name, _right(inner, values[name]))
    return fields


def _section_of(annotation: Any) -> type[Section] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def _message(section: type[Section], details: ErrorDetails) -> str:
    """What is wrong, in the words of a recipe rather than of Python."""
    if details["type"] == _READY:
        return details["msg"]
    value = details["input"]
    match details["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"unknown key; {_suggestion(str(details['loc'][-1]), section)}"
        case "corpus_kind":
            found = f"the keys {', '.join(map(str, value))}" if isinstance(value, Mapping) else reprlib.repr(value)
            return f"should have exactly one of {', '.join(_CORPUS_KINDS)} (source: text files), got {found}"
        case "model_type" | "model_attributes_type":
            return f"should be a section with keys of {', '.join(section.model_fields)}, got {reprlib.repr(value)}"
        case "string_type":
            quotes = ", write it in quotes" if isinstance(value, (bool, int, float)) else ""
            return f"should be text, got {reprlib.repr(value)}{quotes}"
        case "string_pattern_mismatch":
            return f"should be letters, digits and . _ -, not begin with . or -, got {reprlib.repr(value)}"
        case _:
            message = details["msg"].replace("Input should", "should").replace("valid tuple", "list")
            return f"{message[0].lower()}{message[1:]}, got {reprlib.repr(value)}"


def _suggestion(key: str, section: type[Section]) -> str:
    elsewhere = [path for path in _keys(Recipe) if path.split(".")[-1] == key]
    if similar := elsewhere[:2] or get_close_matches(key, section.model_fields, n=1):
        return f"did you mean {' or '.join(similar)}?"
    return f"the keys here are {', '.join(section.model_fields)}"


def _keys(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The paths of all keys of a recipe, outside corpora."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if (inner := _section_of(field.annotation)) is not None:
            yield from _keys(inner, f"{prefix}{name}.")


def _number(value: Any) -> Any:
    """YAML calls 3e-4 a text, Python calls true a number."""
    if isinstance(value, bool):
        raise PydanticCustomError("number", "should be a number")
    return float(value) if isinstance(value, str) and _EXPONENT.match(value) else value


def _token(value: Any) -> Any:
    if (isinstance(value, int) and not isinstance(value, bool) and value >= 0) or (isinstance(value, str) and value):
        return value
    raise PydanticCustomError("token", "should be a token such as </s> or its id")


_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+\Z")

Text = Annotated[str, StringConstraints(min_length=1)]
Flag = Annotated[bool, Strict()]
Count = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Index = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Number, Field(gt=0)]
NotNegative = Annotated[Number, Field(ge=0)]
Rate = Annotated[Number, Field(ge=0, lt=1)]
Token = Annotated[int | str, BeforeValidator(_token)]

# --- data -------------------------------------------------------------------------------------------------------------


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

    @_rule
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

    @_rule
    def _documents_are_not_small(self) -> Faults:
        if self.small and self.toy == "documents":
            yield "small", "is true, but only the toy translation can be small"


_CORPORA = (TextCorpus, TsvCorpus, JsonlCorpus, HubCorpus, ToyCorpus)
_CORPUS_KINDS = tuple(corpus.kind for corpus in _CORPORA)
_CORPUS_TAGS = frozenset(f"<{kind}>" for kind in _CORPUS_KINDS)  # pydantic puts them into the places of errors


def _corpus_tag(corpus: Any) -> str | None:
    if isinstance(corpus, _CORPORA):
        return f"<{corpus.kind}>"
    kinds = [kind for kind in _CORPUS_KINDS if kind in corpus] if isinstance(corpus, Mapping) else []
    return f"<{kinds[0]}>" if len(kinds) == 1 else None


Corpus = Annotated[
    Annotated[TextCorpus, Tag("<source>")]
    | Annotated[TsvCorpus, Tag("<tsv>")]
    | Annotated[JsonlCorpus, Tag("<jsonl>")]
    | Annotated[HubCorpus, Tag("<hub>")]
    | Annotated[ToyCorpus, Tag("<toy>")],
    Discriminator(_corpus_tag, custom_error_type="corpus_kind", custom_error_message="not one kind of corpus"),
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

    @_rule
    def _tags_are_everywhere(self) -> Faults:
        tagged = getattr(self.train, "tagged", False)
        for name in ("valid", "test"):
            corpus = getattr(self, name)
            if corpus is not None and getattr(corpus, "tagged", False) != tagged:
                yield f"{name}.tagged", f"should be {str(tagged).lower()}, as in train: all text has tags, or none"

    @_rule
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

    @_rule
    def _trained_or_pretrained(self) -> Faults:
        if self.vocab_size is not None and self.pretrained is not None:
            yield "pretrained", "a tokenizer is trained (vocab_size) or pretrained; leave one of them out"

    @_rule
    def _only_trained_ones_can_be_separate(self) -> Faults:
        if not self.shared and self.vocab_size is None:
            yield "shared", "false needs vocab_size: only tokenizers that are trained here can be separate"


# --- model ------------------------------------------------------------------------------------------------------------


class Transformer(Section):
    """A new encoder-decoder of Marian's architecture; the defaults are the paper's, the base Transformer.

    The paper names the dropout of attention and residuals; that of activations is the authors' code's.
    """

    d_model: Count = 512
    encoder_layers: Count = 6
    decoder_layers: Count = 6
    heads: Count = 8
    ffn: Count = 2048
    dropout: Rate = 0.1
    """Of embeddings and residuals."""
    attention_dropout: Rate = 0.1
    activation_dropout: Rate = 0.1
    positions: Count = 1024
    """The longest source or target it can take."""
    depth_scaled: Flag | None = None
    """Start the weights of the l-th layer smaller by √l (Zhang, Titov and Sennrich, 2019), without which deep models
    stay long on a plateau; left out, where a side has more than 2 layers."""

    @_rule
    def _heads_divide_the_width(self) -> Faults:
        if self.d_model % self.heads:
            yield "heads", f"d_model {self.d_model} cannot be divided into {self.heads} heads"


class Model(Section):
    """What training starts from: exactly one of `transformer`, `pretrained` and `init`."""

    transformer: Transformer | None = None
    """A new model; `{}` is the paper's."""
    pretrained: Text | None = None
    """A Hugging Face checkpoint: a name or a folder."""
    init: Text | None = None
    """A run folder, such as runs/base: its model and its tokenizer."""
    dropout: Rate | None = None
    """Instead of the dropout rates, of residuals, attention and activations, that `pretrained` or `init` has."""

    @_rule
    def _exactly_one_start(self) -> Faults:
        starts = ("transformer", "pretrained", "init")
        given = [name for name in starts if getattr(self, name) is not None]
        if not given:
            yield "transformer", f"give one of {', '.join(starts)} ({{}} is a transformer with the default sizes)"
        for name in given[1:]:
            yield name, f"give exactly one of {', '.join(starts)}; {given[0]} is given too"

    @_rule
    def _dropout_of_a_new_model(self) -> Faults:
        if self.dropout is not None and self.transformer is not None:
            yield "dropout", "is for pretrained and init; the dropout of a new model is transformer.dropout"


class Ramp(Section):
    """λ rises linearly from 0 at step `start` to its value at step `end`."""

    start: Index = 0
    end: Count

    @_rule
    def _rises(self) -> Faults:
        if self.start >= self.end:
            yield "end", f"{self.end} should be after start, {self.start}"


class L0Drop(Section):
    """How the model drops: the fields of `L0DropConfig`, and how λ begins."""

    gating: Literal["zero", "mask", "weight"] = "zero"
    """What a dropped encoding means to the decoder; `zero` is the paper's."""
    lambda_: NotNegative | None = None
    """Weight of the penalty; this or target_sparsity."""
    target_sparsity: Annotated[Number, Field(gt=0, lt=1)] | None = None
    """The sparsity that λ is steered to."""
    penalty: Literal["mean", "sum"] = "mean"
    """Over a sentence's real tokens."""
    beta: Positive = 2 / 3
    """Temperature of the hard-concrete distribution."""
    epsilon: Positive = 0.1
    """Its stretch; the paper's -0.1 is 0.1."""
    start: Number | None = None
    """The gate's bias at the start; left out, every gate is safely open."""
    gate: Text = "learned"
    """A registered gate: `learned`, or a rule."""
    gate_args: dict[str, JsonValue] = {}
    always_keep: tuple[Token, ...] = ()
    """Tokens that are never dropped: ids, or tokens such as "</s>"."""
    layerwise: Flag = False
    """Gates between the encoder's layers too."""
    ramp: Ramp | None = None
    """λ rises to its value: training from scratch."""

    @_rule
    def _lambda_or_target(self) -> Faults:
        if self.lambda_ is not None and self.target_sparsity is not None:
            yield "target_sparsity", "a target sets λ by itself; leave out this or lambda_"

    @_rule
    def _a_learned_gate_needs_a_penalty(self) -> Faults:
        if self.gate == "learned" and self.lambda_ is None and self.target_sparsity is None:
            yield "lambda_", "the learned gate needs lambda_ or target_sparsity"

    @_rule
    def _rules_have_no_target(self) -> Faults:
        if self.gate != "learned" and self.target_sparsity is not None:
            yield "target_sparsity", f"only the learned gate can be steered to a target, {self.gate} drops by its rule"

    @_rule
    def _ramps_are_for_lambda(self) -> Faults:
        if self.ramp is not None and self.lambda_ is None:
            yield "ramp", "needs lambda_, the value at its end"

    @_rule
    def _gates_between_layers(self) -> Faults:
        if self.layerwise and self.gating == "weight":
            yield "layerwise", "gates between layers act on encodings: gating should be zero or mask, not weight"
        if self.layerwise and self.gate != "learned":
            yield "layerwise", f"only the learned gate goes between layers, not {self.gate}"


# --- training and scoring ---------------------------------------------------------------------------------------------


class Teacher(Section):
    """A dense model to learn from."""

    model: Text = "init"
    """A checkpoint or run folder; `init` is a copy of the model that training starts from."""
    weight: NotNegative = 0.5
    """Of the KL divergence to the teacher, where the cross-entropy has 1."""
    temperature: Positive = 1.0
    beams: Count = 1
    """For its outputs, where they are the targets."""
    max_new_tokens: Count | None = None
    """Longest output; left out, data.max_target."""


class Train(Section):
    """How to train; the defaults are the paper's, or where it is silent, ours."""

    steps: Count
    """Optimizer steps."""
    batch_tokens: Count = 25_000
    """Padded tokens of an optimizer step, over all processes: sentences × the longest source or target."""
    accumulation: Count = 1
    """Cut a step into so many parts: less memory, the same result."""
    learning_rate: Positive = 7e-4
    """At its highest. 512^-0.5 · 4000^-0.5, what the authors' code reaches with the base model."""
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"
    """After the warm-up: falling with the root of the step, as it is, or falling to 0 at the last step."""
    warmup: Index = 4000
    """Steps in which the learning rate rises from 0."""
    adam_betas: tuple[Rate, Rate] = (0.9, 0.98)
    adam_epsilon: Positive = 1e-9
    weight_decay: NotNegative = 0.0
    clip: Positive | None = 1.0
    """Longest gradient (norm); null for no limit."""
    label_smoothing: Rate = 0.1
    gate_scale: Positive = 30.0
    """Learning rate of the gate, times the model's."""
    freeze: Literal["nothing", "all_but_gate"] = "nothing"
    targets: Literal["references", "teacher"] = "references"
    """`teacher`: its outputs, so that source text alone is enough."""
    teacher: Teacher | None = None
    elastic: Flag = False
    """Train for the dial: at every other step, keep another share of each sentence."""
    elastic_range: tuple[Positive, Annotated[Positive, Field(le=1)]] = (0.2, 1.0)
    """Smallest and largest share kept."""
    precision: Literal["fp32", "bf16"] = "fp32"
    fast: Flag | None = None
    """Attention for ragged batches, and a loss that never holds all logits; left out, on a GPU."""
    compile: Flag = False
    """Compile layers and gate, which takes a minute at the start and pays on a GPU."""
    capture: Flag | None = None
    """Capture whole steps as CUDA graphs, one per shape of a batch; left out, on one GPU with `fast`."""
    length_multiple: Count | None = None
    """Pad both sides of a step to one length, a multiple of this: few shapes; left out, 4 on a GPU with `fast`."""
    save_every: Count = 1000
    eval_every: Count = 1000
    log_every: Count = 100
    keep_checkpoints: Count = 5
    average: Count = 1
    """Of so many last checkpoints the final model is the mean."""
    patience: Count | None = None
    """Stop after so many evaluations without improvement."""
    steer_every: Count = 100
    """With target_sparsity: steps between two measurements of the sparsity on the validation text."""
    steer_gain: Positive = 0.05
    """With target_sparsity: how fast λ follows the error that remains; more for short runs at a high learning rate."""
    steer_over: Rate = 0.3
    """With target_sparsity: the share of the steps in which the sparsity is led up to it; from scratch, as many before
    that have no λ."""
    report_to: list[Text] = []
    """Experiment trackers, such as tensorboard."""

    @_rule
    def _averaged_checkpoints_are_kept(self) -> Faults:
        if self.average > self.keep_checkpoints:
            yield "average", f"{self.average} is more than keep_checkpoints, {self.keep_checkpoints}"

    @_rule
    def _roots_need_a_warmup(self) -> Faults:
        if self.schedule == "inverse_sqrt" and self.warmup == 0:
            yield "warmup", "inverse_sqrt is highest at the end of the warm-up, which should be at least 1 step"

    @_rule
    def _range_rises(self) -> Faults:
        if self.elastic_range[0] >= self.elastic_range[1]:
            yield "elastic_range", f"the smallest share should come first, got {list(self.elastic_range)}"

    @_rule
    def _targets_need_a_teacher(self) -> Faults:
        if self.targets == "teacher" and self.teacher is None:
            yield "teacher", "is missing, but targets are the teacher's ({} is the model that training starts from)"

    @_rule
    def _a_teacher_teaches(self) -> Faults:
        if self.targets == "references" and self.teacher is not None and self.teacher.weight == 0:
            yield "teacher.weight", "0 leaves the teacher nothing to do, as targets are references"


class Evaluate(Section):
    """How output is scored."""

    metric: Literal["bleu", "chrf", "rouge", "bleu_paper"] = "bleu"
    tokenize: Literal["13a", "intl", "zh", "none"] = "13a"
    """For `bleu`."""
    beams: Count = 4
    length_penalty: Number = 0.6
    max_new_tokens: Count | None = None
    """Longest output; left out, data.max_target."""
    sentences: Count = 500
    """How many of the validation text are scored while training."""
    batch_tokens: Count = 8000
    """Padded source tokens decoded at once."""


class Recipe(Section):
    """One experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    """The run folder is runs/NAME."""
    task: Literal["translation", "summarization"] = "translation"
    seed: Annotated[Index, Field(lt=2**32)] = 1
    about: str = ""
    """What this experiment is, and where its data comes from."""
    data: Data
    tokenizer: Tokenizer = Tokenizer()
    model: Model
    l0drop: L0Drop | None = None
    """Left out: a baseline, without gates."""
    train: Train
    evaluate: Evaluate = Evaluate()

    @_rule
    def _references_need_targets(self) -> Faults:
        if self.train.targets != "references":
            return
        for name in ("train", "valid", "test"):
            corpus = getattr(self.data, name, None)
            if isinstance(corpus, _CORPORA) and not corpus.has_targets:
                yield f"data.{name}.{corpus.target_key}", "is missing; only train.targets: teacher does without"

    @_rule
    def _a_new_model_needs_a_vocabulary(self) -> Faults:
        tokenizer = self.tokenizer
        if self.model.transformer is not None and tokenizer.vocab_size is None and tokenizer.pretrained is None:
            yield "tokenizer.vocab_size", "is missing: a new transformer needs vocab_size or a pretrained tokenizer"

    @_rule
    def _a_trained_model_has_a_vocabulary(self) -> Faults:
        if self.model.transformer is None and self.tokenizer.vocab_size is not None:
            yield "tokenizer.vocab_size", "a trained model has its vocabulary; leave this out"

    @_rule
    def _separate_vocabularies_need_both_sides(self) -> Faults:
        if not self.tokenizer.shared and not self.data.train.has_targets:
            yield "tokenizer.shared", "false needs text on both sides, and data.train has no targets"

    @_rule
    def _sequences_fit_the_positions(self) -> Faults:
        if self.model.transformer is None:
            return
        positions = self.model.transformer.positions
        for section, name in ("data", "max_source"), ("data", "max_target"), ("evaluate", "max_new_tokens"):
            length = getattr(getattr(self, section), name)
            if length is not None and length > positions:
                yield f"{section}.{name}", f"{length} is more than model.transformer.positions, {positions}"

    @_rule
    def _a_new_model_teaches_nothing(self) -> Faults:
        if self.train.teacher is not None and self.train.teacher.model == "init" and self.model.transformer is not None:
            yield "train.teacher.model", "init is a copy of model.transformer, which starts at random"

    @_rule
    def _a_new_model_reaches_its_target(self) -> Faults:
        if self.model.transformer is not None and 2 * self.train.steer_over >= 1:
            yield "train.steer_over", f"{self.train.steer_over:g} of the steps without λ and as many to the target: all"

    @_rule
    def _elastic_needs_a_learned_gate(self) -> Faults:
        if self.train.elastic and (self.l0drop is None or self.l0drop.gate != "learned"):
            yield "train.elastic", "needs l0drop with the learned gate, which ranks what to keep"

    @_rule
    def _freezing_leaves_a_gate(self) -> Faults:
        if self.train.freeze == "all_but_gate" and (self.l0drop is None or self.l0drop.gate != "learned"):
            yield "train.freeze", "all_but_gate needs l0drop with the learned gate; there is nothing else to train"

    @_rule
    def _a_new_model_is_not_frozen(self) -> Faults:
        if self.train.freeze == "all_but_gate" and self.model.transformer is not None:
            yield "train.freeze", "all_but_gate needs a trained model, and model.transformer starts at random"

    @_rule
    def _starts_from_another_run(self) -> Faults:
        if self.model.init is not None and PurePath(self.model.init) == PurePath("runs", self.name):
            yield "model.init", f"{self.model.init} is the folder of this run itself; give the recipe another name"


# --- reading and writing ----------------------------------------------------------------------------------------------

_Path = tuple[int | str, ...]


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file, with some keys set anew: each override is `a.b=value`, the value in YAML.

    A value replaces what the file says there, a section as a whole: `l0drop=null` makes a baseline of a recipe. Raises
    RecipeError.
    """
    values, where = _read(str(path))
    return _overridden(values, overrides, str(path), where)


def override_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The same for a recipe that was read before."""
    return _overridden(_plain(recipe), overrides, recipe.name, {})


def parse_recipe(mapping: Mapping[str, Any], source_name: str) -> Recipe:
    """The recipe that plain values describe; `source_name` says in errors where they come from."""
    return _build(mapping, source_name, {}, [])


def dump_recipe(recipe: Recipe) -> str:
    """The recipe as YAML with every default written out; reading it gives an equal recipe."""
    return yaml.dump(_plain(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _overridden(values: Any, overrides: Sequence[str], source_name: str, where: dict[_Path, str]) -> Recipe:
    faults = []
    for override in overrides:
        try:
            where |= _set(values, override)
        except RecipeError as error:
            faults.append(str(error))
    return _build(values, source_name, where, faults)


def _build(values: Any, source_name: str, where: Mapping[_Path, str], faults: list[str]) -> Recipe:
    if not isinstance(values, Mapping):
        expected = ", ".join(Recipe.model_fields)
        raise RecipeError(f"{source_name}: should be a mapping with the keys {expected}, got {reprlib.repr(values)}")
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            path = details["loc"]
            places = (where[path[:end]] for end in range(len(path), 0, -1) if path[:end] in where)
            faults.append(f"{next(places, source_name)}: {'.'.join(map(str, path))}: {details['msg']}")
    if faults:
        raise RecipeError("\n".join(faults)) from None
    return recipe


def _read(path: str) -> tuple[Any, dict[_Path, str]]:
    """The values of a YAML file, and for each path of keys its place in the file."""
    try:
        loader = _Loader(Path(path).read_text(encoding="utf-8"))
        node = loader.get_single_node()
        values = loader.construct_document(node) if node is not None else None
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not valid UTF-8 at byte {error.start}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path}{_yaml_problem(error)}") from error
    return values, {keys: f"{path}, line {line}" for keys, line in _lines(node, ())}


def _lines(node: yaml.Node | None, above: _Path) -> Iterator[tuple[_Path, int]]:
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        yield (*above, key.value), key.start_mark.line + 1
        yield from _lines(value, (*above, key.value))


def _set(values: Any, override: str) -> dict[_Path, str]:
    """Put the value of an override into `values`; give the paths of keys that it wrote."""
    place = f"override {override!r}"
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise RecipeError(f"{place}: should be a.b=value, such as train.steps=100")
    try:
        value = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{place}{_yaml_problem(error)}") from error
    written: dict[_Path, str] = {}
    section = values
    for end, name in enumerate(path, 1):
        if not isinstance(section, dict):
            raise RecipeError(f"{place}: {'.'.join(path[: end - 1]) or 'the recipe'} has no keys in it")
        inner = section.get(name)
        if end == len(path) or inner is None:
            written[path[:end]] = place
        # A copy, as sections can be shared by an anchor.
        section[name] = value if end == len(path) else {} if inner is None else copy.copy(inner)
        section = section[name]
    return written


def _yaml_problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark or error.context_mark) is not None:
        problem = ", ".join(part for part in (error.problem, error.context) if part)
        return f", line {mark.line + 1}, column {mark.column + 1}: not valid YAML: {problem}"
    return f": not valid YAML: {error}"


def _plain(value: Any) -> Any:
    """A section as plain values, without what is None by default."""
    if isinstance(value, Section):
        fields = [(name, getattr(value, name), field.default) for name, field in type(value).model_fields.items()]
        return {name: _plain(inner) for name, inner, default in fields if inner is not None or default is not None}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else copy.deepcopy(value)


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 3e-4 is a number and no key may stand twice in a section."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Safe YAML without anchors, whose texts are still texts when `_Loader` reads them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML folds lines at these three in keys, and reads them back as spaces.
        node = super().represent_str(data)
        node.style = '"' if set(data) & set("\x85\u2028\u2029") else None
        return node


_Dumper.add_representer(str, _Dumper.represent_str)
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
