"""Triton kernels of symbolic sizes: interpreted over many sizes, and compiled once."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.codegen.tile_runs import ptx_of
from tests.runtime.sized_graphs import BOTH, GRAPHS, program_of

from torchweld.ir.program import Alloc, GridLaunch

ROOT = Path(__file__).resolve().parents[2]
LARGE = BOTH.replace("hint 8", "hint 4096").replace("hint 16", "hint 4096")


def test_kernels_give_the_same_over_many_sizes_in_the_interpreter():
    env = os.environ | {"TORCHWELD_INTERPRET": "1", "TRITON_INTERPRET": "1"}
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    script = Path(__file__).with_name("interpreted_sizes.py")
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{name}; triton" for name in GRAPHS]


@pytest.mark.parametrize("name", ["softmax", "columns", "heads", "positions and scans"])
def test_kernels_compile_without_knowing_a_size(name):
    program = program_of(LARGE + GRAPHS[name], interpret=True)
    (artifact,) = program.artifacts
    assert ".visible .entry" in ptx_of(artifact, 80)
    assert dict(artifact.options)["signature"].endswith(" i64 i64")


def test_rows_that_begin_anywhere_are_loaded_16_bytes_at_a_time():
    (artifact,) = program_of(LARGE + GRAPHS["softmax"], interpret=True).artifacts
    loads = re.findall(r"ld\.global\S*", ptx_of(artifact, 90))
    assert loads
    assert all(".v4.b32" in x for x in loads)


def test_blocks_are_counted_for_the_sizes_of_a_call_and_offsets_are_kept_below_32_bits():
    program = program_of(LARGE + GRAPHS["pointwise"], interpret=True)
    (at,) = (k for k, s in enumerate(program.steps) if isinstance(s, GridLaunch))
    assert ("blocks", at) in [(p.what, p.at) for p in program.sizes.patches]
    assert program.sizes.limits


def text_of(name):
    return program_of(LARGE + GRAPHS[name], interpret=True).artifacts[0].source


def test_a_tensor_that_is_gone_through_as_a_whole_is_read_at_the_position_itself():
    text = text_of("channels")
    assert "tl.load(t1 + p," in text and "tl.store(t2 + p," in text
    assert "tl.store(t1 + p, " in text_of("heads")


def test_positions_of_a_block_are_divided_by_a_size_once():
    ptx = ptx_of(program_of(LARGE + GRAPHS["heads"], interpret=True).artifacts[0], 90)
    label = r"@\S+ bra"  # what stands behind the branch is for sizes smaller than a block
    fast = re.split(label, ptx)[0]
    assert len(re.findall(r"div\.u32", fast)) <= 2 and "div.s32" not in ptx


def test_halves_put_together_are_one_kernel_without_memory_of_their_own():
    for name in ("rotated halves", "one behind the other"):
        program = program_of(LARGE + GRAPHS[name], interpret=True)
        assert sum(isinstance(s, GridLaunch) for s in program.steps) == 1
        assert sum(isinstance(s, Alloc) for s in program.steps) == 1


def test_a_value_that_is_there_already_is_not_loaded_again_under_a_condition():
    assert text_of("negative or not").count("tl.load") == 1
