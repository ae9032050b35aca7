"""Attributes and methods of tensors."""

from __future__ import annotations

import operator
import types
from collections.abc import Sequence
from typing import Any

import torch

from torchweld.base.errors import GraphBreak
from torchweld.capture.attrs import from_python, mro_lookup, watch_method
from torchweld.capture.grads import grad_of
from torchweld.capture.handlers import tests_next
from torchweld.capture.instances import MISSING
from torchweld.capture.late import INTEGERS, LateNumber
from torchweld.capture.numbers import item, tolist, whole_item
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import FUNCTIONS, GETATTR
from torchweld.capture.values.base import (
    ArrayValue,
    BoundValue,
    Const,
    ListValue,
    NotConstant,
    SizeValue,
    SliceValue,
    Slot,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.unread import PassedTensor, UnreadTensor
from torchweld.ir.fake_checks import agree
from torchweld.ir.nested import lost_history, memory_of
from torchweld.ir.size_makers import holds_number
from torchweld.ir.size_node import node_of
from torchweld.ir.source import Applied, Attr, InstanceDict, Item

# read from the metadata: no node
_METADATA = frozenset((
    "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_cpu", "is_mps",
    "is_xpu", "is_sparse", "is_quantized", "is_meta", "is_mkldnn", "itemsize", "nbytes",
    "is_nested", "is_sparse_csr", "output_nr",
))  # fmt: skip
_READS_GRAD = frozenset(("requires_grad", "is_leaf", "grad_fn", "grad", "detach_"))
# new tensors: a getattr node
_DERIVED = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))
# answered from the metadata: no node
_METADATA_METHODS = frozenset((
    "size", "dim", "stride", "numel", "nelement", "is_contiguous", "element_size", "ndimension",
    "is_floating_point", "is_complex", "is_signed", "get_device", "storage_offset", "is_inference",
    "is_conj", "is_neg", "is_same_size", "is_set_to", "type", "has_names", "is_shared",
))  # fmt: skip
_LAYOUT = frozenset(("stride", "is_contiguous", "storage_offset"))
_READS_DATA = frozenset((
    "__array__", "__bool__",
    "__complex__", "__contains__", "__repr__", "__str__", "__format__", "is_nonzero",
))  # fmt: skip
_OUTSIDE = frozenset((
    "data_ptr", "untyped_storage", "storage", "__reduce_ex__", "set_", "share_memory_",
    "pin_memory", "retain_grad", "resize_", "__deepcopy__", "__dlpack__", "apply_", "map_",
    "resize_as_",
))  # fmt: skip
_RESHAPE = ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_")


def tensor_attr(cap: Capture, obj: TensorValue, name: str, cont: Cont | None) -> None:
    """obj.name of a tensor."""
    cap.reads_grad |= name in _READS_GRAD
    if name in _METADATA:
        cap.deliver(from_python(getattr(obj.fake, name)), cont)
        return
    if name in _DERIVED:
        out = cap.builder.call("call_function", getattr, [obj, Const(name)], {}, cap.loc())
        cap.deliver(out, cont)
        return
    if name == "__class__":
        cap.deliver(Const(obj.kind), cont)
        return
    if name in ("is_leaf", "grad_fn", "grad", "_version", "__dict__", "_base", "_backward_hooks"):
        _autograd_attr(cap, obj, name, cont)
        return
    watch_method(cap, obj.kind, name)
    raw = mro_lookup(obj.kind, name)
    if raw is MISSING:
        _own_attr(cap, obj, name, cont)
    elif isinstance(raw, types.FunctionType | types.MethodDescriptorType
                    | types.WrapperDescriptorType):  # fmt: skip
        cap.deliver(BoundValue(Const(raw), obj), cont)
    elif isinstance(raw, property | types.GetSetDescriptorType):
        raise refuse("W107", f"Tensor.{name}", cap.loc())
    else:
        cap.deliver(from_python(raw), cont)


def _autograd_attr(cap: Capture, obj: TensorValue, name: str, cont: Cont | None) -> None:
    if name == "grad":
        cap.deliver(grad_of(cap, obj), cont)
        return
    real = cap.builder.reals.get(id(obj))
    if lost_history(obj.fake):
        raise refuse("W107", f"Tensor.{name} of a view of no_grad, written since", cap.loc())
    leaf = obj.fake.is_leaf
    if name == "is_leaf" or (name == "grad_fn" and leaf):
        if real is not None and real.requires_grad and obj.source is not None:
            cap.guard("equal", Attr.make(obj.source, "is_leaf"), real.is_leaf)
        cap.deliver(Const(leaf if name == "is_leaf" else None), cont)
        return
    raise refuse("W107", f"Tensor.{name}", cap.loc())


def _own_attr(cap: Capture, obj: TensorValue, name: str, cont: Cont | None) -> None:
    """An attribute that the user put on a tensor."""
    put = cap.tensor_attrs.get((id(obj), name))
    if put is not None:
        cap.deliver(put[1], cont)
        return
    real = cap.builder.reals.get(id(obj))
    if real is not None and obj.source is not None:
        own = InstanceDict.make(obj.source)
        if name in real.__dict__:
            cap.deliver(cap.wrap(real.__dict__[name], Item.make(own, name, False)), cont)
            return
        cap.guard("lacks_key", own, name)
    elif real is not None and name in real.__dict__:
        raise refuse("W107", f"attribute {name} that was put on a Tensor", cap.loc())
    raise raised(AttributeError, f"'{obj.kind.__name__}' object has no attribute '{name}'")


def metadata_call(name: str) -> Any:
    """Handler of a Tensor method that metadata answers."""

    def handler(cap: Capture, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None) -> None:  # fmt: skip
        tensor = args[0]
        cap.reads_inference |= name == "is_inference"
        if not isinstance(tensor, TensorValue):
            raise raised(TypeError, f"Tensor.{name} of {tensor.cls().__name__}")
        if name == "storage_offset":
            _guard_offset(cap, tensor)
        if name in _LAYOUT and cap.builder.any_layout:
            raise refuse("W107", f"Tensor.{name} in a backward", cap.loc())
        try:
            rest = [_fake_or_constant(cap, a) for a in args[1:]]
            named = {k: _fake_or_constant(cap, v) for k, v in kwargs.items()}
        except NotConstant:
            why = f"Tensor.{name} of a value that is not constant"
            raise refuse("W103", why, cap.loc()) from None
        if name == "type" and (rest or named):
            cap.deliver(cap.builder.call("call_method", name, args, kwargs, cap.loc()), cont)
            return
        try:
            found = getattr(tensor.fake, name)(*rest, **named)
        except GraphBreak:
            raise
        except Exception as error:
            raise raised(type(error), *error.args) from None
        if name == "type":
            found = found.replace("torch._subclasses.fake_tensor.Fake", "torch.")
            raise refuse("W107", "Tensor.type() without arguments", cap.loc())
        cap.deliver(from_python(found), cont)

    return handler


def _guard_offset(cap: Capture, x: TensorValue) -> None:
    """Rely on where an input begins in its storage, if the tensor is one or a view of one.

    Errors: GraphBreak if its fake begins elsewhere.
    """
    for source, value, _ in cap.builder.inputs:
        if memory_of(value.fake) == memory_of(x.fake):
            real = cap.builder.reals[id(value)].storage_offset()
            if value.fake.storage_offset() != real:
                raise refuse("W107", "Tensor.storage_offset of a part of an input", cap.loc())
            cap.guard("equal", Applied.make(source, torch.Tensor.storage_offset), real)


def _fake_or_constant(cap: Capture, x: Value) -> Any:
    return x.fake if isinstance(x, TensorValue) else constant(cap.unwrap(x))


def _refused(name: str, code: str) -> Any:
    def handler(cap: Capture, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None) -> None:  # fmt: skip
        raise refuse(code, f"Tensor.{name}", cap.loc())

    return handler


def _reshaped(name: str) -> Any:
    def handler(cap: Capture, args: list[Value], kwargs: dict[str, Value],
                cont: Cont | None) -> None:  # fmt: skip
        tensor = args[0]
        assert isinstance(tensor, TensorValue)
        looks = *tensor.fake.shape, *tensor.fake.stride()
        if id(tensor) in cap.builder.reals and any(node_of(n) is not None for n in looks):
            # what the frame does with its sizes reads them behind the graph
            raise refuse("W106", f"Tensor.{name} of an input whose sizes vary", cap.loc())
        cap.deliver(cap.builder.call("call_method", name, args, kwargs, cap.loc()), cont)

    return handler


def requires_grad_(cap: Capture, args: list[Value], kwargs: dict[str, Value],
                   cont: Cont | None) -> None:  # fmt: skip
    """Of a tensor made in the frame; nothing happens to one that is so already."""
    tensor, *rest = args
    flag = constant((*rest, *kwargs.values())[0]) if rest or kwargs else True
    assert isinstance(tensor, TensorValue)
    cap.reads_grad = True
    if flag is tensor.fake.requires_grad:
        cap.deliver(tensor, cont)
        return
    if cap.builder.reals.get(id(tensor)) is not None or cap.builder.bodies or flag is not True:
        raise refuse("W106", "Tensor.requires_grad_ of a Tensor from outside", cap.loc(),
                     "call it before the compiled function is called")  # fmt: skip
    cap.deliver(cap.builder.call("call_method", "requires_grad_", args, kwargs, cap.loc()), cont)


def detach_(cap: Capture, args: list[Value], kwargs: dict[str, Value],
            cont: Cont | None) -> None:  # fmt: skip
    """Of a tensor made in the frame: from now on it is what detach() gives."""
    (tensor,) = args
    assert isinstance(tensor, TensorValue)
    cap.reads_grad = True
    builder = cap.builder
    if builder.reals.get(id(tensor)) is not None or builder.bodies or tensor.fake._is_view():
        raise refuse("W106", "Tensor.detach_", cap.loc())
    if tensor.fake.requires_grad:
        made = builder.call("call_method", "detach", [tensor], {}, cap.loc())
        assert isinstance(made, TensorValue)
        tensor.node, tensor.fake = made.node, made.fake
        builder.known(tensor)
    cap.deliver(tensor, cont)


def item_of(cap: Capture, args: list[Value], kwargs: dict[str, Value],
            cont: Cont | None) -> None:  # fmt: skip
    """Tensor.item(); the test of a branch may be the tensor."""
    x = args[0]
    plain = len(args) == 1 and not kwargs and cont is None
    if plain and isinstance(x, TensorValue) and x.fake.dtype is torch.bool and (
            x.fake.numel() == 1 and tests_next(cap.top)):  # fmt: skip
        cap.deliver(x, cont)
    else:
        item(cap, args, kwargs, cont)


def float_of(cap: Capture, args: list[Value], kwargs: dict[str, Value],
             cont: Cont | None) -> None:  # fmt: skip
    """float() of a tensor: no size, so that the graph computes with it."""
    x = args[0]
    if isinstance(x, TensorValue) and holds_number(x.fake) and not cap.builder.bodies:
        args = [cap.builder.call("call_method", "to", [x, Const(torch.float64)], {}, cap.loc())]
    item(cap, args, kwargs, cont)


def register_methods() -> None:
    """Fill the table for the methods of torch.Tensor that are not graph nodes."""
    tables = ((_METADATA_METHODS, metadata_call), (_READS_DATA, lambda n: _refused(n, "W102")),
              (_OUTSIDE, lambda n: _refused(n, "W106")), (_RESHAPE, _reshaped))  # fmt: skip
    for names, make in tables:
        for name in names:
            raw = mro_lookup(torch.Tensor, name)
            if raw is not MISSING and raw not in FUNCTIONS:
                FUNCTIONS.add(raw, make(name))
    FUNCTIONS.add(mro_lookup(torch.Tensor, "requires_grad_"), requires_grad_)
    FUNCTIONS.add(mro_lookup(torch.Tensor, "detach_"), detach_)
    for name, handler in (("item", item_of), ("__float__", float_of)):
        FUNCTIONS.add(mro_lookup(torch.Tensor, name), handler)
    FUNCTIONS.add(mro_lookup(torch.Tensor, "tolist"), tolist)
    for name in ("__int__", "__index__"):
        FUNCTIONS.add(mro_lookup(torch.Tensor, name), whole_item)


def tensor_binary(cap: Capture, op: Any, a: Value, b: Value, cont: Cont | None) -> None:
    """An operator of Python with a tensor on either side."""
    name = op.__name__.strip("_")
    for x, method in ((a, f"__{name}__"), (b, f"__r{name}__")):
        if isinstance(x, TensorValue):
            watch_method(cap, x.kind, method)
    try:
        out = cap.builder.call("call_function", op, [a, b], {}, cap.loc())
    except NotConstant:
        why = f"{op.__name__} of a Tensor and {b.cls().__name__}"
        raise refuse("W103", why, cap.loc()) from None
    cap.deliver(out, cont)


def tensor_getitem(cap: Capture, obj: TensorValue, key: Value, cont: Cont | None) -> None:
    """obj[key]."""
    if cap.builder.by_position:
        found = _places_in(cap, obj, cap.unwrap(key))
        if found is not None:
            index = torch.ops.aten.index.Tensor
            out = cap.builder.call("call_function", index, [obj, ListValue(found)], {}, cap.loc())
            cap.deliver(out, cont)
            return
    obj, at = _selected(cap, obj, places_of_masks(cap, obj, key_of(cap, cap.unwrap(key))))
    if at is _NOTHING:
        cap.deliver(obj, cont)
        return
    tensor_binary(cap, operator.getitem, obj, at, cont)


_NOTHING = TupleValue([])


def _selected(cap: Capture, obj: TensorValue, key: Value) -> tuple[TensorValue, Value]:
    """A tensor at the numbers in a key that vary, and the rest of the key: torch would fix them."""
    parts = key.items if isinstance(key, TupleValue) and key.cls() is tuple else [key]
    wanted = [_varying_place(cap, p) for p in parts]
    if not any(wanted) or not all(map(_is_plain_index, parts)) or cap.builder.bodies:
        return obj, key
    taken = sum(not _is_none(p) and not _is_ellipsis(p) for p in parts)
    if taken > obj.fake.dim() or sum(map(_is_ellipsis, parts)) > 1:
        return obj, key  # which raises
    dim, left = 0, list[Slot]()
    for i, (part, place) in enumerate(zip(parts, wanted, strict=True)):
        if place is not None:
            args: list[Value] = [obj, Const(dim), place]
            made = cap.builder.call("call_method", "select", args, {}, cap.loc())
            assert isinstance(made, TensorValue)
            obj = made
            continue
        left.append(part)
        if _is_ellipsis(part):
            dim = obj.fake.dim() - sum(
                not _is_none(p) for p in parts[i + 1 :])  # fmt: skip
        else:
            dim += not _is_none(part)
    return obj, TupleValue(left) if left else _NOTHING


def _varying_place(cap: Capture, x: Slot) -> SizeValue | None:
    """A number that varies, or that a tensor without dimensions holds, as a size."""
    if isinstance(x, TensorValue) and not x.fake.dim() and holds_number(x.fake) and (
            _is_plain_index(x) and cap.builder.takes_data and not cap.builder.bodies):  # fmt: skip
        made = cap.builder.whole_number(x, cap.loc())
        return made if isinstance(made, SizeValue) else None
    if isinstance(x, LateNumber) and not x.fixed and x.cls() in (int, *INTEGERS):
        return cap.sizes.given(x)
    return x if isinstance(x, SizeValue) and x.cls() is int else None


def _is_plain_index(x: Slot) -> bool:
    if isinstance(x, SliceValue):
        return True
    if isinstance(x, TensorValue):  # torch takes places that are numbers first
        return x.fake.dtype not in (torch.bool, torch.uint8)
    return isinstance(x, Const) and (
        x.cls() in (int, slice, types.NoneType, types.EllipsisType, *INTEGERS))  # fmt: skip


def _is_none(x: Slot) -> bool:
    return isinstance(x, Const) and x.cls() is types.NoneType


def _is_ellipsis(x: Slot) -> bool:
    return isinstance(x, Const) and x.cls() is types.EllipsisType


def _places_in(cap: Capture, obj: TensorValue, key: Value) -> list[Any] | None:
    """The tensors that say which elements `key` means; None if it is more than places."""
    parts = key.items if isinstance(key, TupleValue | ListValue) else [key]
    found: list[Any] = []
    for part in parts:
        if isinstance(part, Const) and isinstance(part.obj, int):
            kind: dict[str, Value] = {"dtype": Const(torch.int64), "device": Const(obj.fake.device)}
            place: list[Value] = [TupleValue([]), Const(int(part.obj))]
            part = cap.builder.call("call_function", torch.full, place, kind, cap.loc())
        if not isinstance(part, TensorValue):
            return None
        found.append(part)
    return found


def tensor_setitem(cap: Capture, obj: TensorValue, key: Value, value: Value) -> None:
    """obj[key] = value."""
    try:
        at = key_of(cap, cap.unwrap(key))
        if isinstance(value, TensorValue) and value.fake.dim():
            at = places_of_masks(cap, obj, at)
        obj, at = _selected(cap, obj, at)
        at = Const(Ellipsis) if at is _NOTHING else at
        cap.builder.call("call_function", operator.setitem, [obj, at, value], {}, cap.loc())
    except NotConstant:
        raise refuse("W103", "assignment to an item of a Tensor", cap.loc()) from None


def key_of(cap: Capture, key: Value) -> Value:
    """A key, or a part of one: arrays, and lists of places some of which are drawn, as tensors."""
    if isinstance(key, TupleValue) and key.cls() is tuple:
        return TupleValue([key_of(cap, i) for i in cap.force_items(key.items)])
    if isinstance(key, ArrayValue) and not key.scalar:
        return key.tensor
    if not cap.late.active or not isinstance(key, ListValue):
        return key
    items = cap.force_items(key.items)
    if not any(map(_is_late, items)) or not all(
            isinstance(i, Const) and type(i.sample) is int for i in items):  # fmt: skip
        return key
    return cap.builder.call("call_function", torch.tensor, [key], {}, cap.loc())


def _is_late(x: Value) -> bool:
    return isinstance(x, LateNumber) and not x.fixed


# Masks as indices: which elements they choose is found once, and is an index like any other then.
# What follows reads the chosen elements where it needs them; gradients go the way of indices.
def places_of_masks(cap: Capture, x: TensorValue, key: Value) -> Value:
    """The key of an item of `x`, with the places that masks choose in the place of masks.

    Masks of other sizes than x has stay: the operator says what is wrong with them.
    """
    parts = key.items if isinstance(key, TupleValue) and key.cls() is tuple else [key]
    if not cap.builder.takes_data or not any(map(_is_mask, parts)) or not _masks_fit(x, parts):
        return key
    found: list[Value] = []
    for part in parts:
        assert isinstance(part, Value)
        found += _places(cap, part) if _is_mask(part) and isinstance(part, TensorValue) else [part]
    return TupleValue(list(found))


def _masks_fit(x: TensorValue, parts: Sequence[Slot]) -> bool:
    """Whether the masks of a key have the sizes of the dimensions that they stand for."""
    takes = [_dims_taken(part) for part in parts]
    d = 0
    for i, part in enumerate(parts):
        if _is_ellipsis(part):
            d = x.fake.dim() - sum(takes[i + 1 :])
        elif _is_mask(part):
            assert isinstance(part, TensorValue)
            sizes = x.fake.shape[d : d + takes[i]]
            if len(sizes) < takes[i] or not all(map(agree, sizes, part.fake.shape)):
                return False
        d += takes[i]
    return True


def _dims_taken(part: Slot) -> int:
    """How many dimensions a part of a key stands for."""
    if isinstance(part, TensorValue) and part.fake.dtype in (torch.bool, torch.uint8):
        return part.fake.dim()
    new = isinstance(part, Const) and (part.obj is None or isinstance(part.obj, bool))
    return 0 if new or _is_ellipsis(part) else 1


def _is_mask(x: object) -> bool:
    return isinstance(x, TensorValue) and x.fake.dtype is torch.bool and x.fake.dim() > 0


def _places(cap: Capture, mask: TensorValue) -> list[Value]:
    """An index for each dimension of a mask."""
    data, version = cap.sizes.data, None if mask.fake.is_inference() else mask.fake._version
    known = data.places.get((id(mask.fake), version)) if version is not None else None
    if known is None:
        call, at = cap.builder.call, cap.loc()
        rows = call("call_function", torch.nonzero, [mask], {}, at)
        known = [call("call_method", "select", [rows, Const(1), Const(d)], {}, at)
                 for d in range(mask.fake.dim())]  # fmt: skip
        if version is not None:
            data.places[(id(mask.fake), version)] = known
            cap.kept.append(mask)
    return list(known)


GETATTR.add(TensorValue, tensor_attr)
GETATTR.add(UnreadTensor, tensor_attr)
GETATTR.add(PassedTensor, tensor_attr)
register_methods()
