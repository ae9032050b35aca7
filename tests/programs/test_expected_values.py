"""What the data decides only for the frame to raise is supposed not to happen, and asked for."""

import checking
import pytest
import torch
from eager_twin import Twins, outcome

import torchweld

GOOD = torch.linspace(-1, 1, 12).reshape(4, 3)
PROGRAMS = (
    checking.asserted, checking.refused, checking.counted, checking.called, checking.in_a_loop,
    checking.by_torch, checking.with_effects, checking.caught, checking.whole_function,
    checking.draws, checking.by_item, checking.compared,
)  # fmt: skip


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_test_that_raises_is_no_break(program, fullgraph):
    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager", fullgraph=fullgraph)
    for added in (0.0, 0.5):
        Twins().equal(_outcome(program, added), _outcome(compiled, added))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["internal_errors"]) == (1, 0, 0)
    for added in (-99.0, float("nan"), 0.0, 1e38):
        Twins().equal(_outcome(program, added), _outcome(compiled, added))
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"]) == (0, 0)


def _outcome(fn, added):
    x = GOOD.clone()
    x[1, 1] += added
    checking.LOG.clear()
    torch.manual_seed(0)
    return outcome(fn, (x,)), list(checking.LOG), torch.rand(2)


def test_layers_that_check_what_they_make_are_one_compiled_piece_with_gradients():
    torchweld.reset()
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(checking.Checked() for _ in range(3)))
    compiled = torchweld.compile(net, fullgraph=True)
    expected = torch.autograd.grad(net(GOOD).sum(), list(net.parameters()))
    for _ in range(2):
        got = torch.autograd.grad(compiled(GOOD).sum(), list(net.parameters()))
        torch.testing.assert_close(got, expected)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["pieces"]) == (1, 0, 1)
    with torch.no_grad():
        net[1].layer.bias.fill_(float("inf"))
    with pytest.raises(AssertionError, match="not finite"):
        compiled(GOOD)


@pytest.mark.parametrize(
    "program", [checking.writes, checking.writes_later], ids=lambda p: p.__name__
)
def test_a_graph_that_cannot_run_again_ends_at_the_test(program):
    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    for added in (0.0, 0.5, -99.0):
        torch.manual_seed(0)
        x, y = GOOD + added, GOOD + added
        expected = outcome(program, (x,))
        torch.manual_seed(0)
        Twins().equal((expected, x), (outcome(compiled, (y,)), y))
    assert torchweld.statistics()["breaks"] > 0
    shown = str(torchweld.explain(program)(GOOD.clone()))
    assert "it decides whether the frame raises, which writes to tensors from outside" in shown
