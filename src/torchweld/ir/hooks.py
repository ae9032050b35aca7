"""Hooks inside of a graph: nodes that have a function called with gradients when they are there.

Where a graph is made functional, the call is the operator `torchweld::hooked`, which finds the
function by a number. So it is a step of the backward, in autograd's order, and what it does to the
world is done then.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.hooks import BackwardHook

from torchweld.base.errors import Unsupported
from torchweld.ir.nested import Body, Nested, tensors_in

_numbers = itertools.count()
_known: WeakValueDictionary[int, Called] = WeakValueDictionary()


class Called:
    """What the operator calls: fn(gradients) gives gradients of the same kind, or None for them."""

    def __init__(self, fn: Callable[[list[Tensor]], Any]) -> None:
        self.fn = fn
        self.number = next(_numbers)
        _known[self.number] = self

    def record(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """The call, as an operator.

        Errors: Unsupported W201 where the hook is to be differentiated.
        """
        if torch.is_grad_enabled() and any(g.requires_grad for g in gradients):
            raise Unsupported("W201", "a hook of a gradient that has a gradient")
        return list(torch.ops.torchweld.hooked(self.number, list(gradients)))


class Hook(Nested):
    """Tensor.register_hook of a tensor that the graph makes. hook: the user's."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        super().__init__("register_hook")
        self.hook = hook
        self.called = Called(lambda given: [hook(given[0])])

    def __call__(self, x: Tensor) -> None:
        if isinstance(x, FakeTensor):
            return
        if torch._is_functional_tensor(x):
            x.register_hook(lambda g: self.called.record([g])[0])  # type: ignore[no-untyped-call]
        else:
            x.register_hook(self.hook)  # type: ignore[no-untyped-call]


class GraphHook(Nested):
    """The same, of a hook that is a graph: body(gradient, *free) gives the new gradient."""

    def __init__(self, body: Body) -> None:
        super().__init__("register_hook")
        self.body = body

    def __call__(self, x: Tensor, free: Sequence[Tensor]) -> None:
        if not isinstance(x, FakeTensor):
            x.register_hook(lambda g: self.body(g, *free))  # type: ignore[no-untyped-call]


class Around:
    """The backward hooks of a module.

    In a graph that is made functional the hooks are two operators: of the gradients of its results,
    and of its arguments.
    """

    def __init__(self, module: Any, full: Sequence[Any], pre: Sequence[Any]) -> None:
        self.module = weakref.ref(module)
        self.full = list(full)
        self.pre = list(pre)
        self.kept: list[Called] = []

    def started(self, given: tuple[Any, ...], tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        """torch's own hook, and the arguments that it gives the module.

        tensors: those that are at hand; fakes are never shown to the user's hooks.
        """
        full, pre = self.full, self.pre
        if any(isinstance(x, FakeTensor) for x in tensors):
            made: Any = BackwardHook(None, *([_nothing] * bool(hooks) for hooks in (full, pre)))
            return made, made.setup_input_hook(given)
        if any(torch._is_functional_tensor(x) for x in tensors):
            full, pre = self._recorded(any(x.requires_grad for x in tensors_in(given)))
        made = BackwardHook(self.module(), full, pre)
        return made, made.setup_input_hook(given)

    def _recorded(self, has_inputs: bool) -> tuple[list[Any], list[Any]]:
        """Hooks that record calls of the user's.

        Errors: Unsupported W201 where torch calls all of them for nothing but their effects.
        """
        full, pre = self.full, self.pre
        if full and not has_inputs:
            raise Unsupported("W201", "backward hooks of a module whose arguments need no gradient")
        module = self._alive

        def before(_: Any, grads: Any) -> Any:
            def call(given: list[Tensor]) -> Any:
                found = _packed(grads, given)
                for hook in pre:
                    found = _changed(found, hook(module(), found), "pre hook", "grad_output")
                return _chosen(grads, found)

            return self._record(call, grads, tensors_in(grads))

        def after(_: Any, grads: Any, results: Any) -> Any:
            own = len(tensors_in(grads))

            def call(given: list[Tensor]) -> Any:
                found, of_results = _packed(grads, given), _packed(results, given[own:])
                for hook in full:
                    found = _changed(found, hook(module(), found, of_results), "hook", "grad_input")
                return [*_chosen(grads, found), *given[own:]]

            return self._record(call, grads, [*tensors_in(grads), *tensors_in(results)])

        return [after] if full else [], [before] if pre else []

    def _alive(self) -> Any:
        """The module, which a compiled graph does not keep alive."""
        found = self.module()
        if found is None:
            raise RuntimeError("a backward hook is called for a module that is gone")
        return found

    def _record(self, call: Callable[[list[Tensor]], Any], like: Any, given: list[Tensor]) -> Any:
        called = Called(call)
        self.kept.append(called)
        return _packed(like, called.record(given))


def _nothing(*_: Any) -> None:
    """What stands for the user's hooks where there are no gradients to see."""


def _packed(like: Any, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The tensors in the places where `like` has tensors."""
    left = iter(tensors)
    return tuple(None if x is None else next(left) for x in like)


def _chosen(like: Any, found: Any) -> list[Tensor]:
    return [torch.zeros_like(y) if x is None else x for x, y in zip(found, like, strict=True)
            if y is not None]  # fmt: skip


def _changed(before: tuple[Any, ...], made: Any, kind: str, what: str) -> tuple[Any, ...]:
    """The gradients after a hook of the user's."""
    if made is None:
        return before
    if len(made) != len(before):
        raise RuntimeError(f"Backward {kind} returned an invalid number of {what}, "
                           f"got {len(made)}, but expected {len(before)}")  # fmt: skip
    return tuple(made)


class Enter(Nested):
    """The arguments of a module with backward hooks, from where gradients reach the hooks.

    It gives torch's hook and the tensors. shape: the arguments, with None for tensors.
    """

    def __init__(self, around: Around, shape: tuple[Any, ...]) -> None:
        super().__init__("backward_hooks")
        self.around = around
        self.shape = shape

    def __call__(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        made, given = self.around.started(_filled(self.shape, tensors), tensors)
        return (made, *tensors_in(given))


class Leave(Nested):
    """The results of a module with backward hooks. shape: as in Enter. given: the number of
    its arguments: no node enters it where none of them requires a gradient."""

    def __init__(self, around: Around, shape: Any, given: int) -> None:
        super().__init__("backward_hooks")
        self.around = around
        self.shape = shape
        self.given = given

    def __call__(self, made: Any, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        if made is None:
            made, _ = self.around.started((None,) * self.given, tensors)
        out = made.setup_output_hook(_filled(self.shape, tensors))
        return (made, *tensors_in(out))


class NoTensor:
    """What stands for an argument that is no tensor: hooks see None for it."""

    def __repr__(self) -> str:
        return "no tensor"


NO_TENSOR = NoTensor()


def _filled(shape: Any, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    left = iter(tensors)
    return tuple(next(left) if s is None else s for s in shape)


class SavedHooks:
    """torch.autograd.graph.saved_tensors_hooks around a part of a graph, which autograd runs."""

    def __init__(self, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
        self.pack = pack
        self.unpack = unpack

    def push(self) -> None:
        torch._C._autograd._push_saved_tensors_default_hooks(self.pack, self.unpack)

    def pop(self) -> None:
        torch._C._autograd._pop_saved_tensors_default_hooks()


class Pack(Nested):
    """The beginning of such a part, or its end."""

    def __init__(self, hooks: SavedHooks, begins: bool) -> None:
        super().__init__("saved_tensors_hooks")
        self.hooks = hooks
        self.begins = begins

    def __call__(self) -> None:
        (self.hooks.push if self.begins else self.hooks.pop)()

    def undo(self) -> None:
        (self.hooks.pop if self.begins else self.hooks.push)()


# ------------------------------------------------------------------------------ the operator
def _own(x: Tensor | None, like: Tensor) -> Tensor:
    """A gradient in memory of its own, laid out as predicted: a hook may keep what it gives."""
    made = torch.empty_like(like)
    if x is None:
        return made.zero_()
    if x.shape != like.shape:
        raise RuntimeError(f"the hook has changed the size of value: {tuple(like.shape)} became "
                           f"{tuple(x.shape)}")  # fmt: skip
    return made.copy_(x)


def _hooked(number: int, gradients: list[Tensor]) -> list[Tensor]:
    given = [_own(x, x) for x in gradients]  # hooks may keep them
    found = _known[number].fn(given)
    return [_own(new if isinstance(new, Tensor) else old, old)
            for new, old in zip(found, given, strict=True)]  # fmt: skip


def _predict(number: int, gradients: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(x) for x in gradients]


_LIBRARY: Any = torch.library.Library
_library = _LIBRARY("torchweld", "FRAGMENT")
_library.define("hooked(int number, Tensor[] gradients) -> Tensor[]")
_library.impl("hooked", _hooked, "CompositeExplicitAutograd")
torch.library.register_fake("torchweld::hooked", _predict, lib=_library)
HOOKED: Any = torch.ops.torchweld.hooked.default
HOOKS = (Hook, GraphHook, Enter, Leave)
