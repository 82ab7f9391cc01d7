"""The sections of a recipe for training and scoring."""

from typing import Annotated, Literal

from pydantic import Field

from l0drop.recipe.checks import (
    Beams,
    Count,
    Faults,
    Flag,
    Fraction,
    Index,
    NotNegative,
    Number,
    Positive,
    Section,
    Text,
    rule,
)


class Teacher(Section):
    """A dense model to distil from: token-level (its distributions), sequence-level (its outputs), or both."""

    model: Text = "init"
    """A checkpoint or run folder. `init` is a copy of the model that training starts from."""
    weight: NotNegative = 0.5
    """The weight of the KL divergence from the teacher (token-level distillation), relative to the cross-entropy; 0
    turns it off."""
    temperature: Positive = 1.0
    """The softmax temperature of teacher and model in the divergence."""
    top: Count | None = None
    """For audio: compute the teacher's distributions once, when clips are prepared, and store this number of the most
    likely tokens for every target token. Training then runs no teacher. Default: the teacher runs at every step."""
    beams: Beams = 1
    """The number of beams for the teacher's outputs, with `train.targets: teacher`."""
    max_new_tokens: Count | None = None
    """The maximum length of the teacher's outputs. Default: `data.max_target`."""


class Train(Section):
    """How to train. The defaults are the paper's; where the paper gives none, they are ours."""

    steps: Count
    """The number of optimizer steps."""
    batch_tokens: Count = 25_000
    """The size of an optimizer step in padded tokens over all processes: sentences × the longest source or target."""
    batch_clips: Count | None = None
    """For audio, which needs it instead of `batch_tokens`: the number of clips of an optimizer step over all
    processes."""
    accumulation: Count = 1
    """The number of parts that a step is split into: less memory, the same gradient."""
    learning_rate: Positive = 7e-4
    """The peak learning rate. The default, 512^-0.5 · 4000^-0.5, is the peak of the authors' code."""
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"
    """The learning rate after the warm-up: it falls with the square root of the step, stays constant, or falls linearly
    to 0 at the last step."""
    warmup: Index = 4000
    """The number of steps in which the learning rate rises from 0."""
    adam_betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    """Adam's two decay rates."""
    adam_epsilon: Positive = 1e-9
    """Adam's epsilon."""
    weight_decay: NotNegative = 0.0
    """The weight decay of AdamW."""
    clip: Positive | None = 1.0
    """The maximum norm of the gradient; null for no limit."""
    label_smoothing: Fraction = 0.1
    """The label smoothing of the cross-entropy."""
    gate_scale: Positive = 30.0
    """The learning rate of the gate, as a multiple of `learning_rate`."""
    freeze: Literal["nothing", "encoder", "all_but_gate", "embeddings"] = "nothing"
    """The parameters to keep fixed: `encoder` trains the decoder and the gate, `all_but_gate` the gate alone,
    `embeddings` everything but the embeddings of tokens."""
    targets: Literal["references", "teacher"] = "references"
    """The targets to train on: human references, or the teacher's outputs (sequence-level distillation), for which
    source text is enough."""
    teacher: Teacher | None = None
    """The dense model to distil from; `{}` is the model that training starts from. Default: no distillation."""
    elastic: Flag = False
    """Train for the dial: every other step keeps a random share of each sentence."""
    elastic_range: tuple[Positive, Annotated[Positive, Field(le=1)]] = (0.2, 1.0)
    """The smallest and the largest share that `elastic` keeps."""
    settle: Fraction = 0.0
    """The share of the steps, at the end, in which learned gates are not sampled but have their test-time values. The
    rest of the model then learns with exactly the rows that decoding keeps."""
    anneal: Fraction = 0.0
    """The share of the steps in which the noise of learned gates shrinks linearly from full to none, so that samples
    become the test-time gate. It ends where `settle` or `fixed_gates` begins, otherwise with the last step."""
    fixed_gates: Fraction = 0.0
    """The share of the steps, at the end, in which only the decoder learns. First the gates are calibrated to
    `target_sparsity` on the validation text; then gates, encoder and shared embeddings stay as they are, without
    dropout, so the decoder learns with exactly the rows that decoding keeps."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """The precision of training: float32, or mixed precision with bfloat16."""
    fast: Flag | None = None
    """For text: use attention kernels for batches of changing shapes, and a loss that never stores all logits. Default:
    true on a GPU."""
    compile: Flag = False
    """Compile layers and gate: takes a minute at the start, pays off on a GPU."""
    capture: Flag | None = None
    """Capture whole steps as CUDA graphs, one per batch shape. Default: true on a single GPU with `fast`."""
    length_multiple: Count | None = None
    """Pad source and target of a step to one length, a multiple of this number, so that few shapes occur. Default: 4 if
    steps may be captured, otherwise no extra padding."""
    save_every: Count = 1000
    """The number of steps between checkpoints."""
    eval_every: Count = 1000
    """The number of steps between evaluations on the validation text."""
    log_every: Count = 100
    """The number of steps between log entries."""
    keep_checkpoints: Count = 5
    """The number of checkpoints to keep."""
    average: Count = 1
    """The number of last checkpoints whose mean is the final model."""
    patience: Count | None = None
    """Stop after this number of evaluations without improvement. Default: never."""
    steer_every: Count = 100
    """With `target_sparsity`: the number of steps between measurements of the sparsity on the validation text."""
    steer_gain: Positive = 0.05
    """With `target_sparsity`: how fast λ reacts to the remaining error; raise it for short runs with a high learning
    rate."""
    steer_over: Fraction = 0.3
    """With `target_sparsity`: the share of the steps over which the requested sparsity rises to the target. Training
    from scratch spends the same number of steps before that without a penalty."""
    report_to: list[Text] = Field(default_factory=list)
    """Experiment trackers, such as tensorboard."""

    @property
    def fixed_from(self) -> int | None:
        """The number of steps after which gates are fixed; None if they never are."""
        steps = round(self.fixed_gates * self.steps)
        return self.steps - steps if steps else None

    @property
    def settled_from(self) -> float:
        """The number of steps after which gates are no longer sampled."""
        return (1 - max(self.settle, self.fixed_gates)) * self.steps

    def noise_scale(self, step: int) -> float | None:
        """The scale of the gates' noise after this number of steps; None without `anneal`."""
        return min(1.0, max(0.0, (self.settled_from - step) / (self.anneal * self.steps))) if self.anneal else None

    @rule
    def _noise_has_time_to_shrink(self) -> Faults:
        last = max(self.settle, self.fixed_gates)
        if self.anneal + last > 1:
            yield "anneal", f"{self.anneal:g} of the steps do not fit before the last {last:g} (settle, fixed_gates)"

    @rule
    def _the_target_is_reached_before_gates_are_fixed(self) -> Faults:
        if self.fixed_from is not None and self.steer_over + self.fixed_gates > 1:
            yield (
                "fixed_gates",
                f"the last {self.fixed_gates:g} of the steps begin before the target is reached, after "
                f"{self.steer_over:g} of them (steer_over)",
            )

    @rule
    def _averaged_checkpoints_have_the_same_gates(self) -> Faults:
        if self.fixed_from is None:
            return
        saved = sorted({*range(self.save_every, self.steps + 1, self.save_every), self.steps})[-self.average :]
        if saved[0] <= self.fixed_from:
            yield (
                "fixed_gates",
                f"gates are fixed after step {self.fixed_from}, but the averaged checkpoints begin with that of step "
                f"{saved[0]}; lower average or raise fixed_gates",
            )

    @rule
    def _fixed_gates_are_reached(self) -> Faults:
        if self.fixed_from is not None and self.patience is not None:
            yield "fixed_gates", "the run may stop before them; remove patience"

    @rule
    def _a_decoder_is_left_to_train(self) -> Faults:
        if self.fixed_from is not None and self.freeze == "all_but_gate":
            yield "fixed_gates", "leaves nothing to train with freeze: all_but_gate"

    @rule
    def _averaged_checkpoints_are_kept(self) -> Faults:
        if self.average > self.keep_checkpoints:
            yield "average", f"{self.average} is more than keep_checkpoints, {self.keep_checkpoints}"

    @rule
    def _roots_need_a_warmup(self) -> Faults:
        if self.schedule == "inverse_sqrt" and self.warmup == 0:
            yield "warmup", "inverse_sqrt peaks at the end of the warm-up, which should be at least 1 step"

    @rule
    def _range_rises(self) -> Faults:
        if self.elastic_range[0] >= self.elastic_range[1]:
            yield "elastic_range", f"the smallest share should come first, got {list(self.elastic_range)}"

    @rule
    def _targets_need_a_teacher(self) -> Faults:
        if self.targets == "teacher" and self.teacher is None:
            yield "teacher", "is missing, but targets: teacher needs one ({} is the model that training starts from)"

    @rule
    def _a_teacher_is_used(self) -> Faults:
        if self.targets == "references" and self.teacher is not None and self.teacher.weight == 0:
            yield "teacher.weight", "0 means that the teacher has no effect, because targets are references"

    @rule
    def _stored_distributions_are_used(self) -> Faults:
        if self.teacher is not None and self.teacher.top is not None and self.teacher.weight == 0:
            yield "teacher.top", "has no effect, because teacher.weight is 0; remove it"


TextMetric = Literal["bleu", "chrf", "rouge", "bleu_paper"]


class Evaluate(Section):
    """How outputs are decoded and scored."""

    metric: Literal[TextMetric, "wer", "cer"] = "bleu"
    """The metric. `bleu_paper` is tokenized BLEU, near the values that papers report for WMT14 En-De. For audio: `wer`
    and `cer`, error rates of words and characters."""
    tokenize: Literal["13a", "intl", "zh", "none"] = "13a"
    """The tokenization of `bleu` (sacreBLEU's names)."""
    beams: Beams = 4
    """The number of beams."""
    length_penalty: Number = 0.6
    """The exponent of the length in beam scores: larger values favour longer outputs."""
    max_new_tokens: Count | None = None
    """The maximum length of an output. Default: `data.max_target`."""
    sentences: Count = 500
    """The number of validation sentences to score during training."""
    batch_tokens: Count = 8000
    """The number of padded source tokens to decode at once."""

    @property
    def text_metric(self) -> TextMetric:
        """The metric of a recipe for text."""
        if self.metric == "wer" or self.metric == "cer":
            raise ValueError(f"evaluate.metric: {self.metric} is for audio, but text is to be scored")
        return self.metric
