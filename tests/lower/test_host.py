"""What a graph for a GPU computes on the CPU is taken out of it, and computes the same."""

from __future__ import annotations

from torchweld.base.config import current
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_parse import parse
from torchweld.ir.loop_verify import verify
from torchweld.ir.program import Launch
from torchweld.lower.host import split_host
from torchweld.runtime.cudagraph_plan import GraphPlan, analyse

STEP = """
p: f32[4] on "cuda:0" input
q: f32[4] on "cuda:0" input
step: f32[] input
rate: f64[] input
counted: f32[]
wide: f64[]
power: f64[]
size: f64[]
new: f32[4] on "cuda:0"
more: f32[4] on "cuda:0"

counted[] = step[] + 1.0
wide[] = f64(counted[])
power[] = pow(0.9:f64, wide[])
size[] = rate[] / (1.0:f64 - power[])
new[i0] = p[i0] * f32(size[])  for i0:4
more[i0] = q[i0] * f32(power[])  for i0:4
step[] = counted[]

return new, more, size
"""


def parts():
    whole = parse(STEP)
    found = split_host(whole)
    assert found is not None
    verify(found.main)
    verify(found.host)
    return whole, found


def test_numbers_are_computed_before_the_kernels():
    whole, found = parts()
    assert {b.device for n in found.host.nodes for b in (n.out,)} == {"cpu"}
    assert {n.out.name for n in found.main.nodes} == {"new", "more"}
    inputs = [[1.0, 2.0, 3.0, 4.0], [4.0, 3.0, 2.0, 1.0], [2.0], [0.5]]
    want = evaluate(whole, [list(x) for x in inputs])
    made = evaluate(found.host, [inputs[i] for i in found.takes])
    numbers, given = made[: found.crossing], made[found.crossing :]
    got = evaluate(found.main, [*inputs, *numbers])
    assert [got[0], got[1], *given] == want
    assert found.gives == (2,)


def test_the_rest_can_be_a_cuda_graph():
    whole, found = parts()
    assert isinstance(analyse(generate(fuse(found.main, current()))), GraphPlan)
    assert not isinstance(analyse(generate(fuse(whole, current()))), GraphPlan)


def test_all_numbers_are_one_launch():
    _, found = parts()
    steps = generate(fuse(found.host, current())).steps
    assert sum(isinstance(s, Launch) for s in steps) == 1


def test_a_kernel_that_reads_what_is_written_later_keeps_the_graph_whole():
    late = STEP.replace("f32(power[])", "step[]")
    assert split_host(parse(late)) is None


def test_a_graph_of_one_device_stays_whole():
    assert split_host(parse(STEP.replace(' on "cuda:0"', ""))) is None


def test_constants_of_a_prologue_stay_behind_the_inputs():
    table = 'table: f32[4] on "cuda:0" const\n'
    text = STEP.replace("counted: f32[]\n", table + "counted: f32[]\n")
    found = split_host(parse(text.replace("f32(size[])", "f32(size[]) * table[i0]")))
    assert found is not None
    verify(found.main)
    roles = [b.role for b in found.main.inputs]
    assert roles == ["input"] * (4 + found.crossing) + ["const"]


def test_numbers_made_of_constants_stay():
    """The prologue is no input of the part on the CPU."""
    text = STEP.replace("rate: f64[] input", "rate: f64[] const")
    found = split_host(parse(text))
    assert found is not None
    assert "size" in {n.out.name for n in found.main.nodes}
