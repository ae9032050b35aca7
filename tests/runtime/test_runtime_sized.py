"""One compiled Program over many sizes: what it computes is what its graph means."""

import pytest
import torch
from tests.runtime.sized_graphs import BOTH, Sized

from torchweld.base.errors import InternalError

SIZES = ((2, 2), (2, 7), (3, 16), (17, 17), (5, 64), (64, 33), (3, 1000), (1000, 3))
GRAPHS = {
    "pointwise": """
x: f32[m, n] input
w: f32[n] input
y: f32[m, n]
y[i, j] = exp(x[i, j]) * w[j] + 1.0  for i:m, j:n
return y
""",
    "softmax": """
x: f32[m, n] input
top: f32[m, 1]
e: f32[m, n]
total: f32[m, 1]
y: f32[m, n]
top[i, 0] = max over j:n of x[i, j]  for i:m
e[i, j] = exp(x[i, j] - top[i, 0])  for i:m, j:n
total[i, 0] = sum over j:n of e[i, j]  for i:m
y[i, j] = e[i, j] / total[i, 0]  for i:m, j:n
return y
""",
    "mean": """
x: f32[m, n] input
t: f32[m, 1]
y: f32[m, n]
t[i, 0] = sum over j:n of x[i, j]  for i:m
y[i, j] = x[i, j] - t[i, 0] / f32(index(n))  for i:m, j:n
return y
""",
    "columns": """
x: f32[m, n] input
y: f32[n]
y[j] = sum over i:m of x[i, j] * 2.0  for j:n
return y
""",
    "concatenation": """
x: f32[m, n] input
z: f32[m, 2*n] input
y: f32[m, 3*n]
y[i, j] = x[i, j]  for i:m, j:n
y[i, j + n] = z[i, j] * 2.0  for i:m, j:2*n
return y
""",
    "transposition": """
x: f32[m, n] input
y: f32[n, m]
y[j, i] = x[i, j] + 1.0  for i:m, j:n
return y
""",
    "positions and scans": """
x: f32[m, n] input
y: i64[m]
z: f32[m, n]
y[i] = argmax over j:n of x[i, j]  for i:m
z[i, j] = scan_sum over j:n of x[i, j]  for i:m
return y, z
""",
    "heads": """
x: f32[m, n, 12] input
y: f32[m, 3, n, 4]
y[i, a, j, b] = x[i, j, a*4 + b] * 2.0  for i:m, a:3, j:n, b:4
return y as [3*m, 4*n] strides (4*n, 1)
""",
    "flattened": """
x: f32[m, n] input
y: f32[m*n]
y[i] = x[i//n, i%n] + 1.0  for i:m*n
return y
""",
    "part that may be empty": """
x: f32[m, n] input
y: f32[m, n - 2]
y[i, j] = x[i, j + 2]  for i:m, j:n - 2
return y
""",
}


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
        got = graph.run([x, torch.tensor(k)])[0]
        torch.testing.assert_close(got, x + torch.arange(9) * k)


def test_a_size_below_what_the_graph_was_made_for_is_an_error():
    graph = Sized(BOTH + GRAPHS["pointwise"])
    with pytest.raises(InternalError, match="size of 1"):
        graph.executable(torch.randn(1, 4), torch.randn(4))


def test_one_executable_per_choice_of_sizes_and_no_more_than_are_kept():
    graph = Sized(BOTH + GRAPHS["columns"])
    for n in range(2, 40):
        graph.check(3, n)
    assert len(graph.executable._made) == 16
