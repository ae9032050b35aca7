"""8-bit floats in Triton kernels: the same casts, with and without instructions for them."""

import re

import pytest
from tests.codegen.float8_plans import CAST, MOVE, NAMES, QUANTISE, codes, floats, numbers
from tests.codegen.tile_plans import check_tiles
from tests.codegen.tile_runs import ptx_of

from torchweld.codegen.run import generate
from torchweld.ir.plan_text import parse


def plan(source, target, n, tile="128 1"):
    loop = f"grid l:{n} tile {tile} warps 1"
    return CAST.format(source=source, target=target, n=n, loop=loop)


def ptx(text, arch):
    (artifact,) = generate(parse(text)).artifacts
    return ptx_of(artifact, arch)


@pytest.mark.parametrize("target", NAMES)
def test_f32_rounds_to_the_nearest_code(target):
    check_tiles(plan("f32", target, 4000, "1024 1"), x=floats(4000))


@pytest.mark.parametrize("source", NAMES)
def test_every_code_is_read_exactly(source):
    check_tiles(plan(source, "f32", 256), x=codes(source))


@pytest.mark.parametrize(("source", "target"), [
    ("f64", "f8e5m2"), ("bf16", "f8e4m3fn"), ("i64", "f8e4m3fn"), ("u8", "f8e5m2"),
    ("bool", "f8e4m3fn"),
])  # fmt: skip
def test_other_types_round_through_f32(source, target):
    x = numbers(source)
    check_tiles(plan(source, target, len(x)), x=x)


@pytest.mark.parametrize("target", ["f64", "f16", "bf16", "bool", "f8e5m2"])
def test_codes_become_other_types(target):
    check_tiles(plan("f8e4m3fn", target, 256), x=codes("f8e4m3fn"))


@pytest.mark.parametrize("tile", ["1 128", "4 32", "8 1"])
def test_rows_are_quantised(tile):
    check_tiles(QUANTISE.format(rows=5, n=75, target="f8e5m2", tile=f"tile {tile} warps 4 "))


@pytest.mark.parametrize("dtype", NAMES)
def test_codes_are_moved_without_being_read(dtype):
    loop = "grid l:40 tile 16 1 warps 1"
    (artifact,) = check_tiles(MOVE.format(dtype=dtype, loop=loop, fill=f"-0.5:{dtype}"),
                              at=[*range(39, -1, -1)])  # fmt: skip
    assert "_f8" not in artifact.source


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(("source", "target"), [
    *(("f32", name) for name in NAMES), *((name, "bf16") for name in NAMES),
])  # fmt: skip
def test_casts_compile(source, target, arch):
    found = set(re.findall(r"cvt\S*e[45]m\S*", ptx(plan(source, target, 4096, "1024 1"), arch)))
    assert not found or arch == 90


@pytest.mark.parametrize("n", [1, 3, 4096])
@pytest.mark.parametrize(("target", "instruction"), [
    ("f8e4m3fn", "cvt.rn.satfinite.e4m3x2.f32"), ("f8e5m2", "cvt.rn.satfinite.e5m2x2.f32"),
])  # fmt: skip
def test_a_gpu_with_the_instruction_rounds_f32_at_once(target, instruction, n):
    tile = f"{1024 if n > 1024 else n} 1" if n != 3 else "4 1"
    for arch in (89, 90):
        assert instruction in ptx(plan("f32", target, n, tile), arch)


def test_rows_of_codes_are_loaded_and_stored_16_bytes_at_a_time():
    text = ptx(plan("f8e4m3fn", "f8e5m2", 1 << 20, "2048 1"), 80)
    assert "ld.global.v4.b32" in re.sub(r"\.L\w+::\w+(\.\w+)?", "", text)
    assert "st.global.v4.b32" in text


def test_quantised_rows_compile():
    text = QUANTISE.format(rows=64, n=4096, target="f8e4m3fn", tile="tile 1 4096 warps 4 ")
    assert "cvt.rn.satfinite.e4m3x2.f32" in ptx(text, 90)
    assert "e4m3" not in ptx(text, 80)
