"""torchweld.compile and its companions: what may be given, what comes back, what is shared."""

from __future__ import annotations

import functools
import gc
import inspect
import threading
import weakref

import pytest
import torch

import torchweld
from torchweld.base import config
from torchweld.base.errors import FullGraphError

X = torch.ones(3)


class Graphs:
    """A backend that counts the graphs that it got, and keeps what came with them."""

    def __init__(self):
        self.n = 0
        self.inputs = None

    def __call__(self, gm, inputs):
        self.n += 1
        self.inputs = [weakref.ref(i) if isinstance(i, torch.Tensor) else i for i in inputs]
        self.kinds = [type(i) for i in inputs]
        return gm.forward


def plus(x, n=1):
    """Adds."""
    return x + n


class Tool:
    def __init__(self, k):
        self.k = k

    def method(self, x):
        return x * self.k

    @classmethod
    def of_class(cls, x):
        return x + len(cls.__name__)

    @staticmethod
    def static(x):
        return x - 1

    @torchweld.compile(backend="eager")
    def decorated(self, x):
        return x * self.k + 1

    def __call__(self, x):
        return x / self.k


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


# ------------------------------------------------------------------------ what is compiled
CALLABLES = {
    "function": lambda: plus,
    "lambda": lambda: lambda x: x * 3,
    "bound method": lambda: Tool(2).method,
    "class method": lambda: Tool.of_class,
    "static method": lambda: Tool.static,
    "callable object": lambda: Tool(4),
    "partial": lambda: functools.partial(plus, n=5),
    "builtin": lambda: torch.relu,
    "overload": lambda: torch.ops.aten.relu.default,
    "module's method": lambda: torch.nn.Linear(3, 3).forward,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_callable(name):
    backend, fn = Graphs(), CALLABLES[name]()
    compiled = torchweld.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))
    assert backend.n == 1


def test_decorator_forms():
    backend = Graphs()

    @torchweld.compile(backend=backend)
    def f(x):
        return x + 1

    @torchweld.compile(fullgraph=True, dynamic=False, mode="default")
    def g(x):
        return x + 2

    assert f(X).tolist() == [2.0, 2.0, 2.0]
    assert g(X).tolist() == [3.0, 3.0, 3.0]
    assert torchweld.compile(plus)(X).tolist() == [2.0, 2.0, 2.0]
    assert backend.n == 1


def test_decorated_methods():
    class Made:
        @torchweld.compile(backend="eager")
        @classmethod
        def of_class(cls, x):
            return x + len(cls.__name__)

        @torchweld.compile(backend="eager")
        @staticmethod
        def static(x):
            return x * 5

    assert Tool(3).decorated(X).tolist() == [4.0] * 3
    assert Tool(5).decorated(X).tolist() == [6.0] * 3
    assert Made.of_class(X).tolist() == [5.0] * 3
    assert Made().static(X).tolist() == [5.0] * 3


def test_looks_like_the_function():
    compiled = torchweld.compile(plus)
    assert (compiled.__name__, compiled.__doc__, compiled.__module__) == (
        "plus", "Adds.", plus.__module__)  # fmt: skip
    assert inspect.signature(compiled) == inspect.signature(plus)
    assert compiled.__wrapped__ is plus


def test_compiling_the_compiled():
    compiled = torchweld.compile(plus)
    assert torchweld.compile(compiled) is compiled


def test_compiled_function_called_by_a_compiled_function():
    inner = torchweld.compile(plus, backend="eager")
    backend = Graphs()
    outer = torchweld.compile(lambda x: inner(x) * 2, backend=backend, fullgraph=True)
    assert outer(X).tolist() == [4.0] * 3
    assert backend.n == 1


def test_disable_argument_and_mode_off():
    assert torchweld.compile(plus, disable=True) is plus
    with config.override(mode="off"):
        assert torchweld.compile(plus) is plus
    compiled = torchweld.compile(plus)
    with config.override(mode="off"):
        assert compiled(X).tolist() == [2.0] * 3
    assert torchweld.statistics()["captures"] == 0


# ------------------------------------------------------------------------ arguments
WRONG = {
    "model": ((3,), {}, TypeError),
    "fullgraph": ((plus,), {"fullgraph": 1}, TypeError),
    "disable": ((plus,), {"disable": "no"}, TypeError),
    "dynamic": ((plus,), {"dynamic": "yes"}, TypeError),
    "mode": ((plus,), {"mode": "fastest"}, ValueError),
    "options": ((plus,), {"options": [1]}, TypeError),
    "recompile_limt": ((plus,), {"options": {"recompile_limt": 1}}, ValueError),
    "memory_budget": ((plus,), {"options": {"memory_budget": 1.5}}, ValueError),
    "recompile_limit": ((plus,), {"options": {"recompile_limit": "many"}}, TypeError),
    "backend": ((plus,), {"backend": 5}, TypeError),
    "recompile_limit is 0": ((plus,), {"recompile_limit": 0}, ValueError),
    "isolate_recompiles": ((plus,), {"isolate_recompiles": 1}, TypeError),
    "no such backend": ((plus,), {"backend": "no such backend"}, ValueError),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_argument_is_named(name):
    args, named, kind = WRONG[name]
    with pytest.raises(kind, match=name):
        torchweld.compile(*args, **named)


def test_fullgraph_error_says_where_and_why():
    def f(x):
        return x + 1 if x.sum() > 0 else x

    with pytest.raises(FullGraphError, match=r"(?s)W101.*if x\.sum\(\) > 0"):
        torchweld.compile(f, fullgraph=True)(X)


# ------------------------------------------------------------------------ sharing
def test_fullgraph_error_is_caught_where_torchs_is():
    compiled = torchweld.compile(lambda x: x @ torch.ones(5, 5), fullgraph=True)
    with pytest.raises(RuntimeError, match="mat"):
        compiled(torch.ones(3, 4))


def test_compiling_again_shares_what_was_compiled():
    backend = Graphs()
    for _ in range(10):
        torchweld.compile(plus, backend=backend)(X)
    assert backend.n == 1
    torchweld.compile(plus, backend=backend, fullgraph=True)(X)
    assert backend.n == 2


def test_functions_that_wrap_do_not_share():
    @functools.wraps(plus)
    def other(x):
        return x * 10

    torchweld.compile(plus, backend="eager")(X)

    @functools.wraps(plus)
    def third(x):
        return x * 100

    assert torchweld.compile(other, backend="eager")(X).tolist() == [10.0] * 3
    assert torchweld.compile(third, backend="eager")(X).tolist() == [100.0] * 3


def test_a_function_and_what_was_compiled_of_it_are_freed():
    def f(x):
        return x + held

    held = torch.ones(3)
    compiled = torchweld.compile(f)
    compiled(X)
    dead = [weakref.ref(f), weakref.ref(held), weakref.ref(compiled)]
    held = f = compiled = None
    gc.collect()
    assert [r() for r in dead] == [None] * 3


def test_arguments_do_not_live_on():
    compiled = torchweld.compile(lambda x, d: x * d["k"], backend="eager")
    x, d = torch.ones(3), {"k": torch.ones(3)}
    dead = [weakref.ref(x), weakref.ref(d["k"])]
    compiled(x, d)
    del x, d
    gc.collect()
    assert [r() for r in dead] == [None] * 2


# ------------------------------------------------------------------------ backends
def test_backend_gets_the_real_inputs_and_runnable_graph():
    def backend(gm, inputs):
        seen.append(gm(*inputs))
        assert [type(i) for i in inputs] == [torch.Tensor, torch.Tensor]
        assert all("val" in n.meta for n in gm.graph.nodes if n.op == "placeholder")
        return gm.forward

    seen = []
    torchweld.compile(lambda x, y: x * y, backend=backend)(X * 3, X * 2)
    assert seen[0][0].tolist() == [6.0] * 3


def test_backend_with_parameters_for_them_gets_mode_and_options():
    given = []

    def backend(gm, inputs, mode=None, options=None):
        given.append((mode, options))
        return gm.forward

    asked = {"mode": "of its own", "options": {"level": 3}}
    assert torchweld.compile(plus, backend=backend, **asked)(X).tolist() == [2.0] * 3
    assert given == [("of its own", {"level": 3})]


def test_options_of_torchs_compiler_that_change_no_result_are_accepted():
    options = {"triton.cudagraphs": False, "max_autotune": True, "epilogue_fusion": True,
               "trace.enabled": False}  # fmt: skip
    assert torchweld.compile(plus, options=options, name="plus")(X).tolist() == [2.0] * 3


def test_the_recompile_limit_is_an_argument_too():
    backend = Graphs()
    compiled = torchweld.compile(plus, backend=backend, dynamic=False, recompile_limit=2)
    for n in range(2, 6):
        assert compiled(torch.ones(n)).tolist() == [2.0] * n
    assert backend.n == 2


def test_isolated_recompiles_share_no_entries():
    backend = Graphs()
    for apart, made in ((False, 1), (False, 1), (True, 2), (True, 3)):
        torchweld.compile(plus, backend=backend, isolate_recompiles=apart)(X)
        assert backend.n == made


def test_a_scripted_module_is_given_back_as_it_is():
    scripted = torch.jit.script(torch.nn.Linear(3, 3))
    assert torchweld.compile(scripted) is scripted
    compiled = torchweld.compile(lambda x: scripted(x) + 1)
    torch.testing.assert_close(compiled(X), scripted(X) + 1)


def test_backend_inputs_die_with_the_call():
    backend = Graphs()
    torchweld.compile(plus, backend=backend)(torch.ones(5))
    gc.collect()
    assert backend.inputs[0]() is None


def test_backend_that_rewrites_the_graph():
    def backend(gm, inputs):
        for node in gm.graph.nodes:
            if node.op == "call_function":
                node.args = (node.args[0], 10)
        gm.recompile()
        return gm

    assert torchweld.compile(plus, backend=backend)(X).tolist() == [11.0] * 3


def test_backend_that_returns_no_callable():
    with pytest.raises(TypeError, match="NoneType"):
        torchweld.compile(plus, backend=lambda gm, inputs: None)(X)


def test_error_of_a_backend_reaches_the_user():
    def backend(gm, inputs):
        raise ArithmeticError("mine")

    with pytest.raises(ArithmeticError, match="mine"):
        torchweld.compile(plus, backend=backend)(X)


def test_backend_without_a_hash():
    class Backend:
        __hash__ = None

        def __eq__(self, other):
            return True

        def __call__(self, gm, inputs):
            return gm.forward

    assert torchweld.compile(plus, backend=Backend())(X).tolist() == [2.0] * 3


# ------------------------------------------------------------------------ companions
def test_is_compiling():
    def f(x):
        return x + 1 if torchweld.is_compiling() and torch.compiler.is_compiling() else x + 2

    assert not torchweld.is_compiling()
    assert torchweld.compile(f, fullgraph=True, backend="eager")(X).tolist() == [2.0] * 3
    assert f(X).tolist() == [3.0] * 3


def test_disable_as_decorator_with_a_reason():
    @torchweld.disable(reason="not today")
    def f(x):
        return x + 1

    def g(x):
        return f(x) * 2

    assert f.__name__ == "f"
    assert torchweld.compile(g, backend="eager")(X).tolist() == [4.0] * 3
    with pytest.raises(FullGraphError, match="W108"):
        torchweld.compile(g, fullgraph=True)(X)


def test_explain():
    def f(x):
        y = plus(x)
        return y if y.sum() > 0 else -y

    found = torchweld.explain(f)(X)
    assert [why.code for why in found.breaks] == ["W101"]
    assert len(found.graphs) == 1
    assert "W101" in str(found)
    found = torchweld.explain(plus)(X)
    assert (len(found.graphs), found.breaks) == (1, [])
    assert any(g.kind == "tensor" for g in found.guards)


def test_explain_of_a_module():
    found = torchweld.explain(torch.nn.Linear(3, 3))(X)
    assert len(found.graphs) == 1
    assert "guards:" in str(found)


def test_reset_forgets_entries_and_counters():
    backend = Graphs()
    compiled = torchweld.compile(plus, backend=backend)
    compiled(X)
    torchweld.reset()
    assert torchweld.statistics()["captures"] == 0
    compiled(X)
    assert backend.n == 2


# ------------------------------------------------------------------------ threads
def run_threads(work, n=4):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def test_threads_that_call_one_function_with_other_shapes():
    compiled = torchweld.compile(lambda x, k: (x * x).cumsum(-1) + k, backend="eager")

    def work(t):
        for i in range(6):
            x = torch.full((2 + i % 3, t + 1), 2.0)
            torch.testing.assert_close(compiled(x, t), (x * x).cumsum(-1) + t)

    run_threads(work)


def test_threads_that_compile_at_once_make_one_entry():
    backend = Graphs()
    compiled = torchweld.compile(plus, backend=backend)
    run_threads(lambda t: compiled(X))
    assert backend.n == 1


def test_threads_with_their_own_grad_mode():
    w = torch.ones(3, requires_grad=True)
    compiled = torchweld.compile(lambda x: x * w, backend="eager")

    def work(t):
        with torch.set_grad_enabled(t % 2 == 0):
            for _ in range(5):
                assert compiled(X).requires_grad == (t % 2 == 0)

    run_threads(work)


def test_inference_error_of_the_graph_has_eagers_type():
    def f(x, i):
        return torch.index_select(x, 0, i)

    for backend in ("eager", "torchweld"):
        compiled = torchweld.compile(f, backend=backend)
        with torch.no_grad():
            assert compiled(X, torch.tensor([1])).tolist() == [1.0]
            for bad in (3, -9):
                try:
                    f(X, torch.tensor([bad]))
                except Exception as error:
                    with pytest.raises(type(error)):
                        compiled(X, torch.tensor([bad]))


def test_a_compiled_function_has_the_parts_of_its_function():
    def scaled(x, k=2, *, bias=1):
        return x * k + bias

    compiled = torchweld.compile(scaled, backend="eager")
    assert compiled.__code__ is scaled.__code__
    assert compiled.__defaults__ == (2,)
    assert compiled.__kwdefaults__ == {"bias": 1}
    compiled.__defaults__ = (5,)
    assert compiled(torch.ones(2)).tolist() == [6.0, 6.0]


def test_inspect_tells_what_kind_of_function_was_compiled():
    async def later(x):
        return x + 1

    def several(x):
        yield x

    assert inspect.iscoroutinefunction(torchweld.compile(later))
    assert inspect.isgeneratorfunction(torchweld.compile(several))


def test_a_module_whose_getattr_raises_another_error():
    class Configured(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)
            self.config = {"scale": 3}

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return self.config[name]

        def forward(self, x):
            return self.layer(x) * self.scale

    net, x = Configured(), torch.ones(2, 4)
    torch.testing.assert_close(torchweld.compile(net, backend="eager")(x), net(x))
