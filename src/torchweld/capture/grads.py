"""`.grad` of tensors while a frame is captured: what it is now, and what the frame assigned."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from torchweld.base.errors import InternalError
from torchweld.capture.session import Capture
from torchweld.capture.state import refuse
from torchweld.capture.values.base import NONE, Const, TensorValue, Value
from torchweld.capture.values.unread import UnreadTensor
from torchweld.ir.source import Attr, Source


def grad_source(x: TensorValue) -> Source | None:
    """Where `.grad` of a tensor from outside is found."""
    return None if x.source is None else Attr.make(x.source, "grad")


def grad_of(cap: Capture, x: TensorValue) -> Value:
    """`x.grad` as it is now. Errors: GraphBreak W107 for a tensor that is no leaf."""
    cap.reads_grad = True
    written = cap.grads.get(id(x))
    if written is not None:
        cap.unguarded += 1  # no guard says what the frame has assigned
        return written[1]
    real = cap.builder.reals.get(id(x))
    if not (x.fake.is_leaf if real is None else real.is_leaf):
        raise refuse("W107", "Tensor.grad of a tensor that is no leaf", cap.loc())
    source = grad_source(x)
    if real is None or source is None:
        return NONE
    found = real.grad
    if type(found) is not torch.Tensor or id(found) in cap.objects:
        return cap.wrap(found, source)
    return _unread(cap, found, source)


def _unread(cap: Capture, real: torch.Tensor, source: Source) -> Value:
    """A gradient from outside: many are only asked whether they are there, and dropped."""

    def read() -> None:
        del cap.objects[id(real)]
        cap.wrap(real, source)

    made = UnreadTensor(source, read)
    cap.guard("is_not", source, None)
    cap.builder.unread[id(real)] = made
    cap.objects[id(real)] = made
    cap.kept.append(real)
    cap.unguarded += 1  # what is known of it may be more than what a call has asked
    return made


def dropped(cap: Capture) -> list[TensorValue]:
    """Tensors from outside whose old gradients nobody needs any more when the graph runs."""
    found = []
    for x, value in cap.grads.values():
        real = cap.builder.reals.get(id(x))
        if real is None or unchanged(cap, x, NONE):  # made in the frame, or there was none
            continue
        before = cap.objects.get(id(real.grad))
        if before is None or (isinstance(before, UnreadTensor) and before.found is None
                              and before is not value):  # fmt: skip
            found.append(x)
    return found


def set_grad(cap: Capture, x: TensorValue, value: Value) -> None:
    """x.grad = value, done when the graph has run. Errors: GraphBreak W106, W107."""
    if cap.pure or cap.builder.bodies:
        raise refuse("W106", "assignment to Tensor.grad in a function that torch runs", cap.loc())
    if not (is_none(value) or (isinstance(value, TensorValue) and _fits(x.fake, value.fake)
                               and value is not x)):  # fmt: skip
        raise refuse("W107", "assignment to Tensor.grad that torch does not take", cap.loc())
    cap.unguarded += 1
    cap.grads[id(x)] = x, value


def is_none(value: Value) -> bool:
    """Whether there is no gradient."""
    return isinstance(value, Const) and value.obj is None


def _fits(x: torch.Tensor, grad: torch.Tensor) -> bool:
    return x.shape == grad.shape and x.dtype == grad.dtype and x.device == grad.device


def unchanged(cap: Capture, x: TensorValue, value: Value) -> bool:
    """Whether a tensor from outside has this gradient already, as guards say."""
    source = grad_source(x)
    if source is None:
        return False
    if is_none(value):
        return ("equal", source, type(None), None) in cap.guards
    return value.source is source


# ------------------------------------------------------- results whose graph a backward has freed
def is_spent(cap: Capture, fake: torch.Tensor) -> bool:
    """Whether a backward from here would find that an earlier one has freed what it needs."""
    leaves = [x for x, _ in leaves_of([fake])]
    try:
        with cap.builder.mode, torch.autograd.set_multithreading_enabled(False):
            torch.autograd.grad(fake, leaves, torch.empty_like(fake), retain_graph=True,
                                allow_unused=True)  # fmt: skip
    except RuntimeError as error:
        return str(error) == _freed()
    return False


def without_graph(cap: Capture, x: TensorValue) -> TensorValue:
    """A result without its history, which the graph returns in its place."""
    made = cap.builder.call("call_method", "detach", [x], {}, cap.loc())
    assert isinstance(made, TensorValue)
    return made


def leaves_of(ends: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, bool]]:
    """The leaves that a backward from these tensors reaches, each with whether it is an end."""
    found = {id(x): (x, True) for x in ends if x.requires_grad and x.grad_fn is None}
    waiting: list[Any] = [x.grad_fn for x in reversed(ends) if x.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.setdefault(id(leaf), (leaf, False))
        for inner, _ in reversed(node.next_functions):
            if inner is not None and inner not in seen:
                seen.add(inner)
                waiting.append(inner)
    return list(found.values())


def spent(x: torch.Tensor) -> torch.Tensor:
    """A result that requires grad, from which a backward raises what eager raises."""
    with torch.enable_grad():
        made: torch.Tensor = _Spent.apply(x, _anchor())  # type: ignore[no-untyped-call]
    return made


class _Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError(_freed())


@functools.cache
def _anchor() -> torch.Tensor:
    """What makes the result require grad."""
    with torch.inference_mode(False):
        return torch.empty(0, requires_grad=True)


@functools.cache
def _freed() -> str:
    """What torch says when a graph is differentiated for the second time."""
    with torch.inference_mode(False), torch.enable_grad():
        end = torch.ones(1, requires_grad=True).exp().sum()
        end.backward()  # type: ignore[no-untyped-call]
        try:
            end.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            return str(error)
    raise InternalError("torch frees no graph after a backward")
