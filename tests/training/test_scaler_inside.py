"""Steps with autocast and a GradScaler as one function."""

import pytest
import torch
from step_twin import assert_one_graph, batches, mlp, run

from torchweld.pipeline import STATISTICS

pytestmark = pytest.mark.usefixtures("at_once")


def make_step(optimizer_of, clip=False, dtype=torch.float16, scale=1024.0, states=None):
    def make(model):
        optimizer = optimizer_of(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
        if states is not None:
            states.append((scaler, optimizer))

        def step(x):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = model(x).square().mean()
            scaler.scale(loss).backward()
            if clip:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return step

    return make


def same_states(states):
    """The states of scalers and optimizers, of the two runs."""
    (a, x), (b, y) = states
    assert a.state_dict() == b.state_dict()
    ours, theirs = x.state_dict()["state"], y.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for i in ours:
        torch.testing.assert_close(dict(ours[i]), dict(theirs[i]), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_scaled_step_breaks_once_where_it_decides_whether_to_step(clip, dtype):
    states = []
    make = make_step(lambda p: torch.optim.AdamW(p, lr=0.01), clip, dtype, states=states)
    run(make, batches(4), rtol=1e-2, atol=1e-3)
    same_states(states)
    counts = STATISTICS.counts()
    assert (counts["graphs"], counts["breaks"], counts["aten_graphs"]) == (4, 2, 0)


def test_a_scaled_step_of_a_fused_optimizer_is_one_graph():
    states = []
    make = make_step(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), states=states)
    run(make, batches(4), rtol=1e-2, atol=1e-3)
    same_states(states)
    assert_one_graph(2)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_with_infinite_gradients_are_left_out(fused):
    states = []
    make = make_step(lambda p: torch.optim.SGD(p, lr=0.01, fused=fused),
                     scale=1e38, states=states)  # fmt: skip
    run(make, [x * 100 for x in batches(4)], rtol=1e-2, atol=1e-3, equal_nan=True)
    same_states(states)
    assert states[0][0].get_scale() < 1e38


def test_unscaling_marks_infinite_and_nan_gradients():
    def make(model):
        def step(bad):
            grads = [torch.ones(3), torch.full((2, 2), 4.0), torch.tensor([1.0, bad])]
            found = torch.zeros(())
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.25))
            return grads[0] + 0, grads[1] + 0, found + 0

        return step

    run(make, [torch.tensor(v) for v in (1.0, float("inf"), float("nan"), -float("inf"))], mlp)


@pytest.mark.parametrize("scale", [4.0, 3e38])
def test_the_scale_grows_after_enough_steps_and_shrinks_after_a_bad_one(scale):
    def make(model):
        value, tracker = torch.tensor(scale), torch.tensor(0, dtype=torch.int32)

        def step(found):
            torch._amp_update_scale_(value, tracker, found, 2.0, 0.5, 2)
            return value + 0, tracker + 0

        return step

    run(make, [torch.tensor(v) for v in (0.0, 0.0, 0.0, 1.0, 0.0, 0.0)])
    assert_one_graph()
