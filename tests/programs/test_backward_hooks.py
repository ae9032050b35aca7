"""Hooks of modules and tensors that wait for gradients: part of the graph and of its backward."""

import gc
import weakref

import torch
from eager_twin import check_refused
from gradient_twin import check
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

import torchweld

X = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()


def around(m, x):
    return m(x.sin() * 2 + 1).cos() - x * 2


def check_copies(fn, m, x):
    """Each of the twin's calls has a copy of the module, whose hooks are guarded by identity."""
    check(fn, m, x, graphs=2)


def compiled_and_eager(make):
    """What a function gives twice, eagerly and compiled without a break; make() is the function."""
    found = []
    for wrap in (lambda f: f, lambda f: torchweld.compile(f, fullgraph=True)):
        torchweld.reset()
        torch.manual_seed(0)
        f = make(wrap)
        found.append([f(), f()])
    assert torchweld.statistics()["breaks"] == 0
    return found


def test_a_backward_hook():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: (given[0] * 2 + out[0].sum(),))
    check_copies(around, m, X)


def test_a_backward_pre_hook():
    m = nn.Linear(4, 4)
    m.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,))
    check_copies(around, m, X)


def test_a_hook_of_all_modules():
    seen = []
    handle = register_module_full_backward_hook(lambda m, given, out: seen.append(type(m)))
    try:
        check_copies(around, nn.Linear(4, 4), X)
    finally:
        handle.remove()
    assert seen == [nn.Linear] * 8


def test_without_gradients_there_is_nothing_to_wait_for():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: None)

    def quiet(m, x):
        with torch.no_grad():
            return around(m, x)

    check(quiet, m, X)


def test_hooks_see_the_gradients_in_the_order_of_the_backward():
    def make(wrap):
        layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        seen = []
        for i, layer in enumerate(layers):
            layer.register_full_backward_hook(
                lambda m, given, out, i=i: seen.append((i, given[0].clone(), out[0].clone())))
            layer.register_full_backward_pre_hook(lambda m, out, i=i: seen.append((i, out[0])))
        f = wrap(lambda x: layers(x.exp()).sin())

        def step():
            seen.clear()
            f(X).sum().backward()
            return list(seen)

        return step

    eager, compiled = compiled_and_eager(make)
    assert [s[0] for s in eager[0]] == [2, 2, 1, 1, 0, 0]
    torch.testing.assert_close(compiled, eager)
    assert torchweld.statistics()["aten_graphs"] == 0


def test_hooks_keep_what_they_are_given():
    def make(wrap):
        layer, kept = nn.Linear(4, 4), []
        layer.register_full_backward_hook(lambda m, given, out: kept.extend((given[0], out[0])))
        f = wrap(lambda x: (layer(x.exp()) * 3).sin())

        def step():
            for _ in range(3):
                f(X).sum().backward()
            return [k.clone() for k in kept]

        return step

    eager, compiled = compiled_and_eager(make)
    torch.testing.assert_close(compiled, eager)


class Pair(nn.Module):
    def forward(self, x, n, y):
        return x * n, y.sin(), n


def test_several_arguments_and_results():
    m = Pair()
    m.register_full_backward_hook(lambda m, given, out: (given[0] * 2, given[1], given[2] * 3))
    check_copies(lambda m, x: (lambda a, b, n: a * n + b)(*m(x.exp(), 3, x.cos())), m, X)


def test_arguments_that_need_no_gradient():
    def make(wrap):
        layer, seen = nn.Linear(4, 4), []
        layer.register_full_backward_hook(lambda m, given, out: seen.append((given, out[0])))
        f = wrap(lambda x: layer(x).sin())

        def step():
            f(X.detach()).sum().backward()
            return list(seen)

        return step

    eager, compiled = compiled_and_eager(make)
    assert eager[0][0][0] == (None,)
    torch.testing.assert_close(compiled, eager)


def test_an_error_of_a_hook():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: (1, 2))
    check_copies(around, m, X)


def test_the_last_module_and_the_first():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: (given[0] * 2,))
    m.register_full_backward_pre_hook(lambda m, out: (out[0] * 3,))
    check_copies(lambda m, x: m(x), m, X)


def test_a_module_with_hooks_is_not_kept_alive():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: None)
    f = torchweld.compile(around, fullgraph=True)
    f(m, X).sum().backward()
    known = weakref.ref(m)
    del m
    gc.collect()
    assert known() is None
    other = nn.Linear(4, 4)
    torch.testing.assert_close(f(other, X), around(other, X))


def test_second_derivatives():
    m = nn.Linear(4, 4)
    m.register_full_backward_hook(lambda m, given, out: (given[0] * 2,))

    def gradients(f):
        x = X.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(f(m, x).sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    torch.testing.assert_close(gradients(torchweld.compile(around, fullgraph=True)),
                               gradients(around))  # fmt: skip


# ------------------------------------------------------------------------------ tensors
def double(g):
    return g * 2


def test_a_hook_of_a_tensor_of_the_graph():
    def hooked(x):
        y = x.sin()
        y.register_hook(double)
        y.register_hook(lambda g: g + y.detach())
        return y.cos() + y

    check(hooked, X)


def test_a_hook_of_a_result():
    def hooked(x):
        y = x.sin()
        y.register_hook(lambda g: g * 3)
        return y, y * 2, y.T

    check(hooked, X)


def test_a_hook_of_a_view_that_is_returned():
    def hooked(x):
        y = x.sin().T
        y.register_hook(lambda g: g * 3)
        return y

    check(hooked, X)
    check(lambda x: (lambda y: (y.register_hook(double), y)[1])(x.view(4, 3)), X)


def test_a_hook_of_a_tensor_from_outside():
    def make(wrap):
        seen = []

        def hooked(x):
            x.register_hook(lambda g: seen.append(g.clone()))
            return x.cos()

        f = wrap(hooked)

        def step():
            x = X.detach().clone().requires_grad_()
            f(x).sum().backward()
            return list(seen)

        return step

    eager, compiled = compiled_and_eager(make)
    torch.testing.assert_close(compiled, eager)


def test_a_hook_behind_accumulation():
    def step(f):
        x = X.detach().clone().requires_grad_()
        f(x).sum().backward()
        return x.grad

    def quiet(x):
        x.register_post_accumulate_grad_hook(halve)
        return x.cos()

    torch.testing.assert_close(step(torchweld.compile(quiet, fullgraph=True)), step(quiet))


def halve(p):
    p.grad.mul_(0.5)


def test_a_hook_that_is_removed_again():
    def hooked(x):
        y = x.sin()
        handle = y.register_hook(double)
        handle.remove()
        other = x.register_hook(double)
        other.remove()
        return y.cos()

    check(hooked, X)


def test_a_method_that_notes_gradients():
    class Noting:
        def __init__(self):
            self.seen = []

        def note(self, g):
            self.seen.append(g)

    def make(wrap):
        noting = Noting()

        def hooked(x):
            y = x.sin()
            y.register_hook(noting.note)
            return y.cos() * y

        f = wrap(hooked)

        def step():
            f(X).sum().backward()
            return [g.clone() for g in noting.seen]

        return step

    eager, compiled = compiled_and_eager(make)
    torch.testing.assert_close(compiled, eager)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen = []

    def forward(self, x):
        y = self.layer(x).sin()
        y.register_hook(lambda g: self.seen.append(g))
        return y.cos() * 2


def test_a_function_of_the_frame_that_notes_gradients():
    def make(wrap):
        model = Model()
        f = wrap(lambda x: model(x))

        def step():
            f(X).sum().backward()
            return [g.clone() for g in model.seen]

        return step

    eager, compiled = compiled_and_eager(make)
    torch.testing.assert_close(compiled, eager)


def test_a_function_of_the_frame_whose_variables_change():
    seen = []

    def hooked(x):
        n = 1
        y = x.sin()
        y.register_hook(lambda g: seen.append(n))
        n = 2
        return y.cos()

    check(hooked, X, graphs=2, breaks=1)
    assert seen == [2] * 8


def test_a_handle_that_leaves_the_frame():
    def hooked(x):
        y = x.sin() * 2
        return y.cos() + 1, y.register_hook(double)

    f = torchweld.compile(hooked)
    x = X.detach().clone().requires_grad_()
    out, handle = f(x)
    handle.remove()
    out.sum().backward()
    want = X.detach().clone().requires_grad_()
    ((want.sin() * 2).cos() + 1).sum().backward()
    torch.testing.assert_close(x.grad, want.grad)


# ------------------------------------------------------------------------------ inside of a frame
def test_a_backward_in_the_same_function():
    def make(wrap):
        torch.manual_seed(0)
        layer, seen = nn.Linear(4, 4), []
        layer.register_full_backward_hook(lambda m, given, out: (given[0] * 2,))
        layer.register_full_backward_pre_hook(lambda m, out: seen.append(out[0].sum().item()))

        def stepped(x):
            y = x.sin()
            y.register_hook(lambda g: g * 3)
            loss = layer(y).sum()
            loss.backward()
            return loss.detach(), len(seen)

        f = wrap(stepped)

        def step():
            x = X.detach().clone().requires_grad_()
            return f(x), x.grad, list(seen)

        return step

    eager, compiled = (make(wrap) for wrap in (lambda f: f, torchweld.compile))
    torch.testing.assert_close([compiled(), compiled()], [eager(), eager()])


def test_a_hook_that_has_a_gradient():
    def forces(x):
        y = x.sin()
        y.register_hook(lambda g: g * g)
        (g,) = torch.autograd.grad(y.cos().sum(), x, create_graph=True)
        return g.square().sum()

    check(forces, X)


def test_a_hook_from_outside_and_a_backward_in_the_same_function():
    def stepped(x):
        x.register_hook(double)
        x.sin().sum().backward()
        return x.grad + 1

    def step(f):
        x = X.detach().clone().requires_grad_()
        return f(x), x.grad

    torch.testing.assert_close(step(torchweld.compile(stepped)), step(stepped))


def test_a_tensor_without_a_gradient():
    check_refused(lambda x: (x.sin().register_hook(double), x)[1], X.detach(), code="W107",
                  says="without a gradient")  # fmt: skip
