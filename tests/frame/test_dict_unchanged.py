"""Blocks that are skipped while a dict is unchanged: skipping never changes the answer."""

import contextlib
import gc
import random
import subprocess
import sys
import threading
from collections import OrderedDict

import pytest

from torchweld.frame.program import Builder, Op


class Plain:
    pass


class Other:
    pass


def with_attribute(cls, value):
    x = cls()
    x.a = value
    return x


def watched(read):
    """A program whose block is `read(builder, dict_register)`."""
    b = Builder(1)
    d = b.arg(0)
    with b.while_unchanged(d):
        read(b, d)
    return b.build()


def item_is_one(b, d):
    b.check(Op.EQ, b.access(Op.ITEM_DICT, d, "a"), 1)


def settle(program, d, times=3):
    for _ in range(times):
        assert program.check((d,))


CHANGES = [
    lambda d: d.__setitem__("a", 2),
    lambda d: d.pop("a"),
    lambda d: d.clear(),
    lambda d: d.update(a=3),
    lambda d: d.popitem(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_unchanged_dict_is_skipped_and_a_change_is_seen(change):
    program = watched(item_is_one)
    d = {"a": 1}
    settle(program, d)
    assert program.known == 1
    change(d)
    assert program.explain((d,)) in (2, 3)
    d.clear()
    d["a"] = 1
    settle(program, d)


def test_deleting_and_adding_other_keys_is_revalidated():
    program = watched(lambda b, d: (item_is_one(b, d), b.check(Op.LACKS_KEY, d, "b")))
    d = {"a": 1}
    settle(program, d)
    d["b"] = 1
    assert not program.check((d,))
    del d["b"]
    assert program.check((d,))
    d["c"] = 1
    assert program.check((d,))


def test_another_dict_is_not_taken_for_the_first():
    program = watched(item_is_one)
    good, bad = {"a": 1}, {"a": 2}
    for _ in range(6):
        assert program.check((good,))
        assert not program.check((bad,))


def test_registers_of_a_skipped_block_keep_their_values():
    b = Builder(1)
    d = b.arg(0)
    with b.while_unchanged(d):
        b.access(Op.ITEM_DICT, d, "a")
    program = b.build()
    first, second = {"a": object()}, {"a": object()}
    for d in (first, first, second, second, first):
        assert program.registers((d,))[1] is d["a"]
    first["a"] = "new"
    assert program.registers((first,))[1] == "new"


def test_a_failing_run_does_not_leave_its_registers_behind():
    b = Builder(2)
    d, flag = b.arg(0), b.arg(1)
    with b.while_unchanged(d):
        b.access(Op.ITEM_DICT, d, "a")
    b.check(Op.IS, flag, True)
    program = b.build()
    first, second = {"a": "first"}, {"a": "second"}
    assert program.registers((first, True))[2] == "first"
    assert not program.check((second, False))
    assert program.registers((first, True))[2] == "first"


def test_a_dict_at_the_address_of_a_dead_one_is_read_again():
    program = watched(item_is_one)
    for _ in range(50):
        d = {"a": 1}
        assert program.check((d,))
        del d
        e = {"a": 2}
        assert not program.check((e,))
        del e


def test_instance_attribute_changes_are_seen():
    b = Builder(1)
    x = b.arg(0)
    d = b.access(Op.INSTANCE_DICT, x)
    with b.while_unchanged(d):
        b.check(Op.EQ, b.access(Op.ITEM_DICT, d, "a"), 1)
    program = b.build()
    x = with_attribute(Plain, 1)
    settle(program, x)
    for _ in range(10):
        x.a = 2
        assert not program.check((x,))
        x.a = 1
        settle(program, x)
    x.__dict__ = {"a": 3}
    assert not program.check((x,))
    del x.a
    assert not program.check((x,))


def test_instance_attributes_set_in_a_specialised_loop_are_seen():
    b = Builder(1)
    d = b.access(Op.INSTANCE_DICT, b.arg(0))
    with b.while_unchanged(d):
        b.check(Op.EQ, b.access(Op.ITEM_DICT, d, "a"), 1)
    program = b.build()
    x = with_attribute(Plain, 1)

    def store(value):
        for _ in range(100):
            x.a = value

    for _ in range(5):
        store(1)
        settle(program, x)
        store(2)
        assert not program.check((x,))


def test_the_class_of_an_item_is_checked_even_if_the_dict_is_unchanged():
    b = Builder(1)
    d = b.arg(0)
    with b.while_unchanged(d):
        b.check(Op.TYPE, b.access(Op.ITEM_DICT, d, "m"), Plain)
    program = b.build()
    m = Plain()
    d = {"m": m}
    settle(program, d)
    m.__class__ = Other
    assert program.explain((d,)) == 3


def test_move_to_end_is_seen():
    program = watched(lambda b, d: b.check(Op.KEYS, d, ("a", "b")))
    d = OrderedDict(a=1, b=2)
    settle(program, d)
    d.move_to_end("a")
    assert not program.check((d,))


def test_a_dict_that_changes_at_every_call_is_demoted():
    program = watched(lambda b, d: b.check(Op.HAS_KEY, d, "a"))
    d = {"a": 0}
    for i in range(10):
        d["a"] = i + 1000
        assert program.check((d,))
    assert program.demoted == 1
    del d["a"]
    assert not program.check((d,))


def test_a_rare_change_does_not_demote():
    program = watched(lambda b, d: b.check(Op.HAS_KEY, d, "a"))
    d = {"a": 0}
    for i in range(10):
        d["a"] = i + 1000
        settle(program, d)
    assert program.demoted == 0


def test_a_skipped_block_in_a_program_that_runs_python_holds_its_values():
    b = Builder(1)
    d = b.arg(0)
    with b.while_unchanged(d):
        b.access(Op.ITEM_DICT, d, "a")
    b.check(Op.PREDICATE, d, lambda d: d.clear() or True)
    program = b.build()
    for _ in range(4):
        d = {"a": [1, 2, 3]}
        assert program.registers((d,))[1] == [1, 2, 3]


def random_change(rng, x):
    """One random change of an instance and of the dicts that it holds."""
    key, value = rng.choice("abc"), rng.choice([1, 2, 1.0, Plain(), None])
    d = rng.choice([x.plain, x.ordered, x.__dict__])
    change = rng.choice([
        lambda: d.__setitem__(key, value),
        lambda: d.pop(key, None),
        lambda: d.setdefault(key, value),
        lambda: d.update({key: value}),
        lambda: setattr(x, key, value),
        lambda: x.__dict__.pop(key, None),
        lambda: x.ordered.move_to_end(key) if key in x.ordered else None,
        lambda: setattr(x, "plain", dict(x.plain)),
        lambda: setattr(x, "ordered", OrderedDict(x.ordered)),
        lambda: setattr(x, "__dict__", dict(x.__dict__)),
        lambda: x.plain.clear(),
        lambda: [setattr(v, "__class__", rng.choice([Plain, Other])) for v in x.plain.values()
                 if type(v) in (Plain, Other)],
        lambda: None,
    ])
    change()


def instance_program(skipping, key, value):
    """Guards over an instance and its two dicts, with or without skipped blocks."""
    b = Builder(1)
    x = b.arg(0)

    def block(d):
        return b.while_unchanged(d) if skipping else contextlib.nullcontext()

    own = b.access(Op.INSTANCE_DICT, x)
    with block(own):
        plain = b.access(Op.ITEM_DICT, own, "plain")
        ordered = b.access(Op.ITEM_DICT, own, "ordered")
        b.check(Op.LACKS_KEY, own, "c")
    with block(plain):
        item = b.access(Op.ITEM_DICT, plain, key)
        b.check(Op.TYPE, item, type(value))
        if type(value) is int:
            b.check(Op.EQ, item, value)
    with block(ordered):
        b.check(Op.KEYS, ordered, ("a", "b"))
    return b.build()


@pytest.mark.parametrize("seed", range(8))
def test_skipping_never_changes_the_answer(seed):
    rng = random.Random(seed)
    cases = [("a", 1), ("b", 2), ("a", Plain())]
    pairs = [(instance_program(True, *c), instance_program(False, *c)) for c in cases]
    passed = 0
    instances = [Plain() for _ in range(3)]
    for x in instances:
        x.plain, x.ordered = {"a": 1, "b": 2}, OrderedDict(a=1, b=2)
    for _ in range(3000):
        x = rng.choice(instances)
        if rng.random() < 0.3:
            random_change(rng, x)
        if rng.random() < 0.05:
            x.plain, x.ordered = {"a": rng.choice([1, Plain()]), "b": 2}, OrderedDict(a=1, b=2)
            x.__dict__.pop("c", None)
        for skipping, full in pairs:
            answer = full.check((x,))
            passed += answer
            assert skipping.check((x,)) is answer
    assert passed > 200


def test_guards_may_run_their_own_program_again():
    b = Builder(2)
    d, depth = b.arg(0), b.arg(1)
    with b.while_unchanged(d):
        item = b.access(Op.ITEM_DICT, d, "a")
    b.check(Op.PREDICATE, depth, lambda depth: again(depth))
    b.check(Op.EQ, item, 1)
    program = b.build()

    def again(depth):
        if depth > 0:
            assert not program.check(({"a": 2}, depth - 1))
            assert program.check(({"a": 1}, depth - 1))
        return True

    d = {"a": 1}
    for depth in (0, 1, 3, 0):
        assert program.registers((d, depth))[2] == 1


def test_a_followed_dict_can_die_before_and_after_its_program():
    program = watched(item_is_one)
    d = {"a": 1}
    settle(program, d)
    del program
    d["a"] = 2
    program = watched(item_is_one)
    d["a"] = 1
    settle(program, d)
    del d
    gc.collect()
    del program


def test_two_programs_follow_one_dict():
    first, second = watched(item_is_one), watched(item_is_one)
    d = {"a": 1}
    settle(first, d)
    settle(second, d)
    del first
    d["a"] = 2
    assert not second.check((d,))


def test_many_followed_dicts():
    pairs = [(watched(item_is_one), {"a": 1}) for _ in range(500)]
    for program, d in pairs:
        settle(program, d)
    for _, d in pairs[::2]:
        d["a"] = 2
    assert [p.check((d,)) for p, d in pairs] == [False, True] * 250


def test_threads_share_a_program():
    b = Builder(2)
    d, want = b.arg(0), b.arg(1)
    with b.while_unchanged(d):
        item = b.access(Op.ITEM_DICT, d, "a")
    b.check(Op.PREDICATE, want, lambda w: True)
    b.check(Op.SAME, item, aux=want)
    program = b.build()
    wrong = []

    def work(i):
        mine, d = object(), {}
        d["a"] = mine
        for k in range(5000):
            if k % 7 == 0:
                mine = d["a"] = object()
            if not program.check((d, mine)) or program.check((d, i)):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []


ALL_WATCHERS_TAKEN = """
import ctypes, sys
add = getattr(ctypes.pythonapi, "PyDict_AddWatcher", None)
if add is not None:
    add.argtypes = [ctypes.c_void_p]
    ignore = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3)(lambda *a: 0)
    try:
        while add(ctypes.cast(ignore, ctypes.c_void_p)) >= 0:
            pass
    except RuntimeError:
        pass
from torchweld.frame.program import Builder, Op
b = Builder(1)
d = b.arg(0)
with b.while_unchanged(d):
    b.check(Op.HAS_KEY, d, "a")
p = b.build()
print([p.check((d,)) for d in ({"a": 1}, {}, {"a": 2})], p.known if add else 0)
"""


def test_without_a_free_watcher_every_guard_is_checked():
    command = [sys.executable, "-c", ALL_WATCHERS_TAKEN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[True, False, True] 0\n", "")
