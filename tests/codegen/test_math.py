"""The header's functions against double precision: all exponents, special values, random points.

The bounds are the table in weld_vec_math.h.
"""

import ctypes
import math
import re
from functools import cache
from pathlib import Path

import pytest
from tests.codegen.launcher import INCLUDE, compile_text

from torchweld.codegen.run import CXX_FLAGS

POINTS = 400_000
TABLE = (INCLUDE / "weld_vec_math.h").read_text().split("//\n")[2]
BOUNDS = {name: float(b) for name, b in re.findall(r"(\w+) (\d\.\d)", TABLE)}


class Result(ctypes.Structure):
    _fields_ = (("worst", ctypes.c_double), ("at", ctypes.c_float), ("wrong", ctypes.c_int64),
                ("wrong_at", ctypes.c_float))  # fmt: skip


@cache
def library(march):
    source = (Path(__file__).parent / "math_check.cpp").read_text()
    return ctypes.CDLL(str(compile_text(source, CXX_FLAGS, march=march)))


def measure(march, name, *first):
    result = Result()
    args = [ctypes.c_float(x) for x in first]
    getattr(library(march), f"check_{name}")(
        *args, ctypes.c_int64(POINTS), ctypes.byref(result)
    )
    assert result.wrong == 0, f"{name} is wrong {result.wrong} times, as at {result.wrong_at!r}"
    return result


def test_the_table_names_every_function_that_is_not_simply_libm():
    assert len(BOUNDS) == 22


@pytest.mark.parametrize("march", ["native", "haswell"])
@pytest.mark.parametrize("name", sorted(BOUNDS.keys() - {"pow"}))
def test_error_in_ulp(name, march):
    result = measure(march, name)
    assert result.worst <= BOUNDS[name], f"{result.worst} at {result.at!r}"


@pytest.mark.parametrize("y", [3.0, -2.5, 0.5, 2.0, 17.0, -1.0, 1.3e5, 0.0, math.inf, -1e30,
                               math.nan])  # fmt: skip
def test_powers_of_everything(y):
    assert measure("native", "pow_to", y).worst <= BOUNDS["pow"]


@pytest.mark.parametrize("base", [1.3, -2.0, -1.0, 1.0, 0.0, -0.0, math.inf, -math.inf, 1e-40])
def test_everything_as_exponent(base):
    assert measure("haswell", "pow_of", base).worst <= BOUNDS["pow"]


def test_the_documented_table_is_the_header_s():
    page = (Path(__file__).parents[2] / "docs" / "codegen.md").read_text()
    documented = {name: float(b) for name, b in re.findall(r"\| (\w+) \| (\d\.\d) ", page)}
    assert documented == {name: b for name, b in BOUNDS.items() if name != "sqrt"}
