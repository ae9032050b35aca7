"""Modules whose hooks wait for gradients: their call is one step of eager's."""

import torch
from gradient_twin import check
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()


def around(m, x):
    return m(x.sin() * 2 + 1).cos() - x * 2


def test_a_backward_hook():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: (given[0] * 2,))
    check(around, m, X, graphs=2, breaks=1)


def test_a_backward_pre_hook():
    m = nn.Linear(4, 4)
    m.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,))
    check(around, m, X, graphs=2, breaks=1)


def test_a_hook_of_all_modules():
    seen = []
    handle = register_module_full_backward_hook(lambda m, given, out: seen.append(type(m)))
    try:
        check(around, nn.Linear(4, 4), X, graphs=2, breaks=1)
    finally:
        handle.remove()
    assert seen == [nn.Linear] * 8


def test_without_gradients_there_is_nothing_to_wait_for():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: None)

    def quiet(m, x):
        with torch.no_grad():
            return around(m, x)

    check(quiet, m, X)
