"""Objects that say themselves what functions of torch do to them."""

import torch
from eager_twin import check


class Unit:
    """A tensor with a unit, for which functions of torch are called."""

    def __init__(self, tensor, unit):
        self.tensor, self.unit = tensor, unit

    @classmethod
    def __torch_function__(cls, fn, kinds, args=(), kwargs=None):
        assert kinds == (cls,)
        units = [a.unit for a in args if isinstance(a, cls)]
        plain = [a.tensor if isinstance(a, cls) else a for a in args]
        if fn is torch.cat:
            plain[0] = [a.tensor for a in plain[0]]
            return cls(fn(*plain, **(kwargs or {})), plain[0])
        return cls(fn(*plain, **(kwargs or {})), f"{fn.__name__} {units}")


def test_objects_with_a_torch_function():
    outside = Unit(torch.ones(4), "m")

    def program(x):
        y = torch.add(Unit(x, "s"), outside, alpha=2)
        z = torch.nn.functional.relu(y)
        return z.tensor, z.unit, torch.cat([y, y], dim=0).tensor, torch.mul(2.0, outside).unit

    check(program, (torch.arange(4.0),))
