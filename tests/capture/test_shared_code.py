"""Functions that share their code object, but not what it refers to."""

import gc
import types
import weakref

import pytest
import torch

import torchweld

K = 2


def scaled(x):
    return x * K


def test_functions_with_other_globals_called_from_eager_code():
    other = types.FunctionType(scaled.__code__, {**globals(), "K": 5})

    def outer(x):
        y = scaled(x)
        if y.sum() > 0:  # refused: what it calls is compiled on its own
            y = y + 1
        return y, other(x), scaled(x)

    torchweld.reset()
    compiled = torchweld.compile(outer)
    for _ in range(3):
        assert [y.tolist() for y in compiled(torch.ones(1))] == [[3.0], [5.0], [2.0]]


def test_closures_that_are_made_again_at_each_call():
    def outer(x, k):
        def inner(y):
            return y * k

        y = inner(x)
        if y.sum() > 0:  # refused: what it calls is compiled on its own
            y = y + 1
        return y

    torchweld.reset()
    compiled = torchweld.compile(outer)
    for k in (2, 5, 2, 7, 7):
        assert compiled(torch.ones(1), k).tolist() == [k + 1.0]
        assert compiled(torch.ones(1), float(k)).tolist() == [k + 1.0]


@torchweld.disable(recursive=False)
def eagerly(fn, *args):
    """What this calls is compiled on its own."""
    return fn(*args)


def test_instances_of_a_nested_function_share_entries():
    """Their cells are guarded by what is in them: tensors by their metadata."""

    def outer(x, scale):
        calls = 0

        def inner(y):
            nonlocal calls
            calls += 1
            return (y * scale).sin() + y.cos()

        def twice(y):
            return inner(inner(y)) + scale

        return eagerly(inner, x) + eagerly(twice, x), calls

    torchweld.reset()
    compiled = torchweld.compile(outer, backend="eager")
    captures = []
    for k in range(6):
        args = torch.ones(3) + k, torch.full((3,), float(k))
        want, got = outer(*args), compiled(*args)
        assert got[1] == want[1] == 3
        torch.testing.assert_close(got[0], want[0])
        captures.append(torchweld.statistics()["captures"])
    assert captures[-1] == captures[1]
    assert torchweld.statistics()["graphs"] >= 2
    args = torch.ones(2), torch.ones(2)
    torch.testing.assert_close(compiled(*args)[0], outer(*args)[0])


def test_an_instance_runs_with_its_own_cells_where_nothing_is_compiled():
    def outer(x, k):
        def inner(y):
            if y.sum() > 0:
                return y.tolist(), k
            return y * k

        return eagerly(inner, x)

    torchweld.reset()
    compiled = torchweld.compile(outer, backend="eager", options={"recompile_limit": 1})
    for k in ("a", "b", "c"):
        assert compiled(torch.ones(1), k) == ([1.0], k)


def wrapped(fn):
    def call(*args):
        return fn(*args) * 2

    return call


def test_wrappers_that_decorators_make_are_left_alone():
    """They share their code and little else; what they wrap is compiled."""
    functions = [wrapped(fn) for fn in (scaled, torch.sin, torch.nn.Linear(1, 1))]

    def outer(x):
        return [eagerly(fn, x) for fn in functions]

    torchweld.reset()
    compiled = torchweld.compile(outer, backend="eager")
    for got, want in zip(compiled(torch.ones(1)), outer(torch.ones(1)), strict=True):
        torch.testing.assert_close(got, want)
    assert torchweld.frame.hook.state(functions[0].__code__) == "skip"


# ---------------------------------------------------------------- functions compiled anew
def over_a_tensor(i):
    s = torch.full((3,), float(i))
    return lambda x: (x - s).square()


def over_a_module(i):
    net = torch.nn.Linear(3, 3)
    return lambda x: net(x) * 2


def over_a_number(i):
    return lambda x: x * (0.5 * i) + i


def with_a_default(i):
    return lambda x, k=float(i): x * k


def over_nothing(i):
    return lambda x: x.sin() + 1


def over_what_it_writes(i):
    total, log = torch.zeros(3), []

    def f(x):
        total.add_(x)
        log.append(len(log))
        return total * 2 + len(log)

    return f


def over_a_variable_that_a_helper_sets(i):
    n = float(i)

    def bump():
        nonlocal n
        n += 1

    def f(x):
        y = x * n
        bump()
        return y + n

    return f


def broken(i):
    k = torch.ones(3) * i

    def f(x):
        y = x * 2 + 1 + k
        if y.sum() > 1e9:
            return y
        return (y + k).sin() * 2 + k

    return f


@pytest.mark.parametrize(("make", "captures"), [
    (over_a_tensor, 2), (over_a_module, 2), (over_a_number, 3), (with_a_default, 3),
    (over_nothing, 2), (over_a_variable_that_a_helper_sets, 4), (broken, 4),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["eager", "torchweld"])
def test_functions_that_are_made_and_compiled_anew_take_over_what_fits(backend, make, captures):
    torchweld.reset()
    x = torch.randn(3)
    for i in range(7):
        torch.manual_seed(i)
        f = make(i)
        torch.manual_seed(i)
        plain = make(i)
        compiled = torchweld.compile(f, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), plain(x))
    assert torchweld.statistics()["captures"] == captures


def test_functions_that_are_compiled_anew_write_what_is_their_own():
    torchweld.reset()
    made = [over_what_it_writes(i) for i in range(4)]
    compiled = [torchweld.compile(f, backend="eager") for f in made]
    for n in range(1, 4):
        for c in compiled:
            assert c(torch.ones(3)).tolist() == [3.0 * n] * 3


def test_a_function_whose_code_is_assigned_has_nothing_of_the_others():
    made = [over_a_number(i) for i in range(4)]
    compiled = [torchweld.compile(f) for f in made]
    x = torch.ones(3)
    before = [c(x).tolist() for c in compiled]

    def other(i):
        return lambda x: x - i

    made[3].__code__ = other(0).__code__
    assert compiled[3](x).tolist() == [-2.0] * 3
    assert torchweld.compile(over_a_number(3))(x).tolist() == before[3]
    assert [c(x).tolist() for c in compiled[:3]] == before[:3]


def test_functions_that_are_compiled_at_the_same_time_keep_their_own_limit():
    torchweld.reset()
    nets = [torch.nn.Linear(3, 2 + i) for i in range(12)]

    def over(net):
        return lambda x: net(x)

    compiled = [torchweld.compile(over(n), backend="eager") for n in nets]
    for c, net in zip(compiled, nets, strict=True):
        torch.testing.assert_close(c(torch.ones(1, 3)), net(torch.ones(1, 3)))
    assert torchweld.statistics()["graphs"] == 12


def test_what_a_function_closed_over_ends_with_it_while_others_use_its_code():
    gc.collect()
    gc.disable()
    try:
        dead = []
        for _ in range(4):
            net, held = torch.nn.Linear(3, 3), torch.ones(3)

            def helper(x, held=held):
                return x + held

            def f(x, net=net, helper=helper):
                return net(helper(x))

            compiled = torchweld.compile(f)
            compiled(torch.ones(3)).sum().backward()
            dead.append([weakref.ref(o) for o in (net, held, helper, f, net.weight)])
            del net, held, helper, f
        assert [any(r() is not None for r in refs) for refs in dead] == [False] * 3 + [True]
        del compiled
        assert all(r() is None for r in dead[-1])
    finally:
        gc.enable()
