"""normalize: a captured torch-level graph as a functional, decomposed ATen graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from torchweld.base.config import Config
from torchweld.base.errors import Unsupported
from torchweld.graph.again import compute_again
from torchweld.graph.autograd import takes_gradients
from torchweld.graph.decompose import decompositions
from torchweld.graph.fidelity import Pair, check_aliases, pairs
from torchweld.graph.functional import functionalized, wrap
from torchweld.graph.interp import Interpreter
from torchweld.graph.outputs import Results, check_inputs, check_overlap, collect
from torchweld.graph.record import Recorder
from torchweld.graph.rewrites.run import RefusedError, rewrite
from torchweld.graph.separate import separate
from torchweld.graph.symbols import numbers_in, sizes_of
from torchweld.graph.tidy import drop_dead, tidy
from torchweld.graph.verify import verify
from torchweld.ir.fake import FakeMode, composed, decomposing
from torchweld.ir.graph import LOC, ORIGIN, VAL, GraphPair
from torchweld.ir.nested import memory_of
from torchweld.ir.size_node import fresh


def normalize(gm: GraphModule, cfg: Config) -> GraphPair:
    """The functional ATen graph of `gm`, whose placeholders carry FakeTensors of one mode.

    Shapes: those of the placeholders' fakes; the result holds for inputs of the same metadata, the
        same ambient autocast state and default dtype.
    Guards: if `mutated` is not empty, the result holds only while no mutated input shares memory
        with another input; that is checked for the fakes here, and is the caller's to guard.
    Errors: Unsupported (W102, W104, W105, W112, W201): then `gm` has to run as it is.
    """
    try:
        return _normalize(gm, cfg)
    except RefusedError as refused:
        return normalize(gm, replace(cfg, skip=(*cfg.skip, refused.name)))


def _normalize(gm: GraphModule, cfg: Config) -> GraphPair:
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    numbers, captured = numbers_in(places), fakes_of(places)
    check_inputs(captured)
    records = takes_gradients(gm)
    fakes = [leaf_of(f) if f.requires_grad else changeable(f) for f in captured]
    recorder = Recorder(mode_of(captured), decompositions(cfg))
    for i, (node, fake) in enumerate(zip(places, fakes, strict=True)):
        recorder.placeholder(node.name, numbers.get(i, fake))
    grad = records and torch.is_grad_enabled()
    with functionalized(recorder, grad), composed_for(numbers, fakes):
        inputs = [wrap(fake) for fake in fakes]
        for x, fake in zip(inputs, captured, strict=True):
            if records and fake.requires_grad:
                x.requires_grad_()
        given = [numbers.get(i, x) for i, x in enumerate(inputs)]
        interpreter = Interpreter(recorder, given, records, records)
        outs = interpreter.run(gm)
        torch._C._set_grad_enabled(False)
        recorder.origin = "output"
        expected = captured_values(gm, len(outs))
        check_output_aliases(gm, outs, expected, list(zip(inputs, captured, strict=True)))
        results = collect(recorder, inputs, fakes, outs, expected, interpreter.env.values())
    check_overlap(results.mutated, captured)
    pair = _pair(recorder.graph, results)
    tidy(pair.forward, results.updates, cfg)
    separate(pair.forward, results)
    drop_dead(pair.forward, frozenset())
    pair = rewrite(pair, cfg)
    if records:
        compute_again(pair.forward)
    if cfg.verify:
        verify(pair)
    return pair


def fakes_of(places: Sequence[Node]) -> list[FakeTensor]:
    """The fakes of the inputs; what stands for a symbolic number is never looked at.

    Errors: Unsupported W112.
    """
    numbers = numbers_in(places)
    mode = mode_of([n.meta.get(VAL) for n in places])
    if numbers:
        mode.cache_enabled = False  # torch's memo asks symbols for what ours lack
    return [_nothing(mode) if i in numbers else fake_of(n) for i, n in enumerate(places)]


def composed_for(numbers: Mapping[int, object], fakes: Sequence[Tensor]) -> Any:
    """Context in which a graph with these inputs is run: see `decomposing`."""
    return decomposing() if numbers else composed(fakes)


def fake_of(node: Node) -> FakeTensor:
    value = node.meta.get(VAL)
    if not isinstance(value, FakeTensor):
        raise Unsupported("W112", f"input {node.name} is a {type(value).__name__}")
    return value


def changeable(fake: FakeTensor) -> FakeTensor:
    """A fake that may be changed outside of inference mode, where graphs are made functional.

    Sizes that are symbols are as all that is known by now lets them be.
    """
    if fake._has_symbolic_sizes_strides:
        kind: dict[str, Any] = {"dtype": fake.dtype, "device": fake.device}
        sizes, strides = (tuple(map(fresh, n)) for n in (fake.size(), fake.stride()))
        with torch.inference_mode(False), torch.no_grad(), fake.fake_mode:
            twin = torch.empty_strided(sizes, strides, **kind)
        assert isinstance(twin, FakeTensor)
        return twin
    if not fake.is_inference():
        return fake
    n = fake.untyped_storage().nbytes() // fake.element_size()
    with torch.inference_mode(False), torch.no_grad(), fake.fake_mode:
        memory = torch.empty(n, dtype=fake.dtype, device=fake.device)
        twin = memory.as_strided(fake.size(), fake.stride(), fake.storage_offset())
    assert isinstance(twin, FakeTensor)
    return twin


def leaf_of(fake: FakeTensor) -> FakeTensor:
    """The same tensor without a history.

    Inside of the mode: outside of one, torch looks for distributed tensors, which import sympy.
    """
    plain = changeable(fake)
    with torch.no_grad(), plain.fake_mode:
        made = plain.detach()
    assert isinstance(made, FakeTensor)
    return made


def mode_of(values: Sequence[object]) -> FakeTensorMode:
    """The mode of the first fake tensor."""
    return next((f.fake_mode for f in values if isinstance(f, FakeTensor)), None) or FakeMode()


def _nothing(mode: FakeTensorMode) -> FakeTensor:
    """What stands in the place of a number among tensors."""
    with torch.inference_mode(False), mode:
        made = torch.empty(0)
    assert isinstance(made, FakeTensor)
    return made


def captured_values(gm: GraphModule, n: int) -> list[object]:
    """The captured meta value of each output, None where capture left none."""
    (returned,) = gm.graph.output_node().args
    items = returned if isinstance(returned, (tuple, list)) else [returned]
    values = [item.meta.get(VAL) if isinstance(item, Node) else None for item in items]
    return values if len(values) == n else [None] * n


def check_output_aliases(
    gm: GraphModule, outs: Sequence[Any], expected: Sequence[Any], inputs: list[Pair]
) -> None:
    """Refuse outputs that share memory otherwise than the captured ones."""
    memories = {memory_of(fake) for _, fake in inputs}
    if len(memories) == len(inputs):  # inputs that overlap are apart in a functional graph
        results = list(pairs(list(outs), list(expected)))
        check_aliases(gm.graph.output_node(), results, [*inputs, *results])


def _pair(graph: Graph, results: Results) -> GraphPair:
    outputs = (*results.updates, *results.values)
    node = graph.output(outputs)
    node.meta[VAL] = tuple(out.meta[VAL] for out in outputs)
    node.meta.setdefault(ORIGIN, "output")
    node.meta.setdefault(LOC, None)
    return GraphPair(graph, results.mutated, results.aliases, sizes=sizes_of(graph))
