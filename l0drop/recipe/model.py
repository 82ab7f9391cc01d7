"""The sections of a recipe that describe the model and its gates."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from l0drop.recipe.checks import (
    Count,
    Faults,
    Flag,
    Index,
    NotNegative,
    Number,
    Positive,
    Rate,
    Section,
    Text,
    Token,
    rule,
)


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

    @rule
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
            yield "dropout", "is for pretrained and init; the dropout of a new model is transformer.dropout"


class Ramp(Section):
    """λ rises linearly from 0 at step `start` to its value at step `end`."""

    start: Index = 0
    end: Count

    @rule
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
    gate_args: dict[str, JsonValue] = Field(default_factory=dict)
    always_keep: tuple[Token, ...] = ()
    """Tokens that are never dropped: ids, or tokens such as "</s>"."""
    layerwise: Flag = False
    """Gates between the encoder's layers too."""
    ramp: Ramp | None = None
    """λ rises to its value: training from scratch."""

    @rule
    def _lambda_or_target(self) -> Faults:
        if self.lambda_ is not None and self.target_sparsity is not None:
            yield "target_sparsity", "a target sets λ by itself; leave out this or lambda_"

    @rule
    def _a_learned_gate_needs_a_penalty(self) -> Faults:
        if self.gate == "learned" and self.lambda_ is None and self.target_sparsity is None:
            yield "lambda_", "the learned gate needs lambda_ or target_sparsity"

    @rule
    def _rules_have_no_target(self) -> Faults:
        if self.gate != "learned" and self.target_sparsity is not None:
            yield "target_sparsity", f"only the learned gate can be steered to a target, {self.gate} drops by its rule"

    @rule
    def _ramps_are_for_lambda(self) -> Faults:
        if self.ramp is not None and self.lambda_ is None:
            yield "ramp", "needs lambda_, the value at its end"

    @rule
    def _gates_between_layers(self) -> Faults:
        if self.layerwise and self.gating == "weight":
            yield "layerwise", "gates between layers act on encodings: gating should be zero or mask, not weight"
        if self.layerwise and self.gate != "learned":
            yield "layerwise", f"only the learned gate goes between layers, not {self.gate}"
