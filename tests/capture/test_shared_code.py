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
