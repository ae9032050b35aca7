"""Inference tensors count no versions, but what is written must be known all the same."""

import pytest
import torch

import torchweld
from torchweld.capture.guard_build import GuardBuilder, is_no_inference
from torchweld.frame.program import tensor_codes
from torchweld.ir.guard import Guard
from torchweld.ir.source import Local


def bumped(a, b):
    a.add_(1)
    return a + b


@pytest.mark.parametrize("mode", [True, False])
def test_written_argument_that_is_another_one_too(mode):
    torchweld.reset()
    compiled = torchweld.compile(bumped)
    with torch.inference_mode(mode):
        assert compiled(torch.ones(2), torch.ones(2)).tolist() == [3, 3]
        same = torch.ones(2)
        assert compiled(same, same).tolist() == [4, 4]


@pytest.mark.parametrize("mode", [True, False])
def test_written_argument_that_overlaps_another_one(mode):
    torchweld.reset()
    compiled = torchweld.compile(bumped)
    with torch.inference_mode(mode):
        memory = torch.ones(3)
        assert compiled(torch.ones(2), torch.ones(2)).tolist() == [3, 3]
        assert compiled(memory[:2], memory[1:]).tolist() == [4, 3]


@pytest.mark.parametrize("grads", [True, False])
def test_mode_is_left_when_compiled_code_fails(grads):
    def program(x, i):
        with torch.no_grad():
            return x[i]

    torchweld.reset()
    compiled = torchweld.compile(program)
    x = torch.ones(3, requires_grad=True)
    with torch.set_grad_enabled(grads):
        compiled(x, torch.tensor([1]))
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([7]))
        assert torch.is_grad_enabled() == grads


@pytest.mark.parametrize("mode", [True, False])
def test_the_guard_of_a_tensor_asks_for_inference_without_python(mode):
    with torch.inference_mode(mode):
        x = torch.zeros(2)
    with torch.inference_mode(not mode):
        other = torch.zeros(2)
    kind = torch.is_inference if mode else is_no_inference
    source = Local.make(0, "x")
    guards = [Guard("tensor", source, tensor_codes(x)), Guard("predicate", source, kind)]
    program = GuardBuilder(guards, [], 1).build()
    assert program.n_instrs == 2
    assert program.check((x,))
    assert not program.check((other,))
    assert not program.owning
