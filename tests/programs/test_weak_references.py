# The programs are written as users write them.
"""Weak references, and dicts and sets of them."""

import gc
import weakref

import pytest
import torch
from eager_twin import check as check_calls
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class Obj:
    v = 4


class Cache:
    def __init__(self):
        self.table = weakref.WeakKeyDictionary()

    def get(self, k):
        return self.table.get(k, 1)


class Child:
    def __init__(self, parent):
        self.parent = weakref.ref(parent)


class Parent:
    def __init__(self):
        self.scale = 2.0
        self.child = Child(self)


OBJ, KOBJ, PA, HM = Obj(), Obj(), Parent(), torch.nn.Linear(4, 4)
REF, DEAD = weakref.ref(OBJ), weakref.ref(Obj())
WKD = weakref.WeakKeyDictionary({OBJ: 5})
WVD = weakref.WeakValueDictionary({"a": OBJ})
WVT = weakref.WeakValueDictionary({"m": HM})
WS = weakref.WeakSet([OBJ])
CACHE = Cache()
CACHE.table[OBJ] = 9


@stateless()
def ref_(x, y, n):
    return x + REF().v, DEAD() is None


@stateless()
def wkd_(x, y, n):
    return x + WKD[OBJ], OBJ in WKD, WKD.get(OBJ), len(WKD)


@stateless()
def wvd_(x, y, n):
    return x + WVD["a"].v, "b" in WVD, WVD.get("zz"), list(WVD.keys())


@stateless()
def ws_(x, y, n):
    return x + (OBJ in WS), len(WS), [o.v for o in WS]


@stateless()
def wk_iter_(x, y, n):
    return (
        x + sum(WKD.values()),
        [o.v for o in WKD],
        [(k.v, v) for k, v in WKD.items()],
        next(iter(WVD.items()))[0],
    )


@stateless()
def wk_cache_(x, y, n):
    return x + CACHE.get(OBJ), CACHE.get(KOBJ)


@stateless()
def wv_mod_(x, y, n):
    return WVT["m"](x) * 0 + x


@stateless()
def parent_(x, y, n):
    return x * PA.child.parent().scale, PA.child.parent() is PA


@stateless()
def made_keys_(x, y, n):
    key, table = Obj(), weakref.WeakKeyDictionary({OBJ: 2})
    table[key] = x * 2
    table[OBJ] += n
    gone = table.pop(key)
    table.setdefault(key, gone + y)
    return table[key], len(table), table.get(KOBJ), key in table, list(table.values())


@stateless()
def made_values_(x, y, n):
    table = weakref.WeakValueDictionary(a=OBJ)
    table[n] = KOBJ
    del table["a"]
    return x * table[n].v + y, len(table), "a" in table, [k.v for k in table.values()]


@stateless()
def made_set_(x, y, n):
    seen, key = weakref.WeakSet([OBJ]), Obj()
    seen.add(key)
    seen.add(OBJ)
    before = len(seen)
    seen.discard(key)
    return x * before + y, len(seen), OBJ in seen, key in seen


@stateless()
def a_container_leaves_(x, y, n):
    key, table = Obj(), weakref.WeakKeyDictionary()
    table[key] = x * 2 + y
    lost = weakref.WeakKeyDictionary()
    lost[key] = n
    return key, dict(table.items()), len(lost), lost if n > 100 else None


@stateless(breaks=1)
def a_key_that_is_dropped_(x, y, n):
    key, table = Obj(), weakref.WeakKeyDictionary()
    table[key] = x * 2 + y
    before = len(table)
    key = None
    return before, len(table), (x * 2 + y) * n


@stateless()
def weak_method_(x, y, n):
    return weakref.WeakMethod(HM.forward)()(x) * 0 + x + y


class Memo(torch.nn.Module):
    """Keeps what it has computed for an object."""

    def __init__(self):
        super().__init__()
        self.table = weakref.WeakKeyDictionary()
        self.seen = weakref.WeakSet()
        self.by_name = weakref.WeakValueDictionary()

    def forward(self, x, key):
        if key not in self.table:
            self.table[key] = x * 2
            self.seen.add(key)
        self.by_name[len(self.by_name)] = key
        return self.table[key] + x - len(self.seen)


def test_a_module_that_writes_to_weak_containers():
    torchweld.reset()
    keys, x = [Obj(), Obj()], torch.ones(3)
    eager, plain = Memo(), Memo()
    compiled = torchweld.compile(plain, fullgraph=True, backend="eager")
    for key in (*keys, *keys):
        assert torch.equal(compiled(x, key), eager(x, key))
        for name in ("table", "seen", "by_name"):
            assert len(getattr(plain, name)) == len(getattr(eager, name))
    keys.pop()
    del key
    gc.collect()
    assert len(plain.table) == len(plain.seen) == 1
    assert torchweld.statistics()["internal_errors"] == 0


def test_a_container_of_the_frame_forgets_what_dies():
    def program(x):
        table = weakref.WeakValueDictionary()
        held, lost = Obj(), Obj()
        table["held"], table["lost"] = held, lost
        return x * 2 + len(table), held, table

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for fn in (program, compiled):
        value, held, table = fn(torch.ones(2))
        assert (value[0].item(), list(table)) == (4, ["held"])
        assert table["held"] is held


def test_a_callback_of_an_object_from_outside():
    log = []

    def program(x, held):
        return x * 2 + 1, weakref.ref(held, lambda ref: log.append(ref() is None))

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    for fn in (program, compiled):
        held = Obj()
        _, ref = fn(torch.ones(2), held)
        assert ref() is held
        del held
        assert ref() is None
    assert log == [True, True]


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_a_reference_whose_object_goes_away_is_seen():
    holder = {"o": Obj()}
    ref = weakref.ref(holder["o"])

    def program(x):
        o = ref()
        return x - 1 if o is None else x + o.v

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), x + 4)
    holder.clear()
    gc.collect()
    assert ref() is None
    assert torch.equal(compiled(x), x - 1)


def test_a_table_that_gains_a_key_is_seen():
    table, key = weakref.WeakKeyDictionary(), Obj()

    def program(x, n):
        return x + table.get(key, n)

    check_calls(program, (torch.ones(3), 1))
    compiled = torchweld.compile(program, backend="eager")
    assert torch.equal(compiled(torch.ones(3), 1), torch.full((3,), 2.0))
    table[key] = 6
    assert torch.equal(compiled(torch.ones(3), 1), torch.full((3,), 7.0))


def test_a_reference_is_made_and_returned():
    def program(x):
        made = weakref.ref(OBJ)
        return x + made().v, made, made() is OBJ

    check_calls(program, (torch.ones(3),))


def test_what_a_proxy_made_in_the_frame_refers_to_lives_as_long_as_the_frame():
    def program(x):
        held = Obj()
        held.v = x
        seen = weakref.proxy(held)
        return seen.v + 1

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for k in range(3):
        assert torch.equal(compiled(torch.ones(4) * k), torch.ones(4) * k + 1)


class Node:
    def __init__(self, value, parent=None):
        self.value, self.children = value, []
        self.parent = None if parent is None else weakref.ref(parent)
        if parent is not None:
            parent.children.append(self)

    def root(self):
        return self if self.parent is None else self.parent().root()


def test_objects_of_the_frame_refer_to_each_other():
    def program(x):
        top = Node(x)
        middle = Node(x * 2, top)
        low = Node(x + 1, middle)
        seen = weakref.ref(low.value)
        return low.root().value + middle.value, low.parent() is middle, seen() * 3, low.root()

    check_calls(program, (torch.ones(3),))


def test_a_reference_to_what_the_frame_has_dropped_is_empty():
    def program(x):
        first = Node(x)
        seen, last = weakref.ref(first), weakref.ref(Node(x))
        alive = seen() is first
        first = Node(x + 1)
        return first.value, alive, seen() is None, last

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for _ in range(2):
        value, alive, dropped, last = compiled(torch.ones(2))
        assert (value[0].item(), alive, dropped, last()) == (2, True, True, None)


def test_a_class_that_allows_no_references():
    class Bare:
        __slots__ = ()

    def program(x):
        try:
            weakref.ref(Bare())
        except TypeError as error:
            return x + 1, str(error)

    check_calls(program, (torch.ones(3),))
