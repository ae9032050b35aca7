"""flex_attention and the masks that it takes: ordinary operators around the user's functions."""

from __future__ import annotations

from torch._functorch import apis
from torch._higher_order_ops.flex_attention import flex_attention as flex_operator
from torch.nn.attention import flex_attention as flex

from torchweld.capture import attention
from torchweld.capture.functions.transforms import partial_of
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont
from torchweld.capture.tables import function, method
from torchweld.capture.values.base import Const, Value

Args = list[Value]
Kwargs = dict[str, Value]


# the dimensions that each vmap walks along: key, query, head, batch
_WALKS = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None),
          (0, None, None, None))  # fmt: skip


@function(attention.over_positions)
def over_positions(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A function under four vmaps, in which an item of a tensor may be looked up by position."""
    fn, *given = args
    for dims in _WALKS:
        walked = (0,) * (len(given) - len(dims)) + dims
        fn = partial_of(apis.vmap, (("in_dims", walked), ("out_dims", 0)), fn)
    made: Args = []
    cap.builder.by_position += 1
    try:
        cap.call(fn, given, {}, made.append)
    finally:
        cap.builder.by_position -= 1
    cap.deliver(made[0], cont)


@method(type(flex_operator), "__call__")
def attend(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """What flex_attention calls where it is compiled."""
    cap.call(Const(attention.flex_attention), args[1:], kwargs, cont)


@function(flex.create_mask)
def create_mask(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.call(Const(attention.create_mask), args, kwargs, cont)
