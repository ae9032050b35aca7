"""Functions of the standard library that run as they are on constants: re, json, textwrap, ...

Their arguments decide all that they give. What is not constant is interpreted instead.
"""

from __future__ import annotations

import binascii
import bisect
import functools
import heapq
import keyword
import math
import re
import struct
import sys
import types
import unicodedata
import zlib
from typing import Any

import torch

from torchweld.capture import polyfills, polyfills_order
from torchweld.capture.functions.builtin import polyfill
from torchweld.capture.functions.containers import collect
from torchweld.capture.policy import inline_anyway, made_anew, settled
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, raised, refuse
from torchweld.capture.tables import FUNCTIONS, METHODS, NAMED, CallHandler, function, method
from torchweld.capture.values.base import (
    Const,
    ListValue,
    NotConstant,
    Value,
    constant,
)

Args = list[Value]
Kwargs = dict[str, Value]


def run_on_constants(cap: Capture, fn: Any, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Deliver fn(*args, **kwargs). Errors: NotConstant, Raised, GraphBreak."""
    real_args = [settled(cap, a) for a in args]
    real_kwargs = {k: settled(cap, v) for k, v in kwargs.items()}
    try:
        out = fn(*real_args, **real_kwargs)
    except Exception as error:
        if vars(error):  # more than its arguments makes it
            raise refuse("W107", f"{fn.__name__} fails: {error}", cap.loc()) from None
        raise raised(type(error), *error.args) from None
    cap.deliver(made_anew(cap, fn, out), cont)


def on_constants(cap: Capture, fn: Any, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Run a function on constants; interpret it on other arguments, if it is written in Python."""
    try:
        run_on_constants(cap, fn, args, kwargs, cont)
    except NotConstant:
        if not isinstance(fn, types.FunctionType):
            raise refuse("W103", f"{fn.__name__} of a value that is not constant",
                         cap.loc()) from None  # fmt: skip
        inline_anyway(cap, fn, args, kwargs, cont)


def on_constants_of(fn: Any, cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """The same, as a handler of `fn`."""
    on_constants(cap, fn, args, kwargs, cont)


# functions written in Python, by the names of their modules: few programs import them
_BY_NAME = {
    "re": "match search fullmatch split findall finditer compile escape subn",
    "json": "dumps loads", "textwrap": "dedent indent fill wrap shorten",
    "statistics": "mean fmean median median_low median_high mode multimode stdev pstdev variance "
                  "pvariance geometric_mean harmonic_mean quantiles",
    "base64": "b64encode b64decode b32encode b16encode urlsafe_b64encode",
    "html": "escape unescape", "shlex": "split quote join", "fnmatch": "fnmatchcase",
    "urllib.parse": "quote unquote urlparse urlencode",
    "posixpath": "join basename dirname splitext split normpath isabs",
    "colorsys": "rgb_to_hsv hsv_to_rgb", "string": "capwords",
    "pprint": "pformat saferepr", "reprlib": "repr",
    "typing": "get_origin get_args is_typeddict",
}  # fmt: skip
_OF_C = (struct.pack, struct.unpack, struct.calcsize, struct.unpack_from, unicodedata.normalize,
         unicodedata.category, unicodedata.name, sys.intern, zlib.crc32, zlib.adler32,
         binascii.hexlify, binascii.unhexlify, binascii.b2a_base64, binascii.a2b_base64,
         binascii.crc32)  # fmt: skip


def _handler_by_name(module: str, name: str) -> CallHandler:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        on_constants(cap, getattr(sys.modules[module], name), args, kwargs, cont)

    return handler


for _module, _names in _BY_NAME.items():
    for _name in _names.split():
        NAMED.add((_module, _name), _handler_by_name(_module, _name))
for _fn in _OF_C:
    FUNCTIONS.add(_fn, functools.partial(on_constants_of, _fn))


@function(math.fsum)
def fsum(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Of whatever gives numbers."""
    collect(cap, args[0], lambda items: on_constants(cap, math.fsum, [ListValue(items)], {}, cont))


def sumprod(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Of numbers as C adds them (floats in more digits than they have), of tensors in turn."""

    def right(left: list[Value]) -> None:
        collect(cap, args[1], lambda items: run(left, items))

    def run(left: list[Value], items: list[Value]) -> None:
        given: Args = [ListValue(list(left)), ListValue(list(items))]
        pairs = zip(left, items, strict=False)
        if any(issubclass(x.cls(), torch.Tensor) for x in (*left, *items)) and not any(
                _in_floats(p, q) for p, q in pairs):  # fmt: skip
            cap.call(Const(polyfills.sumprod_), given, {}, cont)
        else:
            on_constants(cap, _SUMPROD, given, {}, cont)

    if kwargs:
        raise raised(TypeError, "math.sumprod() takes no keyword arguments")
    if len(args) != 2:
        raise raised(TypeError, f"sumprod expected 2 arguments, got {len(args)}")
    collect(cap, args[0], right)


def _in_floats(p: Value, q: Value) -> bool:
    """Whether C computes p * q with the digits that a float loses."""
    kinds = {p.cls(), q.cls()}
    return float in kinds and kinds <= {float, int, bool}


_SUMPROD = getattr(math, "sumprod", None)  # from Python 3.12 on
if _SUMPROD is not None:
    FUNCTIONS.add(_SUMPROD, sumprod)


@function(keyword.iskeyword, keyword.issoftkeyword)
def is_keyword(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    cap.deliver(Const(keyword.iskeyword(constant(args[0]))), cont)


# ------------------------------------------------------------------------ regular expressions
def _pieces(pattern: re.Pattern[str], text: str, count: int) -> list[Any]:
    """The texts between the matches, and the matches."""
    out: list[Any] = []
    at = 0
    for n, found in enumerate(pattern.finditer(text)):
        if count and n == count:
            break
        out += [text[at : found.start()], found]
        at = found.end()
    return [*out, text[at:]]


@method(re.Pattern, "sub")
def pattern_sub(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """A text as the replacement is done at once; a function is called for each match."""
    given = dict(zip(("pattern", "repl", "string", "count"), args, strict=False)) | kwargs
    try:
        pattern, text = settled(cap, given["pattern"]), settled(cap, given["string"])
        count = settled(cap, given.get("count", Const(0)))
        if isinstance(given["repl"], Const) and isinstance(given["repl"].obj, str | bytes):
            run_on_constants(cap, re.Pattern.sub, args, kwargs, cont)
            return
    except NotConstant:
        raise refuse("W103", "sub of a value that is not constant", cap.loc()) from None
    if not isinstance(text, str):
        raise refuse("W107", "sub of bytes by a function", cap.loc())
    pieces = ListValue([Const(p) for p in _pieces(pattern, text, count)])
    cap.call(Const(polyfills_order.substitute), [pieces, given["repl"]], {}, cont)


@function(re.sub)
def sub(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    given = dict(zip(("pattern", "repl", "string", "count", "flags"), args, strict=False)) | kwargs
    try:
        flags = settled(cap, given.get("flags", Const(0)))
        compiled = Const(re.compile(settled(cap, given["pattern"]), flags))
    except NotConstant:
        raise refuse("W103", "re.sub of a value that is not constant", cap.loc()) from None
    except re.error:
        raise refuse("W107", "a pattern that is none", cap.loc()) from None
    count = given.get("count", Const(0))
    METHODS[re.Pattern, "sub"](cap, [compiled, given["repl"], given["string"], count], {}, cont)


# ------------------------------------------------------------------------------ heaps, bisection
for _name in ("heappush", "heappop", "heapreplace", "heappushpop", "heapify", "nsmallest",
              "nlargest", "merge"):  # fmt: skip
    polyfill(getattr(heapq, _name), getattr(polyfills_order, _name))
for _name in ("bisect_left", "bisect_right", "insort_left", "insort_right"):
    polyfill(getattr(bisect, _name), getattr(polyfills_order, _name))
