"""The sections of a recipe that say how to train and how to score."""

from typing import Annotated, Literal

from pydantic import Field

from l0drop.recipe.checks import Count, Faults, Flag, Index, NotNegative, Number, Positive, Rate, Section, Text, rule


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
    report_to: list[Text] = Field(default_factory=list)
    """Experiment trackers, such as tensorboard."""

    @rule
    def _averaged_checkpoints_are_kept(self) -> Faults:
        if self.average > self.keep_checkpoints:
            yield "average", f"{self.average} is more than keep_checkpoints, {self.keep_checkpoints}"

    @rule
    def _roots_need_a_warmup(self) -> Faults:
        if self.schedule == "inverse_sqrt" and self.warmup == 0:
            yield "warmup", "inverse_sqrt is highest at the end of the warm-up, which should be at least 1 step"

    @rule
    def _range_rises(self) -> Faults:
        if self.elastic_range[0] >= self.elastic_range[1]:
            yield "elastic_range", f"the smallest share should come first, got {list(self.elastic_range)}"

    @rule
    def _targets_need_a_teacher(self) -> Faults:
        if self.targets == "teacher" and self.teacher is None:
            yield "teacher", "is missing, but targets are the teacher's ({} is the model that training starts from)"

    @rule
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
