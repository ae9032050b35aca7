"""Random operators of CUDA tensors against a model of eager's kernels, thread by thread."""

from __future__ import annotations

import math
import struct

import pytest
import torch
import torch.nn.functional as F
from test_lowering_devices import lowered

from torchweld.base.errors import LoweringError
from torchweld.ir.loop import Extern
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_parse import parse
from torchweld.ir.loop_verify import verify
from torchweld.ir.philox import DRAW, philox
from torchweld.lower import random_device, random_draws

MOST = 512  # threads of the device
SEED, OFFSET = 0x9E3779B97F4A7C15, 40
LOW = (1 << 32) - 1


@pytest.fixture(autouse=True)
def device(monkeypatch):
    monkeypatch.setattr(random_draws, "threads_of", lambda name, predict: MOST)


def loops(fn, *specs):
    g = random_draws.draw_in_nests(lowered(fn, *specs))
    verify(g)
    return g


def values(g, *inputs, offset=OFFSET):
    """The outputs for a generator that stands at `offset`, and where it stands then."""
    (draw,) = [n for n in g.nodes if isinstance(n, Extern) and n.op == DRAW]
    state = {DRAW: lambda name, count: ([SEED - (1 << 64)], [offset // 4])}
    made = evaluate(g, [list(x) for x in inputs], state)
    return (*made, offset + draw.args[1])


# ---------------------------------------------------------------- eager's kernels
class Thread:
    """The generator of one thread: blocks of four words, one after the other."""

    def __init__(self, number, offset):
        self.counter, self.number = offset // 4, number

    def block(self):
        self.counter += 1
        counter = self.counter - 1
        return philox((SEED & LOW, SEED >> 32), (counter, 0, self.number, 0))


def threads(n):
    return min(MOST, -(-n // 256) * 256)


def grid_stride(n, offset, per_block, numbers):
    """What a launch over n elements draws; numbers: of a block, `per_block` of them."""
    out, t = [None] * n, threads(n)
    for k in range(t):
        state = Thread(k, offset)
        for first in range(k, n, t * per_block):
            for i, x in enumerate(numbers(state.block())):
                if first + i * t < n:
                    out[first + i * t] = x
    return out


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def unit(w):
    return f32(f32(f32(w) * 2.0**-32) + 2.0**-33)


def units(block):
    return [unit(w) for w in block]


def wide(low, high):
    return float(low ^ high << 21) * 2.0**-53 + 2.0**-54


def wide_units(block):
    return [wide(*block[:2]), wide(*block[2:])]


def normals(block):
    out = []
    for a, b in (block[:2], block[2:]):
        radius = math.sqrt(-2.0 * math.log(unit(a)))
        angle = 2 * math.pi * (b + 0.5) * 2.0**-32
        out += [radius * math.sin(angle), radius * math.cos(angle)]
    return out


def wide_normals(block):
    radius = math.sqrt(-2.0 * math.log(wide(*block[:2])))
    angle = 2 * math.pi * wide(*block[2:])
    return [radius * math.sin(angle), radius * math.cos(angle)]


def moved(n, per_block):
    return OFFSET + 4 * -(-n // (threads(n) * per_block))


# ---------------------------------------------------------------- distributions
@pytest.mark.parametrize("n", [1, 300, 2500])
def test_uniform_numbers_are_eagers(n):
    got, end = values(loops(lambda x: torch.rand_like(x), ((n,), "cuda:0")), [0.0] * n)
    wanted = grid_stride(n, OFFSET, 4, units)
    assert got == [0.0 if x == 1 else x for x in wanted] and end == moved(n, 4)


@pytest.mark.parametrize("n", [300, 2500])
def test_normal_numbers_are_eagers(n):
    got, end = values(loops(lambda x: torch.randn_like(x), ((n,), "cuda:0")), [0.0] * n)
    assert got == pytest.approx(grid_stride(n, OFFSET, 4, normals), rel=1e-5, abs=2e-6)
    assert end == moved(n, 4)


@pytest.mark.parametrize(("op", "numbers"), [(torch.rand_like, wide_units),
                                             (torch.randn_like, wide_normals)])  # fmt: skip
def test_doubles_take_two_words_each(op, numbers):
    n = 1500
    got, end = values(loops(lambda x: op(x.double()), ((n,), "cuda:0")), [0.0] * n)
    assert got == pytest.approx(grid_stride(n, OFFSET, 2, numbers), rel=1e-12, abs=1e-13)
    assert end == moved(n, 2)


def test_uniform_never_gives_its_upper_end():
    g = loops(lambda x: x.bfloat16().uniform_(1, 3), ((700,), "cuda:0"))
    got, _ = values(g, [0.0] * 700)
    exact = grid_stride(700, OFFSET, 4, units)
    near = torch.tensor([2 * u + 1 for u in exact]).bfloat16()
    assert got == [1.0 if x == 3 else x for x in near.tolist()]
    assert 3.0 in near.tolist() and min(got) == 1.0


def test_bernoulli_compares_with_a_probability_in_f32():
    got, end = values(loops(lambda x: (x + 1).bernoulli_(0.3), ((700,), "cuda:0")), [0.0] * 700)
    assert got == [float(u < f32(0.3)) for u in grid_stride(700, OFFSET, 4, units)]
    assert end == moved(700, 4)


def test_normal_has_a_mean_and_a_deviation():
    got, _ = values(loops(lambda x: (x + 1).normal_(3, 0.5), ((64,), "cuda:0")), [0.0] * 64)
    wanted = [x * 0.5 + 3 for x in grid_stride(64, OFFSET, 4, normals)]
    assert got == pytest.approx(wanted, rel=1e-6)


# ---------------------------------------------------------------- dropout
def vectors(n, v, keep):
    """Eager's dropout on vectors of v elements: which elements stay."""
    out, t = [None] * n, threads(n)
    for k in range(t):
        state = Thread(k, OFFSET)
        for first in range(k * v, n, t * v):
            drawn = [u for _ in range(-(-v // 4)) for u in units(state.block())]
            out[first : first + v] = [u < keep for u in drawn[:v]]
    return out


@pytest.mark.parametrize(("n", "dtype", "v"), [
    (2400, torch.float32, 4), (2402, torch.float32, 2), (2401, torch.float32, 1),
    (9000, torch.bfloat16, 8), (2404, torch.bfloat16, 4), (2400, torch.float64, 2),
])  # fmt: skip
def test_dropout_drops_what_eager_drops(n, dtype, v):
    g = loops(lambda x: F.dropout((x + 1).to(dtype), 0.3, True), ((n,), "cuda:0"))
    got, end = values(g, [0.0] * n)
    keep = 1 - 0.3 if dtype is torch.float64 else f32(1 - 0.3)
    kept = vectors(n, v, keep) if v > 1 else grid_stride(
        n, OFFSET, 4, lambda block: [u < keep for u in units(block)])  # fmt: skip
    assert [x != 0 for x in got] == kept and end == moved(n, 4)
    scale = torch.tensor(1 / keep, dtype=dtype).item()
    assert max(got) == pytest.approx(scale, rel=1e-7)


def test_dropout_of_an_input_stays_an_operator_as_its_address_is_not_known():
    g = loops(lambda x: F.dropout(x, 0.3, True), ((64,), "cuda:0"))
    assert [n.op for n in g.nodes if isinstance(n, Extern)] == ["aten.native_dropout.default"]


def test_dropout_of_what_may_be_an_input_in_eager_stays_an_operator():
    g = loops(lambda x: F.dropout(x.mul_(2), 0.3, True), ((64,), "cuda:0"))
    assert "aten.native_dropout.default" in [n.op for n in g.nodes if isinstance(n, Extern)]


# ---------------------------------------------------------------- the stream
def test_each_operator_goes_on_where_the_one_before_it_stopped():
    n = 2500

    def fn(x):
        return torch.rand_like(x), torch.randn_like(x), torch.rand_like(x)

    first, _, third, end = values(loops(fn, ((n,), "cuda:0")), [0.0] * n)
    rounds = moved(n, 4) - OFFSET
    assert first == grid_stride(n, OFFSET, 4, units)
    assert third == grid_stride(n, OFFSET + 2 * rounds, 4, units) and end == OFFSET + 3 * rounds


def test_numbers_that_nobody_uses_are_drawn_all_the_same():
    def fn(x):
        torch.rand_like(x)
        return torch.rand_like(x)

    got, end = values(loops(fn, ((300,), "cuda:0")), [0.0] * 300)
    assert got == grid_stride(300, OFFSET + 4, 4, units) and end == OFFSET + 8


def ops(g):
    return [n.op for n in g.nodes if isinstance(n, Extern)]


def test_one_operator_that_is_not_known_keeps_all_of_them_in_aten():
    g = loops(lambda x: torch.rand_like(x) + (x + 1).exponential_(), ((300,), "cuda:0"))
    assert ops(g) == ["aten.rand_like.default", "aten.exponential.default"]


def test_attention_without_dropout_draws_nothing():
    def fn(x):
        q = x.view(1, 1, 4, 16)
        return torch.ops.aten._scaled_dot_product_efficient_attention(q, q, q, None, False)[0]

    g = loops(lambda x: fn(x) + torch.rand_like(x).view(1, 1, 4, 16), ((4, 16), "cuda:0"))
    assert DRAW in ops(g) and "aten.rand_like.default" not in ops(g)


STRIDED = """\
x: f32[4, 8] on "cuda:0" input
y: f32[4, 8] strides (1, 4) on "cuda:0"

y = aten.uniform.default(x, 0.0, 1.0)

return y
"""


def test_another_order_than_that_of_memory_stays_an_operator():
    g = parse(STRIDED)
    assert random_draws.draw_in_nests(g) is g


def test_cpu_numbers_are_left_alone():
    assert ops(loops(lambda x: torch.rand_like(x), ((8,), "cpu"))) == ["aten.rand_like.default"]


# ---------------------------------------------------------------- the device's own test
class Device:
    """A device whose torch.rand and torch.randn run the model above. shift: how wrong it is."""

    multi_processor_count, max_threads_per_multi_processor = 1, MOST

    def __init__(self, monkeypatch, shift=0):
        self.offset, self.shift = 0, shift
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(cuda, "get_device_properties", lambda index: self)
        kinds = {(False, torch.float32): units, (True, torch.float32): normals,
                 (False, torch.float64): wide_units, (True, torch.float64): wide_normals}
        for normal, name in ((False, "rand"), (True, "randn")):
            def draw(n, generator, dtype, device, normal=normal):
                numbers = kinds[normal, dtype]
                per_block = 4 if dtype is torch.float32 else 2
                made = grid_stride(n, self.offset + self.shift, per_block, numbers)
                self.offset += moved(n, per_block) - OFFSET
                return torch.tensor(made, dtype=dtype)

            monkeypatch.setattr(torch, name, draw)
        monkeypatch.setattr(torch, "Generator", lambda device: self)
        monkeypatch.setattr(random_device, "SEED", SEED)
        monkeypatch.setattr(random_draws, "SEED", SEED)
        monkeypatch.setattr(torch, "device", lambda *a: _Name())
        random_device._tested.cache_clear()

    def manual_seed(self, seed):
        assert seed == SEED

    def get_offset(self):
        return self.offset


class _Name:
    index = 0


def test_a_device_that_numbers_elements_as_expected_is_used(monkeypatch):
    Device(monkeypatch)
    monkeypatch.setattr(torch, "tensor", _without_device(torch.tensor))
    assert random_device.threads_of("cuda:0", random_draws.predicted) == MOST


def test_a_device_that_numbers_them_otherwise_is_not(monkeypatch):
    Device(monkeypatch, shift=4)
    monkeypatch.setattr(torch, "tensor", _without_device(torch.tensor))
    with pytest.raises(LoweringError, match="differently"):
        random_device.threads_of("cuda:0", random_draws.predicted)


def _without_device(tensor):
    return lambda data, dtype=None, device=None: tensor(data, dtype=dtype)
