"""Decoding on a GPU: the whole step as one CUDA graph on buffers of fixed size, replayed for every token.

Small batches are also encoded by a graph: padded to one of few shapes, from token ids to memories.

A sentence occupies a slot. All slots advance by one token per step, each at its own position, and when the host learns
that a sentence is finished its slot takes the next one.

    ids ─ encoding (pad, replay, cut) ─▶ memories
    memories ─ slots (fill, replay, harvest) ─▶ step (one graph) ─▶ attention and selection kernels ─▶ state

| file           | contents                                                                     |
|----------------|------------------------------------------------------------------------------|
| `state.py`     | the buffers of all slots, and the settings of a search as tensors            |
| `step.py`      | one step of a model's decoder, from the last tokens to the next ones         |
| `attention.py` | kernels: embedding, norms, attention to the target and to the memory         |
| `selection.py` | kernels: from logits to the next hypotheses                                  |
| `plain.py`     | the same operations in plain torch, as the tests' reference                  |
| `slots.py`     | from a batch of memories to outputs: replay, slots, memory budget            |
| `encoding.py`  | from a batch of token ids to memories, in shapes that are captured           |
| `graphs.py`    | capturing a computation                                                      |
"""
