# ruff: noqa: RUF015
# The programs are written as users write them.
"""Python state that changes between calls: the compiled function follows."""

import collections
import types

import torch

import torchweld

X = torch.arange(4.0)


def follows(fn, changes, *args, fullgraph=True):
    """After each change the compiled function gives what eager gives."""
    torchweld.reset()
    compiled = torchweld.compile(fn, fullgraph=fullgraph, backend="eager")
    for change in (lambda: None, *changes):
        change()
        for _ in range(2):
            assert torch.equal(compiled(X, *args), fn(X, *args))
    assert torchweld.statistics()["internal_errors"] == 0


class Number:
    def __init__(self, n):
        self.n = n

    def __add__(self, o):
        return self.n + o.n

    def __len__(self):
        return self.n

    def __call__(self, x):
        return x * self.n

    @property
    def double(self):
        return self.n * 2

    @staticmethod
    def plain():
        return 1

    def method(self):
        return 2


def fresh():
    return type("Fresh", (Number,), {})


def test_special_method_replaced():
    kind = fresh()
    a, b = kind(1), kind(2)
    follows(lambda x: x * (a + b), [lambda: setattr(kind, "__add__", lambda s, o: 50)])


def test_special_method_added():
    kind = fresh()
    a = kind(1)
    follows(lambda x: x + 1 if a else x - 1, [lambda: setattr(kind, "__bool__", lambda s: False)])


def test_method_property_and_static_method_replaced():
    kind = fresh()
    a = kind(3)
    follows(
        lambda x: x * a.method() + a.double + a.plain(),
        [
            lambda: setattr(kind, "method", lambda s: 7),
            lambda: setattr(kind, "double", property(lambda s: 8)),
            lambda: setattr(kind, "plain", staticmethod(lambda: 9)),
            lambda: setattr(a, "method", lambda: 10),
        ],
    )


def test_call_method_replaced():
    kind = fresh()
    a = kind(3)
    follows(lambda x: a(x), [lambda: setattr(kind, "__call__", lambda s, x: x - 1)])


def test_class_attribute_appears():
    kind = fresh()
    follows(lambda x: x + getattr(kind, "extra", 1), [lambda: setattr(kind, "extra", 5)])


def test_instance_attribute_appears():
    a = Number(1)
    follows(lambda x: x + getattr(a, "extra", 1), [lambda: setattr(a, "extra", 5)])


def test_instance_attribute_hides_a_class_attribute():
    kind = fresh()
    kind.scale = 2
    a = kind(1)
    follows(lambda x: x * a.scale, [lambda: setattr(a, "scale", 5), lambda: delattr(a, "scale")])


def test_list_dict_and_set_contents():
    a, d, s = [1, 2], {"k": 1}, {1}
    follows(
        lambda x: x * sum(a) + d.get("k", 0) + d.get("z", 100) + len(s),
        [
            lambda: a.append(3),
            lambda: a.__setitem__(0, 9),
            lambda: d.update(k=5),
            lambda: d.update(z=7),
            lambda: s.add(4),
            lambda: d.pop("k"),
        ],
    )


def test_dict_order():
    d = {"a": 1, "b": 2}

    def move():
        d["a"] = d.pop("a")

    follows(lambda x: x * list(d.values())[0], [move])


def test_default_arguments():
    def helper(x, by=2, *, plus=1):
        return x * by + plus

    def change():
        helper.__defaults__ = (5,)

    def change_more():
        helper.__kwdefaults__ = {"plus": 7}

    follows(lambda x: helper(x), [change, change_more])


def test_function_code_replaced():
    def helper(x):
        return x + 1

    def other(x):
        return x + 2

    follows(lambda x: helper(x), [lambda: setattr(helper, "__code__", other.__code__)])


def test_closure_variable():
    n = 1

    def change():
        nonlocal n
        n = 2

    follows(lambda x: x * n, [change])


GLOBAL = 1


def test_global_and_shadowed_builtin():
    def change():
        global GLOBAL
        GLOBAL = 2

    def shadow():
        globals()["max"] = lambda *a: 100

    try:
        follows(lambda x: x * GLOBAL + max(1, 2), [change, shadow])
    finally:
        globals().pop("max", None)


def test_module_attribute():
    module = types.ModuleType("some_module")
    module.scale = 2
    follows(lambda x: x * module.scale, [lambda: setattr(module, "scale", 3)])


def test_partial_and_bound_method_replaced_by_equal_kind():
    import functools

    box = {"f": functools.partial(torch.add, other=1)}
    follows(
        lambda x: box["f"](x),
        [
            lambda: box.update(f=functools.partial(torch.add, other=2)),
            lambda: box.update(f=functools.partial(torch.mul, other=2)),
            lambda: box.update(f=Number(4)),
            lambda: box.update(f=Number(5).__call__),
        ],
    )


def test_named_tuple_fields():
    kind = collections.namedtuple("kind", "a b")
    box = [kind(1, 2)]
    follows(lambda x: x * box[0].a + box[0].b, [lambda: box.__setitem__(0, kind(1, 3))])


def test_types_of_equal_numbers():
    box = [1]
    follows(
        lambda x: x.to(torch.int64) * box[0],
        [lambda: box.__setitem__(0, 1.0), lambda: box.__setitem__(0, True)],
    )


def test_slot_filled_later():
    class S:
        __slots__ = ("a",)

    s = S()
    follows(lambda x: x + getattr(s, "a", 1), [lambda: setattr(s, "a", 3), lambda: delattr(s, "a")])


def test_iterator_from_outside_is_consumed():
    torchweld.reset()
    it = iter([1.0, 2.0, 3.0])
    compiled = torchweld.compile(lambda x: x * next(it), backend="eager")
    assert [compiled(X)[1].item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_range_iterator_and_generator_from_outside_are_consumed():
    torchweld.reset()
    ranges, numbers = iter(range(3)), (i for i in range(3))
    compiled = torchweld.compile(lambda x: x * next(ranges) + next(numbers), backend="eager")
    assert [compiled(X)[1].item() for _ in range(3)] == [0.0, 2.0, 4.0]


def test_bytearray_and_array_contents_are_not_baked_in():
    import array

    b, a, q = bytearray(b"a"), array.array("i", [1]), collections.deque([1])

    def program(x):
        return x + len(b) + len(a) + len(q) + (2 if q else 1) + a[0]

    follows(program, [lambda: b.append(1), lambda: a.append(2), lambda: q.clear()], fullgraph=False)


def test_numpy_array_contents_are_not_baked_in():
    import numpy

    a = numpy.array([1, 2])
    follows(lambda x: x * int(a[0]) + (a + 1)[1].item(), [lambda: a.fill(5)], fullgraph=False)


def test_lru_cached_function_reads_a_global_once():
    import functools

    calls = []

    @functools.lru_cache
    def f(n):
        calls.append(n)
        return n + 1

    torchweld.reset()
    compiled = torchweld.compile(lambda x: x * f(2), backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(X), X * 3)


def test_weak_reference_dies():
    import weakref

    a = Number(2)
    box = {"a": a}
    ref = weakref.ref(a)

    def program(x):
        target = ref()
        return x + (1 if target is None else box["a"].n)

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    assert torch.equal(compiled(X), X + 2)


def test_enum_member_attribute():
    import enum

    class E(enum.Enum):
        A = 1

        @property
        def scale(self):
            return 2

    follows(lambda x: x * E.A.scale, [lambda: setattr(E, "scale", property(lambda s: 3))])
