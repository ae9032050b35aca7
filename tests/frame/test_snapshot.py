"""Snapshots: a program that succeeded compares what it depended on, and never answers otherwise."""

import functools
import gc
import random
import struct
import types
from collections import OrderedDict

import pytest

from torchweld.frame.program import Builder, Dispatcher, Entry, Op, Program


class Box:
    """Has a `__dict__`."""


class Crate:
    """Laid out as Box: instances of one can become instances of the other."""


class Slotted:
    __slots__ = ("name",)

    def __init__(self, name):
        self.name = name


class Base:
    table = (1, 2)


class Derived(Base):
    pass


def settled(program, args, times=4):
    """Runs until the program goes by its snapshot."""
    for _ in range(times):
        assert program.check(args)
    assert program.settled


def make_function(start=1):
    cell = start

    def fn(a, b=2, *, c=3):
        return a + b + c + cell

    def assign(value):
        nonlocal cell
        cell = value

    fn.assign = assign
    return fn


def make_world(rng):
    """An instance with everything in it that guards can talk about."""
    x = Box()
    x.number, x.pair, x.items, x.seen = 1, (1, "two"), [1, 2], {1, 2}
    x.inner, x.slotted, x.fn = Box(), Slotted("name"), make_function()
    x.inner.hooks, x.inner.mode = OrderedDict(), True
    x.parts = {"0": Box(), "1": Box()}
    for part in x.parts.values():
        part.hooks, part.params = OrderedDict(), {"w": Box()}
    return x


def other_code(a, b=2, *, c=3):
    return a


def swap_class(x):
    x.__class__ = Crate if type(x) is Box else Box


def swap_dict(x):
    x.__dict__ = dict(x.__dict__)


CHANGES = [
    lambda x, rng: None,
    lambda x, rng: setattr(x, "number", rng.choice([1, 1, 2, True, 1.0])),
    lambda x, rng: setattr(x, "pair", rng.choice([(1, "two"), (1, "three"), (1,), [1, "two"]])),
    lambda x, rng: x.items.append(3) if len(x.items) < 3 else x.items.pop(),
    lambda x, rng: x.items.__setitem__(0, rng.choice([1, 2])) if x.items else None,
    lambda x, rng: setattr(x, "items", list(x.items)),
    lambda x, rng: x.seen.add(3) if len(x.seen) < 3 else x.seen.discard(3),
    lambda x, rng: swap_class(x),
    lambda x, rng: swap_class(x.inner),
    lambda x, rng: swap_class(x.parts["0"]),
    lambda x, rng: swap_dict(x),
    lambda x, rng: swap_dict(x.inner),
    lambda x, rng: x.inner.hooks.update(a=1) if not x.inner.hooks else x.inner.hooks.clear(),
    lambda x, rng: setattr(x.inner, "mode", not x.inner.mode),
    lambda x, rng: setattr(x.inner, "unread", rng.random()),
    lambda x, rng: setattr(x, "unread", rng.random()),
    lambda x, rng: setattr(x, "inner", make_world(rng).inner),
    lambda x, rng: x.parts.__setitem__("0", make_world(rng).parts["0"]),
    lambda x, rng: x.parts["1"].params.__setitem__("w", rng.choice([Box(), Crate()])),
    lambda x, rng: x.parts["1"].hooks.update(a=1),
    lambda x, rng: x.parts["1"].hooks.clear(),
    lambda x, rng: swap_class(x.parts["1"].params["w"]),
    lambda x, rng: setattr(x, "parts", dict(x.parts)),
    lambda x, rng: setattr(x.slotted, "name", rng.choice(["name", "other"])),
    lambda x, rng: setattr(x, "slotted", Slotted("name")),
    lambda x, rng: x.fn.assign(rng.choice([1, 2])),
    lambda x, rng: setattr(x.fn, "__defaults__", rng.choice([(2,), (3,), None])),
    lambda x, rng: setattr(x.fn, "__kwdefaults__", rng.choice([{"c": 3}, None])),
    lambda x, rng: setattr(x, "fn", make_function()),
    lambda x, rng: setattr(Base, "table", rng.choice([(1, 2), (1, 3)])),
    lambda x, rng: setattr(Derived, "table", (1, 2)) if "table" not in vars(Derived)
    else delattr(Derived, "table"),
]  # fmt: skip


def item(b, d, key, *checks):
    reg = b.access(Op.ITEM_DICT, d, key)
    for op, expected in checks:
        b.check(op, reg, expected)
    return reg


def part_guards(b, part):
    own = b.access(Op.INSTANCE_DICT, part)
    with b.while_unchanged(own):
        hooks = item(b, own, "hooks", (Op.TYPE, OrderedDict))
        params = item(b, own, "params", (Op.TYPE, dict))
    b.check(Op.LEN, hooks, None, 0)
    with b.while_unchanged(params):
        item(b, params, "w", (Op.TYPE, Box))


def world_guards(b, x, code):
    """Guards over all that `make_world` makes, in the manner of capture."""
    b.check(Op.TYPE, x, Box)
    own = b.access(Op.INSTANCE_DICT, x)
    with b.while_unchanged(own):
        item(b, own, "number", (Op.EQ, 1))
        pair = item(b, own, "pair", (Op.TYPE, tuple))
        items = item(b, own, "items", (Op.TYPE, list))
        seen = item(b, own, "seen", (Op.TYPE, set))
        inner = item(b, own, "inner", (Op.TYPE, Box))
        slotted = item(b, own, "slotted", (Op.TYPE, Slotted))
        parts = item(b, own, "parts", (Op.TYPE, dict))
        fn = item(b, own, "fn", (Op.TYPE, types.FunctionType))
        b.check(Op.LACKS_KEY, own, "forward")
    b.check(Op.LEN, pair, None, 2)
    b.check(Op.EQ, b.access(Op.ITEM_SEQ, pair, aux=1), "two")
    b.check(Op.LEN, items, None, 2)
    b.check(Op.EQ, b.access(Op.ITEM_SEQ, items, aux=0), 1)
    b.check(Op.LEN, seen, None, 2)
    inner_own = b.access(Op.INSTANCE_DICT, inner)
    with b.while_unchanged(inner_own):
        hooks = item(b, inner_own, "hooks", (Op.TYPE, OrderedDict))
        item(b, inner_own, "mode", (Op.IS, True))
    b.check(Op.LEN, hooks, None, 0)
    b.check(Op.EQ, b.access(Op.GETATTR, slotted, "name"), "name")
    b.check(Op.IS, b.access(Op.GETATTR, fn, "__code__"), code)
    b.check(Op.EQ, b.access(Op.GETATTR, fn, "__defaults__"), (2,))
    b.check(Op.EQ, b.access(Op.CLOSURE, fn, aux=0), 1)
    table = b.access(Op.GETATTR, b.access(Op.CONST, obj=Derived), "table")
    b.check(Op.EQ, table, (1, 2))
    with b.while_unchanged(parts):
        b.check(Op.KEYS, parts, ("0", "1"))
        both = [item(b, parts, key, (Op.TYPE, Box)) for key in ("0", "1")]
    for part in both:
        part_guards(b, part)
    b.check(Op.DISTINCT, both[0], None, both[1])


@pytest.fixture(autouse=True)
def same_classes():
    yield
    Base.table = (1, 2)
    if "table" in vars(Derived):
        del Derived.table


@pytest.mark.parametrize("root", ["argument", "constant"])
@pytest.mark.parametrize("seed", range(6))
def test_a_snapshot_never_changes_the_answer(seed, root):
    rng = random.Random(seed)
    x = make_world(rng)
    b = Builder(1)
    given = b.arg(0)
    world_guards(b, given if root == "argument" else b.access(Op.CONST, obj=x), x.fn.__code__)
    program = b.build()
    passed = by_snapshot = 0
    for _ in range(1500):
        if rng.random() < 0.4:
            rng.choice(CHANGES)(x, rng)
        if rng.random() < 0.05:
            keep = x.__dict__
            keep.clear()
            keep.update(make_world(rng).__dict__)
            x.__class__ = Box
            Base.table = (1, 2)
        fresh = Program(b.instrs, program.n_regs, 1)
        answer = fresh.check((x,))
        by_snapshot += program.settled
        assert program.check((x,)) is answer
        passed += answer
    assert passed > 100
    assert by_snapshot > 100


@pytest.mark.parametrize("seed", range(3))
def test_objects_that_come_and_go_are_told_apart(seed):
    """The addresses of dead objects are used again, for objects of other kinds too."""
    rng = random.Random(seed)
    b = Builder(1)
    x = b.arg(0)
    world_guards(b, x, make_world(rng).fn.__code__)
    program = b.build()
    for _ in range(400):
        x = rng.choice([make_world(rng), make_world(rng), Box(), Crate(), {}, [], (1, 2), 3.5])
        if type(x) is Box and rng.random() < 0.3:
            x.__dict__.update(make_world(rng).__dict__)
        if hasattr(x, "parts") and rng.random() < 0.5:
            rng.choice(CHANGES)(x, rng)
        answer = Program(b.instrs, program.n_regs, 1).check((x,))
        for _ in range(3):
            assert program.check((x,)) is answer
        del x


def watching(read):
    b = Builder(1)
    read(b, b.arg(0))
    return b.build()


def test_an_argument_that_is_another_object_each_time_is_read_each_time():
    program = watching(lambda b, x: b.check(Op.EQ, b.access(Op.ITEM_SEQ, x, aux=0), 1))
    for _ in range(20):
        settled(program, ((1, object()),), 2)
        assert not program.check(((2, object()),))


def test_a_fresh_dict_at_each_call_does_not_end_the_snapshot():
    def read(b, x):
        with b.while_unchanged(x):
            b.check(Op.KEYS, x, ())

    program = watching(read)
    for _ in range(30):
        assert program.check(({},))
    assert program.settled
    assert not program.check(({"a": 1},))


def test_an_attribute_that_changes_at_each_call_does_not_end_the_snapshot():
    x = make_world(random.Random(0))
    x.calls = 0
    program = watching(lambda b, x_: world_guards(b, x_, x.fn.__code__))
    for _ in range(30):
        x.calls += 1
        assert program.check((x,))
    x.calls += 1
    assert program.settled
    x.inner.mode = False
    assert not program.check((x,))


def test_the_code_of_a_function_is_read_without_python():
    fn = make_function()
    code = fn.__code__
    program = watching(lambda b, f: b.check(Op.IS, b.access(Op.GETATTR, f, "__code__"), code))
    settled(program, (fn,))
    assert not program.owning
    fn.__code__ = make_function().__code__.replace(co_name="other")
    assert not program.check((fn,))


def test_defaults_that_are_not_there_are_none():
    def fn(a):
        return a

    program = watching(
        lambda b, f: b.check(Op.IS, b.access(Op.GETATTR, f, "__defaults__"), None))  # fmt: skip
    settled(program, (fn,))
    fn.__defaults__ = (1,)
    assert not program.check((fn,))


def test_a_descriptor_put_on_a_class_is_seen():
    class Holder:
        value = 1

    def read(b, x):
        b.check(Op.EQ, b.access(Op.GETATTR, b.access(Op.CONST, obj=Holder), "value"), 1)

    program = watching(read)
    settled(program, (None,))
    Holder.value = property(lambda self: 1)
    assert not program.check((None,))
    Holder.value = 1
    settled(program, (None,))


def test_an_attribute_of_a_metaclass_hides_that_of_the_class():
    class Meta(type):
        pass

    class Holder(metaclass=Meta):
        value = 1

    def read(b, x):
        b.check(Op.EQ, b.access(Op.GETATTR, b.access(Op.CONST, obj=Holder), "value"), 1)

    program = watching(read)
    settled(program, (None,))
    Meta.value = property(lambda cls: 2)
    assert not program.check((None,))


def test_a_slot_whose_descriptor_is_replaced_is_seen():
    class Local:
        __slots__ = ("name",)

    x = Local()
    x.name = 1
    box = Box()
    box.it = x

    def read(b, box_):
        own = b.access(Op.INSTANCE_DICT, box_)
        with b.while_unchanged(own):
            it = b.access(Op.ITEM_DICT, own, "it")
            b.check(Op.TYPE, it, Local)
        b.check(Op.EQ, b.access(Op.GETATTR, it, "name"), 1)

    program = watching(read)
    for _ in range(4):
        assert program.check((box,))
    Local.name = property(lambda self: 2)
    assert not program.check((box,))


def test_an_empty_slot_fails():
    x = Slotted("name")
    program = watching(lambda b, x_: b.access(Op.GETATTR, x_, "name"))
    for _ in range(3):
        assert program.check((x,))
    del x.name
    assert not program.check((x,))


def test_a_predicate_may_drop_what_was_read():
    """It runs after everything else, and what the entry passes on is held from then on."""
    x = Box()
    x.value = ["kept"]

    def drop(unused):
        x.__dict__.pop("value", None)
        gc.collect()
        return True

    b = Builder(1)
    own = b.access(Op.INSTANCE_DICT, b.arg(0))
    with b.while_unchanged(own):
        value = b.access(Op.ITEM_DICT, own, "value")
    b.check(Op.PREDICATE, own, lambda d: answer(d))
    program = b.build()
    answer = bool
    entry = Entry(program, [value], lambda v: (v,), None, (), 0)
    settled(program, (x,))
    answer = drop
    assert hits(entry, x) == ["kept"]


def hits(entry, x):
    """What an entry answers for one argument."""
    dispatcher = Dispatcher(lambda x: None, lambda d, args: None)
    dispatcher.add(entry)
    return dispatcher(x)


def test_many_predicates_are_all_asked():
    """More of them than of all other steps; their list was cut to the length of the others."""
    for n in (1, 5, 50, 500):
        builder = Builder(1)
        x = builder.arg(0)
        for i in range(n):
            builder.check(Op.PREDICATE, x, functools.partial(int.__ne__, i))
        program = builder.build()
        settled(program, (-1,))
        assert program.check((n,))
        assert not any(program.check((i,)) for i in range(n))


def test_predicates_are_asked_at_every_call():
    asked = []
    program = watching(lambda b, x: b.check(Op.PREDICATE, x, lambda v: asked.append(v) or v > 0))
    for value in (1, 1, 1, 1):
        assert program.check((value,))
    assert program.settled
    assert not program.check((-1,))
    assert asked == [1, 1, 1, 1, -1]


def test_states_are_asked_first_and_at_every_call():
    state = {"now": 1, "asked": 0}

    def ask():
        state["asked"] += 1
        return state["now"]

    b = Builder(1)
    b.check(Op.STATE, obj=(ask, 1))
    b.check(Op.IS, b.arg(0), None)
    program = b.build()
    settled(program, (None,))
    assert not program.owning
    state["now"] = 2
    assert program.explain((None,)) == 0
    state["now"] = 1.0
    assert program.explain((None,)) == 0
    assert state["asked"] == 6


def test_a_state_that_raises_fails():
    b = Builder(0)
    b.check(Op.STATE, obj=(functools.partial(getattr, Box(), "missing"), 1))
    assert b.build().explain(()) == 0


@pytest.mark.parametrize("obj", [None, (), (len,), (1, 2), [len, 1]])
def test_a_state_is_a_callable_and_a_result(obj):
    b = Builder(0)
    b.check(Op.STATE, obj=obj)
    with pytest.raises(ValueError, match="callable, result"):
        b.build()


def test_a_state_after_registers_were_read_makes_the_program_hold_them():
    b = Builder(1)
    own = b.access(Op.INSTANCE_DICT, b.arg(0))
    with b.while_unchanged(own):
        value = b.access(Op.ITEM_DICT, own, "value")
    x = Box()
    x.value = ["kept"]
    b.check(Op.STATE, obj=(lambda: x.__dict__.clear(), None))
    program = b.build()
    assert program.registers((x,))[value] == ["kept"]
    assert program.owning
    assert not program.settled


def test_explain_names_the_first_failure_though_a_snapshot_exists():
    x = make_world(random.Random(0))
    program = watching(lambda b, x_: world_guards(b, x_, x.fn.__code__))
    settled(program, (x,))
    x.parts["1"].hooks["a"] = 1
    x.number = 2
    fresh = watching(lambda b, x_: world_guards(b, x_, x.fn.__code__))
    assert program.explain((x,)) == fresh.explain((x,))


def test_a_snapshot_does_not_outlive_its_objects():
    program = watching(lambda b, x_: world_guards(b, x_, make_world(random.Random(0)).fn.__code__))
    for _ in range(50):
        x = make_world(random.Random(0))
        settled(program, (x,), 2)
        del x
        gc.collect()
        assert not program.check(([],))


def test_a_descriptor_of_a_class_is_asked_in_python():
    class One:
        def __get__(self, obj, cls):
            return 1

    class Holder:
        value = One()

    def read(b, x):
        b.check(Op.EQ, b.access(Op.GETATTR, b.access(Op.CONST, obj=Holder), "value"), 1)

    program = watching(read)
    for _ in range(3):
        assert program.check((None,))
    assert program.owning


def test_arguments_that_must_be_the_same_are_compared_at_every_call():
    b = Builder(2)
    b.check(Op.SAME, b.arg(0), None, b.arg(1))
    program = b.build()
    first, second = object(), object()
    settled(program, (first, first))
    assert not program.check((first, second))
    assert program.check((second, second))


def test_explain_names_a_predicate_though_it_is_asked_late():
    def read(b, x):
        b.check(Op.PREDICATE, b.access(Op.ITEM_SEQ, x, aux=0), bool)
        b.check(Op.EQ, b.access(Op.ITEM_SEQ, x, aux=1), 1)

    program = watching(read)
    settled(program, ((1, 1),))
    assert program.explain(((0, 2),)) == 2


def test_a_dict_that_changed_long_ago_is_followed_again():
    x = Box()
    x.value = 1

    def read(b, x_):
        own = b.access(Op.INSTANCE_DICT, x_)
        with b.while_unchanged(own):
            b.check(Op.HAS_KEY, own, "value")

    program = watching(read)
    for i in range(8):
        x.unread = i + 1000
        for _ in range(4):
            assert program.check((x,))
    assert program.demoted == 0


class SlottedList(list):
    __slots__ = ("a", "b")


class SlottedFloat(float):
    """As large as SlottedList, with a number where a list keeps its length."""

    __slots__ = ("a", "b", "c", "d")


def with_dict(base):
    """A new class, whose address another one has as soon as this one is gone."""

    class Twin(base):
        __slots__ = ("__dict__",)

    return Twin


def test_a_class_that_comes_to_lie_where_another_one_lay_is_told_apart():
    looks_like_two = struct.unpack("d", (2).to_bytes(8, "little"))[0]
    for _ in range(50):
        b = Builder(1)
        given = b.arg(0)
        b.check(Op.LEN, given, None, 2)
        b.access(Op.INSTANCE_DICT, given)
        program = b.build()
        x = with_dict(SlottedList)([1, 2])
        settled(program, (x,))
        address = id(x)
        del x
        gc.collect()
        kind, passed_over = with_dict(SlottedFloat), []
        while len(passed_over) < 200:
            passed_over.append(kind(looks_like_two))
            assert vars(passed_over[-1]) == {}
            if id(passed_over[-1]) == address:
                break
        assert not program.check((passed_over[-1],))
