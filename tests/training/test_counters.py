"""Counters of an optimizer that hold the same are read once, and what follows is computed once."""

import pytest
import torch
from optimizer_twin import drive, parameters

import torchweld
from torchweld.misses import why_missed

pytestmark = pytest.mark.usefixtures("at_once")

FORMS = {"loop": {"foreach": False}, "foreach": {"foreach": True}}


def compiled(optimizer, graphs):
    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    return torchweld.compile(optimizer.step, fullgraph=True, backend=backend)


def adamw(params, **options):
    return torch.optim.AdamW(params, lr=1e-2, **options)


def reads(gm):
    return sum(node.target == "item" for node in gm.graph.nodes)


def same(a, b):
    return all(torch.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("form", sorted(FORMS))
def test_equal_counters_are_read_once(form):
    params, graphs = parameters(), []
    optimizer = adamw(params, **FORMS[form])
    drive(optimizer, compiled(optimizer, graphs), params)
    assert [reads(gm) for gm in graphs[1:]] == [1]
    assert len(params) > 1


def counted(step_of):
    """Parameters after three rounds of steps; between them some counters are set to others."""
    params = parameters()
    optimizer = adamw(params)
    step = step_of(optimizer)
    for differ in (3.0, 7.0, 2.0):
        drive(optimizer, step, params)
        for p in params[1:]:
            optimizer.state[p]["step"].fill_(differ)
    return params


def test_counters_that_come_apart_are_read_one_by_one_from_then_on():
    graphs = []
    want, got = counted(lambda o: o.step), counted(lambda o: compiled(o, graphs))
    assert same(want, got)
    assert [reads(gm) for gm in graphs[1:]] == [1, len(got)]


def test_two_groups_of_counters_are_read_twice():
    params, graphs = parameters(), []
    optimizer = adamw(params)
    drive(optimizer, optimizer.step, params)
    optimizer.state[params[0]]["step"].fill_(1.0)
    drive(optimizer, compiled(optimizer, graphs), params)
    assert {reads(gm) for gm in graphs} == {2}


def test_the_reason_of_a_miss_names_both_counters():
    params = parameters()
    optimizer = adamw(params)
    drive(optimizer, optimizer.step, params)
    step = torchweld.compile(lambda: optimizer.step())
    step()
    optimizer.state[params[1]]["step"].fill_(3.0)
    (entry,) = step.entries
    (miss,) = why_missed([entry], ())
    assert "held the same number, do not any more" in miss.what
