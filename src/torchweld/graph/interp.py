"""Runs a captured graph node by node on functional tensors, so that a Recorder sees ATen."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
from torch.fx import GraphModule, Node
from torch.nn import functional as F
from torch.utils._python_dispatch import _disable_current_modes

from torchweld.base.errors import Unsupported
from torchweld.base.loc import NOWHERE, Loc
from torchweld.graph.fidelity import Fidelity
from torchweld.graph.functional import is_wrapped, unwrap
from torchweld.graph.layout import same_strides
from torchweld.graph.norms import NORMS
from torchweld.graph.number_lists import Number
from torchweld.graph.numbers import is_number_node, run_with_numbers, takes_numbers
from torchweld.graph.one_hot import ONE_HOT
from torchweld.graph.optimizers import FUSED
from torchweld.graph.random import RANDOM, RANDOM_METHODS
from torchweld.graph.record import Recorder
from torchweld.graph.resizing import RESIZED
from torchweld.graph.rewrites.masks import Constants, settled
from torchweld.graph.schema import writes_in_place, writes_through_windows
from torchweld.graph.splits import SPLIT_METHODS, SPLITS
from torchweld.graph.state import AUTOCAST, GRAD_MODE, ContextStack, GradModes
from torchweld.ir.fake import whole
from torchweld.ir.graph import ASKED, LOC, NUMBER, VAL
from torchweld.ir.hooks import Pack
from torchweld.ir.nested import Checkpointed, tensors_in
from torchweld.ir.predicted import below_functionalization
from torchweld.ir.size_node import fresh, is_number
from torchweld.ir.takes import TAKES

# Methods that change what a tensor is, not only what it holds.
_REFUSED_METHODS = frozenset(
    (
        "requires_grad_",
        "retain_grad",
        "register_hook",
        "backward",
        "set_",
        "resize_",
        "resize_as_",
        "data_ptr",
        "untyped_storage",
        "storage",
        "share_memory_",
        "__setstate__",
    )
)

_REPLACED: dict[Any, Callable[..., Any]] = {
    **NORMS, **RANDOM, **SPLITS, **ONE_HOT, **RESIZED,
}  # fmt: skip
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_METHODS = {**RANDOM_METHODS, **SPLIT_METHODS}

_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (DataDependentOutputException, "W102"),
    (DynamicOutputShapeException, "W105"),
    (UnsupportedFakeTensorException, "W104"),
)


class Interpreter:
    """One run of a captured graph.

    env: what each node produced; tensors in it are functional tensors.
    grad: whether the graph's grad modes are followed. takes: whether it takes gradients itself, of
    tensors that it makes, too.
    """

    def __init__(self, recorder: Recorder, inputs: list[Any], grad: bool = False,
                 takes: bool = False) -> None:  # fmt: skip
        self.recorder = recorder
        self._grad_modes = GradModes() if grad else None
        self._takes = takes
        self.env: dict[Node, Any] = {}
        self._inputs = iter(inputs)
        self._contexts = ContextStack()
        self._constants = Constants()
        self._asked: set[str] = set()
        self._fidelity: Fidelity

    def run(self, gm: GraphModule) -> list[Any]:
        """The values of the captured graph's outputs, in order.

        Errors: Unsupported, with the line of the node that could not be run.
        """
        self._fidelity = Fidelity(gm, self.env)
        self._asked = gm.meta.get(ASKED, self._asked)
        with self._contexts:
            for node in gm.graph.nodes:
                if node.op == "output":
                    return _flat(self._value(node.args[0]))
                self.env[node] = self._run_node(node)
        raise Unsupported("W201", "a graph without an output")

    def _run_node(self, node: Node) -> Any:
        if node.op == "placeholder":
            given = next(self._inputs)
            return Number(given, frozenset((node.name,))) if node.meta.get(NUMBER) else given
        if isinstance(node.target, Pack):
            return None  # here nothing is saved
        if is_number(node.meta.get(VAL)):
            return fresh(node.meta[VAL])  # computed of sizes: no operator
        if node.target is operator.getitem and isinstance(node.args[0], Node):
            several = self.env[node.args[0]]
            if isinstance(several, list | tuple):
                return several[self._value(node.args[1])]  # no operator
        at = node.meta.get(LOC, NOWHERE)
        target = node.target
        again = isinstance(target, Checkpointed)
        self.recorder.begin(node.name, at, target.keeps() if isinstance(target, Checkpointed)
                            else None)  # fmt: skip
        self.recorder.layout_matters = False
        self.recorder.narrows = False
        try:
            self._fidelity.before(node)
            result = self._call(node, at)
            for x in tensors_in(result) if again else ():
                self.recorder.keep(unwrap(x))
            if self.recorder.narrows and writes_in_place(node):
                raise Unsupported("W201", f"{node.target} changes the kind of dtype", at=at)
            if writes_through_windows(node):  # torch's inverse of unfold adds up, from zeros
                raise Unsupported("W201", f"{node.target} of windows into a tensor", at=at)
            if self.recorder.layout_matters:
                self._check_layout(node, at)
            self._fidelity.after(node, result)
            return result
        except Unsupported:
            raise
        except Exception as error:
            code = next((c for kind, c in _REASONS if isinstance(error, kind)), "W201")
            first_line = str(error).partition("\n")[0]
            why = f"{node.target}: {type(error).__name__}: {first_line}"
            raise Unsupported(code, why, at=at) from error

    def _call(self, node: Node, at: Loc) -> Any:
        args = self._value(node.args)
        kwargs = self._value(node.kwargs)
        if self._takes and node.target == "requires_grad_":
            return args[0].requires_grad_(*args[1:], **kwargs)
        if node.target in FUSED:
            return FUSED[node.target](*args, **kwargs)
        if is_number_node(node) or takes_numbers((args, tuple(kwargs.values()))):
            return run_with_numbers(node, args, kwargs, self.recorder, self._asked.update)
        if node.op == "call_method":
            return _call_method(str(node.target), args, kwargs, at)
        if node.op != "call_function":
            raise Unsupported("W201", f"graph node {node.op} {node.target}", at=at)
        target: Any = node.target
        if target in (setattr, delattr):
            raise Unsupported("W201", "an attribute of a tensor is set", at=at)
        if target in GRAD_MODE:
            return None if self._grad_modes is None else self._grad_modes.run(target, args)
        if target in TAKES:
            return taken(self.recorder, target, args, kwargs)
        if target in AUTOCAST:
            return self._contexts.run(target, args, kwargs)
        if isinstance(target, HigherOrderOperator):
            raise Unsupported("W201", f"higher-order operator {target}", at=at)
        if target is F.scaled_dot_product_attention:
            kwargs.update(zip(_ATTENTION, args, strict=False))
            args, kwargs = (), self._unmasked(kwargs)
        function: Callable[..., Any] = _REPLACED.get(target, target)
        with whole(function):
            return function(*args, **kwargs)

    def _unmasked(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments of attention without a mask that is the same in every call and hides nothing,
        or what is later.

        Before torch chooses a kernel and its backward: traced models pass masks where eager ones
        pass none.
        """
        mask = given.get("attn_mask")
        if mask is None or mask.requires_grad or given.get("is_causal"):
            return given
        node = self.recorder.node_of(unwrap(mask))
        length = given["query"].shape[-2]
        with _disable_current_modes(), below_functionalization():
            hides = settled(node, length, self._constants)
        if hides is None:
            return given
        return {**given, "attn_mask": None, "is_causal": hides == "later"}

    def _check_layout(self, node: Node, at: Loc) -> None:
        """Refuse to number the elements of a tensor whose layout differs from eager's.

        The functional form of an in-place operator may have other strides than the tensor that
        eager writes to. as_strided, and which random number an element gets, depend on them.
        """
        for arg in node.all_input_nodes:
            value, captured = self.env[arg], arg.meta.get(VAL)
            if not is_wrapped(value):
                continue
            like = captured if isinstance(captured, Tensor) else None
            if not same_strides(unwrap(value), like):
                raise Unsupported("W201", f"{node.target} of memory laid out anew", at=at)

    def _value(self, x: Any) -> Any:
        """An argument of a node with the values of the nodes in it."""
        if isinstance(x, Node):
            return self.env[x]
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*(self._value(item) for item in x))
        if isinstance(x, (tuple, list)):
            # a plain container: torch does not take the immutable lists of fx everywhere
            plain = list if isinstance(x, list) else tuple
            return plain(self._value(item) for item in x)
        if isinstance(x, dict):
            return {key: self._value(item) for key, item in x.items()}
        if isinstance(x, slice):
            return slice(self._value(x.start), self._value(x.stop), self._value(x.step))
        return x


def taken(recorder: Recorder, target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Gradients that the graph takes; their operators have the lines of what they come from."""
    recorder.backward, recorder.inner = True, True
    try:
        with torch.autograd.set_multithreading_enabled(False):
            return target(*args, **kwargs)
    finally:
        recorder.backward = recorder.inner = False


def _call_method(name: str, args: Any, kwargs: Any, at: Loc) -> Any:
    if name in _REFUSED_METHODS:
        raise Unsupported("W201", f"Tensor.{name} changes what the tensor is", at=at)
    method = _METHODS.get(name)
    if method is not None:
        return method(*args, **kwargs)
    return getattr(args[0], name)(*args[1:], **kwargs)


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
