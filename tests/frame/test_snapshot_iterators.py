"""Snapshots of programs that read what an iterator still has to give."""

import sys

from torchweld.frame.program import Builder, Op


class Box:
    """Has a `__dict__`."""


def first_left(target):
    """A program: the argument is an iterator whose next item is a Box with this `name`."""
    b = Builder(1)
    it = b.arg(0)
    b.check(Op.TYPE, it, type(iter([])))
    state = b.access(Op.REDUCE, it)
    items = b.access(Op.ITEM_SEQ, b.access(Op.ITEM_SEQ, state, aux=1), aux=0)
    box = b.access(Op.ITEM_SEQ, items, aux=0)
    b.check(Op.TYPE, box, Box)
    table = b.access(Op.INSTANCE_DICT, box)
    with b.while_unchanged(table):
        b.check(Op.EQ, b.access(Op.ITEM_DICT, table, "name"), target)
    return b.build()


def test_what_an_iterator_still_has_to_give_is_behind_a_snapshot():
    box, other = Box(), Box()
    box.name = other.name = 1
    program = first_left(1)
    for _ in range(4):
        assert program.check((iter([box]),))
    assert program.settled
    box.name = 2
    assert not program.check((iter([box]),))
    assert program.check((iter([other]),))
    assert not program.check((iter(()),))
    assert not program.check((iter([]),))
    assert not program.check((box,))


def test_an_iterator_leaves_no_references_behind():
    box = Box()
    box.name = 1
    program = first_left(1)
    for _ in range(8):
        program.check((iter([box]),))
    before = sys.getrefcount(box)
    for _ in range(20):
        assert program.check((iter([box]),))
        assert not program.check((iter([3]),))
    assert sys.getrefcount(box) == before
