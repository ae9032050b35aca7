"""Functions that read or set torch's modes: grad mode, autocast, default dtype, compiling flags.

A setter runs for real during capture, so that the operators that follow are recorded under the
mode that they will run under; it is recorded in the graph too, and undone when the capture ends.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from torchweld.capture import marks
from torchweld.capture.attrs import from_python
from torchweld.capture.modes import (
    ATTENTION,
    ENTER,
    EXIT,
    SET_GRAD,
    SETTERS,
    STEPS,
    attention_order,
    enter,
    undo_of,
)
from torchweld.capture.numbers import in_optimizer
from torchweld.capture.session import Capture, is_compiling
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.tables import FUNCTIONS, NAMED, function, klass, method
from torchweld.capture.values.base import (
    Const,
    InstanceValue,
    ListValue,
    NotConstant,
    Value,
    boolean,
    constant,
)
from torchweld.ir.graph import LOC

Args = list[Value]
Kwargs = dict[str, Value]


def _constants(cap: Capture, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    try:
        return [constant(a) for a in args], {k: constant(v) for k, v in kwargs.items()}
    except NotConstant:
        raise refuse("W107", "a mode set to a value that is not constant", cap.loc()) from None


# ---------------------------------------------------------------------- getters
# what other getters tell of a mode
_ASKS: dict[Any, Any] = {
    torch._C._is_any_autocast_enabled: torch.is_autocast_enabled,
    torch.is_autocast_cpu_enabled: torch.is_autocast_enabled,
    torch.get_autocast_cpu_dtype: torch.get_autocast_dtype,
    torch.get_autocast_gpu_dtype: torch.get_autocast_dtype,
}


_BY_MODE = (torch.get_default_device, torch._C._len_torch_function_stack,
            torch._C._is_torch_function_mode_enabled)  # fmt: skip


def _getter(fn: Callable[..., Any]) -> None:
    """Answered now; the answer is guarded unless the frame itself has set the mode."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        real_args, real_kwargs = _constants(cap, args, kwargs)
        if fn in _BY_MODE and len(cap.devices) != cap.devices_before:
            raise refuse("W107", f"{fn.__name__} inside of `with torch.device`", cap.loc())
        try:
            found = fn(*real_args, **real_kwargs)
        except Exception as error:
            raise raised(type(error), *error.args) from None
        if _ASKS.get(fn, fn) not in cap.modes_set:
            asked = functools.partial(fn, *real_args, **real_kwargs) if args or kwargs else fn
            cap.guard("state", None, (asked, found))
        cap.deliver(from_python(found), cont)

    FUNCTIONS.add(fn, handler)


for _fn in (
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype,
    torch.is_autocast_enabled, torch.get_autocast_dtype, torch.is_autocast_cache_enabled,
    torch.are_deterministic_algorithms_enabled, torch.get_num_threads,
    torch.is_deterministic_algorithms_warn_only_enabled, torch.get_float32_matmul_precision,
    torch._C._is_autocast_available, torch.is_autocast_cpu_enabled, torch.get_autocast_cpu_dtype,
    torch.get_autocast_gpu_dtype, torch.cuda.is_available, torch.backends.mkldnn.is_available,
    torch.cuda.is_initialized, torch.distributed.is_available, torch.get_default_device,
    torch.cuda.device_count, torch._C._is_any_autocast_enabled,
    torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack,
    torch.cuda.is_bf16_supported, torch._C._accelerator_getAccelerator,
    torch._C._get_privateuse1_backend_name, torch.amp.is_autocast_available,
    torch._C._is_torch_function_mode_enabled, torch.is_anomaly_enabled,
    torch.is_anomaly_check_nan_enabled,
    *(fn for name, fn in vars(torch._C).items() if name.startswith(
        ("_get_cudnn_", "_get_cublas_allow", "_get_mkldnn_", "_cuda_get_cudnn_"))
      and not name.endswith(("_size", "_sdp_enabled"))),
    *(getattr(torch.distributed, name) for name in (
        "is_initialized", "get_rank", "get_world_size", "get_backend")
      if hasattr(torch.distributed, name)),
):  # fmt: skip
    _getter(_fn)


@function(torch.set_anomaly_enabled)
def set_anomaly(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Anomaly detection as it is already; where it changes, eager code has to see it."""
    given = dict(zip(("enabled", "check_nan"), _constants(cap, args, {})[0], strict=False))
    given |= _constants(cap, [], kwargs)[1]
    for name, getter in (("enabled", torch.is_anomaly_enabled),
                         ("check_nan", torch.is_anomaly_check_nan_enabled)):  # fmt: skip
        if getter() is not given.get(name, True):
            raise refuse("W106", "anomaly detection is turned on or off", cap.loc(),
                         "do so around the compiled call")  # fmt: skip
        cap.guard("state", None, (getter, getter()))
    cap.deliver(Const(None), cont)


@method(torch.device, "__enter__")
def enter_device(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """`with torch.device(...)`: where tensors are made that are not told where."""
    device = constant(args[0])
    if device.type not in ("cpu", "cuda"):
        raise refuse("W107", f"with on a device of type {device.type}", cap.loc())
    if len(cap.devices) == cap.devices_before:
        cap.note_birth(cap.devices, stops_of(cap))
    cap.slices = None  # what was copied has made its tensors elsewhere
    cap.devices.append(device)
    cap.deliver(args[0], cont)


@method(torch.device, "__exit__")
def leave_device(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if len(cap.devices) <= cap.devices_before:
        raise refuse("W107", "the end of a `with torch.device` that is not open", cap.loc())
    cap.devices.pop()
    cap.deliver(Const(None), cont)


_NO_AUTOCAST: Any = torch.cuda.amp.common.amp_definitely_not_available


@function(_NO_AUTOCAST)
def no_autocast(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """What is installed does not change."""
    cap.deliver(Const(_NO_AUTOCAST()), cont)


def _answer(value: object, *fns: Any) -> None:
    """Functions whose answer in captured code is fixed, or their modules and names."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.deliver(Const(value), cont)

    for fn in fns:
        if isinstance(fn, tuple):
            NAMED.add(fn, handler)
        elif fn is not None and fn not in FUNCTIONS:
            FUNCTIONS.add(fn, handler)


_DYNAMO = "torch._dynamo.decorators"
_answer(True, torch.compiler.is_dynamo_compiling, is_compiling,
        torch._utils.is_compiling, ("torch._dynamo.external_utils", "is_compiling"))
_answer(False, torch.jit.is_scripting, torch.jit.is_tracing,  # type: ignore[attr-defined]
        ("torch.onnx", "is_in_onnx_export"), torch.compiler.is_exporting,
        marks.is_exporting,
        torch._C._is_torch_function_all_disabled, torch.overrides.is_tensor_method_or_property)
_answer(None, torch._C._get_tracing_state, torch._C._log_api_usage_once,
        torch.compiler.cudagraph_mark_step_begin,
        torch.amp.autocast_mode._enter_autocast, marks.cudagraph_mark_step_begin,
        *((_DYNAMO, fn.__name__) for fn in marks.SIZE_MARKS), *marks.SIZE_MARKS)
_answer(False, torch.overrides.has_torch_function, torch.overrides.has_torch_function_unary,
        torch.overrides.has_torch_function_variadic)


@function(torch.compiler.is_compiling)
def compiling(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """True, but for torch.optim: what it does for other compilers is not what it does in eager."""
    cap.deliver(boolean(not in_optimizer(cap)), cont)


@NAMED.register((_DYNAMO, "graph_break"))
@function(marks.graph_break)
def graph_break(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Those of torch.optim are there for the sake of AOTAutograd."""
    if in_optimizer(cap):
        cap.deliver(Const(None), cont)
        return
    said = [str(constant(a)) for a in (*args, *kwargs.values())]
    raise refuse("W117", ": ".join(("asked for by the program", *said)), cap.loc())


@klass(torch.autograd.profiler.record_function)
def record_function(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A context that does nothing: a profile shows the code that runs without a profiler, and of
    one graph's operators none can be told to run within the zone.
    """
    cap.call(Const(contextlib.nullcontext), [], {}, cont)


# ---------------------------------------------------------------------- setters
def _setter(fn: Callable[..., Any]) -> None:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        real_args, real_kwargs = _constants(cap, args, kwargs)
        given = (*real_args, *real_kwargs.values())
        cap.state_restore.append(undo_of(fn, given))
        if fn in SETTERS:
            getter = SETTERS[fn](*given)
            cap.modes_set.add(getattr(getter, "func", getter))
            cap.modes_before.setdefault((fn, given[:-1]), (getter, getter()))
        cap.modes.append((fn, given, SETTERS[fn](*given)() if fn in SETTERS else None))
        result = fn(*given)
        _node(cap, fn, given)
        cap.deliver(from_python(result), cont)

    FUNCTIONS.add(fn, handler)


def _node(cap: Capture, fn: Any, args: tuple[Any, ...]) -> Node:
    node = cap.builder.graph.call_function(fn, args)
    node.meta[LOC] = cap.loc()
    return node


for _change in (*SETTERS, *STEPS):
    _setter(_change)
for _get in ATTENTION.values():
    _getter(_get)


@function(torch._C._get_sdp_priority_order)
def get_attention_order(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    found = attention_order()
    if attention_order not in cap.modes_set:
        cap.guard("state", None, (attention_order, found))
    cap.deliver(ListValue([Const(x) for x in found]), cont)


# --------------------------------------------------------------- inference mode
@klass(torch._C._InferenceMode)
def make_inference_mode(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The guard object behind torch.inference_mode; entering it is what changes the mode."""
    made = InstanceValue(torch._C._InferenceMode)
    made.attrs["mode"] = args[0]
    cap.note_birth(made, stops_of(cap))
    cap.deliver(made, cont)


@function(vars(torch._C._InferenceMode)["__enter__"].__func__)
def enter_inference_mode(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    (mode,), _ = _constants(cap, [_attr(args[0], "mode")], {})
    if cap.builder.bodies:
        raise refuse("W107", "inference mode inside of a transform", cap.loc())
    if args[0] in cap.inference or type(mode) is not bool:
        raise refuse("W107", "an inference mode entered twice, or not set to a bool", cap.loc())
    opened, undo = enter(mode)
    cap.inference[args[0]] = opened, _node(cap, ENTER, (mode,))
    if not mode:  # what entering it does anyway, for those who follow grad mode only
        _node(cap, SET_GRAD, (True,))
    cap.state_restore.append(undo)
    cap.modes_set.update((torch.is_grad_enabled, torch.is_inference_mode_enabled))
    cap.deliver(Const(None), cont)


@function(vars(torch._C._InferenceMode)["__exit__"].__func__)
def leave_inference_mode(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if args[0] is not next(reversed(cap.inference), None):
        raise refuse("W107", "inference modes that are not nested", cap.loc())
    opened, node = cap.inference.pop(args[0])
    EXIT(opened)
    _node(cap, EXIT, (node,))
    cap.deliver(Const(None), cont)


def _attr(obj: Value, name: str) -> Value:
    assert isinstance(obj, InstanceValue)
    found = obj.attrs[name]
    assert found is not None
    return found


@function(torch.seed, torch.set_default_device)
def global_setting(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W106", "a global setting of torch is changed", cap.loc())
