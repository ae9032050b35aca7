"""In-place operators on lists of fake tensors: which only write, and which torch has to look at."""

import pytest
import torch
from torch import empty

from torchweld.ir import fake
from torchweld.ir.fake import FakeMode
from torchweld.ir.fake_checks import changes_no_looks


def floats(*shapes, **kind):
    return [empty(s, **kind) for s in shapes]


SHAPES = ((3,), (2, 4))
PLAIN = {
    "lists": lambda a: (a, floats(*SHAPES)),
    "three lists": lambda a: (a, floats(*SHAPES), floats(*SHAPES)),
    "a number": lambda a: (a, 0.5),
    "numbers": lambda a: (a, [0.5, 2]),
}
OTHER = {
    "another shape": lambda a: (a, floats((3,), (4,))),
    "another dtype": lambda a: (a, floats(*SHAPES, dtype=torch.float64)),
    "fewer": lambda a: (a, floats((3,))),
    "a tensor": lambda a: (a, empty(())),
    "a complex number": lambda a: (a, 1j),
    "integers": lambda a: ([empty(3, dtype=torch.int64)], 1),
    "elements in one place": lambda a: ([empty(1).expand(3)], 1.0),
    "none": lambda a: ([], 1.0),
}


@pytest.mark.parametrize("name", [*PLAIN, *OTHER])
def test_which_calls_change_no_looks(name):
    with FakeMode():
        args = {**PLAIN, **OTHER}[name](floats(*SHAPES))
        assert changes_no_looks(args, {}) is (name in PLAIN)


def test_no_kernel_runs_for_each_tensor(monkeypatch):
    ran = []
    below = fake.QuietFakeTensorMode.dispatch
    monkeypatch.setattr(fake.QuietFakeTensorMode, "dispatch",
                        lambda self, func, *rest: (ran.append(func), below(self, func, *rest))[1])
    with FakeMode():
        xs, ys = floats(*SHAPES), floats(*SHAPES)
        ran.clear()
        torch._foreach_addcmul_(xs, ys, ys, value=0.5)
        torch._foreach_mul_(xs, 0.5)
        assert ran == []


def test_what_eager_refuses_is_refused():
    with FakeMode(), pytest.raises(RuntimeError):
        torch._foreach_add_(floats((3,)), floats((2,)))


@pytest.mark.parametrize("kernel", [False, True])
def test_the_device_of_a_fake_tensor_is_what_it_stands_for(kernel):
    with FakeMode() as mode:
        x = empty(3, device="cuda:0") if torch.cuda.is_available() else empty(3)
        mode.in_kernel_invocation = kernel
        assert x.device.type == ("meta" if kernel else x.fake_device.type)
