# ruff: noqa: C416
# The programs are written as users write them.
"""copy and deepcopy."""

import copy
import dataclasses

import torch
from eager_twin import check, check_made

X = torch.arange(4.0)
Y = torch.ones(4)


class Config:
    def __init__(self):
        self.a = 1
        self.sizes = [1, [2]]
        self.table = {"k": (1, 2)}
        self.me = self


def test_deepcopy_of_a_config():
    def program(x, c):
        d = copy.deepcopy(c)
        d.a = 5
        d.sizes[1].append(3)
        return x * d.a + len(c.sizes[1]), d, d.me is d

    check(lambda x, c: program(x, c)[0], (X, Config()))


def test_copy_shares_items():
    def program(x, c):
        d = copy.copy(c)
        d.a = 7
        d.sizes.append(4)
        return x * d.a + c.a, d.sizes is c.sizes

    check(program, (X, Config()))


def test_copies_of_containers():
    def program(x, a):
        b, c = copy.copy(a), copy.deepcopy(a)
        c["l"].append(1)
        b["n"] = 2
        return (
            x + len(a["l"]),
            b,
            c,
            a["l"] is b["l"],
            copy.deepcopy((1, [2])),
            copy.copy([x]),
            copy.deepcopy({1, 2}),
        )

    check(program, (X, {"l": [x for x in range(2)]}))


def test_deepcopy_keeps_sharing():
    def program(x):
        a = [1]
        b, c = copy.deepcopy([a, a])
        return x + 1, b is c, b is a

    check(program, (X,))


def test_user_written_copy():
    class C:
        def __init__(self, n):
            self.n = n

        def __copy__(self):
            return C(self.n + 1)

        def __deepcopy__(self, memo):
            return C(self.n + 10)

    check(lambda x, c: x * copy.copy(c).n + copy.deepcopy(c).n, (X, C(1)))


def test_deepcopy_of_tensor_and_dataclass():
    @dataclasses.dataclass
    class D:
        t: torch.Tensor

    def program(x):
        d = copy.deepcopy(D(x))
        d.t.add_(1)
        return d.t, x

    check(program, (X,), (Y,))


def test_deepcopy_of_a_module():
    def make():
        torch.manual_seed(0)
        m = torch.nn.Linear(4, 4)
        return lambda x: copy.deepcopy(m.bias.detach()) + x

    check_made(make, (X,))
