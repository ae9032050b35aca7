"""Kernels that share a launch: their text, what it computes, what Triton makes of it."""

import copy
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.codegen.tile_plans import agree, check_tiles
from tests.codegen.tile_runs import TileRun, ptx_of
from tests.ir.small_kernels import small_kernels
from tests.ir.strategies import EXTERNS, inputs_of

from torchweld.base.config import Config
from torchweld.codegen.run import generate
from torchweld.fuse.run import fuse
from torchweld.ir.loop_eval import evaluate
from torchweld.ir.loop_text import parse as parse_graph
from torchweld.ir.plan import Bundle
from torchweld.ir.plan_eval import evaluate_plan
from torchweld.ir.plan_text import parse

# an optimizer's step: a scale for all, tensors of three sizes, one of them not a whole block
STEP = """
lr: f32[1] input
{buffers}
return
plan
bundle b0 of {count}
{kernels}
arena 0
"""
SIZES = (2048, 4096, 5000)


def step(sizes=SIZES, tile=1024, device=""):
    """One kernel per tensor: p -= lr * g."""
    buffers = "\n".join(
        f"p{i}: f32[{n}]{device} input\ng{i}: f32[{n}]{device} input" for i, n in enumerate(sizes)
    )
    kernels = "\n".join(
        f"kernel k{i} grid i:{n} tile {tile} 1 warps 4 args p{i}, lr, g{i}\n  stage\n"
        f"    p{i}[i] = p{i}[i] - lr[0] * g{i}[i]  for i:{n}" for i, n in enumerate(sizes)
    )
    return STEP.format(buffers=buffers, kernels=kernels, count=len(sizes))


MIXED = """
x: f32[5, 37] input
w: bf16[24, 16] input
ids: i64[7] input
s: f32[5]
v: bf16[16, 24]
y: f32[7]
return s, v, y
plan
bundle b0 of 3
kernel rows grid i:5 tile 2 16 warps 4 args x, s
  stage j:37
    s[i] = sum over j:37 of x[i, j] * x[i, j]  for i:5
kernel turn grid i:16, j:24 tile 128 1 warps 4 args w, v
  stage
    v[i, j] = w[j, i]  for i:16, j:24
kernel pick grid i:7 tile 8 1 warps 4 args x, ids, y
  stage
    y[i] = x[<check_index(ids[i], 5) in 0..4>, 3]  for i:7
fresh s, v, y
arena 0
"""


def only(source):
    (artifact,) = generate(parse(source)).artifacts
    return artifact


@pytest.mark.parametrize("name", ["step", "mixed"])
def test_bundle(golden, name):
    golden(only(step() if name == "step" else MIXED).source, "triton")


def test_parts_of_different_form_compute_what_their_kernels_say():
    (artifact,) = check_tiles(MIXED, ids=[4, 0, 3, 1, 2, 4, 0])
    assert artifact.source.count("@triton.jit") == 4


def test_an_index_out_of_range_is_found_in_a_part():
    with pytest.raises(IndexError):
        check_tiles(MIXED, ids=[4, 0, 3, 5, 2, 4, 0])


@pytest.mark.parametrize("sizes", [(64, 64, 64, 64, 64), (40, 7, 64, 129, 1, 300, 64), (9, 9)])
def test_tensors_of_any_sizes_share_a_text(sizes):
    check_tiles(step(sizes, tile=32))


def test_the_text_does_not_grow_with_tensors_but_for_their_pointers():
    few, many = only(step(SIZES * 2)).source, only(step(SIZES * 20)).source
    assert few.count("@triton.jit") == many.count("@triton.jit") == 3
    assert few.count("tl.load") == many.count("tl.load")
    assert re.search(r"def bundle_\w+\(t0, t1, t2, t3", many)
    depth = max(len(line) - len(line.lstrip()) for line in many.splitlines())
    assert depth <= 4 * 8


def test_kernels_that_differ_in_the_types_of_their_pointers_do_not_share_a_text():
    copies = "\n".join(
        f"kernel k{i} grid i:64 tile 32 1 warps 4 args x{i}, y{i}\n  stage\n"
        f"    y{i}[i] = x{i}[i]  for i:64" for i in range(2)
    )
    source = (
        "x0: f32[64] input\nx1: i64[64] input\ny0: f32[64]\ny1: i64[64]\nreturn y0, y1\nplan\n"
        f"bundle b0 of 2\n{copies}\nfresh y0, y1\narena 0\n"
    )
    (artifact,) = check_tiles(source)
    assert artifact.source.count("@triton.jit") == 3 and ".entry" in ptx_of(artifact)


def test_numbers_of_the_host_are_passed_by_value():
    source = step(device=' on "cuda:0"')
    kinds = dict(only(source).options)["signature"].split()
    assert kinds == ["*fp32:16", "fp32", *["*fp32:16"] * 5]


@pytest.mark.parametrize("arch", [80, 90])
def test_pointers_that_branches_choose_are_still_read_16_bytes_at_a_time(arch):
    found = ptx_of(only(step((2048, 4096, 5008, 6000 - 48))), arch)
    assert set(re.findall(r"(?:ld|st)\.global\S*", found)) >= {"ld.global.v4.b32"}
    assert "st.global.v4.b32" in found and not re.search(r"st\.global\.b32", found)


@pytest.mark.parametrize("arch", [80, 90])
def test_parts_of_different_form_compile(arch):
    assert ".visible .entry bundle" in ptx_of(only(MIXED), arch)


def test_a_launch_has_the_blocks_of_all_parts_and_each_tensor_once():
    (launch,) = generate(parse(step())).steps
    assert launch.blocks == 2 + 4 + 5 and len(launch.args) == 7


def test_equal_bundles_are_one_function():
    one = step((64, 64), 32)
    head, _, rest = one.partition("bundle")
    again = rest.replace("b0", "b1").replace("k0", "k2").replace("k1", "k3")
    again = again.removesuffix("arena 0\n")
    program = generate(parse(head + "bundle" + again + "bundle" + rest))
    assert len(program.artifacts) == 1 and len(program.steps) == 2


def test_a_bundle_whose_kernels_depend_on_each_other_is_refused_by_the_evaluator():
    bad = step((8, 8), 8).replace("- lr[0] * g1[i]", "- lr[0] * p0[i]").replace(
        "args p1, lr, g1", "args p1, lr, p0")  # fmt: skip
    with pytest.raises(Exception, match=r"race in bundle b0: k\d touches what k\d writes"):
        evaluate_plan(parse(bad), [[1.0], *[[1.0] * 8] * 4])


SETTINGS = settings(deadline=None, max_examples=40, derandomize=True, database=None,
                    phases=[Phase.generate], suppress_health_check=list(HealthCheck))  # fmt: skip


def test_random_small_kernels_that_share_launches_compute_what_the_graph_says():
    bundles = []

    @SETTINGS
    @given(small_kernels(), st.data())
    def agrees(source, data):
        g = parse_graph(source)
        inputs = data.draw(inputs_of(g))
        mine, theirs = copy.deepcopy(inputs), copy.deepcopy(inputs)
        want = evaluate(g, theirs, EXTERNS)
        plan = fuse(g, Config(interpret=True, verify=True))
        program = generate(plan)
        bundles.extend(s for s in plan.steps if isinstance(s, Bundle))
        got = TileRun(program, g, mine, EXTERNS).outputs
        agree(g, program, got, want, mine, theirs)

    agrees()
    assert len(bundles) > 20


def test_parts_that_draw_random_numbers_compile():
    lines = ["seed: i64[] input", "block: i64[] input"]
    for i, n in enumerate((200, 300)):
        lines.append(f'y{i}: i64[{n}] on "cuda:0"')
    for i, n in enumerate((200, 300)):
        word = f"philox(seed[], block[], index(i), {i})"
        lines.append(f"y{i}[i] = {word}  for i:{n}")
    g = parse_graph("\n".join([*lines, "return y0, y1", ""]))
    (artifact,) = generate(fuse(g, Config(verify=True))).artifacts
    assert artifact.functions[0].startswith("bundle")
    assert dict(artifact.options)["signature"] == "i64 i64 *i64:16 *i64:16"
    assert ".entry bundle" in ptx_of(artifact)
