"""Calls that torch's fake kernels let pass, where eager refuses them or may do so.

What is found here is not explained to the user: the frame runs eagerly, and eager's error says it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from torchweld.ir.nested import memory_of, tensors_in
from torchweld.ir.overlaps import changes
from torchweld.ir.predicted import below_functionalization
from torchweld.ir.size_node import hint_of, node_of
from torchweld.ir.static_shapes import expect_true, guard_or_false, guard_or_true

_ATEN = torch.ops.aten
_broadcast: Any = torch.broadcast_shapes
_MASKS = (torch.bool, torch.uint8)
_INDICES = (torch.int32, torch.int64)

Args = Sequence[Any]


def check_dim(func: OpOverload, args: Args, kwargs: Mapping[str, Any]) -> None:
    """IndexError for a dimension out of range that a fake kernel would let pass, and for a place
    that varies, which torch asks about from 2.12 on."""
    if func is _ATEN.select.int and type(args[2]) is not int:
        x, dim, at = args
        if not -x.shape[dim] <= at < x.shape[dim]:
            raise IndexError(f"index {hint_of(at)} is out of bounds for dimension {dim} with size "
                             f"{hint_of(x.shape[dim])}")  # fmt: skip
    place = _UNCHECKED_DIM.get(func)
    if place is None:
        return
    dim = args[place] if len(args) > place else kwargs.get("dim", -1)
    rank = max(args[0].dim(), 1)
    if not -rank <= dim < rank:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-rank}, "
                         f"{rank - 1}], but got {dim})")  # fmt: skip


def left_to_eager(func: Any, args: Args, kwargs: Mapping[str, Any]) -> str | None:
    """Why only eager can say what a call does, or None."""
    if not isinstance(func, OpOverload):
        return None
    for rule in _rules(func):
        why = rule(_positional(func, args, kwargs))
        if why is not None:
            return why
    if "out" in kwargs:
        return _overlap_of_out(func, args, kwargs)
    if writes_lists(func) and _shared_in_lists(func, args):
        return "tensors of a list that share elements, changed one after the other"
    return _repeated_place(func, args) or _changing(func, args) or _refused_kind(func, args, kwargs)


@lru_cache(maxsize=4096)
def outs_of(func: Any) -> tuple[str, ...]:
    """The names of the arguments that results are written to."""
    if not isinstance(func, OpOverload) or not func._schema.is_mutable:
        return ()
    return tuple(a.name for a in func._schema.arguments if a.is_out)


@lru_cache(maxsize=4096)
def _rules(func: OpOverload) -> tuple[Callable[[Args], str | None], ...]:
    name = func._schema.name.removeprefix("aten::").rstrip("_")
    return tuple(rule for names, rule in _RULES if name in names)


def _positional(func: OpOverload, args: Args, kwargs: Mapping[str, Any]) -> Args:
    """The arguments, with those that were given by name behind them in the schema's order."""
    names = [a.name for a in func._schema.arguments[len(args) :]]
    return (*args, *(kwargs[n] for n in names if n in kwargs))


# ---------------------------------------------------------------- indices into nothing
_NOTHING = "indices into a tensor without elements"


def _is_empty(x: Tensor) -> bool:
    """Whether it has no elements; where only the data decides that, kernels ask for every index."""
    return bool(guard_or_false(x.numel() == 0))


def _single_index(place: int) -> Callable[[Args], str | None]:
    def rule(args: Args) -> str | None:
        return _NOTHING if _is_empty(args[0]) and not _is_empty(args[place]) else None

    return rule


def _index_list(args: Args) -> str | None:
    """One index tensor, mask or None per dimension: only the indexed dimensions count."""
    x, indices = args[:2]
    d, found = 0, False
    for i in indices:
        if i is None or i.dtype not in _MASKS:
            found = found or (i is not None and guard_or_false(x.shape[d] == 0))
            d += 1
        else:
            if not all(map(agree, i.shape, x.shape[d : d + i.dim()])):
                return "a mask of another shape"
            d += i.dim()
    return _NOTHING if found and not any(i is not None and _is_empty(i) for i in indices) else None


# ---------------------------------------------------------------- arguments that do not fit
def _some(args: Args) -> str | None:
    """x, and dimensions: what is reduced has elements."""
    x, dims = args[0], args[1] if len(args) > 1 else None
    if not isinstance(x, Tensor) or isinstance(dims, Tensor) or not x.dim():
        return None
    reduced = range(x.dim()) if dims is None or dims == [] else (
        dims if isinstance(dims, list | tuple) else (dims,))  # fmt: skip
    for d in reduced:
        if not guard_or_true(x.shape[d] == 0):
            continue
        _expect(x.shape[d] != 0)
    return None


def _expect(c: Any) -> None:
    """Where only the data decides something, it has to be so."""
    node = node_of(c)
    if node is not None and node.is_open():
        expect_true(c)


def _vector(args: Args) -> str | None:
    index = args[2]
    fits = index.dim() <= 1 and index.dtype in _INDICES
    return None if fits else "an index that is no vector of integers"


def agree(n: Any, m: Any) -> bool:
    """Whether two sizes are equal; where only the data decides that, they have to be."""
    return guard_or_true(n == m) and bool(expect_true(n == m))


def _slices(args: Args) -> str | None:
    """x, dim, index, source: a slice of x for every index, of x's dtype."""
    x, dim, index, source = args[:4]
    if x.dtype != source.dtype:
        return "a source of another dtype"
    expected = list(x.shape)
    if expected:
        expected[dim] = index.numel()
    same = len(expected) == source.dim() and all(map(agree, expected, source.shape))
    return None if same else "a source of another shape"


def _values(args: Args) -> str | None:
    """x, indices, values: the values broadcast to x[indices]."""
    x, indices, values = args[:3]
    if any(i is not None and i.dtype in _MASKS for i in indices):
        return None  # as many as the mask has
    shape = list(_indexed(x, indices))
    given = list(values.shape)
    while len(given) > len(shape) and guard_or_false(given[0] == 1):
        given = given[1:]
    pairs = zip(reversed(given), reversed(shape), strict=False)
    fits = len(given) <= len(shape) and all(guard_or_false(n == 1) or agree(n, m)
                                            for n, m in pairs)  # fmt: skip
    return None if fits else "values of another shape"


def _indexed(x: Tensor, indices: Sequence[Tensor | None]) -> Sequence[int]:
    """The shape of x[indices], where no index is a mask."""
    places = [d for d, i in enumerate(indices) if i is not None]
    common = _broadcast(*(i.shape for i in indices if i is not None))
    rest = [n for d, n in enumerate(x.shape) if d not in places]
    front = places[0] if places[-1] - places[0] + 1 == len(places) else 0
    return (*rest[:front], *common, *rest[front:])


def _overlap_of_out(func: OpOverload, args: Args, kwargs: Mapping[str, Any]) -> str | None:
    """Whether results would be written over each other, or over what is still read."""
    out = kwargs["out"]
    if not isinstance(out, Tensor):
        return None
    if any(n > 1 and step == 0 for n, step in zip(out.shape, out.stride(), strict=True)):
        return "an out= whose elements overlap"
    memory = memory_of(out)
    shared = [x for x in tensors_in(args) if memory_of(x) == memory]
    place = _place(out) if _in_order(func) else None
    return "an out= that overlaps an argument" if any(_place(x) != place for x in shared) else None


def _repeated_place(func: OpOverload, args: Args) -> str | None:
    """Whether what is changed in place has elements that are one place: the functional form of a
    fill would add what each of them got."""
    written = 0 if func._schema.name in _FILLS else _written(func)
    if written is None or written >= len(args) or not isinstance(args[written], Tensor):
        return None
    x = args[written]
    repeated = any(guard_or_false(step == 0) and guard_or_true(n > 1)
                   for n, step in zip(x.shape, x.stride(), strict=True))  # fmt: skip
    repeated = repeated and not any(guard_or_false(n == 0) for n in x.shape)
    return "elements that are one place, changed in place" if repeated else None


def _changing(func: OpOverload, args: Args) -> str | None:
    """Whether an argument has elements in what is changed in place, and at other positions."""
    written = _written(func)
    if written is None or written >= len(args) or not isinstance(args[written], Tensor):
        return None
    names = (a.name for a in func._schema.arguments)
    if ("training", False) in zip(names, args, strict=False):
        return None  # a norm that only reads its statistics
    x = args[written]
    memory = memory_of(x)
    rest = (*args[:written], *args[written + 1:])
    others = [y for y in tensors_in(rest) if memory_of(y) == memory]
    changing = any(changes(x, y, _in_order(func)) for y in others)
    return "an argument that changes while it is read" if changing else None


def _shared_in_lists(func: OpOverload, args: Args) -> bool:
    """Whether a tensor that is changed has elements of another one in the lists."""
    rows = [a for a in args if isinstance(a, (list, tuple))]
    groups: dict[int, list[tuple[int, Tensor, bool]]] = {}
    for number, row in enumerate(rows):
        for k, x in enumerate(row):
            if isinstance(x, Tensor):
                groups.setdefault(memory_of(x), []).append((k, x, number == 0))
    return any(changes(x, y, k == m) for group in groups.values() if len(group) > 1
               for i, (k, x, written) in enumerate(group) if written
               for j, (m, y, _) in enumerate(group) if i != j)  # fmt: skip


@lru_cache(maxsize=4096)
def _in_order(func: OpOverload) -> bool:
    """Whether a kernel reads an element right before it writes the one at the same position.

    Not all forms of an operator are tagged.
    """
    forms = (getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads())
    return func is _ATEN.copy_.default or any(torch.Tag.pointwise in f.tags for f in forms)


@lru_cache(maxsize=4096)
def _written(func: OpOverload) -> int | None:
    """The position of the tensor that an operator changes, unless all elements get one value."""
    if not func._schema.is_mutable or func._schema.name.startswith(_SAME_EVERYWHERE):
        return None
    places = [i for i, a in enumerate(func._schema.arguments)
              if a.alias_info is not None and a.alias_info.is_write]  # fmt: skip
    return places[0] if places else None


def _place(x: Tensor) -> tuple[object, ...]:
    return x.storage_offset(), x.shape, x.stride(), x.dtype


# ---------------------------------------------------------------- kinds of numbers
def _is_bool(x: Any) -> bool:
    return x.dtype is torch.bool if isinstance(x, Tensor) else type(x) is bool


def _no_bools(args: Args) -> str | None:
    """Operands of a difference, behind them what the second is multiplied by."""
    return "a difference with bools" if any(map(_is_bool, args[:2])) else _alpha(args)


def _alpha(args: Args) -> str | None:
    """A bool for what is no bool, or a fraction for integers."""
    if len(args) < 3 or type(args[2]) not in (bool, float):
        return None
    kinds = [x.dtype if isinstance(x, Tensor) else torch.tensor(hint_of(x)).dtype for x in args[:2]]
    whole = not any(k.is_floating_point or k.is_complex for k in kinds)
    fits = all(k is torch.bool for k in kinds) if type(args[2]) is bool else not whole
    return None if fits else "an alpha of another kind"


def _quotient(args: Args) -> str | None:
    whole = not any(x.is_floating_point() or x.is_complex() for x in args[1:3])
    return "a quotient of integers" if whole else None


# ---------------------------------------------------------------- what kernels do not take
# There is no table of the dtypes and empty shapes that kernels take: they are asked. A call whose
# tensors have no elements, or whose first tensor is of a dtype that many kernels lack, is made once
# on small tensors like its own; sizes that vary are what they are now.
_MOST = 1 << 16  # elements of all tensors of a call that is made in its own shapes
_EVERYWHERE = frozenset((torch.float32, torch.float64, torch.bfloat16))
_PLAIN = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip
_GENERATORS = (torch.Tag.nondeterministic_seeded,)
_INTERNAL = re.compile(r"::_(?!_|adaptive)|backward|mkldnn|cudnn|miopen|quantized|rnn|lstm|gru")
_KIND_SAYS = re.compile(r"not implemented for '|does not support|not supported|with a bool tensor|"
                        r"cannot be converted to type")  # fmt: skip
_MOST_F32 = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class _Like:
    """A tensor without its elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def _refused_kind(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why the kernel refuses the dtypes or the empty shapes of a call, or None.

    Cost: the operator itself, once for each look of such a call.
    """
    tensors = list(tensors_in((*args, *kwargs.values())))
    if not tensors or not _asked(func):
        return None
    empty = any(math.prod(map(hint_of, x.shape)) == 0 for x in tensors)
    if not empty and not _is_rare(tensors[0]) and not any(map(_is_large, args)):
        return None
    small = not empty and torch.Tag.pointwise in func.tags
    if not small and not _is_small(tensors, empty):
        return None
    try:
        named = tuple((k, _changed(v, Tensor, _looks(small))) for k, v in sorted(kwargs.items()))
        given = _changed(tuple(args), Tensor, _looks(small))
        return _answer(func, given, named, empty, _changed((given, named), (_Like, *_PLAIN), type))
    except TypeError:  # an argument that cannot be remembered
        return None


@lru_cache(maxsize=4096)
def _asked(func: OpOverload) -> bool:
    """Whether a call may be made with anything: it draws no random numbers, and users call it.

    Operators that only ATen calls trust what they are given, such as a workspace.
    """
    drawn = any(t in func.tags for t in _GENERATORS)
    return func.namespace == "aten" and not drawn and not _INTERNAL.search(func._schema.name)


def _is_rare(x: Tensor) -> bool:
    """Whether many kernels lack its dtype."""
    return x.dtype not in _EVERYWHERE and (x.dtype is not torch.float16 or x.device.type == "cpu")


def _is_large(x: Any) -> bool:
    """Whether a number is finite and more than tensors of most dtypes hold."""
    return type(x) in (int, float) and _MOST_F32 < abs(x) < math.inf


def _is_small(tensors: Sequence[Tensor], empty: bool) -> bool:
    """Whether a call may be made in the shapes of its tensors. Of sizes that only the data decides
    it says what the kernel does with the dtypes, and nothing about empty shapes."""
    if empty and any(n.is_open() for x in tensors for n in map(node_of, (*x.shape, *x.stride()))
                     if n is not None):  # fmt: skip
        return False
    return bool(sum(math.prod(map(hint_of, x.shape)) for x in tensors) <= _MOST)


def _looks(small: bool) -> Callable[[Tensor], _Like]:
    """How to describe a tensor. small: with one element in each dimension."""

    def look(x: Tensor) -> _Like:
        ones = (1,) * x.dim()
        shape, strides = (ones, ones) if small else (
            tuple(map(hint_of, x.shape)), tuple(map(hint_of, x.stride())))  # fmt: skip
        return _Like(shape, strides, x.dtype, x.device)

    return look


@lru_cache(maxsize=4096)
def _answer(func: OpOverload, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...],
            empty: bool, kinds: tuple[Any, ...]) -> str | None:  # fmt: skip
    """What the kernel says to tensors like these: any error counts of an empty one.

    kinds: the types of all arguments, for what remembers the answer: 1 equals True.
    """
    fill = 1 if torch.Tag.pointwise in func.tags else 0  # 1 is a divisor, 0 a position

    def made(like: _Like) -> Tensor:
        x = torch.empty_strided(like.shape, like.strides, dtype=like.dtype, device=like.device)
        return x.fill_(fill)

    with _disable_current_modes(), below_functionalization(), torch.no_grad():
        try:
            func(*_changed(args, _Like, made, list), **dict(_changed(kwargs, _Like, made, list)))
        except Exception as error:
            if empty or _KIND_SAYS.search(str(error)):
                return str(error).partition("\n")[0]
    return None


def _changed(x: Any, kind: Any, change: Callable[[Any], Any], container: type = tuple) -> Any:
    """The arguments with every `kind` (a class, or some) changed, in containers of one type."""
    if isinstance(x, tuple | list):
        return container(_changed(i, kind, change, container) for i in x)
    x = hint_of(x)
    if not isinstance(x, (kind, *_PLAIN)):
        raise TypeError(type(x))  # a storage or generator is nobody's to hold
    return change(x) if isinstance(x, kind) else x


# ---------------------------------------------------------------- tables
_FILLS = ("aten::fill_", "aten::zero_")
_SAME_EVERYWHERE = ("aten::fill_", "aten::zero_", "aten::detach_", "aten::squeeze_", "aten::t_",
                    "aten::transpose_", "aten::unsqueeze_", "aten::as_strided_")  # fmt: skip
# operator -> position of `dim`, which torch's fake kernels do not check
_UNCHECKED_DIM: dict[OpOverload, int] = {
    _ATEN._softmax.default: 1, _ATEN._log_softmax.default: 1, _ATEN._safe_softmax.default: 1,
    _ATEN.sort.default: 1, _ATEN.sort.stable: 2, _ATEN.argsort.default: 1, _ATEN.argsort.stable: 2,
}  # fmt: skip
# names of operators (any overload, in place or not) -> a rule that they follow
def _filled(place: int) -> Callable[[Args], str | None]:
    """A number at `place` that fills a new tensor, whose dtype follows it."""

    def rule(args: Args) -> str | None:
        value, like = hint_of(args[place]), args[0].dtype if isinstance(args[0], Tensor) else None
        dtype = next((a for a in args[place + 1 :] if isinstance(a, torch.dtype)), like)
        shape: Any = args[place - 1] if place else ()
        n = math.prod(map(hint_of, shape.shape if isinstance(shape, Tensor) else shape))
        with _disable_current_modes():
            try:
                torch.full((min(n, 2),), value, dtype=dtype)  # one number is not looked at
            except RuntimeError as error:
                return str(error)
        return None

    return rule


def _number(args: Args, place: int, fits: Callable[[Any], bool]) -> str | None:
    """A number that a kernel refuses."""
    return None if len(args) <= place or fits(args[place]) else "a number that the kernel refuses"


_RULES: tuple[tuple[frozenset[str], Callable[[Args], str | None]], ...] = (
    (frozenset(("embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only",
                "take", "put", "nll_loss_forward", "nll_loss2d_forward")), _single_index(1)),
    (frozenset(("gather", "scatter", "scatter_add", "scatter_reduce", "index_select", "index_copy",
                "index_add", "index_fill", "index_reduce")), _single_index(2)),
    (frozenset(("index", "_unsafe_index", "index_put", "_unsafe_index_put", "_index_put_impl")),
     _index_list),
    (frozenset(("index_select", "index_copy", "index_add", "index_reduce")), _vector),
    (frozenset(("index_copy", "index_add", "index_reduce")), _slices),
    (frozenset(("max", "min", "argmax", "argmin", "amax", "amin", "aminmax", "median", "nanmedian",
                "mode")), _some),
    (frozenset(("index_put", "_unsafe_index_put", "_index_put_impl")), _values),
    (frozenset(("sub", "rsub")), _no_bools),
    (frozenset(("add",)), _alpha),
    (frozenset(("addcdiv",)), _quotient),
    (frozenset(("smooth_l1_loss",)), lambda args: _number(args, 3, lambda beta: beta >= 0)),
    (frozenset(("quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel")),
     lambda _: "a quantized tensor"),
    (frozenset(("scalar_tensor",)), _filled(0)),
    (frozenset(("full", "full_like")), _filled(1)),
    (frozenset(("new_full",)), _filled(2)),
    (frozenset(("celu",)), lambda args: _number(args, 1, lambda alpha: alpha != 0)),
)  # fmt: skip


# ---------------------------------------------------------------- in-place operators on lists
@lru_cache(maxsize=4096)
def writes_lists(func: object) -> bool:
    """Whether an operator writes to the tensors of its first list and returns nothing."""
    if not isinstance(func, OpOverload):
        return False
    name = func._schema.name
    return name.startswith("aten::_foreach_") and name.endswith("_") and not func._schema.returns


def changes_no_looks(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether such a call is right, and all it does is write: floats of one shape and dtype in each
    row, beside numbers. Whatever is not as plain as that is for torch's kernels to decide."""
    first = args[0]
    if not first or not all(map(_is_plain, first)):
        return False
    return all(_fits(x, first) for x in (*args[1:], *kwargs.values()))


def _is_plain(x: Any) -> bool:
    return type(x) is FakeTensor and not x._has_symbolic_sizes_strides and (
        x.is_floating_point() and x.is_contiguous())  # fmt: skip


def _fits(x: Any, first: Sequence[FakeTensor]) -> bool:
    if type(x) in (int, float):
        return True
    if not isinstance(x, (list, tuple)) or len(x) != len(first):
        return False
    return all(
        type(b) in (int, float) if not isinstance(b, Tensor)
        else type(b) is FakeTensor and not b._has_symbolic_sizes_strides and (
            (b.shape, b.dtype, b.fake_device) == (a.shape, a.dtype, a.fake_device))
        for a, b in zip(first, x, strict=True)
    )  # fmt: skip
