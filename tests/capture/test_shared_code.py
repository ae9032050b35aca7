"""Functions that share their code object, but not what it refers to."""

import types

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
