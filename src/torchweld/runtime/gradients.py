"""Differentiable: a compiled forward and its backward as one function that autograd knows.

Cost: 4 us over an autograd function that only calls the forward and the backward (one input, 2 busy
cores, Python 3.11, CPU time, 2026-11-30).
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchweld.ir.conditions import Fact
from torchweld.ir.expr import Expr, evaluate
from torchweld.ir.graph import Joint, Returned
from torchweld.ir.size_node import expr_of
from torchweld.ir.size_values import symbols_of
from torchweld.ir.sizes import Size
from torchweld.runtime.executable import Executable
from torchweld.runtime.sized import TooLargeError

_keeps_graph: Any = torch._C._autograd._get_current_graph_task_keep_graph
# hooks on what is saved, and whether a transform of torch.func runs
_saving_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks
_is_transformed: Any = torch._C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled
# whether a transform of torch.func, or a batch of gradients, stands behind a tensor
_is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor
_is_batch: Any = torch._C._functorch.is_legacy_batchedtensor
try:
    from torchweld.runtime import _driver

    all_plain, all_fit = _driver.all_plain, _driver.all_fit
except ImportError:  # built without a C compiler
    _driver = None  # type: ignore[assignment]

    def all_plain(items: tuple[object, ...], exact: type | None, /) -> bool:
        """Nothing is known in advance."""
        return False

    def all_fit(
        items: tuple[object, ...], exact: type, strides: tuple[tuple[int, ...] | None, ...], /
    ) -> bool:
        """Nothing is known in advance."""
        return False


Given = tuple[bool, ...]
Values = dict[Expr, int]
Pick = Callable[[Any], tuple[Any, ...]]
_version = operator.attrgetter("_version")
_KEPT = 64  # choices of sizes whose tangents are known, the latest


def _holds(fact: Fact, sizes: Values) -> bool:
    """Whether a fact holds; one that is about none of these sizes is of another piece's."""
    symbols = {*symbols_of(fact.left), *symbols_of(fact.right)}
    return symbols.isdisjoint(sizes) or (symbols <= sizes.keys() and fact.holds(sizes))


class Gradients:
    """A compiled backward.

    places: for each input that gets a gradient, its output's number. numbers: the symbols that it
    is given last. facts: what must hold of the sizes of a call, beyond what is guarded. unread:
    which kept values, inputs and then results, may have been changed.
    """

    __slots__ = ("call", "facts", "numbers", "places", "unread")

    def __init__(self, call: Executable, places: tuple[int | None, ...],
                 numbers: tuple[Expr, ...] = (), facts: tuple[Fact, ...] = (),
                 unread: frozenset[int] = frozenset()) -> None:  # fmt: skip
        self.call = call
        self.places = places
        self.numbers = numbers
        self.facts = facts
        self.unread = unread

    def fits(self, sizes: Values) -> bool:
        """Whether it may run for these sizes."""
        return all(_holds(f, sizes) for f in self.facts)

    def pick(self, n_inputs: int, wanted: Sequence[int]) -> Pick:
        """What puts the outputs, and None behind them, where autograd wants them."""
        found = dict(zip(wanted, self.places, strict=True))
        numbers = [found.get(i) for i in range(-1, n_inputs)]
        return operator.itemgetter(*[-1 if p is None else p for p in numbers])


@dataclass(frozen=True, slots=True)
class Tangent:
    """What a gradient looks like that the backward takes."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def at(self, sizes: Values) -> Tangent:
        """What it looks like for these sizes."""
        shape, stride = (tuple(evaluate(expr_of(n), sizes) for n in numbers)
                         for numbers in (self.shape, self.stride))  # fmt: skip
        return replace(self, shape=shape, stride=stride)


class Differentiable:  # without slots: it is weakly referenced
    """Call it with the inputs of the captured graph; returns its outputs.

    forward: the compiled forward. build: the backward for the results whose gradients are given;
    asked when they first are. eager: the captured graph, for what is not compiled: derivatives of
    gradients. around: the modes that `eager` is to run in.
    """

    def __init__(
        self,
        joint: Joint,
        forward: Executable,
        build: Callable[[Given], Gradients | None],
        eager: Callable[..., Sequence[Any]],
        around: Callable[[], AbstractContextManager[object]],
        written: Sequence[int],
        inference: Sequence[int],
    ) -> None:
        self.forward: Callable[..., tuple[Any, ...]] = (
            forward if forward.saves else _gathering(forward, len(joint.tangents)))  # fmt: skip
        self.eager = eager
        self.around = around
        self.written = frozenset(written)
        self.draws = joint.draws
        self.reread = joint.reread
        self.unreached = frozenset(joint.unreached)
        self.bases = joint.bases
        self.wanted = joint.gradients
        self.kept_inputs = joint.kept_inputs
        self.kept_results = joint.kept_results
        places = joint.forward.forward.find_nodes(op="placeholder")
        values = [n.meta["val"] for n in places]
        self.n_inputs = len(values)
        self.others = tuple(i for i in range(self.n_inputs) if i not in joint.kept_inputs)
        self.saves = bool(joint.kept_inputs or joint.kept_results or joint.saved)
        versioned = [i for i in self.others if i not in self.written and i not in inference
                     and isinstance(values[i], Tensor) and places[i].users]  # fmt: skip
        self.sizes = joint.forward.sizes
        self.pick_kept = _picker(
            (*self.kept_inputs, *(self.n_inputs + k for k in self.kept_results)))  # fmt: skip
        self.pick_others, self.pick_versioned = _picker(self.others), _picker(versioned)
        self.tangents = tuple(None if t is None else _tangent(t.meta["val"])
                              for t in joint.tangents)  # fmt: skip
        self.n_results = len(self.tangents)
        self.strides = tuple(None if t is None else t.stride for t in self.tangents)
        self.all_given = tuple(t is not None for t in self.tangents)
        self.pick_given = _picker([k for k, there in enumerate(self.all_given) if there])
        self.unread: dict[Given, frozenset[int]] = {}
        self.whole: tuple[Executable, Pick] | None = None
        self.constants = tuple(k for k, t in enumerate(self.tangents) if t is None)
        self.devices = tuple(sorted({v.device.index or 0 for v in values
                                     if isinstance(v, Tensor) and v.device.type == "cuda"}))
        plain = tuple(Returned(k, False, (), t is not None) for k, t in enumerate(self.tangents))
        self.returned = None if plain == joint.returned else joint.returned
        self.views_vary = any(_varies((args, kwargs)) for r in joint.returned
                              for _, args, kwargs in r.views)  # fmt: skip
        self.backwards: dict[Given, tuple[Executable, Pick] | None] = {}
        self.sized: dict[Given, Gradients] = {}
        self._tangents: dict[tuple[int, ...], tuple[Tangent | None, ...]] = {}
        self._build = build
        self._lock = threading.Lock()

    def __call__(self, *inputs: Tensor) -> Any:
        if not _grad_enabled():
            with torch.enable_grad():  # the graph switches it on itself
                return self(*inputs)
        given = inputs
        if self.unreached:  # autograd must not know that they were here
            given = tuple([x.detach() if i in self.unreached else x for i, x in enumerate(inputs)])
            if not self.wanted:  # but the results require grad, and lead nowhere
                given[min(self.unreached)].requires_grad_()
        if len(self.constants) == self.n_results:
            results: Any = self.forward(*given)[:-1]
        elif _is_transformed() or not (all_plain(given, None) or _unwrapped(given)):
            results = _Step.apply(self, *given)  # type: ignore[no-untyped-call]
        else:
            results = _apply(self, *given)
        if self.returned is None:
            return results
        sizes = self.sizes_in(inputs) if self.views_vary else None
        return tuple(_made(r, inputs, results, sizes) for r in self.returned)

    def backward_for(self, given: Given) -> tuple[Executable, Pick] | None:
        """The compiled backward and what picks the gradients, None if it could not be compiled."""
        if given not in self.backwards:
            with self._lock:
                if given not in self.backwards:
                    made = self._build(given)
                    if made is not None and self.sizes:
                        self.sized[given] = made
                    self.unread[given] = frozenset() if made is None else made.unread
                    self.backwards[given] = None if made is None else (
                        made.call, made.pick(self.n_inputs, self.wanted))  # fmt: skip
                    self.whole = self.backwards.get(self.all_given)
        return self.backwards[given]

    def sizes_in(self, inputs: Sequence[Any]) -> Values:
        """The values of the symbols in a call."""
        return {s.symbol: _read(s, inputs[s.input]) for s in self.sizes}

    def tangents_at(self, sizes: Values) -> tuple[Tangent | None, ...]:
        """What the backward takes after a call with these sizes."""
        key = tuple(sizes.values())
        found = self._tangents.get(key)
        if found is None:
            if len(self._tangents) >= _KEPT:
                self._tangents.clear()
            found = tuple(None if t is None else t.at(sizes) for t in self.tangents)
            self._tangents[key] = found
        return found

    def random_state(self) -> tuple[Any, ...]:
        """The states of the generators that the graph may draw from."""
        cuda = tuple(torch.cuda.get_rng_state(i) for i in self.devices)
        return (torch.get_rng_state(), *cuda)


def _picker(places: Sequence[int]) -> Pick:
    """What gives the items of a tuple at these places, as a tuple."""
    start = places[0] if places else 0
    if list(places) == list(range(start, start + len(places))):
        return operator.itemgetter(slice(start, start + len(places)))
    return operator.itemgetter(*places)


def _gathering(forward: Executable, n_results: int) -> Callable[..., tuple[Any, ...]]:
    """The forward, with what it saves as one tuple behind the results."""

    def call(*inputs: Tensor) -> tuple[Any, ...]:
        outs = forward(*inputs)
        return (*outs[:n_results], outs[n_results:])

    return call


def _read(size: Size, x: Any) -> int:
    """The value of a symbol, of the input that tells it."""
    if size.kind == "number":
        return int(x)
    return int(x.shape[size.dim] if size.kind == "size" else x.stride(size.dim))


def _tangent(x: Tensor) -> Tangent:
    return Tangent(x.shape, x.stride(), x.dtype, x.device)


def _made(how: Returned, inputs: Sequence[Tensor], results: Sequence[Tensor],
          sizes: Values | None) -> Tensor:  # fmt: skip
    """An output that is a result or an input, or a view of one. sizes: None if no view has any."""
    x = inputs[how.place] if how.of_input else results[how.place]
    for target, args, kwargs in how.views:
        if sizes is not None:
            args, kwargs = _with_sizes(args, sizes), _with_sizes(kwargs, sizes)
        x = target(x, *args, **kwargs)
    return x.detach() if x.requires_grad and not how.requires_grad else x


def _varies(x: Any) -> bool:
    """Whether there are symbolic numbers among arguments."""
    if isinstance(x, tuple | list):
        return any(map(_varies, x))
    return _varies((*x.values(),)) if isinstance(x, dict) else isinstance(x, torch.SymInt)


def _with_sizes(x: Any, sizes: Values) -> Any:
    """Arguments with numbers in the place of symbolic ones."""
    if isinstance(x, torch.SymInt):
        return evaluate(expr_of(x), sizes)
    if isinstance(x, tuple | list):
        return type(x)(_with_sizes(item, sizes) for item in x)
    return {k: _with_sizes(v, sizes) for k, v in x.items()} if isinstance(x, dict) else x


class _Step(torch.autograd.Function):
    """One call of a Differentiable, as autograd sees it.

    What only the backward reads is kept as it is: nobody else has it, so nobody can change it.
    Where hooks want to see what is saved, all goes to them.
    """

    @staticmethod
    def forward(ctx: Any, what: Differentiable, *inputs: Tensor) -> Any:
        if what.draws:
            ctx.random_state = what.random_state()
        if what.reread:  # for a second derivative
            ctx.before = {i: inputs[i].clone() for i in what.reread}
        outs = what.forward(*inputs)
        results, kept = outs[:-1], outs[-1]
        ctx.what = what
        if what.sizes:
            ctx.sizes = what.sizes_in(inputs)
        ctx.materialize_grads = False
        given = what.pick_kept((*inputs, *results))
        if _saving_hooks(False) is None:
            ctx.kept = kept
        else:  # they may keep a tensor, of which somebody must know
            ctx.kept = ()
            given += tuple([t.detach() for t in kept])
        if given:
            ctx.to_save = given
        if what.others:
            ctx.others = what.pick_others(inputs)
            ctx.versions = tuple(map(_version, what.pick_versioned(inputs)))
        if what.constants:
            ctx.non_differentiable = tuple([results[k] for k in what.constants])
        return results

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor | None) -> Any:
        what: Differentiable = ctx.what
        try:
            saved = ctx.saved_tensors if what.saves else ()
        except RuntimeError:  # something was changed, but is it read for these gradients?
            saved = _unpacked(what, ctx, tangents)
        keeps = _keeps_graph()
        made = None
        given: tuple[Any, ...] = ()
        if not _grad_enabled():
            if what.sizes:
                made, given = _at_sizes(what, ctx.sizes, tangents)
            elif all_fit(tangents, Tensor, what.strides):
                made = what.whole or what.backward_for(what.all_given)
                given = what.pick_given(tangents)
            elif _are_memory(tangents):
                made = what.backward_for(tuple([t is not None for t in tangents]))
                given = _fitting(tangents, what.tangents)
        if made is None:
            gradients: Any = _placed(what, _again(what, ctx, saved, tangents))
        else:
            backward, pick = made
            try:
                if ctx.kept and not keeps:
                    all_given = [*saved, *ctx.kept, *given]
                    ctx.kept = ()  # now the list has it alone
                    gradients = pick((*backward.consume(all_given), None))
                else:
                    gradients = pick((*backward(*saved, *ctx.kept, *given), None))
            except TooLargeError:
                gradients = _placed(what, _again(what, ctx, saved, tangents))
        if not keeps:
            ctx.kept = ()
            if what.others and what.saves:
                ctx.others = None
        return gradients


# torch.autograd.Function's own does more for transforms of torch.func
_apply: Any = super(torch.autograd.Function, _Step).apply
# one of torch's own frames less per backward
_Step._backward_cls.apply = _Step.backward  # type: ignore[attr-defined]


def _placed(what: Differentiable, found: Sequence[Tensor | None]
            ) -> tuple[Tensor | None, ...]:  # fmt: skip
    gradients: list[Tensor | None] = [None] * (what.n_inputs + 1)
    for i, gradient in zip(what.wanted, found, strict=True):
        gradients[i + 1] = gradient
    return tuple(gradients)


def _unpacked(what: Differentiable, ctx: Any, tangents: Sequence[Tensor | None]
              ) -> tuple[Tensor, ...]:  # fmt: skip
    """What was saved, where only what eager does not read for these gradients was changed since.

    Errors: RuntimeError, eager's or the one that is being handled.
    """
    given = tuple([t is not None for t in tangents])
    made = None if _grad_enabled() else what.backward_for(given)
    unread = frozenset[int]() if made is None else what.unread[given]
    found = []
    for k, x in enumerate(ctx._raw_saved_tensors):
        if k in unread or x.data._version == 0:
            found.append(x.data)
        elif k < len(what.kept_inputs) and hasattr(x, "unpack"):  # of a result it asks whose it is
            found.append(x.unpack())
        else:
            raise
    return tuple(found)


def _unwrapped(inputs: Sequence[Tensor]) -> bool:
    """Whether no input is what a transform of torch.func left behind."""
    return all(_is_plain(x) or not _is_wrapped(x) for x in inputs if isinstance(x, Tensor))


def _are_memory(tangents: Sequence[Tensor | None]) -> bool:
    """Whether each gradient is absent, or memory that kernels can read."""
    return all(t is None or (type(t) is Tensor and _is_plain(t)) for t in tangents)


def _is_plain(x: Tensor) -> bool:
    """Whether a tensor is memory and nothing else, which its dispatch keys decide."""
    plain = x.layout is torch.strided and not (x.is_neg() or x.is_conj() or x._is_zerotensor()
                                               or _is_wrapped(x) or _is_batch(x))  # fmt: skip
    if plain and _driver is not None and not all_plain((x,), None):
        _driver.note_plain(x)
    return plain


def _fitting(tangents: Sequence[Tensor | None], likes: Sequence[Tangent | None]
             ) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients that are there, with the strides that the backward was compiled for."""
    pairs = zip(tangents, likes, strict=True)
    return tuple(t if t.stride() == like.stride else _copied(t, like)
                 for t, like in pairs if t is not None and like is not None)  # fmt: skip


def _at_sizes(what: Differentiable, sizes: Values, tangents: Sequence[Tensor | None]
              ) -> tuple[tuple[Executable, Pick] | None, tuple[Any, ...]]:  # fmt: skip
    """The compiled backward where sizes vary, None if it does not fit them; and what it is given
    behind what was saved."""
    if not _are_memory(tangents):
        return None, ()
    mask = tuple([t is not None for t in tangents])
    made = what.backward_for(mask)
    if made is None or not what.sized[mask].fits(sizes):
        return None, ()
    numbers = [sizes[s] for s in what.sized[mask].numbers]
    return made, (*_fitting(tangents, what.tangents_at(sizes)), *numbers)


def _copied(x: Tensor, like: Tangent) -> Tensor:
    own = torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device=like.device)
    return own.copy_(x)


# ---------------------------------------------------------------- without compiled code
def _again(what: Differentiable, ctx: Any, saved: Sequence[Tensor],
           tangents: Sequence[Tensor | None]) -> Sequence[Tensor | None]:  # fmt: skip
    """The gradients, by running the captured graph again under autograd.

    Errors: RuntimeError if an input was changed meanwhile.
    """
    inputs = _inputs(what, ctx, saved)
    create = torch.is_grad_enabled()
    for i in what.wanted:  # hooks of the inputs wait for what this gives
        inputs[i] = _same(inputs[i])
    for i in what.unreached:  # the graph itself may ask for gradients of these
        inputs[i] = inputs[i].detach().requires_grad_()
    given = [_own(x, what, ctx, i) if i in what.written else x for i, x in enumerate(inputs)]
    with ExitStack() as stack:
        stack.enter_context(what.around())
        if what.draws:
            stack.enter_context(torch.random.fork_rng(what.devices))
            _restore(what, ctx.random_state)
        stack.enter_context(torch.enable_grad())
        outs = what.eager(*given)
    results = [outs[i]._base if whole else outs[i] for i, whole in what.bases]
    pairs = [(r, t) for r, t in zip(results, tangents, strict=True)
             if t is not None and r.requires_grad]  # fmt: skip
    if not pairs:
        return [None] * len(what.wanted)
    return torch.autograd.grad(
        [r for r, _ in pairs], [inputs[i] for i in what.wanted], [t for _, t in pairs],
        create_graph=create, allow_unused=True,
    )  # fmt: skip


def _same(x: Tensor) -> Tensor:
    """The tensor without its hooks, with its autograd history."""
    with torch.enable_grad():
        made: Tensor = torch.ops.aten.alias.default(x)
    return made


def _own(x: Tensor, what: Differentiable, ctx: Any, place: int) -> Tensor:
    """A copy of an input that the graph changes, as it was before the call as far as it matters."""
    with torch.enable_grad():
        copy = x.clone()
    if place in what.reread:
        with torch.no_grad():
            copy.copy_(ctx.before[place])
    return copy


def _inputs(what: Differentiable, ctx: Any, saved: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of the call, with their autograd history."""
    found = dict(zip(what.kept_inputs, saved, strict=False))
    if what.others:
        if ctx.others is None:
            raise RuntimeError("the inputs of a compiled graph were freed after its backward; "
                               "specify retain_graph=True in that call")  # fmt: skip
        found.update(zip(what.others, ctx.others, strict=True))
        given = tuple(found[i] for i in range(what.n_inputs))
        if tuple(map(_version, what.pick_versioned(given))) != ctx.versions:
            raise RuntimeError("an input of a compiled graph has been modified by an inplace "
                               "operation before its gradients were differentiated")  # fmt: skip
    return [found[i] for i in range(what.n_inputs)]


def _restore(what: Differentiable, states: Sequence[Any]) -> None:
    torch.set_rng_state(states[0])
    for device, state in zip(what.devices, states[1:], strict=True):
        torch.cuda.set_rng_state(state, device)
