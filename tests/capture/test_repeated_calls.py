"""Calls of alike modules are copied from the first one, and give what interpreting them gives."""

import copy
import dataclasses
import functools

import pytest
import torch
from layer_stacks import Layer, Stack, X, check
from slice_twin import twins
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchweld


@pytest.mark.parametrize("grad", [False, True])
def test_all_but_the_first_of_equal_layers_are_copies(grad):
    assert check(Stack([Layer() for _ in range(5)]), grad=grad) == [4]


@pytest.mark.parametrize("grad", [False, True])
def test_layers_are_copied_where_sizes_vary(grad):
    model = Stack([Layer() for _ in range(5)])
    compiled = torchweld.compile(model)
    with twins() as counts, torch.set_grad_enabled(grad):
        for n in (3, 5, 6):
            x = torch.randn(n, *X.shape[1:])
            torch.testing.assert_close(compiled(x), model(x))
    assert len(counts) == 2
    assert counts[1] == counts[0] >= 4


class Cut(nn.Module):
    """Views, gaps, and numbers made of a size, which goes in as an argument too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, n):
        y = self.linear(x)[: n - 1].t().contiguous().t() * x.shape[0]
        return torch.cat([y, x[n - 1 :]]).view(n, 2, 2).flatten(1) / n


def test_layers_that_compute_with_sizes_are_copied():
    class Cuts(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Cut() for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x, x.shape[0])
            return x

    model = Cuts()
    compiled = torchweld.compile(model)
    with twins() as counts:
        for n in (3, 5, 6):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(counts) == 2
    assert counts[1] == counts[0] >= 2


def test_gradients_of_copied_layers_are_those_of_eager():
    model = Stack([Layer() for _ in range(3)])
    eager = copy.deepcopy(model)
    x = X.clone().requires_grad_()
    with twins() as counts:
        torchweld.compile(model)(x).sum().backward()
    eager(x).sum().backward()
    assert counts == [2]
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def with_scale(layer):
    layer.scale = 2.5


def with_zero(layer):
    layer.scale = -0.0


def with_int(layer):
    layer.scale = 0


def with_other_part(layer):
    layer.linear = nn.Linear(4, 4, bias=False)


def with_wider_part(layer):
    layer.norm = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))


def with_training(layer):
    layer.drop.p = 0.5
    layer.drop.training = True


def with_p(layer):
    layer.drop.train().p = 0.25


def with_hook(layer):
    layer.linear.register_forward_hook(lambda module, args, out: out * 3)


def with_own_forward(layer):
    layer.forward = lambda x: x * 7


def with_part_forward(layer):
    layer.norm.forward = functools.partial(torch.mul, 3)


def with_strides(layer):
    layer.linear.weight = nn.Parameter(torch.randn(4, 4).t())


def with_subclass(layer):
    layer.norm.__class__ = type("Norm", (nn.LayerNorm,), {"forward": lambda self, x: x})


CHANGES = [
    with_scale, with_zero, with_int, with_other_part, with_wider_part, with_training, with_p,
    with_hook, with_own_forward, with_part_forward, with_strides, with_subclass,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_differs_is_interpreted(change):
    layers = [Layer(scale=0.0) for _ in range(4)]
    change(layers[2])
    (count,) = check(Stack(layers))
    assert count >= 2  # layers 1 and 3; parts of 2
    assert check(Stack(layers[:2])) == [1]


def test_a_guard_about_a_copied_layer_fails_when_that_layer_changes():
    model = Stack([Layer() for _ in range(4)]).eval()
    compiled = torchweld.compile(model, backend="eager")
    torch.testing.assert_close(compiled(X), model(X))
    for change in (with_scale, with_other_part, with_hook, with_own_forward):
        change(model.layers[3])
        torch.testing.assert_close(compiled(X), model(X))


def test_weights_that_layers_share_are_one_input():
    layers = [Layer() for _ in range(4)]
    layers[2].linear.weight = layers[1].linear.weight
    layers[3].norm = layers[1].norm
    assert check(Stack(layers)) == [3]


def test_weights_that_one_layer_has_twice():
    layers = [Layer() for _ in range(4)]
    for layer in layers[:2]:
        layer.norm.bias = layer.norm.weight
    layers[3].linear.bias = layers[3].norm.weight
    (count,) = check(Stack(layers))
    assert count >= 2


def test_one_layer_called_again_and_again():
    layer = Layer()
    assert check(Stack([layer, layer, layer])) == [2]


def test_weights_that_lie_in_one_memory():
    layers = [Layer() for _ in range(4)]
    flat = torch.randn(3, 4, 4)
    for i, layer in enumerate(layers[1:]):
        layer.linear.weight = nn.Parameter(flat[i])
    layers[3].norm.weight = nn.Parameter(flat[0, 0])
    check(Stack(layers))


class Writing(Layer):
    def forward(self, x):
        x.add_(self.linear.bias)
        return x * 2


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x)


@pytest.mark.parametrize("layer", [Writing, Norm])
def test_tensors_from_outside_that_layers_write(layer):
    check(Stack([layer() for _ in range(3)]))


class Temporary(Layer):
    """Writes tensors of its own, and gives a view."""

    def forward(self, x):
        y = self.linear(x)
        y.mul_(2)
        y[0] = 1
        return y.view(4, 3).relu_().view(3, 4)


@pytest.mark.parametrize("grad", [False, True])
def test_tensors_of_their_own_that_layers_write(grad):
    check(Stack([Temporary() for _ in range(3)]), grad=grad)


class ViewOf(nn.Module):
    def forward(self, x):
        return x.t()


class WritesResults(Stack):
    """Writes what layers return."""

    def forward(self, x):
        x = x * 1
        for layer in self.layers:
            y = layer(x)
            y += 1
            if self.training:
                y.unsqueeze_(0)
            y = y[0] if y.dim() == 3 else y
            x = x + y.t() if y.shape[0] == 4 else x + y
        return x


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return torch.addmm(x[0], x, self.weight).view(x.size())


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("layer", [ViewOf, Layer, Conv])
def test_results_that_are_written_afterwards(layer, grad):
    for train in (False, True):
        check(WritesResults([layer() for _ in range(3)]).train(train), grad=grad)


@dataclasses.dataclass
class Out:
    hidden: torch.Tensor
    more: list


class Many(Layer):
    """Returns containers, constants, its own weight, and what it was given."""

    def forward(self, x, given):
        y = super().forward(x)
        return Out(y, [y, self.linear.weight, given]), {"scale": self.scale, "x": x}, (y[0], None)


class Unpacks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Many() for _ in range(3))

    def forward(self, x):
        kept, given = [], (x, 2)
        x = x + 1
        for layer in self.layers:
            out, named, (row, nothing) = layer(x, given)
            out.more.append(row)
            x = out.hidden * named["scale"] + named["x"]
            kept.append(tuple(out.more[:2]))
            kept.append((out.more[2][1], nothing is None, out.more[0] is out.hidden))
            kept.append(out.more[2] is given)
        return x, kept


@pytest.mark.parametrize("grad", [False, True])
def test_results_in_containers(grad):
    assert check(Unpacks(), grad=grad) == [2]


class Modes(Stack):
    def forward(self, x):
        for i, layer in enumerate(self.layers):
            with torch.set_grad_enabled(i % 2 == 0), torch.autocast("cpu", enabled=i > 2):
                x = layer(x).float()
        return x


def test_modes_in_which_layers_are_called():
    (count,) = check(Modes([Layer() for _ in range(6)]), grad=True)
    assert count >= 2


class ModeInside(Layer):
    def forward(self, x):
        with torch.no_grad():
            y = self.norm(x)
        return super().forward(x) + y


def test_modes_that_layers_set():
    check(Stack([ModeInside() for _ in range(3)]), grad=True)


class Catches(Layer):
    def forward(self, x):
        try:
            return super().forward(x) * self.absent
        except AttributeError:
            return super().forward(x)


def test_an_exception_inside_of_a_layer():
    layers = [Catches() for _ in range(3)]
    assert check(Stack(layers)) == [2]
    layers[1].absent = 3.0
    check(Stack(layers))


class Breaks(Stack):
    def forward(self, x):
        x = x + 1
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == 2:
                torchweld.graph_break()
        return x


def test_a_break_after_copied_layers():
    counts = check(Breaks([Layer() for _ in range(6)]))
    assert counts[0] == counts[1] == 2
    assert counts[-1] >= 2


class BreaksInside(Layer):
    def forward(self, x):
        x = super().forward(x)
        torchweld.graph_break()
        return x + self.linear(x)


def test_a_break_inside_of_a_layer():
    check(Stack([BreaksInside() for _ in range(3)]))


class Prints(Layer):
    def forward(self, x):
        print("layer", self.scale)
        return super().forward(x)


def test_what_layers_print_is_printed_by_each(capsys):
    check(Stack([Prints() for _ in range(3)]))
    assert capsys.readouterr().out.count("layer 1.5") == 6


@torchweld.assume_constant_result
def number_of(layer):
    return layer.number


class Numbered(Layer):
    def forward(self, x):
        return super().forward(x) * number_of(self)


def test_a_constant_that_a_user_computes_from_the_layer():
    layers = [Numbered() for _ in range(3)]
    for i, layer in enumerate(layers):
        layer.number = float(i)
    check(Stack(layers))


class Draws(Layer):
    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


def test_random_numbers_are_drawn_by_each_layer():
    assert check(Stack([Draws(p=0.5).train() for _ in range(4)])) == [3]


class Closure(Stack):
    """Layers are given a function of the frame, whose variable changes."""

    def forward(self, x):
        factor = 1

        def act(y):
            return y * factor

        for layer in self.layers:
            x = layer(x, act)
            factor += 1
        return x


class Acts(Layer):
    def forward(self, x, act):
        return act(super().forward(x))


def test_a_function_of_the_frame_that_layers_call():
    check(Closure([Acts() for _ in range(3)]))


def test_under_inference_mode():
    with torch.inference_mode():
        model = Stack([Layer() for _ in range(4)])
        assert check(model) == [3]
        model.layers[2].linear.weight = nn.Parameter(torch.ones(4, 4), requires_grad=False)
        check(model)
    model.layers[1].requires_grad_(False)
    with twins() as counts:
        torchweld.compile(Stack([Layer(), model.layers[0], Layer()]).requires_grad_(False),
                          backend="eager")(X)  # fmt: skip
    assert counts[0] >= 1


def test_parameters_with_gradients():
    layers = [Layer() for _ in range(3)]
    layers[1](X).sum().backward()
    check(Stack(layers), grad=True)


class Checkpoints(Stack):
    def forward(self, x):
        x = x + 1
        for i, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=False) if i % 2 else layer(x)
        return x


def test_layers_that_are_checkpointed_now_and_then():
    assert check(Checkpoints([Layer() for _ in range(5)]), grad=True) == [2]


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * torch.sigmoid(x * k)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x * ctx.k)
        return g * (s + x * s * (1 - s) * ctx.k), None


class Custom(Layer):
    def forward(self, x):
        return super().forward(Swish.apply(x, 1.5))


class Checkpointed(Layer):
    def forward(self, x):
        return x + checkpoint(super().forward, x, use_reentrant=False)


class Mapped(Layer):
    def forward(self, x):
        rows = torch.vmap(lambda row: self.linear(row) * row.shape[0])(x)
        return torch.func.grad(lambda a: (a * rows).sin().sum())(x)


@pytest.mark.parametrize(("kind", "grad"), [(Custom, True), (Checkpointed, False),
                                             (Checkpointed, True), (Mapped, False), (Mapped, True)])
def test_layers_that_give_functions_to_torch_are_copied(kind, grad):
    assert check(Stack([kind() for _ in range(4)]), grad=grad) == [3]


@pytest.mark.parametrize("kind", [Custom, Checkpointed, Mapped])
def test_gradients_of_such_layers_are_those_of_eager(kind):
    model = Stack([kind() for _ in range(3)]).double()
    eager = copy.deepcopy(model)
    x = X.double().requires_grad_()
    torchweld.reset()
    torchweld.compile(model, fullgraph=True)(x).sum().backward()
    eager(x).sum().backward()
    for a, b in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_such_a_layer_with_another_number_is_interpreted():
    layers = [Checkpointed() for _ in range(4)]
    layers[2].scale = 2.5
    assert check(Stack(layers), grad=True) == [2]


def test_a_copy_reads_a_weight_whose_own_was_read_before_the_layer():
    first, second = Layer(), Layer()

    def f(x):
        with torch.no_grad():
            first.linear.weight.mul_(2)
        return first(x) - second(x)

    torchweld.reset()
    expected = copy.deepcopy((first, second))
    got = torchweld.compile(f, fullgraph=True, backend="eager")(X)
    expected[0].linear.weight.data.mul_(2)
    torch.testing.assert_close(got, expected[0](X) - expected[1](X))
