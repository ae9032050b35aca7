"""Each guard instruction: what passes, what fails, and that failing is all that can happen."""

import gc
import sys
import types
import weakref
from collections import OrderedDict

import pytest

from torchweld.frame import _frame
from torchweld.frame.program import Builder, Op, Program, explain

NAN = float("nan")


def one_check(op, obj=None, aux=0):
    b = Builder(1)
    b.check(op, b.arg(0), obj, aux)
    return b.build()


def one_access(op, obj=None, aux=0):
    b = Builder(1)
    b.access(op, b.arg(0), obj, aux)
    return b.build()


class Plain:
    pass


class Slotted:
    __slots__ = ("a",)


class Other:
    pass


def function_with_cell(value):
    return lambda: value


CELL_FN = function_with_cell(7)


class SubDict(dict):
    def __getitem__(self, key):
        raise AssertionError("not raw")

    def __contains__(self, key):
        raise AssertionError("not raw")


class SubList(list):
    def __getitem__(self, index):
        raise AssertionError("not raw")

    def __len__(self):
        raise AssertionError("not raw")


SENTINEL = object()
ORDERED = OrderedDict(a=1, b=2)
ORDERED.move_to_end("a")

CHECKS = [
    # op, obj, aux, passing values, failing values
    (Op.IS, None, 0, [None], [0, False]),
    (Op.IS, SENTINEL, 0, [SENTINEL], [object()]),
    (Op.IS_NOT, None, 0, [0, False], [None]),
    (Op.TYPE, int, 0, [1], [True, 1.0]),
    (Op.TYPE, dict, 0, [{}], [SubDict()]),
    (Op.EQ, None, 0, [None], [0]),
    (Op.EQ, True, 0, [True], [1, False]),
    (Op.EQ, 1, 0, [1], [True, 1.0, 2]),
    (Op.EQ, 10**30, 0, [10**29 * 10], [10**30 + 1]),
    (Op.EQ, "ab", 0, ["".join(["a", "b"])], ["ac", b"ab"]),
    (Op.EQ, b"ab", 0, [b"abc"[:2]], [b"ac", "ab"]),
    (Op.EQ, 1.5, 0, [3.0 / 2], [1, 1.0]),
    (Op.EQ, NAN, 0, [NAN, float("nan")], [1.0]),
    (Op.EQ, 0.0, 0, [0.0], [-0.0, 0]),
    (Op.EQ, complex(0.0, -0.0), 0, [complex(0.0, -0.0)], [0j]),
    (Op.EQ, (1, ("a", 2.0)), 0, [(1, ("a", 2.0))], [(1, ("a", 2)), (1,), [1, ("a", 2.0)]]),
    (Op.LEN, None, 2, [[1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", SubList([1, 2])],
     [[1], (), {1: 1}, "abc", 2, None]),
    (Op.HAS_KEY, "a", 0, [{"a": 1}, SubDict(a=1), {1: 1, "a": 2}], [{}, {"b": 1}, 3]),
    (Op.HAS_KEY, 1, 0, [{1: 1}, {True: 0}], [{2: 1}]),
    (Op.HAS_KEY, [], 0, [], [{1: 1}]),
    (Op.LACKS_KEY, "a", 0, [{}, {"b": 1}, {1: 1}], [{"a": 1}, 3]),
    (Op.LACKS_KEY, [], 0, [], [{1: 1}]),
    (Op.KEYS, ("a", "b"), 0, [{"a": 1, "b": 2}, OrderedDict(a=1, b=2)],
     [{"b": 1, "a": 2}, {"a": 1}, {"a": 1, "c": 2}, ORDERED, 3]),
    (Op.KEYS, (), 0, [{}, OrderedDict()], [{"a": 1}]),
    (Op.KEYS, (1, SENTINEL), 0, [{1: 0, SENTINEL: 0}], [{True: 0, SENTINEL: 0}, {1: 0, 2: 0}]),
    (Op.PREDICATE, lambda x: x > 3, 0, [4], [3, "not comparable"]),
    (Op.INT_RANGE, (2, 5), 0, [2, 5], [1, 6, True, 2.0, 10**30]),
    (Op.TYPE_VERSION, Plain, 0, [Plain], [Other]),
]


@pytest.mark.parametrize("row", CHECKS, ids=lambda row: f"{row[0].name}-{row[1]!r:.20}")
def test_check_passes_and_fails(row):
    op, obj, aux, passing, failing = row
    program = one_check(op, obj, aux)
    for value in passing:
        assert program.explain((value,)) == -1, value
        assert program.check((value,))
    for value in failing:
        assert program.explain((value,)) == 1, value
        assert not program.check((value,))


def test_same_and_distinct_compare_identity():
    for op, passes in ((Op.SAME, True), (Op.DISTINCT, False)):
        b = Builder(2)
        b.check(op, b.arg(0), aux=b.arg(1))
        program = b.build()
        a, other = [], []
        assert program.check((a, a)) is passes
        assert program.check((a, other)) is not passes


def test_all_distinct_finds_any_pair():
    b = Builder(40)
    regs = tuple(b.arg(i) for i in range(40))
    b.check(Op.ALL_DISTINCT, obj=regs)
    program = b.build()
    values = [object() for _ in range(40)]
    assert program.check(tuple(values))
    values[3] = values[37]
    assert not program.check(tuple(values))


def with_attribute(cls, value):
    x = cls()
    x.a = value
    return x


ACCESSES = [
    # op, obj, aux, (argument, value) that succeed, arguments that fail
    (Op.ITEM_DICT, "a", 0, [({"a": 1}, 1), (SubDict(a=1), 1), (OrderedDict(a=1), 1)], [{}, 1, [1]]),
    (Op.ITEM_DICT, 3, 0, [({3: "x"}, "x")], [{}]),
    (Op.ITEM_SEQ, None, 1, [([1, 2], 2), ((1, 2), 2), (SubList([1, 2]), 2)], [[1], (), {1: 2}]),
    (Op.ITEM_SEQ, None, -2, [([1, 2], 1), ((4, 3, 2), 3)], [[1], (), {-2: 2}]),
    (Op.GETATTR, "a", 0, [(with_attribute(Slotted, 5), 5), (with_attribute(Plain, 6), 6)],
     [Slotted(), 3]),
    (Op.INSTANCE_DICT, None, 0, [(with_attribute(Plain, 6), {"a": 6}), (Plain(), {}),
                                 (CELL_FN, {})], [3, Slotted(), []]),
    (Op.CELL, None, 0, [(CELL_FN.__closure__[0], 7)], [types.CellType(), 3]),
    (Op.CLOSURE, None, 0, [(CELL_FN, 7)], [len, test_same_and_distinct_compare_identity]),
    (Op.CLOSURE, None, 1, [], [CELL_FN]),
    (Op.TYPE_OF, None, 0, [(True, bool), (SubDict(), SubDict)], []),
]


@pytest.mark.parametrize("row", ACCESSES, ids=lambda row: f"{row[0].name}-{row[1]!r:.20}")
def test_access_reads_or_fails(row):
    op, obj, aux, passing, failing = row
    program = one_access(op, obj, aux)
    for value, expected in passing:
        assert program.registers((value,))[1] == expected
    for value in failing:
        assert program.explain((value,)) == 1, value
    assert sys.exc_info() == (None, None, None)


def test_instance_dict_is_the_dict_itself():
    x = with_attribute(Plain, 1)
    assert one_access(Op.INSTANCE_DICT).registers((x,))[1] is x.__dict__


def test_instance_dict_of_a_class_is_its_own_dict():
    found = one_access(Op.INSTANCE_DICT).registers((Plain,))[1]
    assert type(found) is dict and found["__module__"] == __name__


def test_instance_dict_leaves_a_builtin_class_alone():
    found = one_access(Op.INSTANCE_DICT).registers((int,))[1]
    assert found["__add__"] is int.__dict__["__add__"]


def test_const_and_call0_write_registers():
    b = Builder(0)
    b.access(Op.CONST, obj="k")
    b.access(Op.CALL0, obj=lambda: [1])
    assert b.build().registers(()) == ("k", [1])


def test_call0_that_raises_fails():
    b = Builder(0)
    b.access(Op.CALL0, obj=lambda: 1 / 0)
    assert b.build().explain(()) == 0


def test_explain_names_the_first_failing_instruction():
    b = Builder(2)
    x, y = b.arg(0), b.arg(1)
    b.check(Op.TYPE, x, int, why="x is an int")
    b.check(Op.EQ, y, 3, why="y is 3")
    program = b.build()
    assert program.explain(("no", 4)) == 2
    assert program.explain((1, 4)) == 3
    assert explain(program, (1, 4)) == "y is 3"
    assert explain(program, (1, 3)) is None


def test_op_numbers_are_those_of_the_extension():
    assert {op.name: int(op) for op in Op} == {op.name: getattr(_frame, op.name) for op in Op}


BAD_PROGRAMS = [
    ([(99, 0, -1, None, 0)], "unknown op"),
    ([(Op.ARG, 0, -1, None, 2)], "no such argument"),
    ([(Op.IS, -1, 0, None, 0)], "before it is written"),
    ([(Op.ARG, 5, -1, None, 0)], "out of range"),
    ([(Op.ARG, 0, -1, None, 0), (Op.ARG, 0, -1, None, 0)], "nothing else writes"),
    ([(Op.ARG, 0, -1, None, 0), (Op.EQ, -1, 0, [1], 0)], "cannot compare"),
    ([(Op.ARG, 0, -1, None, 0), (Op.TYPE, -1, 0, 3, 0)], "not a class"),
    ([(Op.ARG, 0, -1, None, 0), (Op.LEN, -1, 0, None, -1)], "negative"),
    ([(Op.ARG, 0, -1, None, 0), (Op.SAME, -1, 0, None, 1)], "was written"),
    ([(Op.ARG, 0, -1, None, 0), (Op.PREDICATE, -1, 0, 3, 0)], "not callable"),
    ([(Op.ARG, 0, -1, None, 0), (Op.DICT_UNCHANGED, -1, 0, None, 1)], "after the program"),
    ([(Op.ARG, 0, -1, None, 0), (Op.DICT_UNCHANGED, -1, 0, None, 1), (Op.TYPE_OF, 1, 0, None, 0)],
     "cannot be in its block"),
]


@pytest.mark.parametrize("instrs, why", BAD_PROGRAMS, ids=lambda x: x if type(x) is str else "")
def test_a_malformed_program_is_refused(instrs, why):
    with pytest.raises(ValueError, match=why):
        Program(instrs, 2, 1)


def test_arguments_must_be_as_many_as_declared():
    program = one_check(Op.IS)
    with pytest.raises(ValueError, match="takes 1"):
        program.check(())
    with pytest.raises(TypeError):
        program.check([1])


# --- classes ------------------------------------------------------------------------------------


def test_type_version_notices_class_and_base_changes():
    class Base:
        pass

    class Derived(Base):
        pass

    def fresh():
        b = Builder(0)
        b.check(Op.TYPE_VERSION, obj=Derived)
        return b.build()

    for change in (
        lambda: setattr(Derived, "x", 1),
        lambda: setattr(Base, "y", 1),
        lambda: delattr(Derived, "x"),
        lambda: setattr(Derived, "__bases__", (Other,)),
    ):
        program = fresh()
        Derived().__class__.__name__
        assert program.check(())
        change()
        assert not program.check(())
        Derived.__mro__, getattr(Derived, "x", None)
        assert not program.check(())


# --- safety -------------------------------------------------------------------------------------


def test_hostile_keys_cannot_free_what_registers_hold():
    class Hostile:
        def __hash__(self):
            return hash("b")

        def __eq__(self, other):
            victim.clear()
            gc.collect()
            return False

    b = Builder(2)
    item = b.access(Op.ITEM_DICT, b.arg(0), "a")
    b.check(Op.LACKS_KEY, b.arg(1), "b")
    b.access(Op.TYPE_OF, item)
    program = b.build()
    victim = {"a": Plain()}
    assert program.registers((victim, {Hostile(): 1}))[-1] is Plain
    assert victim == {} and program.owning


def test_guards_drop_the_references_they_took():
    b = Builder(1)
    x = b.arg(0)
    b.access(Op.GETATTR, x, "a")
    b.check(Op.PREDICATE, b.access(Op.INSTANCE_DICT, x), lambda d: True)
    program = b.build()
    x = with_attribute(Plain, object())
    before = sys.getrefcount(x.a), sys.getrefcount(x)
    for _ in range(1000):
        program.check((x,))
        program.explain((3,))
    assert (sys.getrefcount(x.a), sys.getrefcount(x)) == before


def test_a_program_in_a_cycle_is_collected():
    class Owner:
        pass

    owner = Owner()
    b = Builder(1)
    b.check(Op.IS, b.arg(0), owner)
    owner.program = b.build()
    owner.program.check((owner,))
    gone = weakref.ref(owner)
    del owner, b
    gc.collect()
    assert gone() is None
