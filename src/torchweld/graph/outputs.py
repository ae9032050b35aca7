"""What a run changed and returned: mutated inputs, aliasing outputs, and their nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from torchweld.base.errors import Unsupported
from torchweld.graph.functional import (
    has_new_data,
    has_new_metadata,
    is_base,
    is_wrapped,
    share_storage,
    storage_of,
    unwrap,
    view_again,
)
from torchweld.graph.layout import same_strides, with_layout
from torchweld.graph.record import Recorder
from torchweld.ir.nested import memory_of
from torchweld.ir.predicted import below_functionalization


@dataclass(frozen=True, slots=True)
class Results:
    """The nodes that a functional graph returns.

    mutated, updates: positions of changed inputs and the nodes of their new values.
    values: one node per captured output. aliases: as in GraphPair.
    groups: for each output, a number that is equal for outputs which are views of one tensor.
    objects: for each output, a number that is equal for outputs which are one tensor object;
        negative for an input itself.
    """

    mutated: tuple[int, ...]
    updates: tuple[Node, ...]
    values: tuple[Node, ...]
    aliases: tuple[int | None, ...]
    groups: tuple[int, ...]
    objects: tuple[int, ...]


def check_inputs(fakes: Sequence[Tensor]) -> None:
    """Refuse kinds of tensors whose functional form is not modelled.

    Errors: Unsupported W112.
    """
    for fake in fakes:
        if fake.layout != torch.strided or fake.is_quantized:
            raise Unsupported("W112", f"an input of layout {fake.layout}")
        if fake.is_conj() or fake.is_neg():
            raise Unsupported("W112", "an input that is a lazy conjugate or negation")


def collect(
    recorder: Recorder,
    inputs: Sequence[Tensor],
    fakes: Sequence[Tensor],
    outs: Sequence[Any],
    expected: Sequence[object],
    made: Iterable[Any],
) -> Results:
    """Read the results off the functional tensors. Runs inside of `functionalized`.

    inputs: the wrappers of `fakes`, in order. outs: what the captured graph returned.
    expected: the captured values of the outputs, whose strides are eager's; anything else than a
        tensor says nothing.
    made: everything that the captured graph produced, to find the bases of views.
    Errors: Unsupported W201 when an input was changed in a way that a copy cannot express.
    """
    mutated = _mutated(inputs, fakes)
    for out in outs:
        _check_output(out)
    aliases = _inputs_of(outs, inputs)
    groups = _groups(outs)
    members: dict[int, list[Tensor]] = {}
    for out, group in zip(outs, groups, strict=True):
        members.setdefault(group, []).append(out)
    tensors = [x for x in (*outs, *made) if is_wrapped(x)]
    values: list[Tensor] = []
    for out, alias, group, like in zip(outs, aliases, groups, expected, strict=True):
        if alias is not None:
            values.append(view_of(out, inputs[alias]))
        elif len(members[group]) > 1:
            values.append(_view_of_shared(out, members[group], tensors))
        else:
            values.append(_as_captured(out, like, tensors))
    return Results(
        mutated,
        tuple(recorder.node_of(unwrap(inputs[i])) for i in mutated),
        tuple(recorder.node_of(value) for value in values),
        aliases,
        groups,
        _objects(outs, inputs),
    )


def _mutated(inputs: Sequence[Tensor], fakes: Sequence[Tensor]) -> tuple[int, ...]:
    found = []
    for i, (wrapper, fake) in enumerate(zip(inputs, fakes, strict=True)):
        value = unwrap(wrapper)
        if has_new_metadata(wrapper):
            raise Unsupported("W201", f"input {i} gets another shape or storage in place")
        if has_new_data(wrapper) and value is not fake:
            if value.shape != fake.shape or value.dtype != fake.dtype:
                raise Unsupported("W201", f"input {i} becomes {value.dtype} {list(value.shape)}")
            found.append(i)
        elif value is not fake and not share_storage(value, fake):
            raise Unsupported("W201", f"input {i} changes in a way that is not understood")
    return tuple(found)


def check_overlap(mutated: Sequence[int], fakes: Sequence[Tensor]) -> None:
    """Refuse a change of an input through which another input changes, too.

    Errors: Unsupported W201.
    """
    sharing: dict[int, list[int]] = {}
    for j, fake in enumerate(fakes):
        sharing.setdefault(memory_of(fake), []).append(j)
    for i in mutated:
        j = next((j for j in sharing[memory_of(fakes[i])] if j != i), i)
        if j != i:
            raise Unsupported("W201", f"inputs {i} and {j} share memory and {i} is changed")


def _check_output(out: Any) -> None:
    if not is_wrapped(out):
        raise Unsupported("W201", f"an output that is a {type(out).__name__}, not a tensor")
    if type(out) is not Tensor:
        raise Unsupported("W201", "an output that is a parameter")


def _inputs_of(outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[int | None, ...]:
    """Which input each output is, or is a view of; None for a tensor of its own."""
    same: dict[int, int] = {}
    views: dict[int, int] = {}
    for i, x in enumerate(inputs):
        same.setdefault(id(x), i)
        views.setdefault(storage_of(x), i)
    return tuple(same.get(id(out), views.get(storage_of(out))) for out in outs)


def _groups(outs: Sequence[Tensor]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    return tuple(first.setdefault(storage_of(out), j) for j, out in enumerate(outs))


def view_of(out: Tensor, base: Tensor) -> Tensor:
    """The value of `out` as a view of the value of `base`."""
    value, whole = unwrap(out), unwrap(base)
    if out is base:
        return whole
    if share_storage(value, whole):
        return value
    with below_functionalization():
        again = view_again(out, whole)
    if again is None or not share_storage(again, whole):
        raise Unsupported("W201", "an output that is a view cannot be derived from its base")
    return again


def _view_of_shared(out: Tensor, members: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """The value of `out`, sharing memory with the values of the other outputs of its group."""
    values = [unwrap(member) for member in members]
    if all(share_storage(values[0], value) for value in values[1:]):
        return unwrap(out)
    base = _base_of(out, tensors)
    if base is None:
        raise Unsupported("W201", "outputs that are views of a tensor that is out of reach")
    return unwrap(out) if out is base else view_of(out, base)


def _base_of(out: Tensor, tensors: Sequence[Tensor]) -> Tensor | None:
    return next((x for x in tensors if share_storage(x, out) and is_base(x)), None)


def _as_captured(out: Tensor, like: object, tensors: Sequence[Tensor]) -> Tensor:
    """The value of `out` with the strides that eager gives it."""
    value = unwrap(out)
    if not isinstance(like, Tensor) or same_strides(value, like):
        return value
    with below_functionalization():
        value = with_layout(value, like.stride())
    if same_strides(value, like):
        return value
    base = _base_of(out, tensors)
    if base is not None and base is not out:
        value = view_of(out, base)
    if not same_strides(value, like):
        raise Unsupported("W201", "an output whose strides have no functional form")
    return value


def _objects(outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[int, ...]:
    known = {id(x): -1 - i for i, x in enumerate(inputs)}
    return tuple(known.setdefault(id(out), i) for i, out in enumerate(outs))
