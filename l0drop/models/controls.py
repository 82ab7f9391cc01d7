"""The user's controls on a sparsified model: dial, λ, optimizer groups, explanations, calibration."""

import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from l0drop.core.dial import Dial, Dials, dial_of
from l0drop.core.gates import Gate, LearnedGate
from l0drop.core.memory import check_mask
from l0drop.core.penalty import (
    TOLERANCE,
    Calibration,
    ConstantLambda,
    LambdaSchedule,
    RampedLambda,
    Sentences,
    SteeredLambda,
    calibrate,
)
from l0drop.core.shorteners import Shortener
from l0drop.core.values import number, share
from l0drop.models.config import DEFAULT_LAMBDA
from l0drop.models.outputs import Explanation
from l0drop.models.view import eval_view
from l0drop.models.whisper import FRAMES_PER_ROW

UNSTEERED = 100
"""Training steps with a target but without `steer` after which the model warns: a third of the default ramp."""


class Controls(nn.Module):
    """The part of `L0DropModel` that users call in their own training loop."""

    config: Any
    family: Any
    gate: Gate
    shortener: Shortener | None
    inner_gates: nn.ModuleList
    schedule: LambdaSchedule
    get_encoder: Any
    base_class: Any
    calibration: Calibration | None = None
    _dial_key: object  # identifies the model and its views, not its copies
    _steps_unsteered: int = 0
    _fixed: list[nn.Parameter] | None = None
    """The parameters that `fix_gates` has excluded from training."""
    training_counts: tuple[Tensor, Tensor] | None = None
    """Dropped and real tokens of the training batches that `forward` has seen in this process since λ was last moved.
    A loop that adds them up itself sets this to None before each batch."""

    def set_schedule(self, rise: tuple[int, int] | None = None, **steering: Any) -> None:
        """Choose the schedule of λ that the config asks for: a controller for a target sparsity, otherwise a constant.

        rise: let a constant λ rise from 0 at the first of these steps to its value at the second.
        steering: arguments of `SteeredLambda`, such as `ramp`.
        """
        l0drop = self.config.l0drop
        value = l0drop.lambda_
        if value is None:
            value = DEFAULT_LAMBDA if self.shortener is None else 0.0
        if l0drop.target_sparsity is not None:
            self.schedule = SteeredLambda(l0drop.target_sparsity, **steering)
        elif rise is not None:
            self.schedule = RampedLambda(value, *rise)
        else:
            self.schedule = ConstantLambda(value)

    @property
    def lambda_(self) -> float:
        """The current weight of the penalty."""
        return self.schedule.value

    @lambda_.setter
    def lambda_(self, value: float) -> None:
        value = number("lambda_", value)
        if value < 0:
            raise ValueError(f"lambda_: expected a number that is not negative, got {value}")
        self.schedule.value = value

    def _always(self, input_ids: Tensor | None, mask_BN: Tensor) -> Tensor | None:
        """[B, N], True on real tokens of `always_keep`; None if there are none to look for."""
        always_keep = self.config.l0drop.always_keep
        if not always_keep:
            return None
        if input_ids is None:
            raise ValueError("always_keep: token ids are needed to know which tokens to keep; pass input_ids")
        return torch.isin(input_ids, torch.tensor(always_keep, device=input_ids.device)) & mask_BN

    @property
    def current_dial(self) -> Dial | Dials:
        """The innermost dial that this thread or task has set for the model."""
        if not _any_dial:  # torch cannot compile the reading of a context variable
            return _NO_DIAL
        return next((dial for key, dial in reversed(_DIALS.get()) if key is self._dial_key), _NO_DIAL)

    def dial(
        self,
        keep: float | Tensor | Sequence[float | None] | None = None,
        max_memory: int | Sequence[int | None] | None = None,
        shift: float | Sequence[float | None] | None = None,
        dense: bool | Sequence[bool] = False,
    ) -> "DialContext":
        """Keep more or fewer encodings than the model chose by itself, inside a `with` block; see `Dial`.

            with model.dial(keep=0.3):
                tokens = model.generate(**inputs)

        A list has one setting per sentence of the batch, None where it is unset; for decoding only.

        It acts in the thread or asyncio task that entered the block; others set their own. Of nested dials the
        innermost counts. In training, half of the sentences keep the rows that `keep` selects; in
        the others, gates are sampled around the border between kept and dropped rows, so that the gate learns the order
        of rows. `shift` works in decoding only.
        """
        self._require_enabled()
        if self.training and shift is not None:
            raise ValueError("shift: moves the test-time gate; in training, use keep")
        dial = dial_of(keep, max_memory, shift, dense)
        self._require_gate(f"dial({dial})")
        if self.training and isinstance(dial, Dials):
            raise ValueError("dial: a list of settings works in decoding only; in training, use a tensor keep")
        return DialContext(self, dial)

    def training_sparsity(self) -> float | None:
        """The sparsity of the training batches that `forward` has seen since the last `steer`, over all processes.

        None if it has seen none. Every process must call it equally often.
        """
        if self.training_counts is None:
            return None
        counts = torch.stack([torch.as_tensor(n, dtype=torch.float64) for n in self.training_counts])
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(counts)
        return float(counts[0] / counts[1])

    def steer(self, sparsity: float | Tensor | None = None, *, validation: float | Tensor | None = None) -> float:
        """Move λ towards the target sparsity, or along its schedule, and return it. Call it once per optimizer step.

        sparsity: of the step's training batches, as `output.sparsity` says; default: `training_sparsity()`.
        validation: the sparsity on held-out text, at steps where you measured it.

        Pass the same numbers in all processes, or their λ drift apart.
        """
        self._require_gate("steer")
        measured = None if sparsity is None else share("sparsity", sparsity)
        held_out = None if validation is None else share("validation", validation)
        if measured is None:
            measured = self.training_sparsity()
        self.training_counts = None
        return self.schedule.step(measured, held_out)

    def _warn_if_never_steered(self) -> None:
        if torch.compiler.is_compiling() or not isinstance(self.schedule, SteeredLambda):
            return
        self._steps_unsteered = 0 if self.schedule.steps else self._steps_unsteered + 1
        if self._steps_unsteered == UNSTEERED:
            warnings.warn(
                f"target_sparsity is set, but λ was never steered in {UNSTEERED} training steps, so the model will not "
                "reach it: call model.steer() after every optimizer step, or give the Trainer "
                "callbacks=[l0drop.SteerCallback()]",
                stacklevel=3,
            )

    def settle(self, settled: bool) -> None:
        """Let learned gates use their test-time values in training, for the last steps of a run, or sample again."""
        for module in (self.gate, *self.inner_gates):
            if isinstance(module, LearnedGate):
                module.settled = settled

    def scale_noise(self, scale: float | Tensor | None) -> None:
        """Scale the noise from which learned gates are sampled in training, 0 to 1; None: the full noise.

        A number becomes a tensor on the gates' device, so that compiled steps need not be compiled again.
        """
        for module in (self.gate, *self.inner_gates):
            if isinstance(module, LearnedGate):
                if scale is None or isinstance(scale, Tensor):
                    module.noise_scale = scale
                else:
                    module.noise_scale = torch.full((), float(scale), device=module.weight.device)

    def fix_gates(self, fixed: bool = True) -> None:
        """Let only the decoder learn from now on, with the rows that the gates keep in decoding; False ends this.

        Encoder and gates stay as they are: their parameters get no gradient, and they run in eval mode, so without
        dropout, and gates have their test-time values. A parameter that the decoder shares with them, such as a table
        of embeddings, is fixed too: if it moved, the encodings would change, and with them the gates. Bring the gates
        to their target first, with `calibrate`.
        """
        if fixed == (self._fixed is not None):
            return
        if self._fixed is not None:
            for parameter in self._fixed:
                parameter.requires_grad_(True)
            self._fixed = None
        else:
            unique = {id(p): p for module in self._before_decoder() for p in module.parameters() if p.requires_grad}
            self._fixed = list(unique.values())
            for parameter in self._fixed:
                parameter.requires_grad_(False)
                parameter.grad = None
        self.train(self.training)

    @property
    def has_fixed_gates(self) -> bool:
        """Whether `fix_gates` is in effect."""
        return self._fixed is not None

    def _before_decoder(self) -> tuple[nn.Module, ...]:
        """The encoder and all gates."""
        return self.base_class.get_encoder(self), self.gate, self.inner_gates

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self._fixed is not None:
            for module in self._before_decoder():
                module.eval()
        return self

    def _require_enabled(self) -> None:
        if not self.config.l0drop.enabled:
            raise ValueError("enabled: the model runs ungated; set model.config.l0drop.enabled = True first")

    def _require_gate(self, method: str) -> None:
        """Raise ValueError for a model with a shortener, for a method that is about gates."""
        if self.shortener is not None:
            raise ValueError(
                f"{method}: acts on gates, and this model's memory comes from its shortener, "
                f"{type(self.shortener).__name__}, whose arguments say how many rows it keeps (shortener_args)"
            )

    def parameter_groups(self, lr: float, gate_scale: float = 30) -> list[dict[str, Any]]:
        """Optimizer groups: gates learn at `gate_scale` times `lr`, because an open gate's L0 gradient is tiny."""
        gates = [p for module in (self.gate, self.inner_gates) for p in module.parameters() if p.requires_grad]
        gate_ids = {id(p) for p in gates}
        rest = [p for p in self.parameters() if p.requires_grad and id(p) not in gate_ids]
        return [{"params": rest, "lr": lr}, {"params": gates, "lr": lr * gate_scale, "weight_decay": 0.0}]

    @torch.no_grad()
    def explain(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        hints: Mapping[str, Tensor] | None = None,
        **kwargs: Any,
    ) -> list[Explanation]:
        """Test-time gates, log α and kept positions of each sentence, counted in its real tokens.

            model.explain(**tokenizer(["The house is small."], return_tensors="pt"))

        For Whisper, pass `input_features`: positions are rows of 20 ms, and `attention_mask` says which of them audio
        covers.
        """
        self._require_enabled()
        self._require_gate("explain")
        if self.family.reads_audio:
            self.check_coverage(attention_mask)
        else:
            _require_ids(input_ids)
            kwargs["input_ids"] = input_ids
        encoder = eval_view(self).get_encoder()
        gates = encoder(attention_mask=attention_mask, hints=hints, **kwargs).gates
        mask_BN, counted_BN = self.source_rows(attention_mask, gates.values)
        explanations = []
        for sentence, real in enumerate(mask_BN):
            values = gates.values[sentence, real]
            log_alpha = None if gates.log_alpha is None else gates.log_alpha[sentence, real]
            kept = (values != 0).nonzero().flatten().tolist()
            explanations.append(Explanation(values, log_alpha, kept, counted_BN[sentence, real]))
        return explanations

    def source_rows(self, attention_mask: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
        """[B, N] twice: the rows of the source, and those that sparsity counts.

        For text both are the real tokens. Whisper has no padding: all rows are real, and those that audio covers count,
        as far as `attention_mask` says which. `like` is the encoder's main input, or a tensor [B, N, ...].
        """
        if not self.family.reads_audio:
            mask_BN = real_tokens(attention_mask, like)
            return mask_BN, mask_BN
        rows = self.config.max_source_positions
        real_BN = torch.ones(len(like), rows, dtype=torch.bool, device=like.device)
        # generate passes the mask of the whole recording, which says nothing about one window
        if attention_mask is None or attention_mask.shape != (len(like), rows * FRAMES_PER_ROW):
            return real_BN, real_BN
        return real_BN, attention_mask[:, ::FRAMES_PER_ROW].to(like.device).bool()

    def check_coverage(self, attention_mask: Tensor | None) -> None:
        """Raise ValueError unless the mask of a Whisper has one entry per feature frame of a window."""
        frames = self.config.max_source_positions * FRAMES_PER_ROW if self.family.reads_audio else None
        if frames is not None and attention_mask is not None and attention_mask.shape[1:] != (frames,):
            raise ValueError(
                f"attention_mask: expected one entry per feature frame, [B, {frames}], got shape "
                f"{tuple(attention_mask.shape)}; a feature extractor returns it with return_attention_mask=True"
            )

    @torch.no_grad()
    def calibrate(
        self, batches: Iterable[Mapping[str, Any]], target: float | None = None, *, force: bool = False
    ) -> Calibration:
        """Bring the sparsity on held-out text to the target by moving the log α at which gates close.

        batches: an iterable of encoder inputs (input_ids, attention_mask, ...); labels are ignored.
        target: default: `target_sparsity` of the config.
        force: close gates however many it takes.

        Other gates stay as they are. Opening a few gates that training had closed costs nothing. Closing gates that
        it had left open does: the decoder has never done without those encodings. So this raises ValueError, and
        changes nothing, if it would have to close more than 5 points (`MOST_CLOSED`), and warns above 1 point.

        If gates between layers have removed more rows than the target allows, which the last gate cannot bring back,
        their thresholds are lowered as well, all by the same amount (`Calibration.inner_moved`).
        """
        self._require_gate("calibrate")
        wanted = self.config.l0drop.target_sparsity if target is None else share("target", target)
        if wanted is None:
            raise ValueError("target: the model has no target_sparsity; say which sparsity to calibrate to")
        texts = _encoder_inputs(batches)
        with evaluating(self), self.dial():
            result, gone = self._calibration(texts, wanted)
            if result.refusal is not None and not force:
                raise ValueError(f"calibrate: {result.refusal}. To close them anyway, pass force=True")
            if gone > wanted + TOLERANCE:
                result = replace(self._open_between_layers(texts, result), before=result.before)
        if result.warning is not None:
            warnings.warn(result.warning, stacklevel=3)
        if result.threshold != self.gate.threshold:
            self.gate.close_at(result.threshold)
        self.calibration = result
        return result

    def _calibration(self, texts: Sequence[Mapping[str, Any]], wanted: float) -> tuple[Calibration, float]:
        """Where the last gate should close, and the share of tokens that gates before it have removed already."""
        sentences = []
        gone = real = 0
        for inputs in texts:
            self.check_coverage(inputs.get("attention_mask"))
            gates = self.get_encoder()(**inputs).gates
            if gates.log_alpha is None:
                raise ValueError("calibrate: this gate has no log α with a threshold to move, because it is a rule")
            _, mask_BN = self.source_rows(inputs.get("attention_mask"), gates.values)
            always_BN = self._always(inputs.get("input_ids"), mask_BN)
            sentences.append(Sentences(gates.log_alpha, mask_BN, always_BN))
            if len(self.inner_gates):
                gone += int((gates.log_alpha.isneginf() & mask_BN).sum())
                real += int(mask_BN.sum())
        found = calibrate(sentences, wanted, self.gate.threshold, self.config.l0drop.gating)
        return found, gone / real if real else 0.0

    def _open_between_layers(self, texts: Sequence[Mapping[str, Any]], closed: Calibration) -> Calibration:
        """Lower the thresholds between layers just enough for the last gate to reach its target.

        Every row that is kept changes the input of later layers, so each candidate is run on the text: first steps that
        double until enough rows are open, then bisection between the last two.
        """
        gates = [gate for gate in self.inner_gates if isinstance(gate, Gate)]
        as_trained = [gate.threshold for gate in gates]

        def lowered(by: float) -> tuple[Calibration, bool]:
            for gate, threshold in zip(gates, as_trained, strict=True):
                gate.close_at(threshold - by)
            found, gone = self._calibration(texts, closed.target)
            return replace(found, inner_moved=-by), gone <= closed.target + TOLERANCE

        too_little, by = 0.0, 1.0
        while not lowered(by)[1]:
            too_little, by = by, 2 * by
            if by > _LARGEST_STEP:
                lowered(0.0)
                return closed
        for _ in range(_BISECTIONS):
            middle = (too_little + by) / 2
            too_little, by = (too_little, middle) if lowered(middle)[1] else (middle, by)
        return lowered(by)[0]


_LARGEST_STEP = 64.0
"""In practice no finite log α lies further below its threshold."""
_BISECTIONS = 6


_DIALS: ContextVar[tuple[tuple[object, Dial | Dials], ...]] = ContextVar("dials", default=())
"""The dials that are set in this thread or task, outermost first, each with the key of its model."""
_NO_DIAL = Dial()
_any_dial = False
"""Whether a dial is set in any thread or task. Compiled code checks it before each run."""
_dials_set = 0
_LOCK = threading.Lock()


class DialContext:
    """The dial of one `with` block. Dropping it without entering it warns, because then it has changed nothing."""

    def __init__(self, model: Controls, dial: Dial | Dials) -> None:
        self._model, self._setting = model, dial
        self._entered = False

    def __enter__(self) -> None:
        self._entered = True
        _count_dials(1)
        _DIALS.set((*_DIALS.get(), (self._model._dial_key, self._setting)))

    def __exit__(self, *exception: object) -> None:
        dials = _DIALS.get()
        # found by identity, because a generator may leave its dial after a later one was set
        own = max((i for i, (_, dial) in enumerate(dials) if dial is self._setting), default=len(dials))
        _DIALS.set(dials[:own] + dials[own + 1 :])
        _count_dials(-1)

    def __del__(self) -> None:
        if not getattr(self, "_entered", True):
            warnings.warn(
                f"model.dial({self._setting}) changed nothing, because it was not entered: write "
                f"`with model.dial({self._setting}): ...`, with the calls it is for inside",
                stacklevel=2,
            )


def _count_dials(more: int) -> None:
    global _any_dial, _dials_set
    with _LOCK:
        _dials_set += more
        _any_dial = _dials_set > 0


def _require_ids(input_ids: Any) -> None:
    if isinstance(input_ids, Mapping):
        raise TypeError("input_ids: expected token ids, got a mapping; unpack it: model.explain(**inputs)")
    if not isinstance(input_ids, Tensor):
        raise TypeError(
            f"input_ids: expected a tensor of token ids [B, N], got {type(input_ids).__name__}; tokenize text first, "
            'model.explain(**tokenizer(texts, return_tensors="pt")), or use l0drop.load(folder).explain(text)'
        )
    if input_ids.dim() != 2:
        raise ValueError(
            f"input_ids: expected shape [B, N], got {list(input_ids.shape)}; for one sentence, pass ids[None]"
        )


def _encoder_inputs(batches: Any) -> list[dict[str, Any]]:
    """The batches of a calibration without the decoder's part."""
    if isinstance(batches, Mapping):
        raise TypeError("batches: expected an iterable of batches, got one batch; pass calibrate([batch])")
    if isinstance(batches, Tensor | str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches: expected an iterable of batches with input_ids and attention_mask, got {type(batches).__name__}"
        )
    texts = []
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise TypeError(
                "batches: expected mappings with input_ids and attention_mask, such as a tokenizer returns, "
                f"got {type(batch).__name__}"
            )
        texts.append({k: v for k, v in batch.items() if k not in ("labels", "noise_key", "decoder_input_ids")})
    if not texts:
        raise ValueError("batches: none were given; a generator that was used up in training gives none")
    return texts


def real_tokens(attention_mask: Tensor | None, like_BN: Tensor) -> Tensor:
    """[B, N], True on real tokens."""
    if attention_mask is None:
        return torch.ones(like_BN.shape[:2], dtype=torch.bool, device=like_BN.device)
    if attention_mask.shape != like_BN.shape[:2]:
        raise ValueError(
            f"attention_mask: expected shape {tuple(like_BN.shape[:2])}, one entry per source token, "
            f"got {tuple(attention_mask.shape)}"
        )
    mask_BN = attention_mask.bool()
    check_mask(mask_BN)
    return mask_BN


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode for the calls inside; afterwards every module is in its former mode."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
