"""torch.Generator: made, seeded and drawn from before the graph runs; the default generators."""

from __future__ import annotations

from typing import Any

import torch

from torchweld.base.errors import GraphBreak
from torchweld.capture.attrs import mro_lookup
from torchweld.capture.drawn import (
    draw_tensor,
    drawn_input,
    known_before,
    own_copy,
    real_generator,
)
from torchweld.capture.draws import generator_of, may_draw
from torchweld.capture.functions.effects import perform
from torchweld.capture.kernels import is_cython
from torchweld.capture.late import LateNumber
from torchweld.capture.predicates import is_default
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.symbolic import number_value
from torchweld.capture.tables import GETATTR
from torchweld.capture.values.base import (
    NONE,
    BoundValue,
    Const,
    InstanceValue,
    NotConstant,
    TensorValue,
    TupleValue,
    Value,
    constant,
)
from torchweld.capture.values.owned import PreparedValue
from torchweld.ir.graph import DRAWS

Args = list[Value]
Kwargs = dict[str, Value]


class Draw:
    """What calls a function of torch with a generator. named: its other arguments by name."""

    __slots__ = ("fn", "named")

    def __init__(self, fn: Any, named: dict[str, Any]) -> None:
        self.fn = fn
        self.named = named

    def __call__(self, generator: torch.Generator, *args: Any) -> Any:
        return self.fn(*args, generator=generator, **self.named)


class Fill:
    """What fills a new tensor by a method, such as normal_, with a generator."""

    __slots__ = ("device", "dtype", "method", "named")

    def __init__(self, method: str, like: torch.Tensor, named: dict[str, Any]) -> None:
        self.method = method
        self.dtype = like.dtype
        self.device = like.device
        self.named = named

    def __call__(self, generator: torch.Generator, sizes: Any, strides: Any, *args: Any) -> Any:
        made = torch.empty_strided(sizes, strides, dtype=self.dtype, device=self.device)
        return getattr(made, self.method)(*args, generator=generator, **self.named)


# methods that fill a tensor, whatever was in it
_FILLS = ("normal_", "uniform_", "random_", "exponential_", "cauchy_", "log_normal_", "geometric_",
          "bernoulli_")  # fmt: skip


def drawn(cap: Capture, op: str, fn: Any, args: Args, kwargs: Kwargs, cont: Cont | None) -> bool:
    """Whether an operator that is given a generator was recorded. Errors: GraphBreak."""
    generator = kwargs["generator"]
    if isinstance(generator, Const) and generator.cls() is type(None):
        return False
    if is_default(real_generator(generator)):
        rest = {k: v for k, v in kwargs.items() if k != "generator"}
        cap.call(Const(fn), args, rest, cont)
        return True
    if not isinstance(generator, PreparedValue) and real_generator(generator) is None:
        return False
    may_draw(cap)
    named = {k: v for k, v in kwargs.items() if k != "generator"}
    cap.deliver(_filled(cap, fn, generator, args, named) if op == "call_method" else (
        _made(cap, fn, generator, args, named)), cont)  # fmt: skip
    return True


def _depends(cap: Capture) -> GraphBreak:
    return refuse("W107", "what is drawn with a generator depends on tensors", cap.loc(),
                  "draw with torch's default generator, or before the compiled function")


def _constants(cap: Capture, named: Kwargs) -> dict[str, Any]:
    try:
        return {k: constant(cap.unwrap(v)) for k, v in named.items()}
    except NotConstant:
        raise _depends(cap) from None


def _numbers(cap: Capture, args: Args) -> Args:
    """Arguments that are known before the graph runs. Errors: GraphBreak for others."""
    found: Args = []
    for x in map(cap.unwrap, args):
        items = cap.force_items(x.items) if isinstance(x, TupleValue) else None
        if not all(known_before(cap, i) for i in ([x] if items is None else items)):
            raise _depends(cap)
        found.append(x)
    return found


def _made(cap: Capture, fn: Any, generator: Value, args: Args, named: Kwargs) -> Value:
    """A new tensor: torch.rand, randn, randint, randperm, normal with sizes."""
    fixed = _constants(cap, named)
    if fixed.pop("out", None) is not None or fixed.pop("requires_grad", False):
        raise refuse("W107", "a generator with out= or requires_grad=", cap.loc())
    given = [_settled(cap, x) for x in _numbers(cap, args)]
    fakes = [cap.builder.to_fake(x) for x in given]
    mode = cap.builder.mode
    kept, mode.closed = (mode.draws, mode.closed), None
    fake = cap.builder.run("call_function", fn, fakes, fixed, cap.loc())
    mode.draws, mode.closed = kept  # the graph draws nothing here
    if not isinstance(fake, torch.Tensor):
        raise refuse("W107", "a generator with an operator that gives no tensor", cap.loc())
    return own_copy(cap, draw_tensor(cap, fake, generator, Draw(fn, fixed), given))


def _settled(cap: Capture, x: Value) -> Value:
    """A number that varies from call to call as a size, where it may be one."""
    if isinstance(x, LateNumber) and not x.fixed and type(x.now) is int:
        made = cap.sizes.number(x)
        if made is None:
            x.fix()
        return x if made is None else made
    if isinstance(x, TupleValue):
        return TupleValue([_settled(cap, i) for i in cap.force_items(x.items)], x.kind)
    return x


def _filled(cap: Capture, fn: Any, generator: Value, args: Args, named: Kwargs) -> Value:
    """A tensor that a method fills: drawn in its layout, and copied to it."""
    name, x = fn.__name__, args[0]
    if name not in _FILLS or not isinstance(x, TensorValue):
        raise refuse("W107", f"Tensor.{name} with a generator", cap.loc())
    layout = [TupleValue([number_value(n) for n in numbers])
              for numbers in (x.fake.shape, x.fake.stride())]  # fmt: skip
    fill = Fill(name, x.fake, _constants(cap, named))
    fake = cap.builder.run("call_function", torch.empty_like, [x.fake], {}, cap.loc())
    source = draw_tensor(cap, fake, generator, fill, [*layout, *_numbers(cap, args[1:])])
    return cap.builder.call("call_method", "copy_", [x, source], {}, cap.loc())


# ------------------------------------------------------------------ generators made in the frame
def make(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """torch.Generator(device)."""
    may_draw(cap)
    named = _constants(cap, kwargs)
    given = list(_constants(cap, dict(enumerate(args))).values())  # type: ignore[arg-type]
    try:
        device = torch.device(*(given or [named.get("device", "cpu")]))
        twin = torch.Generator(device)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    late = cap.late.draw(twin, torch.Generator, (Const(device),))
    cap.deliver(PreparedValue(late, twin), cont)


def attr(cap: Capture, obj: PreparedValue, name: str, cont: Cont | None) -> None:
    """device, and methods."""
    raw = mro_lookup(obj.klass, name)
    if name == "device" and isinstance(obj.twin, torch.Generator):
        cap.deliver(Const(obj.twin.device), cont)
    elif is_cython(raw):
        cap.deliver(BoundValue(Const(raw), obj), cont)
    else:
        GETATTR[InstanceValue](cap, obj, name, cont)


# ------------------------------------------------------------------ states and seeds
_GENERATOR: Any = torch.Generator


def manual_seed(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """generator.manual_seed(n)."""
    generator, *rest = args
    (seed,) = (*rest, *kwargs.values())
    if not known_before(cap, seed) or not isinstance(seed, Const):
        raise refuse("W107", "a seed that the graph computes", cap.loc())
    _change(cap, generator, _GENERATOR.manual_seed, [generator, seed])
    cap.deliver(generator, cont)


def seed_all(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """torch.manual_seed(n), which gives the default generator."""
    (seed,) = (*args, *kwargs.values())
    if not known_before(cap, seed):
        raise refuse("W107", "a seed that the graph computes", cap.loc())
    default = torch.default_generator
    value = cap.wrap(default, cap.pin(default, "torch.default_generator"))
    _change(cap, value, torch.manual_seed, [seed])
    cap.deliver(value, cont)


def get_state(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """generator.get_state(): before the graph runs, which may not have drawn yet."""
    may_draw(cap)
    (generator,) = args
    real = real_generator(generator)
    if real is not None and is_default(real):
        if _draws(cap):
            raise refuse("W106", "the state of a generator that the graph draws from", cap.loc())
    elif real is None and not isinstance(generator, PreparedValue):
        raise refuse("W107", "the state of this generator", cap.loc())
    if not isinstance(generator, PreparedValue):
        generator_of(cap, generator)
    sample = (real if real is not None else generator.twin).get_state()  # type: ignore[attr-defined]
    fake = cap.builder.run("call_function", torch.empty, [sample.shape], {"dtype": torch.uint8},
                           cap.loc())  # fmt: skip
    cap.unguarded += 1
    late = cap.late.tensor(fake, _GENERATOR.get_state, (generator,))
    late.value = drawn_input(cap, late)
    cap.deliver(late.value, cont)


def initial_seed(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """generator.initial_seed(): a number that is read before the graph runs."""
    may_draw(cap)
    (generator,) = args
    real = real_generator(generator) or getattr(generator, "twin", None)
    if not isinstance(real, torch.Generator) or (is_default(real) and _draws(cap)):
        raise refuse("W107", "the seed of this generator", cap.loc())
    cap.unguarded += 1
    cap.deliver(cap.late.draw(0, _GENERATOR.initial_seed, (generator,)), cont)


def set_state(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """generator.set_state(x) of a state that was read, or that comes from outside."""
    generator, state = args[0], (*args[1:], *kwargs.values())[0]
    if not isinstance(state, TensorValue) or not _is_given(cap, state):
        raise refuse("W107", "a state of a generator that the graph computes", cap.loc())
    _change(cap, generator, _GENERATOR.set_state, [generator, state])
    cap.deliver(NONE, cont)


def _is_given(cap: Capture, x: TensorValue) -> bool:
    """Whether a tensor is known before the graph runs, and stays as it is."""
    if any(isinstance(p, LateNumber) and getattr(p, "value", None) is x
           for p in cap.builder.places):  # fmt: skip
        return True
    at = next((i for i, (_, v, _) in enumerate(cap.builder.inputs) if v is x), None)
    return at is not None and at not in cap.builder.mutated_inputs()


def _draws(cap: Capture) -> bool:
    """Whether an operator of the graph draws random numbers."""
    return any(DRAWS in n.meta for graph in cap.builder.graphs() for n in graph.nodes)


def _change(cap: Capture, generator: Value, fn: Any, args: Args) -> None:
    """fn(*args) sets the state of a generator.

    That of a default one before the graph runs if nothing was drawn, else behind it: nothing may be
    drawn from then on.
    """
    may_draw(cap)
    real = real_generator(generator)
    if real is None and not isinstance(generator, PreparedValue):
        raise refuse("W107", f"{fn.__name__} of this generator", cap.loc())
    cap.unguarded += 1
    if real is not None:
        generator_of(cap, generator)
        if is_default(real) and _draws(cap):
            cap.builder.mode.closed = cap.loc
            cap.slices = None  # what is copied is not run here
            perform(cap, fn, args, {})
            return
    cap.late.draw(None, fn, tuple(args))
