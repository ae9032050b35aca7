# The programs are written as users write them.
"""Built-ins called with what they do not take: the error is eager's, at the call."""

import collections
import functools
import itertools

import pytest
import torch

import torchweld

CALLS = (
    "max(())", "min([])", "sum(['a', 'b'], '')", "sum([b'a'], b'')", "dict([1])",
    "dict([(1, 2, 3)])", "{}.update(['a'])", "zip(1)", "zip([1], 2, strict=True)", "enumerate(5)",
    "enumerate([1], 'a')", "map(None)", "map(len, 5)", "filter(None)", "filter(None, 3)",
    "reversed(5)", "reversed({1})", "getattr(1, 2)", "hasattr(1, 2)", "setattr(x, 1, 2)",
    "format(1, 5)", "'a'.join(5)", "(1).bit_length(3)", "(1).to_bytes(0, 'big')", "super()",
    "object(1)", "print(1, sep=5)", "functools.partial(5)", "functools.partial()",
    "itertools.islice([1], -1)", "itertools.islice([1], 'a')", "itertools.combinations([1], -1)",
    "itertools.product(5)", "itertools.starmap(len, 3)", "collections.deque([1], -1)",
    "collections.defaultdict('a')", "collections.OrderedDict().popitem()", "{}.popitem()",
    "x.shape[9]", "torch.Size(['a'])", "torch.Generator('zork')", "b'\\xff'.decode('utf8')",
    "(lambda q: q)(*5)", "(lambda q: q)(**5)", "print(*5)", "[*5]", "(*5,)", "{*5}", "{**5}",
    "{**[(1, 2)]}", "{'a': 1}.copy(1)", "{1}.isdisjoint(1, 2)", "{1}.__contains__(1, 2)",
    "[1].__getitem__(0, 1)", "dict(1, 2, 3)", "len([1], 2)", "getattr(1, 'a', default=3)",
    "bool(1, 2)", "collections.deque([1]).popleft(1)", "(1, 2).index()", "functools.cmp_to_key()",
    "range(4).index()", "collections.deque([1]).insert(10**20, 1)", "raise_from(5)",
)  # fmt: skip


def raise_from(cause):
    raise ValueError("a") from cause


class Said:
    def __init__(self, log):
        self.log = log

    def __iter__(self):
        self.log.append("iter")
        return iter([1, 2])


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def function(call):
    source = (f"def f(x):\n    z = x * 2\n    try:\n        y = {call}\n"
              "    except Exception as error:\n"
              "        return z + 1, type(error), str(error), error.__context__\n"
              "    return z - 1, type(y)\n")  # fmt: skip
    scope = {"torch": torch, "itertools": itertools, "functools": functools,
             "collections": collections, "raise_from": raise_from, "__name__": "wrong"}  # fmt: skip
    exec(source, scope)
    return scope["f"]


@pytest.mark.parametrize("call", CALLS)
def test_an_error_of_a_built_in_is_eagers(call):
    fn, x = function(call), torch.ones(2)
    want = fn(x)
    compiled = torchweld.compile(function(call), backend="eager")
    for _ in range(2):
        got = compiled(x)
        assert got[0].tolist() == want[0].tolist()
        assert got[1:] == want[1:]
    assert len(want) == 4
    assert torchweld.statistics()["internal_errors"] == 0


def test_iterators_ask_for_what_they_walk_over_when_they_are_made():
    def fn(x, log):
        said = Said(log)
        log.append("zip")
        pairs = zip(said, [x, x + 1], strict=False)
        log.append("map")
        more = map(str, said)
        log.append("walk")
        items = [1, 2]
        chosen = itertools.combinations(items, 2)
        items.append(3)
        return [n * y for n, y in pairs], list(more), list(chosen)

    x, mine, theirs = torch.ones(2), [], []
    got, want = torchweld.compile(fn, fullgraph=True)(x, mine), fn(x, theirs)
    assert mine == theirs
    assert got[1:] == want[1:]
    assert [y.tolist() for y in got[0]] == [y.tolist() for y in want[0]]


def test_class_methods_written_in_c_are_called_through_an_object():
    def fn(x):
        return x + 1, (5).from_bytes(b"ab", "big"), (1.5).fromhex("a"), "a".maketrans("a", "b")

    assert torchweld.compile(fn, fullgraph=True)(torch.ones(1))[1:] == fn(torch.ones(1))[1:]
