"""What varies among the arguments of the rest of a broken frame, as far as that is known before.

Sizes that varied in the stretch before do so in the rest. And what an eager step made whose size or
value only the data decides differs from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from torchweld.frame.decode import decode
from torchweld.ir.region import Resume
from torchweld.ir.source import Attr, Item, Local, Source
from torchweld.sites import Site

CODES = ("W102", "W105", "W124")  # of breaks at such a step
_MANY = 16  # of numbers in a list, so many are looked at
_NO_DIM = 99
_FLAT = (int, float)
# what is captured; what others answer is up to their classes
_TENSORS = (torch.Tensor, torch.nn.Parameter)

State = tuple[object, ...]
Part = tuple[Source, str, int]
Root = Callable[[int], Source]


def argument(names: Sequence[str]) -> Root:
    """Where a rest with these parameters finds them."""
    return lambda i: Local.make(i, names[i])


def expect(site: Site, root: Root, resume: Resume, first: int, before: Sequence[State],
           after: State) -> None:  # fmt: skip
    """Note in the site of a rest what varies of its arguments, or of what a generator among them
    holds.

    root: where they are found. before: the states of frames from the number `first` on in front of
    the step, outermost first. after: what the rest of the innermost of them gets.
    """
    level = first + len(before) - 1
    for frame, i, kind, dim in resume.varying:
        if first <= frame < level or (
                frame == level and i < len(after) and before[-1][i] is after[i]):  # fmt: skip
            _note(site, (found_at(root, before[: frame - first], i), kind, dim))
    last = resume.frames[-1]
    steps = decode(last.code).instrs[last.index].op == "FOR_ITER"
    if (resume.by_data or steps) and level == len(resume.frames) - 1:
        own = before[-1]
        # of what a loop gives, numbers vary
        dim = _NO_DIM if steps else _mask_dim(own)
        for i, x in enumerate(after):
            if i >= len(own) or own[i] is not x:
                for part in _parts(x, found_at(root, before[:-1], i), dim):
                    _note(site, part)


def _note(site: Site, part: Part) -> None:
    if part[1] == "number":
        site.late.add(part[0])
    elif part[1] == "length":
        site.lengths.add(part[0])
    else:
        site.parts.add(part)


def found_at(root: Root, waits: Sequence[State], i: int) -> Source:
    """Where the rest finds item `i` of the state behind these: see `rests.Break.go_on`."""
    if not waits:
        return root(i)
    source = root(len(waits[0]) + 1)
    for state in waits[1:]:
        source = Item.make(source, len(state) + 1, True)
    return Item.make(source, i, True)


def held(generator: Source) -> Root:
    """Where what a generator that waits holds is found."""
    state = Attr.make(generator, "state")
    return lambda i: Item.make(state, i, True)


def _parts(x: object, source: Source, dim: int) -> Iterator[Part]:
    if type(x) in _FLAT:
        yield source, "number", 0
    elif isinstance(x, torch.Tensor) and type(x) in _TENSORS and x.dim() > dim:
        yield source, "size", dim
        yield from ((source, "stride", d) for d in range(dim))
    elif type(x) in (list, tuple):
        assert isinstance(x, list | tuple)
        yield source, "length", 0
        for k, item in enumerate(x[:_MANY]):
            yield from _parts(item, Item.make(source, k, True), dim)


def _mask_dim(state: State) -> int:
    """The dimension of the result that counts what is selected: where the mask of an index is."""
    last = next((x for x in reversed(state) if type(x) is tuple), ())
    assert isinstance(last, tuple)
    dim = 0
    for item in last:
        if isinstance(item, torch.Tensor) and item.dtype is torch.bool:
            return dim
        dim += item is None or isinstance(item, slice)
    return 0
