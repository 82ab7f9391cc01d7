"""Gates inside the encoder: before its first layer or between layers; the model's ordinary gate follows the last one.

With gating `zero` gates multiply and all rows stay, as in the paper. With `mask` a closed row does not come back: in
training it is masked out of the following layers; in decoding it is removed from the batch, so that the rest of the
encoder runs on fewer rows.

Shapes: B sentences, N source positions, K rows still in the batch, D model width. Masks are True on real tokens.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from l0drop.core.gates import Gate, Gates
from l0drop.core.memory import Gating, compress, full, keep_one
from l0drop.models.attention import padding_bias


class Decide(Protocol):
    """The model's call to one of its gates, which adds the noise and the tokens that are always kept."""

    def __call__(self, gate: Gate, encodings: Tensor, mask: Tensor, index: Tensor | None, stream: int) -> Gates: ...


class GatedLayers(nn.ModuleList):
    """An encoder's layers with unchanged names, each followed by its gate inside `running`.

    The encoder's forward iterates over this list and calls the layers. So its code is not copied and no hook is left,
    and a layer that is recomputed for gradient checkpointing does not recompute its gate.
    """

    def __iter__(self) -> Iterator[Any]:
        owner, run = _RUNNING.get() or (None, None)
        layers = list(super().__iter__())
        if run is None or owner is not self:
            return iter(layers)
        return iter([_Step(run, i, layer) for i, layer in enumerate(layers, 1)])

    @contextmanager
    def running(self, run: "LayerRun") -> Iterator[None]:
        token = _RUNNING.set((self, run))
        try:
            yield
        finally:
            _RUNNING.reset(token)


_RUNNING: ContextVar[tuple[GatedLayers, "LayerRun"] | None] = ContextVar("running", default=None)
"""The pass that this thread is in, and the layers that it goes through."""


class _Step:
    """One layer and the gates around it, which the encoder calls instead of the layer. Positions are counted from 1."""

    def __init__(self, run: "LayerRun", position: int, layer: nn.Module) -> None:
        self.run, self.position, self.layer = run, position, layer

    def __call__(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        if self.position == 1:
            self.run.was_entered = True
            hidden_states = self.run.after(0, hidden_states)
        bias = attention_mask if self.run.bias is None else self.run.bias.to(hidden_states.dtype)
        return self.run.after(self.position, self.layer(hidden_states, bias, **kwargs))


class LayerRun:
    """The gates of one pass through the encoder, by the layer that they follow, counted from 1; 0: before the first.

    cut: padding was cut before the first layer, and layers mask the rows that are not real. Otherwise the encoder has
    its own mask.
    """

    def __init__(
        self,
        gates: Mapping[int, nn.Module],
        decide: Decide,
        mask_BN: Tensor,
        gating: Gating,
        *,
        remove_rows: bool,
        cut: bool = False,
    ) -> None:
        self.inner_gates, self.decide, self.mask_BN, self.gating = gates, decide, mask_BN, gating
        self.remove_rows = remove_rows and gating == "mask"
        self.alive_BN = mask_BN
        self.closed_BN = torch.zeros_like(mask_BN)  # where a test-time gate is closed, independent of the samples
        self.open_probability_BN: Tensor | None = None
        self.bias: Tensor | None = None
        self.layer_gates: list[Gates] = []
        self._index_BK: Tensor | None = None  # source position of each row in the batch, after rows were removed
        self.was_entered = False
        if cut and not bool(mask_BN.all()):
            self.bias = padding_bias(mask_BN, torch.float32)

    def after(self, position: int, hidden: Tensor) -> Tensor:
        """Apply the gate that follows the layer, if there is one. The model's ordinary gate follows the last layer."""
        gate = self.inner_gates.get(position)
        if gate is None:
            return hidden
        assert isinstance(gate, Gate)
        stream = len(self.layer_gates)
        if self.gating == "zero":
            gates = self.decide(gate, hidden, self.mask_BN, None, stream)
            self.layer_gates.append(gates)
            return full(hidden, gates, self.mask_BN, "zero").states
        index_BK = self._index_BK
        here_BK = self.alive_BN if index_BK is None else index_BK >= 0
        if self.remove_rows:
            gates = self.decide(gate, hidden, here_BK, index_BK, stream)
        else:
            gates = self.among_alive(self.decide(gate, hidden, self.mask_BN, None, stream), gate)
        gates = keep_one(gates, here_BK, "mask")
        memory = (compress if self.remove_rows else full)(hidden, gates, here_BK, "mask")
        if self.remove_rows:
            rows_BK = memory.index if index_BK is None else index_BK.gather(1, memory.index.clamp_min(0))
            self._index_BK = rows_BK.masked_fill(memory.index < 0, -1)
            gates = Gates(
                self._at_full_length(gates.values, index_BK),
                *(None if t is None else self._at_full_length(t, index_BK) for t in gates[1:]),
            )
        self.layer_gates.append(self.joined(gates))
        self.alive_BN = self.layer_gates[-1].values != 0
        self.bias = memory.bias
        return memory.states

    def among_alive(self, gates: Gates, gate: Gate) -> Gates:
        """A later gate's decisions when closed rows stay in the batch: its samples apply to rows that are still open.

        Its open probability covers every real row, so that its product with the earlier ones is P(open everywhere),
        and the samples are not counted twice.
        """
        self.closed_BN = self.closed_BN | (self.alive_BN & gate.closed(gates))
        return gates._replace(values=gates.values * self.alive_BN)

    def joined(self, gates: Gates) -> Gates:
        """A gate's decisions combined with the earlier ones: a row is open if every gate so far was open."""
        if self.gating == "zero":
            return gates
        open_BN = gates.open_probability
        if open_BN is not None and self.open_probability_BN is not None:
            open_BN = open_BN * self.open_probability_BN
        self.open_probability_BN = open_BN
        gone_BN = self.mask_BN & ~self.alive_BN
        log_alpha = None if gates.log_alpha is None else gates.log_alpha.masked_fill(gone_BN, -torch.inf)
        return Gates(gates.values, open_BN, log_alpha)

    def restore(self, hidden_BKD: Tensor) -> Tensor:
        """[B, N, D], the encoder's output at full length, with zeros for removed rows."""
        if self._index_BK is None:
            return hidden_BKD
        return self._at_full_length(hidden_BKD, self._index_BK)

    def _at_full_length(self, rows: Tensor, index_BK: Tensor | None) -> Tensor:
        if index_BK is None:
            return rows
        real_BK = index_BK >= 0
        target = rows.new_zeros(*self.mask_BN.shape, *rows.shape[2:])
        sentence_BK = torch.arange(len(index_BK), device=index_BK.device)[:, None].expand_as(index_BK)
        return target.index_put((sentence_BK[real_BK], index_BK[real_BK]), rows[real_BK])
