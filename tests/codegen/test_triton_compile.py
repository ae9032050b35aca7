"""Every form of tile kernel goes through Triton's compiler and ptxas; rows are loaded wide."""

import re

import pytest
from tests.codegen.test_triton_kernels import COLUMNS, CROSS_ENTROPY, ROWS, SCAN, SCATTER
from tests.codegen.test_triton_kernels import SOFTMAX as SMALL_SOFTMAX
from tests.codegen.tile_plans import plain_tiles
from tests.codegen.tile_runs import ptx_of
from tests.codegen.tile_texts import TEXTS

from torchweld.codegen.run import generate
from torchweld.ir.loop_text import parse as parse_graph
from torchweld.ir.plan import Tile
from torchweld.ir.plan_text import parse

WIDE = ["gelu_chain", "softmax", "rms_norm", "layer_norm", "cross_entropy", "column_sum"]


def ptx(text, arch=90):
    (artifact,) = generate(parse(text)).artifacts
    return ptx_of(artifact, arch)


@pytest.mark.parametrize("name", WIDE)
def test_rows_are_loaded_16_bytes_at_a_time(name):
    found = set(re.findall(r"(ld\.global)\S*(\.v4\.b32)", ptx(TEXTS[name])))
    assert found == {("ld.global", ".v4.b32")}


@pytest.mark.parametrize("name", ["gelu_chain", "softmax", "rms_norm", "layer_norm"])
def test_rows_are_stored_16_bytes_at_a_time(name):
    found = set(re.findall(r"st\.global\S*", ptx(TEXTS[name])))
    assert found == {"st.global.v4.b32"}


FORMS = {
    "row": ROWS.format(rows=5, n=37, kind="sum", out="bf16", dtype="bf16", tile="1 64"),
    "rows": ROWS.format(rows=5, n=37, kind="argmin", out="i64", dtype="f16", tile="4 64"),
    "row in steps": ROWS.format(rows=5, n=37, kind="argmax", out="i64", dtype="u8", tile="1 16"),
    "rows in steps": ROWS.format(rows=5, n=37, kind="any", out="bool", dtype="bool", tile="4 8"),
    "column": COLUMNS.format(rows=33, n=20, kind="max", out="f32", tile="64 2"),
    "column by column": COLUMNS.format(rows=33, n=20, kind="prod", out="f32", tile="16 1"),
    "online, one lane": SMALL_SOFTMAX.format(rows=5, n=50, dtype="f16", tile="4 1"),
    "online, shifted": SMALL_SOFTMAX.format(rows=5, n=301, dtype="f16", tile="4 64"),
    "checked": CROSS_ENTROPY.format(tile="4 8"),
    "embedding": TEXTS["embedding"],
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_compile(form):
    assert ".visible .entry" in ptx(FORMS[form], 80)


@pytest.mark.parametrize("tile", [Tile(1, 32), Tile(2, 8, stages=2)])
@pytest.mark.parametrize("kind", ["scan_sum", "scan_max"])
def test_scans_compile(kind, tile):
    graph = parse_graph(SCAN.format(dtype="f32", kind=kind))
    (artifact,) = generate(plain_tiles(graph, tile)).artifacts
    assert ptx_of(artifact)


@pytest.mark.parametrize("shape", ["", "i:40, j:32", "i:24, j:32"])
def test_swapping_works_for_a_number_and_where_a_mask_covers_one_axis(shape):
    axes = f"  for {shape}" if shape else ""
    graph = parse_graph(f"""
x: bf16[40, 32] input
at: i64[40] input
y: bf16[10] input

y[<check_index(at[{"i" if shape else 0}], 10) in 0..9>] max= x[{"i, j" if shape else "0, 0"}]{axes}

return y
""")
    (artifact,) = generate(plain_tiles(graph, Tile(512))).artifacts
    assert "atom" in ptx_of(artifact)


@pytest.mark.parametrize(("dtype", "mode"), [("bf16", "+="), ("f32", "+="), ("bf16", "max="),
                                             ("f64", "*="), ("i32", "min=")])  # fmt: skip
def test_atomics_compile(dtype, mode):
    graph = parse_graph(SCATTER.format(dtype=dtype, mode=mode))
    (artifact,) = generate(plain_tiles(graph, Tile(64))).artifacts
    for arch in (80, 90):
        assert "atom" in ptx_of(artifact, arch) or "red" in ptx_of(artifact, arch)
