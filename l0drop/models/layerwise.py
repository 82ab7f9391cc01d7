"""Gates between the encoder's layers, the last of them being the model's ordinary gate.

With gating `zero` the gate multiplies and all rows stay, as in the paper. With `mask` a row once closed is gone for
good: in training it is masked out of the following layers, in decoding it is taken out of the batch, so that the rest
of the encoder runs on fewer rows.

Shapes: B sentences, N source positions, K rows still in the batch, D model width. Masks are True on real tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from l0drop.core.gates import Gate, Gates
from l0drop.core.memory import Gating, compress, full, keep_one


class Decide(Protocol):
    """How the model asks one of its gates, with its noise and the tokens it always keeps."""

    def __call__(self, gate: Gate, encodings: Tensor, mask: Tensor, index: Tensor | None, stream: int) -> Gates: ...


class GatedLayers(nn.ModuleList):
    """An encoder's layers, in the same places under the same names, with something to do after each.

    The encoder's own loop iterates over its layers and calls them; inside `running` it gets them followed by their
    gates. So neither the encoder's forward is copied nor a hook left anywhere, and a layer that recomputes itself for
    gradient checkpointing does not recompute its gate.
    """

    def __iter__(self) -> Iterator[Any]:
        run: LayerRun | None = self.__dict__.get("_run")
        layers = list(super().__iter__())
        return iter(layers) if run is None else iter([_Step(run, i, layer) for i, layer in enumerate(layers)])

    @contextmanager
    def running(self, run: "LayerRun") -> Iterator[None]:
        self.__dict__["_run"] = run
        try:
            yield
        finally:
            del self.__dict__["_run"]


class _Step:
    """One layer and its gate, called by the encoder in place of the layer."""

    def __init__(self, run: "LayerRun", position: int, layer: nn.Module) -> None:
        self.run, self.position, self.layer = run, position, layer

    def __call__(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        bias = attention_mask if self.run.bias is None else self.run.bias.to(hidden_states.dtype)
        return self.run.after(self.position, self.layer(hidden_states, bias, **kwargs))


class LayerRun:
    """The gates of one pass through the encoder."""

    def __init__(
        self, gates: nn.ModuleList, decide: Decide, mask_BN: Tensor, gating: Gating, *, remove_rows: bool
    ) -> None:
        self.inner_gates, self.decide, self.mask_BN, self.gating = gates, decide, mask_BN, gating
        self.remove_rows = remove_rows and gating == "mask"
        self.alive_BN = mask_BN
        self.closed_BN = torch.zeros_like(mask_BN)  # where some test-time gate is closed, whatever the samples did
        self.open_probability_BN: Tensor | None = None
        self.bias: Tensor | None = None
        self.layer_gates: list[Gates] = []
        self._index_BK: Tensor | None = None  # source position of each row in the batch, once rows were removed

    def after(self, position: int, hidden: Tensor) -> Tensor:
        """Apply the gate that follows the layer; nothing follows the last one but the model's ordinary gate."""
        if position >= len(self.inner_gates):
            return hidden
        gate = self.inner_gates[position]
        assert isinstance(gate, Gate)
        if self.gating == "zero":
            gates = self.decide(gate, hidden, self.mask_BN, None, position)
            self.layer_gates.append(gates)
            return full(hidden, gates, self.mask_BN, "zero").states
        index_BK = self._index_BK
        here_BK = self.alive_BN if index_BK is None else index_BK >= 0
        if self.remove_rows:
            gates = self.decide(gate, hidden, here_BK, index_BK, position)
        else:
            gates = self.among_alive(self.decide(gate, hidden, self.mask_BN, None, position), gate)
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
        """A later gate's decisions where rows stay in the batch: the sampled ones count on rows still open only.

        Its open probability is taken on every real row, so that its product with the earlier ones' is P(open
        everywhere) and not counted out a second time by the samples.
        """
        self.closed_BN = self.closed_BN | (self.alive_BN & gate.closed(gates))
        return gates._replace(values=gates.values * self.alive_BN)

    def joined(self, gates: Gates) -> Gates:
        """A gate's decisions in the light of the earlier ones: a row is open if it has been open everywhere."""
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
        """The encoder's output with every row in its place again, zeros where rows were removed: [B, N, D]."""
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
