"""A layer of an LSTM on a CPU, with what its library keeps for the backward.

aten.mkldnn_rnn_layer keeps that where grad mode is on, whatever its argument `train` says; but a
compiled forward runs where it is off. How much is kept, only the library knows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torchweld.ir.predicted import below_functionalization

_LAYER: Any = torch.ops.aten.mkldnn_rnn_layer.default
_LIBRARY: Any = torch.library.Library


def _real(*args: Any) -> tuple[Tensor, ...]:
    with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad():
        made: tuple[Tensor, ...] = _LAYER(*args)
        return made


def _fake(*args: Any) -> tuple[Tensor, ...]:
    """Errors: NotImplementedError where sizes vary."""
    if any(isinstance(x, Tensor) and x._has_symbolic_sizes_strides for x in args):
        raise NotImplementedError("a layer of an LSTM whose sizes vary")
    out, hidden, cell, _ = _LAYER(*args)
    key = tuple((tuple(x.shape), x.stride(), x.dtype) if isinstance(x, Tensor) else
                tuple(x) if isinstance(x, list) else x for x in args)  # fmt: skip
    return out, hidden, cell, args[0].new_empty(_kept(key), dtype=torch.uint8)


@lru_cache(maxsize=256)
def _kept(key: tuple[Any, ...]) -> int:
    """How many bytes the library keeps. Cost: the layer itself, on zeros."""
    with below_functionalization(), torch._C._DisableTorchDispatch():
        args = [torch.empty_strided(x[0], x[1], dtype=x[2]).zero_() if _is_layout(x) else
                list(x) if isinstance(x, tuple) else x for x in key]  # fmt: skip
        return int(_real(*args)[3].numel())


def _is_layout(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 3 and isinstance(x[2], torch.dtype)


_library = _LIBRARY("torchweld", "FRAGMENT")
_library.define(str(_LAYER._schema).replace("aten::mkldnn_rnn_layer", "lstm_layer"))
_library.impl("lstm_layer", _real, "CompositeExplicitAutograd")
torch.library.register_fake("torchweld::lstm_layer", _fake, lib=_library)
LSTM_LAYER: Any = torch.ops.torchweld.lstm_layer.default
