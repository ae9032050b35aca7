"""The machines that fusion knows, one row each."""

from __future__ import annotations

from torchweld.base.config import Config
from torchweld.fuse.group import Group
from torchweld.fuse.split import cut_for_threads
from torchweld.fuse.split_gpu import cut_for_blocks
from torchweld.fuse.stages import stages_of
from torchweld.fuse.target import Form, Machine, Target
from torchweld.fuse.tile import divide
from torchweld.fuse.tile_gpu import any_order, block_form, divide_blocks, shared_tiles, tile_of
from torchweld.ir.loop import Buffer, Nest
from torchweld.ir.plan import Kernel

ROW_BYTES = 256 << 10  # row locals of one kernel, per thread


def _thread_form(g: Group, outside: frozenset[Buffer]) -> Form:
    return Form(g, stages_of(g), ROW_BYTES)


def _in_order(n: Nest) -> bool:
    return False


def _no_tile(k: Kernel, form: Form) -> None:
    return None


# one core of a server CPU of 2021 (20 GB/s, 20 Gop/s vectorised); only the ratio matters
CPU = Target(
    name="cpu", ns_per_byte=0.05, ns_per_flop=0.05, ns_per_launch=2000.0, cheap_flops=4,
    min_rows=8, row_work=256 << 10, work_per_row=0, few_points=64 << 10, partial_rows=64,
    sector=0, piece_rows=False, vector=True, join_pieces=False, finish_rows=False,
    side_bytes=0, recompute=False, parts=False, align=64, apart=None,
    cut=cut_for_threads, form=_thread_form, divide=divide, tile=_no_tile, parallel=_in_order,
    share=None,
)  # fmt: skip


# one H200; flops are those of f32 arithmetic outside of the tensor cores. A kernel in a CUDA graph
# starts about 1 us after the one before it, and its ramp costs as much again. A multiprocessor
# moves 30 bytes per ns, 45 KB in the time that one kernel more costs.
GPU = Target(
    name="gpu", ns_per_byte=0.00025, ns_per_flop=0.00004, ns_per_launch=2000.0, cheap_flops=8,
    min_rows=132, row_work=0, work_per_row=45_000, few_points=16 << 10, partial_rows=64,
    sector=32, piece_rows=False, vector=False, join_pieces=True, finish_rows=True,
    side_bytes=4 << 20, recompute=True, parts=True, align=512, apart=1 << 20,
    cut=cut_for_blocks, form=block_form, divide=divide_blocks, tile=tile_of, parallel=any_order,
    share=shared_tiles,
)  # fmt: skip


def machine_of(cfg: Config) -> Machine:
    """The target of each device."""
    if cfg.interpret:
        return lambda device: GPU
    return lambda device: GPU if device.startswith("cuda") else CPU
