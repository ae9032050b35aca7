"""Recurrent layers that run in a library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchweld.graph.decomps.table import decomposes
from torchweld.ir.recurrent import LSTM_LAYER


@decomposes(torch.ops.aten.mkldnn_rnn_layer.default)
def layer(input: Tensor, *args: Any) -> Any:
    return NotImplemented if input._has_symbolic_sizes_strides else LSTM_LAYER(input, *args)
