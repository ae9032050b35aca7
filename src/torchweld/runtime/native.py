"""Program -> native Executable: tests the C driver against this torch, and writes its rows."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch._ops import OpOverload

from torchweld.base.errors import InternalError
from torchweld.ir.program import (
    Alloc,
    Call,
    Draw,
    Drop,
    GridLaunch,
    Launch,
    MakeView,
    Program,
    TensorArg,
    TensorSpec,
)
from torchweld.ir.program_sizes import at, takes_sizes
from torchweld.runtime import cuda, draws, routes
from torchweld.runtime.calls import TORCH_DTYPE, callable_for, promised, resolve
from torchweld.runtime.constants import Constants
from torchweld.runtime.python_driver import bump_versions, mutated_inputs, view_offset
from torchweld.runtime.triton_job import Cubin

try:
    from torchweld.runtime import _driver
except ImportError as error:  # built without a C compiler
    _driver = None  # type: ignore[assignment]
    _why_missing = str(error)

_PLACES = {
    "input": 0, "const": 0, "arena": 1, "fresh": 2, "extern": 3, "view": 4, "state": 5, "number": 6,
}  # fmt: skip
_ALLOC, _VIEW, _LAUNCH, _CALL, _DROP = range(5)
_DRAW = 6
_LIBRARIES = (
    "libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libtorch.so", "libtorch_cuda.so",
)  # fmt: skip
# What captured graphs already contain, so that calls must not add it again.
_KEYS = ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")
_BUSY_ELEMENTS = 16384  # as in _driver.h


# Whether an Executable runs these sizes from now on: False: not now; None: it cannot run them.
Resize = Callable[[tuple[int, ...]], bool | None]


@dataclass(frozen=True, slots=True)
class Native:
    """The driver after its self-test: what it cannot do here, and torch's codes of the CPU and of
    every dtype.
    """

    missing: frozenset[str]
    pooled: bool
    cpu: int
    codes: Mapping[torch.dtype, int]


@functools.lru_cache(maxsize=1)
def native() -> Native | str:
    """The native driver, or why it is not available. Runs the self-test once."""
    if _driver is None:
        return f"the extension is not built: {_why_missing}"
    try:
        return _start()
    except (RuntimeError, TypeError, AttributeError, OSError) as error:
        return f"self-test: {error}"


def _start() -> Native:
    folder = Path(torch.__file__).parent / "lib"
    names = torch._C.DispatchKey.__members__
    keys = [k for k in names if k.startswith("Autocast")] + [k for k in _KEYS if k in names]
    sample = torch.zeros(3, dtype=torch.uint8)
    missing = _driver.init(
        tuple(str(folder / name) for name in _LIBRARIES),
        torch._C.TensorBase,
        sample,
        sample._cdata,
        tuple(names[k].value for k in keys),
        names["ADInplaceOrView"].value,
        _stealing_wrap(),
        InternalError,
        _huge_pages(),
    )
    for t in _samples():
        _compare(t)
    _check_made()
    pooled = _driver.calibrate(sample, sample.untyped_storage()._cdata) is not None
    _driver.find_keys(tuple((t, torch._C._dispatch_keys(t).raw_repr()) for t in _keyed()))
    codes = {d: _driver.describe(torch.empty(0, dtype=d))[1] for d in TORCH_DTYPE.values()}
    return Native(frozenset(missing), pooled, _driver.describe(sample)[2], codes)


def _stealing_wrap() -> Any:
    module = getattr(torch._C, "_aoti", None)
    return getattr(module, "alloc_tensor_by_stealing_from_void_ptr", None)


def _huge_pages() -> bool:
    """Whether the system gives huge pages to those who ask."""
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    except OSError:
        return False
    return "[madvise]" in text and os.name == "posix"


def _samples() -> list[torch.Tensor]:
    base = torch.zeros(4, 6)
    shaped = [base, base.t(), base[1:, 2:], base[0, 0], torch.empty(0, 3), base.expand(2, 4, 6)]
    shaped.append(torch.nn.Parameter(torch.zeros(2, 3)))
    shaped.append(torch.zeros(2, 3).as_subclass(_Subclass))
    return shaped + [torch.zeros(2, 2, dtype=d) for d in TORCH_DTYPE.values()]


def _keyed() -> tuple[torch.Tensor, ...]:
    """Tensors with different dispatch keys."""
    numbers = torch.zeros(2, dtype=torch.complex64)
    return (torch.zeros(2), numbers.conj(), numbers.conj().imag, torch.empty(2, device="meta"))


class _Subclass(torch.Tensor):
    """A tensor whose Python object is larger than torch.Tensor's."""


def _compare(t: torch.Tensor) -> None:
    pointer, _, _, sizes, strides, offset = _driver.describe(t)
    expected = (t.data_ptr(), tuple(t.shape), t.stride(), t.storage_offset())
    if (pointer, sizes, strides, offset) != expected:
        raise RuntimeError(f"a tensor was read as {(pointer, sizes, strides, offset)}")


def _check_made() -> None:
    made = _driver.make(5).fill_(7)
    if type(made) is not torch.Tensor or made.tolist() != [7] * 5 or made.dtype != torch.uint8:
        raise RuntimeError("a wrapped tensor is not what was asked for")
    _compare(made)


class Rows:
    """The rows of one Program. alike: by tensor, what is equal for those of one type and shape."""

    def __init__(
        self, program: Program, functions: Mapping[str, int], driver: Native, verify: bool,
        constants: Constants | None, kernels: Mapping[str, cuda.Loaded], gpu: cuda.Cuda | None,
        alike: list[object],
    ) -> None:  # fmt: skip
        self._program = program
        self.functions = functions
        self.native = driver
        self.verify = verify
        self.constants = constants
        self.kernels = kernels
        self.gpu = gpu
        steps = program.steps
        self._returned = {n for n in program.outputs if n is not None}
        self._pointed = {n for s in steps if isinstance(s, Launch) for n in s.args}
        self._sources = {s.tensor: s.source for s in steps if isinstance(s, MakeView)}
        self._handled = set(self._sources.values())
        self._aligned = {self.root(n) for n in cuda.aligned(steps, kernels)}
        if gpu is not None:  # a graph must notice what moves
            self._pointed |= {n for s in steps if isinstance(s, GridLaunch) for n in s.args}
            self._pointed |= {self.root(n) for n in self._pointed} | set(range(_given(program)))
            self._pointed |= {self.root(n) for n in self._returned}
        self._scratch: set[int] = set()
        self._groups: dict[object, int] = {}
        self._alike = alike
        for s in steps:
            if isinstance(s, Call):
                self._handled.update(tensor_numbers((s.args, tuple(v for _, v in s.kwargs))))

    @property
    def program(self) -> Program:
        return self._program

    def build(self) -> _driver.Executable:
        p = self.program
        check_escapes(p, self.root)
        steps = tuple(self._step(s) for s in p.steps)
        specs = tuple(self._spec(n, s) for n, s in enumerate(p.tensors))
        where = self._device(p.arena_device)
        made = _driver.Executable(
            p, p.n_inputs, len(self._groups), self._arena(), (self._main_device(), *where), specs,
            steps, tuple(-1 if n is None else n for n in p.outputs), mutated_inputs(p),
            self._settle, self._view, bump_versions, self.verify,
            p.n_constants, p.prologue.frozen if p.prologue else (), self.constants,
        )  # fmt: skip
        if self.constants is not None:
            self.constants.forget = made.forget
        return made

    def _arena(self) -> int:
        """Bytes of the arena. Empty intermediates still need one to be tensors in."""
        p = self.program
        return max(p.arena_bytes, 64) if any(s.place == "arena" for s in p.tensors) else 0

    def _settle(self, op: str, t: torch.Tensor, n: int) -> torch.Tensor:
        return promised(op, t, self.program.tensors[n], self.verify)

    def _view(self, source: torch.Tensor, n: int, source_number: int) -> torch.Tensor:
        tensors = self.program.tensors
        spec = tensors[n]
        at = view_offset(int(source.storage_offset()), spec, tensors[source_number])
        return torch.as_strided(source, spec.sizes, spec.strides, at)

    def _device(self, name: str) -> tuple[int, int]:
        """torch's code of a device's type, and its number."""
        index = cuda.device_index(name)
        if name == "cpu" or (index >= 0 and self.gpu is not None):
            return (self.native.cpu, 0) if self.gpu is None or name == "cpu" else (
                self.gpu.type, index
            )  # fmt: skip
        raise InternalError(f"a tensor on {name}")

    def _main_device(self) -> int:
        """The CUDA device of the Program, -1 if there is none."""
        if self.gpu is None:
            return -1
        arena = cuda.device_index(self.program.arena_device)
        used = [arena, *(cuda.device_index(s.device) for s in self.program.tensors)]
        return next((i for i in used if i >= 0), -1)

    def root(self, n: int) -> int:
        """The tensor whose memory this one is a view of."""
        while n in self._sources:
            n = self._sources[n]
        return n

    def _spec(self, n: int, s: TensorSpec) -> tuple[object, ...]:
        dtype = TORCH_DTYPE.get(s.dtype)
        item = dtype.itemsize if dtype is not None else 0
        span = 0 if 0 in s.sizes else 1 + sum(
            (size - 1) * stride for size, stride in zip(s.sizes, s.strides, strict=True)
        )  # fmt: skip
        if (s.place == "fresh" or s.place == "arena") and dtype is None:
            raise InternalError(f"tensor {n} of type {s.dtype} cannot be allocated")
        if s.place == "arena" and s.index % 64:
            raise InternalError(f"tensor {n} starts at arena byte {s.index}, not a multiple of 64")
        group = self._groups.setdefault(self._alike[n], len(self._groups))
        return (
            _PLACES[s.place], s.index, -1 if dtype is None else self.native.codes[dtype],
            s.sizes, s.strides, s.offset, item, span * item, *self._device(s.device), group,
            n in self._returned, n in self._pointed, n in self._handled, n in self._scratch,
            n in self._aligned,
        )  # fmt: skip

    def _step(self, step: object) -> tuple[object, ...]:
        match step:
            case Alloc(tensor):
                return (_ALLOC, tensor)
            case MakeView(tensor, source):
                return (_VIEW, tensor, source, self._tracked(tensor))
            case Launch(function, args, extent, grain):
                busy = extent >= 2 * grain
                return (_LAUNCH, function, self.functions[function], args, extent, grain, busy)
            case GridLaunch():
                return cuda.grid_row(step, self.kernels[step.function], self.program.tensors)
            case Call():
                return self._call(step)
            case Draw(device, count, seed, block):
                return (_DRAW, seed, block, count, *draws.methods(device))
            case Drop(tensor):
                return (_DROP, tensor)
            case _:
                raise InternalError(f"unknown step {step!r}")

    def _tracked(self, n: int) -> bool:
        """Whether torch must know the view as one: both it and its base are in the user's hands."""
        root = self.root(n)
        return n in self._returned and (root < self.program.n_inputs or root in self._returned)

    def _apart(self, op: OpOverload, c: Call) -> bool:
        """Whether the user gets a result of an operator of ATen that makes no view: what is one
        inside of it is nobody's, which autograd would see to.
        """
        aliases = any(a.alias_info for a in (*op._schema.arguments, *op._schema.returns))
        own = op.namespace == "aten" and not aliases
        return own and not self._returned.isdisjoint(c.results)

    def _may_wait(self, kind: int) -> bool:
        """Whether a call may wait for the GPU, which may wait for what another thread starts."""
        return self.gpu is not None and kind == routes.SHIM

    def _call(self, c: Call) -> tuple[object, ...]:
        op = resolve(c.op)
        route = routes.choose(c, op, self.program.tensors, self.native.missing, self.native.codes)
        if route.kind == routes.INTO and c.results[0] not in self._returned and self.native.pooled:
            self._scratch.add(c.results[0])
        numbers = (*tensor_numbers((c.args, tuple(v for _, v in c.kwargs))), *c.results)
        elements = sum(_elements(self.program.tensors[n]) for n in numbers)
        objects = tuple(routes.python_row(a) for a in (*c.args, *(v for _, v in c.kwargs)))
        names = tuple(name for name, _ in c.kwargs) or None
        plain = callable_for(op, c, getattr(op, "_op", op))
        return (
            _CALL, c.op, plain, objects, names, c.results, route.kind,
            elements >= _BUSY_ELEMENTS or self._may_wait(route.kind), self._apart(op, c),
            route.detail,
        )  # fmt: skip


def _given(p: Program) -> int:
    """How many tensors a call starts with: inputs and constants."""
    return p.n_inputs + p.n_constants


def _elements(s: TensorSpec) -> int:
    n = 1
    for size in s.sizes:
        n *= size
    return n


def shapes_of(p: Program) -> list[object]:
    """By tensor, something that is equal for those of one type and shape, whatever the sizes."""
    found: list[list[object]] = [[s.dtype, *s.sizes, *s.strides] for s in p.tensors]
    for patch in () if p.sizes is None else p.sizes.patches:
        if patch.what in ("size", "stride"):
            at = patch.dim + (len(p.tensors[patch.at].sizes) if patch.what == "stride" else 0)
            found[patch.at][1 + at] = ("row", patch.row)
    return [tuple(row) for row in found]


def tensor_numbers(arg: object) -> list[int]:
    """The tensors that an argument mentions, in order."""
    if isinstance(arg, TensorArg):
        return [arg.tensor]
    return [n for a in arg for n in tensor_numbers(a)] if isinstance(arg, tuple) else []


def check_escapes(p: Program, root: Any) -> None:
    """InternalError if an output lives in the arena, which the next call overwrites."""
    for n in p.outputs:
        if n is not None and p.tensors[root(n)].place == "arena":
            raise InternalError(f"output tensor {n} lives in the arena")


def uses_cuda(p: Program) -> bool:
    return any(s.device.startswith("cuda") for s in p.tensors)


def build(
    program: Program, functions: Mapping[str, int], driver: Native, verify: bool,
    constants: Constants | None = None, cubins: Mapping[str, Cubin] = MappingProxyType({}),
) -> _driver.Executable:  # fmt: skip
    """The Program on the native driver.

    Errors: BackendError W302 if a kernel does not load; InternalError if CUDA cannot be used.
    """
    return _rows(program, functions, driver, verify, constants, cubins).build()


def _rows(
    program: Program, functions: Mapping[str, int], driver: Native, verify: bool,
    constants: Constants | None, cubins: Mapping[str, Cubin], kind: type[Rows] = Rows,
    alike: list[object] | None = None,
) -> Rows:  # fmt: skip
    gpu = cuda.cuda() if uses_cuda(program) else None
    if isinstance(gpu, str):
        raise InternalError(f"a Program on CUDA: {gpu}")
    used = {cuda.device_index(s.device) for s in program.tensors} - {-1}
    kernels = cuda.load(program.artifacts, cubins, tuple(sorted(used)))
    alike = shapes_of(program) if alike is None else alike
    return kind(program, functions, driver, verify, constants, kernels, gpu, alike)


# ---------------------------------------------------------------- for a range of sizes
_FAR = (1 << 63) - 1


class _RangedRows(Rows):
    """Rows that are those of other sizes from time to time; their Program is made when needed."""

    whole: Program
    values: tuple[int, ...] | None = None

    @property
    def program(self) -> Program:
        if self.values is not None:
            self._program, self.values = at(self.whole, self.values), None
        return self._program

    def step(self, k: int) -> tuple[object, ...]:
        return self._step(self.program.steps[k])


def resizable(
    program: Program, values: tuple[int, ...], functions: Mapping[str, int], driver: Native,
    verify: bool, cubins: Mapping[str, Cubin], limit: int,
) -> tuple[_driver.Executable, Resize]:  # fmt: skip
    """A Program for a range of sizes, as it is for these, and what makes it that of others.

    limit: of what GPU kernels compute with in 32 bits.
    """
    sizes = program.sizes
    if sizes is None:
        raise InternalError("a Program without symbolic sizes")
    rows = _rows(at(program, values), functions, driver, verify, None, cubins, _RangedRows,
                 shapes_of(program))  # fmt: skip
    assert isinstance(rows, _RangedRows)
    rows.whole = program
    made = rows.build()
    bounds = tuple((-_FAR if lo is None else lo, _FAR if hi is None else hi)
                   for lo, hi in sizes.bounds)  # fmt: skip
    patches = tuple((p.what, p.at, p.dim, p.row) for p in sizes.patches)
    made.sizes_on(bounds, sizes.code, patches, sizes.limits, limit)
    calls = tuple(i for i, s in enumerate(program.steps) if takes_sizes(s))

    def resize(values: tuple[int, ...]) -> bool | None:
        rows.values = values
        return made.resize(values, tuple((i, rows.step(i)) for i in calls))

    return made, resize
