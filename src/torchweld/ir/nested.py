"""What a graph node calls that holds a graph of its own: functions of the user's that torch runs.

The body is the captured function: its inputs are the tensors among the arguments, in order, then
the tensors that it uses without being given them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.eager_transforms import jvp, vjp
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import Function, once_differentiable
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
)

Body = Callable[..., Any]


def tensors_in(x: Any, kind: type = Tensor) -> list[Any]:
    """The tensors, or other objects, in nested tuples, lists and dicts, in order."""
    if isinstance(x, kind):
        return [x]
    if isinstance(x, (tuple, list)):
        return [leaf for item in x for leaf in tensors_in(item, kind)]
    if isinstance(x, dict):
        return [leaf for item in x.values() for leaf in tensors_in(item, kind)]
    return []


def memory_of(x: Tensor) -> int:
    """A number that tensors have in common that share memory, while they live."""
    return int(x.untyped_storage()._cdata)


def memories_in(x: Any) -> list[int]:
    """The memory of each tensor in nested tuples, lists and dicts."""
    return list(map(memory_of, tensors_in(x)))


def has_no_value(x: Tensor) -> bool:
    """Whether a tensor is there for a graph to be recorded."""
    return isinstance(x, FakeTensor) or bool(torch._is_functional_tensor(x))


def lost_history(x: Tensor) -> bool:
    """Whether autograd cannot say any more what a view was computed from: it raises."""
    if not x._is_view():
        return False
    try:
        x.is_leaf  # noqa: B018
    except RuntimeError:
        return True
    return False


class Nested:
    """A callable with the name that FX writes into the code of a graph."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return self.__name__


class Transformed(Nested):
    """api(body, **options)(*args, **kwargs), of a function such as torch.vmap."""

    def __init__(self, api: Callable[..., Any], options: dict[str, Any], body: Body) -> None:
        super().__init__(api.__name__)
        self.api = api
        self.options = options
        self.body = body

    def __call__(self, args: Sequence[Any], kwargs: dict[str, Any], free: Sequence[Tensor]) -> Any:
        def inner(*given: Any, **named: Any) -> Any:
            return self.body(*tensors_in((given, named)), *free)

        return self.api(inner, **self.options)(*args, **kwargs)


def transformed(api: Any, options: tuple[tuple[str, Any], ...], func: Any, *args: Any,
                **kwargs: Any) -> Any:  # fmt: skip
    """Call a function that `api` has made of another."""
    return api(func, **dict(options))(*args, **kwargs)


def jvp_of(func: Any, **options: Any) -> Callable[..., Any]:
    """torch.func.jvp with the function apart from the numbers."""
    return lambda primals, tangents: jvp(func, primals, tangents, **options)


def applied(func: Any) -> Callable[..., Any]:
    """The function itself, called as a transform would call it."""
    return lambda *args: func(*args)


def vjp_value(func: Any, **options: Any) -> Callable[..., Any]:
    """What torch.func.vjp gives beside the function that takes cotangents."""

    def call(*primals: Any) -> Any:
        out, _, *aux = vjp(func, *primals, **options)
        return (out, *aux) if aux else out

    return call


@dataclass(frozen=True, slots=True)
class Marks:
    """What `forward` has told its context, by positions.

    fixed: results that are not differentiable. dirty: inputs that it has written. zeros: whether
    `backward` gets zeros in the place of gradients that are not there.
    """

    fixed: tuple[int, ...] = ()
    dirty: tuple[int, ...] = ()
    zeros: bool = True


@dataclass(frozen=True, slots=True)
class Pullback:
    """The graph of `backward`. saved: which of the saved tensors it takes behind the gradients."""

    body: Body
    saved: tuple[int, ...]


class CustomFunction(Nested):
    """A torch.autograd.Function whose forward and backward are graphs.

    forward(*own, *free) gives (results, saved); backward(*gradients, *saved) gives the gradients of
    the tensors among the arguments. There is one for each pattern of gradients that may be there.
    places: for each of these, which of `own` it is. once: gradients have no gradients.
    sources: inside of a transform: what is saved, as numbers of [*own, *free, *results].
    """

    def __init__(self, name: str, forward: Body, backward: dict[tuple[bool, ...], Pullback],
                 places: tuple[int, ...], marks: Marks, once: bool,
                 sources: tuple[int, ...] | None = None) -> None:  # fmt: skip
        super().__init__(name)
        self.forward = forward
        self.backward = backward
        self.places = places
        self.marks = marks
        self.sources = sources
        self.function = _kind_of(name, once, sources is not None)

    def __call__(self, own: Sequence[Tensor], free: Sequence[Tensor]) -> Any:
        # autograd does not look into the list: nobody gets a gradient through it
        return self.function.apply(self, [*own, *free], *(own[i] for i in self.places))


class _Custom(Function):
    @staticmethod
    def forward(ctx: Any, node: CustomFunction, inputs: list[Tensor], *own: Tensor) -> Any:
        given = _by_place(node, own, inputs)
        out, saved = node.forward(*given)
        ctx.node = node
        ctx.save_for_backward(*saved)
        results = out if isinstance(out, tuple) else (out,)
        marks = node.marks
        ctx.mark_non_differentiable(*(results[i] for i in marks.fixed))
        if marks.dirty:
            ctx.mark_dirty(*(given[i] for i in marks.dirty))
        ctx.set_materialize_grads(marks.zeros)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        given = [g for g in gradients if isinstance(g, Tensor)]
        there = tuple(isinstance(g, Tensor) for g in gradients)
        node: CustomFunction = ctx.node
        if node.marks.zeros:  # all of them are there, and none for what is no tensor
            (back,) = node.backward.values()
        elif there in node.backward:
            back = node.backward[there]
        else:
            return (None,) * (2 + len(node.places))
        saved = ctx.saved_tensors
        return (None, None, *back.body(*given, *(saved[i] for i in back.saved)))


class _CustomOnce(_Custom):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _Custom.backward(ctx, *gradients)


class _CustomApart(_Custom):
    """As transforms of torch.func want it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # type: ignore[override]
        node: CustomFunction, inputs: list[Tensor], *own: Tensor
    ) -> Any:
        return node.forward(*_by_place(node, own, inputs))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        node, given, *own = inputs
        results = output if isinstance(output, tuple) else (output,)
        known = (*_by_place(node, own, given), *results)
        ctx.node = node
        ctx.save_for_backward(*(known[i] for i in node.sources))
        ctx.mark_non_differentiable(*(results[i] for i in node.marks.fixed))
        ctx.set_materialize_grads(node.marks.zeros)


class _CustomApartOnce(_CustomApart):
    backward = _CustomOnce.backward  # type: ignore[assignment]


def _by_place(node: CustomFunction, own: Sequence[Tensor],
              inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:  # fmt: skip
    """The inputs of `forward`, those that autograd knows among them."""
    n = max(node.places, default=-1) + 1
    by_place = dict(zip(node.places, own, strict=True))
    return (*(by_place[i] for i in range(n)), *inputs[n:])


_KINDS: dict[tuple[bool, bool], type] = {
    (False, False): _Custom, (True, False): _CustomOnce, (False, True): _CustomApart,
    (True, True): _CustomApartOnce,
}  # fmt: skip


@lru_cache(256)
def _kind_of(name: str, once: bool, apart: bool) -> Any:
    """A class whose node in the autograd graph has the name that the user's would have."""
    return type(name, (_KINDS[once, apart],), {})


class Checkpointed(Nested):
    """torch.utils.checkpoint of a graph, which runs again for the backward.

    options: for torch. Reentrant, it is body(*own, *free), and only `own` are inputs for autograd;
    else it is body(*free), and torch minds that nobody writes to `own` before the backward.
    contexts: the user's context_fn, which says what is kept.
    """

    def __init__(self, body: Body, options: dict[str, Any], contexts: Body | None = None) -> None:
        super().__init__("checkpoint")
        self.body = body
        self.options = options if contexts is None else {**options, "context_fn": contexts}
        self.contexts = contexts

    def keeps(self) -> Callable[..., bool | None]:
        """Whether the program wants the result of an operator kept; None if it does not say.

        To be asked with (operator, arguments, keyword arguments, result) in their order.
        """
        policy = None
        if self.contexts is not None:
            policy = getattr(self.contexts()[0], "policy_fn", None)

        def asked(op: Any, args: Any, kwargs: Any, out: Any) -> bool | None:
            if policy is None or op in SAC_IGNORED_OPS:
                return None
            said = policy(_selecting(out), op, *args, **kwargs)
            return said is True or said in _KEPT

        return asked

    def __call__(self, own: Sequence[Tensor], free: Sequence[Tensor]) -> Any:
        reentrant = self.options["use_reentrant"]
        inputs = (*own, *free) if reentrant else free
        wanted = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
        if not wanted or any(has_no_value(x) for x in inputs):
            return self.body(*inputs)  # a joint graph decides on its own what it keeps

        def run(*given: Tensor) -> Any:
            return self.body(*given, *free) if reentrant else self.body(*free)

        return checkpoint(run, *own, **self.options)


_KEPT = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)
_SAID = frozenset(inspect.signature(SelectiveCheckpointContext).parameters)


def _selecting(out: Any) -> SelectiveCheckpointContext:
    """What a policy is told beside the operator; more from torch 2.13 on."""
    said = {"is_recompute": False, "op_output": out}
    return SelectiveCheckpointContext(**{k: v for k, v in said.items() if k in _SAID})


class Pulled(Nested):
    """The function that torch.func.vjp gives, applied: the forward runs inside of it."""

    def __init__(self, options: dict[str, Any], body: Body) -> None:
        super().__init__("vjp_pulled")
        self.options = options
        self.body = body

    def __call__(self, primals: Sequence[Any], free: Sequence[Tensor], *cotangents: Any,
                 **kwargs: Any) -> Any:  # fmt: skip
        def inner(*given: Any) -> Any:
            return self.body(*tensors_in(given), *free)

        return vjp(inner, *primals, **self.options)[1](*cotangents, **kwargs)


class Pushed(Nested):
    """The function that torch.func.linearize gives: the forward runs inside of it."""

    def __init__(self, body: Body) -> None:
        super().__init__("linearized")
        self.body = body

    def __call__(self, primals: Sequence[Any], free: Sequence[Tensor], *tangents: Any) -> Any:
        def inner(*given: Any) -> Any:
            return self.body(*tensors_in(given), *free)

        return jvp(inner, tuple(primals), tangents)[1]
