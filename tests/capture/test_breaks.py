"""A frame with something that cannot be captured is compiled on both sides of it."""

from __future__ import annotations

import contextlib
import traceback

import pytest
import torch
from break_twin import X, check, opaque
from torch import nn

import torchweld
from torchweld.base.errors import FullGraphError


# ------------------------------------------------------------------------------ branches and loops
def test_branch_on_a_value():
    def f(x):
        y = torch.tanh(x) * 2
        if y.sum() > 0:
            y = y.relu() + x
        else:
            y = y.sigmoid() - x
        return y * 3

    check(f, (X + 1,), (X - 1,), graphs=3, breaks=1)


def test_branch_in_a_loop_over_layers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x)) * 3
                if x.abs().max() > 2.5:
                    x = x / 2
            return x

    torch.manual_seed(0)
    with torch.no_grad():
        net = Net()
        seen = check(net, (X * 0.01,), (X * 50,), graphs=3)
    assert max(seen.operators()) >= 5


def test_while_on_a_value_uses_one_graph_for_all_rounds():
    def f(x):
        n = 0
        while x.sum() < 100:
            x = x * 2 + 1
            n += 1
        return x, n

    # up to the first test; then a round with n = 0, and one with any n
    check(f, (X.abs(),), (X.abs() + 3,), graphs=3)


def test_branch_in_a_loop_over_a_range_uses_one_graph_for_all_rounds():
    def f(x):
        for _ in range(50):
            x = x * 1.1 + 0.01
            if x.sum() > 5:
                x = x - 1
        return x

    check(f, (X,), graphs=3)


def test_loop_that_is_left_by_a_branch_on_a_value():
    def f(xs):
        total = xs[0] * 0
        for x in xs:
            total = total + x
            if total.max() > 4:
                break
        else:
            total = -total
        return total

    check(f, ([X, X + 1, X + 2, X + 3],), ([X, X],), graphs=4)


def test_value_read_as_a_number():
    def f(x):
        n = int((x * x).sum())
        return x * n + torch.arange(n)[0]

    check(f, (X,), graphs=2)


# ----------------------------------------------------------------------------------- opaque calls
def test_opaque_call_in_the_middle():
    def f(x):
        y = x.sin() + 1
        z = opaque(y)
        return z.cos() + y

    check(f, (X,), graphs=2, breaks=1)


def test_opaque_call_deep_in_an_expression():
    def f(x):
        return (x + 1) * torch.maximum(opaque(x * 2), x - 1) + len([x, opaque(x)])

    check(f, (X,), graphs=3, breaks=2)


def test_break_in_the_middle_of_a_model_is_one_split():
    class Layer(nn.Module):
        def __init__(self, broken):
            super().__init__()
            self.lin, self.broken = nn.Linear(8, 8), broken

        def forward(self, x):
            x = self.lin(x).relu()
            if self.broken:
                x = opaque(x)
            return x + 1

    with torch.no_grad():
        net = nn.Sequential(*(Layer(i == 6) for i in range(12)))
        check(net, (X,), graphs=2, breaks=1)


def test_break_in_the_middle_of_a_loop_over_layers_is_one_split():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x).relu()
                if i == 6:
                    x = opaque(x)
            return x

    with torch.no_grad():
        check(Net(), (X,), graphs=2)


def test_break_three_calls_deep_is_one_split():
    def third(x):
        y = x + 1
        return opaque(y) * y

    def second(x):
        return third(x * 2) - x

    def first(x, *, k):
        return [second(x), k]

    def f(x):
        return first(x / 3, k=x.exp())

    check(f, (X,), graphs=2, breaks=1)


# ------------------------------------------------------------------------------------------ blocks
class Manager:
    """Notes what happens to it."""

    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(("exit", kind))
        return self.swallow


def test_break_inside_of_a_with_block():
    def f(x, log):
        with Manager(log) as m:
            y = x * 2 + 1
            m.log.append("before")
            y = opaque(y)
            y = y.exp() - x
        return y, len(log)

    check(f, (X, []), graphs=2, breaks=1)


def test_exception_of_the_broken_call_reaches_the_with_block():
    def f(x, log, swallow):
        y = x * 2 + 1
        with Manager(log, swallow):
            y = y + 1
            y = fail(y)
        return y * 2

    check(f, (X, [], True), (X, [], False), graphs=3)


@torchweld.disable
def fail(x):
    raise ValueError(f"no {tuple(x.shape)}")


@contextlib.contextmanager
def doubled(log):
    log.append("in")
    try:
        yield 2
    finally:
        log.append("out")


def test_break_inside_of_a_with_block_made_by_a_generator():
    def f(x, log):
        y = x.sin() + 1
        with doubled(log) as k:
            y = y * k + x
            y = opaque(y)
            y = y.cos() + k
        return y - 1

    check(f, (X, []), graphs=2, breaks=1)


def test_break_inside_of_no_grad():
    def f(x, w):
        with torch.no_grad():
            y = (x * w).sin()
            y = opaque(y) + 1
        return y * w, torch.is_grad_enabled()

    w = torch.ones(8, requires_grad=True)
    check(f, (X, w), graphs=2, breaks=1)


def test_break_inside_of_autocast():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
            y = opaque(y) @ w
        return y, x @ w, torch.is_autocast_enabled("cpu")

    check(f, (torch.ones(4, 4), torch.ones(4, 4)), graphs=2, breaks=1)


def test_break_inside_of_inference_mode():
    def f(x):
        with torch.inference_mode():
            y = opaque(x + 1) * 2
        return y, torch.is_inference_mode_enabled()

    check(f, (X,), graphs=2)


# -------------------------------------------------------------------------------------- exceptions
def test_exception_of_the_broken_call_reaches_its_handler():
    def f(x):
        y = x.sin() * 2
        try:
            y = y + 1
            y = fail(y)
        except ValueError as error:
            y = y * len(str(error))
        finally:
            y = y - 1
        return y.cos() + 1

    check(f, (X,), graphs=2, breaks=1)


def test_break_inside_of_a_handler():
    def f(x):
        y = x.sin() * 2
        try:
            fail(y)
        except ValueError:
            y = opaque(y + 1) * 2
            try:
                raise
            except ValueError as again:
                y = y + len(str(again))
        return y.cos()

    check(f, (X,), graphs=3)


def test_break_inside_of_a_finally_block():
    def f(x, log):
        try:
            return x * 2 + 1
        finally:
            log.append(float(opaque(x).sum()))

    check(f, (X, []), graphs=2)


def test_exception_raised_in_the_frame_is_raised_after_its_effects():
    def f(x, log):
        y = x * 2 + 1
        log.append(y)
        print("before")
        raise KeyError("gone")

    check(f, (X, []), graphs=1)


def test_outer_handler_covers_the_rest_of_an_inlined_call():
    def inner(x):
        y = opaque(x + 1)
        if y.shape[0] == 8:
            raise LookupError("eight")
        return y

    def f(x):
        try:
            y = inner(x * 2)
        except LookupError as error:
            y = x + len(error.args[0])
        return y * 3

    check(f, (X,), graphs=2)


def test_traceback_shows_the_lines_of_the_user():
    def f(x):
        y = x * 2 + 1
        z = fail(y)
        return z + 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    for _ in range(2):
        with pytest.raises(ValueError, match="no") as caught:
            compiled(X)
        lines = [entry.line for entry in traceback.extract_tb(caught.tb)]
        assert "z = fail(y)" in lines


# ------------------------------------------------------------------------- effects, cells, liveness
def test_printed_output_keeps_its_order():
    @torchweld.disable
    def show(x):
        print("opaque", tuple(x.shape))
        return x

    def f(x):
        print("first")
        y = show(x * 2 + 1)
        print("second", y.shape)
        return y + 1

    check(f, (X,), graphs=2)


def test_arguments_are_mutated_before_the_break():
    @torchweld.disable
    def look(d):
        d["seen"] = list(d["items"])
        return len(d["items"])

    def f(x, d):
        d["items"].append(1)
        x.add_(1)
        n = look(d)
        d["items"].append(n)
        return x * n

    check(f, (X, {"items": [0]}), graphs=2)


def test_cells_are_shared_across_the_break():
    def f(x):
        k = 1
        z = x + 1

        def step():
            nonlocal k
            k += 1
            return z * k

        y = step()
        y = opaque(y) + step()
        z = z * 2
        return y + step(), k

    check(f, (X,), graphs=2, breaks=1)


def test_function_that_calls_itself_survives_the_break():
    def f(x):
        def down(n):
            return x if n == 0 else down(n - 1) + 1

        y = down(2)
        y = opaque(y * 2)
        return y + down(3)

    check(f, (X,), graphs=2)


def test_comprehension_with_a_broken_call():
    def f(xs):
        ys = [opaque(x * 2) + 1 for x in xs]
        return sum(ys) * 3

    check(f, ([X, X + 1, X + 2, X + 3],), graphs=4)


def test_comprehension_in_a_comprehension_with_a_broken_call():
    def f(xs):
        x = xs[0]
        ys = {i: [opaque(x * i) + 1 for x in xs] for i in range(2)}
        return sum(ys[1]) * x

    check(f, ([X, X + 1, X + 2],), graphs=7)


def test_generator_consumed_in_the_frame():
    def pieces(x):
        for i in range(3):
            yield x * i + 1

    def f(x):
        total = x.sin()
        for piece in pieces(x):
            total = total + opaque(piece)
        return total * 2

    check(f, (X,), graphs=4)


def test_unbound_variable_is_still_unbound_after_the_break():
    def f(x, flag):
        if flag:
            late = x
        y = opaque(x * 2) + 1
        return y * late

    check(f, (X, True), (X, False), graphs=4)


def test_object_made_in_the_frame_is_one_object_after_the_break():
    def f(x):
        box = [x]
        pair = (box, {"box": box})
        y = opaque(x + 1)
        box.append(y * 2)
        return pair[1]["box"] is box, pair[0][1]

    check(f, (X,), graphs=2)


def test_method_with_super_after_the_break():
    class Base(nn.Module):
        def forward(self, x):
            return x * 2

    class Derived(Base):
        def forward(self, x):
            y = opaque(x + 1)
            return super().forward(y) + 1

    check(Derived(), (X,), graphs=2)


# --------------------------------------------------------------------------------------- reporting
def test_fullgraph_raises_at_the_first_break():
    def f(x):
        return opaque(x + 1) * 2

    torchweld.reset()
    with pytest.raises(FullGraphError, match="W108"):
        torchweld.compile(f, fullgraph=True)(X)


def test_a_dead_tensor_is_not_handed_over():
    def f(x):
        y = x * 2
        z = y + 1
        del y
        return opaque(z) + 1

    torchweld.reset()
    compiled = torchweld.compile(f, backend="eager")
    compiled(X)
    (entry,) = compiled.entries
    assert entry.info.region.finish.source.count("outs[") == 1


def test_stretch_of_few_operators_is_not_compiled():
    def f(x):
        if x.sum() > 1e9:
            return x
        return (x * 2 + 1).relu() - x

    torchweld.reset()
    compiled = torchweld.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))
    assert torchweld.statistics()["graphs"] == 1


def test_operator_that_fails_after_the_break_reaches_its_handlers():
    def f(x, i, log):
        with torch.no_grad(), Manager(log):
            i = opaque(i + 1)
            try:
                y = (x * 2)[i] + 1
            except IndexError:
                y = x.sum() + len(log)
            y = y * 2
        return y, torch.is_grad_enabled()

    check(f, (X, torch.tensor([3]), []), (X, torch.tensor([70]), []), graphs=2)


def test_a_set_is_handed_over_in_its_order():
    def f(x):
        s = {64, 0, 32, 7}
        s.discard(0)
        y = opaque(x + 1)
        return y * 2, list(s)

    check(f, (X,), graphs=2)
