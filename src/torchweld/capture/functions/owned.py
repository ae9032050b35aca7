"""What is done to objects that the frame makes of constants: it is done to a twin now."""

from __future__ import annotations

import array
import functools
import hashlib
import io
import random
import threading
import types
from typing import Any

from torchweld.capture.attrs import MISSING, mro_lookup
from torchweld.capture.draws import prepare
from torchweld.capture.owned_items import READS
from torchweld.capture.policy import made_anew, settled
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import GETATTR, function, klass
from torchweld.capture.values.base import BoundValue, Const, NotConstant, Value
from torchweld.capture.values.owned import OwnedValue

Args = list[Value]
Kwargs = dict[str, Value]


def _constants(cap: Capture, args: Args, what: str) -> list[Any]:
    try:
        return [settled(cap, a) for a in args]
    except NotConstant:
        raise refuse("W107", f"{what} of a value that is not constant", cap.loc()) from None


def _maker(make: Any) -> Any:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        given = _constants(cap, args, make.__name__)
        named = dict(zip(kwargs, _constants(cap, list(kwargs.values()), make.__name__),
                         strict=True))  # fmt: skip
        made = functools.partial(make, **named) if named else make
        try:
            twin = made(*given)
        except Exception as error:
            raise raised(type(error), *error.args) from None
        cap.deliver(OwnedValue(twin, given, made), cont)

    return handler


for _kind in (io.StringIO, io.BytesIO, bytearray, array.array):
    klass(_kind)(_maker(_kind))
_PLAIN_LOCK: Any = type(threading.Lock())
_TAKES = ("acquire", "acquire_lock", "__enter__")
_LOCKS: tuple[Any, ...] = (threading.Lock, type(threading.RLock()))
for _make in _LOCKS:
    (klass if isinstance(_make, type) else function)(_make)(_maker(_make))
for _name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512", "blake2b", "blake2s", "new"):
    function(getattr(hashlib, _name))(_maker(getattr(hashlib, _name)))


@klass(random.Random)
def make_random(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    seeds = [*args, *kwargs.values()]
    given = _constants(cap, seeds, "Random")
    if not given or given[0] is None:
        cap.deliver(prepare(cap, random.Random, []), cont)
        return
    cap.deliver(OwnedValue(random.Random(*given), given), cont)


def run_owned(cap: Capture, fn: Any, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """fn(x, ...) of an owned object x."""
    x = args[0]
    assert isinstance(x, OwnedValue)
    given = _constants(cap, args[1:], f"{x.klass.__name__}.{fn.__name__}")
    named = dict(zip(kwargs, _constants(cap, list(kwargs.values()), fn.__name__), strict=True))
    reads = fn in READS
    if isinstance(x.twin, _PLAIN_LOCK) and fn.__name__ in _TAKES and x.twin.locked():
        raise refuse("W107", "a lock of the frame that somebody else is to release", cap.loc())
    if not reads:
        cap.mark(x)
    try:
        out = fn(x.twin, *given, **named)
    except Exception as error:
        raise raised(type(error), *error.args) from None
    finally:
        if not reads:
            x.log.append((fn, given, named))
    cap.deliver(x if out is x.twin else made_anew(cap, fn, out), cont)


@function(OwnedValue)
def _method(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """How the policy of methods written in C gets here."""
    fn, *rest = args
    assert isinstance(fn, Const)
    run_owned(cap, fn.obj, rest, kwargs, cont)


def print_to(file: Any, texts: list[Any], named: dict[str, Any]) -> None:
    """print(*texts, file=file)."""
    print(*texts, file=file, **named)


def _attr(cap: Capture, obj: OwnedValue, name: str, cont: Cont | None) -> None:
    raw = mro_lookup(obj.klass, name)
    if raw is MISSING:
        raise raised(AttributeError, f"'{obj.klass.__name__}' object has no attribute '{name}'")
    if isinstance(raw, types.GetSetDescriptorType) and name not in ("__dict__", "__class__"):
        cap.deliver(Const(getattr(obj.twin, name)), cont)
    elif isinstance(raw, types.FunctionType | types.MethodDescriptorType
                    | types.WrapperDescriptorType):  # fmt: skip
        cap.deliver(BoundValue(Const(raw), obj), cont)
    elif name == "__class__":
        cap.deliver(Const(obj.klass), cont)
    else:
        raise refuse("W107", f"attribute {name} of {obj.klass.__name__}", cap.loc())


GETATTR.add(OwnedValue, _attr)
