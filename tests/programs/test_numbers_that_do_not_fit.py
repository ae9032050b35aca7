"""Numbers that a dtype does not hold raise in compiled code as in eager."""

import pytest
import torch

import torchweld

PLAIN, MASK = torch.tensor([1, 2, 200], dtype=torch.uint8), torch.tensor([True, False, True])


@pytest.mark.parametrize("program", [
    lambda x, mask: x.clamp(-1, 300) + 1,
    lambda x, mask: x.masked_fill(mask, 300) + 1,
    lambda x, mask: torch.full_like(x, 300) + x,
    lambda x, mask: torch.full((3,), 300, dtype=torch.uint8) + x,
    lambda x, mask: torch.where(mask, x, 300) + 1,
    lambda x, mask: x.half().masked_fill(mask, -1e9).softmax(-1),
    lambda x, mask: torch.nn.functional.pad(x, (1, 1), value=300) + 1,
    lambda x, mask: x.index_fill(0, torch.tensor([0]), 300) + 1,
    lambda x, mask: x.float().fill_(1e39) + 1,
])  # fmt: skip
def test_the_error_is_that_of_eager(program):
    with pytest.raises(RuntimeError) as eager:
        program(PLAIN, MASK)
    with pytest.raises(RuntimeError) as compiled:
        torchweld.compile(program)(PLAIN, MASK)
    assert str(compiled.value) == str(eager.value)
    assert "cannot be converted" in str(eager.value)


def test_a_handler_of_the_frame_finds_it():
    graphs = []

    def program(x, mask):
        try:
            y = x.masked_fill(mask, -1e9)
        except RuntimeError:
            y = x.masked_fill(mask, torch.finfo(x.dtype).min)
        return y.softmax(-1)

    f = torchweld.compile(program, backend=lambda graph, _: graphs.append(1) or graph.forward)
    for dtype, made in ((torch.float32, 1), (torch.float16, 2)):
        x = torch.randn(3, dtype=dtype)
        torch.testing.assert_close(f(x, MASK), program(x, MASK))
        assert len(graphs) >= made


def test_quantized_tensors_run_eagerly():
    def program(x):
        q = torch.quantize_per_tensor(x * 2, 0.1, 3, torch.quint8)
        return q, q.dequantize() * 2, q.int_repr() + 1

    f = torchweld.compile(program)
    for n in (4, 4, 6):
        x = torch.randn(n)
        q, *others = f(x)
        kept, *wanted = program(x)
        assert q.dtype is torch.quint8 and q.q_scale() == kept.q_scale()
        torch.testing.assert_close([q.int_repr(), *others], [kept.int_repr(), *wanted])


STORES = {
    "masked_fill": lambda x, k: x.masked_fill(MASK, k) + x,
    "where": lambda x, k: torch.where(MASK, x, k) + x,
    "full": lambda x, k: torch.full((3,), k, dtype=x.dtype) + x,
    "full_like": lambda x, k: torch.full_like(x, k) + x,
    "fill_": lambda x, k: (x + x).fill_(k) + x,
    "clamp": lambda x, k: x.clamp(max=k) + x,
    "of a sum": lambda x, k: x.masked_fill(MASK, k + 1) + x,
}


@pytest.mark.parametrize(("dtype", "far"), [
    (torch.uint8, 300), (torch.int8, -200), (torch.int32, 2**40), (torch.float16, 1e6),
    (torch.bfloat16, 1e300), (torch.float32, 1e300),
])  # fmt: skip
@pytest.mark.parametrize("store", STORES)
def test_a_number_that_varies_and_does_not_fit(store, dtype, far):
    """It is compiled once for all that fit, and refused where eager refuses it."""
    torchweld.reset()
    program, x = STORES[store], torch.arange(3).to(dtype)
    compiled = torchweld.compile(program)
    for k in (3, 4, 5, far, 6, 7):
        k = type(far)(k)
        try:
            expected = program(x, k)
        except RuntimeError as error:
            assert k == far
            with pytest.raises(RuntimeError) as found:
                compiled(x, k)
            assert str(found.value) == str(error)
        else:
            torch.testing.assert_close(compiled(x, k), expected, rtol=0, atol=0)
        if k in (5, 6):
            assert torchweld.statistics()["graphs"] <= (2 if k == 5 else 3)
    assert torchweld.statistics()["internal_errors"] == 0


@pytest.mark.parametrize("k", [float("inf"), float("-inf"), float("nan")])
def test_what_is_not_finite_fits(k):
    torchweld.reset()
    compiled = torchweld.compile(STORES["masked_fill"], fullgraph=True)
    x = torch.arange(3).half()
    for value in (1.0, 2.0, 3.0, k, 4.0):
        torch.testing.assert_close(compiled(x, value), STORES["masked_fill"](x, value),
                                   equal_nan=True)  # fmt: skip
    assert torchweld.statistics()["graphs"] == 2
