"""torch functions that are neither plain graph nodes nor interpreted."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from torchweld.base.errors import InternalError
from torchweld.capture.arrays.outside import tensor_of
from torchweld.capture.attrs import from_python
from torchweld.capture.functions.sized_calls import tensor_of_sizes
from torchweld.capture.handlers import tests_next
from torchweld.capture.late import LateNumber
from torchweld.capture.policy import graph_call, inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.suspend import stops_of
from torchweld.capture.symbolic import number_value
from torchweld.capture.tables import FUNCTIONS, function, klass
from torchweld.capture.values.base import (
    ArrayValue,
    Const,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    boolean,
    constant,
)
from torchweld.capture.values.number import GraphNumber
from torchweld.ir.nested import memory_of

Args = list[Value]
Kwargs = dict[str, Value]


@function(torch.is_tensor)
def is_tensor(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(boolean(isinstance(args[0], TensorValue)), cont)


def _metadata(fn: Any) -> None:
    """A function of a tensor that its metadata answers."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        cap.reads_inference |= fn is torch.is_inference
        real = [a.fake if isinstance(a, TensorValue) else constant(a) for a in args]
        cap.deliver(from_python(fn(*real)), cont)

    FUNCTIONS.add(fn, handler)


for _fn in (torch.numel, torch.is_floating_point, torch.is_complex, torch.is_storage,
            torch.is_signed, torch.is_same_size, torch.is_conj, torch.is_inference):  # fmt: skip
    _metadata(_fn)


def _scalar_metadata(fn: Any) -> None:
    """A function of dtypes and shapes: no tensor data, no node."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        try:
            real = [a.fake if isinstance(a, TensorValue) else constant(cap.unwrap(a)) for a in args]
        except NotConstant:
            raise refuse("W107", f"{fn.__name__} of values that are not constant",
                         cap.loc()) from None  # fmt: skip
        cap.deliver(from_python(fn(*real)), cont)

    FUNCTIONS.add(fn, handler)


_scalars: tuple[Any, ...] = (
    torch.promote_types, torch.result_type, torch.can_cast, torch.get_device_module,
)  # fmt: skip
for _function in _scalars:
    _scalar_metadata(_function)


@function(torch.broadcast_shapes)
def broadcast_shapes(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Sizes that vary are compared as eager compares them, and stay symbolic."""
    try:
        real = [cap.builder.to_fake(cap.unwrap(a)) for a in args]
    except NotConstant:
        raise refuse("W107", "broadcast_shapes of values that are not constant",
                     cap.loc()) from None  # fmt: skip
    compute: Any = torch.broadcast_shapes
    found = compute(*real)
    cap.deliver(TupleValue([number_value(n) for n in found], torch.Size), cont)


# ---------------------------------------------------------------- functions that may warn
def _differ(given: Kwargs) -> bool:
    """Whether an input and a target are broadcast."""
    x, y = given.get("input"), given.get("target")
    return isinstance(x, TensorValue) and isinstance(y, TensorValue) and (
        x.fake.shape != y.fake.shape)  # fmt: skip


def _lacks(name: str, *others: str) -> Callable[[Kwargs], bool]:
    """Whether an argument is left out, and so are the others."""

    def left_out(given: Kwargs) -> bool:
        return all(n not in given or (isinstance(x := given[n], Const) and x.sample is None)
                   for n in (name, *others))  # fmt: skip

    return left_out


def _is_mean(given: Kwargs) -> bool:
    how = given.get("reduction", Const("mean"))
    return isinstance(how, Const) and how.sample == "mean"


def _may_warn(fn: Any, names: tuple[str, ...], warns: Callable[[Kwargs], bool]) -> None:
    """Interpret a function where it warns: eager does so in every call, of the call's sizes."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        run = inline_anyway if warns({**dict(zip(names, args, strict=False)), **kwargs}) else (
            graph_call)  # fmt: skip
        run(cap, fn, args, kwargs, cont)

    FUNCTIONS.add(fn, handler)


_losses: tuple[Any, ...] = (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss)
for _function in _losses:
    _may_warn(_function, ("input", "target"), _differ)
_softmaxes: tuple[Any, ...] = (F.softmax, F.log_softmax, F.softmin)
for _function in _softmaxes:
    _may_warn(_function, ("input", "dim"), _lacks("dim"))
_may_warn(F._get_softmax_dim, (), lambda given: True)  # type: ignore[attr-defined]
_may_warn(F.kl_div, ("input", "target", "size_average", "reduce", "reduction"), _is_mean)
_may_warn(F.grid_sample, ("input", "grid", "mode", "padding_mode", "align_corners"),
          _lacks("align_corners"))  # fmt: skip


def _is_open(x: Value) -> bool:
    """Whether a value is a number that is known when the code runs, of Python's own types."""
    late = isinstance(x, LateNumber) and not x.fixed and type(x.now) in (int, float)
    return late or isinstance(x, GraphNumber)


def _has_numpy(data: Any) -> bool:
    """Whether numbers of NumPy's are among it, which have a dtype of their own."""
    if isinstance(data, list | tuple):
        return any(map(_has_numpy, data))
    return isinstance(data, np.generic)


def _made_by(fn: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A tensor made of constants becomes a node; one made of tensors' values is refused."""
    if args and isinstance(args[0], ArrayValue):
        tensor_of(cap, fn, args, kwargs, cont)
        return
    if args and isinstance(args[0], TensorValue):
        if kwargs.get("dtype") is None and kwargs.get("device") is None and len(args) == 1:
            cap.deliver(args[0], cont)
            return
        graph_call(cap, torch.as_tensor, args, kwargs, cont)
        return
    varies = cap.sizes.symbolic or cap.late.active
    if varies and tensor_of_sizes(cap, [cap.unwrap(a) for a in args], kwargs, cont):
        return
    try:
        if not _is_open(args[0]):
            data = constant(cap.unwrap(args[0]))
            if "dtype" not in kwargs and _has_numpy(data):
                kwargs = {**kwargs, "dtype": Const(torch.tensor(data).dtype)}
    except NotConstant:
        raise refuse("W102", "a Tensor made of other Tensors' values", cap.loc()) from None
    graph_call(cap, torch.tensor, args, kwargs, cont)


for _maker in (torch.tensor, torch.as_tensor, torch.asarray):
    FUNCTIONS.add(_maker, functools.partial(_made_by, _maker))


_COMPARE: dict[str, Any] = {"==": operator.eq, ">=": operator.ge, "<=": operator.le}


def _dropout(fn: Any, names: tuple[str, str], defaults: tuple[object, object], cap: Capture,
             args: Args, kwargs: Kwargs, cont: Cont | None) -> None:  # fmt: skip
    """Dropout that drops nothing gives back what it got; torch's decomposition of it copies."""
    given = dict(zip(names, args[1:3], strict=False)) | kwargs
    known = all(isinstance(given.get(n, Const(None)), Const) for n in names)
    drops = getattr(given.get(names[1]), "obj", defaults[1])
    p: Any = given.get(names[0], Const(defaults[0]))

    def holds(symbol: str, bound: int) -> bool:
        decided = cap.late.decide(symbol, p, Const(bound))  # of a number that changes
        return _COMPARE[symbol](p.obj, bound) if decided is None else bool(decided)

    number = known and issubclass(p.cls(), int | float)
    nothing = number and (holds("==", 0) or (
        drops is False and holds(">=", 0) and holds("<=", 1)))  # fmt: skip
    if nothing and args and isinstance(args[0], TensorValue):
        cap.deliver(args[0], cont)
    else:
        graph_call(cap, fn, args, kwargs, cont)


FUNCTIONS.add(F.dropout, functools.partial(_dropout, F.dropout, ("p", "training"), (0.5, True)))
FUNCTIONS.add(torch.dropout, functools.partial(_dropout, torch.dropout, ("p", "train"),
                                               (None, None)))  # fmt: skip


@klass(torch.Tensor)
def tensor_class(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W107", "torch.Tensor(...)", cap.loc())


@klass(torch.nn.Parameter)
def parameter(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A leaf with the memory of a tensor, which cannot leave the frame as such."""
    names = ("data", "requires_grad")
    given = dict(zip(names, args, strict=False)) | kwargs
    data, flag = given.get("data"), given.get("requires_grad", Const(True))
    if not isinstance(data, TensorValue) or not isinstance(flag, Const) or cap.builder.bodies or (
            data.kind not in (torch.Tensor, torch.nn.Parameter)):  # fmt: skip
        raise refuse("W107", "a Parameter made in the frame", cap.loc())
    cap.deliver(parameter_of(cap, data, bool(flag.obj)), cont)


def parameter_of(cap: Capture, data: TensorValue, requires_grad: bool) -> TensorValue:
    """A new Parameter that has the memory of a tensor."""
    made = cap.builder.call("call_method", "detach", [data], {}, cap.loc())
    assert isinstance(made, TensorValue)
    made.kind = torch.nn.Parameter
    cap.note_birth(made, stops_of(cap))
    cap.reads_grad = True
    if requires_grad:
        cap.builder.call("call_method", "requires_grad_", [made], {}, cap.loc())
    return made


def _compares(fn: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The test of a branch may be a Tensor. Two that share memory are equal, whatever is in it."""
    a, b = (*args, None, None)[:2]
    if isinstance(a, TensorValue) and isinstance(b, TensorValue) and cont is None and (
            tests_next(cap.top) and _are_alike(a.fake, b.fake)):  # fmt: skip
        alike = torch.eq if fn is torch.equal else torch.isclose
        found = cap.builder.call("call_function", alike, args, kwargs, cap.loc())
        cap.deliver(cap.builder.call("call_method", "all", [found], {}, cap.loc()), cont)
        return
    raise refuse("W102", f"torch.{fn.__name__} gives a bool, which the values decide", cap.loc(),
                 "use (a == b).all() or torch.isclose(a, b).all(), which give a Tensor")


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    plain = not a._has_symbolic_sizes_strides and not b._has_symbolic_sizes_strides
    return plain and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and (
        memory_of(a) != memory_of(b))  # fmt: skip


for _compare in (torch.equal, torch.allclose):
    FUNCTIONS.add(_compare, functools.partial(_compares, _compare))


@function(torch.save, torch.load, torch.compile)
def outside(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    raise refuse("W103", "a function that needs real tensors or the whole program", cap.loc())


@function(torch._check_tensor_all)
def check_all(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A check of the values that the graph makes when it runs, with the error that eager gives."""
    (cond,) = args
    if kwargs or not isinstance(cond, TensorValue) or cond.fake.dtype is not torch.bool:
        raise refuse("W103", "a check of values with a message of its own", cap.loc())
    call = cap.builder.call
    whole = call("call_function", torch.all, [cond], {}, cap.loc())
    text = Const(_failed_check())
    cap.deliver(call("call_function", torch._assert_async, [whole, text], {}, cap.loc()), cont)


@functools.cache
def _failed_check() -> str:
    """What torch says when a check without a message fails."""
    try:
        torch._check_tensor_all(torch.tensor(False))  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return str(error)
    raise InternalError("torch._check_tensor_all lets False pass")
