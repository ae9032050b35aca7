"""Random matrices in every layout that a product can read where it is."""

from __future__ import annotations

import torch

LAYOUTS = ("rows", "columns", "rows with gaps", "columns with gaps")


def laid_out(m: int, n: int, layout: str, dtype: torch.dtype, batch: int) -> torch.Tensor:
    """[batch, m, n]; gaps of 8 elements, which keep rows as aligned as they were."""
    by_columns, gap = layout.startswith("columns"), 8 if layout.endswith("gaps") else 0
    rows, columns = (n, m) if by_columns else (m, n)
    t = torch.randn(batch, rows, columns + gap, device="cuda").to(dtype)[..., :columns]
    return t.transpose(1, 2) if by_columns else t


def matrix(m: int, n: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    return laid_out(m, n, layout, dtype, 1)[0]
