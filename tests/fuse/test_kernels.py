"""Which nests share a kernel, and the loops that it gets."""

from dataclasses import replace

import pytest
from loop_programs import ADD_LAYER_NORM, SOFTMAX, agreeing, close, kernels, plan_of, why

from torchweld.base.config import Config
from torchweld.fuse import split, targets, tile
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse
from torchweld.ir.plan import Extern
from torchweld.ir.plan_eval import evaluate_plan


def kinds(k):
    return sorted(x.kind for x in k.locals)


def test_softmax_is_one_kernel_of_three_stages_over_rows():
    (k,) = kernels(agreeing(SOFTMAX.format(m=12, n=6)))
    assert len(k.stages) == 3 and k.lanes is None
    assert [a.size.value for a in k.grid] == [12]


def test_softmax_computes_each_exp_once_and_keeps_the_row():
    (k,) = kernels(plan_of(SOFTMAX.format(m=64, n=512)))
    assert kinds(k) == ["register", "row", "scalar", "scalar"]
    assert [b.name for b in k.args] == ["x", "y"]


def test_a_row_too_long_for_the_thread_goes_to_memory(monkeypatch):
    monkeypatch.setattr(targets, "ROW_BYTES", 100)
    (k,) = kernels(agreeing(SOFTMAX.format(m=8, n=32)))
    assert "row" not in kinds(k) and "e" in [b.name for b in k.args]


def test_softmax_over_columns_has_the_columns_as_lanes():
    source = SOFTMAX.format(m=40, n=6).replace("[40, 6]", "[40, 6] strides (1, 40)")
    (k,) = kernels(agreeing(source))
    assert k.lanes.size.value == 40 and k.grid == () and "row" not in kinds(k)


def test_residual_and_layer_norm_are_one_kernel_with_two_results():
    (k,) = kernels(agreeing(ADD_LAYER_NORM.format(m=10, n=8)))
    assert {b.name for b in k.args} == {"x", "y", "w", "b", "s", "o"}
    assert len(k.stages) == 3


def test_a_pointwise_chain_is_one_flat_kernel():
    plan = agreeing("""
        a: f32[6, 8] input
        b: f32[6, 8] input
        t: f32[6, 8]
        u: f32[6, 8]
        y: f32[6, 8]
        t[i, j] = a[i, j] * 1.5 + b[i, j]  for i:6, j:8
        u[i, j] = t[i, j] * 0.5 * (erf(t[i, j]) + 1.0)  for i:6, j:8
        y[i, j] = u[i, j] * sigmoid(b[i, j]) - a[i, j]  for i:6, j:8
        return y
        """)
    (k,) = kernels(plan)
    assert k.grid == () and k.lanes.size.value == 48 and plan.arena_bytes == 0


def test_broadcast_keeps_two_loops():
    (k,) = kernels(agreeing("""
        x: f32[6, 8] input
        b: f32[8] input
        y: f32[6, 8]
        y[i, j] = x[i, j] + b[j]  for i:6, j:8
        return y
        """))
    assert [a.size.value for a in k.grid] == [6]
    assert [a.size.value for a in k.stages[0].loops] == [8]


def test_few_long_rows_are_shared_out_by_columns():
    (k,) = kernels(plan_of("""
        x: f32[2, 100000] input
        b: f32[100000] input
        y: f32[2, 100000]
        y[i, j] = x[i, j] + b[j]  for i:2, j:100000
        return y
        """))
    assert k.grid == () and k.lanes.size.value == 100000


def test_siblings_that_read_the_same_share_a_kernel():
    (k,) = kernels(agreeing("""
        x: f32[9] input
        s: f32[9]
        c: f32[9]
        s[i] = sin(x[i])  for i:9
        c[i] = cos(x[i])  for i:9
        return s, c
        """))
    assert [b.name for b in k.args] == ["x", "s", "c"]


def test_a_transposed_copy_has_a_kernel_of_its_own():
    plan = agreeing("""
        x: f32[9, 9] input
        t: f32[9, 9]
        y: f32[9, 9]
        t[i, j] = exp(x[i, j])  for i:9, j:9
        y[j, i] = t[i, j]  for j:9, i:9
        return t, y
        """)
    assert len(kernels(plan)) == 2 and "walks memory across" in why(plan)


def test_a_reduction_over_all_axes_is_cut_in_parts(monkeypatch):
    monkeypatch.setattr(split, "LONG", 64)
    monkeypatch.setattr(split, "PART", 8)
    first, second = kernels(agreeing("""
        x: f32[32, 64] input
        s: f32[]
        s[] = sum over i:32, j:64 of x[i, j] * x[i, j]
        return s
        """))
    assert [a.size.value for a in first.grid] == [32] and second.grid == ()


def test_the_last_part_of_an_odd_length_is_guarded(monkeypatch):
    monkeypatch.setattr(split, "LONG", 64)
    monkeypatch.setattr(split, "PART", 8)
    first, _ = kernels(agreeing("""
        x: f32[67] input
        s: f32[]
        s[] = max over i:67 of x[i]
        return s
        """))
    assert first.stages[0].nests[0].body.name == "where"


def test_column_sums_run_over_blocks_of_rows():
    first, second = kernels(plan_of("""
        x: f32[4096, 1024] input
        s: f32[1024]
        s[j] = sum over i:4096 of x[i, j] * x[i, j]  for j:1024
        return s
        """))
    assert first.grid[0].size.value == 64 and first.lanes.size.value == 1024
    assert second.lanes.size.value == 1024


def test_column_sums_that_are_spread_again_stay_in_one_kernel():
    (k,) = kernels(plan_of("""
        x: f32[4096, 1024] input
        s: f32[1024]
        y: f32[4096, 1024]
        s[j] = sum over i:4096 of x[i, j]  for j:1024
        y[i, j] = x[i, j] / s[j]  for i:4096, j:1024
        return y
        """))
    assert k.lanes.size.value == 1024 and len(k.stages) == 2


def test_a_scan_is_a_loop_of_its_stage_and_its_reader_comes_after():
    (k,) = kernels(agreeing("""
        x: f32[9, 5] input
        c: f32[9, 5]
        y: f32[9, 5]
        c[i, j] = scan_sum over j:5 of x[i, j]  for i:9
        y[i, j] = exp(c[i, j]) * c[i, 4]  for i:9, j:5
        return y
        """))
    assert len(k.stages) == 2


def test_a_scatter_runs_its_colliding_loop_in_order():
    plan = agreeing("""
        x: f32[6, 5] input
        at: i64[6] input
        y: f32[4, 5]
        y[i, j] = 0.0  for i:4, j:5
        y[<check_index(at[i], 4) in 0..3>, j] += x[i, j]  for i:6, j:5
        return y
        """)
    scatter = kernels(plan)[-1]
    outer = {*scatter.grid, *([scatter.lanes] if scatter.lanes else [])}
    assert [a.size.value for a in outer] == [5]
    assert [a.size.value for a in scatter.stages[0].loops] == [6]
    assert "a scatter runs in the order of its loop" in why(plan)


def test_concatenation_shares_a_kernel_with_its_reader(monkeypatch):
    tuned = replace(targets.CPU, partial_rows=4, piece_rows=True)
    monkeypatch.setattr(targets, "CPU", tuned)
    (k,) = kernels(agreeing("""
        x: f32[6, 8] input
        r: f32[6, 8]
        y: f32[6, 8]
        r[i, j] = neg(x[i, j + 4])  for i:6, j:4
        r[i, j + 4] = x[i, j]  for i:6, j:4
        y[i, j] = x[i, j] * 2.0 + r[i, j] * 3.0  for i:6, j:8
        return y
        """))
    assert kinds(k) == ["row"]


def test_a_reader_of_other_rows_waits_for_the_kernel():
    plan = agreeing("""
        x: f32[100] input
        t: f32[100]
        y: f32[100]
        t[i] = exp(x[i])  for i:100
        y[i] = t[i] + t[99 - i]  for i:100
        return t, y
        """)
    assert len(kernels(plan)) == 2 and "a row reads what another row" in why(plan)


def test_what_an_extern_needs_in_between_is_not_fused_over_it():
    plan = agreeing("""
        x: f32[9] input
        t: f32[9]
        e: f32[9]
        y: f32[9]
        t[i] = exp(x[i])  for i:9
        e = test.twice.default(t)
        y[i] = t[i] + e[i]  for i:9
        return y
        """)
    assert len(kernels(plan)) == 2 and "must run in between" in why(plan)


def test_a_kernel_may_wait_for_an_unrelated_extern():
    plan = agreeing("""
        x: f32[9] input
        z: f32[9] input
        t: f32[9]
        e: f32[9]
        y: f32[9]
        t[i] = exp(x[i])  for i:9
        e = test.twice.default(z)
        y[i] = t[i] + e[i]  for i:9
        return t, y
        """)
    assert len(kernels(plan)) == 1 and isinstance(plan.steps[0], Extern)


def test_an_input_is_overwritten_after_its_readers():
    plan = agreeing("""
        x: f32[40] input
        y: f32[40]
        y[i] = x[39 - i] * 2.0  for i:40
        x[i] = x[i] + 1.0  for i:40
        return y
        """)
    assert len(kernels(plan)) == 2


def test_few_rows_do_not_swallow_wide_pointwise_work():
    plan = plan_of("""
        x: f32[2, 40000] input
        y: f32[2, 40000]
        c: f32[2, 40000]
        y[i, j] = exp(x[i, j])  for i:2, j:40000
        c[i, j] = scan_sum over j:40000 of y[i, j]  for i:2
        return y, c
        """)
    assert "only 2 rows would be in common" in why(plan)


@pytest.mark.parametrize("rows", [3, 100])
def test_grid_points_are_limited_by_giving_inner_loops_to_the_stage(monkeypatch, rows):
    monkeypatch.setattr(tile, "GRID_POINTS", 16)
    (k,) = kernels(agreeing(f"""
        x: f32[{rows}, 3, 4] input
        b: f32[{rows}, 4] input
        y: f32[{rows}, 3, 4]
        y[i, h, j] = x[i, h, j] + b[i, j]  for i:{rows}, h:3, j:4
        return y
        """))
    assert len(k.grid) == (1 if rows == 100 else 2)


def test_the_grain_grows_as_points_get_cheaper():
    wide = kernels(plan_of(SOFTMAX.format(m=64, n=4096)))[0]
    narrow = kernels(plan_of(SOFTMAX.format(m=64, n=16)))[0]
    assert wide.grain == 1 < narrow.grain


def test_a_group_norm_reads_its_statistics_in_the_same_kernel():
    (k,) = kernels(agreeing("""
        x: f32[3, 12, 10] input
        s: f32[3, 4]
        y: f32[3, 12, 10]
        s[n, g] = sum over k:30 of x[n, 3*g + k//10, k%10]  for n:3, g:4
        y[n, c, j] = x[n, c, j] / s[n, c//3]  for n:3, c:12, j:10
        return y
        """))
    assert [a.size.value for a in k.grid] == [12]
    assert [a.size.value for st in k.stages for a in st.loops] == [30, 30]


def test_a_value_read_in_another_shape_stays_in_the_kernel():
    (k,) = kernels(agreeing("""
        x: f32[12, 10] input
        t: f32[12, 10]
        s: f32[3, 4]
        y: f32[3, 4, 10]
        t[i, j] = exp(x[i, j])  for i:12, j:10
        s[b, h] = sum over j:10 of t[4*b + h, j]  for b:3, h:4
        y[b, h, j] = t[4*b + h, j] / s[b, h]  for b:3, h:4, j:10
        return t, y
        """))
    assert [a.size.value for a in k.grid] == [12]


def test_cross_entropy_is_one_kernel_over_rows_and_one_that_adds_them():
    plan = agreeing("""
        x: f32[16, 30] input
        target: i64[16] input
        top: f32[16]
        d: f32[16, 30]
        total: f32[16]
        logp: f32[16, 30]
        loss: f32[16]
        all: f32[]
        mean: f32[]
        top[i] = max over j:30 of x[i, j]  for i:16
        d[i, j] = x[i, j] - top[i]  for i:16, j:30
        total[i] = sum over j:30 of exp(d[i, j])  for i:16
        logp[i, j] = d[i, j] - log(total[i])  for i:16, j:30
        loss[i] = neg(logp[i, <check_index(target[i], 30) in 0..29>])  for i:16
        all[] = sum over i:16 of loss[i]
        mean[] = all[] / 16.0
        return mean
        """)
    rows, last = kernels(plan)
    assert len(rows.stages) == 3 and rows.lanes is None and last.grid == ()


def test_sizes_known_only_at_run_time_are_kept_as_they_are():
    g = parse("""
        size m in 1..
        size n in 1..
        """ + SOFTMAX.replace("{", "").replace("}", ""))
    plan = fuse(g, Config(verify=True))
    (k,) = kernels(plan)
    assert [a.size.text() for a in k.grid] == ["m"] and plan.slots == ()
    sizes = dict(zip(g.sizes, (3, 5), strict=True))
    x = [float(i % 7) for i in range(15)]
    (got,) = evaluate_plan(plan, [list(x)], sizes=sizes)
    assert close(got, evaluate(g, [list(x)], sizes=sizes)[0])


def test_a_large_transpose_is_cut_in_tiles(monkeypatch):
    monkeypatch.setattr(tile, "TILE_POINTS", 1024)
    (k,) = kernels(agreeing("""
        x: f32[64, 48] input
        y: f32[48, 64]
        y[j, i] = x[i, j]  for j:48, i:64
        return y
        """))
    assert [a.size.value for a in k.grid] == [3, 1]
    assert [a.size.value for a in k.stages[0].loops] == [4, 16, 16]


def test_column_sums_over_images_cut_into_rows_of_pixels():
    first, _ = kernels(plan_of("""
        x: f32[2, 112, 112, 64] input
        s: f32[64]
        s[c] = sum over n:2, h:112, w:112 of x[n, h, w, c]  for c:64
        return s
        """))
    assert [a.size.value for a in first.grid] == [224] and first.lanes.size.value == 64


def test_a_part_of_a_buffer_that_is_read_elsewhere_stays_in_memory():
    agreeing("""
        x: f32[3, 4] input
        p: f32[3, 4]
        z: f32[6, 4]
        y: f32[]
        p[i, j] = x[i, j] * x[i, j]  for i:3, j:4
        z[i, j] = 0.0  for i:6, j:4
        z[i, j] = p[i, j] * 2.0  for i:3, j:4
        y[] = sum over i:3, j:4 of z[i + 3, j] * x[i, j]
        return p, y
        """)


def test_what_pieces_of_a_concatenation_share_is_there_in_both_loops():
    (k,) = kernels(agreeing("""
        x: f32[3, 4] input
        k: f32[3, 4] input
        d: f32[] input
        b: f32[4] input
        h: f32[3, 4]
        c: f32[6, 4]
        y: f32[3, 4]
        h[i, j] = x[i, j] + k[i, j] * 0.5  for i:3, j:4
        c[i, j] = h[i, j]  for i:3, j:4
        c[i + 3, j] = h[i, j] * d[]  for i:3, j:4
        y[i, j] = c[i, j] + b[j]  for i:3, j:4
        return c, y
        """))
    assert len(k.stages) == 2 and [x.kind for x in k.locals] == ["register"]
