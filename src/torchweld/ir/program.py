"""Program: source texts and a flat launch list. Pure data: serialisable, run by runtime/.

Tensors are numbered 0..len(tensors)-1. Before the steps run, inputs are bound to their numbers;
fresh tensors are allocated by `Alloc`; arena tensors live at a byte offset in the call's arena.

What depends only on inputs whose contents never change is the business of another Program, the
prologue: it runs at the first call, and its results are bound to the numbers of the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchweld.ir.dtype import DType

ALIGN = "align"  # Program.meta[ALIGN]: of what lies in the arena, in bytes


@dataclass(frozen=True, slots=True)
class Artifact:
    """One source text. lang: "cpp" (a translation unit) or "triton". `functions`: what it defines.

    A C++ function has the one ABI that the driver knows:
        int32_t name(void* const* tensors, int64_t begin, int64_t end)
    tensors: data pointers of the launch's arguments in order (storage offset already applied);
    it computes grid points [begin, end), is free of global state, may run on several threads at
    once over disjoint ranges, and returns 0, or the codes (ir.loop_ops.CHECKS) of indices that
    were out of range, or-ed together.

    A "triton" artifact is one kernel: a Python module that defines the function, decorated with
    triton.jit, with all sizes as literals. Its options: "signature" (Triton's types of the
    parameters, separated by spaces; ":16" behind one: its pointer is a multiple of 16 bytes),
    "num_warps", "num_stages", and "debug" (1: it checks indices).
    """

    lang: str
    source: str
    functions: tuple[str, ...]
    options: tuple[tuple[str, int | str], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the launch list. Shapes: sizes, strides, offset in elements.

    place: "input" (index = position in the call), "const" (index = output of the prologue; may be
    opaque to all but the Call that takes it), "arena" (index = byte offset), "fresh" (made by an
    Alloc step), "extern" (result of a Call step), "view" (made by a MakeView step), "state" (a
    number that a Draw step sets: kernels take it by value), "number" (index = its value, an i64:
    GPU kernels take it by value, C++ functions find a pointer to it among their tensors).
    """

    place: str
    index: int
    dtype: DType
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Alloc:
    """Allocate the fresh tensor `tensor`."""

    tensor: int


@dataclass(frozen=True, slots=True)
class MakeView:
    """tensor = as_strided(source) with the spec's sizes, strides and absolute offset."""

    tensor: int
    source: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Run function `function` over [0, extent) in chunks of at least `grain`, in parallel."""

    function: str
    args: tuple[int, ...]
    extent: int
    grain: int


@dataclass(frozen=True, slots=True)
class GridLaunch:
    """Run GPU function `function` on `blocks` blocks (one-dimensional grid).

    A CPU tensor of one element among the arguments of a CUDA kernel is passed by value.
    """

    function: str
    args: tuple[int, ...]
    blocks: int


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A tensor of the launch list as an operator argument."""

    tensor: int


@dataclass(frozen=True, slots=True)
class TorchArg:
    """A torch constant: kind is dtype, device, layout or memory_format; name as torch prints it."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class SizeArg:
    """An integer that depends on the sizes of a call: row `row` of their table."""

    row: int


CallArg = (
    TensorArg | TorchArg | SizeArg | int | float | bool | complex | str | None
    | tuple["CallArg", ...]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """Call the ATen operator `op` ("aten.mm.default"); its tensor results become `results`.

    A result whose strides or offset differ from its spec is an InternalError under verify, and is
    copied to the promised layout otherwise.
    """

    op: str
    args: tuple[CallArg, ...]
    kwargs: tuple[tuple[str, CallArg], ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draw:
    """Take `count` words (a multiple of 4) from torch's default generator of a CUDA device.

    seed, block: the "state" tensors, i64, that get the generator's seed, and its offset in blocks
    of four words before it moves on by `count`. A Program draws at most once per device, and before
    any step that could: a driver may do it as soon as the call begins.
    """

    device: str
    count: int
    seed: int
    block: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Release a tensor before the end of the call."""

    tensor: int


Instruction = Alloc | MakeView | Launch | GridLaunch | Call | Draw | Drop


@dataclass(frozen=True, slots=True)
class Patch:
    """One number of a Program that depends on the sizes of a call: row `row` of their table.

    what: "size", "stride" (of dimension `dim`), "offset" or "index" of tensor `at`; "extent" or
    "grain" of the Launch that is step `at`, "blocks" of the GridLaunch; "arena": its bytes.
    """

    what: str
    at: int
    dim: int
    row: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """What of a Program depends on the sizes of its inputs; the numbers in it are those of hints.

    readings: the symbols, each (kind, input, dim): "size" or "stride" of a dimension, or "number",
    the one element of the input. They are the first rows of the table. bounds: the least and the
    largest value of each that the Program is right for, None if there is none.
    code: a postfix program of (operation, number) that computes the other rows; see program_sizes.
    limits: rows that GPU kernels compute with in 32 bits: the Program is not right for larger ones.
    """

    readings: tuple[tuple[str, int, int], ...]
    bounds: tuple[tuple[int | None, int | None], ...]
    code: tuple[tuple[str, int], ...]
    patches: tuple[Patch, ...]
    limits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph as data.

    tensors: the inputs come first, then the constants.
    sizes: set if it serves a range of sizes; program_sizes.at() gives the Program of one of them.
    outputs: tensor numbers returned in order, None for an output that is None. An output that is an
    input's number is returned as that very object; none is a constant's.
    """

    artifacts: tuple[Artifact, ...]
    tensors: tuple[TensorSpec, ...]
    steps: tuple[Instruction, ...]
    n_inputs: int
    outputs: tuple[int | None, ...]
    arena_bytes: int
    meta: dict[str, object] = field(default_factory=dict, compare=False)
    arena_device: str = "cpu"
    prologue: Prologue | None = None
    sizes: Sizes | None = None
    host: HostPart | None = None

    @property
    def n_constants(self) -> int:
        return len(self.prologue.program.outputs) if self.prologue else 0


@dataclass(frozen=True, slots=True)
class Prologue:
    """What is computed once. frozen: the positions of the call's inputs that `program` gets.

    The results hold for as long as those inputs are the same tensors; then it runs again.
    """

    program: Program
    frozen: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostPart:
    """What is computed on the CPU before a Program for a GPU, in every call.

    takes: the positions of the call's inputs that `program` gets. crossing: how many of its results
    the Program takes behind the inputs; the others are outputs of the call, at the positions
    `gives`, where the Program's own are None.
    """

    program: Program
    takes: tuple[int, ...]
    crossing: int
    gives: tuple[int, ...]
