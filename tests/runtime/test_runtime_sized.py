"""One compiled Program over many sizes: what it computes is what its graph means."""

import sys
import threading

import pytest
import torch
from tests.runtime.sized_graphs import BOTH, GRAPHS, SIZES, Sized, program_of

from torchweld.base.errors import InternalError
from torchweld.ir.program import Alloc, Drop
from torchweld.runtime import _driver, native
from torchweld.runtime.sized import AHEAD, MOST_COUNTED, Lookup, SizedExecutable


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


TWO_PRODUCTS = """
size m in 2..  is size 0 of 0  hint 8
size n in 2..  is size 0 of 1  hint 8
x: f32[m, 12] input
z: f32[n, 12] input
w: f32[12, 5] input
h: f32[m, 5]
k: f32[n, 5]
a: f32[m, 5]
b: f32[n, 5]
h = aten.mm.default(x, w)
a[i, j] = h[i, j] * 2.0  for i:m, j:5
k = aten.mm.default(z, w)
b[i, j] = k[i, j] * 2.0  for i:n, j:5
return a, b
"""


def test_products_of_sizes_that_are_equal_by_chance_share_no_memory():
    graph = Sized(TWO_PRODUCTS)
    for m, n in ((8, 8), (3, 50), (50, 3)):
        x, z, w = graph.inputs(m, n)
        for got, want in zip(graph.run([x, z, w]), (x @ w * 2, z @ w * 2), strict=True):
            torch.testing.assert_close(got, want)


EMPTY = """
size n in 2..  is size 0 of 0  hint 8
x: f32[n, 12] input
w: f32[12, 5] input
h: f32[n - 2, 5]
h = aten.mm.default(x as [n - 2, 12] strides (12, 1), w)
return h
"""


def test_a_product_that_is_empty_at_some_sizes():
    graph = Sized(EMPTY)
    for n in (5, 2, 6, 2):
        x, w = graph.inputs(n)
        torch.testing.assert_close(graph.run([x, w])[0], x[: n - 2] @ w)


DIVIDED = """
size n in 2..  is size 0 of 0  hint 8
x: f32[n] input
y: f32[(n - 9)//4 + 5, n%3 + 1]
y[i, j] = x[0] * 2.0 + f32(index(i + j))  for i:(n - 9)//4 + 5, j:n%3 + 1
return y
"""


def test_quotients_of_negative_numbers_round_down():
    graph = Sized(DIVIDED)
    for n in (2, 3, 8, 9, 10, 17):
        (x,) = graph.inputs(n)
        rows, columns = (n - 9) // 4 + 5, n % 3 + 1
        want = x[0] * 2 + torch.arange(rows)[:, None] + torch.arange(columns)
        torch.testing.assert_close(graph.run([x])[0], want)


def test_sizes_whose_products_are_no_64_bit_numbers_are_not_run():
    program = program_of(BOTH + GRAPHS["flattened"])
    made, resize = native.resizable(program, (2, 2), Anything(), native.native(), False, {}, 0)
    assert resize((3, 4)) is True
    assert resize((1 << 40, 1 << 40)) is None
    assert resize((1, 4)) is None
    assert resize((5, 4)) is True and made.driver == "native"


class Anything(dict):
    """An address for every function: nothing is run."""

    def __missing__(self, name):
        return 1


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


def kept(graph):
    return [values for values, _, _ in graph.executable.kept()]


def test_sizes_that_come_again_have_an_executable_of_their_own_as_many_as_are_kept():
    graph = Sized(BOTH + GRAPHS["columns"])
    for n in range(2, 40):
        graph.check(3, n)
    assert kept(graph) == []
    for n in range(2, 40):
        graph.check(3, n)
    assert kept(graph) == [(3, n) for n in range(17, 1, -1)]


def test_sizes_that_come_much_more_often_take_the_place_of_others():
    graph = Sized(BOTH + GRAPHS["columns"], hot_sizes=2)
    for n in (2, 2, 3, 3, 3, 4, 4, 4):
        graph.check(5, n)
    assert kept(graph) == [(5, 3), (5, 2)]
    for _ in range(AHEAD):
        graph.check(5, 4)
    assert kept(graph) == [(5, 4), (5, 3)]


def test_of_many_sizes_that_come_equally_often_none_is_preferred():
    graph = Sized(BOTH + GRAPHS["columns"], hot_sizes=2)
    for _ in range(4):
        for n in range(2, 40):
            graph.check(5, n)
    assert kept(graph) == [(5, 3), (5, 2)]


def test_sizes_that_no_longer_come_make_room():
    graph = Sized(BOTH + GRAPHS["columns"], hot_sizes=1)
    for _ in range(500):
        graph.run(graph.inputs(2, 2))
    for _ in range(MOST_COUNTED + AHEAD):
        graph.run(graph.inputs(2, 3))
    assert kept(graph) == [(2, 3)]


def test_no_sizes_are_kept_where_none_may_be():
    graph = Sized(BOTH + GRAPHS["columns"], hot_sizes=0)
    for _ in range(3):
        graph.check(5, 4)
    assert kept(graph) == [] and len(graph.executable.runs()) == 1


@pytest.mark.parametrize("kind", [Lookup, _driver.Sized])
def test_sizes_that_are_kept_are_found_by_what_is_read_of_the_inputs(kind):
    class Found(kind):
        def miss(self, values, *inputs):
            return ("missed", values, inputs)

    look = Found((("size", 0, 1), ("stride", 0, 0), ("number", 1, 0)), (2,), torch.tensor)
    x = torch.zeros(2, 3)
    what, values, (_, size, number) = look(x, 5, 7)
    assert (what, values, size.item(), number.item()) == ("missed", (3, 3, 5), 5, 7)
    look.keep((3, 3, 5), lambda *given: given)
    a, b = look(x, 5, 7), look(x, 5, 8)
    assert a[0] is x and [t.item() for t in (*a[1:], *b[1:])] == [5, 7, 5, 8]
    assert look(x, torch.tensor(6), 7)[:2] == ("missed", (3, 3, 6))
    assert look(x[:, :2], 5, 7)[1] == (2, 3, 5)
    assert look.found == 2 and [row[::2] for row in look.kept()] == [((3, 3, 5), 2)]
    look.age()
    assert look.kept()[0][2] == 1
    assert look.forget((3, 3, 5)) and not look.forget((3, 3, 5)) and look.kept() == []


def test_sizes_that_are_kept_are_run_without_python_code():
    graph = Sized(BOTH + GRAPHS["pointwise"])
    inputs = graph.inputs(3, 4)
    for _ in range(3):
        graph.executable(*inputs)
    called = []
    sys.setprofile(lambda frame, event, arg: called.append((event, frame.f_code.co_name)))
    try:
        graph.executable(*inputs)
    finally:
        sys.setprofile(None)
    assert [name for event, name in called if event == "call"] == []


def test_a_size_given_as_an_int_is_one_tensor_for_all_calls():
    look = _driver.Sized((("number", 0, 0),), (), torch.tensor)
    look.keep((5,), lambda x: x)
    assert look(5) is look(5)


def test_what_is_found_may_forget_itself_while_it_runs():
    look = _driver.Sized((("size", 0, 0),), (), torch.tensor)
    look.keep((2,), lambda x: look.forget((2,)))
    assert look(torch.zeros(2)) is True and look.kept() == []


@pytest.mark.parametrize(
    ("given", "error"), [((), TypeError), ((3,), TypeError), ((torch.zeros(()),), ValueError)]
)
def test_what_has_no_such_size_is_an_error(given, error):
    with pytest.raises(error):
        _driver.Sized((("size", 0, 0),), (), torch.tensor)(*given)


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
    assert kept(graph) == [] and graph.executable._visits == (3, 4)
