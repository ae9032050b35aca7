"""8-bit floats in C++ kernels: exact casts, and codes that are moved as they are."""

import pytest
from tests.codegen.float8_plans import CAST, MOVE, NAMES, QUANTISE, codes, floats, numbers
from tests.codegen.kernels import check

LANES = "lanes l:{n}"


def plan(source, target, n):
    return CAST.format(source=source, target=target, n=n, loop=LANES.format(n=n))


@pytest.mark.parametrize("march", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("target", NAMES)
def test_f32_rounds_to_the_nearest_code(target, march):
    check(plan("f32", target, 4000), march=march, x=floats(4000))


@pytest.mark.parametrize("march", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("source", NAMES)
def test_every_code_is_read_exactly(source, march):
    check(plan(source, "f32", 256), march=march, x=codes(source))


@pytest.mark.parametrize("source", ["f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"])
@pytest.mark.parametrize("target", ["f8e4m3fn", "f8e5m2"])
def test_other_types_round_through_f32(source, target):
    x = numbers(source)
    check(plan(source, target, len(x)), x=x)


@pytest.mark.parametrize("target", ["f64", "f16", "bf16", "i64", "i32", "i8", "u8", "bool",
                                    "f8e5m2", "f8e4m3fnuz"])  # fmt: skip
def test_codes_become_other_types(target):
    check(plan("f8e4m3fn", target, 256), x=codes("f8e4m3fn"))


def test_rows_are_quantised():
    text = QUANTISE.format(rows=5, n=75, target="f8e4m3fn", tile="")
    assert "to_f8e4m3fn" in check(text)


@pytest.mark.parametrize("dtype", NAMES)
def test_codes_are_moved_without_being_read(dtype):
    source = check(MOVE.format(dtype=dtype, loop="lanes l:40", fill=f"1.5:{dtype}"),
                   at=[*range(39, -1, -1)])  # fmt: skip
    assert "from_f8" not in source and "to_f8" not in source
