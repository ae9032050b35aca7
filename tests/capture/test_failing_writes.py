# The programs are written as users write them.
"""Graphs that write inputs and fail on their data: what the frame did before is seen."""

import pytest
import torch

import torchweld

log = []


class Counts:
    n = 0


COUNTS = Counts()


def later_(x, at):
    log.append("a")
    got = (x * 2).gather(1, at)
    log.append("b")
    x.reshape(-1).sub_(3)
    return got + x


def earlier_(x, at):
    x.mul_(2)
    log.append("a")
    got = x.gather(1, at)
    log.append("b")
    x.add_(1)
    return got + x


def between_(x, at):
    COUNTS.n += 1
    x.mul_(2).relu_().neg_()
    got = torch.nn.functional.embedding(at, x)
    COUNTS.n += 1
    x.add_(1)
    return got


def printed_(x, at):
    print("shape", tuple(x.shape))
    got = x.index_select(1, at[0]) + 1
    print("taken")
    x.zero_()
    return got


def silent_(x, at):
    x.mul_(2)
    got = x.gather(1, at)
    x.add_(1)
    return got + x


def labels_(x, at):
    log.append(len(x))
    loss = torch.nn.functional.cross_entropy(x, at[:, 0])
    x.mul_(0.5)
    return loss


ALL = [later_, earlier_, between_, printed_, silent_, labels_]


@pytest.fixture(autouse=True)
def fresh():
    torchweld.reset()


def outcome(fn, index, rows, capsys):
    log.clear()
    COUNTS.n = 0
    x, at = torch.arange(rows * 3.0).reshape(rows, 3) + 1, torch.full((rows, 3), index)
    try:
        got = fn(x, at).tolist()
    except (IndexError, RuntimeError) as error:
        got = type(error), str(error)
    return got, x.tolist(), list(log), COUNTS.n, capsys.readouterr().out


@pytest.mark.parametrize("fn", ALL)
def test_a_graph_that_fails_before_it_writes_leaves_all_to_eager(fn, capsys):
    compiled = torchweld.compile(fn, dynamic=False)
    for index in (1, 7, 0, -9, 2):
        assert outcome(compiled, index, 3, capsys) == outcome(fn, index, 3, capsys)
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"], counts["captures"]) == (1, 0, 1)
    assert counts["kernels"] > 1


@pytest.mark.parametrize("fn", ALL)
def test_so_does_one_for_many_sizes(fn, capsys):
    compiled = torchweld.compile(fn, dynamic=True)
    for index, rows in ((1, 3), (1, 4), (7, 5), (-9, 6), (0, 7)):
        assert outcome(compiled, index, rows, capsys) == outcome(fn, index, rows, capsys)
    assert torchweld.statistics()["breaks"] == 0


@pytest.mark.parametrize("fn", [later_, printed_, silent_, labels_])
def test_so_does_the_graph_itself(fn, capsys):
    compiled = torchweld.compile(fn, backend="eager")
    for index in (1, 7, 0):
        assert outcome(compiled, index, 3, capsys) == outcome(fn, index, 3, capsys)
    assert torchweld.statistics()["graphs"] == 1


def test_what_was_written_before_is_not_written_twice():
    def cached(x, at):
        log.append("a")
        x.index_copy_(0, at[0] % 3, x * 2)
        x.add_(1)
        x.index_copy_(0, at[0], x * 2)
        return x + 1

    compiled = torchweld.compile(cached)
    for index in (1, 7, 0):
        seen = []
        for fn in (cached, compiled):
            log.clear()
            x, at = torch.arange(9.0).reshape(3, 3), torch.tensor([[0, 1, index]])
            try:
                fn(x, at)
            except (IndexError, RuntimeError) as error:
                seen.append(type(error))
            seen.append(x.tolist() if index != 7 else None)
        assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]
    assert torchweld.statistics()["graphs"] == 1


def test_a_trained_module_with_buffers_counts_a_failed_step_once():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = torch.nn.Embedding(4, 8), torch.nn.BatchNorm1d(8)
            self.calls = 0

        def forward(self, at, goal):
            self.calls += 1
            x = self.norm(self.table(at))
            return torch.nn.functional.cross_entropy(x, goal)

    torch.manual_seed(0)
    net, goal = Net(), torch.arange(5)
    twin = Net()
    twin.load_state_dict(net.state_dict())
    compiled = torchweld.compile(net)
    for at, to in (([0, 1, 2, 3, 0], 0), ([0, 1, 2, 9, 0], 0), ([0, 1, 2, 3, 0], 1)):
        for model in (twin, compiled):
            try:
                model(torch.tensor(at), goal + to).backward()
            except IndexError:
                log.append("failed")
        assert twin.calls == net.calls
        for mine, theirs in zip(net.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert torchweld.statistics()["breaks"] == 0


def added_(x, at):
    log.append(1)
    x.index_add_(0, at, torch.ones(2))
    return x.relu() + 1 - x.exp()


def by_itself_(x, at):
    log.append(1)
    x.add_(1)
    at = at + (x * 0).long()[:2]
    x.mul_(3)
    return x[at].relu() + 1


@pytest.mark.parametrize(("fn", "backend"), [
    (added_, "eager"), (by_itself_, "eager"), (by_itself_, "torchweld"),
])  # fmt: skip
def test_what_was_written_before_a_failure_is_not_written_again(fn, backend, at_once):
    """An operator that fails while it writes, and a check of what was written before."""

    def left(call):
        x = torch.zeros(4)
        with pytest.raises(IndexError) as caught:
            call(x, torch.tensor([0, 9]))
        return x.tolist(), str(caught.value)

    torchweld.reset()
    compiled = torchweld.compile(fn, backend=backend)
    compiled(torch.zeros(4), torch.tensor([0, 1]))
    assert (torchweld.statistics()["kernels"] > 0) is (backend == "torchweld")
    assert left(compiled) == left(fn)
