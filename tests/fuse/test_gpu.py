"""What fusion decides for a GPU: kernels, tiles, what stays in registers or is computed again."""

import pytest
from loop_programs import ADD_LAYER_NORM, SOFTMAX, agreeing, kernels, plan_of

from torchweld.base.errors import Unsupported
from torchweld.fuse import tile_gpu
from torchweld.ir.loop import loads
from torchweld.ir.plan import Tile

CUDA = ' on "cuda:0"'


def on_cuda(source):
    """The program with every buffer on a GPU."""
    lines = []
    for line in source.splitlines():
        head, colon, rest = line.partition(": ")
        if colon and head.strip().isidentifier() and "[" in rest and "=" not in rest:
            rest = rest.removesuffix(" input") + CUDA + " input" * rest.endswith(" input")
            line = f"{head}: {rest}"
        lines.append(line)
    return "\n".join(lines)


def gpu(source):
    """The kernels of a program that is too large to run here."""
    return kernels(plan_of(on_cuda(source)))


def small(source):
    """The kernels of a program, after checking what they compute."""
    return kernels(agreeing(on_cuda(source)))


def extents(k):
    return [tuple(a.size.value for a in st.loops) for st in k.stages]


def kinds(k):
    return {x.kind for x in k.locals}


def read_in(stage):
    return {ld.buffer.name for n in stage.nests for ld in loads(n.body)}


CHAIN = """
a: {t}[{m}, {n}] input
b: {t}[{m}, {n}] input
u: f32[{m}, {n}]
y: {t}[{m}, {n}]
u[i, j] = f32(a[i, j]) * 1.5 + f32(b[i, j])  for i:{m}, j:{n}
y[i, j] = {t}(u[i, j] * (erf(u[i, j]) + 1.0) * sigmoid(f32(b[i, j])))  for i:{m}, j:{n}
return y
"""


@pytest.mark.parametrize(("dtype", "points"), [("bf16", 2048), ("f64", 512)])
def test_a_pointwise_chain_is_one_flat_kernel_of_two_wide_accesses_per_thread(dtype, points):
    (k,) = gpu(CHAIN.format(t=dtype, m=16384, n=8192))
    assert k.tile == Tile(points, 1, 4) and extents(k) == [()] and k.lanes is None
    assert [a.size.value for a in k.grid] == [16384 * 8192]


@pytest.mark.parametrize(("n", "tile"), [(4, Tile(32, 1, 1)), (1 << 16, Tile(128, 1, 4))])
def test_a_small_problem_has_small_blocks(n, tile):
    (k,) = gpu(CHAIN.format(t="bf16", m=1, n=n))
    assert k.tile == tile


def test_a_softmax_reads_its_row_into_registers_and_keeps_the_exponentials_there():
    (k,) = gpu(SOFTMAX.format(m=16384, n=8192))
    assert k.tile == Tile(1, 8192, 16)
    assert extents(k) == [(8192,)] * 3 and kinds(k) == {"register", "row", "scalar"}
    assert [b.name for b in k.args] == ["x", "y"]


def test_short_rows_share_a_block():
    (k,) = gpu(SOFTMAX.format(m=65536, n=50))
    assert k.tile == Tile(32, 64, 4)


def test_a_row_too_long_for_registers_is_computed_again(monkeypatch):
    monkeypatch.setattr(tile_gpu, "REGISTERS", 100)
    (k,) = small(SOFTMAX.format(m=12, n=40))
    assert kinds(k) == {"scalar"} and [b.name for b in k.args] == ["x", "y"]


def test_the_maximum_and_the_sum_of_a_long_softmax_are_neighbours_for_one_pass():
    (k,) = gpu(SOFTMAX.format(m=4096, n=65536))
    assert k.tile == Tile(1, 16384, 32)
    top, total, _ = k.stages
    (m,), (s,) = top.nests, total.nests
    assert (m.reduce.kind, s.reduce.kind, s.body.name) == ("max", "sum", "exp")


def test_a_long_row_is_not_computed_again_where_that_reads_more(monkeypatch):
    monkeypatch.setattr(tile_gpu, "REGISTERS", 100)
    (k,) = small(ADD_LAYER_NORM.format(m=10, n=24))
    assert read_in(k.stages[0]) >= {"x", "y"} and "x" not in read_in(k.stages[1])
    assert kinds(k) == {"register", "scalar"}


def test_residual_and_layer_norm_are_one_kernel_that_reads_once():
    (k,) = gpu(ADD_LAYER_NORM.format(m=16384, n=8192))
    assert k.tile == Tile(1, 8192, 16) and len(k.stages) == 3
    assert not {"x", "y", "s"} & (read_in(k.stages[1]) | read_in(k.stages[2]))


def test_rows_in_registers_are_right():
    (k,) = small(ADD_LAYER_NORM.format(m=10, n=24))
    assert "row" in kinds(k)


CROSS_ENTROPY = """
x: bf16[{m}, {n}] input
t: i64[{m}] input
top: f32[{m}]
total: f32[{m}]
logp: f32[{m}, {n}]
picked: f32[{m}]
loss: f32[]
top[i] = max over j:{n} of f32(x[i, j])  for i:{m}
total[i] = sum over j:{n} of exp(f32(x[i, j]) - top[i])  for i:{m}
logp[i, j] = f32(x[i, j]) - top[i] - log(total[i])  for i:{m}, j:{n}
picked[i] = logp[i, <check_index(t[i], {n}) in 0..{last}>]  for i:{m}
loss[] = sum over i:{m} of neg(picked[i])
return loss
"""


def test_cross_entropy_finishes_each_row_in_one_kernel():
    rows, last = gpu(CROSS_ENTROPY.format(m=8192, n=50257, last=50256))
    assert rows.tile == Tile(1, 2048, 4) and last.grid == ()
    assert extents(rows) == [(50257,), (50257,), ()]
    assert {b.name for b in rows.args} == {"x", "t", "loss_rows"}


def test_cross_entropy_is_right():
    assert len(small(CROSS_ENTROPY.format(m=12, n=7, last=6))) == 2


COLUMN_SUM = """
x: {t}[{m}, {n}] input
s: f32[{n}]
s[j] = sum over i:{m} of f32(x[i, j]) * f32(x[i, j])  for j:{n}
return s
"""


def test_a_column_sum_reads_whole_lines_and_fills_the_machine():
    parts, last = gpu(COLUMN_SUM.format(t="bf16", m=16384, n=8192))
    assert parts.tile == Tile(64, 16, 2)
    assert [a.size.value for a in parts.grid] == [64, 8192] and extents(parts) == [(256,)]
    assert [a.size.value for a in last.grid] == [8192]


WITH_SUM = """
g: bf16[{a}, {b}, {n}] input
x: bf16[{a}, {b}, {n}] input
y: bf16[{a}, {b}, {n}]
total: f32[{n}]
y[i, j, k] = bf16(f32(g[i, j, k]) * tanh(f32(x[i, j, k])))  for i:{a}, j:{b}, k:{n}
total[k] = sum over r:{rows} of f32(y[r//{b}, r%{b}, k])  for k:{n}
return y, total
"""


def test_parts_of_a_column_sum_are_computed_with_the_matrix_whose_rows_have_two_indices():
    first, last = gpu(WITH_SUM.format(a=8, b=128, n=3072, rows=1024))
    assert read_in(first.stages[0]) == {"g", "x", "y_reg"}
    assert read_in(last.stages[0]) == {"total_part"}
    small(WITH_SUM.format(a=4, b=64, n=48, rows=256))


def test_a_small_column_sum_is_one_kernel():
    (k,) = gpu(COLUMN_SUM.format(t="bf16", m=256, n=1024))
    assert k.tile == Tile(16, 64, 4)


def test_the_last_part_of_an_odd_length_is_guarded(monkeypatch):
    monkeypatch.setattr("torchweld.fuse.split_gpu.SECOND_NS", 0.0)
    monkeypatch.setattr("torchweld.fuse.split_gpu.LEAST_PART", 1)
    monkeypatch.setattr("torchweld.fuse.split_gpu.BLOCKS", 1024)
    assert len(small("""
        x: f32[4999] input
        s: f32[]
        s[] = sum over i:4999 of x[i]
        return s
        """)) == 2


def test_a_full_reduction_is_one_block_when_it_is_short():
    source = "x: f32[{n}] input\ns: f32[]\ns[] = sum over i:{n} of x[i]\nreturn s\n"
    assert len(gpu(source.format(n=8192))) == 1 and len(gpu(source.format(n=1 << 24))) == 2


# as a softmax without a maximum
SHARES = """
x: f32[{m}, {n}] input
e: f32[{m}, {n}]
total: f32[{m}]
y: f32[{m}, {n}]
e[i, j] = exp(x[i, j] * 0.5)  for i:{m}, j:{n}
total[i] = sum over j:{n} of e[i, j]  for i:{m}
y[i, j] = e[i, j] / total[i]  for i:{m}, j:{n}
return y
"""


def test_few_long_rows_recompute_what_two_kernels_read():
    ks = gpu(SHARES.format(m=4, n=1 << 20))
    assert "e" not in {b.name for k in ks for b in k.args} and len(ks) == 3


def test_what_other_kernels_read_is_right_when_it_is_recomputed(monkeypatch):
    monkeypatch.setattr("torchweld.fuse.split_gpu.SECOND_NS", 0.0)
    monkeypatch.setattr("torchweld.fuse.split_gpu.LEAST_PART", 4)
    monkeypatch.setattr("torchweld.fuse.recompute.GAIN", 2.0)
    ks = small(SHARES.format(m=3, n=128))
    assert "e" not in {b.name for k in ks for b in k.args} and len(ks) == 2


def test_softmax_over_columns_is_one_kernel_of_columns():
    source = SOFTMAX.replace("[{m}, {n}]", "[{m}, {n}] strides (1, {m})")
    (k,) = gpu(source.format(m=512, n=256))
    assert k.tile.points * 4 >= tile_gpu.SECTOR and k.tile.loop == 256 and "row" in kinds(k)


def test_rows_that_are_read_across_memory_share_a_block_with_their_neighbours():
    layout = "x: f32[{m}, {n}] strides (1, {m}) input"
    source = ADD_LAYER_NORM.replace("x: f32[{m}, {n}] input", layout)
    (k,) = gpu(source.format(m=2048, n=768))
    assert k.tile.points * 4 == tile_gpu.SECTOR and k.tile.loop == 1024 and "row" in kinds(k)


def test_what_a_reduction_over_windows_needs_besides_is_computed_in_its_kernel():
    (k,) = gpu("""
        x: bf16[8, 64, 112, 112] input
        m: f32[8, 64, 56, 56]
        y: bf16[8, 64, 56, 56]
        m[n, c, h, w] = max over a:2 of f32(x[n, c, 2*h + a, 2*w])  for n:8, c:64, h:56, w:56
        y[n, c, h, w] = bf16(m[n, c, h, w])  for n:8, c:64, h:56, w:56
        return y
        """)
    assert [b.name for b in k.args] == ["x", "y"]


TRANSPOSE = """
x: bf16[{m}, {n}] input
y: bf16[{n}, {m}]
y[i, j] = bf16(f32(x[j, i]) + 1.0)  for i:{n}, j:{m}
return y
"""


def test_a_transpose_has_square_tiles_contiguous_on_both_sides():
    (k,) = gpu(TRANSPOSE.format(m=4096, n=4096))
    assert k.tile == Tile(64, 64, 8) and extents(k) == [(64,)]
    assert [a.size.value for a in k.grid] == [64, 4096]


@pytest.mark.parametrize(("m", "n"), [(24, 40), (20, 13), (3, 96)])
def test_transposes_of_any_shape_are_right(monkeypatch, m, n):
    monkeypatch.setattr(tile_gpu, "TRANSPOSE", 1)
    monkeypatch.setattr(tile_gpu, "EDGE", 8)
    small(TRANSPOSE.format(m=m, n=n))


def test_channels_that_are_few_are_not_walked_along():
    (k,) = gpu("""
        x: f32[8, 3, 128, 128] input
        y: f32[8, 3, 128, 128] strides (49152, 1, 384, 3)
        y[n, c, h, w] = x[n, c, h, w]  for n:8, c:3, h:128, w:128
        return y
        """)
    assert extents(k) == [()]


SCATTER = """
x: {t}[6, 5] input
at: i64[6] input
y: {t}[4, 5]
y[i, j] = 1:{t}  for i:4, j:5
y[<check_index(at[i], 4) in 0..3>, j] {mode} x[i, j]  for i:6, j:5
return y
"""


@pytest.mark.parametrize(("dtype", "mode"), [("i64", "+="), ("i32", "max="), ("i64", "*=")])
def test_a_scatter_with_an_atomic_operation_is_all_grid(dtype, mode):
    _, k = small(SCATTER.format(t=dtype, mode=mode))
    assert extents(k) == [()] and [a.size.value for a in k.grid] == [6, 5]


@pytest.mark.parametrize(("dtype", "mode"), [("i16", "*="), ("i8", "+="), ("u8", "max=")])
def test_a_scatter_without_one_runs_its_colliding_loop_in_order(dtype, mode):
    _, k = small(SCATTER.format(t=dtype, mode=mode))
    assert extents(k) == [(6,)] and k.tile.loop == 1


def test_an_update_at_loaded_indices_is_all_grid():
    _, k = gpu(SCATTER.format(t="f32", mode="="))
    assert extents(k) == [()]


def test_a_store_whose_static_index_collides_keeps_its_order():
    _, k = small("""
        x: f32[6, 4] input
        y: f32[3, 4]
        y[i, j] = 0.0  for i:3, j:4
        y[i // 2, j] = x[i, j]  for i:6, j:4
        return y
        """)
    assert extents(k) == [(6,)] and k.tile.loop == 1


def test_a_concatenation_is_computed_where_it_is_read():
    (k,) = small("""
        x: f32[6, 8] input
        s: f32[8] input
        half: f32[6, 8]
        y: f32[6, 8]
        half[i, j] = neg(x[i, j + 4])  for i:6, j:4
        half[i, j + 4] = x[i, j]  for i:6, j:4
        y[i, j] = x[i, j] + half[i, j] * s[j]  for i:6, j:8
        return y
        """)
    assert {b.name for b in k.args} == {"x", "s", "y"} and extents(k) == [()]


def test_small_kernels_that_read_something_in_common_share_a_launch():
    source = """
        q: f32[{m}, 64] input
        p: f32[{m}, 64] input
        c: f32[64] input
        y: f32[{m}, 64]
        z: f32[{m}, 64]
        y[i, j] = q[i, j] * c[j]  for i:{m}, j:64
        z[i, j] = p[i, j] * c[j]  for i:{m}, j:64
        return y, z
        """
    assert len(small(source.format(m=10))) == 1 and len(gpu(source.format(m=1 << 20))) == 2


def test_what_must_run_in_between_keeps_equal_kernels_apart():
    plan = plan_of(on_cuda("""
        x: f32[64] input
        a: f32[64]
        b: f32[64]
        y: f32[64]
        a[i] = exp(x[i])  for i:64
        b = test.twice.default(a)
        y[i] = exp(b[i])  for i:64
        return y
        """))
    assert len(kernels(plan)) == 2


def test_few_rows_do_not_serialise_what_the_machine_could_spread():
    source = """
        x: f32[{m}, {n}] input
        top: f32[{m}]
        y: f32[{m}, {n}]
        top[i] = max over j:{n} of x[i, j]  for i:{m}
        y[i, j] = x[i, j] / top[i]  for i:{m}, j:{n}
        return y
        """
    assert len(gpu(source.format(m=16, n=1024))) == 1
    assert len(gpu(source.format(m=128, n=16384))) == 1
    assert len(gpu(source.format(m=16, n=40000))) > 1


BLOCK = """
x: bf16[1024, 768] input
w: bf16[768] input
m0: f32[1024]
h: bf16[1024, 768]
qk: bf16[12288, 256]
top: f32[12288]
e: f32[12288, 256]
total: f32[12288]
p: bf16[12288, 256]
a: bf16[1024, 768]
r: bf16[1024, 768]
m1: f32[1024]
h1: bf16[1024, 768]
up: bf16[1024, 3072]
g: bf16[1024, 3072]
down: bf16[1024, 768]
y: bf16[1024, 768]
m0[i] = sum over j:768 of f32(x[i, j]) * f32(x[i, j])  for i:1024
h[i, j] = bf16(f32(x[i, j]) * rsqrt(m0[i] + 0.1) * f32(w[j]))  for i:1024, j:768
qk = test.twice.default(h)
top[i] = max over j:256 of f32(qk[i, j])  for i:12288
e[i, j] = exp(f32(qk[i, j]) - top[i])  for i:12288, j:256
total[i] = sum over j:256 of e[i, j]  for i:12288
p[i, j] = bf16(e[i, j] / total[i])  for i:12288, j:256
a = test.twice.default(p)
r[i, j] = bf16(f32(x[i, j]) + f32(a[i, j]))  for i:1024, j:768
m1[i] = sum over j:768 of f32(r[i, j]) * f32(r[i, j])  for i:1024
h1[i, j] = bf16(f32(r[i, j]) * rsqrt(m1[i] + 0.1) * f32(w[j]))  for i:1024, j:768
up = test.twice.default(h1)
g[i, j] = bf16(f32(up[i, j]) * (erf(f32(up[i, j])) + 1.0))  for i:1024, j:3072
down = test.twice.default(g)
y[i, j] = bf16(f32(r[i, j]) + f32(down[i, j]))  for i:1024, j:768
return y
"""


def test_a_transformer_block_has_five_kernels_between_its_products():
    plan = plan_of(on_cuda(BLOCK))
    assert [k.tile for k in kernels(plan)] == [
        Tile(2, 1024, 8), Tile(8, 256, 4), Tile(2, 1024, 8), Tile(2048, 1, 4), Tile(2048, 1, 4),
    ]  # fmt: skip
    assert all(k.tile.points & (k.tile.points - 1) == 0 for k in kernels(plan))


def test_equal_layers_have_equal_tiles_and_loops():
    layer = """
        t{i}[i, j] = x{i}[i, j] * 2.0 + b[j]  for i:640, j:32
        x{n} = test.twice.default(t{i})"""
    names = "".join(f"\nt{i}: f32[640, 32]\nx{i + 1}: f32[640, 32]" for i in range(3))
    body = "".join(layer.format(i=i, n=i + 1) for i in range(3))
    ks = gpu(f"x0: f32[640, 32] input\nb: f32[32] input{names}{body}\nreturn x3\n")
    assert len(ks) == 3 and len({(k.grid, k.tile, k.stages[0].loops) for k in ks}) == 1


# ---------------------------------------------------------------- devices and memory


def test_a_graph_on_two_devices_has_kernels_of_both_kinds():
    plan = agreeing("""
        x: f32[40] on "cuda:0" input
        s: f32[6] input
        t: f32[]
        y: f32[40] on "cuda:0"
        t[] = sum over i:6 of s[i]
        y[i] = x[i] * t[]  for i:40
        return y
        """)
    host, device = kernels(plan)
    assert host.tile is None and device.tile is not None


def test_only_single_elements_travel_between_devices():
    source = """
        x: f32[40] on "cuda:0" input
        s: f32[{n}] input
        t: f32[]
        y: f32[40] on "cuda:0"
        t[] = exp(s[0])
        y[i] = x[i] * t[]  for i:40
        return y
        """
    assert len(kernels(agreeing(source.format(n=1)))) == 1
    assert len(kernels(agreeing(source.format(n=6)))) == 2


def test_the_arena_is_on_the_gpu_and_its_slots_are_512_bytes_apart():
    plan = plan_of(on_cuda("""
        x: f32[40] input
        a: f32[40]
        b: f32[40]
        c: f32[40]
        y: f32[40]
        a[i] = x[i] + 1.0  for i:40
        b = test.twice.default(a)
        c[i] = b[i] + x[i]  for i:40
        y = test.twice.default(c)
        return y
        """))
    assert plan.arena_device == "cuda:0" and [s.offset % 512 for s in plan.slots] == [0, 0]


def test_a_kernel_never_reads_the_memory_of_another_device():
    source = """
        x: f32[6] input
        y: f32[6] on "cuda:0"
        y[i] = x[i]  for i:6
        return y
        """
    with pytest.raises(Unsupported, match="would read x on cpu"):
        plan_of(source)


def test_what_a_scan_has_reached_is_used_at_once():
    source = """
        x: f32[{m}, {n}] input
        c: f64[{m}, {n}]
        y: f32[{m}, {n}]
        z: f32[{m}, {n}]
        c[i, j] = scan_sum over j:{n} of f64(x[i, j])  for i:{m}
        y[i, j] = f32(c[i, j])  for i:{m}, j:{n}
        z[i, j] = f32(c[i, j]) * 2.0  for i:{m}, j:{n}
        return y, z{more}
        """
    (k,) = gpu(source.format(m=4096, n=100000, more=""))
    assert len(k.stages) == 1 and kinds(k) == {"register"}
    (k,) = small(source.format(m=6, n=7, more=", c"))
    assert len(k.stages) == 1


MAX_DIM = """
x: bf16[{m}, {n}] input
top: f32[{m}]
best: bf16[{m}]
at: i64[{m}]
top[i] = max over j:{n} of f32(x[i, j])  for i:{m}
best[i] = bf16(top[i])  for i:{m}
at[i] = argmax over j:{n} of f32(x[i, j])  for i:{m}
return best, at
"""


def test_a_maximum_and_its_position_read_the_row_together():
    assert len(gpu(MAX_DIM.format(m=16384, n=1024))) == 1


CHANNELS = """
x: bf16[{m}, {n}] input
t: f32[{n}]
q: f32[{n}]
y: bf16[{m}, {n}]
t[j] = sum over i:{m} of f32(x[i, j])  for j:{n}
q[j] = sum over i:{m} of v0 * v0  for j:{n}
  with v0 = f32(x[i, j]) - t[j] / {m}.0
y[i, j] = bf16((f32(x[i, j]) - t[j] / {m}.0) * rsqrt(q[j] / {m}.0 + 1e-5))  for i:{m}, j:{n}
return y
"""


def test_few_channels_are_normalised_by_more_than_a_few_blocks():
    parts, _, last = gpu(CHANNELS.format(m=100352, n=256))
    assert parts.tile == Tile(64, 16, 2) and len(parts.stages) == 3
    assert last.tile == Tile(2048, 1, 4) and [a.size.value for a in last.grid] == [100352, 256]
