"""The C++ text of three kernels, as somebody reads it."""

from tests.codegen.test_kernels import COLUMNS, GATHER, SOFTMAX

from torchweld.codegen.run import generate
from torchweld.ir.plan_text import parse


def source(text):
    return generate(parse(text)).artifacts[0].source


def test_softmax(golden):
    golden(source(SOFTMAX.format(rows=64, n=1000)), "cpp")


def test_column_sum(golden):
    golden(source(COLUMNS.format(rows=64, n=1000, kind="sum", out="f32")), "cpp")


def test_row_gather(golden):
    golden(source(GATHER.format(n=40)), "cpp")
