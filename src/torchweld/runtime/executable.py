"""Program -> Executable: compile what it holds, and choose the driver."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from torchweld.base.config import Config, current
from torchweld.base.errors import BackendError
from torchweld.base.events import emit
from torchweld.ir.program import GridLaunch, Program
from torchweld.runtime import (
    cuda,
    cudagraph,
    loader,
    triton_launch,
    triton_loader,
)
from torchweld.runtime.calls import KeepsInputs
from torchweld.runtime.constants import Constants
from torchweld.runtime.cudagraph_plan import NOTHING_SAVED, Lending
from torchweld.runtime.native import Resize, build, native, resizable, uses_cuda
from torchweld.runtime.python_driver import Grid, PythonDriver
from torchweld.runtime.sized import (
    LIMIT,
    Done,
    Run,
    SizedExecutable,
    Values,
    with_ints,
)
from torchweld.runtime.store import Store
from torchweld.runtime.triton_job import Cubin

# loaded when Triton's interpreter is wanted
_INTERPRETER = "torchweld.runtime.triton_interpret"
# loaded when something was compiled for sizes that come very often
_TRIAL = "torchweld.runtime.trial"
if current().interpret:
    # Now, because capture's FakeTensorMode imports torch._dynamo, which imports triton.
    importlib.import_module(_INTERPRETER).prepare()


class Executable(Protocol):
    """What a Program became: call it with its input tensors, get a tuple of its outputs.

    driver: "native" or "python". saves: whether what it was to save comes as one tuple behind the
    other outputs. consume() is a call that empties the list of its inputs: it may use their memory,
    once it has read them. trim() gives back memory that is kept between calls.
    explain: takes the inputs and raises eager's error; asked when a kernel reports a failure.
    eager: takes the inputs and does in eager what a call does; asked while the user captures a
    stream, if the Program draws random numbers: those of a capture are counted when it is replayed.
    """

    explain: Callable[..., object] | None
    eager: Callable[..., object] | None

    @property
    def driver(self) -> str: ...

    @property
    def saves(self) -> bool: ...

    @property
    def program(self) -> Program: ...

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]: ...

    def consume(self, inputs: list[torch.Tensor], /) -> tuple[torch.Tensor | None, ...]: ...

    def trim(self) -> None: ...


class Around(KeepsInputs):
    """What stands in the place of an Executable and gives it other inputs."""

    def __init__(self, main: Executable) -> None:
        self.main = main

    def as_called(self, fn: Callable[..., object] | None) -> Callable[..., object] | None:
        """What takes this one's inputs, as `main` calls it: with its own."""
        raise NotImplementedError

    @property
    def driver(self) -> str:
        return self.main.driver

    @property
    def program(self) -> Program:
        return self.main.program

    @property
    def saves(self) -> bool:
        return self.main.saves

    @property
    def explain(self) -> Callable[..., object] | None:
        return self.main.explain

    @explain.setter
    def explain(self, fn: Callable[..., object] | None) -> None:
        self.main.explain = self.as_called(fn)

    @property
    def eager(self) -> Callable[..., object] | None:
        return self.main.eager

    @eager.setter
    def eager(self, fn: Callable[..., object] | None) -> None:
        self.main.eager = self.as_called(fn)

    def trim(self) -> None:
        self.main.trim()


class WithInts(Around):
    """A Program without symbolic sizes that gets ints at `numbers`: what they are is guarded."""

    def __init__(self, main: Executable, numbers: frozenset[int]) -> None:
        super().__init__(main)
        self.numbers = numbers

    def as_called(self, fn: Callable[..., object] | None) -> Callable[..., object] | None:
        return with_ints(fn, self.numbers)

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        given = self.numbers
        return self.main(*(torch.tensor(x) if i in given else x for i, x in enumerate(inputs)))


@functools.lru_cache(maxsize=8)
def store_for(root: Path | None) -> Store:
    """The one Store of a cache folder, so that what is reported once is reported once."""
    return Store(root)


@dataclass(frozen=True, slots=True)
class Built:
    """What a Program's sources became. functions: the address of every C++ function; cubins: the
    GPU kernels; interpreted: kernels that Triton's interpreter runs.
    """

    functions: Mapping[str, int]
    cubins: Mapping[str, Cubin]
    interpreted: Mapping[str, Grid]


def build_sources(program: Program, cfg: Config, include_dir: Path | None) -> Built:
    """Compile and load every artifact of a Program.

    Errors: BackendError W301, W302.
    """
    store = store_for(cfg.cache_path())
    kernels = [a for a in program.artifacts if a.lang == "triton"]
    functions = loader.functions_of(program, include_dir, store)
    if cfg.interpret:
        interpreter = importlib.import_module(_INTERPRETER)
        interpreter.prepare()
        return Built(functions, {}, interpreter.kernels(kernels, include_dir))
    arch = arch_of(program) if kernels else 0
    return Built(functions, triton_loader.load(kernels, arch, store, include_dir, cfg.threads), {})


def cuda_devices(program: Program) -> tuple[int, ...]:
    """The devices on which the Program launches kernels, in order."""
    used = {program.tensors[n].device for s in program.steps if isinstance(s, GridLaunch)
            for n in s.args}  # fmt: skip
    return tuple(sorted(torch.device(d).index or 0 for d in used if d.startswith("cuda")))


def arch_of(program: Program) -> int:
    """The compute capability that the kernels are compiled for, 90 for 9.0.

    Errors: BackendError W302 if the Program's devices differ in it.
    """
    found = {torch.cuda.get_device_capability(i) for i in cuda_devices(program)}
    if len(found) != 1:
        raise BackendError("W302", f"kernels for GPUs of capabilities {sorted(found)} in one graph")
    ((major, minor),) = found
    return major * 10 + minor


def reference(
    program: Program, built: Built, verify: bool, constants: Constants | None = None
) -> PythonDriver:
    """The Program on the Python driver. Errors: BackendError W302 if a kernel does not load."""
    grids: Mapping[str, Grid] = built.interpreted
    if built.cubins:
        kernels = [a for a in program.artifacts if a.lang == "triton"]
        grids = triton_launch.kernels(kernels, built.cubins, cuda_devices(program))
    return PythonDriver(program, built.functions, verify, constants, grids=grids)


def make_executable(
    program: Program,
    cfg: Config,
    include_dir: Path | None,
    static: frozenset[int] = frozenset(),
    graphs: bool | None = None,
    lending: Lending | None = None,
    borrowing: cudagraph.Borrowing | None = None,
    numbers: frozenset[int] = frozenset(),
    fixed: Callable[[Values], Program] | None = None,
    most_fixed: int = 0,
) -> Executable:
    """The Program, ready to be called, on the driver that `cfg.driver` names.

    `include_dir`: where the sources' own headers and the kernels' prelude are; it is part of the
    cache keys by content. Interpreted kernels run on the Python driver only.
    `static`: positions of inputs whose memory stays where it is (parameters and buffers).
    `graphs`: CUDA graphs: True also where it is not sure that they pay, False never, None where
    they pay, unless `cfg.cudagraphs` is off.
    `lending`: what it saves for a backward. `borrowing`: what a backward reads of that.
    `numbers`: positions of inputs that are ints.
    `fixed`: of a Program for a range of sizes, makes that of one choice; takes seconds.
    `most_fixed`: for how many that may be done in the background.
    Errors: BackendError W301, W302.
    """
    built = build_sources(program, cfg, include_dir)
    wish = _Wish(cfg, include_dir, static, graphs, lending, borrowing, program.sizes is not None)
    if program.sizes is None:
        plain = _on_driver(program, built, wish)
        return WithInts(plain, numbers) if numbers else plain
    visitor = _visitor(program, built, wish)
    made = replace(wish, lending=None) if visitor is None and _saves(wish) else wish
    fixing = None if fixed is None else _Fixing(_Preparing(fixed, cfg, include_dir), made)
    return SizedExecutable(program, lambda p: _on_driver(p, built, made), visitor, numbers=numbers,
                           limit=cfg.hot_sizes, saves=_saves(made), fixing=fixing,
                           most_fixed=most_fixed)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Wish:
    """What make_executable was asked for."""

    cfg: Config
    include_dir: Path | None
    static: frozenset[int]
    graphs: bool | None
    lending: Lending | None
    borrowing: cudagraph.Borrowing | None
    ranged: bool = False


@dataclass(frozen=True, slots=True)
class _Preparing:
    """Compiles a Program for one choice of sizes. It knows nothing that lives with a graph."""

    program: Callable[[Values], Program]
    cfg: Config
    include_dir: Path | None

    def __call__(self, values: Values) -> Program:
        """Nothing of it is on a device yet. One kernel at a time is compiled, so that whoever
        waits for the compiler meanwhile waits for one. Errors: of `program`, and BackendError."""
        made, store = self.program(values), store_for(self.cfg.cache_path())
        loader.functions_of(made, self.include_dir, store)
        kernels = [a for a in made.artifacts if a.lang == "triton"]
        if self.cfg.interpret or not kernels:
            return made
        arch = arch_of(made)
        for kernel in kernels:
            triton_loader.load((kernel,), arch, store, self.include_dir, 1)
        return made


@dataclass(frozen=True, slots=True)
class _Fixing:
    """Makes Executables for one choice of sizes (see sized.Fixing)."""

    prepare: Callable[[Values], Program]
    wish: _Wish

    def trial(self, old: Run, made: Program, done: Done) -> Run:
        """Built when the first call comes: it may load code into a device, which no thread may do
        while another one records."""
        devices = () if self.wish.cfg.interpret else cuda_devices(made)
        kind = importlib.import_module(_TRIAL).Trial
        found: Run = kind(old, functools.partial(self._make, made), done, next(iter(devices), None))
        return found

    def _make(self, made: Program) -> Run:
        built = build_sources(made, self.wish.cfg, self.wish.include_dir)
        return _on_driver(made, built, self.wish)


def _saves(wish: _Wish) -> bool:
    """Whether what is saved is to come as one tuple."""
    return wish.lending is not None and wish.lending.saved is not None


def _visitor(
    program: Program, built: Built, wish: _Wish
) -> Callable[[Values], tuple[Run, Resize]] | None:
    """What makes an Executable whose sizes can be changed; None where only Python can run it."""
    driver = native()
    if wish.cfg.driver != "native" or built.interpreted or isinstance(driver, str):
        return None
    if program.prologue is not None or (uses_cuda(program) and isinstance(cuda.cuda(), str)):
        return None

    def make(values: Values) -> tuple[Run, Resize]:
        made, resize = resizable(program, values, built.functions, driver, wish.cfg.verify,
                                 built.cubins, LIMIT)  # fmt: skip
        _save(made, wish)
        return made, resize

    return make


class _Saving(Protocol):
    """The native Executable, as far as it saves."""

    def save_last(self, n: int, /) -> None: ...


def _save(made: _Saving, wish: _Wish) -> None:
    """Let what is saved come as one tuple."""
    if wish.lending is not None and wish.lending.saved is not None:
        made.save_last(wish.lending.saved)


def _on_driver(program: Program, built: Built, wish: _Wish) -> Executable:
    """A Program of known sizes on the driver that the configuration names."""
    cfg, graphs = wish.cfg, wish.graphs
    constants = None
    if program.prologue is not None:
        once = program.prologue.program
        run = reference(once, build_sources(once, cfg, wish.include_dir), cfg.verify)
        constants = Constants(program.prologue, run)
    if cfg.driver == "native" and not built.interpreted:
        driver, gpu = native(), cuda.cuda() if uses_cuda(program) else None
        if isinstance(driver, str):
            report_missing(driver)
        elif isinstance(gpu, str):
            report_missing(f"on CUDA: {gpu}")
        else:
            made = build(program, built.functions, driver, cfg.verify, constants, built.cubins)
            _save(made, wish)
            if gpu is not None and (cfg.cudagraphs if graphs is None else graphs):
                asked = cudagraph.Wish(wish.static, bool(graphs), cfg.graphs_limit,
                                       wish.lending or NOTHING_SAVED, wish.borrowing,
                                       wish.ranged)  # fmt: skip
                cudagraph.enable(made, program, asked)
            if gpu is not None and cfg.cublaslt:  # imported where there is a GPU
                plans = importlib.import_module("torchweld.runtime.product_plans")
                plans.enable(made, program)
            return made
    return reference(program, built, cfg.verify, constants)


@functools.lru_cache(maxsize=8)
def report_missing(why: str) -> None:
    """Record, once per reason, that launch lists run on the Python driver."""
    emit("runtime", "W305", why, code="W305", why=why)
