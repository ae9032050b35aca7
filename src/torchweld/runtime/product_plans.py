"""Plans of matrix products: descriptors and an algorithm of cuBLASLt's for a step of a launch list.

A plan is made when a launch list runs a product for the second time, and again for other settings
of torch's or another alignment of its operands. Algorithms that cuBLASLt offers are tried in its
order until one gives ATen's results bit by bit, for random operands and for such that nothing but
rounding errors is left of their product; then cuBLAS's own choice is; if nothing does, ATen keeps
the product. So a plan changes no result: ATen's products with a bias are cuBLASLt's too and agree
with the first algorithm, others go through cuBLAS.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from torchweld.base.events import emit
from torchweld.ir.dtype import DType
from torchweld.ir.program import Call, Program, TensorArg, TensorSpec
from torchweld.runtime import cublas, cublas_gemm
from torchweld.runtime.calls import resolve
from torchweld.runtime.cublas import Candidate, CublasError, Descriptors, Library, Rules, Shape
from torchweld.runtime.cublas_gemm import Gemm
from torchweld.runtime.cuda import device_index
from torchweld.runtime.products import PRODUCTS, is_long, operands, shape_of

try:
    from torchweld.runtime import _driver
except ImportError:  # built without a C compiler: then nothing gets here
    _driver = None  # type: ignore[assignment]

# Algorithms that are compared with ATen's result before a product is left to ATen.
MOST_TRIED = 8
_MOST_ALIGNMENT = 256
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# ATen's workspaces where it does not say: of cuBLAS on Hopper and elsewhere, of cuBLASLt.
_WORKSPACES = (32 << 20, 8 << 20, 1 << 20)

Row = tuple[object, ...]
Way = Candidate | Gemm


class Executable(Protocol):
    """The native one, as far as plans concern it."""

    def products_on(self, planner: object, rows: tuple[Row, ...], /) -> None: ...


# ---------------------------------------------------------------- torch's settings
def rules_for(s: Shape, workspace: int) -> Rules | str:
    """How torch's settings have a product computed now, or why only ATen can do it."""
    why = _unusual()
    if why:
        return why
    if s.dtype is DType.F64:
        return Rules(cublas.COMPUTE_64F, DType.F64, None, workspace)
    if s.dtype is DType.F32:
        tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
        kind = cublas.COMPUTE_32F_FAST_TF32 if tf32 else cublas.COMPUTE_32F
        return Rules(kind, DType.F32, None, workspace)
    if s.dtype is DType.BF16:
        asked = torch._C._get_cublas_allow_bf16_reduced_precision_reduction()
        return Rules(cublas.COMPUTE_32F, DType.F32, _reductions(asked), workspace)
    asked = torch._C._get_cublas_allow_fp16_reduced_precision_reduction()
    if torch._C._get_cublas_allow_fp16_accumulation():
        return Rules(cublas.COMPUTE_16F, DType.F16, _reductions(asked), workspace)
    return Rules(cublas.COMPUTE_32F, DType.F32, _reductions(asked), workspace)


def _reductions(asked: object) -> int | None:
    """The ways of reduction that a setting allows: whether partial sums may be rounded, and whether
    there may be any.
    """
    rounded, parts = asked if isinstance(asked, tuple) else (asked, True)
    if rounded:
        return None
    return cublas.REDUCE_IN_COMPUTE_TYPE if parts else cublas.REDUCE_NOT


def _unusual() -> str:
    """Settings under which ATen's choice cannot be foreseen."""
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for"
    tuned: Any = getattr(torch._C, "_cuda_tunableop_is_enabled", None)
    if tuned is not None and tuned():
        return "TunableOp is on"
    carveout: Any = getattr(torch._C, "_get_sm_carveout_experimental", None)
    if carveout is not None and carveout() is not None:
        return "some multiprocessors are set aside"
    return ""


def workspace_bytes(fused: bool) -> int:
    """How much workspace ATen gives to a product on the current device: cuBLASLt's, or cuBLAS's."""
    preferred: Any = torch._C._get_blas_preferred_backend
    lt = fused or preferred() == torch._C._BlasBackend.Cublaslt
    name = "_ZN2at4cuda26getCUDABlasLtWorkspaceSizeEv" if lt else (
        "_ZN2at4cuda22getChosenWorkspaceSizeEv"
    )  # fmt: skip
    torch_library = _torch_library()
    if torch_library is None or not hasattr(torch_library, name):
        return _WORKSPACES[2] if lt else _WORKSPACES[0 if _on_hopper() else 1]
    ask = getattr(torch_library, name)
    ask.restype = ctypes.c_size_t
    return int(ask())


@functools.lru_cache(maxsize=1)
def _torch_library() -> ctypes.CDLL | None:
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    try:
        return ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
    except OSError:
        return None


def _on_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


# ---------------------------------------------------------------- one product
@dataclass(frozen=True, slots=True)
class Product:
    """A step that cuBLASLt may compute."""

    call: Call
    shape: Shape
    out: TensorSpec


@dataclass(frozen=True, slots=True)
class Trial:
    """One product, with operands: what algorithms are compared on."""

    product: Product
    rules: Rules
    tensors: tuple[torch.Tensor, ...]
    stream: int

    def blank(self) -> torch.Tensor:
        """Memory for a result, as the launch list lays it out; all its bits are set."""
        out, first = self.product.out, self.tensors[0]
        made = torch.empty_strided(out.sizes, out.strides, dtype=first.dtype, device=first.device)
        _bits(made).fill_(-1)
        return made

    def with_noise(self, cancels: bool) -> Trial:
        """The same product of random numbers, whose sums are zero if they cancel: then all that is
        left are rounding errors, which no other order of adding up makes.
        """
        made = tuple(map(_noise_like, self.tensors, range(3)))
        if cancels:
            _cancel(*made[-2:])
        return replace(self, tensors=made)

    def by_aten(self) -> torch.Tensor:
        """Errors: whatever the operator raises."""
        space, name, _ = self.product.call.op.split(".")
        made = self.blank()
        resolve(f"{space}.{name}.out")(*self.tensors, **dict(self.product.call.kwargs), out=made)
        return made

    def addresses(self, out: torch.Tensor) -> tuple[int, int, int]:
        """Of A, B and D."""
        s = self.product.shape
        return self.tensors[s.a].data_ptr(), self.tensors[s.b].data_ptr(), out.data_ptr()

    def alignments(self, out: torch.Tensor) -> tuple[int, ...]:
        """What ATen says of A, B and C; where it calls cuBLASLt, also of the bias, instead of D."""
        at = self.addresses(out)
        s = self.product.shape
        more = (self.tensors[s.bias].data_ptr(),) if s.bias >= 0 else ()
        return tuple(cublas.alignment(a) for a in (*at, *more))

    def factors(self) -> tuple[bytes, bytes]:
        scale = self.rules.scale
        return cublas.scale_bits(self.product.shape.alpha, scale), cublas.scale_bits(0.0, scale)

    def descriptors(self, lib: Library) -> Descriptors:
        s = self.product.shape
        bias = self.tensors[s.bias].data_ptr() if s.bias >= 0 else 0
        return Descriptors(lib, s, self.rules, bias)


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.view(_BITS[t.element_size()])


def _noise_like(t: torch.Tensor, seed: int) -> torch.Tensor:
    """Normal numbers in the same layout, at an address as aligned as this; not torch's random
    numbers, which belong to the user.
    """
    span = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    start = t.data_ptr() % _MOST_ALIGNMENT // t.element_size()
    made = torch.empty(start + span, dtype=t.dtype, device=t.device)
    _fill(made, torch.Generator(device=t.device).manual_seed(seed))
    return made.as_strided(t.shape, t.stride(), start)


def _fill(t: torch.Tensor, source: torch.Generator) -> None:
    t.normal_(generator=source)


def _cancel(x: torch.Tensor, w: torch.Tensor) -> None:
    """Change what is multiplied so that the second half of every sum undoes the first half."""
    x, w = (t[:1] if t.dim() == 3 and t.stride(0) == 0 else t for t in (x, w))
    half = x.shape[-1] // 2
    x[..., half : 2 * half] = x[..., :half]
    w[..., half : 2 * half, :] = -w[..., :half, :]
    w[..., 2 * half :, :] = 0


@dataclass(frozen=True, slots=True)
class Proof:
    """Products whose results are known: a way of computing that gives them all is ATen's."""

    known: tuple[tuple[Trial, torch.Tensor], ...]

    def holds(self, multiply: Callable[[Trial, torch.Tensor], None]) -> bool:
        """Errors: CublasError."""
        for trial, want in self.known:
            got = trial.blank()
            multiply(trial, got)
            if not torch.equal(_bits(want), _bits(got)):
                return False
        return True


def search(lib: Library, handle: int, trial: Trial) -> Way | str:
    """The first way of computing a product that gives ATen's result, or why none is to be used.

    Cost: copies of the operands; the product twice by ATen and by each way, and a wait for each.
    """
    trials = [trial.with_noise(cancels) for cancels in (False, True)]
    proof = Proof(tuple((t, t.by_aten()) for t in trials))
    found, why = _offered(lib, handle, trial, proof)
    return found or _by_cublas(trial, proof) or why


def _offered(lib: Library, handle: int, trial: Trial, proof: Proof) -> tuple[Candidate | None, str]:
    """cuBLASLt's first algorithm that holds, or why there is none."""
    blank, failed = trial.blank(), 0
    try:
        d = trial.descriptors(lib)
        preference = d.preference(trial.rules, trial.alignments(blank))
        found = cublas.candidates(lib, handle, d, preference, MOST_TRIED)
    except CublasError as error:
        return None, str(error)
    for c in found:
        try:
            if proof.holds(functools.partial(_by_candidate, lib, handle, c)):
                return c, ""
        except CublasError:
            failed += 1
    failures = f", {failed} of which failed" if failed else ""
    return None, f"ATen's result is that of none of cuBLASLt's first {len(found)} ways{failures}"


def _by_candidate(lib: Library, handle: int, c: Candidate, trial: Trial, out: torch.Tensor) -> None:
    space = torch.empty(max(c.workspace, 1), dtype=torch.uint8, device=out.device)
    cublas.multiply(lib, handle, trial.descriptors(lib), c, trial.addresses(out), trial.factors(),
                    (space.data_ptr(), c.workspace), trial.stream)  # fmt: skip


def _by_cublas(trial: Trial, proof: Proof) -> Gemm | None:
    """cuBLAS's own choice, if ATen asks cuBLAS and it holds."""
    gemm = cublas_gemm.gemm_for(trial.product.shape, trial.rules)
    lib = cublas_gemm.library()
    if gemm is None or isinstance(lib, str):
        return None
    try:
        return gemm if proof.holds(functools.partial(_by_gemm, lib, gemm)) else None
    except CublasError:
        return None


def _by_gemm(lib: Library, g: Gemm, trial: Trial, out: torch.Tensor) -> None:
    space = torch.empty(g.workspace, dtype=torch.uint8, device=out.device)
    with cublas_gemm.TRIALS:
        handle = cublas_gemm.handle_of(lib, str(out.device), driven=False)
        cublas_gemm.multiply(lib, handle, trial.product.shape, g, trial.addresses(out),
                             trial.factors(), space.data_ptr(), trial.stream)  # fmt: skip


# ---------------------------------------------------------------- devices
_handles: dict[tuple[str, str], int | str] = {}


def handle_of(lib: Library, where: str, stream: int) -> int | str:
    """cuBLASLt's handle of the current device after a test, or why it cannot be used there.

    where: torch's name of the device. The test multiplies small integers on the current stream.
    """
    key = (lib.where, where)
    if key not in _handles:
        try:
            _handles[key] = _tested(lib, where, stream)
        except (CublasError, RuntimeError) as error:
            _handles[key] = f"self-test: {error}"
    return _handles[key]


def _tested(lib: Library, where: str, stream: int) -> int | str:
    handle = lib.create("cublasLtCreate")
    tensors = tuple(
        (torch.arange(m * n, device=where) % 7 - 3).view(m, n).to(torch.float32)
        for m, n in ((48, 32), (32, 40))
    )
    call, specs = _small_product(*tensors)
    shape = shape_of(call, specs)
    assert isinstance(shape, Shape)
    rules = Rules(cublas.COMPUTE_32F, DType.F32, None, 1 << 20)
    trial = Trial(Product(call, shape, specs[2]), rules, tensors, stream)
    # sums of small integers are exact in any order
    found, why = _offered(lib, handle, trial, Proof(((trial, trial.by_aten()),)))
    return handle if found else f"self-test: {why}"


def _small_product(x: torch.Tensor, w: torch.Tensor) -> tuple[Call, tuple[TensorSpec, ...]]:
    from_ = [TensorSpec("input", 0, DType.F32, tuple(t.shape), t.stride(), 0) for t in (x, w)]
    rows, columns = x.shape[0], w.shape[1]
    made = TensorSpec("extern", 0, DType.F32, (rows, columns), (columns, 1), 0)
    return Call("aten.mm.default", (TensorArg(0), TensorArg(1)), (), (2,)), (*from_, made)


# ---------------------------------------------------------------- the planner
# What was found for a product: equal layers of all programs are compared with ATen's once.
_found: dict[object, Way | str] = {}


@dataclass(slots=True, eq=False)
class Planner:
    """Plans the products of one Program. report: by step, what became of it; the last word counts.

    Called by _products.c: see there for the row.
    """

    products: dict[int, Product]
    report: dict[int, str] = field(default_factory=dict)

    def __call__(
        self, step: int, stream: int, settings: int, tensors: tuple[torch.Tensor, ...]
    ) -> Row | None:
        product = self.products[step]
        try:
            made = self._plan(product, stream, settings, tensors)
        except CublasError as error:
            made = str(error)
        except Exception as error:
            made = f"planning failed: {error}"
        if isinstance(made, str):
            self.refuse(step, made)
            return None
        self.report[step] = "cuBLAS" if isinstance(made[0], Gemm) else "cuBLASLt"
        return made

    def failed(self, step: int, status: int) -> None:
        """A planned product did not run."""
        self.refuse(step, f"cuBLASLt gave status {status}")

    def refuse(self, step: int, why: str, op: str = "") -> None:
        self.report[step] = why
        op = op or self.products[step].call.op
        emit("runtime", "W306", f"{op}: {why}", code="W306", op=op, step=step, why=why)

    def _plan(
        self, product: Product, stream: int, settings: int, tensors: tuple[torch.Tensor, ...]
    ) -> Row | str:
        lib = cublas.library()
        if isinstance(lib, str):
            return lib
        where = str(tensors[0].device)
        handle = handle_of(lib, where, stream)
        if isinstance(handle, str):
            return handle
        rules = rules_for(product.shape, workspace_bytes(product.shape.fused))
        if isinstance(rules, str):
            return rules
        trial = Trial(product, rules, tensors, stream)
        aligned = trial.alignments(trial.blank())
        key = (lib.where, where, product.shape, product.out.strides, rules, settings,
               aligned)  # fmt: skip
        found = _found.get(key)
        if found is None:
            found = _found[key] = search(lib, handle, trial)
        if isinstance(found, str):
            return found
        if isinstance(found, Gemm):
            return _gemm_row(trial, found, aligned[2])
        return _row(lib, handle, trial, found, aligned[2])


def _gemm_row(trial: Trial, g: Gemm, aligned: int) -> Row:
    lib, s = cublas_gemm.library(), trial.product.shape
    assert isinstance(lib, Library)
    _driver.gemm_library(*map(lib.address, cublas_gemm.DRIVEN))
    handle = cublas_gemm.handle_of(lib, str(trial.tensors[0].device), driven=True)
    return (g, handle, cublas_gemm.arguments(s, g), *trial.factors(), g.workspace, s.a, s.b,
            aligned)  # fmt: skip


def _row(lib: Library, handle: int, trial: Trial, c: Candidate, aligned: int) -> Row:
    d = trial.descriptors(lib)
    s = trial.product.shape
    _driver.product_library(
        lib.address("cublasLtMatmul"), lib.address("cublasLtMatmulDescSetAttribute")
    )
    return (d, handle, d.description, d.layouts, c.algorithm, *trial.factors(), c.workspace,
            s.a, s.b, s.bias, aligned)  # fmt: skip


def enable(x: Executable, program: Program) -> None:
    """Let cuBLASLt compute the products of a launch list where it can."""
    home = _home(program)
    products: dict[int, Product] = {}
    refused: dict[int, tuple[str, str]] = {}
    for i, step in enumerate(program.steps):
        if not isinstance(step, Call) or step.op not in PRODUCTS:
            continue
        shape = shape_of(step, program.tensors)
        out = program.tensors[step.results[0]]
        if device_index(out.device) != home:
            shape = "not on the launch list's own device"
        elif isinstance(shape, Shape) and is_long(shape):
            shape = "so large that the host's share of it is hidden"
        if isinstance(shape, str):
            refused[i] = (step.op, shape)
        else:
            products[i] = Product(step, shape, out)
    planner = Planner(products)
    rows: Iterable[Row] = ((i, operands(p.call), p.call.results[0]) for i, p in products.items())
    x.products_on(planner, tuple(rows))
    for i, (op, why) in refused.items():
        planner.refuse(i, why, op)


def _home(p: Program) -> int:
    """The device on whose stream the launch list runs."""
    places: Sequence[str] = (p.arena_device, *(s.device for s in p.tensors))
    return next((i for i in map(device_index, places) if i >= 0), -1)
