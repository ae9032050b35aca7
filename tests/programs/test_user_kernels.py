"""Triton kernels that the user wrote are launches in the graph."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from torchweld.capture.kernel_writes import written_parameters

HERE = Path(__file__).parent
ANSWERS = {
    "fills": "1 graphs, 1 calls, no break",
    "in_place": "1 graphs, 2 calls, no break",
    "twice": "1 graphs, 2 calls, no break",
    "by_tuning": "1 graphs, 1 calls, no break",
    "by_operator": "1 graphs, 1 calls, no break",
    "one_tensor": "1 graphs, 1 calls, no break",
    "part": "0 graphs, 0 calls, a Triton kernel gets what it writes to under two names",
    "returned": "0 graphs, 0 calls, what the launch of a Triton kernel returns is looked at",
    "with_gradients": "1 graphs, 2 calls, 0 in ATen",
    "past_gradients": "1 graphs, 1 calls, 0 in ATen",
    "blanks": "[[2]]",
}


def test_launches_are_calls_of_the_graph_that_write_to_their_tensors():
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, str(HERE / "user_kernels.py")], env=env,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert dict(line.split(": ", 1) for line in done.stdout.splitlines()) == ANSWERS, done.stderr


tl = types.ModuleType("triton.language")


def stores(x_ptr, y_ptr, out_ptr, n):
    i = tl.arange(0, 16) + n
    tl.store(out_ptr + i, tl.load(x_ptr + i) + tl.load(y_ptr + tl.load(x_ptr)))


def moves(x_ptr, out_ptr, n):
    for _ in range(n):
        p = x_ptr
        x_ptr += 1
        q = p + 1
    tl.atomic_add(q, tl.load(out_ptr))


def hands_on(x_ptr, y_ptr):
    stores(x_ptr, 0, 0, tl.load(y_ptr))


def describes(x_ptr, out_ptr, n):
    a, b = tl.make_tensor_descriptor(x_ptr, [n]), tl.make_tensor_descriptor(out_ptr, [n])
    b.store([0], a.load([0]))


def casts(x_ptr, table_ptr):
    p = tl.load(table_ptr).to(tl.pointer_type(tl.float32))
    tl.store(p, tl.load(x_ptr))


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (stores, {"out_ptr", "n"}),
        (moves, {"x_ptr"}),
        (hands_on, {"x_ptr"}),
        (describes, {"out_ptr", "n"}),
        (casts, {"x_ptr", "table_ptr"}),
    ],
)
def test_what_a_kernel_may_write_to_is_in_its_source(kernel, written):
    assert written_parameters(kernel) >= written
    assert {n for n in written_parameters(kernel) if n.endswith("_ptr")} == {
        n for n in written if n.endswith("_ptr")}  # fmt: skip
