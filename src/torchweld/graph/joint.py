"""joint: a captured graph with the backward that eager's autograd would run, as one graph.

Autograd is above functionalization: while the captured graph runs on functional tensors that
require grad, autograd records what it records in eager, and the operators that it then runs arrive
at the recorder as functional ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, GraphModule, Node

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.graph.autograd import takes_gradients
from torchweld.graph.decompose import decompositions
from torchweld.graph.decomps.gradients import WITH_GRADIENTS
from torchweld.graph.extract import ancestors
from torchweld.graph.functional import functionalized, unwrap, wrap
from torchweld.graph.interp import Interpreter
from torchweld.graph.outputs import check_inputs, check_overlap, collect
from torchweld.graph.partition import Traced, cut
from torchweld.graph.record import BACKWARD, Recorder
from torchweld.graph.returned import Plan, plan_outputs, views_from
from torchweld.graph.rewrites.run import RefusedError, rewrite_joint
from torchweld.graph.run import (
    captured_values,
    check_output_aliases,
    composed_for,
    fakes_of,
    leaf_of,
    mode_of,
)
from torchweld.graph.schema import view_chain
from torchweld.graph.symbols import numbers_in
from torchweld.graph.tidy import tidy
from torchweld.ir.graph import LOC, ORIGIN, VAL, Joint, Returned
from torchweld.ir.hooks import HOOKED, HOOKS, Pack

# who calls a backward has left the autocast of the forward
_NoAutocast: Any = torch._C._DisableAutocast


def joint(gm: GraphModule, cfg: Config) -> Joint:
    """The forward graph of `gm` and what its backward graphs are cut from.

    Shapes, Guards: as in `normalize`, whose errors this has too.
    Errors: Unsupported W201 for what autograd records otherwise than a graph can say.
    """
    try:
        return _joint(gm, cfg)
    except RefusedError as refused:
        return joint(gm, replace(cfg, skip=(*cfg.skip, refused.name)))


def _joint(gm: GraphModule, cfg: Config) -> Joint:
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    if any(isinstance(node.target, Pack) for node in gm.graph.nodes):
        raise Unsupported("W201", "hooks that see what autograd saves")
    numbers, captured = numbers_in(places), fakes_of(places)
    check_inputs(captured)
    fakes: list[Tensor] = [leaf_of(fake) for fake in captured]
    rules = decompositions(cfg)
    recorder = Recorder(mode_of(captured), {**rules, **WITH_GRADIENTS} if rules else rules)
    for i, (node, fake) in enumerate(zip(places, fakes, strict=True)):
        recorder.placeholder(node.name, numbers.get(i, fake))
    run = _Run(recorder, captured, fakes, numbers)
    with functionalized(recorder, grad=torch.is_grad_enabled()), composed_for(numbers, fakes):
        forward = run.forward(gm)
    tangents = run.make_tangents(forward)
    with (functionalized(recorder), composed_for(numbers, fakes),
          torch.autograd.set_multithreading_enabled(False), _NoAutocast()):  # fmt: skip
        gradients = run.backward(forward.results, tangents)
    traced = _traced(run, forward, gradients)
    tidy(traced.graph, traced.updates, cfg)
    rewrite_joint(traced.graph, cfg)
    return cut(traced, cfg)


@dataclass(frozen=True, slots=True)
class _Forward:
    """What the captured graph left. results: functional tensors. nodes: as `collect` gives them."""

    plan: Plan
    results: list[Tensor]
    collected: Any
    returned: tuple[Returned, ...]


class _Run:
    """The captured graph, and its backward, on functional tensors."""

    def __init__(self, recorder: Recorder, captured: Sequence[FakeTensor],
                 fakes: list[Tensor], numbers: Mapping[int, object]) -> None:  # fmt: skip
        self.recorder = recorder
        self.numbers = numbers
        self.captured = captured
        self.fakes = fakes
        self.wanted = tuple(i for i, x in enumerate(captured) if x.requires_grad)
        self.inputs: list[Tensor] = []
        self.tangents: list[Node | None] = []

    def forward(self, gm: GraphModule) -> _Forward:
        """Errors: Unsupported W201."""
        self.inputs = [wrap(fake) for fake in self.fakes]
        for i in self.wanted:
            self.inputs[i].requires_grad_(True)
        given = [self.numbers.get(i, x) for i, x in enumerate(self.inputs)]
        interpreter = Interpreter(self.recorder, given, grad=True, takes=takes_gradients(gm))
        outs = interpreter.run(gm)
        self.recorder.origin = "output"
        grad = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        expected = captured_values(gm, len(outs))
        check_output_aliases(gm, outs, expected, list(zip(self.inputs, self.captured, strict=True)))
        _check_requires_grad(outs, expected)
        if any(_is_new_leaf(x, self.inputs) for x in outs):
            raise Unsupported("W201", "a leaf that the graph makes leaves it")
        made = list(interpreter.env.values())
        plan = plan_outputs(outs, self.inputs, made, as_views=not grad)
        likes = [None if base else expected[i] for i, base in plan.bases]
        collected = collect(self.recorder, self.inputs, self.fakes, plan.results, likes, made)
        check_overlap(collected.mutated, self.captured)
        for i in collected.mutated:
            if self.inputs[i].grad_fn is not None or (
                    self.inputs[i].requires_grad != self.captured[i].requires_grad):  # fmt: skip
                raise Unsupported("W201", f"input {i} is changed and requires grad")
        returned = tuple(views_from(self.recorder, out, source, plan.results, self.inputs)
                         for out, source in zip(outs, plan.sources, strict=True))  # fmt: skip
        _check_hooks(gm, returned)
        return _Forward(plan, plan.results, collected, returned)

    def make_tangents(self, forward: _Forward) -> list[Tensor]:
        """A gradient for each result that has one."""
        made: list[Tensor] = []
        for i, (result, node) in enumerate(
                zip(forward.results, forward.collected.values, strict=True)):  # fmt: skip
            place = None
            if result.requires_grad:
                made.append(self.recorder.tangent(f"tangent_{i}", node.meta[VAL]))
                place = self.recorder.node_of(made[-1])
            self.tangents.append(place)
        return made

    def backward(self, results: Sequence[Tensor], tangents: Sequence[Tensor]) -> Any:
        """The gradients of the inputs that require grad.

        Errors: Unsupported W201 with what autograd says; eager says it at the backward.
        """
        ends = [r for r in results if r.requires_grad]
        if not ends:  # only views of inputs do
            return [None] * len(self.wanted)
        self.recorder.backward = True
        try:
            return torch.autograd.grad(ends, [self.inputs[i] for i in self.wanted],
                                       [wrap(t) for t in tangents], allow_unused=True)  # fmt: skip
        except Unsupported:
            raise
        except Exception as error:
            why = f"backward: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise Unsupported("W201", why) from error


def _is_new_leaf(x: Any, inputs: Sequence[Tensor]) -> bool:
    """Whether gradients are to be kept in a tensor that was made in the graph."""
    return isinstance(x, Tensor) and x.requires_grad and x.is_leaf and (
        not any(x is y for y in inputs))  # fmt: skip


def _check_requires_grad(outs: Sequence[Any], expected: Sequence[object]) -> None:
    """Errors: Unsupported W201 where autograd sees another program than it saw at the capture."""
    for out, like in zip(outs, expected, strict=True):
        if isinstance(out, Tensor) and isinstance(like, Tensor) and (
                out.requires_grad != like.requires_grad):  # fmt: skip
            raise Unsupported("W201", "an output that requires grad otherwise than in eager")


def _check_hooks(gm: GraphModule, returned: Sequence[Returned]) -> None:
    """Refuse views that are made outside of the graph and have hooks inside.

    Errors: Unsupported W201.
    """
    (ends,) = gm.graph.output_node().args
    items: Any = ends if isinstance(ends, (tuple, list)) else [ends]
    for node, how in zip(items, returned, strict=False):
        hooked = isinstance(node, Node) and (
            any(isinstance(u.target, HOOKS) for u in (node, *node.args, *node.users)
                if isinstance(u, Node)))  # fmt: skip
        if hooked and (how.of_input or how.views):
            raise Unsupported("W201", "a hook of a view that the graph returns")


def _check_fired(graph: Graph, gradients: Sequence[Node]) -> None:
    """Refuse hooks that nothing but their effects asks for. Errors: Unsupported W201."""
    fired = graph.find_nodes(op="call_function", target=HOOKED)
    if fired and not ancestors(gradients).issuperset(fired):
        raise Unsupported("W201", "a hook of a gradient that no input asks for")


def _traced(run: _Run, forward: _Forward, gradients: Sequence[Tensor | None]) -> Traced:
    """The recorded graph with its output node, and what must be known of it before it is tidied."""
    recorder, collected = run.recorder, forward.collected
    graph = recorder.graph
    recorder.origin = "output"
    found = list(zip(run.wanted, gradients, strict=True))
    grads = tuple(recorder.node_of(unwrap(g)) for _, g in found if g is not None)
    kept = _kept(graph)
    places = graph.find_nodes(op="placeholder")[: len(run.inputs)]
    _check_fired(graph, grads)
    changed = [places[i] for i in collected.mutated]
    _check_kept(graph, changed)
    reread = _reread(graph, changed, (*collected.values, *grads))
    output = graph.output((collected.updates, collected.values, grads))
    output.meta.update({VAL: (), ORIGIN: "output", LOC: None})
    return Traced(
        graph=graph,
        collected=collected,
        tangents=tuple(run.tangents),
        wanted=tuple(i for i, g in found if g is not None),
        unreached=tuple(i for i, g in found if g is None),
        kept_inputs=tuple(i for i, p in enumerate(places) if p in kept),
        kept_results=tuple(k for k, v in enumerate(collected.values)
                           if view_chain(v)[-1] in kept),
        owners=tuple(view_chain(g)[-1].name for g in grads),
        returned=forward.returned,
        bases=forward.plan.bases,
        reread=tuple(i for i in collected.mutated if places[i] in reread),
    )  # fmt: skip


def _kept(graph: Graph) -> set[Node]:
    """The owners of the memory that autograd kept: what its operators read of the forward."""
    found: set[Node] = set()
    for node in graph.nodes:
        if node.meta.get(BACKWARD):
            found.update(view_chain(a)[-1] for a in node.all_input_nodes
                         if not a.meta.get(BACKWARD))  # fmt: skip
    return found


aten = torch.ops.aten
# the positions of running statistics, which decide nothing but their own new values if the flag
# behind them is set; the first of the results that are these new values
_STATISTICS: dict[Any, tuple[int, ...]] = {
    aten._native_batch_norm_legit_functional.default: (3, 4),
    aten._batch_norm_with_update_functional.default: (3, 4),
}


# of a backward
_STATISTICS_READ: dict[Any, tuple[int, ...]] = {
    aten.native_batch_norm_backward.default: (3, 4),
    aten.batch_norm_backward.default: (3, 4),
    aten.cudnn_batch_norm_backward.default: (3, 4),
}


def _check_kept(graph: Graph, changed: Sequence[Node]) -> None:
    """Refuse what autograd keeps of an input that is changed later: eager says so at the backward.

    Errors: Unsupported W201.
    """
    for node in graph.nodes if changed else ():
        if not node.meta.get(BACKWARD):
            continue
        unread = _STATISTICS_READ.get(node.target, ())
        read = [a for i, a in enumerate(node.args) if isinstance(a, Node) and i not in unread]
        if any(not a.meta.get(BACKWARD) and view_chain(a)[-1] in changed for a in read):
            raise Unsupported("W201", "an input is changed that autograd keeps as it was")


def _reread(graph: Graph, changed: Sequence[Node], ends: Sequence[Node | None]) -> set[Node]:
    """The changed inputs whose old values results or gradients depend on: to run the graph again
    for a second derivative they are needed."""
    found: set[Node] = set()
    for place in changed:
        reached: set[Node] = {place}
        for node in graph.nodes:
            read = any(a in reached for a in node.all_input_nodes)
            if read and not (node.target in _STATISTICS and _only_statistics(node, reached)):
                reached.add(node)
        if any(end in reached for end in ends):
            found.add(place)
    return found


def _only_statistics(node: Node, reached: set[Node]) -> bool:
    """Whether the reached arguments of batch norm in training are its running statistics."""
    places = _STATISTICS[node.target]
    flag = node.args[5] if node.target is not (
        aten._batch_norm_with_update_functional.default) else True  # fmt: skip
    return bool(flag) and not any(a in reached for i, a in enumerate(node.args)
                                  if i not in places and isinstance(a, Node))  # fmt: skip
