"""Settings of torch that decide how operators compute: cuDNN's, precisions, determinism.

The graph runs under what is set when it begins. So a setting is changed before the graph while it
is empty, and behind it from then on: the next operator is of another graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture import polyfills
from torchweld.capture.attrs import from_python
from torchweld.capture.draws import Generator, Setting, may_draw
from torchweld.capture.functions.effects import perform
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.values.base import NONE, Const, NotConstant, TupleValue, Value, constant

Args = list[Value]
Kwargs = dict[str, Value]


def _deterministic() -> tuple[bool, bool]:
    return (torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled())  # fmt: skip


def _set_deterministic(state: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(state[0], warn_only=state[1])


# setter -> (what reads the setting, what sets it to what was read)
SETTERS: dict[Any, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    torch.set_float32_matmul_precision: (torch.get_float32_matmul_precision,
                                         torch.set_float32_matmul_precision),
    torch.use_deterministic_algorithms: (_deterministic, _set_deterministic),
    torch.set_num_threads: (torch.get_num_threads, torch.set_num_threads),
}  # fmt: skip
for _name in ("cublas_allow_bf16_reduced_precision_reduction", "cublas_allow_fp16_accumulation",
              "cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_tf32",
              "cudnn_allow_tf32", "cudnn_benchmark", "cudnn_depthwise_kernel",
              "cudnn_deterministic", "cudnn_enabled", "mkldnn_deterministic",
              "mkldnn_enabled"):  # fmt: skip
    _set, _get = (getattr(torch._C, f"_{how}_{_name}", None) for how in ("set", "get"))
    if _set is not None and _get is not None:
        SETTERS[_set] = (_get, _set)
_LIMIT = "cuda_{}_cudnn_benchmark_limit"
if hasattr(torch._C, "_" + _LIMIT.format("set")):
    _set = getattr(torch._C, "_" + _LIMIT.format("set"))
    SETTERS[_set] = (getattr(torch._C, "_" + _LIMIT.format("get")), _set)


# what tells of a setting, where it is not what reads it
_TELL: dict[Any, tuple[Any, ...]] = {
    torch.use_deterministic_algorithms: (
        torch.are_deterministic_algorithms_enabled,
        torch.is_deterministic_algorithms_warn_only_enabled),
}  # fmt: skip


@functools.cache
def _setting(setter: Any) -> Setting:
    return Setting(*SETTERS[setter])


def change(setter: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Call a setter. Errors: GraphBreak where code may not run now, or for what is not constant."""
    may_draw(cap)
    try:
        given = [constant(cap.unwrap(a)) for a in args]
        named = {k: constant(cap.unwrap(v)) for k, v in kwargs.items()}
    except NotConstant:
        raise refuse("W106", "a setting that is not constant", cap.loc()) from None
    setting = _setting(setter)
    before = setting.read()
    call = functools.partial(setter, *given, **named)
    try:
        result = call()
    except Exception as error:
        raise raised(type(error), *error.args) from None
    cap.state_restore.append(functools.partial(setting.write, before))
    cap.modes_set.update(_TELL.get(setter, (setting.read,)))
    cap.unguarded += 1
    if not _matters(setter):
        perform(cap, call, [], {})
        cap.deliver(NONE if result is None else from_python(result), cont)
        return
    cap.generators.setdefault(id(setting), Generator(Const(setting), None))
    if cap.builder.n_calls or cap.builder.mode.shut is not None:
        cap.builder.mode.shut = cap.loc
        cap.slices = None  # what is copied is not run here
        perform(cap, call, [], {})
    else:
        cap.late.draw(None, call, ())
    cap.deliver(NONE if result is None else from_python(result), cont)


def _matters(setter: Any) -> bool:
    """Whether an operator may look at a setting: not at those of a library that is not there."""
    there: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    return there or not any(n in repr(setter) for n in ("cudnn", "cublas", "cuda"))


def precision(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """torch._C._set_fp32_precision_setter(backend, operator, precision)."""
    where = [constant(a) for a in args[:2]]
    setter = _precision_setter(*where)
    change(setter, cap, args[2:], kwargs, cont)


@functools.cache
def _precision_setter(backend: str, operator: str) -> Any:
    get = functools.partial(torch._C._get_fp32_precision_getter, backend, operator)
    made = functools.partial(torch._C._set_fp32_precision_setter, backend, operator)
    SETTERS[made] = (get, made)
    return made


def read_precision(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """torch._C._get_fp32_precision_getter(backend, operator)."""
    where = tuple(constant(a) for a in args)
    getter, _ = SETTERS[_precision_setter(*where)]
    found = getter()
    if getter not in cap.modes_set:
        cap.guard("state", None, (getter, found))
    cap.deliver(Const(found), cont)


def flags(fn: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A manager of a with block that torch writes as a generator, which no break could leave."""
    made = fn.__wrapped__
    try:
        bound = inspect.signature(made).bind(*args, **kwargs)
    except TypeError as error:
        raise raised(TypeError, f"{made.__name__}() {error}") from None
    bound.apply_defaults()
    given = [x if isinstance(x, Value) else Const(x) for x in bound.arguments.values()]
    calls = [Const(made.__globals__[n]) for n in ("__allow_nonbracketed_mutation", "set_flags")]
    cap.call(Const(polyfills.Flags), [*calls, TupleValue([*given])], {}, cont)
