"""Recorder: writes each functional ATen operator that runs on fake tensors to an FX graph."""

from __future__ import annotations

import functools
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.utils._python_dispatch import TorchDispatchMode

from torchweld.base.errors import Unsupported
from torchweld.base.loc import NOWHERE, Loc
from torchweld.graph.constants import read_constant, write_constant
from torchweld.graph.functional import unwrap
from torchweld.graph.numbers import tensor_of
from torchweld.graph.schema import (
    changes_arguments,
    draws,
    is_composite,
    is_effect_free_query,
    view_chain,
)
from torchweld.ir.graph import AGAIN, KEEP, LOC, ORIGIN, VAL, call_node
from torchweld.ir.nested import tensors_in
from torchweld.ir.predicted import below_functionalization, real_strides
from torchweld.ir.run_time_float import run_time_node
from torchweld.ir.size_node import SizeNode, node_of, plain

aten = torch.ops.aten

# the number that the next operator gets from autograd
_next_number: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr")  # noqa: B009

BACKWARD = "backward"  # node.meta[BACKWARD]: the node was recorded while autograd ran
INNER = "inner_backward"  # node.meta[INNER]: the same of a backward that the captured graph holds

Decomposition = Callable[..., Any]


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs functional operators on fake tensors and keeps each as a node.

    decompositions: what to run instead of an operator; NotImplemented means: keep the operator.
    origin, loc: of the captured node that runs now; every new node gets them.
    backward: set when autograd runs: new nodes are marked, and get the origin and line of what they
        are the backward of. inner: it is a backward that the captured graph holds.
    layout_matters: set when an operator is recorded whose result depends on the strides.
    narrows: set when a cast is recorded that type promotion does not allow (float to int).
    """

    def __init__(
        self, fake_mode: FakeTensorMode, decompositions: Mapping[OpOverload, Decomposition]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.origin = ""
        self.loc: Loc = NOWHERE
        self.again = False
        self.keeps: Callable[..., bool | None] | None = None
        self.backward = False
        self.inner = False
        self._begun: list[tuple[int, str, Loc]] = []
        self.layout_matters = False
        self.narrows = False
        self._decomposing = 0
        self._fake_mode = fake_mode
        self._decompositions = decompositions
        self._nodes: dict[int, Node | tuple[Node, int]] = {}
        self._alive: list[Tensor] = []  # keys of _nodes are ids, so the tensors must not die

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: the default would import torch._dynamo to wrap `__torch_dispatch__`."""
        return False

    def placeholder(self, name: str, value: Any) -> Node:
        """An input of the graph, whose value is `value`: a fake tensor, or a number."""
        node = self.graph.placeholder(name)
        node.meta[VAL] = value
        if isinstance(value, Tensor):
            self._remember(value, node)
        return node

    def begin(self, origin: str, loc: Loc, keeps: Callable[..., bool | None] | None
              = None) -> None:  # fmt: skip
        """What is recorded from now on comes from this captured node. keeps: of one that is
        checkpointed: whether the result of an operator is kept; None: it is computed again."""
        self.origin, self.loc, self.again, self.keeps = origin, loc, keeps is not None, keeps
        if torch.is_grad_enabled():
            self._begun.append((_next_number(), origin, loc))

    def keep(self, value: Tensor) -> None:
        """A tensor that is not computed again, although what it is computed from is."""
        for node in view_chain(self.node_of(value)):
            node.meta[AGAIN] = False

    def _begin_backward_node(self) -> None:
        """Take over origin and line of what autograd runs the backward of."""
        running: Any = torch._C._current_autograd_node()
        if running is not None:
            number = running._sequence_nr()
            at = bisect_right(self._begun, number, key=lambda row: row[0])
            if at:
                _, self.origin, self.loc = self._begun[at - 1]

    def tangent(self, name: str, value: Tensor) -> FakeTensor:
        """A placeholder for a gradient of `value`, which is laid out as it, without gaps.

        Outside of `functionalized`: it is no operator of the graph.
        """
        with self._fake_mode, torch.no_grad():
            fake = torch.empty_like(value, memory_format=torch.preserve_format)
        assert isinstance(fake, FakeTensor)
        self.placeholder(name, fake)
        return fake

    def node_of(self, value: Tensor) -> Node:
        """The node that produced `value`.

        Errors: Unsupported W201 for a tensor that is neither an input nor made in the graph.
        """
        found = self._nodes.get(id(value))
        if found is None:
            raise Unsupported("W201", "a tensor that is not an input is used", at=self.loc)
        if isinstance(found, Node):
            return found
        node = self._node(operator.getitem, found, {}, value)
        self._nodes[id(value)] = node
        return node

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # by far the most frequent question
        kwargs = kwargs or {}
        if is_effect_free_query(func):
            return self._fake_mode.dispatch(func, types, args, kwargs)
        if not isinstance(func, OpOverload):
            raise Unsupported("W201", f"higher-order operator {func}", at=self.loc)
        if func in _LIFTS and not isinstance(args[0], FakeTensor):
            return self._constant(args[0])
        if func is _TO_COPY and not isinstance(args[0], Tensor):  # a number inside of vmap
            return self._number(args[0], kwargs)
        kwargs = self._with_scalars(kwargs, args)
        args = self._with_scalars(args, args)
        if self.keeps is None or self._decomposing or self.backward:
            return self._whole(func, types, args, kwargs)
        out = self._whole(func, types, args, kwargs)
        if self.keeps(func, args, kwargs, out):
            for x in tensors_in(out):
                self.keep(x)
                self.node_of(x).meta[KEEP] = True
        return out

    def _whole(self, func: Any, types: Sequence[type], args: Any, kwargs: Any) -> Any:
        """The result of an operator, by what it is made of where that is wanted."""
        decomposed = self._decompose(func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        if changes_arguments(func, args, kwargs):
            raise Unsupported("W201", f"{func} changes its arguments in place", at=self.loc)
        return self._record(func, types, args, kwargs)

    def _constant(self, value: Tensor) -> Any:
        with below_functionalization():
            numbers = read_constant(value, self.loc)
            with self:
                return write_constant(value, numbers, self.loc)

    def _number(self, x: Any, kwargs: dict[str, Any]) -> Any:
        """A tensor without dimensions."""
        dtype = kwargs.get("dtype") or torch.tensor(x).dtype
        with self, below_functionalization():
            return aten.full.default([], x, dtype=dtype, device=kwargs.get("device"))
    def _of_sizes(self, number: Any, like: Tensor) -> Any:
        """A number that is made of sizes as the tensor that it is promoted to."""
        with below_functionalization(), self:
            return aten.scalar_tensor.default(number, dtype=like.dtype, device=like.device)

    def _with_scalars(self, x: Any, among: Sequence[Any]) -> Any:
        """`x` with constants for real 0-d tensors: what torch makes of a number, as in x[0] = 1."""
        if isinstance(x, Tensor):
            real_scalar = not isinstance(x, FakeTensor) and x.dim() == 0
            number = getattr(x, "_wrapped_number", None)
            held = run_time_node(number)
            if held is not None:
                return self._beside(self._run_time(held), among)
            if node_of(number) is not None:
                return self._of_sizes(number, x)
            return self._constant(x) if real_scalar else x
        if isinstance(x, (tuple, list)):
            return type(x)([self._with_scalars(item, among) for item in x])
        if isinstance(x, dict):
            return {key: self._with_scalars(item, among) for key, item in x.items()}
        return x

    def _decompose(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = self._decompositions.get(func)
        if rule is None:
            if not is_composite(func):
                return NotImplemented
            rule = func.decompose
        self._decomposing += 1
        try:
            with self, below_functionalization():
                return rule(*args, **kwargs)
        except Unsupported as error:
            if error.code != "W208" or is_composite(func):
                raise
            return NotImplemented  # the operator itself need not know the number
        finally:
            self._decomposing -= 1

    def _record(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        self._note_layout(func, args)
        if func is _TO_COPY and not self._decomposing:
            wanted = kwargs.get("dtype") or args[0].dtype
            self.narrows = self.narrows or not torch.can_cast(args[0].dtype, wanted)
        node_args = self._operand(args)
        node_kwargs = self._operand(kwargs)
        out = self._fake_mode.dispatch(func, types, args, kwargs)
        if real_strides(func, args, kwargs, out) is not None:  # of a mode that is not ours
            raise Unsupported("W201", f"{func} has other strides than predicted", at=self.loc)
        if isinstance(out, Tensor):
            if out.layout != torch.strided:
                raise Unsupported("W112", f"{func} makes a tensor of {out.layout}", at=self.loc)
            if id(out) not in self._nodes:
                node = self._node(func, node_args, node_kwargs, out)
                self._remember(out, node)
            return out
        if out is None:
            self._node(func, node_args, node_kwargs, None)
            return None
        if not isinstance(out, (tuple, list)):
            raise Unsupported("W201", f"{func} returns a {type(out).__name__}", at=self.loc)
        node = self._node(func, node_args, node_kwargs, tuple(out))
        for i, part in enumerate(out):
            if isinstance(part, Tensor):
                self._remember(part, (node, i))
        return out

    def _note_layout(self, func: OpOverload, args: tuple[Any, ...]) -> None:
        """Refuse what reads or writes memory of unknown layout; else leave it to be checked.

        as_strided counts in the whole storage, of which an input may be any part; and when a
        write to its result is scattered back, the base may be laid out anew.
        """
        if func is _AS_STRIDED_SCATTER:
            raise Unsupported("W201", "a write through as_strided", at=self.loc)
        if func is torch.ops.aten.as_strided_copy.default:
            # the tensor may have been written: its functional value is laid out anew
            raise Unsupported("W201", "as_strided_copy", at=self.loc)
        if func is _AS_STRIDED:
            root = view_chain(self.node_of(args[0]))[-1]
            if root.op == "placeholder":
                raise Unsupported("W201", "as_strided of an input", at=self.loc)
            self.layout_matters = True
        elif draws(func):
            self.layout_matters = True

    def _node(self, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
        if self.backward:
            self._begin_backward_node()
        node = call_node(self.graph, target, args, kwargs)
        if self.backward:
            node.meta[INNER if self.inner else BACKWARD] = True
        elif self.again:
            node.meta[AGAIN] = True
        node.meta[VAL] = value
        node.meta[ORIGIN] = self.origin
        node.meta[LOC] = self.loc
        return node

    def _remember(self, value: Tensor, place: Node | tuple[Node, int]) -> None:
        self._nodes[id(value)] = place
        self._alive.append(value)

    def _operand(self, x: Any) -> Any:
        """`x` with nodes in the place of tensors."""
        if isinstance(x, Tensor):
            return self.node_of(x)
        if isinstance(x, (tuple, list)):
            return type(x)([self._operand(item) for item in x])
        if isinstance(x, dict):
            return {key: self._operand(item) for key, item in x.items()}
        number = run_time_node(x)
        return plain(x) if number is None else self.node_of(self._run_time(number))

    def _beside(self, number: Tensor, among: Sequence[Any]) -> Tensor:
        """A number with a say in the dtype of a result that is no greater than a float's."""
        dtypes = [x.dtype for x in among if isinstance(x, FakeTensor)]
        dims = any(x.dim() for x in among if isinstance(x, FakeTensor))
        if not dtypes or (dims and all(d.is_floating_point for d in dtypes)):
            return number
        floats = [d for d in dtypes if d.is_floating_point]
        dtype = functools.reduce(torch.promote_types, floats or [torch.get_default_dtype()])
        with below_functionalization(), self:
            made: Tensor = aten._to_copy.default(number, dtype=dtype)
            return made

    def _run_time(self, number: SizeNode) -> Any:
        """The tensor without dimensions, in f64, that holds a number which the graph gets."""
        with below_functionalization(), self:
            return tensor_of(number, unwrap)


_DEVICE = torch.ops.prim.device.default
_TO_COPY = aten._to_copy.default
_AS_STRIDED = aten.as_strided.default
_AS_STRIDED_SCATTER = aten.as_strided_scatter.default
_LIFTS = frozenset((aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default))
