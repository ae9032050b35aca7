"""The companions of compile(): what users say about their functions, with torchweld or torch."""

from __future__ import annotations

import operator
import sys

import pytest
import torch
import torch._dynamo
from kept_graphs import Graphs

import torchweld
from torchweld.base.errors import FullGraphError, RecompileError
from torchweld.capture import marks

X = torch.arange(1.0, 5.0)


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()
    yield
    torchweld.set_stance("default")
    torch.compiler.set_stance("default")


def helper(x):
    return (x * 2).relu()


def checked(fn, *calls, **options):
    """`fn` called eagerly and compiled: the same results. The graphs that were made."""
    backend = Graphs()
    compiled = torchweld.compile(fn, backend=backend, **options)
    for args in calls:
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=0, atol=0)
    return backend


# ------------------------------------------------------------------------ disable
DISABLES = {
    "torchweld": lambda fn: torchweld.disable(fn),
    "torchweld, as a decorator with a reason": lambda fn: torchweld.disable(reason="why not")(fn),
    "torch": lambda fn: torch.compiler.disable(fn),
    "torch, as a decorator with a reason": lambda fn: torch.compiler.disable(reason="why not")(fn),
}


@pytest.mark.parametrize("name", DISABLES)
def test_disabled_function_and_what_it_calls_run_eagerly(name):
    @DISABLES[name]
    def quiet(x):
        return helper(x) + 1

    def f(x):
        return quiet(x) * helper(x + 1)

    backend = checked(f, (X,), (X,), (X,))
    assert all(torch.relu not in gm.graph.nodes for gm in backend.graphs)
    inputs = [[n.name for n in gm.graph.nodes if n.op == "placeholder"] for gm in backend.graphs]
    assert backend.n == 1, inputs  # helper(x + 1)


@pytest.mark.parametrize("name", DISABLES)
def test_two_disabled_functions_share_nothing(name):
    first, second = DISABLES[name](lambda x: x + 1), DISABLES[name](lambda x: helper(x) - 1)
    assert checked(lambda x: first(second(x)), (X,), (X,), (X,)).n == 0


SHALLOW = {
    "torchweld": lambda fn: torchweld.disable(fn, recursive=False),
    "torch": lambda fn: torch.compiler.disable(fn, recursive=False),
}


@pytest.mark.parametrize("name", SHALLOW)
def test_what_a_function_calls_that_is_disabled_alone_is_compiled(name):
    def seen(x):
        ran.append(torchweld.is_compiling())
        return helper(x) + 1

    ran = []
    shallow = SHALLOW[name](seen)
    backend = checked(lambda x: shallow(x) * 2, (X,), (X,))
    assert backend.n == 2  # helper, and what comes after the call
    assert ran == [False] * 4


def test_function_that_dynamo_skips():
    backend = checked(lambda x: skipped(x) * 2, (X,), (X,))
    assert backend.n == 2  # helper, and what comes after the call


@sys.modules["torch._dynamo"].decorators.skip
def skipped(x):
    return helper(x) + 1


def test_the_reason_of_disable_is_told():
    @torchweld.disable(reason="it calls the database")
    def quiet(x):
        return x

    with pytest.raises(FullGraphError, match=r"(?s)W108.*it calls the database"):
        torchweld.compile(lambda x: quiet(x) + 1, fullgraph=True)(X)


def test_a_wrapper_of_a_disabled_function_is_not_disabled():
    import functools

    quiet = torchweld.disable(helper)

    @functools.wraps(quiet)
    def other(x):
        return x + 1

    assert checked(lambda x: other(x) * 2, (X,), fullgraph=True).n == 1


def test_disabled_module_keeps_its_state_and_runs_eagerly():
    inner = torch.nn.Linear(4, 4)
    quiet = torchweld.disable(inner)
    assert isinstance(quiet, torch.nn.Linear)
    assert quiet.weight is inner.weight
    assert checked(lambda x: quiet(x).relu(), (X,), (X,)).operators() == [1]


def test_module_that_torch_has_disabled():
    quiet = torch.compiler.disable(torch.nn.Linear(4, 4))
    assert checked(lambda x: quiet(x).relu(), (X,), (X,)).operators() == [1]


def test_disabled_class():
    @torchweld.disable
    class Layer(torch.nn.Module):
        def forward(self, x):
            return helper(x)

    layer = Layer()
    assert checked(lambda x: layer(x) + 1, (X,), (X,)).operators() == [1]


def test_compiling_a_disabled_function_gives_it_back():
    quiet = torchweld.disable(helper)
    assert torchweld.compile(quiet) is quiet
    assert torchweld.disable(torchweld.compile(helper)).__wrapped__ is helper


def test_disabled_static_method():
    class Tool:
        @torchweld.disable
        @staticmethod
        def run(x):
            return helper(x)

    assert checked(lambda x: Tool.run(x) + 1, (X,), (X,)).operators() == [1]


# ------------------------------------------------------------------------ allow_in_graph
@pytest.mark.parametrize("allow", [torchweld.allow_in_graph, torch.compiler.allow_in_graph])
def test_allowed_function_is_one_node(allow):
    @allow
    def opaque(x, k):
        for _ in range(k):
            x = x * 2
        return x

    backend = checked(lambda x: opaque(x, 3) + 1, (X,), fullgraph=True)
    assert backend.targets() == [opaque, operator.add]


def test_allowed_function_is_compiled_behind_the_capture():
    opaque = torchweld.allow_in_graph(lambda x: torch.sin(x) * 2)
    f = torchweld.compile(lambda x: opaque(x) + 1, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(f(X), torch.sin(X) * 2 + 1)
    assert torchweld.statistics()["kernels"] == 1


def test_allowed_list_of_functions():
    first, second = torchweld.allow_in_graph([lambda x: x + 1, lambda x: x * 3])
    backend = checked(lambda x: second(first(x)), (X,), fullgraph=True)
    assert backend.targets() == [first, second]


# ------------------------------------------------------------------------ substitute_in_graph
def test_substitute_of_a_c_function_is_captured():
    @torchweld.substitute_in_graph(operator.indexOf)
    def index_of(a, b, /):
        for i, item in enumerate(a):
            if item is b or item == b:
                return i
        raise ValueError("sequence.index(x): x not in sequence")

    assert index_of([5, 6], 6) == 1
    checked(lambda x: x + operator.indexOf([7, 8, 9], 9), (X,), fullgraph=True)


def test_substitute_with_other_parameters():
    with pytest.raises(TypeError, match="skip_signature_check"):
        torchweld.substitute_in_graph(helper)(lambda y, z: y)
    torchweld.substitute_in_graph(helper, skip_signature_check=True)(lambda y: y)
    marks._known.pop(id(helper))


def test_a_substitute_may_call_what_it_stands_for():
    def slow(x):
        return x + 1

    @torchweld.substitute_in_graph(slow)
    def fast(x):
        return slow(x) if x.dim() else x

    checked(lambda x: slow(x) * 2, (X,), (X,), fullgraph=True)


# ------------------------------------------------------------------------ assume_constant_result
MARKS = [torchweld.assume_constant_result, torch.compiler.assume_constant_result]


@pytest.mark.parametrize("mark", MARKS)
def test_constant_result_is_computed_while_capturing(mark):
    @mark
    def answer():
        ran.append(1)
        return int(torch.ones(3).sum().item())

    ran = []
    compiled = torchweld.compile(lambda x: x + answer(), backend="eager", fullgraph=True)
    for _ in range(3):
        assert compiled(X).tolist() == (X + 3).tolist()
    assert ran == [1]


def test_constant_result_of_a_method():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes = {"a": 2}

        @torchweld.assume_constant_result
        def size(self, name):
            return open(__file__).read(0) or self.sizes[name]

        def forward(self, x):
            return x * self.size("a")

    assert checked(Model(), (X,), (X,), fullgraph=True).n == 1


def test_constant_result_that_is_a_tensor():
    table = torch.ones(4)
    get = torchweld.assume_constant_result(lambda: table)
    assert checked(lambda x: x + get(), (X,), (X,), fullgraph=True).n == 1


# ------------------------------------------------------------------------ is_compiling and others
def test_flags_in_captured_and_in_eager_code():
    def flags(x):
        return x + 1, (torchweld.is_compiling(), torch.compiler.is_compiling(),
                       torch.compiler.is_dynamo_compiling(), torchweld.is_exporting(),
                       torch.compiler.is_exporting())  # fmt: skip

    compiled = torchweld.compile(flags, backend="eager", fullgraph=True)
    assert compiled(X)[1] == (True, True, True, False, False)
    assert flags(X)[1] == (False,) * 5


def test_flag_of_dynamo_that_the_user_has_imported():
    from torch._dynamo.external_utils import is_compiling

    compiled = torchweld.compile(lambda x: x + (1 if is_compiling() else 2), fullgraph=True,
                                 backend="eager")  # fmt: skip
    assert compiled(X).tolist() == (X + 1).tolist()


def test_nested_compile_region():
    mine = torchweld.nested_compile_region(helper)
    theirs = torch.compiler.nested_compile_region(lambda x: helper(x) - 1)
    with_options = torchweld.nested_compile_region(max_reuse_entries=4)(helper)
    backend = checked(lambda x: mine(theirs(with_options(x))), (X,), fullgraph=True)
    assert backend.n == 1


def test_step_marks_do_nothing():
    def f(x):
        torchweld.cudagraph_mark_step_begin()
        return x + 1

    torchweld.cudagraph_mark_step_begin()
    assert checked(f, (X,), fullgraph=True).n == 1


def test_graph_break_says_its_message():
    def f(x):
        torchweld.graph_break("here")
        return helper(x)

    torchweld.graph_break()
    with pytest.raises(FullGraphError, match=r"(?s)W117.*test_surface.py.*here"):
        torchweld.compile(f, fullgraph=True)(X)
    checked(f, (X,), (X,))


def test_graph_break_of_dynamo():
    def f(x):
        dynamo.graph_break()
        return helper(x)

    dynamo = sys.modules["torch._dynamo"]
    with pytest.raises(FullGraphError, match="W117"):
        torchweld.compile(f, fullgraph=True)(X)


# ------------------------------------------------------------------------ sizes
def test_marks_of_sizes_are_kept_where_torch_keeps_them():
    x, y = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    dynamo = sys.modules["torch._dynamo"]
    torchweld.mark_dynamic(x, 0, min=1, max=8)
    dynamo.mark_dynamic(y, 0, min=1, max=8)
    for mark, *args in (("maybe_mark_dynamic", 1), ("mark_static", 2), ("mark_unbacked", [1])):
        getattr(torchweld, mark)(x, *args)
        getattr(dynamo.decorators, mark)(y, *args)
    names = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_static_indices",
             "_dynamo_unbacked_indices")  # fmt: skip
    for name in names:
        assert getattr(x, name) == getattr(y, name)
    said = getattr(y, "_has_dynamo_dim_marking", True)  # torch 2.11 says it nowhere, nor asks
    assert x._has_dynamo_dim_marking is said is True
    (mine,), (theirs,) = x._dynamo_dynamic_range, y._dynamo_dynamic_range
    assert (mine.dim, mine.min, mine.max) == (theirs.dim, theirs.min, theirs.max)


def test_torch_compile_honours_our_marks():
    x = torch.ones(6, 3)
    torchweld.mark_dynamic(x, 0)
    seen = []

    def backend(gm, inputs):
        for node in gm.graph.nodes:
            seen.extend(getattr(node.meta.get("example_value"), "shape", ()))
        return gm.forward

    torch.compile(lambda x: x + 1, backend=backend)(x)
    assert any(isinstance(size, torch.SymInt) for size in seen)


def test_marked_tensor_is_compiled_and_marking_inside_is_no_break():
    def f(x):
        torchweld.mark_static(x, 0)
        return x + 1

    x = X.clone()
    torchweld.mark_dynamic(x, 0)
    assert checked(f, (x,), (X,), fullgraph=True).n == 1


# ------------------------------------------------------------------------ stances
def test_unknown_stance():
    with pytest.raises(ValueError, match="no such"):
        torchweld.set_stance("no such")


def test_force_eager_as_function_context_and_decorator():
    backend = Graphs()
    compiled = torchweld.compile(helper, backend=backend)
    torchweld.set_stance("force_eager")
    compiled(X)
    assert compiled.hits == 0
    torchweld.set_stance("default")
    for _ in range(2):
        compiled(X)
    assert (backend.n, compiled.hits) == (1, 1)
    with torchweld.set_stance("force_eager"):
        compiled(X)
        torchweld.compile(lambda x: x + 1, backend=backend)(X)

    @torchweld.set_stance("force_eager")
    def decorated(x):
        return compiled(x)

    decorated(X)
    assert (backend.n, compiled.hits) == (1, 1)
    compiled(X)
    assert compiled.hits == 2


STANCES = {"torchweld": torchweld.set_stance, "torch": torch.compiler.set_stance}


@pytest.mark.parametrize("whose", STANCES)
def test_eager_on_recompile_uses_what_is_compiled(whose):
    backend = Graphs()
    compiled = torchweld.compile(helper, backend=backend)
    compiled(X)
    with STANCES[whose]("eager_on_recompile"):
        for x in (X, X[:2], X):
            assert compiled(x).tolist() == helper(x).tolist()
    assert (backend.n, compiled.hits) == (1, 2)
    compiled(X[:2])
    assert backend.n == 2


@pytest.mark.parametrize("whose", STANCES)
def test_fail_on_recompile_says_what_changed(whose):
    compiled = torchweld.compile(helper, backend="eager")
    compiled(X)
    with STANCES[whose]("fail_on_recompile"):
        compiled(X)
        with pytest.raises(RecompileError, match=r"`x` had size 4 in dimension 0, has 2"):
            compiled(X[:2])
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            torchweld.compile(lambda x: x + 1, backend="eager")(X)


def test_fail_on_recompile_reaches_functions_that_eager_code_calls():
    def f(x):
        return helper(x) if x.sum() > 0 else x

    compiled = torchweld.compile(f, backend="eager")
    compiled(X)
    inner = torchweld.statistics()["graphs"]
    helper_entries = compiled.entries
    with torchweld.set_stance("fail_on_recompile"):
        compiled(X)
        with pytest.raises(RecompileError):
            compiled(X[:3])
    assert torchweld.statistics()["graphs"] == inner
    assert compiled.entries == helper_entries


@pytest.mark.parametrize("whose", STANCES)
def test_eager_then_compile(whose):
    backend = Graphs()
    compiled = torchweld.compile(helper, backend=backend)
    with STANCES[whose]("eager_then_compile"):
        compiled(X)
        assert backend.n == 0
        compiled(X)
    assert backend.n == 1


@pytest.mark.parametrize("set_stance", [torchweld.set_stance, torch.compiler.set_stance])
def test_function_that_sets_a_stance_runs_eagerly(set_stance):
    @set_stance("force_eager")
    def decorated(x):
        return helper(x)

    def f(x):
        with set_stance("default"):
            return decorated(x) + 1

    compiled = torchweld.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(X), f(X))
    assert torchweld.statistics()["internal_errors"] == 0


def test_stance_that_a_compiled_function_sets():
    def f(x):
        with torchweld.set_stance("force_eager"):
            return inner(x) + 1

    inner = torchweld.compile(helper, backend="eager")
    inner(X)
    torch.testing.assert_close(torchweld.compile(f, backend="eager")(X), helper(X) + 1)
    assert inner.hits == 0
    inner(X)
    assert inner.hits == 1
