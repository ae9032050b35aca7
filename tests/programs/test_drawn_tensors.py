# The programs are written as users write them.
"""Tensors and arrays that a program draws with a generator of its own: eager's, and its states."""

import random

import numpy as np
import pytest
import torch
from eager_twin import Twins, outcome

import torchweld

G, H = torch.Generator(), torch.Generator()
RNG, LEGACY = np.random.default_rng(4), np.random.RandomState(3)
X, Y = torch.arange(4.0), torch.ones(4)
ROWS = []


def states():
    arrays = (np.random.get_state(), LEGACY.get_state(), RNG.bit_generator.state)
    ours = (G.get_state(), H.get_state(), torch.get_rng_state())
    return random.getstate(), ours, [str(state) for state in arrays]


def seed(n):
    for made in (random, np.random, LEGACY):
        made.seed(n)
    for made in (G, H, torch):
        made.manual_seed(n)
    RNG.bit_generator.state = np.random.PCG64(n).state


def run(fn, args, n):
    seed(n)
    return outcome(fn, args), states()


def check(fn, breaks, *calls, graphs=None, **options):
    torchweld.reset()
    compiled = torchweld.compile(fn, **{"backend": "eager", **options})
    for n, args in enumerate(calls or ((X, Y, 2), (Y, X, 3), (X, Y, 5), (X, X, 2))):
        Twins().equal(run(fn, args, n), run(compiled, args, n))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (breaks, 0)
    assert graphs is None or counts["graphs"] == graphs


def program(breaks=0):
    def keep(fn):
        ROWS.append(pytest.param(fn, breaks, id=fn.__name__))
        return fn

    return keep


@program()
def makers_(x, y, n):
    a = torch.rand(4, generator=G) + torch.randn((4,), generator=H)
    return x * a, torch.randint(0, 9, (3,), generator=G), torch.randperm(4, generator=G)


@program()
def filled_(x, y, n):
    a = torch.empty(4).normal_(1.0, 2.0, generator=G)
    return x + a, a.uniform_(0, 1, generator=H), torch.empty(2, 3).t().bernoulli_(0.5, generator=G)


@program()
def made_in_the_frame_(x, y, n):
    g = torch.Generator(device=x.device)
    g.manual_seed(n)
    return x + torch.randn(4, generator=g), torch.rand(2, generator=g)


@program()
def given_on_(x, y, n):
    g = torch.Generator().manual_seed(7)
    return [torch.rand(4, generator=each) + x for each in (g, G, g)], g.initial_seed()


@program()
def with_others_(x, y, n):
    return torch.rand(4) + torch.rand(4, generator=G) + torch.rand(4, generator=None) * x


@program()
def default_one_(x, y, n):
    return torch.rand(4, generator=torch.default_generator) + x


@program()
def written_(x, y, n):
    a = torch.randn(4, generator=G)
    b = a.view(2, 2)
    a.add_(x)
    return a, b


@program()
def its_state_(x, y, n):
    before = G.get_state()
    a = torch.rand(4, generator=G)
    G.set_state(before)
    return x + a - torch.rand(4, generator=G), G.get_state()


@program()
def seeded_(x, y, n):
    torch.manual_seed(n)
    return x + torch.rand(4)


@program()
def seeded_at_the_end_(x, y, n):
    a = torch.rand(4)
    torch.manual_seed(3)
    return x + a


@program()
def forked_(x, y, n):
    with torch.random.fork_rng():
        torch.manual_seed(n)
        a = torch.rand(4)
    return x + a


@program(1)
def drawn_behind_a_fork_(x, y, n):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        a = torch.rand(4)
    return x + a + torch.rand(4)


@program(1)
def probabilities_(x, y, n):
    return torch.bernoulli(y * 0.5, generator=G) + x


@program()
def sampled_(x, y, n):
    places = random.sample(range(4), k=2)
    return x[places] + 1, x[[places[0], 0]], places, random.choices([1.5, 2.5], k=2)


@program()
def shuffled_(x, y, n):
    order = [3, 1, 2, 0]
    random.shuffle(order)
    return x * torch.tensor(order), order


@program()
def cropped_(x, y, n):
    at = random.randint(0, 2)
    return x[at : at + 2] * 2, y[at], x.roll(at)


@program()
def cropped_twice_(x, y, n):
    image = torch.outer(x, y).repeat(2, 2)
    i, j = random.randint(0, 4), random.randrange(5)
    part = image[i : i + 3, j : j + 3]
    assert part.shape == (3, 3)
    return part * 2, image[np.random.randint(0, 4)]


@program()
def text_(x, y, n):
    return x + 1, random.choice(["relu", "gelu"]), random.choices("ab", weights=[1, 3], k=2)


@program()
def kept_state_(x, y, n):
    before = random.getstate()
    a = random.random()
    random.setstate(before)
    return x * a - random.random()


@program()
def unseeded_(x, y, n):
    own = random.Random()
    own.seed(n)
    return x * own.random()


@program()
def arrays_(x, y, n):
    a = np.random.normal(0, 1, size=(4,)).astype(np.float32)
    b = torch.tensor(np.random.randint(0, 9, 4)) + torch.from_numpy(np.random.rand(4))
    return x + torch.from_numpy(a), b, x[np.random.choice(4, 2, replace=False)]


@program()
def modern_(x, y, n):
    return x + torch.from_numpy(RNG.standard_normal(4)) * RNG.random(), RNG.integers(5) + y


@program()
def permuted_(x, y, n):
    a = np.arange(4)
    np.random.shuffle(a)
    chosen = torch.from_numpy(np.random.choice(x.numpy(), size=3))
    return x[torch.from_numpy(np.random.permutation(4))], torch.from_numpy(a), y[:3] * chosen


@program()
def arrays_of_own_(x, y, n):
    rng, old = np.random.default_rng(n), np.random.RandomState(3)
    return x + torch.from_numpy(rng.random(4)), y + torch.from_numpy(old.rand(4)) + old.randint(3)


@program()
def state_of_numpy_(x, y, n):
    before = np.random.get_state()
    a = np.random.rand(4)
    np.random.set_state(before)
    return x + torch.from_numpy(a)


@program()
def drawn_again_(x, y, n):
    try:
        a = torch.nn.functional.dropout(x + 1, 0.5) + torch.rand(4) + torch.rand(4, generator=G)
        a = a[torch.tensor([n * 3])]
    except IndexError:
        a = torch.rand(4) + torch.rand(4, generator=G)
    return a, torch.rand(2)


@pytest.mark.parametrize(("fn", "breaks"), ROWS)
def test_draws(fn, breaks):
    check(fn, breaks)


def test_drawn_sizes_vary():
    def noisy(x):
        return x + torch.randn(x.shape, generator=G), torch.randperm(x.shape[0] * 2, generator=G)

    check(noisy, 0, *((torch.ones(k, 3),) for k in (4, 5, 6, 9)), graphs=2)


def test_a_seed_that_varies_is_no_recompilation():
    def noisy(x, n):
        return x + torch.randn(4, generator=torch.Generator().manual_seed(n))

    check(noisy, 0, *((X, n) for n in range(6)), graphs=2)


def test_drawn_tensors_are_inputs_of_compiled_code():
    def noisy(x, n):
        a = torch.randn(4, generator=G) + torch.from_numpy(np.random.rand(4)).float()
        return (x + a).relu(), a

    check(noisy, 0, (X, 1), (Y, 2), (X, 1), graphs=1, backend="torchweld")


def test_gradients_flow_past_drawn_tensors():
    w = torch.ones(4, requires_grad=True)

    def step(x):
        loss = (w * x * torch.randn(4, generator=G)).sum()
        return torch.autograd.grad(loss, w)

    check(step, 0, (X,), (Y,), graphs=1)


class Layers(torch.nn.Module):
    """Stochastic depth: each layer is left out with a probability."""

    def __init__(self, n):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
            for _ in range(n)
        )

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand(1).item() < 0.3:
                continue
            x = x + layer(x)
        return x


@pytest.mark.parametrize("n", [3, 9])
def test_stochastic_depth_has_as_many_graphs_for_any_number_of_layers(n):
    torchweld.reset()
    model = Layers(n)
    compiled = torchweld.compile(model, backend="eager")
    with torch.no_grad():
        for seed in range(30):
            x = torch.full((2, 4), float(seed))
            torch.manual_seed(seed)
            expected = model(x), torch.rand(1)
            torch.manual_seed(seed)
            torch.testing.assert_close((compiled(x), torch.rand(1)), expected)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["internal_errors"]) == (3, 0)


FAILING = {
    "bernoulli": lambda p: torch.rand(3) + torch.bernoulli(p) + torch.rand(3),
    "bernoulli_": lambda p: torch.rand(3) + torch.empty(3).bernoulli_(p),
    "index": lambda p: torch.rand(3) + p[torch.tensor([7])] * 2,
}


@pytest.mark.parametrize("name", FAILING)
def test_what_is_drawn_behind_an_operator_that_failed(name):
    """It has drawn as much as in eager when it raises, and is not told by drawing again."""
    torchweld.reset()
    probabilities, seen = torch.tensor([0.5, 2.0, 0.5]), []
    for run in (FAILING[name], torchweld.compile(FAILING[name])):
        torch.manual_seed(0)
        with pytest.raises((RuntimeError, IndexError)) as error:
            run(probabilities)
        seen.append((str(error.value), torch.rand(4).tolist()))
    assert seen[0] == seen[1]
    assert torchweld.statistics()["graphs"] == 1
