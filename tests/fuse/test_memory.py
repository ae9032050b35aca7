"""Where temporaries live."""

from loop_programs import agreeing, plan_of

from torchweld.fuse.memory import span_bytes
from torchweld.ir.loop_text import parse
from torchweld.ir.plan import Free

CHAIN = """
x: f32[40] input
t0: f32[40]
e0: f32[40]
t1: f32[40]
e1: f32[40]
t2: f32[40]
e2: f32[40]
t0[i] = x[i] + 1.0  for i:40
e0 = test.twice.default(t0)
t1[i] = e0[i] + 1.0  for i:40
e1 = test.twice.default(t1)
t2[i] = e1[i] + 1.0  for i:40
e2 = test.twice.default(t2)
return e2
"""


def test_slots_are_reused_when_their_reader_is_done():
    plan = agreeing(CHAIN)
    assert [s.offset for s in plan.slots] == [0, 0, 0] and plan.arena_bytes == 192


def test_results_of_externs_are_freed_after_their_last_use_but_not_if_returned():
    plan = agreeing(CHAIN)
    assert [s.buffer.name for s in plan.steps if isinstance(s, Free)] == ["e0", "e1"]


def test_slots_of_overlapping_lifetimes_do_not_overlap():
    plan = agreeing("""
        x: f32[20] input
        a: f32[20]
        b: f32[20]
        ea: f32[20]
        eb: f32[20]
        y: f32[20]
        a[i] = x[i] + 1.0  for i:20
        b[i] = x[i] + 2.0  for i:20
        ea = test.twice.default(a)
        eb = test.twice.default(b)
        y[i] = ea[i] + eb[i] + a[19 - i] + b[19 - i]  for i:20
        return y
        """)
    first, second = plan.slots
    assert abs(first.offset - second.offset) >= 80
    assert all(s.offset % 64 == 0 for s in plan.slots)


def test_a_temporary_that_is_returned_as_a_view_is_fresh():
    plan = agreeing("""
        x: f32[4, 6] input
        t: f32[4, 6]
        t[i, j] = x[i, j] + 1.0  for i:4, j:6
        return t as [6, 4] strides (1, 6)
        """)
    assert [b.name for b in plan.fresh] == ["t"] and plan.slots == ()


def test_a_strided_buffer_takes_the_span_of_its_strides():
    g = parse("""
        x: f32[2, 3] strides (100, 2) offset 5 input
        return x
        """)
    assert span_bytes(g.inputs[0]) == 4 * (5 + 100 + 4 + 1)


def test_a_result_without_elements_is_fresh_and_needs_no_kernel():
    plan = plan_of("""
        x: f32[0, 4] input
        t: f32[0, 4]
        t[i, j] = x[i, j] + 1.0  for i:0, j:4
        return t
        """)
    assert plan.steps == () and [b.name for b in plan.fresh] == ["t"]
