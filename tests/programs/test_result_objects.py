"""Results that share memory are tensor objects of their own where eager's are, without gradients.

Who changes the shape of one, or asks it for gradients, changes nobody else.
"""

import pytest
import torch
import torch.nn.functional as F

import torchweld

PROGRAMS = {
    "the whole": lambda a: a[...],
    "a slice of all": lambda a: a[:],
    "the same shape": lambda a: a.view(a.shape),
    "there and back": lambda a: a.t().t(),
    "detached": lambda a: a.detach(),
    "data": lambda a: a.data,
    "expanded by nothing": lambda a: a.expand(a.shape),
    "one chunk": lambda a: a.chunk(1)[0],
    "a view twice": lambda a: (a[0], a[0]),
    "rows twice": lambda a: (*a.unbind(), *a.unbind()),
    "of a new tensor": lambda a: ((b := a * 2), b.view(-1), b.view(-1), b.detach(), b[:]),
    "of a changed one": lambda a: (a.add_(1), a[...], a.detach()),
    "one object": lambda a: ((b := a * 2), b, b.contiguous(), a.float(), a),
    "dropout that does nothing": lambda a: (a * 2, F.dropout(a, 0.5, False), F.dropout(a, 0.0)),
}


def seen(fn):
    """Which of the argument and the results are one object, and which are one memory."""
    a = torch.arange(6.0).reshape(3, 2)
    out = fn(a)
    things = [a, *(out if isinstance(out, tuple) else (out,))]
    objects, memories = [id(t) for t in things], [t.data_ptr() for t in things]
    return [objects.index(n) for n in objects], [memories.index(n) for n in memories], things


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_objects_and_memory_are_shared_as_in_eager(name, dynamic):
    torchweld.reset()
    fn = PROGRAMS[name]
    compiled = torchweld.compile(fn, dynamic=dynamic)
    for _ in range(2):
        (objects, memories, things), expected = seen(compiled), seen(fn)
        assert objects == expected[0]
        assert memories == expected[1]
        torch.testing.assert_close(things, expected[2], rtol=0, atol=0)
    assert torchweld.statistics()["graphs"] == 1
    assert torchweld.statistics()["aten_graphs"] == 0


def test_a_result_changes_its_shape_alone():
    torchweld.reset()
    compiled = torchweld.compile(lambda a: (a[...], a.detach()))
    a = torch.arange(6.0).reshape(3, 2)
    whole, detached = compiled(a)
    whole.t_()
    detached.requires_grad_()
    assert (a.shape, whole.shape) == ((3, 2), (2, 3))
    assert not a.requires_grad and not whole.requires_grad
