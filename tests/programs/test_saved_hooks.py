"""torch.autograd.graph.saved_tensors_hooks inside of a compiled function: autograd calls them."""

import torch
from gradient_twin import check, run
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import torchweld

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()


def halved(x):
    with saved_tensors_hooks(lambda t: t * 0.5, lambda t: t * 3):  # which changes the gradient
        y = x.sin().exp()
    return y.cos()


def test_hooks_change_what_is_saved():
    check(halved, X)


def test_what_is_saved_on_the_cpu():
    def offloaded(x):
        with save_on_cpu():
            return (x.sin() @ x.T).exp()

    check(offloaded, X)


def test_hooks_that_note_what_they_see():
    seen = []

    def note(t):
        seen.append(t.shape)
        return t

    def noted(x):
        with saved_tensors_hooks(note, lambda t: t):
            y = x.sin()
            with saved_tensors_hooks(lambda t: t + 0, lambda t: t):
                z = y.exp()
            return z.cos()

    run(noted, (X,))
    want = list(seen)
    f = torchweld.compile(noted, fullgraph=True)
    f(X)
    seen.clear()
    run(f, (X,))
    assert seen == want


def test_without_gradients_nothing_is_saved():
    def quiet(x):
        with torch.no_grad():
            return halved(x)

    torchweld.reset()
    f = torchweld.compile(quiet, fullgraph=True)
    torch.testing.assert_close(f(X), quiet(X))
    assert torchweld.statistics()["aten_graphs"] == 0


def test_an_error_inside_leaves_no_hooks():
    def failing(x, i):
        with saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0]):
            return x.sin()[i]

    f = torchweld.compile(failing)
    bad = torch.tensor([7])
    check(failing, X, torch.tensor([1]))
    for g in (failing, f):
        assert run(g, (X, bad))[0].startswith("IndexError")
    torch.testing.assert_close(run(f, (X, torch.tensor([1]))), run(failing, (X, torch.tensor([1]))))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


def test_a_break_inside_is_made_before():
    def broken(x):
        with saved_tensors_hooks(lambda t: t * 0.5, lambda t: t * 3):
            y = x.sin()
            torchweld.graph_break()
            return y.exp()

    f = torchweld.compile(broken)
    torch.testing.assert_close(run(f, (X,)), run(broken, (X,)))


def test_a_backward_of_what_is_packed():
    def stepped(x):
        halved(x).sum().backward()
        return x.grad * 1

    def step(f):
        x = X.detach().clone().requires_grad_()
        return f(x), x.grad

    torch.testing.assert_close(step(torchweld.compile(stepped)), step(stepped))
