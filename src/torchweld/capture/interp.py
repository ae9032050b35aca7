"""The interpreter's loop: run one frame on abstract values, to a Region."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from torchweld.base import config
from torchweld.base.errors import GraphBreak
from torchweld.base.loc import NOWHERE, Loc
from torchweld.capture import functions, opcodes, outside
from torchweld.capture.attrs import closure_of
from torchweld.capture.calls import call_value
from torchweld.capture.class_writes import settle_class_guards
from torchweld.capture.functions.checks import suppose
from torchweld.capture.guard_build import FEW_PAIRS, is_no_inference
from torchweld.capture.modes import ATTENTION, MUTATED, RUNS_AGAIN, attention_order, default_devices
from torchweld.capture.modes_kept import keep_modes, left_in_inference
from torchweld.capture.module import CapturedModule, kept_results
from torchweld.capture.numbers import drop_unused, place_computed
from torchweld.capture.opcodes.protect import unwind
from torchweld.capture.outside_functions import check_fixed
from torchweld.capture.residual import residualize
from torchweld.capture.session import MAX_STEPS, Capture
from torchweld.capture.slices import Slices
from torchweld.capture.state import Handed, HooksStay, Raised, Stuck, VFrame, refuse
from torchweld.capture.suspend import stops_of, suspend
from torchweld.capture.tables import OPCODES, OpcodeHandler
from torchweld.capture.values.base import (
    CellValue,
    Const,
    InstanceValue,
    Lazy,
    TensorValue,
    TupleValue,
    Value,
)
from torchweld.capture.wrap import wrap
from torchweld.frame.decode import decode
from torchweld.frame.instr import Code, Instr
from torchweld.frame.points import CALLEE, is_rest, sets_up
from torchweld.ir.guard import Guard
from torchweld.ir.region import Region
from torchweld.ir.sizes import SizeEnv, let_be
from torchweld.ir.source import Attr, Local, Source

_FILLED = (functions, opcodes, outside)  # imported for the tables that they fill

_FAKE_LOG = logging.getLogger("torch._subclasses.fake_tensor")

_forward_level = functools.partial(getattr, torch.autograd.forward_ad, "_current_level")
# what gives operators another meaning, and its value when it is not there
_TRANSFORMS: dict[Callable[[], Any], Any] = {
    torch._C._len_torch_dispatch_stack: 0,
    torch._C._functorch.maybe_current_level: None, torch._C._get_tracing_state: None,
    _forward_level: -1,
}  # fmt: skip
# what autocast does, by kind of device
_AUTOCAST: tuple[Callable[[], Any], ...] = tuple(
    functools.partial(fn, kind) for kind in ("cpu", "cuda")
    for fn in (torch.is_autocast_enabled, torch.get_autocast_dtype)
)  # fmt: skip
# torch state that decides what the recorded operators mean
_STATE: tuple[Callable[[], Any], ...] = (
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch._C._is_any_autocast_enabled,
    torch.get_default_dtype, torch._C._get_deterministic_algorithms,
    torch._C._len_torch_function_stack, *_TRANSFORMS,
)  # fmt: skip


def capture(cap: Capture, fn: types.FunctionType, args: tuple[object, ...]) -> Region:
    """Capture one call of `fn` with these flat arguments, up to `cap.stop` or to its end.

    Errors: GraphBreak with a reason when any part of the frame cannot be captured; the facts that
    led there are in `cap.guards`, where the capture could stop instead in `cap.stops`.
    """
    cap.wrapper = wrap
    cap.caller = call_value
    cap.inner, cap.stop_numbers = run_inner, stops_of
    if _copies(cap, fn):
        cap.slices = Slices()
    grad_mode, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    _guard_state(cap)
    code = decode(fn.__code__)
    if code.is_generator and not is_rest(code.raw):
        raise refuse("W109", f"{code.qualname} is a generator or coroutine")
    if any(getter() != absent for getter, absent in _TRANSFORMS.items()) or not _devices(cap):
        why = "a torch function or dispatch mode, a functorch transform, forward-mode AD or a trace"
        raise refuse("W115", f"{why} is active")
    locals_: list[Source] = [Local.make(i, name) for i, name in enumerate(code.params)]
    if len(args) > len(locals_):
        locals_.append(_function_source(code))
    cap.is_rest = sets_up(code, 0)
    cap.in_block = cap.is_rest and _has_blocks(code, args)
    _push_root(cap, fn, code, args)
    quiet = _FAKE_LOG.disabled
    _FAKE_LOG.disabled = True  # it prints the errors that the frame may well handle
    try:
        run(cap)
        _check_left(cap, inference)
        modes = keep_modes(cap)
        rest = suspend(cap) if cap.stop or cap.handed is not None else None
        suppose(cap)
        place_computed(cap)
        outputs, result, finish = residualize(cap, grad_mode, locals_, modes, rest)
        graph, ends = _finish_graph(cap, outputs), _passing(cap)
    finally:
        _FAKE_LOG.disabled = quiet
        for undo in reversed(cap.state_restore):
            undo()
    settle_class_guards(cap)
    if cap.builder.n_calls == 0 and rest is None:
        raise refuse("W113", f"{code.qualname} runs no tensor operation")
    inputs = tuple(source for source, _, _ in cap.builder.inputs)
    check_fixed(cap, rest is not None)
    _check_hooked(cap)
    _guard_aliases(cap)
    _guard_inference(cap)
    _guard_attention(cap)
    _guard_device(cap)
    for source, _, real in cap.builder.inputs:
        if _may_be_pending(real):
            cap.guard("predicate", source, has_plain_data)
    if not grad_mode and not cap.reads_grad and torch.is_grad_enabled not in cap.modes_set:
        _forget_requires_grad(cap)
    env, readings = _end_questions(cap), tuple(cap.sizes.readings.values())
    return Region(code.qualname, graph, inputs, tuple(cap.guards.values()), result, finish,
                  rest.resume if rest else None, cap.builder.n_calls,
                  env if readings else None, readings,
                  tuple(cap.locks), ends)  # fmt: skip


def _copies(cap: Capture, fn: types.FunctionType) -> bool:
    """Whether calls of alike modules may be copied."""
    wanted = cap.copies and "backward" not in fn.__code__.co_names
    return wanted and not cap.late.sources and "slices" not in config.current().skip


def _passing(cap: Capture) -> Guard | None:
    """See passing.py, which is loaded when a frame changes something."""
    if not (cap.changed or cap.grads or cap.globals_written):
        return None
    found: Guard | None = importlib.import_module("torchweld.capture.passing").passing(cap)
    return found


def _forget_idle(cap: Capture) -> None:
    """Of an argument that nobody has looked at, only the class matters."""
    idle = cap.builder.drop_idle()
    for key, guard in list(cap.guards.items()) if idle else ():
        if guard.kind == "tensor" and guard.source in idle:
            del cap.guards[key]
            cap.add_guard("type", guard.source, idle[guard.source], guard.why)


def _end_questions(cap: Capture) -> SizeEnv:
    """What is known of sizes; what is asked from now on, later stages ask."""
    env = cap.sizes.env
    env.where, env.asked = nowhere, let_be
    cap.builder.mode.maker = None
    return env


def _check_hooked(cap: Capture) -> None:
    """A hook is of what its tensor was when it was registered; hooks of saved tensors are off."""
    for _, stop in cap.builder.packs:
        why = "saved_tensors_hooks that are on at the end"
        raise Stuck("W106", why, cap.loc(), stop) if stop else refuse("W106", why, cap.loc())
    if cap.builder.hooked:
        written = {id(cap.builder.inputs[i][1]) for i in cap.builder.mutated_inputs()}
        if any(id(x) in written for x in cap.builder.hooked):
            raise refuse("W106", "a hook of a tensor that is changed", cap.loc())


def _check_left(cap: Capture, inference: bool) -> None:
    """Refuse a frame that leaves something open that it cannot; forget what it did not need."""
    if torch.is_inference_mode_enabled() != inference:
        raise left_in_inference(cap)
    if any(cap.handles):
        raise HooksStay
    if len(cap.devices) != cap.devices_before:
        why = "the frame is left inside of `with torch.device`"
        raise Stuck("W107", why, cap.loc(), cap.birth(cap.devices))
    if cap.held and not cap.stop:
        raise refuse("W107", "the frame ends with a lock held", cap.loc())
    _forget_idle(cap)


def nowhere() -> Loc:
    """The line of what later stages decide."""
    return NOWHERE


def _has_blocks(code: Code, args: tuple[Any, ...]) -> bool:
    """Whether the rest of a frame, or of one that it begins with a call of, has a try or with."""
    while not code.protected and CALLEE[0] in code.params:
        at = code.params.index(CALLEE[0])
        if args[at] is next:
            return False  # of a generator, whose blocks are seen when it goes on
        code, args = decode(args[at].__code__), args[at + 1]
    return bool(code.protected)


def _devices(cap: Capture) -> bool:
    """Whether all torch function modes that are on say which device is the default one."""
    if not torch._C._len_torch_function_stack():
        return True
    found = default_devices()
    cap.guard("state", None, (default_devices, found))
    cap.devices, cap.devices_before = list(found), len(found)
    return all(isinstance(d, torch.device) and d.type in ("cpu", "cuda") for d in found)


def _guard_state(cap: Capture) -> None:
    for getter in _STATE:
        cap.guard("state", None, (getter, getter()))
    if torch._C._is_any_autocast_enabled():
        _guard_autocast(cap)


def _forget_requires_grad(cap: Capture) -> None:
    """With grad mode off throughout, requires_grad decides nothing."""
    for key, guard in cap.guards.items():
        if guard.kind == "tensor":
            assert isinstance(guard.expected, tuple)
            loose = (*guard.expected[:5], None, *guard.expected[6:])
            cap.guards[key] = dataclasses.replace(guard, expected=loose)


def _guard_attention(cap: Capture) -> None:
    """Which kernels attention may use is decided when the graph is compiled."""
    if any(n.target is torch.nn.functional.scaled_dot_product_attention
           for graph in cap.builder.graphs() for n in graph.nodes):  # fmt: skip
        for getter in (*ATTENTION.values(), attention_order):
            cap.guard("state", None, (getter, getter()))


def _guard_device(cap: Capture) -> None:
    """Which GPU "cuda" is depends on the thread's current device."""
    if not torch.cuda.is_available():
        return  # what names one sets a mode
    if any(_on_current_device(n) for graph in cap.builder.graphs() for n in graph.nodes):
        cap.guard("state", None, (torch.cuda.current_device, torch.cuda.current_device()))


def _on_current_device(node: Node) -> bool:
    """Whether a call names a GPU without a number."""
    found: list[object] = []
    map_aggregate((node.args, node.kwargs), found.append)
    return any(
        x == "cuda" or (isinstance(x, torch.device) and x.type == "cuda" and x.index is None)
        for x in found
    ) or (node.op == "call_method" and node.target == "cuda" and len(node.args) < 2)


def _guard_inference(cap: Capture) -> None:
    """Inference tensors cannot be written outside of their mode; else few see a difference."""
    stays = torch.is_inference_mode_enabled not in cap.modes_set
    written = () if torch.is_inference_mode_enabled() and stays else cap.builder.mutated_inputs()
    for i, (source, _, real) in enumerate(cap.builder.inputs):
        if cap.reads_inference or i in written:
            kind = torch.is_inference if real.is_inference() else is_no_inference
            cap.guard("predicate", source, kind)


def has_plain_data(x: torch.Tensor) -> bool:
    """No conjugation or negation is pending, which would not show in the other metadata."""
    return not x.is_conj() and not x.is_neg()


def _may_be_pending(x: torch.Tensor) -> bool:
    """Complex tensors, and those that may be the imaginary part of one."""
    if x.is_complex():
        return True
    return x.is_floating_point() and all(
        n == 1 or s % 2 == 0 for n, s in zip(x.shape, x.stride(), strict=True))  # fmt: skip


def _guard_autocast(cap: Capture) -> None:
    for fn in _AUTOCAST:
        cap.guard("state", None, (fn, fn()))


def _function_source(code: Code) -> Source:
    """Where the function itself is found: the last of the flat arguments, if it has a closure and
    is not known before it is called."""
    return Local.make(len(code.params), code.name)


def _push_root(cap: Capture, fn: types.FunctionType, code: Code, args: tuple[object, ...]) -> None:
    frame = VFrame(code, fn.__globals__, cap.pin(fn.__globals__, "globals"))
    cap.names.update(code.raw.co_names)
    given = len(args) > len(code.params)
    frame.cells = closure_of(cap, fn, _function_source(code) if given else cap.pin(fn))
    for i, (name, value) in enumerate(zip(code.params, args, strict=False)):
        slot = Lazy(value, Local.make(i, name))
        if name in code.cellvars:
            frame.cells[name] = CellValue(slot)
        else:
            frame.locals[name] = slot  # type: ignore[assignment]
    for name in code.cellvars:
        frame.cells.setdefault(name, CellValue(None))
    cap.frames.append(frame)


def run(cap: Capture) -> None:
    """Interpret until the outermost frame returns, or up to `cap.stop`. Errors: GraphBreak."""
    last = cap.stop - 1 if cap.stop else MAX_STEPS
    while cap.frames and cap.steps < last:
        try:
            _run_frame(cap, last)
        except Raised as error:
            stops, at = stops_of(cap), cap.loc()
            cap.note_birth(error.value, stops)
            if not unwind(cap, error.value):
                cap.stops = stops
                raise refuse("W111", _describe(error), at) from None
        except GraphBreak:
            cap.stops = stops_of(cap)
            raise
        except Handed as handed:
            cap.handed = handed.with_traceback(None)  # which would keep the capture alive
            return
        except RecursionError:
            raise refuse("W116", "the interpreter's own stack is exhausted", cap.loc()) from None
    if cap.frames and not cap.stop:
        raise refuse("W116", f"more than {MAX_STEPS} instructions", cap.loc())


def run_inner(cap: Capture, fn: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The result of a call that is interpreted to its end before whoever asks goes on.

    Only for what torch itself calls: everything else pushes a frame. Errors: Raised, GraphBreak.
    """
    last = cap.stop - 1 if cap.stop else MAX_STEPS
    base = len(cap.frames)
    made: list[Value] = []
    cap.call(fn, args, kwargs, made.append)
    while len(cap.frames) > base:
        if cap.steps >= last:
            raise refuse("W116", "the capture ends inside of a transform", cap.loc())
        try:
            _run_frame(cap, last)
        except Raised as error:
            if not unwind(cap, error.value, base):
                raise
    return made[0]


def _run_frame(cap: Capture, last: int) -> None:
    """Interpret the innermost frame until another one becomes the innermost, or `last` instructions
    have run."""
    frame = cap.frames[-1]
    if isinstance(frame.function, Const) and frame.ip == 0:
        _guard_function(cap, frame.function.obj)
    rows = _rows(frame.code)
    frames = cap.frames
    while cap.steps < last:
        handler, instr = rows[frame.ip]
        frame.ip += 1
        frame.started = cap.steps = cap.steps + 1
        handler(cap, frame, instr)
        if not frames or frames[-1] is not frame:
            return


@functools.lru_cache(maxsize=4096)
def _rows(code: Code) -> list[tuple[OpcodeHandler, Instr]]:
    return [(OPCODES.get(i.op) or _unknown, i) for i in code.instrs]


def _guard_function(cap: Capture, fn: object) -> None:
    """The code of a function of the user's can be replaced while it stays the same."""
    if not isinstance(fn, types.FunctionType) or fn in cap.functions or _is_library(fn):
        return
    cap.functions.add(fn)
    cap.guard("is", Attr.make(cap.pin(fn), "__code__"), fn.__code__)


def _is_library(fn: types.FunctionType) -> bool:
    top = str(fn.__module__).split(".")[0]
    return top in ("torch", "torchweld") or top in sys.stdlib_module_names


def _unknown(cap: Capture, f: VFrame, i: Instr) -> None:
    raise refuse("W110", i.text(), cap.loc())


def _describe(error: Raised) -> str:
    exc = error.value
    if isinstance(exc, InstanceValue):
        args = exc.attrs.get("args")
        parts = args.items if isinstance(args, TupleValue) else getattr(args, "obj", ())
        shown = ", ".join(_shown(p) for p in parts)
        return f"{exc.klass.__name__}({shown})"
    return repr(exc)


def _shown(x: object) -> str:
    """A part of an exception in a message: what is known of it now."""
    if type(x) is Const:
        return repr(x.sample)
    return f"a {x.cls().__name__}" if isinstance(x, Value) else repr(x)


def _finish_graph(cap: Capture, outputs: list[TensorValue]) -> GraphModule:
    graph = cap.builder.graph
    results = [t.node for t in outputs]
    if cap.builder.risky:
        results += kept_results(graph, results)
    graph.output(tuple(results))
    if cap.builder.computes:
        drop_unused(graph)
    made = CapturedModule(torch.nn.Module(), graph)
    places, inputs = cap.builder.places, cap.builder.inputs
    made.meta[MUTATED] = tuple(places.index(inputs[i][0]) for i in cap.builder.mutated_inputs())
    made.meta[RUNS_AGAIN] = cap.untouched
    return made


def _guard_aliases(cap: Capture) -> None:
    """An input that the graph writes must stay another object than every other input."""
    sources = [source for source, _, _ in cap.builder.inputs]
    mutated = cap.builder.mutated_inputs()
    if len(sources) > FEW_PAIRS + 1:
        mutated = mutated[:1]  # so many pairs with one object become one check of all objects
    for i in mutated:
        for j, source in enumerate(sources):
            if i != j:
                cap.guard("distinct", sources[i], source)
