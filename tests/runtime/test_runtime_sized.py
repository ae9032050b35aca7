"""One compiled Program over many sizes: what it computes is what its graph means."""

import threading

import pytest
import torch
from tests.runtime.sized_graphs import BOTH, GRAPHS, SIZES, Sized, program_of

from torchweld.base.errors import InternalError
from torchweld.ir.program import Alloc, Drop
from torchweld.runtime.sized import SizedExecutable


@pytest.mark.parametrize("driver", ["python", "native"])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_over_many_sizes(name, driver):
    graph = Sized(BOTH + GRAPHS[name], driver)
    for values in SIZES:
        graph.check(*values)
    assert graph.executable.driver == driver


PRODUCT = """
size m in 2..  is size 0 of 0  hint 8
x: f32[m, 12] input
w: f32[12, 5] input
a: f32[m, 12]
h: f32[m, 5]
k: f32[2*m, 5]
a[i, j] = x[i, j] * 2.0  for i:m, j:12
h = aten.mm.default(a, w)
k = aten.repeat.default(h, [2, 1])
return k, h as [m] strides (5)
"""


@pytest.mark.parametrize("driver", ["python", "native"])
def test_operators_get_tensors_of_the_sizes_of_the_call(driver):
    graph = Sized(PRODUCT, driver)
    for m in (2, 9, 40):
        x, w = graph.inputs(m)
        k, first = graph.run([x, w])
        torch.testing.assert_close(k, (x * 2 @ w).repeat(2, 1))
        torch.testing.assert_close(first, (x * 2 @ w)[:, 0])


ARGUMENT = """
size n in 2..  is size 0 of 0  hint 8
x: f32[n] input
y: f32[n, 3*n + 1]
y = aten.repeat.default(x as [n, 1] strides (1, 1), [1, {3*n + 1}])
return y
"""


@pytest.mark.parametrize("driver", ["python", "native"])
def test_operators_get_the_integers_of_the_call(driver):
    graph = Sized(ARGUMENT, driver)
    for n in (2, 5):
        (x,) = graph.inputs(n)
        assert graph.run([x])[0].tolist() == x[:, None].repeat(1, 3 * n + 1).tolist()


STRIDE = """
size n in 2..  is size 0 of 0  hint 8
size s in 1..  is stride 0 of 0  hint 8
x: f32[n, 4] strides (s, 1) input
y: f32[n, 4]
y[i, j] = x[i, j] * 2.0  for i:n, j:4
return y
"""


def test_a_stride_may_be_a_size_of_its_own():
    graph = Sized(STRIDE)
    for n, gap in ((2, 4), (3, 9), (7, 5)):
        x = torch.randn(n, gap)[:, :4]
        torch.testing.assert_close(graph.run([x])[0], x * 2)


NUMBER = """
size n in 2..  is size 0 of 0  hint 8
size k in ..  is number 0 of 1  hint 3
x: f32[n] input
step: i64[] input
y: f32[n]
y[i] = x[i] + f32(index(i*k))  for i:n
return y
"""


def test_a_number_may_be_a_size():
    graph = Sized(NUMBER)
    x = torch.randn(9)
    for k in (3, -2):
        for given in (k, torch.tensor(k)):
            got = graph.run([x, given])[0]
            torch.testing.assert_close(got, x + torch.arange(9) * k)


def test_sizes_too_large_for_32_bits_run_in_eager():
    program = program_of(BOTH + GRAPHS["pointwise"], interpret=True)
    run = SizedExecutable(program, lambda p: pytest.fail("its kernels would be run"))
    run.eager = lambda x, w: [f"eager {x.shape[0]}"]
    wide = torch.empty(1).expand(1 << 20, 1 << 20)
    assert run(wide, torch.empty(1).expand(1 << 20)) == (f"eager {1 << 20}",)


def test_a_size_below_what_the_graph_was_made_for_is_an_error():
    graph = Sized(BOTH + GRAPHS["pointwise"])
    with pytest.raises(InternalError, match="size of 1"):
        graph.executable(torch.randn(1, 4), torch.randn(4))


def test_sizes_that_come_again_have_an_executable_of_their_own_as_many_as_are_kept():
    graph = Sized(BOTH + GRAPHS["columns"])
    for n in range(2, 40):
        graph.check(3, n)
    assert len(graph.executable._made) == 0
    for n in range(2, 40):
        graph.check(3, n)
    assert len(graph.executable._made) == 16


CHAIN = """
size n in 2..  is size 0 of 0  hint 8
x: f32[n, 4] input
a: f32[n, 4]
b: f32[n, 4]
c: f32[n, 4]
d: f32[n, 4]
a[i, j] = x[i, j] * 2.0  for i:n, j:4
b = aten.relu.default(a)
c[i, j] = b[i, j] * 2.0  for i:n, j:4
d = aten.relu.default(c)
return d
"""


def test_a_temporary_of_a_symbolic_size_is_released_behind_its_last_use():
    graph = Sized(CHAIN)
    dropped = [s.tensor for s in graph.program.steps if isinstance(s, Drop)]
    made = [s.tensor for s in graph.program.steps if isinstance(s, Alloc)]
    assert set(made) < set(dropped)
    for n in (2, 100, 3):
        (x,) = graph.inputs(n)
        torch.testing.assert_close(graph.run([x])[0], (x.relu() * 2) * 2)


def test_threads_with_sizes_of_their_own_get_their_own_results():
    graph = Sized(BOTH + GRAPHS["softmax"])
    wrong = []

    def work(seed):
        for n in range(2, 60):
            (x,) = graph.inputs(3 + seed, n * (seed + 1), seed=n)
            if not torch.allclose(graph.run([x])[0], x.softmax(1), atol=1e-5):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_an_executable_in_a_call_is_not_resized():
    graph = Sized(BOTH + GRAPHS["softmax"])
    graph.check(3, 4)
    graph.executable._guests += 1
    graph.check(3, 5)
    assert list(graph.executable._made) == [(3, 5)]
