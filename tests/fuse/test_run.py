"""The order of passes, what Config says about it, and what a plan costs."""

import random

from loop_programs import ADD_LAYER_NORM, SOFTMAX, agreeing, kernels, plan_of
from tests.ir.strategies import EXTERNS

from torchweld.base.config import Config
from torchweld.fuse import merge
from torchweld.fuse.cost import bytes_of, flops_of, moved
from torchweld.fuse.deps import analyse, predecessors
from torchweld.fuse.run import fuse, passes
from torchweld.ir.loop_text import parse
from torchweld.ir.plan_eval import evaluate_plan
from torchweld.ir.plan_text import text


def test_every_pass_can_be_left_out():
    names = [name for name, _ in passes([])]
    source = ADD_LAYER_NORM.format(m=9, n=8)
    for name in [*names, "merge"]:
        agreeing(source, skip=(name,))


def test_without_merging_each_nest_is_a_kernel():
    plan = agreeing(SOFTMAX.format(m=9, n=8), skip=("inline", "merge"))
    assert len(kernels(plan)) == 4


def test_fusion_moves_each_byte_of_a_layer_norm_once():
    source = ADD_LAYER_NORM.format(m=512, n=256)
    apart, fused = plan_of(source, skip=("inline", "merge")), plan_of(source)
    needed = 4 * (4 * 512 * 256 + 2 * 256)
    assert moved(fused) == needed < moved(apart) / 2


def test_a_load_of_one_element_per_row_does_not_count_as_the_whole_buffer():
    (k,) = kernels(plan_of("""
        x: f32[512, 1024] input
        y: f32[512]
        y[i] = x[i, 3]  for i:512
        return y
        """))
    assert bytes_of(k) == 4 * (512 + 512)


def test_transcendental_functions_count_for_more():
    def cost(op):
        return flops_of(kernels(plan_of(f"""
            x: f32[64] input
            y: f32[64]
            y[i] = {op}(x[i])  for i:64
            return y
            """))[0])  # fmt: skip

    assert cost("exp") > 5 * cost("neg")


def test_the_same_graph_gives_the_same_plan():
    source = ADD_LAYER_NORM.format(m=512, n=256)
    assert text(plan_of(source)) == text(plan_of(source))


def test_equal_layers_get_equal_kernels():
    layer = """
        t{i}[i, j] = x{i}[i, j] * 2.0 + b[j]  for i:64, j:32
        x{n} = test.twice.default(t{i})"""
    names = "".join(f"\nt{i}: f32[64, 32]\nx{i + 1}: f32[64, 32]" for i in range(3))
    body = "".join(layer.format(i=i, n=i + 1) for i in range(3))
    plan = agreeing(f"x0: f32[64, 32] input\nb: f32[32] input{names}{body}\nreturn x3\n")
    shapes = {(k.grid, k.lanes, tuple(s.loops for s in k.stages), k.grain) for k in kernels(plan)}
    assert len(kernels(plan)) == 3 and len(shapes) == 1


def test_writers_wait_for_readers_and_effects_keep_their_order():
    g = parse("""
        x: f32[4] input
        a: f32[4]
        r: f32[4]
        q: f32[4]
        a[i] = x[i] * 2.0  for i:4
        r = aten.rand.default([4])
        x[i] = 1.0  for i:4
        q = aten.rand.default([4])
        return a, r, q
        """)
    assert predecessors(analyse(g)) == [set(), set(), {0}, {1}]


def test_a_long_program_keeps_its_order_under_many_merges():
    rng = random.Random(3)
    lines, names = [], ["x0"]
    for i in range(1, 60):
        a, b = rng.choice(names), rng.choice(names)
        kind = rng.randrange(4)
        if kind == 0:
            lines.append(f"x{i} = test.twice.default({a})")
        elif kind == 1:
            lines.append(f"x{i}[i] = exp({a}[i] * 0.01) + {b}[5 - i]  for i:6")
        elif kind == 2:
            lines.append(f"x{i}[i] = sum over j:6 of {a}[j] * 0.01 + {b}[i]  for i:6")
        else:
            lines.append(f"x{i}[i] = tanh({a}[i]) + {b}[i] * 0.1  for i:6")
        names.append(f"x{i}")
    buffers = "".join(f"{n}: f32[6]{' input' if n == 'x0' else ''}\n" for n in names)
    g = parse(f"{buffers}{chr(10).join(lines)}\nreturn {', '.join(names[-6:])}\n")
    x = [[0.1, -0.2, 0.3, 0.4, -0.5, 0.6]]
    expected = evaluate_plan(fuse(g, Config(skip=("inline", "merge"))), x, EXTERNS)
    assert evaluate_plan(fuse(g, Config(verify=True)), x, EXTERNS) == expected


def steps_that_are_collected(n):
    """A chain of steps with an operator between each two, and a result that holds all of them."""
    lines = ["x: f32[8] input", f"y: f32[{n}, 8]"]
    lines += [f"{b}{i}: f32[8]" for i in range(n) for b in "st"]
    last = "x"
    for i in range(n):
        lines += [f"t{i} = test.twice.default({last})", f"s{i}[j] = tanh(t{i}[j])  for j:8",
                  f"y[{i}, j] = s{i}[j]  for j:8"]  # fmt: skip
        last = f"s{i}"
    return "\n".join([*lines, "return y"])


def test_producers_are_compared_once_for_each_merge(monkeypatch):
    asked, real = [], merge._shared_bytes
    monkeypatch.setattr(merge, "_shared_bytes", lambda *given: asked.append(1) or real(*given))
    plan_of(steps_that_are_collected(40))
    assert len(asked) < 3 * 40**2
