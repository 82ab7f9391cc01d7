"""Compile every kernel for an H100 or H200, which needs no GPU: `python -m tests.decoding.gpu.compile_kernels`."""

import inspect

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from l0drop.decoding.gpu import attention, selection

HOPPER = GPUTarget("cuda", 90, 32)
_INTEGERS = (
    *("LENGTH", "GIVEN", "OPEN", "ERROR", "NUMBERS", "TOKENS", "ANCESTORS", "DONE_TOKENS", "DONE_SIDE"),
    *("DONE_LENGTH", "DONE", "TOKEN", "LIMITS", "ROWS"),
)
_FLOATS = ["REPETITION", "BEST", "SUMS", "DIVISORS", "SCORES", "DONE_SCORES", "PARTS", "HEADS_OF_PARTS", "BIAS"]
TYPES = {
    **dict.fromkeys(_INTEGERS, "*i32"),
    **dict.fromkeys(_FLOATS, "*fp32"),
    "CURRENT": "*i64",
    "OFFSET": "*i64",
    "FLAGS": "*u8",
    "MARKS": "*u8",
    "scale": "fp32",
    "eps": "fp32",
    "offset": "i32",
    "pad": "i32",
}
"""Types of the kernels' arguments; all others are in bfloat16."""

HEADS = {"BEAMS": 4, "WIDTH": 512, "D": 64, "N": 64}
SEARCH = {"BEAMS": 4, "W": 13, "C": 8}
KERNELS = (
    (attention._embed, {"BEAMS": 4, "D": 512, "COUNT": 1024, "N": 512}),
    (attention._add_norm, {"D": 512, "ADDS": True, "BIASED": True, "RMS": False, "N": 512}),
    (
        attention._self_attention,
        {**HEADS, "S": 8, "SLOTS": 8, "T": 1024, "HAS_DISTANCES": True, "TILE": 16, "BLOCK": 32, "EXACT": False},
    ),
    (attention._cross_attention, {**HEADS, "S": 8, "TILE": 16, "BLOCK": 64, "EXACT": False}),
    (attention._join, {**HEADS, "S": 8}),
    (selection._mark, {"BEAMS": 4, "SLOTS": 8, "T": 128, "V": 51864, "COPY": 128}),
    (
        selection._time_limits,
        {"BEAMS": 4, "SLOTS": 8, "T": 128, "V": 51864, "HAS_MARKS": True, "BLOCK": 4096, "COPY": 128},
    ),
    (
        selection._best_of_block,
        {**SEARCH, "V": 51864, "NORMALIZES_FIRST": True, "HAS_MARKS": True, "HAS_TIMES": True, "BLOCK": 4096},
    ),
    (
        selection._advance,
        {**SEARCH, "BEAM_TILE": 4, "SLOTS": 8, "T": 128, "CANDIDATES": 8, "CANDIDATE_TILE": 8, "TILE": 512}
        | {"BLOCKS": 16, "COPY": 128},
    ),
)


def main() -> None:
    for kernel, constants in KERNELS:
        names = inspect.signature(kernel.fn).parameters
        types = {name: "constexpr" if name in constants else TYPES.get(name, "*bf16") for name in names}
        made = triton.compile(ASTSource(kernel, types, constexprs=constants), target=HOPPER)
        print(kernel.fn.__name__, len(made.asm["cubin"]))


if __name__ == "__main__":
    main()
