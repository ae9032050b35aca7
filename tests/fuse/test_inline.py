"""What is recomputed where it is read, and what is not."""

import pytest
from loop_programs import agreeing, kernels, plan_of, why

from torchweld.ir.loop import Nest


def nests(plan):
    return [n.out.name for n in plan.graph.nodes if isinstance(n, Nest)]


def test_a_producer_that_is_read_once_disappears():
    plan = agreeing("""
        x: f32[3, 4] input
        t: f32[3, 4]
        y: f32[4, 3]
        t[i, j] = exp(x[i, j])  for i:3, j:4
        y[j, i] = t[i, j] + 1.0  for j:4, i:3
        return y
        """)
    assert nests(plan) == ["y"]


def test_a_cheap_producer_is_recomputed_in_all_its_readers():
    plan = agreeing("""
        x: f32[3, 4] input
        t: f32[3, 4]
        y: f32[3]
        z: f32[4]
        t[i, j] = x[i, j] * 2.0  for i:3, j:4
        y[i] = sum over j:4 of t[i, j]  for i:3
        z[j] = max over i:3 of t[i, j]  for j:4
        return y, z
        """)
    assert nests(plan) == ["y", "z"]


def test_a_dear_producer_with_two_readers_stays():
    plan = agreeing("""
        x: f32[3, 4] input
        t: f32[3, 4]
        y: f32[3]
        z: f32[4]
        t[i, j] = exp(x[i, j])  for i:3, j:4
        y[i] = sum over j:4 of t[i, j]  for i:3
        z[j] = max over i:3 of t[i, j]  for j:4
        return y, z
        """)
    assert nests(plan) == ["t", "y", "z"]
    assert "t is not recomputed: y, z read it" in why(plan)


def test_a_dear_vector_is_not_recomputed_for_every_row():
    plan = plan_of("""
        b: f32[8] input
        x: f32[4096, 1024, 8] input
        t: f32[8]
        y: f32[4096, 1024, 8]
        t[j] = lgamma(b[j])  for j:8
        y[i, h, j] = x[i, h, j] + t[j]  for i:4096, h:1024, j:8
        return y
        """)
    assert nests(plan) == ["t", "y"] and "times per element" in why(plan)


def test_a_mask_without_loads_is_recomputed_even_if_it_is_returned():
    plan = agreeing("""
        x: f32[4, 4] input
        mask: bool[4, 4]
        y: f32[4, 4]
        mask[i, j] = index(i) >= index(j)  for i:4, j:4
        y[i, j] = where(mask[i, j], x[i, j], 0.0)  for i:4, j:4
        return mask, y
        """)
    y = plan.graph.nodes[-1]
    assert "mask" not in y.body.text() and nests(plan) == ["mask", "y"]


def test_a_returned_producer_is_not_recomputed():
    plan = agreeing("""
        x: f32[4] input
        t: f32[4]
        y: f32[4]
        t[i] = x[i] + x[3 - i]  for i:4
        y[i] = t[i] * 2.0  for i:4
        return t, y
        """)
    assert "t is not recomputed: it is stored anyway" in why(plan)
    assert len(kernels(plan)) == 1


def test_a_producer_is_not_moved_across_a_write_to_what_it_reads():
    plan = agreeing("""
        x: f32[4] input
        t: f32[4]
        y: f32[4]
        t[i] = x[i] * 2.0  for i:4
        x[i] = 0.0  for i:4
        y[i] = t[i] + 1.0  for i:4
        return y
        """)
    assert "x, which it reads, is written before y reads it" in why(plan)


def test_an_input_updated_in_place_needs_no_temporary():
    plan = agreeing("""
        x: f32[4] input
        t: f32[4]
        t[i] = x[i] + 1.0  for i:4
        x[i] = t[i]  for i:4
        return x
        """)
    assert nests(plan) == ["x"] and plan.arena_bytes == 0


def test_a_flipped_input_is_not_updated_from_itself_in_place():
    plan = agreeing("""
        x: f32[4] input
        t: f32[4]
        t[i] = x[3 - i] + 1.0  for i:4
        x[i] = t[i]  for i:4
        return x
        """)
    assert "at places that x overwrites" in why(plan)


def test_rows_picked_twice_are_read_before_they_are_overwritten():
    plan = agreeing("""
        x: f32[4] input
        at: i64[6] input
        t: f32[6]
        t[i] = x[<check_index(at[i], 4) in 0..3>] * 2.0  for i:6
        x[<check_index(at[i], 4) in 0..3>] = t[i]  for i:6
        return x
        """)
    assert "which its reader overwrites" in why(plan)


def test_a_checked_index_is_not_moved_to_a_reader_of_a_part():
    plan = agreeing("""
        x: f32[4] input
        at: i64[6] input
        t: f32[6]
        y: f32[2]
        t[i] = x[<check_index(at[i], 4) in 0..3>]  for i:6
        y[i] = t[i + 1]  for i:2
        return y
        """)
    assert "an index in it is checked" in why(plan)


def test_an_out_of_range_index_still_raises_when_nobody_reads_the_result():
    plan = plan_of("""
        x: f32[4] input
        at: i64[6] input
        t: f32[6]
        t[i] = x[<check_index(at[i], 4) in 0..3>]  for i:6
        return x
        """)
    assert nests(plan) == ["t"]


def test_a_guarded_load_stays_behind_its_guard():
    plan = agreeing("""
        x: f32[4] input
        t: f32[4]
        y: f32[6]
        t[i] = x[i] * 3.0  for i:4
        y[i] = where(and(index(i - 1) >= 0, index(i - 1) < 4), t[i - 1], 7.0)  for i:6
        return y
        """)
    assert nests(plan) == ["y"] and plan.graph.nodes[0].body.name == "where"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_rounding_between_operators_stays(dtype):
    plan = agreeing(f"""
        x: {dtype}[40] input
        t: {dtype}[40]
        y: {dtype}[40]
        t[i] = {dtype}(f32(x[i]) * 1.1)  for i:40
        y[i] = {dtype}(f32(t[i]) * 1.1)  for i:40
        return y
        """)
    assert plan.graph.nodes[0].body.text().count(f"cast.{dtype}") == 2
