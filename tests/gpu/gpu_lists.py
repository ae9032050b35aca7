"""Hand-written launch lists for the tests on a real GPU."""

from __future__ import annotations

from torchweld.base.config import override
from torchweld.ir.dtype import DType
from torchweld.ir.program import (
    Alloc,
    Artifact,
    Call,
    CallArg,
    GridLaunch,
    Instruction,
    Program,
    TensorArg,
    TensorSpec,
)
from torchweld.runtime.executable import Executable, make_executable

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
BLOCK = 1024
BODIES = {
    "add1": ("*TYPE:16 *TYPE:16", "x, y", "tl.store(y + i, tl.load(x + i, m) + 1.0, m)"),
    "inc": ("*TYPE:16", "x", "tl.store(x + i, tl.load(x + i, m) + 1.0, m)"),
    "scale": ("*TYPE:16 TYPE *TYPE:16", "x, s, y", "tl.store(y + i, tl.load(x + i, m) * s, m)"),
}
TYPES = {DType.F32: "fp32", DType.BF16: "bf16"}
SOFTMAX = """def softmax(x, y):
    i = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    v = tl.load(x + i).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + i, (e / tl.sum(e, 0)).to(y.dtype.element_ty))
"""
F32 = DType.F32
T = TensorArg


def row_major(sizes: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(sizes):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def spec(place: str, sizes: tuple[int, ...], index: int = 0, *, dtype: DType = F32,
         strides: tuple[int, ...] | None = None, offset: int = 0,
         device: str = "cuda:0") -> TensorSpec:  # fmt: skip
    return TensorSpec(place, index, dtype, sizes, strides or row_major(sizes), offset, device)


def elementwise(name: str, n: int, dtype: DType = F32) -> Artifact:
    signature, params, body = BODIES[name]
    text = (
        f"{HEAD}def {name}({params}):\n    i = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})\n"
        f"    m = i < {n}\n    {body}\n"
    )
    return Artifact("triton", text, (name,),
                    (("signature", signature.replace("TYPE", TYPES[dtype])),))  # fmt: skip


def softmax(columns: int, dtype: DType) -> Artifact:
    kind = TYPES[dtype]
    return Artifact("triton", HEAD + SOFTMAX.replace("COLUMNS", str(columns)), ("softmax",),
                    (("signature", f"*{kind}:16 *{kind}:16"),))  # fmt: skip


def program(artifacts: tuple[Artifact, ...], tensors: tuple[TensorSpec, ...],
            steps: tuple[Instruction, ...], outputs: tuple[int | None, ...], arena: int = 0,
            device: str = "cuda:0", **meta: object) -> Program:  # fmt: skip
    n = sum(t.place == "input" for t in tensors)
    return Program(artifacts, tensors, steps, n, outputs, arena, meta, device)


def build(p: Program, static: tuple[int, ...] = (), graphs: bool | None = None,
          verify: bool = False) -> Executable:  # fmt: skip
    with override(driver="native", verify=verify) as cfg:
        made = make_executable(p, cfg, None, frozenset(static), graphs)
    assert made.driver == "native"
    return made


def launch(name: str, n: int, *args: int) -> GridLaunch:
    return GridLaunch(name, args, -(-n // BLOCK))


def call(op: str, args: tuple[CallArg, ...], *results: int, **kwargs: CallArg) -> Call:
    return Call(op, args, tuple(kwargs.items()), results)


def chain(n: int = 4096, device: str = "cuda:0") -> Program:
    """x + 1 + 1 through the arena."""
    return program(
        (elementwise("add1", n),),
        (spec("input", (n,), device=device), spec("arena", (n,), device=device),
         spec("fresh", (n,), device=device)),
        (launch("add1", n, 0, 1), Alloc(2), launch("add1", n, 1, 2)), (2,), 4 * n, device,
    )  # fmt: skip


def product(m: int = 64, n: int = 64) -> Program:
    """(x + 1) @ w, and that + 1."""
    return program(
        (elementwise("add1", m * n),),
        (spec("input", (m, n)), spec("input", (n, n), 1), spec("arena", (m, n)),
         spec("extern", (m, n)), spec("fresh", (m, n))),
        (launch("add1", m * n, 0, 2), call("aten.mm.default", (T(2), T(1)), 3), Alloc(4),
         launch("add1", m * n, 3, 4)), (3, 4), 4 * m * n,
    )  # fmt: skip


def operator(op: str, *args: CallArg, sizes: tuple[int, ...] = (256,)) -> Program:
    """An operator between two kernels; the first argument is x + 1."""
    n = 256
    return program(
        (elementwise("add1", n),),
        (spec("input", (n,)), spec("arena", (n,)), spec("extern", sizes), spec("fresh", (n,))),
        (launch("add1", n, 0, 1), call(op, (T(1), *args), 2), Alloc(3), launch("add1", n, 1, 3)),
        (2, 3), 4 * n,
    )  # fmt: skip


def mlp(rows: int, width: int, layers: int, dtype: DType) -> Program:
    """softmax of `layers` times relu(x @ w + b): inputs x, then w and b of every layer."""
    tensors = [spec("input", (rows, width), dtype=dtype)]
    for i in range(layers):
        tensors += [spec("input", (width, width), 2 * i + 1, dtype=dtype),
                    spec("input", (width,), 2 * i + 2, dtype=dtype)]  # fmt: skip
    steps: list[Instruction] = []
    h = 0
    for i in range(layers):
        tensors.append(spec("extern", (rows, width), dtype=dtype))
        made = len(tensors) - 1
        steps.append(call("aten._addmm_activation.default", (T(2 * i + 2), T(h), T(2 * i + 1)),
                          made, use_gelu=False))  # fmt: skip
        h = made
    tensors.append(spec("fresh", (rows, width), dtype=dtype))
    steps += [Alloc(len(tensors) - 1), GridLaunch("softmax", (h, len(tensors) - 1), rows)]
    return program((softmax(width, dtype),), tuple(tensors), tuple(steps), (len(tensors) - 1,))
