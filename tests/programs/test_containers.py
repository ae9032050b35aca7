# ruff: noqa: C405, C416, F601, RUF005
# The programs are written as users write them.
"""Lists, dicts, sets, tuples and their relatives, made inside and passed in."""

import collections
import types

import pytest
import torch
from eager_twin import check, check_made

import torchweld

X = torch.arange(4.0)
Y = torch.ones(4)


def test_list_methods():
    def program(x, a):
        a.extend([1, 2])
        a.insert(0, "s")
        a += (5,)
        b = a.pop(), a.pop(1)
        a.remove(2)
        a.reverse()
        n = a.count(1)
        a.append(x + 1)
        c = a.copy(), a.index("s"), n, a * 2, a + [1], len(a), 1 in a
        return b, c

    check(program, (X, [7, 8]), (Y, [7, 8]))


def test_list_argument_is_changed():
    def program(x, a):
        a[0] = x + 1
        a[1:3] = [x, x, 9]
        del a[-1]
        return x

    check(program, (X, [1, 2, 3, 4]))


def test_list_sort():
    def program(x, a):
        a.sort(key=lambda t: -t)
        b = ["b", "a"]
        b.sort()
        a.clear()
        return x + 1, b

    check(program, (X, [3, 1, 2]))


def test_list_slices():
    def program(x):
        a = [0, 1, x, 3, 4]
        a[::2] = ["p", "q", "r"]
        b = a[1:-1], a[::-1], a[:], a[10:]
        del a[1:3]
        return x + 1, a, b, [1, 2] < [1, 3], [1] == [1], [x] != [x, x]

    check(program, (X,))


def test_list_errors():
    def program(x):
        y, out, a = x + 1, [], [1]
        for f in (
            lambda: a[3],
            lambda: a.remove(9),
            lambda: [].pop(),
            lambda: a.index(4),
            lambda: a["x"],
            lambda: {}["k"],
            lambda: (1,)[2],
            lambda: {}.pop("q"),
            lambda: set().remove(1),
            lambda: {[]: 1},
            lambda: a + (1,),
            lambda: 1 + "a",
            lambda: len(3),
            lambda: iter(3),
            lambda: {}.popitem(),
            lambda: int("q"),
        ):
            try:
                f()
            except Exception as error:
                out.append((type(error).__name__, str(error)))
        return y, out

    check(program, (X,))


def test_dict_methods():
    def program(x, d):
        d["new"] = x
        d.update(a=5, z=x + 1)
        d.update({"m": 1})
        d.update([("n", 2)])
        got = (
            d.get("a"),
            d.get("none"),
            d.get("none", 3),
            d.setdefault("s", []),
            d.pop("m"),
            d.pop("q", 4),
        )
        d["s"].append(1)
        keys, values, items = list(d), list(d.values()), list(d.items())
        return got, keys, values, items, len(d), "a" in d, d.keys() & {"a", "q"}, d.popitem()

    check(program, (X, {"a": 1, "b": 2}), (Y, {"a": 1, "b": 2}))


def test_dict_argument_is_changed():
    def program(x, d):
        d["a"] = x * 2
        del d["b"]
        d["c"]["deep"] = x
        d["b"] = 1
        return x

    check(program, (X, {"a": 1, "b": 2, "c": {}}))


def test_dict_cleared_and_filled():
    def program(x, d):
        d.clear()
        d["b"] = x
        return x + 1

    check(program, (X, {"a": 1, "b": 2}))


def test_dict_order_and_merge():
    def program(x):
        a, b = {"x": 1, "y": 2}, {"y": 3, "z": x}
        c = a | b
        a |= b
        return (
            x + 1,
            c,
            a,
            {**a, "w": 1},
            dict(a, q=1),
            a == c,
            dict.fromkeys("ab", 0),
            {1: 2} != {1: 2.0},
        )

    check(program, (X,))


def test_dict_with_tuple_and_tensor_values():
    def program(x):
        d = {(0, 1): x, (1, "a"): 2, None: 3, 1.5: 4, True: 5}
        return d[0, 1] + d[(1, "a")], d[None], d[1.5], d[1], 1 in d

    check(program, (X,))


def test_set_methods():
    def program(x, s):
        s.add(5)
        s.discard(1)
        t = {5, 6}
        out = (s | t, s & t, s - t, s ^ t, s <= t, t >= {5}, s.isdisjoint({9}), 5 in s, len(s))
        t.update([7], {8})
        t -= {8}
        t |= {9}
        u = frozenset(t)
        return (
            x + len(t),
            out,
            t,
            sorted(u),
            s.union([3]),
            s.copy() == s,
            {1} < {1, 2},
            set("aab") == {"a", "b"},
        )

    check(program, (X, {1, 2}))


def test_set_argument_is_changed():
    def program(x, s):
        s.add("new")
        s.remove(1)
        return x + len(s)

    check(program, (X, {1, 2}))


def test_tuple_methods():
    def program(x):
        t = (1, x, 1) + (2,)
        return (
            x + 1,
            t[1:],
            t * 2,
            (1, 2, 1).count(1),
            (1, 2).index(2),
            (1, 2) < (1, 3),
            t[::-1],
            hash((1, 2)) == hash((1, 2)),
            () == (),
        )

    check(program, (X,))


def test_nested_arguments():
    def program(x, tree):
        tree["a"][0]["b"].append(tree["a"][1] + x)
        return tree["a"][0]

    check(program, (X, {"a": [{"b": []}, torch.ones(4)]}))


def test_ordered_dict():
    def program(x, d):
        d.move_to_end("a")
        d["c"] = x
        first = d.popitem(last=False)
        e = collections.OrderedDict(q=1, r=x)
        e.move_to_end("r", last=False)
        return x + 1, first, e, list(e), d == {"a": 1}

    check(program, (X, collections.OrderedDict(a=1, b=2)))


def test_defaultdict():
    def program(x, d):
        d["k"].append(x)
        e = collections.defaultdict(int)
        for c in "abca":
            e[c] += 1
        f = collections.defaultdict(lambda: x)
        return f["z"] + 1, e, dict(e), d

    check(program, (X, collections.defaultdict(list)))


def test_counter():
    def program(x):
        c = collections.Counter("abca")
        c["d"] += 2
        c.update("aa")
        return x + c["a"], c["missing"], c.most_common(1), sorted(c.items()), sum(c.values())

    check(program, (X,))


def test_deque():
    def program(x):
        d = collections.deque([1, 2, 3], maxlen=3)
        d.append(x)
        d.appendleft(0)
        out = d.pop(), d.popleft(), len(d), list(d), d[0]
        d.extend([7, 8])
        d.rotate(1)
        return x + 1, out, list(d), 7 in d, bool(collections.deque())

    check(program, (X,))


def test_a_deque_from_outside_holds_tensors():
    def program(x, window):
        window.append(x)
        return sum(window)

    check(program, (X, collections.deque([Y, X], 2)))


def test_chain_map_and_user_dict():
    def program(x):
        c = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
        u = collections.UserDict(a=x)
        return x + c["b"] + c["a"], u["a"], "a" in u, len(u)

    check(program, (X,))


def test_simple_namespace():
    def program(x, ns):
        ns.b = x + ns.a
        return ns.b, ns.a, hasattr(ns, "zz")

    check(program, (X, types.SimpleNamespace(a=2)))


def test_mapping_proxy():
    table = types.MappingProxyType({"a": 2})
    check(lambda x: (x * table["a"], "b" in table, list(table), table.get("z", 1)), (X,))


def test_unhashable_key_raises():
    def program(x):
        y = x + 1
        try:
            return {[1]: 2}
        except TypeError as error:
            return y, str(error)

    check(program, (X,))


def test_tensor_in_list_by_identity():
    def program(x):
        y = x + 1
        a = [y, x]
        return x in [x], a.index(y) if a[0] is y else -1

    check(program, (X,))


def test_module_level_constants_in_containers():
    check(lambda x: x * CONFIG["deep"]["scale"] + CONFIG["list"][1] + SIZES[0], (X,), (Y,))


CONFIG = {"deep": {"scale": 2}, "list": [1, 2]}
SIZES = (3, 4)


def test_global_list_grows():
    def make():
        rows = []

        def program(x):
            rows.append(x.sum())
            return x + 1

        return program, rows

    check_made(make, (X,))


def test_del_of_list_items_from_outside():
    def program(x, a):
        del a[1]
        a.pop(0)
        return x + len(a)

    check(program, (X, [1, 2, 3]))


def test_in_place_operators_on_outside_containers():
    def program(x, a, d, s):
        a += [x]
        a *= 2
        d |= {"q": 1}
        s |= {3}
        s &= {3, 1}
        return x + 1

    check(program, (X, [1], {"a": 1}, {1, 2}))


def test_list_subclass_argument():
    check(lambda x, s: x.reshape(s) + len(s), (X, torch.Size([2, 2])), (Y, torch.Size([2, 2])))


def test_bytes_and_bytearray():
    check(lambda x: (x + len(b"abc"), b"a" + b"b", b"ab"[0], b"q".decode()), (X,))


def test_order_of_sets():
    def program(x):
        a = {30, 1, 22, 8, 100}
        b = set([64, 0, 32])
        b.add(7)
        b.discard(0)
        c = a | {5, 40} - {1}
        return (
            x + 1,
            list(a),
            [i * 2 for i in b],
            list(c),
            list(set("hello")),
            {1, 2, 3}.pop(),
            str({9, 1}),
        )

    check(program, (X,))


def test_order_of_a_set_from_outside():
    def make():
        names = {"delta", "alpha", "charlie", "bravo"}
        return lambda x: (x + 1, list(names), [n for n in set(names)])

    check_made(make, (X,))


def test_types_of_set_elements_are_guarded():
    check(lambda x, s: [x * i for i in s], (X, {1}), (X, {1.0}), (X, {True}), graphs=3)


def test_mapping_proxy_shows_changes():
    import torchweld

    table = {"a": 2}
    view = types.MappingProxyType(table)
    compiled = torchweld.compile(lambda x: x * view["a"], fullgraph=True, backend="eager")
    assert torch.equal(compiled(X), X * 2)
    table["a"] = 3
    assert torch.equal(compiled(X), X * 3)


def test_equal_numbers_are_one_key():
    def program(x):
        a = {1: "a", True: "b", 1.0: "c"}
        return x + len(a), a, {0: 1}[False], 2.0 in {2: 3}, {(1, 2): 3}[(1.0, 2)]

    check(program, (X,))


def test_one_list_inside_another():
    def program(x, a, b):
        a.append(b)
        b.append(1)
        return x + len(a[-1]), a[-1] is b

    check(program, (X, [], []))


def test_sizes():
    def program(x):
        b = x.size()
        c = torch.Size([2, 2])
        return x.reshape(c), b.numel(), list(b), b == torch.Size([4]), b == (4,), c + b, b[0:1]

    check(program, (X,))


def test_a_deque_from_outside_is_read_and_changed():
    def program(x, d, n):
        first = d.popleft()
        d.append(n)
        d.extendleft([7, 8])
        d[0] = 5
        d.rotate(1)
        return x + first, list(d), d.maxlen, d[-1], 2 in d, len(d)

    calls = (X, collections.deque([1, 2, 3], 4), 6), (X, collections.deque([1]), 6)
    check(program, *calls, graphs=2)


def test_a_deque_that_only_grows_is_not_guarded_by_its_length():
    def program(x, d):
        d.append(x + 1)
        return x * 2

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    seen = collections.deque(maxlen=3)
    for i in range(5):
        compiled(X + i, seen)
        assert torch.equal(seen[-1], X + i + 1)
    assert len(seen) == 3
    assert torchweld.statistics()["graphs"] == 1


def test_a_deque_that_changes_while_it_is_gone_through_raises():
    def program(x, d):
        try:
            for i in d:
                d.append(i)
        except RuntimeError as error:
            return x + 1, str(error)

    check(program, (X, collections.deque([1, 2])))


def test_a_set_that_changes_while_it_is_gone_through_raises():
    def program(x):
        seen = {1}
        try:
            for i in seen:
                seen.add(i + 1)
        except RuntimeError as error:
            return x + 1, str(error)

    check(program, (X,))


def test_deques_are_joined_and_repeated_as_deques():
    def program(x):
        a, b = collections.deque([1, 2], 3), collections.deque([3, 4])
        return x + 1, a + b, b * 2, a < b, a == collections.deque([1, 2]), str(a), repr(b)

    check(program, (X,))


def test_a_slice_of_a_deque_raises():
    def program(x):
        try:
            return collections.deque([1, 2])[:1]
        except TypeError as error:
            return x + 1, str(error)

    check(program, (X,))


def _collide(x, n):
    grown = {4, 3, 9}
    grown |= {3, 4}  # which makes room for five elements
    joined = {n} | {1, 2}, set(range(n)) - set(range(3, n)), frozenset({n, 2}) ^ {2, n + 8}
    return x + 1, *joined, grown, frozenset(grown)


def _grow(x, box):
    box |= {18, 2, 26}
    box.discard(2)
    return x + 1


@pytest.mark.parametrize("n", [9, 10, 40])
def test_sets_that_leave_are_gone_through_in_the_order_of_eager(n):
    _, *sets = torchweld.compile(_collide, fullgraph=True, backend="eager")(X, n)
    assert [list(s) for s in sets] == [list(s) for s in _collide(X, n)[1:]]


def test_a_changed_set_from_outside_is_gone_through_in_the_order_of_eager():
    ours, theirs = {n for n in (34, 10)}, {n for n in (34, 10)}
    torchweld.compile(_grow, fullgraph=True, backend="eager")(X, ours)
    _grow(X, theirs)
    assert list(ours) == list(theirs)


class Default(dict):
    def __missing__(self, key):
        return key + "!"


def test_a_subclass_of_dict_says_what_it_lacks():
    def program(x):
        try:
            return x + 1, "{a} {b}".format_map(Default(a=1))
        except KeyError:
            return x

    compiled = torchweld.compile(program, backend="eager")
    assert compiled(X)[1] == compiled(X)[1] == "1 b!"
