"""backward() and autograd.grad behind sizes that only the data decides: in the same graph."""

import copy

import pytest
import torch
import torch.nn.functional as F

import torchweld

ROWS, COLUMNS = 6, 4
COUNTS = (4, 2, ROWS, 1, 0, 3)


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()
    torch.manual_seed(0)


def network():
    return torch.nn.Sequential(torch.nn.Linear(COLUMNS, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


def given(count):
    mask = torch.zeros(ROWS, dtype=torch.bool)
    mask[torch.randperm(ROWS)[:count]] = True
    return torch.randn(ROWS, COLUMNS), mask


def chosen_inputs(net, optimizer, x, mask):
    loss = net(x[mask]).square().sum()
    loss.backward()
    return loss


def chosen_results(net, optimizer, x, mask):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(x)[mask], torch.arange(ROWS)[mask] % 4)
    loss.backward()
    optimizer.step()
    return loss


def a_number(net, optimizer, x, mask):
    n = mask.sum().item()
    torch._check(n >= 0)
    torch._check(n <= x.shape[0])
    loss = net(x)[:n].square().sum()
    loss.backward()
    return loss


def experts(net, optimizer, x, mask):
    optimizer.zero_grad()
    out = torch.zeros(ROWS, 4)
    for e, rows in enumerate((mask, ~mask)):
        (at,) = torch.where(rows)
        out = out.index_add(0, at, net(x[at]) * (e + 1))
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    return loss


def clipped(net, optimizer, x, mask):
    optimizer.zero_grad()
    loss = net(x)[mask].square().sum()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    return loss, norm


def several_steps(net, optimizer, x, mask):
    total = 0
    for rows in (mask, ~mask, mask):
        optimizer.zero_grad()
        loss = net(x)[rows].square().sum()
        loss.backward()
        optimizer.step()
        total = total + loss.detach()
    return total


def two_losses_of_one_forward(net, optimizer, x, mask):
    hidden = net(x[mask])
    first, second = hidden.sum(), hidden.square().sum()
    optimizer.zero_grad()
    first.backward(retain_graph=True)
    second.backward()
    return first + second


def independent_losses(net, optimizer, x, mask):
    first, second = net(x[mask]).sum(), net(x).square().sum()
    optimizer.zero_grad()
    first.backward()
    second.backward()
    return first + second


def sizes_of_gradients(net, optimizer, x, mask):
    optimizer.zero_grad()
    net(x).square().sum().backward()
    gradient = net[0].weight.grad
    return gradient[gradient > 0].sum() + x[mask].sum()


def of_what_the_frame_computes(net, optimizer, x, mask):
    hidden = net[0](x)[mask]
    twice = hidden * 2
    loss = net[2](twice.tanh()).sum() + twice.sum()
    a, b = torch.autograd.grad(loss, [hidden, twice])
    return a.sum(), b.square().sum()


def of_gradients(net, optimizer, x, mask):
    out = net(x)[mask]
    found = torch.autograd.grad(out.square().sum(), list(net.parameters()), create_graph=True)
    optimizer.zero_grad()
    loss = out.sum() + sum(g.square().sum() for g in found)
    loss.backward()
    return loss


def hooks(net, optimizer, x, mask):
    handle = net[0].weight.register_hook(lambda g: g * 2)
    optimizer.zero_grad()
    loss = net(x[mask]).sum()
    loss.backward()
    handle.remove()
    return loss


def written_meanwhile(net, optimizer, x, mask):
    y = x * 1
    optimizer.zero_grad()
    loss = net(y[mask]).sum()
    y.mul_(2)
    loss.backward()
    return y.sum()


STEPS = (chosen_inputs, chosen_results, a_number, experts, clipped, several_steps, hooks,
         two_losses_of_one_forward, independent_losses, sizes_of_gradients, of_gradients,
         of_what_the_frame_computes, written_meanwhile)  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.__name__)
def test_gradients_and_updates_equal_eagers_for_none_one_and_all(step):
    ours = network()
    theirs = copy.deepcopy(ours)
    compiled = torchweld.compile(step, fullgraph=True)
    rates = [torch.optim.SGD(n.parameters(), 0.1, momentum=0.5) for n in (ours, theirs)]
    for count in COUNTS:
        x, mask = given(count)
        got = compiled(ours, rates[0], x, mask)
        torch.testing.assert_close(got, step(theirs, rates[1], x, mask), equal_nan=True)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p, q, equal_nan=True)
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                torch.testing.assert_close(p.grad, q.grad, equal_nan=True)
                assert p.grad.stride() == q.grad.stride()
    counts = torchweld.statistics()
    assert (counts["breaks"], counts["internal_errors"], counts["aten_graphs"]) == (0, 0, 0)
    assert counts["captures"] <= 3  # .grad is None, or there; the momentum too


def test_adamw_counts_its_steps_in_a_piece():
    ours = network()
    theirs = copy.deepcopy(ours)
    compiled = torchweld.compile(chosen_results, fullgraph=True)
    rates = [torch.optim.AdamW(n.parameters(), 0.01) for n in (ours, theirs)]
    for count in (4, 3, 5, 2):
        x, mask = given(count)
        loss = compiled(ours, rates[0], x, mask)
        torch.testing.assert_close(loss, chosen_results(theirs, rates[1], x, mask))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    assert torchweld.statistics()["aten_graphs"] == 0


def test_a_number_is_what_it_was_when_it_was_read():
    def fn(x, mask):
        total = x.sum() * 1
        number = total.item()
        total.add_(1)
        return x[mask] * number, total

    compiled = torchweld.compile(fn, fullgraph=True)
    for count in COUNTS:
        args = given(count)
        torch.testing.assert_close(compiled(*args), fn(*args))


def test_the_update_is_a_compiled_piece_of_its_own():
    net = network()
    compiled = torchweld.compile(chosen_results)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        compiled(net, optimizer, *given(3))
    assert torchweld.statistics()["pieces"] == 2 * 3  # forward, loss, update


def test_a_second_backward_raises_as_eagers_does():
    net = network()
    loss = torchweld.compile(chosen_inputs)(net, None, *given(3))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_a_result_whose_graph_is_kept_can_be_differentiated():
    def kept(net, x, mask):
        out = net(x[mask])
        out.sum().backward(retain_graph=True)
        return out

    ours = network()
    theirs = copy.deepcopy(ours)
    x, mask = given(4)
    for net, run in ((ours, torchweld.compile(kept, fullgraph=True)), (theirs, kept)):
        run(net, x, mask).square().sum().backward()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_explain_names_the_backward_among_what_cuts_the_graph():
    text = str(torchweld.explain(chosen_inputs)(network(), None, *given(3)))
    assert "1 piece: cut at" in text
    assert "nonzero; then at" in text
    assert "grad (a size that only the data decides, and gradients behind it)" in text
