"""Which sizes vary, said beforehand: in torchweld's form, in torch.export's and in torch.compile's;
and what a call says that breaks such a promise."""

import pytest
import torch
import torch.export
from torch.export import Dim as ExportDim

import torchweld
from torchweld import Dim, Shapes
from torchweld.base import config
from torchweld.base.errors import PromiseError, UsageError

ROWS = Dim("rows", min=2, max=64)


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def rows(*lengths):
    return tuple(torch.randn(n, 4) for n in lengths)


def captures():
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    return counts["captures"]


def relations(compiled):
    return [g.expected.text() for g in compiled.entries[-1].info.guards if g.kind == "sizes"]


def add(x, y):
    return x.sum(0) + y


# name -> what is said of `add`'s arguments: as many rows in y as in x
SAME = {
    "a dict by dimension": {"x": {0: ROWS}, "y": {0: ROWS}},
    "one entry per dimension": {"x": (ROWS, None), "y": [ROWS, 4]},
    "from the last dimension": {"x": {-2: ROWS}, "y": {-2: ROWS, -1: Dim.STATIC}},
    "in the order of the parameters": ({0: ROWS}, {0: ROWS}),
    "Shapes": Shapes({"x": {0: ROWS}, "y": {0: ROWS}}),
    "torch.export": {"x": {0: ExportDim("rows", max=64)}, "y": {0: ExportDim("rows", max=64)}},
}  # fmt: skip


@pytest.mark.parametrize("form", SAME)
def test_sizes_of_one_name_are_symbolic_from_the_first_call_and_equal(form):
    check_same(SAME[form])


def check_same(spec):
    compiled = torchweld.compile(add, dynamic_shapes=spec, fullgraph=True)
    for n in (5, 9, 64):
        x, y = rows(n, n)
        torch.testing.assert_close(compiled(x, y), add(x, y))
    assert captures() == 1
    assert "y.shape[0] == x.shape[0]" in relations(compiled)
    with pytest.raises(PromiseError, match=r"y\.shape\[0\] is 6, but was .*x\.shape\[0\] is 5"):
        compiled(*rows(5, 6))


N = Dim("n", max=100)
DERIVED = {
    "torchweld": {"x": {0: N}, "y": {0: 2 * N + 1}},
    "the derived one first": {"y": {0: 2 * N + 1}, "x": {0: N}},
    "torch.export": {"x": {0: ExportDim("n")}, "y": {0: 2 * ExportDim("n") + 1}},
}  # fmt: skip


@pytest.mark.parametrize("form", DERIVED)
def test_a_size_made_of_another_one(form):
    check_derived(DERIVED[form])


def check_derived(spec):
    compiled = torchweld.compile(lambda x, y: (x * 2, y[: 2 * x.shape[0]] + 1),
                                 dynamic_shapes=spec)  # fmt: skip
    for n in (4, 5, 11):
        compiled(*rows(n, 2 * n + 1))
    assert captures() == 1
    assert "y.shape[0] == 2*x.shape[0] + 1" in relations(compiled)
    with pytest.raises(PromiseError, match=r"y\.shape\[0\] is 12, .*\+ 1, which is 11: x\.shape"):
        compiled(*rows(5, 12))


def test_a_remainder_is_promised_by_a_product():
    compiled = torchweld.compile(lambda x: x.view(-1, 2, 4).sum(1),
                                 dynamic_shapes={"x": {0: 2 * N}})  # fmt: skip
    compiled(*rows(6))
    compiled(*rows(10))
    assert captures() == 1
    assert relations(compiled)[0] == "x.shape[0]%2 == 0"
    with pytest.raises(PromiseError, match=r"x.shape\[0\] is 7, but was promised to be 2\*n"):
        compiled(*rows(7))


BROKEN = {
    "above the bound": ({0: ROWS}, r"x\.shape\[0\] is 65, but 2 <= rows <= 64 was promised"),
    "another number": ({0: 5}, r"x\.shape\[0\] is 65, but was promised to be 5"),
    "a bound of a hint": ({0: Dim.DYNAMIC(max=9)}, r"x\.shape\[0\] is 65, .* <= 9 was promised"),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_promise_names_size_promise_and_line(why):
    def double(x):
        return x * 2

    said, message = BROKEN[why]
    compiled = torchweld.compile(double, dynamic_shapes={"x": said})
    compiled(*rows(5))
    with pytest.raises(PromiseError, match=message) as error:
        compiled(*rows(65))
    assert "def double(x)" in str(error.value)
    compiled(*rows(5))  # what was compiled is still there


def test_an_assumption_that_does_not_hold():
    a, b = Dim("a"), Dim("b")
    shapes = Shapes({"x": {0: a}, "y": {0: b}}, assumptions=[a <= b, b % 2 == 0])
    compiled = torchweld.compile(add, dynamic_shapes=shapes)
    for n, m in ((4, 6), (8, 8), (3, 10)):
        compiled(*rows(n, m))
    assert captures() == 1
    with pytest.raises(PromiseError, match=r"a <= b was promised, but x.*is 7 and y.*is 6"):
        compiled(*rows(7, 6))
    with pytest.raises(PromiseError, match=r"b%2 == 0 was promised, but y.* is 9"):
        compiled(*rows(7, 9))


def test_code_that_needs_one_size_names_its_line():
    def fixed(x):
        return x + torch.ones(5, 4)

    with pytest.raises(PromiseError, match=r"x\.shape\[0\] was said to vary.*only 5 fits") as error:
        torchweld.compile(fixed, dynamic_shapes={"x": {0: ROWS}})(*rows(5))
    assert "x + torch.ones(5, 4)" in str(error.value)


def test_auto_may_need_one_size():
    compiled = torchweld.compile(lambda x: x + torch.ones(5, 4),
                                 dynamic_shapes={"x": {0: Dim.AUTO, 1: Dim.AUTO}})  # fmt: skip
    torch.testing.assert_close(compiled(torch.ones(5, 4)), torch.full((5, 4), 2.0))
    assert captures() == 1


@pytest.mark.parametrize("n", [0, 1])
def test_sizes_0_and_1_are_compiled_for_themselves(n):
    shapes = {"x": {0: Dim("n")}, "y": {0: 2 * Dim("n") + 1}}
    compiled = torchweld.compile(add, dynamic_shapes=shapes)
    for m in (n, 5, 6, n):
        x, y = rows(m, 2 * m + 1)
        torch.testing.assert_close(compiled(x, y), add(x, y))
    assert captures() == 2


def test_what_is_not_said_does_not_vary():
    compiled = torchweld.compile(add, dynamic_shapes={"x": {0: ROWS}})
    for n, m in ((5, 3), (6, 3), (7, 4), (8, 5)):
        compiled(*rows(n, m))
    assert captures() == 3  # for y of 3, 4 and 5 rows


# ------------------------------------------------------------------------------- numbers
def test_a_number_that_varies_is_a_symbol_in_the_first_call():
    compiled = torchweld.compile(lambda x, n: x[:n] * n, fullgraph=True,
                                 dynamic_shapes={"n": Dim("n", min=1, max=40)})  # fmt: skip
    x = torch.randn(40, 4)
    for n in (5, 9, 40):
        torch.testing.assert_close(compiled(x, n), x[:n] * n)
    assert captures() == 1
    with pytest.raises(PromiseError, match="n is 41, but 1 <= n <= 40 was promised"):
        compiled(x, 41)


def test_a_number_that_is_the_size_of_a_tensor():
    compiled = torchweld.compile(lambda x, n: x.sum() * n,
                                 dynamic_shapes={"x": {0: ROWS}, "n": ROWS})  # fmt: skip
    for n in (5, 9):
        compiled(torch.ones(n, 4), n)
    assert captures() == 1
    with pytest.raises(PromiseError, match=r"n is 8, but was promised to be rows, which is 9"):
        compiled(torch.ones(9, 4), 8)


def test_a_number_that_the_code_needs():
    def pick(x, n):
        return x * [1, 2, 3, 4][n]

    with pytest.raises(PromiseError, match=r"n was said to vary.*only 3 fits"):
        torchweld.compile(pick, dynamic_shapes={"n": Dim("n")})(torch.ones(3), 3)


# ------------------------------------------------------------------------------- places
class Box:
    def __init__(self, x, n):
        self.x, self.n = x, n


def nested(xs, table, box, *args, scale=1, **kwargs):
    return xs[1] + table["b"][0] + box.x * box.n + args[0] + kwargs["z"] * scale


def call_nested(compiled, n):
    a, b, c, d, e = rows(n, n, n, n, n)
    calls = ((f([a, b], {"b": (c,)}, Box(d, n), a, scale=n, z=e)) for f in (compiled, nested))
    torch.testing.assert_close(*calls)


PLACES = {
    "torchweld": {"xs": [None, {0: ROWS}], "table": {"b": ({0: ROWS},)},
                  "box": {"x": {0: ROWS}, "n": ROWS}, "args": [{0: ROWS}], "scale": ROWS,
                  "z": {0: ROWS}},
    "as of functions of *args and **kwargs": {
                  "xs": [{0: ROWS}, {0: ROWS}], "table": {"b": [(ROWS, None)]},
                  "box": {"x": {0: ROWS}, "n": Dim("k")}, "*args": [{0: ROWS}], "scale": Dim("m"),
                  "kwargs": {"z": {0: ROWS}}},
}  # fmt: skip


@pytest.mark.parametrize("form", PLACES)
def test_containers_objects_and_all_kinds_of_parameters(form):
    check_places(PLACES[form])


def check_places(spec):
    compiled = torchweld.compile(nested, dynamic_shapes=spec, fullgraph=True)
    for n in (5, 7, 12):
        call_nested(compiled, n)
    assert captures() == 1
    with pytest.raises(PromiseError, match=r"xs\[.\]\.shape\[0\] is 65"):
        call_nested(compiled, 65)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x, *, extra=None):
        return self.layer(x) + extra


@pytest.mark.parametrize("shapes", [{"x": {0: ROWS}, "extra": {0: ROWS}},
                                    Shapes({"x": {0: ROWS}, "extra": (ROWS, 4)})])  # fmt: skip
def test_a_modules_parameters_are_those_of_its_forward(shapes):
    compiled = torchweld.compile(Net(), dynamic_shapes=shapes)
    for n in (3, 4, 9):
        compiled(*rows(n), extra=torch.randn(n, 4))
    assert captures() == 1
    with pytest.raises(PromiseError, match=r"def forward[^|]*extra\.shape\[0\] is 4,"):
        compiled(*rows(3), extra=torch.randn(4, 4))


def test_gradients_for_all_promised_sizes():
    compiled = torchweld.compile(lambda x: (x.softmax(0) @ x.t()).sum(),
                                 dynamic_shapes={"x": {0: ROWS}})  # fmt: skip
    for n in (3, 8, 21):
        x = torch.randn(n, 4, requires_grad=True)
        expected = torch.autograd.grad((x.softmax(0) @ x.t()).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x), expected)
    assert captures() == 1


# ------------------------------------------------------------------------------- wrong use
WRONG = {
    "an unknown parameter": ({"y": {0: ROWS}}, "names 'y', which is no parameter"),
    "too few dimensions": ({"x": (ROWS,)}, "has 2 dimensions, and 1 are said"),
    "a dimension that is not there": ({"x": {2: ROWS}}, "something is said of 2"),
    "no size": ({"x": {0: "rows"}}, "must be said to be a Dim"),
    "a size for a tensor": ({"x": ROWS}, "is a tensor, and Dim"),
    "a number": (5, "must be a dict by parameter"),
}


@pytest.mark.parametrize("why", WRONG)
def test_wrong_specs_are_errors(why):
    shapes, message = WRONG[why]
    with pytest.raises((ValueError, TypeError), match=message):
        torchweld.compile(lambda x: x + 1, dynamic_shapes=shapes)(*rows(5))


def test_dynamic_and_shapes_exclude_each_other():
    with pytest.raises(UsageError, match="the same in two ways"):
        torchweld.compile(add, dynamic=True, dynamic_shapes={})
    with pytest.raises(UsageError, match="given twice"):
        torchweld.compile(add, shapes_spec={}, dynamic_shapes={})


def test_the_name_of_torch_2_13_and_the_decorator_of_2_14():
    for made in (torchweld.compile(add, shapes_spec=SAME["Shapes"]), _decorated()):
        torchweld.reset()
        made(*rows(5, 5))
        made(*rows(6, 6))
        assert captures() == 1


def _decorated():
    def own(x, y):
        return x + y

    own._dynamic_spec = SAME["Shapes"]  # what torch's decorator leaves
    return torchweld.compile(own)


# ------------------------------------------------------------------------------- marks and lists
@pytest.mark.parametrize("n", [1, 2, 65])
def test_a_size_outside_of_its_mark_is_an_error(n):
    x = torch.randn(n, 4)
    torchweld.mark_dynamic(x, 0, min=3, max=64)
    with pytest.raises(PromiseError, match=rf"x\.shape\[0\] is {n}, .* from 3 to 64"):
        torchweld.compile(lambda x: x + 1)(x)


def test_a_broken_mark_in_what_eager_code_calls_is_an_error():
    def inner(x):
        return x * 2

    @torch.compiler.disable(recursive=False)
    def eager(x):
        return inner(x)

    x = torch.randn(9, 4)
    torchweld.mark_dynamic(x, 0, max=4)
    with pytest.raises(PromiseError, match=r"x\.shape\[0\] is 9"):
        torchweld.compile(lambda x: eager(x) + 1)(x)


def test_an_unbacked_size_may_not_be_fixed():
    x = torch.randn(5, 4)
    torchweld.mark_unbacked(x, 0)
    with pytest.raises(PromiseError, match="only 5 fits"):
        torchweld.compile(lambda x: x + torch.ones(5, 4))(x)


# entries of torch.compiler.config -> compilations of three lengths
LISTS = {
    "an argument": ({"dynamic_sources": "L['x']"}, 1),
    "one dimension": ({"dynamic_sources": "L['y'], L['x']:0"}, 1),
    "another dimension": ({"dynamic_sources": "L['x']:1"}, 2),
    "a regular expression": ({"dynamic_sources": r"L\['.*'\]:0"}, 1),
    "another name": ({"dynamic_sources": "L['y']"}, 2),
    "unbacked": ({"unbacked_sources": "L['x']:0"}, 1),
    "a size in the first call": ({"dynamic_values": "5"}, 1),
}


def is_known(name):
    """Whether this version of torch has the entry; `dynamic_values` came after 2.11."""
    return all(hasattr(torch.compiler.config, key) for key in LISTS[name][0])


@pytest.mark.parametrize("name", filter(is_known, LISTS))
@pytest.mark.parametrize("model", ["function", "module"])
def test_inputs_that_torchs_config_lists_vary(name, model):
    class Double(torch.nn.Module):
        def forward(self, x):
            return x * 2

    patch, expected = LISTS[name]
    with torch.compiler.config.patch(**patch):
        compiled = torchweld.compile(Double() if model == "module" else lambda x: x * 2)
        for n in (5, 6, 7):
            torch.testing.assert_close(compiled(torch.ones(n, 4)), torch.full((n, 4), 2.0))
    assert captures() == expected


def test_a_listed_attribute_and_a_listed_global(monkeypatch):
    box = Box(None, 3)
    with torch.compiler.config.patch(dynamic_sources="L['box'].n,G['WIDTH']"):
        compiled = torchweld.compile(lambda x, box: x[: box.n, :WIDTH] * 2)
        for n, width in ((3, 2), (4, 3), (5, 4)):
            box.n = n
            monkeypatch.setitem(globals(), "WIDTH", width)
            assert compiled(torch.ones(9, 9), box).shape == (n, width)
    assert captures() == 1


WIDTH = 2


def test_the_list_of_the_environment_wins_over_dynamic_false():
    with config.override(dynamic_sources="L['x']:0"):
        compiled = torchweld.compile(lambda x: x * 2, dynamic=False)
        for n in (5, 6, 7):
            compiled(*rows(n))
    assert captures() == 1
