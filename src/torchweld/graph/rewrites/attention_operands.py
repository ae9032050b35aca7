"""What attention operators are given, and how their results lie in memory.

Keys and values that are repeated for the heads of a group ([batch, groups, length, size] expanded
to [batch, groups * n, length, size]) are read in place:

    one query a head      the heads of a group become rows of one head, [batch, groups, n, size];
                          for every kernel and dtype
    CUDA, flash or cuDNN  by `enable_gqa`

They stay copied else: with `enable_gqa` the memory-efficient kernel does not run up to torch 2.13,
and what runs in its place writes the scores to memory.

torch picks the kernel by rules that differ between its versions, and its fake tensors often take
another way than its real ones (torch 2.11, one H200: apart, where cuDNN runs), with other strides.
So on a GPU the operator itself is asked. Without one (programs made for a pretended GPU) the rules
are those that every version since 2.11 has: flash without a mask, else the memory-efficient kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException
from torch.backends import cuda
from torch.fx import Graph, Node

from torchweld.graph.rewrites.masks import Masks
from torchweld.graph.rewrites.node import RESHAPES, arg, fake_mode_of, new_node, tensor
from torchweld.graph.rewrites.relayout import Relayout, moved
from torchweld.ir.graph import VAL
from torchweld.ir.predicted import sized_strides
from torchweld.ir.size_node import hint_of

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default

_HALVES = (torch.bfloat16, torch.float16)
_NAMES = {1: "flash", 2: "efficient", 3: "cudnn"}  # torch.nn.attention.SDPBackend
GROUPED = frozenset(("flash", "cudnn"))  # read keys of a group of heads without a copy of them
_WIDEST = 256  # elements of a head


@dataclass(frozen=True, slots=True)
class _Call:
    """The arguments of one attention operator without dropout."""

    query: Node
    key: Node
    value: Node
    mask: Node | None
    causal: bool
    scale: float | None
    grouped: bool

    @property
    def kernel(self) -> Kernel:
        mask = None if self.mask is None else tensor(self.mask)
        return kernel_of(tensor(self.query), tensor(self.key), tensor(self.value), mask,
                         self.causal, self.grouped)  # fmt: skip


def prepare_attention(graph: Graph) -> None:
    """Give each attention operator the operands with which it has least to do.

    Errors: Unsupported W201 where strides of an output cannot be kept; the graph is then of no use.
    """
    layout, masks = Relayout(graph), Masks(graph)
    for node in list(graph.find_nodes(op="call_function", target=ATTENTION)):
        if arg(node, 4, "dropout_p", 0.0) == 0.0 and tensor(node).dim() == 4:
            call = _with_mask(_call(node), masks)
            with graph.inserting_before(node):
                _replace(graph, node, _with_groups(graph, call), layout)
    layout.run()


def _call(node: Node) -> _Call:
    query, key, value = node.args[:3]
    assert isinstance(query, Node) and isinstance(key, Node) and isinstance(value, Node)
    grouped = bool(node.kwargs.get("enable_gqa", False))
    scale = node.kwargs.get("scale")
    assert scale is None or isinstance(scale, (int, float))
    return _Call(query, key, value, arg(node, 3, "attn_mask"),
                 bool(arg(node, 5, "is_causal", False)), scale, grouped)  # fmt: skip


def _with_mask(call: _Call, masks: Masks) -> _Call:
    """The call with a mask that fused kernels take: of 2 or 4 dimensions, its rows side by side."""
    mask = call.mask
    if mask is None or tensor(mask).device.type != "cuda":
        return call
    if tensor(mask).dim() == 3:
        mask = masks.make(aten.unsqueeze.default, mask, 0)
    if tensor(mask).shape[-1] > 1 and tensor(mask).stride(-1) != 1:
        mask = masks.make(aten.clone.default, mask, memory_format=torch.contiguous_format)
    return replace(call, mask=mask)


# ---------------------------------------------------------------- groups of heads


def _with_groups(graph: Graph, call: _Call) -> _Call:
    """The call on keys and values that are there once for each group of heads, if that pays."""
    key, value = _repeated(call.key), _repeated(call.value)
    heads, groups = tensor(call.query).shape[1], 0 if key is None else tensor(key).shape[1]
    if call.grouped or key is None or value is None or tensor(value).shape[1] != groups:
        return call
    if heads != tensor(call.key).shape[1]:
        return call
    mark = [_squeezed(graph, x) for x in (key, value)]
    shared = replace(call, key=mark[0], value=mark[1], grouped=True)
    if tensor(call.query).device.type == "cuda" and shared.kernel.name in GROUPED:
        return shared
    if tensor(call.query).shape[-2] == 1 and not call.causal:
        return _folded(graph, shared, groups)
    return call


def _repeated(x: Node) -> Node | None:
    """The tensor [batch, groups, 1, length, size] whose elements `x` repeats for each head of a
    group; None if `x` is something else.
    """
    batch, heads, length, size = tensor(x).shape
    y = x
    while y.target in RESHAPES or y.target is aten.clone.default:
        assert isinstance(y.args[0], Node)
        y = y.args[0]
    if y.target is not aten.expand.default:
        return None
    source = y.args[0]
    assert isinstance(source, Node)
    before, after = tuple(tensor(source).shape), tuple(tensor(y).shape)
    if len(before) != 5 or len(after) != 5 or before[2] != 1:
        return None
    groups, repeats = after[1:3]
    wanted = (batch, groups, repeats, length, size)
    same = after == wanted and before == (batch, groups, 1, length, size)
    return source if same and groups * repeats == heads and repeats > 1 else None


def _squeezed(graph: Graph, x: Node) -> Node:
    """[batch, groups, 1, length, size] without its third dimension."""
    source = x.args[0]
    if x.target is aten.unsqueeze.default and isinstance(source, Node) and x.args[1] in (2, -3):
        return source
    return new_node(graph, aten.squeeze.dim, (x, 2), like=x)


def _folded(graph: Graph, call: _Call, groups: int) -> _Call:
    """One query for each head, as one head of several queries for each group."""
    batch, heads, _, size = tensor(call.query).shape
    query = _viewed(graph, call.query, [batch, groups, heads // groups, size])
    mask = call.mask
    if mask is not None and tensor(mask).dim() == 4 and tensor(mask).shape[1] == heads:
        first, keys = tensor(mask).shape[0], tensor(mask).shape[-1]
        mask = _viewed(graph, mask, [first, groups, heads // groups, keys])
    return replace(call, query=query, mask=mask, grouped=False)


def _viewed(graph: Graph, x: Node, shape: list[int]) -> Node:
    """`x` in another shape, copied if its strides ask for that."""
    try:
        return new_node(graph, aten.view.default, (x, shape), like=x)
    except (RuntimeError, ValueError):
        dense = {"memory_format": torch.contiguous_format}
        copied = new_node(graph, aten.clone.default, (x,), dense, like=x)
        return new_node(graph, aten.view.default, (copied, shape), like=x)


# ---------------------------------------------------------------- the new operator


def _replace(graph: Graph, node: Node, call: _Call, layout: Relayout) -> None:
    """The operator on the operands of `call`, with the strides that its kernel gives."""
    if call == _call(node) and call.kernel.strides in (None, tensor(node).stride()):
        return
    args = (call.query, call.key, call.value, call.mask, 0.0, call.causal)
    options: dict[str, float | bool] = {"enable_gqa": True} if call.grouped else {}
    if call.scale is not None:
        options["scale"] = call.scale
    new = new_node(graph, ATTENTION, args, options, like=node)
    strides = call.kernel.strides
    if strides is not None:
        with fake_mode_of(new):
            like = tensor(new)
            new.meta[VAL] = torch.empty_strided(like.shape, strides, dtype=like.dtype,
                                                device=like.device)  # fmt: skip
    result = new
    if tensor(new).shape != tensor(node).shape:
        result = _viewed(graph, new, list(tensor(node).shape))
    node.replace_all_uses_with(result)
    if moved(node.meta[VAL], result.meta[VAL]):
        layout.original[result] = node.meta[VAL]
    graph.erase_node(node)


# ---------------------------------------------------------------- which kernel runs


@dataclass(frozen=True, slots=True)
class Kernel:
    """name: flash, efficient, cudnn or math. strides: of the result; None if as torch predicts."""

    name: str
    strides: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def kernel_of(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
              grouped: bool) -> Kernel:  # fmt: skip
    """What runs for operands like these fakes, under the settings that hold now."""
    if query.device.type != "cuda":
        return Kernel("math", None)
    given = tuple(None if x is None else layout_of(x) for x in (query, key, value, mask))
    if torch.cuda.is_available() and not torch.cuda.is_current_stream_capturing():
        enabled = (*(_enabled(name) for name in ("flash", "mem_efficient", "cudnn", "math")),
                   torch.are_deterministic_algorithms_enabled())  # fmt: skip
        return _sized(asked(given, causal, grouped, enabled), (*query.shape[:-1], value.shape[-1]))
    name = _by_rule(query, key, value, mask, causal, grouped)
    return Kernel(name, _predicted(name, query, value))


def _enabled(name: str) -> bool:
    return bool(getattr(cuda, f"{name}_sdp_enabled")())


def layout_of(x: Tensor) -> Layout:
    """With the sizes at hand, where they vary."""
    return Layout(tuple(map(hint_of, x.shape)), tuple(map(hint_of, x.stride())), x.dtype, x.device)


def _sized(kernel: Kernel, shape: Sequence[int]) -> Kernel:
    """The answer for a result whose sizes may vary."""
    if kernel.strides is None:
        return kernel
    try:
        return replace(kernel, strides=sized_strides(shape, kernel.strides))
    except UnsupportedFakeTensorException:
        return replace(kernel, strides=None)


@lru_cache(maxsize=256)
def asked(given: tuple[Layout | None, ...], causal: bool, grouped: bool,
          enabled: tuple[bool, ...]) -> Kernel:  # fmt: skip
    """The answer of torch, for operands with memory.

    Cost: the operator once per layout, if a kernel has it whole; the operands' memory meanwhile.
    """
    try:
        with torch.no_grad(), torch._C._DisableAutocast():
            q, k, v, mask = (None if x is None else _zeros(x) for x in given)
            assert q is not None and k is not None and v is not None
            choice = torch._fused_sdp_choice(q, k, v, mask, 0.0, causal, enable_gqa=grouped)
            name = _NAMES.get(int(choice), "math")
            if name == "math":
                return Kernel(name, None)
            made = ATTENTION(q, k, v, mask, 0.0, causal, enable_gqa=grouped)
            return Kernel(name, tuple(made.stride()))
    except RuntimeError:  # no memory to ask in, or no kernel that may run
        return Kernel("math", None)


def _zeros(x: Layout) -> Tensor:
    """A tensor that may overlap itself, as a mask does that is broadcast."""
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True))
    flat = torch.zeros(max(span, 0), dtype=x.dtype, device=x.device)
    return flat.as_strided(x.shape, x.strides)


def _by_rule(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool,
             grouped: bool) -> str:  # fmt: skip
    if {x.dim() for x in (query, key, value)} != {4}:
        return "math"
    (length, size), keys = query.shape[-2:], key.shape[-2]
    half = query.dtype in _HALVES
    square = length == keys or not causal
    if (half and mask is None and square and size == value.shape[-1] <= _WIDEST
            and _enabled("flash")):  # fmt: skip
        return "flash"
    unit = 8 if half else 4
    fits = (half or query.dtype is torch.float32) and not size % unit and not value.shape[-1] % unit
    if fits and not grouped and _enabled("mem_efficient"):
        return "efficient"
    return "math"


def _predicted(name: str, query: Tensor, value: Tensor) -> tuple[int, ...] | None:
    heads, length, size = *query.shape[1:3], value.shape[-1]
    if name == "efficient":
        return heads * length * size, size, heads * size, 1
    if name == "flash" and not size % 8:
        return aten.empty_like.default(query).stride()  # type: ignore[no-any-return]
    return None
