"""FakeMode: torch's fake tensors as eager has it, and without torch._dynamo."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import pytest
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)

from torchweld.ir.fake import FakeMode

aten = torch.ops.aten


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------- without torch._dynamo
COLD = """
    import sys, torch, torch.nn.functional as F, torchweld

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(10, 8)
            self.mix = torch.nn.Linear(8, 24)
            self.norm = torch.nn.LayerNorm(8)
            self.out = torch.nn.Linear(8, 10)

        def forward(self, ids, shift, targets):
            x = self.embed(ids) + shift
            x = self.norm(x + F.scaled_dot_product_attention(*self.mix(x).chunk(3, -1)))
            x = F.dropout(F.gelu(x), 0.1, self.training).clamp(-3, 3).sin().cumsum(1)
            return F.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())

    block = Block().eval()
    ids = torch.randint(10, (2, 6))[:, :5]
    block(ids, torch.zeros(8), ids).backward()  # gradients are there, and `ids` is a view
    with torch.no_grad():
        compiled = torchweld.compile(block, fullgraph=True)
        result = compiled(ids, torch.tensor(0), ids)
        assert torch.allclose(result, block(ids, torch.tensor(0), ids))
    assert torchweld.statistics()["graphs"] == 1
    peers = [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]
"""


def test_a_cold_compilation_imports_no_peer():
    run(COLD + "    assert not peers, peers\n")


def test_torch_compile_works_after_a_cold_compilation():
    run(COLD + """
    def fn(x):
        return torch.sin(x) * torch._refs.mul(x, 2)

    x = torch.randn(3)
    assert torch.allclose(torch.compile(fn, backend="eager")(x), fn(x))
    assert "torch._dynamo" in sys.modules
    assert torch.allclose(torchweld.compile(fn)(x), fn(x))
    """)


def test_reference_functions_are_torchs_own_again_when_dynamo_is_imported():
    run("""
    import gc, sys, types, torch, torchweld.ir.fake
    def slots():
        return [f for f in gc.get_objects()
                if isinstance(f, types.FunctionType) and "__dynamo_disable" in vars(f)]

    assert len(slots()) > 50
    import torch._dynamo.config
    left = slots()
    assert not left, left
    """)


def test_settings_that_the_user_makes_are_followed():
    import torch._dynamo.config as settings

    assert FakeMode().cache_enabled
    with settings.patch(fake_tensor_cache_enabled=False):
        assert not FakeMode().cache_enabled


def test_torchs_own_mode_is_left_alone():
    assert FakeTensorMode.__init__.__globals__["torch"] is torch
    assert FakeMode.__init__.__globals__["torch"] is not torch


@pytest.mark.parametrize("make", [
    lambda: torch.tensor(3), lambda: torch.tensor(2.0, dtype=torch.float64),
])  # fmt: skip
def test_the_value_of_an_input_is_not_known(make):
    mode = FakeMode(static_shapes=True)
    x = mode.from_tensor(make())
    with mode, pytest.raises(DataDependentOutputException):
        x.item()


def test_a_view_and_its_base_share_memory():
    mode, base = FakeMode(), torch.randn(4, 4)
    a, b, c = (mode.from_tensor(x) for x in (base[1:, :2], base, base.detach().t()))
    places = {x.untyped_storage()._cdata for x in (a, b, c)}
    assert len(places) == 1 and a._base is b and a.storage_offset() == 4


# ---------------------------------------------------------------- as eager has it
def test_a_dimension_out_of_range_is_refused():
    with FakeMode(), pytest.raises(IndexError, match=r"\[-2, 1\], but got 2"):
        torch.softmax(torch.empty(2, 3), 2)


SOME, NONE = (1,), (0,)


@pytest.mark.parametrize("fn, shape, index, refused", [
    (lambda x, i: x[i], (0, 3), SOME, True),
    (lambda x, i: x[i], (0, 3), NONE, False),
    (lambda x, i: x[i], (2, 0), SOME, False),
    (lambda x, i: x[:, i], (0, 3), SOME, False),
    (lambda x, i: x[:, i], (3, 0), SOME, True),
    (lambda x, i: x[:, i], (0, 0, 3), SOME, True),
    (lambda x, i: x[i, i], (0, 3), SOME, True),
    (lambda x, i: x[i, i[:0]], (0, 3), SOME, False),
    (lambda x, i: x.index_put_((i,), torch.ones(())), (0, 3), SOME, True),
    (lambda x, i: x.index_put_((x > 0,), torch.ones(())), (0, 3), SOME, False),
    (lambda x, i: torch.nn.functional.embedding(i, x), (0, 3), SOME, True),
    (lambda x, i: torch.nn.functional.embedding(i, x), (0, 3), NONE, False),
    (lambda x, i: torch.nn.functional.embedding(i, x), (2, 0), SOME, True),
    (lambda x, i: x.index_select(1, i), (0, 3), SOME, True),
    (lambda x, i: x.take(i), (0,), SOME, True),
    (lambda x, i: x.gather(0, i), (0,), SOME, True),
    (lambda x, i: x.gather(0, i), (0,), NONE, False),
    (lambda x, i: x.scatter_(0, i, 1.0), (0,), SOME, True),
    (lambda x, i: torch.nn.functional.nll_loss(x, i), (1, 0), SOME, True),
])  # fmt: skip
def test_indices_into_nothing_are_left_to_eager(fn, shape, index, refused):
    with FakeMode():
        x, i = torch.empty(shape), torch.empty(index, dtype=torch.int64)
        if refused:
            with pytest.raises(UnsupportedFakeTensorException, match="without elements"):
                fn(x, i)
        else:
            fn(x, i)


WELL, LINE = torch.zeros(4, 3), torch.tensor([0, 1])
AT = "at"  # stands for LINE


@pytest.mark.parametrize("op, rest, refused", [
    (aten.index_add, (0, AT, torch.ones(2, 3)), False),
    (aten.index_add, (0, AT, torch.ones(2, 1)), True),
    (aten.index_add, (0, AT, torch.ones(2, 3).double()), True),
    (aten.index_add_, (-1, AT, torch.ones(4, 2)), False),
    (aten.index_add_, (-1, AT, torch.ones(4, 3)), True),
    (aten.index_copy, (0, AT, torch.ones(2, 3).double()), True),
    (aten.index_select, (0, LINE[None]), True),
    (aten.index_select, (0, LINE.short()), True),
    (aten.index_select, (0, LINE.int()), False),
    (lambda x, i, s: aten.index_add(x, 0, source=s, index=i), (AT, torch.ones(2, 1)), True),
    (aten.index_put, ([AT], torch.ones(2, 3)), False),
    (aten.index_put, ([AT], torch.ones(2, 1)), False),
    (aten.index_put, ([AT], torch.ones(1, 1, 2, 3)), False),
    (aten.index_put, ([AT], torch.ones(4, 3)), True),
    (aten.index_put_, ([AT], torch.ones(2)), True),
    (aten.index_put_, ([None, AT], torch.ones(4, 2)), False),
    (aten.index_put_, ([None, AT], torch.ones(2, 4)), True),
    (aten.index_put_, ([torch.ones(4, 3) > 0], torch.ones(12)), False),
])  # fmt: skip
def test_arguments_that_do_not_fit_are_left_to_eager(op, rest, refused):
    mode = FakeMode()

    def fake(x):
        if isinstance(x, list):
            return [fake(i) for i in x]
        x = LINE if x is AT else x
        return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

    args = [fake(a) for a in (WELL, *rest)]
    with mode:
        if refused:
            with pytest.raises(UnsupportedFakeTensorException, match=r"a source|an index|values"):
                op(*args)
        else:
            op(*args)


def test_an_out_that_overlaps_is_left_to_eager():
    with FakeMode():
        x = torch.empty(8)
        torch.take(x, torch.tensor([0, 1]), out=torch.empty(2))
        torch.add(x, 1, out=x)
        for out in (x[:2], torch.empty(1).expand(2)):
            with pytest.raises(UnsupportedFakeTensorException, match="an out="):
                torch.take(x, torch.tensor([0, 1]), out=out)


def test_a_result_has_the_strides_of_the_kernel():
    x = torch.randn(1, 2, 6, 6).to(memory_format=torch.channels_last)
    y, at = torch.nn.functional.max_pool2d(x, 2, return_indices=True)
    mode = FakeMode()
    fakes = mode.from_tensor(y), mode.from_tensor(at)
    with mode:
        fake = aten.max_unpool2d.default(*fakes, [6, 6])
    assert fake.stride() == aten.max_unpool2d.default(y, at, [6, 6]).stride()


@pytest.mark.parametrize("op, shape, dtype, refused", [
    (torch.argmax, (3,), torch.bool, True),
    (torch.argmax, (3,), torch.int64, False),
    (torch.nn.functional.relu, (3,), torch.bool, True),
    (torch.floor, (3,), torch.bool, True),
    (torch.floor, (3,), torch.int64, False),
    (lambda x: x - True, (3,), torch.int64, True),
    (lambda x: x // 2, (3,), torch.int64, False),
    (torch.nn.functional.hardswish, (3,), torch.int64, True),
    (lambda x: torch.nn.functional.interpolate(x, scale_factor=2), (1, 1, 4, 4), torch.int64, True),
    (lambda x: torch.nn.functional.interpolate(x, scale_factor=2), (1, 1, 4, 4), torch.uint8,
     False),
    (lambda x: x.clamp(max=300), (3,), torch.uint8, True),
    (lambda x: x.masked_fill(x > 0, -1e9), (3,), torch.float16, True),
    (lambda x: x.masked_fill(x > 0, -1e4), (3,), torch.float16, False),
    (lambda x: x.add(x, alpha=300), (3,), torch.int8, True),
    (lambda x: x + 300, (3,), torch.uint8, False),
    (lambda x: x.fill_(1e39), (3,), torch.float32, True),
    (lambda x: x.fill_(-math.inf), (3,), torch.float32, False),
    (lambda x: torch.full_like(x, 300), (3,), torch.uint8, True),
    (lambda x: torch.full_like(x, 300, dtype=torch.int16), (3,), torch.uint8, False),
    (lambda x: x.new_full((2,), -math.inf), (3,), torch.int64, True),
    (lambda x: torch.quantize_per_tensor(x, 0.1, 3, torch.quint8), (3,), torch.float32, True),
    (lambda x: x.max(1).values, (3, 0), torch.float32, True),
    (lambda x: x.max(0).values, (3, 0), torch.float32, False),
    (torch.max, (0,), torch.float32, True),
    (lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 2), (2, 3, 0, 4), torch.float32, True),
    (lambda x: torch.nn.functional.adaptive_avg_pool2d(x, 1), (0, 3, 2, 4), torch.float32, False),
])  # fmt: skip
def test_what_the_kernel_does_not_take_is_left_to_eager(op, shape, dtype, refused):
    x = FakeMode().from_tensor(torch.empty(shape, dtype=dtype))
    if refused:
        with pytest.raises(UnsupportedFakeTensorException):
            op(x)
    else:
        op(x)


def test_a_number_and_a_truth_are_asked_about_apart():
    x = FakeMode().from_tensor(torch.empty(3, dtype=torch.int64))
    x - 1
    with pytest.raises(UnsupportedFakeTensorException):
        x - True


def test_a_kernel_that_draws_numbers_is_not_asked():
    before = torch.get_rng_state()
    torch.bernoulli(FakeMode().from_tensor(torch.empty(0)))
    torch.bernoulli(FakeMode().from_tensor(torch.empty(3, dtype=torch.float16)))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_change_of_elements_that_are_one_place_is_left_to_eager():
    with FakeMode():
        wide = torch.empty(2).expand(3, 2)
        wide[0].add_(1)
        for change in (lambda x: x.add_(1), lambda x: x.fill_(1), lambda x: x.zero_()):
            with pytest.raises(UnsupportedFakeTensorException, match="one place"):
                change(wide)


def test_an_out_that_gets_another_shape_or_other_strides_is_left_to_eager():
    with FakeMode():
        x, other = torch.empty(2, 3), torch.empty(3, 2).t()
        torch.add(x, 1, out=other)
        with pytest.raises(UnsupportedFakeTensorException, match="another shape"):
            torch.add(x, 1, out=torch.empty(5))
        torch.add(x, 1, out=torch.empty(0))  # which there is to grow
        with pytest.raises(UnsupportedFakeTensorException, match="another shape"):
            torch.sort(x, out=(other, torch.empty(2, 3, dtype=torch.int64)))
        assert other.stride() == (1, 2)
