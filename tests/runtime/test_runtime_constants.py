"""A Program with a prologue, on both drivers: what it computes once, and for which inputs."""

from __future__ import annotations

import gc
import pickle
import threading
from dataclasses import replace

import pytest
import torch
from launch_lists import T, program, spec

from torchweld.base.errors import InternalError
from torchweld.ir.program import Alloc, Call, Launch, Program, Prologue
from torchweld.ir.program_text import text

N = 4


def frozen_program() -> Program:
    """x + (w + 1): the first input is x, the second is w, which is frozen."""
    once = program((spec("input", (N,)), spec("fresh", (N,))),
                   (Alloc(1), Launch("add1", (0, 1), N, 64)), (1,))  # fmt: skip
    main = program(
        (spec("input", (N,)), spec("input", (N,), 1), spec("const", (N,)), spec("extern", (N,))),
        (Call("aten.add.Tensor", (T(0), T(2)), (), (3,)),), (3,),
    )  # fmt: skip
    return replace(main, prologue=Prologue(once, (1,)))


def test_constants_are_those_of_the_first_call(make):
    ex, x, w = make(frozen_program()), torch.zeros(N), torch.ones(N)
    assert ex(x, w)[0].tolist() == [2.0] * N
    w.fill_(50.0)  # the promise is broken, so the old constants are what shows that they are kept
    assert ex(x + 1, w)[0].tolist() == [3.0] * N


def test_other_weights_have_constants_of_their_own(make):
    ex, x = make(frozen_program()), torch.zeros(N)
    first, second = torch.ones(N), torch.full((N,), 7.0)
    for _ in range(3):
        assert ex(x, first)[0].tolist() == [2.0] * N
        assert ex(x, second)[0].tolist() == [8.0] * N


def test_weights_that_were_seen_are_not_computed_again(make):
    ex, x = make(frozen_program()), torch.zeros(N)
    first, second = torch.ones(N), torch.full((N,), 7.0)
    ex(x, first), ex(x, second)
    first.fill_(100.0)
    assert ex(x, first)[0].tolist() == [2.0] * N


def test_new_tensor_at_the_address_of_an_old_one_is_not_taken_for_it(make):
    ex, x = make(frozen_program()), torch.zeros(N)
    for k in range(50):
        w = torch.full((N,), float(k))
        assert ex(x, w)[0].tolist() == [k + 1.0] * N
        del w


def tensors() -> int:
    """How many tensors are alive."""
    gc.collect()
    return sum(type(t) is torch.Tensor for t in gc.get_objects())


def test_constants_go_with_the_weights(make):
    ex, x, w = make(frozen_program()), torch.zeros(N), torch.ones(N)
    ex(x, w)
    before = tensors()
    del w
    assert before - tensors() == 2  # the weight, and what was computed from it


def test_constants_go_with_the_executable(make):
    ex, x, w = make(frozen_program()), torch.zeros(N), torch.ones(N)
    ex(x, w)
    before = tensors()
    del ex
    assert before - tensors() == 1


def test_constants_made_in_inference_mode_serve_outside_of_it(make):
    ex, x, w = make(frozen_program()), torch.zeros(N), torch.ones(N)
    with torch.inference_mode():
        ex(x, w)
    (y,) = ex(x, w)
    assert not y.is_inference() and y.tolist() == [2.0] * N


def test_threads_with_weights_of_their_own_get_their_own_results(make):
    ex, x, wrong = make(frozen_program()), torch.zeros(N), []

    def work(k: int) -> None:
        w = torch.full((N,), float(k))
        wrong.extend(k for _ in range(200) if ex(x, w)[0].tolist() != [k + 1.0] * N)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_constants_are_not_counted_among_the_inputs(make):
    ex = make(frozen_program())
    with pytest.raises(TypeError, match="expected 2 tensors, got 3"):
        ex(torch.zeros(N), torch.zeros(N), torch.zeros(N))


def test_prologue_that_fails_fails_at_every_call(make):
    p = frozen_program()
    assert p.prologue is not None
    ex = make(replace(p, prologue=replace(p.prologue, program=replace(
        p.prologue.program, outputs=(None,)))))  # fmt: skip
    for _ in range(2):
        with pytest.raises(InternalError, match="no tensor for a constant"):
            ex(torch.zeros(N), torch.ones(N))


def test_program_with_a_prologue_is_data(make):
    p = pickle.loads(pickle.dumps(frozen_program()))
    assert p == frozen_program()
    assert make(p)(torch.zeros(N), torch.ones(N))[0].tolist() == [2.0] * N


def test_text_shows_the_prologue_behind_the_program():
    shown = text(frozen_program())
    assert "t2 const 0  f32[4]" in shown
    assert "prologue of t1" in shown and shown.count("launch add1(t0, t1)") == 1


@pytest.mark.parametrize("rows", [3] * torch.backends.mkldnn.is_available())
def test_packed_weight_passes_from_prologue_to_call(make, rows):
    once = program(
        (spec("input", (8, 4)), spec("extern", (8, 4))),
        (Call("mkldnn._reorder_linear_weight.default", (T(0), rows), (), (1,)),), (1,),
    )  # fmt: skip
    main = program(
        (spec("input", (rows, 4)), spec("input", (8, 4), 1), spec("const", (8, 4)),
         spec("extern", (rows, 8))),
        (Call("mkldnn._linear_pointwise.default", (T(0), T(2), None, "none", (), ""), (), (3,)),),
        (3,),
    )  # fmt: skip
    ex = make(replace(main, prologue=Prologue(once, (1,))))
    x, w = torch.randn(rows, 4), torch.randn(8, 4)
    for _ in range(2):
        torch.testing.assert_close(ex(x, w)[0], x @ w.t())
