"""Equal updates of many tensors are fused once: which, what they compute, and when they are not."""

from collections import Counter

from loop_programs import agreeing, kernels, plan_of
from test_gpu import on_cuda

from torchweld.codegen.alike import key_of
from torchweld.codegen.run import generate
from torchweld.fuse.twins import LEAST, find_twins
from torchweld.ir.loop_parse import parse
from torchweld.ir.plan import Kernel, kernels_of

# a momentum step of one tensor, from a gradient that a sum makes
DECLARED = """
x{i}: f32[3, {n}] input
p{i}: f32[{n}] input
m{i}: f32[{n}] input
g{i}: f32[{n}]
t{i}: f32[{n}]
u{i}: f32[{n}]
"""
NESTS = """
g{i}[i] = sum over j:3 of x{i}[j, i]  for i:{n}
t{i}[i] = m{i}[i] * {rate} + g{i}[i]  for i:{n}
u{i}[i] = p{i}[i] - t{i}[i] * rate[]  for i:{n}
p{i}[i] = u{i}[i]  for i:{n}
m{i}[i] = t{i}[i]  for i:{n}
"""


def steps(count, more="", sizes=(40,), rates=(0.9,), returned="rate"):
    rows = [{"i": i, "n": sizes[i % len(sizes)], "rate": rates[i % len(rates)]}
            for i in range(count)]  # fmt: skip
    declared = "\n".join(DECLARED.format(**row).strip() for row in rows)
    nests = "\n".join(NESTS.format(**row).strip() for row in rows)
    inputs = "\n".join(ln for ln in declared.splitlines() if ln.endswith("input"))
    temps = "\n".join(ln for ln in declared.splitlines() if not ln.endswith("input"))
    last = f"{more}return {returned}\n"
    return f"rate: f32[] input\n{inputs}\n{temps}\nq: f32[40]\n\n{nests}\n{last}"


def islands(source):
    """How many equal islands there are of each kind."""
    return [len(t.rows) for t in find_twins(parse(source), final=True)[1]]


def updates(plan):
    """The kernels that write to a parameter."""
    found = [k for k in kernels_of(plan.steps) if any(b.name.startswith("p") for b in k.args)]
    assert found
    return found


def test_equal_updates_have_one_kernel_each_and_one_text():
    plan = agreeing(steps(6))
    made = updates(plan)
    assert len(made) == 6
    assert len({key_of(k) for k in made}) == 1
    launched = Counter(s.function for s in generate(plan).steps if hasattr(s, "function"))
    assert 6 in launched.values()


def test_on_a_gpu_too_and_their_launches_are_shared():
    plan = agreeing(on_cuda(steps(6)))
    assert len(updates(plan)) == 6
    assert sum(isinstance(s, Kernel) for s in plan.steps) == 0


def test_each_size_is_a_kind_of_its_own():
    assert islands(steps(3 * LEAST, sizes=(40, 30, 20))) == [LEAST] * 3
    agreeing(steps(3 * LEAST, sizes=(40, 30, 20)))


def test_another_constant_is_another_kind():
    assert islands(steps(2 * LEAST, rates=(0.9, 0.8))) == [LEAST] * 2


def test_few_are_fused_with_the_rest():
    assert islands(steps(LEAST - 1)) == []


def test_one_number_per_tensor_is_no_update_of_a_tensor():
    assert islands(steps(6, sizes=(1,))) == []


def test_a_parameter_that_is_read_behind_its_update_is_none_of_them():
    read = "q[i] = p0[i] * 2.0  for i:40\n"
    assert islands(steps(6, read, returned="q")) == [5]
    agreeing(steps(6, read, returned="q"))


def test_what_is_written_behind_an_update_that_reads_it_keeps_its_place():
    write = "rate[] = 3.0\n"
    assert islands(steps(6, write)) == []
    agreeing(steps(6, write))


def test_updates_that_return_a_result_are_another_kind():
    assert islands(steps(6, returned="u0")) == [5]
    agreeing(steps(6, returned="u0"))
    every = ", ".join(f"u{i}" for i in range(6))
    assert islands(steps(6, returned=every)) == [6]
    agreeing(steps(6, returned=every))


def test_otherwise_an_update_is_fused_with_the_sum_that_makes_its_gradient():
    assert len(kernels(plan_of(steps(6), skip=("twins",)))) == 6
    assert len(kernels(plan_of(steps(6)))) == 12


# the same of a gradient that is given, at a rate of its own that equals the others
GIVEN = """
g{i}: f32[40] input
p{i}: f32[40] input
m{i}: f32[40] input
"""
STEP = """
c{i}[] = {number}
t{i}[i] = m{i}[i] * 0.9 + g{i}[i]  for i:40
u{i}[i] = p{i}[i] - t{i}[i] * c{i}[]  for i:40
p{i}[i] = u{i}[i]  for i:40
m{i}[i] = t{i}[i]  for i:40
"""


def given(count, more, returned, number="rate[] * 2.0"):
    inputs = "".join(GIVEN.format(i=i) for i in range(count)).replace("\n\n", "\n").strip()
    temps = "\n".join(f"c{i}: f32[]\nt{i}: f32[40]\nu{i}: f32[40]" for i in range(count))
    steps = "".join(STEP.format(i=i, number=number) for i in range(count))
    nests = steps.replace("\n\n", "\n").strip()
    head = f"rate: f32[] input\n{inputs}\n{temps}\nq: f32[40]\nr: f32[40]\nd: f32[]\n\n"
    return f"{head}d[] = rate[] * 3.0\n{nests}\n{more}return {returned}\n"


def test_gradients_that_are_given_are_found_before_the_passes():
    source = given(6, "", "c0")
    assert [len(t.rows) for t in find_twins(parse(source), final=False)[1]] == [6]
    assert find_twins(parse(steps(6)), final=False)[1] == []


def test_what_the_passes_find_to_be_a_copy_is_read_where_it_came_from():
    plan = agreeing(given(6, "", "rate", number="d[]"))
    assert len(updates(plan)) == 6
    numbers = {b.name for k in updates(plan) for b in k.args if not b.shape}
    assert numbers == {"d", "c1", "c2", "c3", "c4", "c5"}


def test_results_that_the_passes_rename_are_returned_beside_those_of_updates():
    more = "q[i] = g0[i] * 2.0  for i:40\nr[i] = q[i]  for i:40\n"
    agreeing(given(6, more, "t1, r, t0, q, t2, t3, t4, t5"))
    agreeing(given(6, more, "r, c3, t1"))
