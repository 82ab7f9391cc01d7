"""The sections of a recipe that describe the model and its gates."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from l0drop.recipe.checks import (
    Count,
    Faults,
    Flag,
    Fraction,
    Index,
    Layers,
    NotNegative,
    Number,
    Positive,
    Section,
    Text,
    Token,
    Width,
    rule,
)


class Transformer(Section):
    """A new encoder-decoder with Marian's architecture. The defaults are the base Transformer of the paper.

    The paper states the dropout of attention and residuals; the dropout of activations is from the authors' code.
    """

    d_model: Width = 512
    """The width of the model."""
    encoder_layers: Layers = 6
    """The number of encoder layers."""
    decoder_layers: Layers = 6
    """The number of decoder layers."""
    heads: Width = 8
    """The number of attention heads; must divide `d_model`."""
    ffn: Width = 2048
    """The inner width of the feed-forward layers."""
    dropout: Fraction = 0.1
    """The dropout rate of embeddings and residuals."""
    attention_dropout: Fraction = 0.1
    """The dropout rate of attention weights."""
    activation_dropout: Fraction = 0.1
    """The dropout rate inside the feed-forward layers."""
    positions: Width = 1024
    """The maximum length of a source or target in subwords."""
    depth_scaled: Flag | None = None
    """Divide the initial weights of the l-th layer by √l (Zhang, Titov and Sennrich, 2019); deep models stay on a
    plateau for long without it. Default: true if the encoder or decoder has more than 2 layers."""

    @rule
    def _heads_divide_the_width(self) -> Faults:
        if self.d_model % self.heads:
            yield "heads", f"d_model {self.d_model} cannot be divided into {self.heads} heads"


class Model(Section):
    """The model that training starts from: exactly one of `transformer`, `pretrained` and `init`."""

    transformer: Transformer | None = None
    """A new model with random weights; `{}` uses the sizes of the paper."""
    pretrained: Text | None = None
    """A Hugging Face checkpoint: a name or a folder."""
    init: Text | None = None
    """A run folder, such as runs/base: training starts from its model and uses its tokenizer."""
    dropout: Fraction | None = None
    """A dropout rate that replaces those of the `pretrained` or `init` model. Default: the model's own rates."""

    @rule
    def _exactly_one_start(self) -> Faults:
        starts = ("transformer", "pretrained", "init")
        given = [name for name in starts if getattr(self, name) is not None]
        if not given:
            yield "transformer", f"give one of {', '.join(starts)} ({{}} is a transformer with the default sizes)"
        for name in given[1:]:
            yield name, f"give exactly one of {', '.join(starts)}; {given[0]} is given too"

    @rule
    def _dropout_of_a_new_model(self) -> Faults:
        if self.dropout is not None and self.transformer is not None:
            yield "dropout", "is for pretrained and init; set transformer.dropout for a new model"


class Ramp(Section):
    """λ rises linearly from 0 at step `start` to `lambda_` at step `end`."""

    start: Index = 0
    """The last step with λ = 0."""
    end: Count
    """The step at which λ reaches `lambda_`."""

    @rule
    def _rises(self) -> Faults:
        if self.start >= self.end:
            yield "end", f"{self.end} should be after start, {self.start}"


LEARNED_GATES = ("learned", "layers", "network")
"""The gates of l0drop that learn; rules and other people's gates are not among them."""


class L0Drop(Section):
    """How the model drops encodings: the fields of `L0DropConfig`, and the ramp of λ."""

    gating: Literal["zero", "mask", "weight", "mean"] = "zero"
    """How a gate acts. `zero` (the paper): a dropped encoding becomes a zero vector. `mask`: the decoder does not
    attend to it. `weight`: gates multiply attention weights. `mean`: it becomes the mean of all dropped encodings."""
    lambda_: NotNegative | None = None
    """λ, the weight of the penalty in the loss. Give this or `target_sparsity`."""
    target_sparsity: Annotated[Number, Field(gt=0, lt=1)] | None = None
    """The share of encodings to drop; λ is adjusted during training to reach it. Give this or `lambda_`."""
    penalty: Literal["mean", "sum"] = "mean"
    """Whether the penalty is the mean or the sum over the real tokens of a sentence."""
    beta: Positive = 2 / 3
    """The temperature of the hard-concrete distribution."""
    epsilon: Positive = 0.1
    """The stretch of the hard-concrete distribution (the paper writes it as -0.1)."""
    start: Number | None = None
    """The initial bias of the gate; lower it for short training. Default: large enough that every gate is open."""
    gate: Text = "learned"
    """The name of a registered gate: `learned`, `layers` (reads several encoder layers), `network` (a small network),
    `open` (drops nothing), or a rule such as `pos`."""
    gate_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the gate."""
    always_keep: tuple[Token, ...] = ()
    """Tokens that are never dropped: ids, or tokens such as "</s>"."""
    layerwise: Flag | tuple[Index, ...] = False
    """Put gates inside the encoder too: `true` for one behind every layer, or a list of layers, counted from 1; 0 is
    before the first layer."""
    cut_padding: NotNegative | None = None
    """For audio: remove the rows behind the end of a clip, and this number of seconds, before the first encoder layer.
    Default: Whisper reads the silence up to 30 seconds."""
    ramp: Ramp | None = None
    """Let λ rise to `lambda_` over some steps, for training from scratch. Default: λ is constant."""
    shortener: Text | None = None
    """The name of a registered shortener that builds the memory instead of gates, such as `mean_pool`; the keys above
    are for gates. Default: gates."""
    shortener_args: dict[str, JsonValue] = Field(default_factory=dict)
    """Arguments of the shortener, such as `{keep: 0.5}`."""

    @property
    def has_learned_gate(self) -> bool:
        """Whether the gate is one of l0drop's learned gates, and not a rule; a shortener has none."""
        return self.gate in LEARNED_GATES and self.shortener is None

    @rule
    def _a_shortener_has_no_gates(self) -> Faults:
        if self.shortener is None and self.shortener_args:
            yield "shortener_args", "name the shortener that takes them (shortener)"
        for name, field in type(self).model_fields.items() if self.shortener is not None else ():
            is_of_gates = name not in ("shortener", "shortener_args")
            if is_of_gates and getattr(self, name) != field.get_default(call_default_factory=True):
                yield name, f"is a setting of gates, which the shortener {self.shortener} replaces; remove one of them"

    @rule
    def _lambda_or_target(self) -> Faults:
        if self.lambda_ is not None and self.target_sparsity is not None:
            yield "target_sparsity", "λ is adjusted to reach a target; remove this or lambda_"

    @rule
    def _a_learned_gate_needs_a_penalty(self) -> Faults:
        if self.has_learned_gate and self.lambda_ is None and self.target_sparsity is None:
            yield "lambda_", "a learned gate needs lambda_ or target_sparsity"

    @rule
    def _rules_have_no_target(self) -> Faults:
        if self.gate not in LEARNED_GATES and self.target_sparsity is not None:
            yield "target_sparsity", f"only a learned gate can reach a target sparsity; {self.gate} drops by its rule"

    @rule
    def _ramps_are_for_lambda(self) -> Faults:
        if self.ramp is not None and self.lambda_ is None:
            yield "ramp", "needs lambda_, the value at the end of the ramp"

    @rule
    def _gates_between_layers(self) -> Faults:
        if self.layerwise and self.gating not in ("zero", "mask"):
            yield (
                "layerwise",
                f"gates between layers act on single rows: gating should be zero or mask, not {self.gating}",
            )
        if self.layerwise and self.gate != "learned":
            yield "layerwise", f"only the learned gate can stand between layers, not {self.gate}"
