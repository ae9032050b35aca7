"""Small hand-written launch lists for the driver tests."""

from __future__ import annotations

from collections.abc import Callable

from torchweld.base.config import override
from torchweld.ir.dtype import DType
from torchweld.ir.program import (
    Alloc,
    Artifact,
    Call,
    CallArg,
    Instruction,
    Launch,
    Program,
    TensorArg,
    TensorSpec,
)
from torchweld.runtime.executable import Executable, make_executable

Make = Callable[[Program], Executable]

F32 = DType.F32

SOURCE = r"""
#include <cstdint>
#include <ctime>
typedef const float* In;
typedef float* Out;
extern "C" int32_t add1(void* const* t, int64_t b, int64_t e) {
    In x = (In)t[0]; Out y = (Out)t[1];
    for (int64_t i = b; i < e; i++) y[i] = x[i] + 1.0f;
    return 0;
}
extern "C" int32_t relu(void* const* t, int64_t b, int64_t e) {
    In x = (In)t[0]; Out y = (Out)t[1];
    for (int64_t i = b; i < e; i++) y[i] = x[i] > 0.0f ? x[i] : 0.0f;
    return 0;
}
// counts how often each point was run, and notes the size of the chunk that ran it
extern "C" int32_t visit(void* const* t, int64_t b, int64_t e) {
    Out seen = (Out)t[0]; Out chunk = (Out)t[1];
    for (int64_t i = b; i < e; i++) { seen[i] += 1.0f; chunk[i] = (float)(e - b); }
    return 0;
}
extern "C" int32_t take(void* const* t, int64_t b, int64_t e) {
    In x = (In)t[0]; const int64_t* at = (const int64_t*)t[1]; Out y = (Out)t[2];
    int32_t bad = 0;
    for (int64_t i = b; i < e; i++) {
        int64_t j = at[i];
        if (j < 0 || j >= 4) { bad = 1; j = 0; }
        y[i] = x[j];
    }
    return bad;
}
extern "C" int32_t sign_code(void* const* t, int64_t b, int64_t e) {
    const int64_t* at = (const int64_t*)t[0];
    int32_t bad = 0;
    for (int64_t i = b; i < e; i++) bad |= at[i];
    return bad;
}
extern "C" int32_t increment(void* const* t, int64_t b, int64_t e) {
    Out x = (Out)t[0];
    for (int64_t i = b; i < e; i++) x[i] += 1.0f;
    return 0;
}
// returns once another thread has made the first element non-zero, or 1 after 20 seconds
extern "C" int32_t await(void* const* t, int64_t b, int64_t e) {
    volatile const float* x = (volatile const float*)t[0];
    for (time_t end = time(nullptr) + 20; x[0] == 0.0f;)
        if (time(nullptr) > end) return 1;
    return 0;
}
"""
FUNCTIONS = ("add1", "relu", "visit", "take", "sign_code", "increment", "await")
UNIT = Artifact("cpp", SOURCE, FUNCTIONS)


def row_major(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def spec(
    place: str,
    sizes: tuple[int, ...],
    index: int = 0,
    *,
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
    dtype: DType = F32,
) -> TensorSpec:
    return TensorSpec(place, index, dtype, sizes, strides or row_major(sizes), offset)


def program(
    tensors: tuple[TensorSpec, ...],
    steps: tuple[Instruction, ...],
    outputs: tuple[int | None, ...],
    arena: int = 0,
    **meta: object,
) -> Program:
    n_inputs = sum(t.place == "input" for t in tensors)
    return Program((UNIT,), tensors, steps, n_inputs, outputs, arena, meta)


def add_one(n: int = 4, grain: int = 1024) -> Program:
    """x + 1."""
    return program(
        (spec("input", (n,)), spec("fresh", (n,))),
        (Alloc(1), Launch("add1", (0, 1), n, grain)),
        (1,),
    )


def call(
    op: str,
    args: tuple[CallArg, ...],
    tensors: tuple[TensorSpec, ...],
    results: tuple[int, ...],
    **kwargs: CallArg,
) -> Program:
    """One operator call that returns all its results."""
    return program(tensors, (Call(op, args, tuple(kwargs.items()), results),), results)


def mlp() -> Program:
    """softmax(relu(addmm(bias, x, w)) + 1): calls, kernels and an arena."""
    shape = (3, 5)
    return program(
        (
            spec("input", (3, 4)), spec("input", (4, 5), 1), spec("input", (5,), 2),
            spec("extern", shape), spec("arena", shape, 64), spec("arena", shape, 128),
            spec("extern", shape),
        ),
        (
            Call("aten.addmm.default", (T(2), T(0), T(1)), (), (3,)),
            Launch("relu", (3, 4), 15, 64), Launch("add1", (4, 5), 15, 64),
            Call("aten._softmax.default", (T(5), 1, False), (), (6,)),
        ),
        (6,),
        arena=192,
    )  # fmt: skip


def maker(driver: str, cache: str, **changes: object) -> Make:
    def build(program: Program) -> Executable:
        with override(driver=driver, cache_dir=cache, **changes) as cfg:
            made = make_executable(program, cfg, None)
        assert made.driver == driver
        return made

    return build


T = TensorArg
