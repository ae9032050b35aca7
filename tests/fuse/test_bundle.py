"""Small independent kernels share a launch: which, where it stands, what its limits are."""

import pytest
from loop_programs import agreeing, launches, plan_of
from test_gpu import on_cuda

from torchweld.fuse import bundle
from torchweld.fuse.bundle import BYTES, MEMBERS, PARAMS
from torchweld.ir.loop import Extern
from torchweld.ir.plan import Bundle
from torchweld.ir.plan_text import parse, text


def bundled(source):
    """The plan of a program on a GPU, after checking what it computes."""
    plan = agreeing(on_cuda(source))
    assert parse(text(plan)) == plan
    return plan


def order(plan):
    """The steps that run: launches as the outputs that they write, externs as what they make."""
    found = []
    for s in plan.steps:
        if isinstance(s, Extern):
            found.append("".join(b.name for b in s.outs))
        elif hasattr(s, "args"):
            made = [n.out.name for k in kernels_of(s) for st in k.stages for n in st.nests]
            found.append(" ".join(sorted(made)))
    return found


def kernels_of(s):
    return s.kernels if isinstance(s, Bundle) else (s,)


def tensors(count, n, loop=False):
    """So many normalised rows, or scaled tensors, of different inputs."""
    lines, nests = [], []
    for i in range(count):
        size = n(i) if callable(n) else n
        lines += [f"x{i}: f32[{size}, 24] input", f"y{i}: f32[{size}, 24]"]
        if loop:
            lines += [f"s{i}: f32[{size}]"]
            nests += [f"s{i}[i] = sum over j:24 of x{i}[i, j] * x{i}[i, j]  for i:{size}"]
        body = f"x{i}[i, j] / s{i}[i]" if loop else f"x{i}[i, j] * 2.0"
        nests += [f"y{i}[i, j] = {body}  for i:{size}, j:24"]
    return "\n".join([*lines, *nests, "return " + ", ".join(f"y{i}" for i in range(count)), ""])


def test_kernels_of_one_size_that_share_nothing_are_one_launch():
    assert launches(bundled(tensors(8, 10, loop=True))) == [[f"k{i}" for i in range(8)]]


def test_kernels_of_different_sizes_and_loops_are_one_launch():
    first = tensors(3, lambda i: 5 + 7 * i, loop=True)
    for old, new in (("x", "z"), ("y", "r"), ("s0", "q0"), ("s1", "q1"), ("s2", "q2")):
        first = first.replace(old, new)
    plan = bundled(joined(first, tensors(4, 11)))
    (together,) = launches(plan)
    assert len(together) == 7


def test_large_kernels_have_launches_of_their_own():
    assert launches(plan_of(on_cuda(tensors(3, 1 << 20)))) == [["k0"], ["k1"], ["k2"]]


def test_a_cpu_has_no_bundles():
    assert len(launches(plan_of(tensors(8, 10)))) == 8


def test_bundles_can_be_left_out():
    assert len(launches(plan_of(on_cuda(tensors(8, 10)), skip=("bundle",)))) == 8


def test_kernels_of_two_devices_are_two_launches():
    other = on_cuda(tensors(2, 10)).replace("cuda:0", "cuda:1").replace("x", "z").replace("y", "w")
    plan = plan_of(joined(on_cuda(tensors(2, 10)), other))
    assert [len(x) for x in launches(plan)] == [2, 2]


def joined(*programs):
    """Their lines in one program, which returns what all of them return."""
    lines = [line for p in programs for line in p.splitlines()]
    found = [line.removeprefix("return ") for line in lines if line.startswith("return")]
    rest = [line for line in lines if not line.startswith("return")]
    declared = [line for line in rest if ": f32[" in line]
    nests = [line for line in rest if line not in declared]
    return "\n".join([*declared, *nests, "return " + ", ".join(found), ""])


CHAIN = """
x: f32[64] input
z: f32[40] input
{types}
{nodes}
return {out}
"""


def program(nodes, out):
    made = [line.split(" ")[0].split("[")[0] for line in nodes]
    types = "\n".join(
        f"{b}: f32[{40 if b.startswith('z') else 64}]" for b in dict.fromkeys(made) if b != "x"
    )
    return CHAIN.format(types=types, nodes="\n".join(nodes), out=out)


def point(out, body):
    axis = 40 if out.startswith("z") else 64
    return f"{out}[i] = {body}  for i:{axis}"


def test_what_depends_on_another_through_an_operator_is_not_in_its_bundle():
    plan = bundled(program([point("a", "exp(x[i])"), "b = test.twice.default(a)",
                            point("y", "exp(b[i])")], "y"))  # fmt: skip
    assert order(plan) == ["a", "b", "y"]


def test_a_kernel_moves_up_to_the_bundle_that_it_can_join():
    plan = bundled(program([point("a", "exp(x[i])"), "b = test.twice.default(a)",
                            point("za", "exp(z[i])"), "zb = test.twice.default(za)"],
                           "b, zb"))  # fmt: skip
    assert order(plan) == ["a za", "b", "zb"]


def test_a_bundle_moves_down_to_the_kernel_that_can_join_it():
    plan = bundled(program(["b = test.twice.default(x)", point("a", "exp(b[i])"),
                            "zb = test.twice.default(z)", point("za", "exp(zb[i])"),
                            "c = test.twice.default(a)"], "c, za"))  # fmt: skip
    assert order(plan) == ["b", "zb", "a za", "c"]


def test_two_kernels_do_not_meet_when_something_between_needs_one_and_feeds_the_other():
    plan = bundled(program([point("a", "exp(x[i])"), "b = test.twice.default(a)",
                            point("c", "b[i] + 1.0"), "d = test.twice.default(c)",
                            point("za", "exp(z[i])"), "zb = test.twice.default(za)",
                            point("zc", "zb[i] * zb[i]")], "d, zc"))  # fmt: skip
    assert order(plan) == ["a za", "b", "c", "d", "zb", "zc"]


def test_a_kernel_that_overwrites_what_another_reads_stays_behind_it():
    plan = bundled(program([point("a", "exp(x[63 - i])"), "b = test.twice.default(a)",
                            point("x", "x[i] * 2.0")], "b"))  # fmt: skip
    assert order(plan) == ["a", "b", "x"]


def test_what_a_bundle_touches_lives_at_the_same_time():
    """Each of these temporaries could have the slot of one before, if they were made in turn."""
    nodes, outs = [], []
    for i in range(4):
        nodes += [point(f"a{i}", f"x[i] + {i}.0"), f"b{i} = test.twice.default(a{i})"]
        outs.append(f"b{i}")
    plan = bundled(program(nodes, ", ".join(outs)).replace("x[i] + ", "x[i] * x[63 - i] + "))
    assert len({s.offset for s in plan.slots}) == len(plan.slots)


def test_members_parameters_and_bytes_of_a_bundle_are_bounded():
    plan = plan_of(on_cuda(tensors(3 * MEMBERS, 2)))
    assert [len(x) for x in launches(plan)] == [MEMBERS] * 3
    for b in plan_of(on_cuda(tensors(40, 20_000))).steps:
        assert sum(2 * 4 * 24 * 20_000 for _ in kernels_of(b)) <= BYTES
    sums = [f"x{i}: f32[16] input" for i in range(400)] + [f"y{i}: f32[16]" for i in range(40)]
    for i in range(40):
        parts = " + ".join(f"x{10 * i + j}[i]" for j in range(10))
        sums.append(f"y{i}[i] = {parts}  for i:16")
    sums.append("return " + ", ".join(f"y{i}" for i in range(40)))
    wide = plan_of(on_cuda("\n".join(sums) + "\n")).steps
    assert all(len(b.args) <= PARAMS for b in wide) and len(wide) == 2


def test_different_bodies_of_a_bundle_are_bounded():
    lines, nests, outs = [], [], []
    for i in range(20):
        lines += [f"x{i}: f32[{8 + i}] input", f"y{i}: f32[{8 + i}]"]
        nests.append(f"y{i}[i] = {'exp(' * i}x{i}[i]{')' * i} + 1.0  for i:{8 + i}")
        outs.append(f"y{i}")
    plan = plan_of(on_cuda("\n".join([*lines, *nests, f"return {', '.join(outs)}", ""])))
    assert [len(x) for x in launches(plan)] == [8, 8, 4]


@pytest.mark.parametrize("layers", [3, 7])
def test_equal_layers_are_bundled_alike(layers):
    lines, nodes, last = ["h: f32[64] input"], [], "h"
    for n in range(layers):
        names = [f"q{n}", f"k{n}", f"v{n}"]
        lines += [f"{b}: f32[64]" for m in names for b in (f"m{m}", m, f"t{m}")]
        lines += [f"w{n}: f32[64] input"] + [f"{b}{n}: f32[64]" for b in "pos"]
        nodes += [f"p{n}[i] = w{n}[i] * 3.0  for i:64", f"o{n} = test.twice.default(p{n})"]
        for m in names:
            nodes += [f"m{m} = test.twice.default({last})", f"{m}[i] = exp(m{m}[63 - i])  for i:64"]
        nodes += [f"t{m} = test.twice.default({m})" for m in names]
        nodes += [f"s{n}[i] = tq{n}[i] + tk{n}[i] + tv{n}[i] + o{n}[i]  for i:64"]
        last = f"s{n}"
    source = "\n".join([*lines, *nodes, f"return {last}", ""])
    found = order(plan_of(on_cuda(source)))
    wanted = [" ".join(f"{b}{n}" for b in "kqv") for n in range(layers)]
    assert [x for x in found if x in wanted] == wanted
    assert " ".join(sorted(f"p{n}" for n in range(layers))) in found


NARROW_AND_WIDE = """
x: f32[256, 1024] input
z: f32[8] input
s: f32[256]
y: f32[8]
s[i] = max over j:1024 of x[i, j]  for i:256
y[i] = z[i] + 1.0  for i:8
return s, y
"""


def test_a_kernel_of_few_blocks_runs_with_the_warps_of_a_larger_one():
    (b,) = plan_of(on_cuda(NARROW_AND_WIDE)).steps
    tiles = [(k.name, k.tile.points, k.tile.warps) for k in b.kernels]
    assert tiles == [("k0", 1, 4), ("k1", 32, 4)]


def test_idle_warps_are_few(monkeypatch):
    monkeypatch.setattr(bundle, "SPARE", 3)
    assert len(launches(plan_of(on_cuda(NARROW_AND_WIDE)))) == 2
