"""Triton kernels that the user wrote and launches in the frame: `kernel[grid](...)`.

A launch is one node of the graph, which writes to tensors. The grid and, where Triton tunes the
kernel, the grid of each of its configurations are worked out now, with what they depend on guarded.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchweld.capture.kernel_writes import written_parameters
from torchweld.capture.modes import has_no_gaps, memory
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import function
from torchweld.capture.values.base import (
    Const,
    DictValue,
    ListValue,
    NotConstant,
    PartialValue,
    TensorValue,
    TupleValue,
    Value,
    constant,
    is_constant,
)
from torchweld.ir.graph import WRITES
from torchweld.ir.launches import Launch, Slot, launch, number_of

Args = list[Value]
Kwargs = dict[str, Value]
# the base class of what triton.jit, triton.autotune and triton.heuristics give
_INTERFACE = ("triton.runtime.jit", "KernelInterface")
# arguments of every launch that are no parameters of the kernel
_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg", "launch_cooperative_grid")


CYTHON = "cython_function_or_method"  # each module that Cython made may have a class of its own


def is_cython(fn: object) -> bool:
    """Whether a function was made by Cython."""
    return type(fn).__name__ == CYTHON


def is_kernel(kind: type) -> bool:
    """Whether a class is one of Triton's kernels. Triton need not have been imported."""
    return any((k.__module__, k.__qualname__) == _INTERFACE for k in kind.__mro__)


def launch_kernel(kernel: Any, grid: Any, *args: Any, **kwargs: Any) -> Any:
    """What `kernel[grid]` calls with `args` and `kwargs`."""
    return kernel[grid](*args, **kwargs)


def kernel_with_grid(kernel: Const, grid: Value) -> Value:
    """kernel[grid]."""
    return PartialValue(Const(launch_kernel), [kernel, grid], {}, functools.partial)


@function(torch.library.wrap_triton)
def wrap_triton(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The wrapper is for tracers that see operators only."""
    (kernel,) = args
    if not isinstance(kernel, Const) or not is_kernel(type(kernel.obj)):
        raise refuse("W103", "wrap_triton of something that is no kernel", cap.loc())
    cap.deliver(kernel, cont)


def inner_function(op: Any, given: Iterable[Value]) -> types.FunctionType | None:
    """The Python function behind an operator that torch.library.triton_op made, which may be
    captured in its place; None where gradients are wanted, or a device has another function."""
    name = op._schema.name if isinstance(op, torch._ops.OpOverload) else ""
    if name not in torch._library.triton.triton_ops_to_kernels:
        return None
    made = torch._library.custom_ops.OPDEFS.get(name)
    if made is None or {*made._backend_fns} - {None} or (torch.is_grad_enabled() and any(
            isinstance(x, TensorValue) and x.fake.requires_grad for x in given)):  # fmt: skip
        return None
    inner = inspect.getclosurevars(made._init_fn).nonlocals.get("fn")
    return inner if isinstance(inner, types.FunctionType) else None


class LaunchedValue(Value):
    """What a launch returns: the compiled kernel, of which nothing is known."""

    __slots__ = ()

    def cls(self) -> type:
        raise refuse("W107", "what the launch of a Triton kernel returns is looked at")


@function(launch_kernel)
def launch_(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """kernel[grid](*args, **kwargs)."""
    kernel, grid, *given = args
    assert isinstance(kernel, Const)
    layers = _layers(cap, kernel.obj)
    base = layers[-1].fn
    parameters = inspect.signature(base).parameters
    if len(given) > len(parameters) or not kwargs.keys() <= {*parameters, *_OPTIONS}:
        raise refuse("W103", f"the launch of {base.__name__} with these arguments", cap.loc())
    named = dict(zip(parameters, given, strict=False)) | kwargs
    meta = {n: Const(p.default) for n, p in parameters.items() if p.default is not p.empty} | named
    tuned = [layer for layer in layers if hasattr(layer, "configs")]
    if len(tuned) > 1:
        raise refuse("W103", f"{base.__name__} is tuned twice", cap.loc())

    def launched(found: list[tuple[int, ...]]) -> None:
        configs = tuned[0].configs if tuned and len(found) > 1 else [None]
        chosen = tuple(sorted({k for c in configs if c is not None for k in c.kwargs}))
        grids = tuple((tuple(c.kwargs[n] for n in chosen) if c is not None else (), g)
                      for c, g in zip(configs, found, strict=True))  # fmt: skip
        _record(cap, kernel.obj, base, (chosen, grids), given, kwargs)
        cap.deliver(LaunchedValue(), cont)

    _find_grids(cap, grid, layers, meta, launched)


def _layers(cap: Capture, kernel: Any) -> list[Any]:
    """What wraps the kernel's function, outermost first."""
    found = [kernel]
    while not isinstance(found[-1].fn, types.FunctionType):
        found.append(found[-1].fn)
        if not is_kernel(type(found[-1])):
            raise refuse("W103", "a kernel that Triton did not make", cap.loc())
    return found


def _find_grids(cap: Capture, grid: Value, layers: list[Any], meta: dict[str, Value],
                cont: Callable[[list[tuple[int, ...]]], None]) -> None:  # fmt: skip
    """The grid of each configuration, or the one that all have, given to `cont`."""
    if isinstance(grid, TupleValue | ListValue | Const) and is_constant(cap.unwrap(grid)):
        found = constant(cap.unwrap(grid))
        if isinstance(found, tuple | list):
            cont([_as_grid(cap, grid)])
            return
    tuned = next((layer for layer in layers if hasattr(layer, "configs")), None)
    configs = [c.all_kwargs() for c in tuned.configs] if tuned is not None else [{}]
    grids: list[tuple[int, ...]] = []

    def one_more() -> None:
        if len(grids) == len(configs):
            cont(grids)
            return
        work: list[tuple[str, Any]] = []
        for layer in layers:
            if layer is tuned:
                work += [(k, Const(v)) for k, v in configs[len(grids)].items()]
            work += list(getattr(layer, "values", {}).items())
        step(dict(meta), work)

    def step(known: dict[str, Value], work: list[tuple[str, Any]]) -> None:
        if not work:
            cap.call(grid, [_dict_of(known)], {}, keep)
            return
        (name, how), *rest = work
        if isinstance(how, Const):
            step({**known, name: how}, rest)
            return
        heuristic = cap.wrap(how, cap.pin(how))
        cap.call(heuristic, [_dict_of(known)], {}, lambda v: step({**known, name: v}, rest))

    def keep(found: Value) -> None:
        grids.append(_as_grid(cap, found))
        one_more()

    one_more()


def _dict_of(known: dict[str, Value]) -> DictValue:
    made = DictValue(dict)
    for name, value in known.items():
        made.items[name] = value
        made.keys[name] = Const(name)
    return made


def _as_grid(cap: Capture, x: Value) -> tuple[int, ...]:
    try:
        found = constant(cap.unwrap(x))
        return tuple(operator.index(n) for n in found)
    except (NotConstant, TypeError):
        raise refuse("W103", "a grid that is no tuple of integers", cap.loc()) from None


# ----------------------------------------------------------------------- the node
def _record(cap: Capture, kernel: Any, base: types.FunctionType,
            grids: tuple[tuple[str, ...], tuple[tuple[tuple[Any, ...], tuple[int, ...]], ...]],
            given: Args, kwargs: Kwargs) -> None:  # fmt: skip
    tensors: list[TensorValue] = []
    args = tuple(_argument(cap, x, tensors) for x in given)
    named = tuple((k, _argument(cap, x, tensors)) for k, x in kwargs.items())
    if not tensors:
        raise refuse("W103", f"{base.__name__} gets no Tensor", cap.loc())
    written = written_parameters(base)
    parameters = inspect.signature(base).parameters
    both = (*zip(parameters, args, strict=False), *named)
    places = sorted({x.place for n, x in both if isinstance(x, Slot) and n in written})
    if not places:
        raise refuse("W103", f"{base.__name__} writes to none of its Tensors", cap.loc())
    for i in places:
        _check_written(cap, tensors, i)
    made = Launch(kernel, *grids, args, named, tuple(places))
    cap.builder.call("call_function", launch, [Const(number_of(made)), TupleValue([*tensors])], {},
                     cap.loc())  # fmt: skip
    cap.builder.graph._root._prev.meta[WRITES] = tuple(places)
    for i in places:
        cap.builder.mode.note(tensors[i].fake)


def _argument(cap: Capture, x: Value, tensors: list[TensorValue]) -> Any:
    """An argument as a Launch holds it."""
    if isinstance(x, TensorValue):
        if x not in tensors:
            tensors.append(x)
        return Slot(tensors.index(x))
    try:
        found = constant(cap.unwrap(x))
        hash(found)
    except (NotConstant, TypeError):
        raise refuse("W103", f"a Triton kernel gets a {x.cls().__name__}", cap.loc()) from None
    if isinstance(found, bool | int | float | str | torch.dtype | None) or _is_tritons(found):
        return found
    raise refuse("W103", f"a Triton kernel gets a {type(found).__name__}", cap.loc())


def _is_tritons(x: object) -> bool:
    """A function or dtype of Triton's, as a constexpr."""
    return type(x).__module__.startswith("triton")


def _check_written(cap: Capture, tensors: list[TensorValue], i: int) -> None:
    """Refuse writes that a copy of the tensor would not see."""
    fake = tensors[i].fake
    if fake.requires_grad and torch.is_grad_enabled():
        raise refuse("W103", "a Triton kernel writes to a Tensor that requires grad", cap.loc())
    if any(memory(t) == memory(tensors[i]) for k, t in enumerate(tensors) if k != i):
        raise refuse("W103", "a Triton kernel gets what it writes to under two names", cap.loc())
    whole = fake.numel() * fake.element_size() == fake.untyped_storage().nbytes()
    if not whole or not has_no_gaps(fake):
        raise refuse("W103", "a Triton kernel writes to a part of a Tensor", cap.loc())
