"""lower: functional ATen FX graph -> LoopGraph."""

from __future__ import annotations

import operator

import torch
from torch._ops import OpOverload
from torch.fx import Node

from torchweld.base.config import current
from torchweld.base.errors import InternalError, LoweringError, Refusal
from torchweld.base.events import emit
from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.dtype import DType
from torchweld.ir.graph import LOC, ORIGIN, VAL, GraphPair
from torchweld.ir.loop import Buffer, LoopGraph, View
from torchweld.lower import tables
from torchweld.lower.builder import Builder
from torchweld.lower.dtypes import check_float8
from torchweld.lower.elementwise import lower_pointwise
from torchweld.lower.fallback import Env, Lowered, lower_extern
from torchweld.lower.finish import finish
from torchweld.lower.overwrite import overwriting, returned
from torchweld.lower.random_draws import draw_in_nests
from torchweld.lower.registry import Rule, accepted, arguments_for, bind, parameters
from torchweld.lower.sized_float import sized_float
from torchweld.lower.sizes import SYMBOLIC, is_symbolic, readings, size
from torchweld.lower.tensor import Spec, Tensor, spec_of, whole
from torchweld.lower.value import Number, Val


def lower(pair: GraphPair) -> LoopGraph:
    """The program of `pair.forward` as loop nests and ATen calls, in the graph's order.

    Errors: LoweringError when a node can be expressed neither as a nest nor as an Extern; the
    caller then runs the ATen graph.
    """
    b = Builder()
    env: Env = {}
    inputs: list[Buffer] = []
    outputs: tuple[View | None, ...] | None = None
    over = overwriting(pair)
    given = returned(pair, over)
    for node in pair.forward.nodes:
        b.begin(node.name, (str(node.meta.get(ORIGIN) or node.name),), ())
        if node.op == "placeholder":
            inputs.append(_input(b, node))
            env[node] = whole(inputs[-1])
        elif node.op == "output":
            outputs = finish(b, pair, node, env, inputs)
        elif node.op == "call_function":
            env[node] = _call(b, node, env, node in over, node in given)
        else:
            raise LoweringError("W201", f"{node.op} node {node.name}", at=_loc(node))
    if outputs is None:
        raise LoweringError("W201", "graph without an output node")
    g = LoopGraph(tuple(inputs), tuple(b.nodes), outputs, *readings(pair))
    return draw_in_nests(g) if current().gpu_random else g


def _input(b: Builder, node: Node) -> Buffer:
    val = node.meta.get(VAL)
    if isinstance(val, torch.SymInt | int):  # a Python number, which is passed as a tensor
        return b.buffer(Spec((), (), DType.I64, "cpu"), "", "input")
    if not isinstance(val, torch.Tensor):
        raise LoweringError("W201", f"input {node.name} is not a tensor", at=_loc(node))
    return b.buffer(spec_of(val), "", "input", size(val.storage_offset()))


def _call(b: Builder, node: Node, env: Env, overwrites: bool, given: bool) -> Lowered:
    """The value of a call: by its rule, else by ATen."""
    if node.target is operator.getitem:
        source, k = node.args
        assert isinstance(source, Node) and isinstance(k, int)
        return env[source][k]  # type: ignore[index, return-value]
    op = node.target
    if not isinstance(op, OpOverload):
        raise LoweringError("W201", f"call of {op}", at=_loc(node))
    rule, copies = tables.rule_for(str(op))
    mark = len(b.nodes)
    refusal = Refusal("W202", "no lowering", _loc(node))
    if rule is not None:
        try:
            _one_device(node)
            if rule.kind != "view":
                check_float8(str(op), node)
            b.begin(node.name, b.origins, _specs(node))
            b.used, b.overwrites, b.returned = _used(node), overwrites, given
            return _apply(b, rule, copies, node, env)
        except LoweringError as error:
            del b.nodes[mark:]
            refusal = Refusal(error.code, error.why, _loc(node))
        except TypeError as error:  # a rule that has to know a number
            if not (is_symbolic(node) or _takes_run_time_number(op, node)):
                raise
            del b.nodes[mark:]
            refusal = Refusal("W204", f"{error}", _loc(node))
    emit("loop", "extern", f"{op} runs in ATen: {refusal.why}", op=str(op), node=node.name,
         code=refusal.code, why=refusal.why)  # fmt: skip
    try:
        return lower_extern(b, node, env)
    except LoweringError as error:
        raise LoweringError(error.code, f"{op}: {error.why}", at=_loc(node)) from None


def _takes_run_time_number(op: OpOverload, node: Node) -> bool:
    """Whether a number is among the arguments that is known when the graph runs."""
    given = bind(op, node.args, dict(node.kwargs))
    return any(p.number and isinstance(given[p.name], Node) for p in parameters(op))


def _one_device(node: Node) -> None:
    """A kernel reads the memory of its own device; a number of the CPU comes by value.

    Errors: LoweringError W202 where ATen has to move something.
    """
    for device in {v.device for v in _tensors(node)}:
        for n in node.all_input_nodes:
            x = n.meta.get(VAL)
            if isinstance(x, torch.Tensor) and x.device != device and (
                x.device.type != "cpu" or x.dim() > 0
            ):
                raise LoweringError("W202", f"an operand is on {x.device}, not on {device}")


def _tensors(node: Node) -> list[torch.Tensor]:
    val = node.meta.get(VAL)
    vals = val if isinstance(val, tuple | list) else (val,)
    return [v for v in vals if isinstance(v, torch.Tensor)]


def _specs(node: Node) -> tuple[Spec, ...]:
    return tuple(spec_of(v) for v in _tensors(node))


def _used(node: Node) -> frozenset[int]:
    """The numbers of the results that other nodes read."""
    return frozenset(u.args[1] if u.target is operator.getitem else 0  # type: ignore[misc]
                     for u in node.users)  # fmt: skip


def _apply(b: Builder, rule: Rule, copies: bool, node: Node, env: Env) -> Lowered:
    op = node.target
    assert isinstance(op, OpOverload)
    floats = rule.kind != "view"
    args = tuple(_lowered(a, env, floats) for a in node.args)
    kwargs = {k: _lowered(a, env, floats) for k, a in node.kwargs.items()}
    bound = _numbers_loaded(op, bind(op, args, kwargs))
    if rule.kind == "pointwise":
        vals = bind(op, _fakes(node.args), {k: _fakes((v,))[0] for k, v in node.kwargs.items()})
        vals.update((k, 1.0) for k, x in bound.items() if isinstance(x, Val))
        return lower_pointwise(b, rule, op, bound, vals)
    given = arguments_for(rule.function, op, bound)
    if rule.kind != "view":
        return _agrees(rule.function(b, **given), b, op)
    if "like" in accepted(rule.function):
        given["like"] = b.specs
    found = _agrees(rule.function(**given), b, op)
    if not copies:
        return found
    parts = (found,) if isinstance(found, Tensor) else found
    own = tuple(b.emit(t.load, s) for t, s in zip(parts, b.specs, strict=True)
                if isinstance(t, Tensor))  # fmt: skip
    return own[0] if isinstance(found, Tensor) else own


def _numbers_loaded(op: OpOverload, bound: dict[str, object]) -> dict[str, object]:
    """Arguments with the value of the tensor in the place of a number."""
    found = {p.name: x for p in parameters(op)
             if p.number and isinstance(x := bound[p.name], Tensor)}  # fmt: skip
    return {**bound, **{k: Number(x.load(()).to(DType.F64).s) for k, x in found.items()}}


def _agrees(found: Lowered, b: Builder, op: OpOverload) -> Lowered:
    """`found`, after checking its shapes and dtypes against the metadata."""
    parts = found if isinstance(found, tuple) else (found,)
    tensors = [t for t in parts if t is not None]  # results that are not asked for are None
    for t, spec in zip(tensors, b.specs, strict=False):
        if isinstance(t, Tensor) and (t.shape, t.dtype) != (spec.shape, spec.dtype):
            if not all(n.is_const for n in (*t.shape, *spec.shape)):
                raise LoweringError("W204", f"{list(t.shape)} is not seen to be {list(spec.shape)}")
            raise InternalError(f"{op} was lowered to {t.dtype}{list(t.shape)}, "
                                f"not {spec.dtype}{list(spec.shape)}")  # fmt: skip
    return found


def _lowered(a: object, env: Env, floats: bool) -> object:
    """An argument as a rule takes it. floats: those that depend on sizes are values."""
    if isinstance(a, Node):
        return env[a]
    if isinstance(a, tuple | list):
        return [_lowered(x, env, floats) for x in a]
    if floats and isinstance(a, torch.SymFloat):
        return sized_float(a)
    return size(a) if isinstance(a, SYMBOLIC) else a


_PROMOTES_LIKE: dict[type, object] = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}


def _fakes(args: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(a.meta.get(VAL) if isinstance(a, Node) else _PROMOTES_LIKE.get(type(a), a)
                 for a in args)  # fmt: skip


def _loc(node: Node) -> Loc:
    found = node.meta.get(LOC)
    return found if isinstance(found, Loc) else NOWHERE
