"""Functions that read or set torch's modes: grad mode, autocast, default dtype, compiling flags.

A setter runs for real during capture, so that the operators that follow are recorded under the
mode that they will run under; it is recorded in the graph too, and undone when the capture ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchweld.capture.attrs import from_python
from torchweld.capture.session import Capture, is_compiling
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import FUNCTIONS, function, klass, method
from torchweld.capture.values.base import Const, InstanceValue, NotConstant, Value, constant
from torchweld.ir.graph import LOC

Args = list[Value]
Kwargs = dict[str, Value]


def _constants(cap: Capture, args: Args, kwargs: Kwargs) -> tuple[list[Any], dict[str, Any]]:
    try:
        return [constant(a) for a in args], {k: constant(v) for k, v in kwargs.items()}
    except NotConstant:
        raise refuse("W107", "a mode set to a value that is not constant", cap.loc()) from None


# ---------------------------------------------------------------------- getters
def _getter(fn: Callable[..., Any]) -> None:
    """Answered now; the answer is guarded unless the frame itself has set the mode."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        real_args, real_kwargs = _constants(cap, args, kwargs)
        try:
            found = fn(*real_args, **real_kwargs)
        except Exception as error:
            raise raised(type(error), *error.args) from None
        if fn not in cap.modes_set:
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
    torch.cuda.device_count, torch._C._is_any_autocast_enabled, torch._C._get_cudnn_enabled,
    torch._C._len_torch_function_stack, torch.cuda.is_bf16_supported,
    torch._C._get_privateuse1_backend_name, torch.amp.is_autocast_available,
    torch._C._is_torch_function_mode_enabled,
):  # fmt: skip
    _getter(_fn)


def _answer(value: object, *fns: Any) -> None:
    """Functions whose answer in captured code is fixed."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.deliver(Const(value), cont)

    for fn in fns:
        if fn is not None and fn not in FUNCTIONS:
            FUNCTIONS.add(fn, handler)


_answer(True, torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, is_compiling)
_answer(False, torch.jit.is_scripting, torch.jit.is_tracing,  # type: ignore[attr-defined]
        torch._C._get_tracing_state,
        torch.onnx.is_in_onnx_export, torch.compiler.is_exporting, torch.distributed.is_initialized,
        torch._C._is_torch_function_all_disabled, torch.overrides.is_tensor_method_or_property)
_answer(None, torch._C._log_api_usage_once, torch._assert, torch.amp.autocast_mode._enter_autocast)
_answer(False, torch.overrides.has_torch_function, torch.overrides.has_torch_function_unary,
        torch.overrides.has_torch_function_variadic)


# ---------------------------------------------------------------------- setters
def _setter(fn: Callable[..., Any], getters: tuple[Any, ...], undo: Callable[..., Any]) -> None:
    """`undo(*args)` is called before the change and returns what restores the old state."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        real_args, real_kwargs = _constants(cap, args, kwargs)
        cap.state_restore.append(undo(*real_args, **real_kwargs))
        cap.modes_set.update(getters)
        result = fn(*real_args, **real_kwargs)
        node = cap.builder.graph.call_function(fn, tuple(real_args), real_kwargs)
        node.meta[LOC] = cap.loc()
        cap.deliver(from_python(result), cont)

    FUNCTIONS.add(fn, handler)


def _again(setter: Callable[..., Any], old: Any, *rest: Any) -> Callable[[], None]:
    return lambda: setter(*rest, old)


def _autocast_enabled(*args: Any) -> Callable[[], None]:
    device = args[0] if len(args) > 1 else "cuda"
    old = torch.is_autocast_enabled(device)
    return lambda: torch.set_autocast_enabled(device, old)


def _nesting(step: Callable[[], int]) -> Callable[[], None]:
    return lambda: (step(), None)[1]


_setter(torch._C._set_grad_enabled, (torch.is_grad_enabled,),
        lambda on: _again(torch._C._set_grad_enabled, torch.is_grad_enabled()))
_setter(torch.set_autocast_enabled, (torch.is_autocast_enabled,), _autocast_enabled)
_setter(torch.set_autocast_dtype, (torch.get_autocast_dtype,),
        lambda device, dtype: _again(torch.set_autocast_dtype, torch.get_autocast_dtype(device),
                                     device))  # fmt: skip
_setter(torch.set_autocast_cache_enabled, (torch.is_autocast_cache_enabled,),
        lambda on: _again(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled()))
_setter(torch.autocast_increment_nesting, (), lambda: _nesting(torch.autocast_decrement_nesting))
_setter(torch.autocast_decrement_nesting, (), lambda: _nesting(torch.autocast_increment_nesting))
_setter(torch.clear_autocast_cache, (), lambda: lambda: None)


# --------------------------------------------------------------- inference mode
@klass(torch._C._InferenceMode)
def make_inference_mode(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The guard object behind torch.inference_mode; entering it is what changes the mode."""
    made = InstanceValue(torch._C._InferenceMode)
    made.attrs["mode"] = args[0]
    cap.deliver(made, cont)


@method(torch._C._InferenceMode, "__enter__", "__exit__")
def inference_mode_block(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    if torch.is_inference_mode_enabled():
        cap.deliver(Const(None), cont)  # already on outside: nothing changes
        return
    raise refuse("W106", "inference_mode entered inside of the compiled function: its results "
                         "would be inference tensors only in part; use no_grad here, or enter it "
                         "around the call", cap.loc())  # fmt: skip


@function(torch.manual_seed, torch.seed, torch.set_default_dtype, torch.set_default_device,
          torch.use_deterministic_algorithms, torch.set_num_threads,
          torch.set_float32_matmul_precision)  # fmt: skip
def global_setting(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W106", "a global setting of torch is changed", cap.loc())
