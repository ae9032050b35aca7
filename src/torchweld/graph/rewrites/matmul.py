"""Linear layers whose activation the matrix product's library computes on its way out.

On one H200 (torch 2.11, bf16, 1024x512x512, median of graph replays, 2026-11-30): linear 4.2 us,
linear and relu 5.6, with the activation as an epilogue 4.2; the results were equal bit by bit, NaN
included, in bf16, f16 and f32. The tanh form of gelu skips one rounding.

In half precision that form is also recognised written out with tanh. There every step of
0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) rounds: the epilogue's result differs
from eager's, and is nearer to f64. For 65536 normal sums its mean distance is 0.50 of eager's and
the largest 0.72 in bf16, 0.50 and 0.56 in f16 (CPU, torch 2.13).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torchweld.graph.rewrites.node import (
    RESHAPES,
    arg,
    behind_views,
    new_node,
    only_user,
    run_fake,
    tensor,
)
from torchweld.ir.graph import ORIGIN, VAL
from torchweld.ir.size_node import is_number

aten = torch.ops.aten

PRODUCTS = (aten.addmm.default, aten.mm.default)
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_HALVES = (torch.bfloat16, torch.float16)

_STEPS = frozenset((
    aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar, aten.add.Tensor,
    aten.add.Scalar, aten.pow.Tensor_Scalar, aten.tanh.default,
))  # fmt: skip
_LONGEST = 16  # steps
_TOLERANCE = 1e-7  # of constants that were written with 8 digits


def fuse_activations(graph: Graph) -> None:
    """addmm or mm, then relu or gelu(tanh) of nothing but its result: one `_addmm_activation`."""
    zeros: dict[object, Node] = {}
    for node in [n for n in graph.nodes if n.target in PRODUCTS]:
        user = behind_views(node)
        if user is None or not _takes_epilogue(node) or not _is_activation(user):
            continue
        if node.target is aten.mm.default:
            node.args = (_no_bias(graph, node, zeros), *node.args)
        node.target = aten._addmm_activation.default
        node.kwargs = {**node.kwargs, "use_gelu": user.target is aten.gelu.default}
        node.meta[VAL] = run_fake(node, node.target, node.args, node.kwargs)
        node.meta[ORIGIN] = user.meta.get(ORIGIN, node.meta.get(ORIGIN, ""))
        source = user.args[0]
        assert isinstance(source, Node)
        user.replace_all_uses_with(source)
        graph.erase_node(user)


def _no_bias(graph: Graph, node: Node, zeros: dict[object, Node]) -> Node:
    """A bias of zeros, one of each kind: it is computed once per process, not per call."""
    out = tensor(node)
    kind = (out.shape[1], out.dtype, out.device)
    if kind not in zeros:
        with graph.inserting_before(next(n for n in graph.nodes if n.op != "placeholder")):
            options = {"dtype": out.dtype, "device": out.device}
            zeros[kind] = new_node(graph, aten.zeros.default, ([out.shape[1]],), options, like=node)
    return zeros[kind]


def _takes_epilogue(node: Node) -> bool:
    """Whether the library adds the bias and the activation: one bias per column, nothing scaled."""
    out = tensor(node)
    if is_number(out.shape[1]):
        return False  # zeros of a size that varies are made in every call
    if node.target is aten.addmm.default:
        bias = node.args[0]
        assert isinstance(bias, Node)
        scale = (arg(node, 3, "beta", 1), arg(node, 4, "alpha", 1))
        if tensor(bias).shape != out.shape[1:] or scale != (1, 1):
            return False
    return out.device.type == "cuda" and out.dtype in _FLOATS and out.numel() > 0


def _is_activation(user: Node) -> bool:
    if user.target is aten.relu.default:
        return True
    return user.target is aten.gelu.default and arg(user, 1, "approximate", "none") == "tanh"


# ---------------------------------------------------------------- gelu written out


def name_gelu(graph: Graph) -> None:
    """Replace what is computed of a product alone, and is gelu by its values, by one operator."""
    for node in [n for n in graph.nodes if n.target in PRODUCTS]:
        x = _read(node)
        if tensor(node).dtype not in _HALVES or not _takes_epilogue(node) or len(x.users) < 2:
            continue
        steps = _steps(x)
        if steps and _is_gelu(x, steps):
            with graph.inserting_before(steps[-1]):
                gelu = new_node(graph, aten.gelu.default, (x,), {"approximate": "tanh"},
                                like=steps[-1])  # fmt: skip
            steps[-1].replace_all_uses_with(gelu)
            for step in reversed(steps):
                graph.erase_node(step)


def _read(node: Node) -> Node:
    """What is read of the product: itself, or the last of the reshapes behind it."""
    user = only_user(node)
    while user is not None and user.target in RESHAPES:
        node, user = user, only_user(user)
    return node


def _steps(x: Node) -> list[Node]:
    """All that is computed from `x` and numbers alone, in order, if only the last is read by others
    and nothing else reads `x`; else nothing.
    """
    found = [x]
    for node in found:
        for user in node.users:
            inside = user.target in _STEPS and all(n in found for n in user.all_input_nodes)
            if inside and user not in found and len(found) <= _LONGEST:
                found.append(user)
    steps = sorted(found[1:])
    same = all(tensor(s).dtype is tensor(x).dtype for s in steps)
    read = [n for n in found if any(u not in found for u in n.users)]
    return steps if steps and same and read == [steps[-1]] else []


def _is_gelu(x: Node, steps: list[Node]) -> bool:
    points = torch.linspace(-6, 6, 97, dtype=torch.float64, device="cpu")  # beyond: 0 or x
    values: dict[Node, Tensor] = {x: points}
    with torch.no_grad(), torch._C._DisableAutocast():
        for step in steps:
            args: Any = torch.fx.map_arg((step.args, step.kwargs), values.__getitem__)
            assert callable(step.target)
            values[step] = step.target(*args[0], **args[1])
        exact = torch.nn.functional.gelu(points, approximate="tanh")
        return torch.allclose(values[steps[-1]], exact, rtol=0, atol=_TOLERANCE)
