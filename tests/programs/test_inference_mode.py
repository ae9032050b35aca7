"""inference_mode entered inside of a captured function."""

import contextlib

import pytest
import torch
from eager_twin import check, check_refused

import torchweld

X = torch.arange(6.0).reshape(2, 3)
P = X.clone().requires_grad_()
with torch.inference_mode():
    Z = torch.arange(6.0).reshape(2, 3)


def test_results_are_inference_tensors():
    def program(x):
        with torch.inference_mode():
            return x * 2 + 1

    check(program, (X,), (P,), graphs=2)


def test_results_cannot_be_written_outside():
    def program(x):
        with torch.inference_mode():
            return x * 2

    torchweld.reset()
    y = torchweld.compile(program)(X)
    assert y.is_inference()
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        y.add_(1)
    with pytest.raises(RuntimeError, match="do not track version"):
        assert y._version


def test_results_made_outside_of_the_block_are_normal():
    def program(x):
        with torch.inference_mode():
            y = x * 2
            inside = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        return y + 1, inside, torch.is_inference_mode_enabled()

    check(program, (X,), (P,), graphs=2)


@pytest.mark.parametrize("backend", ["torchweld", "eager"])
def test_results_of_both_kinds(backend):
    def program(x):
        with torch.inference_mode():
            y = x * 2
        return y, y.T + 1, x - 1, x

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend=backend)
    for given in (X, P):
        for _ in range(2):
            expected, got = program(given), compiled(given)
            for a, b in zip(expected, got, strict=True):
                assert (a.is_inference(), a.requires_grad) == (b.is_inference(), b.requires_grad)
                assert torch.equal(a, b) and a.stride() == b.stride()
            assert got[3] is given


def test_results_of_both_kinds_that_share_memory():
    def program(x):
        with torch.inference_mode():
            y = x * 2
        return y, y[0], x + 1

    check_refused(program, X, code="W106", says="share memory")


def test_inference_mode_false_records_gradients():
    def program(x):
        with torch.no_grad():
            with torch.inference_mode(False):
                z = x * 3
            return z, x + 1

    check(program, (P,))

    def train(x):
        with torch.inference_mode(False):
            return x * 3

    torchweld.reset()
    with torch.inference_mode():
        y = torchweld.compile(train)(P)
    assert y.requires_grad and not y.is_inference()
    y.sum().backward()
    assert torch.equal(P.grad, torch.full((2, 3), 3.0))
    P.grad = None


def test_nested_with_grad_modes():
    def program(x):
        with torch.no_grad(), torch.inference_mode(), torch.enable_grad():
            a = x * 2, torch.is_grad_enabled()
            with torch.inference_mode(False), torch.no_grad():
                b = (x * 3).sum().is_inference(), torch.is_inference_mode_enabled()
        return a, b, torch.is_grad_enabled()

    check(program, (X,), (P,), graphs=2)


def test_decorator():
    @torch.inference_mode()
    def twice(x):
        return x * 2

    @torch.inference_mode
    def thrice(x):
        return x * 3

    check(lambda x: (twice(x), thrice(x)), (X,))
    check(twice, (X,))


def test_decorated_method_of_a_module():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        @torch.inference_mode()
        def embed(self, x):
            return self.linear(x)

        def forward(self, x):
            return self.embed(x) + 1

    check(Model(), (X,))


def test_return_and_exception_inside():
    def program(x, fail):
        try:
            with torch.inference_mode():
                y = x * 2
                if fail:
                    raise KeyError("k")
                return y, "returned"
        except KeyError:
            return x + 1, torch.is_inference_mode_enabled()

    check(program, (X, False), (X, True), graphs=2)


def test_conditional_block():
    def program(x, on):
        with torch.inference_mode() if on else contextlib.nullcontext():
            return x * 2

    check(program, (X, False), (X, True), graphs=2)


def test_views_and_writes_inside():
    def program(x):
        with torch.inference_mode():
            x.mul_(3)
            return x.view(-1), x[0], x

    check(program, (X,))


def test_write_to_an_inference_tensor_after_the_block():
    def program(x):
        with torch.inference_mode():
            y = x * 2
        y.add_(1)
        return y

    check_refused(program, X, code="W104", says="Inplace update to inference tensor")


def test_inference_tensor_saved_for_backward():
    def program(x):
        with torch.inference_mode():
            y = x * 2
        return x * y

    check_refused(program, P, code="W104", says="saved for backward")


def test_kind_of_the_arguments_is_guarded_where_it_is_read():
    def program(x):
        return x + 1, x.is_inference(), torch.is_inference(x.view(-1))

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend="eager")
    assert [compiled(x)[1:] for x in (X, Z, X, Z)] == [program(x)[1:] for x in (X, Z, X, Z)]


def test_inference_tensors_are_not_written_outside_of_the_mode():
    torchweld.reset()
    compiled = torchweld.compile(lambda x: x.add_(1))
    compiled(X.clone())
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
        compiled(Z)
    with torch.inference_mode():
        assert compiled(Z.clone()).is_inference()


@pytest.mark.parametrize("outside", [False, True])
def test_under_an_outer_mode(outside):
    def program(x):
        with torch.inference_mode():
            y = x * 2
        with torch.inference_mode(False):
            z = x * 2
        return y + z, y, z, torch.is_inference_mode_enabled()

    with torch.inference_mode(outside):
        check(program, (X,))


@pytest.mark.parametrize("backend", ["torchweld", "eager"])
def test_mode_is_left_when_an_operator_fails_at_run_time(backend):
    def program(x, i):
        y = x * 2
        with torch.inference_mode(), torch.enable_grad():
            return x[i], y

    def no_grad(x, i):
        y = x * 2
        with torch.no_grad():
            return x[i], y

    for fn in (program, no_grad):
        torchweld.reset()
        compiled = torchweld.compile(fn, backend=backend)
        compiled(P, torch.tensor([1]))
        assert torchweld.statistics()["aten_graphs"] == 0
        for _ in range(2):
            with pytest.raises(IndexError):
                compiled(P, torch.tensor([7]))
            assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert compiled(P, torch.tensor([1]))[1].requires_grad


def test_mode_is_left_when_the_capture_is_refused_inside():
    def program(x):
        with torch.inference_mode(), torch.enable_grad():
            return x * int(x.sum())

    check_refused(program, X, code="W102", says="")
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_mode_that_is_left_on():
    def program(x):
        context = torch._C._InferenceMode(True)
        context.__enter__()
        return x + 1, context

    torchweld.reset()
    y, context = torchweld.compile(program, backend="eager")(X)
    assert torch.is_inference_mode_enabled() and y.is_inference()
    context.__exit__(None, None, None)
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("dynamic", [None, False])
def test_a_model_called_in_inference_mode(dynamic):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
            self.register_buffer("places", torch.arange(9.0).reshape(3, 3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu() + self.places[: x.shape[0]] + self.places[:, :1].T
            return x

    model = Model()
    torchweld.reset()
    compiled = torchweld.compile(model, dynamic=dynamic)
    with torch.inference_mode():
        for x in (X, torch.cat([X, X])[:3]):
            torch.testing.assert_close(compiled(x), model(x))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["aten_graphs"], counts["internal_errors"]) == (0, 0, 0)


def test_vmap_that_reads_a_tensor_of_its_surroundings():
    def program(x):
        return torch.vmap(lambda row: row + x[1])(x)

    torchweld.reset()
    with torch.inference_mode():
        check(program, (X,))


@pytest.mark.parametrize("backend", ["torchweld", "eager"])
@pytest.mark.parametrize("view", ["mT", "ravel", "flatten", "swapaxes", "movedim", "unflatten"])
def test_views_of_what_requires_grad_do_too(view, backend):
    """Those of operators that are made of others, too."""
    given = {"swapaxes": (0, 1), "movedim": (0, 1), "unflatten": (1, (3, 1))}.get(view, ())

    def program(x):
        with torch.inference_mode():
            v = getattr(x, view)
            v = v(*given) if view != "mT" else v
            return v, v.detach(), v * 2

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True, backend=backend)
    for expected, got in zip(program(P), compiled(P), strict=True):
        assert torch.equal(expected, got)
        assert got.requires_grad == expected.requires_grad
        assert got.is_inference() == expected.is_inference()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_a_view_without_a_record_that_gets_all_gradients(mode):
    """Eager keeps them in the view, so that the result requires grad, and no input gets any."""

    def program(x):
        with mode():
            v = x.view(3, 2)
        return v * 3 + 1

    torchweld.reset()
    compiled = torchweld.compile(program, fullgraph=True)
    for _ in range(2):
        x = X.clone().requires_grad_()
        got = compiled(x)
        assert got.requires_grad
        got.sum().backward()
        assert x.grad is None
