"""Program: source texts and a flat launch list. Pure data: serialisable, run by runtime/.

Tensors are numbered 0..len(tensors)-1. Before the steps run, inputs are bound to their numbers;
fresh tensors are allocated by `Alloc`; arena tensors live at a byte offset in the call's arena.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchweld.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class Artifact:
    """One source text. lang: "cpp" (a translation unit) or "triton". `functions`: what it defines.

    A C++ function has the one ABI that the driver knows:
        int32_t name(void* const* tensors, int64_t begin, int64_t end)
    tensors: data pointers of the launch's arguments in order (storage offset already applied);
    it computes grid points [begin, end), is free of global state, may run on several threads at
    once over disjoint ranges, and returns 0, or 1 if an index was out of range.
    """

    lang: str
    source: str
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor of the launch list. Shapes: sizes, strides, offset in elements.

    place: "input" (index = position in the call), "arena" (index = byte offset), "fresh" (made by
    an Alloc step), "extern" (result of a Call step), "view" (made by a MakeView step).
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
class TensorArg:
    """A tensor of the launch list as an operator argument."""

    tensor: int


@dataclass(frozen=True, slots=True)
class TorchArg:
    """A torch constant: kind is dtype, device, layout or memory_format; name as torch prints it."""

    kind: str
    name: str


CallArg = TensorArg | TorchArg | int | float | bool | complex | str | None | tuple["CallArg", ...]


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
class Drop:
    """Release a tensor before the end of the call."""

    tensor: int


Instruction = Alloc | MakeView | Launch | Call | Drop


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph as data.

    outputs: tensor numbers returned in order, None for an output that is None. An output that is an
    input's number is returned as that very object.
    """

    artifacts: tuple[Artifact, ...]
    tensors: tuple[TensorSpec, ...]
    steps: tuple[Instruction, ...]
    n_inputs: int
    outputs: tuple[int | None, ...]
    arena_bytes: int
    meta: dict[str, object] = field(default_factory=dict, compare=False)
