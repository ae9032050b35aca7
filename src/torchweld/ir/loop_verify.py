"""The invariants of a LoopGraph, one function each; `verify` runs them all.

    names          names are identifiers; one name is one buffer in the graph, one axis in a nest
    layout         a buffer has one stride per dimension, a known role, no negative size
    inputs         `inputs` are the buffers of role input and const, each once; others are temps
    defined        a temp is written by an earlier node before it is read or returned
    scalar_rules   operators exist, have their arity, and their dtypes follow loop_ops' rules
    constants      bool constants are 0 or 1, integer constants fit their dtype
    scope          index expressions use the nest's axes, the graph's sizes and loaded indices only
    axes           an axis symbol has the bounds of its size; reduce axes are not used by the store
    ranks          one index per dimension, in loads and stores
    bounds         no index leaves its shape: proved, or else no counterexample is found. Loads
                   behind a `where` are exempt (they happen only if the condition holds)
    reductions     kind and mode are known, and take the body's dtype; a scan has one axis
    stored_dtype   what is stored has the dtype of the buffer it is stored to
    self_reads     a nest reads its own out at the store index only
    writable       no two elements of a written buffer share their memory through a zero stride
    externs        outs are new temps; what it writes is among its arguments; ranks of views agree

A failure is an InternalError that names the node and the invariant.
"""

from __future__ import annotations

import itertools
import keyword
import random
from collections.abc import Callable, Iterator, Sequence

from torchweld.base.errors import InternalError
from torchweld.ir.dtype import DType
from torchweld.ir.expr import Expr, Ind, Int, LoopSym, atoms, index_symbol
from torchweld.ir.expr import evaluate as expr_value
from torchweld.ir.loop import (
    Buffer,
    Const,
    Extern,
    Index,
    Load,
    LoopGraph,
    Nest,
    Node,
    Op,
    Scalar,
    View,
    children,
    reads,
    scalars_in,
    views_of,
    walk,
    writes,
)
from torchweld.ir.loop_ops import BOOL, CAST, INDEX, LOGIC, OPS, SAME, SELECT, OpRow
from torchweld.ir.rounding import wrap_int
from torchweld.ir.symbolic_div import fits

_LITERALS = ("true", "false", "none", "nan", "inf")  # what the text form reads as values
_ROLES = ("input", "const", "temp")
# kind -> argument types it takes, as in loop_ops: f float, i integer, b bool, q 8-bit float
REDUCTIONS = {
    "sum": "fi", "prod": "fi", "max": "fib", "min": "fib", "any": "b", "all": "b",
    "argmax": "fib", "argmin": "fib",
    "scan_sum": "fi", "scan_prod": "fi", "scan_max": "fib", "scan_min": "fib",
}  # fmt: skip
MODES = {"set": "fibq", "add": "fi", "mul": "fi", "max": "fib", "min": "fib"}
_PROBES = 200  # random points tried where interval bounds cannot prove an index right


def describe(n: Node) -> str:
    """One line that identifies a node in an error."""
    origins = f" (from {', '.join(n.origins)})" if n.origins else ""
    if isinstance(n, Extern):
        return f"{', '.join(b.name for b in n.outs) or 'no result'} = {n.op}(...){origins}"
    index = ", ".join(e.text() for e in n.index)
    axes = ", ".join(a.text() for a in n.axes)
    return f"{n.out.name}[{index}] for {axes}{origins}"


def _fail(invariant: str, where: Node | Buffer | str, why: str) -> None:
    match where:
        case str():
            at = where
        case Buffer():
            at = f"buffer {where.name!r}"
        case _:
            at = describe(where)
    raise InternalError(f"invariant '{invariant}' of {at}: {why}")


def buffers_of(g: LoopGraph) -> list[Buffer]:
    """Every buffer of the graph, inputs first, then in order of appearance."""
    found: dict[Buffer, None] = dict.fromkeys(g.inputs)
    for n in g.nodes:
        named = sorted(reads(n) | writes(n), key=lambda b: b.name)
        found.update(dict.fromkeys(named))
    found.update(dict.fromkeys(v.buffer for v in g.outputs if v is not None))
    return list(found)


def scalars_of(n: Nest) -> Iterator[Scalar]:
    """Every distinct scalar of a nest: the body's and those that the store index loads."""
    seen: set[Scalar] = set()
    for root in (n.body, *(s for e in n.index for s in scalars_in(e))):
        for x in walk(root):
            if x not in seen:
                seen.add(x)
                yield x


def _plain_name(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and name not in _LITERALS


def _names(g: LoopGraph, buffers: Sequence[Buffer]) -> None:
    owner: dict[str, Buffer] = {}
    for b in buffers:
        if not _plain_name(b.name):
            _fail("names", b, "the name is not an identifier")
        if owner.setdefault(b.name, b) is not b:
            _fail("names", b, "two different buffers have this name")
    sizes = [s.name for s in g.sizes]
    if len(set(sizes)) < len(sizes) or not all(map(_plain_name, sizes)):
        _fail("names", f"sizes {sizes}", "they repeat, or are no identifiers")


def _layout(g: LoopGraph, b: Buffer) -> None:
    if len(b.shape) != len(b.strides):
        _fail("layout", b, f"{len(b.shape)} dimensions, {len(b.strides)} strides")
    if b.role not in _ROLES:
        _fail("layout", b, f"role {b.role!r} is none of {_ROLES}")
    for e in (*b.shape, *b.strides, b.offset):
        if not atoms(e) <= set(g.sizes):
            _fail("layout", b, f"{e.text()} uses more than the sizes of the graph")
    if any(n.hi is not None and n.hi < 0 for n in (*b.shape, b.offset)):
        _fail("layout", b, "a size or the offset is negative")


def _inputs(g: LoopGraph, buffers: Sequence[Buffer]) -> None:
    if len(set(g.inputs)) < len(g.inputs):
        _fail("inputs", f"inputs {list(g.inputs)}", "one is listed twice")
    for b in buffers:
        if (b in g.inputs) != (b.role != "temp"):
            _fail("inputs", b, f"role {b.role}, but listed as an input: {b in g.inputs}")


def _defined(g: LoopGraph) -> None:
    known = set(g.inputs)
    for n in g.nodes:
        needed = reads(n) | (set(n.writes) if isinstance(n, Extern) else set())
        for b in sorted(needed - known, key=lambda b: b.name):
            _fail("defined", n, f"{b.name} is read before it is written")
        known |= writes(n)
    for v in g.outputs:
        if v is not None and v.buffer not in known:
            _fail("defined", v.buffer, "it is returned but never written")


def kind_letter(dtype: DType) -> str:
    """f, i, b or q, as the `kinds` of loop_ops; empty for dtypes that are never computed."""
    if dtype.is_float8:
        return "q"
    if dtype.is_float:
        return "f"
    if dtype.is_int:
        return "i"
    return "b" if dtype is DType.BOOL else ""


def _one_dtype(args: Sequence[DType], result: DType) -> bool:
    return len({*args, result}) == 1


# rule of loop_ops -> whether argument dtypes and the result dtype follow it
_RULES: dict[str, Callable[[Sequence[DType], DType], bool]] = {
    SAME: _one_dtype,
    BOOL: lambda args, result: len(set(args)) == 1 and result is DType.BOOL,
    LOGIC: lambda args, result: _one_dtype(args, DType.BOOL) and result is DType.BOOL,
    SELECT: lambda args, result: args[0] is DType.BOOL and _one_dtype(args[1:], result),
    CAST: lambda args, result: result.computed,
    INDEX: lambda args, result: _one_dtype(args, DType.I64) and result is DType.I64,
}


def _follows(row: OpRow, x: Op) -> bool:
    dtypes = [a.dtype for a in x.args]
    typed = dtypes[1:] if row.rule == SELECT else dtypes
    letters = {kind_letter(d) for d in typed}
    return "" not in letters and letters <= set(row.kinds) and _RULES[row.rule](dtypes, x.dtype)


def _scalar_rules(n: Nest, scalars: Sequence[Scalar]) -> None:
    for x in scalars:
        if not isinstance(x, Op):
            continue
        row = OPS.get(x.name)
        if row is None or len(x.args) != row.arity:
            _fail("scalar_rules", n, f"no operator {x.name} of {len(x.args)} arguments")
            continue
        if not _follows(row, x):
            took = ", ".join(a.dtype.value for a in x.args)
            why = f"{x.name}({took}) -> {x.dtype.value} breaks the rule '{row.rule}' ({row.kinds})"
            _fail("scalar_rules", n, why)


def _constants(n: Nest, scalars: Sequence[Scalar]) -> None:
    for x in scalars:
        if isinstance(x, Const):
            fits = x.dtype.is_float or (
                x.bits in (0, 1) if x.dtype is DType.BOOL else wrap_int(x.bits, x.dtype) == x.bits
            )
            if not x.dtype.computed or not fits:
                _fail("constants", n, f"{x.bits} is no {x.dtype.value}")


def _accesses(n: Nest, scalars: Sequence[Scalar]) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    yield n.out, n.index
    for x in scalars:
        if isinstance(x, Load):
            yield x.buffer, x.index


def _scope(g: LoopGraph, n: Nest, scalars: Sequence[Scalar]) -> None:
    own: set[Expr] = {a.sym for a in n.all_axes} | set(g.sizes)
    used = [e for _, index in _accesses(n, scalars) for e in index]
    used += [x.expr for x in scalars if hasattr(x, "expr")]
    for e in used:
        strangers = {a for a in atoms(e) if not isinstance(a, Ind)} - own
        if strangers:
            shown = sorted(a.text() for a in strangers)
            _fail("scope", n, f"index {e.text()} uses {', '.join(shown)}")
    reduced = {a.sym for a in n.reduce.axes} if n.reduce and not n.reduce.is_scan else set()
    for e in n.index:
        under = {a for s in scalars_in(e) for x in walk(s) for a in _index_atoms(x)} | atoms(e)
        if under & reduced:
            _fail("axes", n, f"the store index {e.text()} uses a reduced axis")


def _index_atoms(x: Scalar) -> set[Expr]:
    exprs = x.index if isinstance(x, Load) else (x.expr,) if hasattr(x, "expr") else ()
    return {a for e in exprs for a in atoms(e)}


def _axes(g: LoopGraph, n: Nest) -> None:
    names = [a.name for a in n.all_axes] + [s.name for s in g.sizes]
    if len(set(names)) < len(names) or not all(map(_plain_name, names)):
        _fail("names", n, f"axes and sizes {names}: they repeat, or are no identifiers")
    for a in n.all_axes:
        if a.sym is not index_symbol(a.name, a.size) or not atoms(a.size) <= set(g.sizes):
            _fail("axes", n, f"{a.text()}: the symbol has other bounds, or the size other symbols")


def _ranks(n: Nest, scalars: Sequence[Scalar]) -> None:
    for b, index in _accesses(n, scalars):
        if len(index) != len(b.shape):
            _fail("ranks", n, f"{b.name} has {len(b.shape)} dimensions, {len(index)} indices")


def unguarded(n: Nest) -> set[Scalar]:
    """The scalars that are evaluated at every point: not only behind a `where`."""
    seen: set[Scalar] = set()
    stack = [n.body, *(s for e in n.index for s in scalars_in(e))]
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        stack += x.args[:1] if isinstance(x, Op) and x.name == "where" else children(x)
    return seen


def _bounds(g: LoopGraph, n: Nest, scalars: Sequence[Scalar]) -> None:
    if any(isinstance(a.size, Int) and a.size.n == 0 for a in n.all_axes):
        return  # no point is ever visited
    always = unguarded(n)
    checked = [(n.out, n.index)]
    checked += [(x.buffer, x.index) for x in scalars if isinstance(x, Load) and x in always]
    for b, index in checked:
        for e, size in zip(index, b.shape, strict=True):
            if not _proved(e, size):
                witness = _counterexample(e, size)
                if witness is not None:
                    _fail("bounds", n, f"{b.name}: index {e.text()} leaves 0..{size.text()} at "
                          f"{witness}")  # fmt: skip


def _proved(e: Expr, size: Expr) -> bool:
    if e.lo is None or e.lo < 0:
        return False
    room = size - 1 - e
    return (room.lo is not None and room.lo >= 0) or fits(e, size)


def _checked_by_size(a: Expr) -> bool:
    """Whether an atom is an index that was checked to be below a size that is not known."""
    x = a.scalar if isinstance(a, Ind) else None
    if not isinstance(x, Op) or x.name != "check_index":
        return False
    return any(isinstance(s, Index) and not s.expr.is_const for s in x.args[1:])


def _counterexample(e: Expr, size: Expr) -> str | None:
    """Values of the atoms for which `e` leaves 0 <= e < size, or None if none was found."""
    free = sorted(atoms(e) | atoms(size), key=lambda a: a.text())
    if any(a.lo is None or a.hi is None for a in free) or len(free) > 12:
        return None
    if any(isinstance(a, LoopSym) or _checked_by_size(a) for a in free):
        return None  # its values depend on those of others
    ends = itertools.islice(itertools.product(*((a.lo, a.hi) for a in free)), 4096)
    rng = random.Random(0)
    inner = ([rng.randint(a.lo or 0, a.hi or 0) for a in free] for _ in range(_PROBES))
    for values in itertools.chain(ends, inner):
        env = {a: v or 0 for a, v in zip(free, values, strict=True)}
        i = expr_value(e, env)
        if not 0 <= i < expr_value(size, env):
            return ", ".join(f"{a.text()} = {v}" for a, v in env.items()) or "every point"
    return None


def _reductions(n: Nest) -> None:
    letter = kind_letter(n.body.dtype)
    takes = MODES.get(n.mode)
    if takes is None or letter not in takes or not letter:
        _fail("reductions", n, f"mode {n.mode} on {n.body.dtype.value}")
    if n.reduce is None:
        return
    takes = REDUCTIONS.get(n.reduce.kind)
    if takes is None or letter not in takes:
        _fail("reductions", n, f"reduction {n.reduce.kind} of {n.body.dtype.value}")
    if n.reduce.is_scan and (len(n.reduce.axes) != 1 or n.mode != "set"):
        _fail("reductions", n, "a scan has one axis, and mode set")
    if n.reduce.is_scan and not any(n.reduce.axes[0].sym in atoms(e) for e in n.index):
        _fail("reductions", n, "the store of a scan uses its axis")


def result_dtype(n: Nest) -> DType:
    """The dtype of what a nest stores."""
    return DType.I64 if n.reduce and n.reduce.kind.startswith("arg") else n.body.dtype


def _stored_dtype(n: Nest) -> None:
    if result_dtype(n) is not n.out.dtype:
        _fail("stored_dtype", n, f"{result_dtype(n).value} is stored to {n.out.dtype.value}")


def _self_reads(n: Nest, scalars: Sequence[Scalar]) -> None:
    for x in scalars:
        if isinstance(x, Load) and x.buffer is n.out and (x.index != n.index or n.reduce):
            _fail("self_reads", n, f"{x.text()} is read while it is written at another index")


def _writable(n: Node) -> None:
    for b in sorted(writes(n), key=lambda b: b.name):
        for size, stride in zip(b.shape, b.strides, strict=True):
            if isinstance(stride, Int) and stride.n == 0 and size.lo is not None and size.lo > 1:
                _fail("writable", n, f"{b.name} repeats its elements")


def _externs(n: Extern, known: set[Buffer]) -> None:
    passed = views_of((*n.args, *(v for _, v in n.kwargs)))
    for b in n.outs:
        if b in known or b.role != "temp" or n.outs.count(b) > 1:
            _fail("externs", n, f"{b.name} is not new")
    for b in n.writes:
        if b not in {v.buffer for v in passed}:
            _fail("externs", n, f"{b.name} is written but not passed")
    for v in passed:
        _view(v, n)


def _view(v: View, where: Node | str) -> None:
    if len(v.shape) != len(v.strides):
        _fail("externs", where, f"a view of {v.buffer.name} has ranks that differ")


def verify(g: LoopGraph) -> None:
    """Raise InternalError, naming the node and the invariant, if `g` is not well-formed."""
    buffers = buffers_of(g)
    _names(g, buffers)
    for b in buffers:
        _layout(g, b)
    _inputs(g, buffers)
    _defined(g)
    known = set(g.inputs)
    for n in g.nodes:
        if isinstance(n, Extern):
            _externs(n, known)
        else:
            verify_nest(g, n)
        _writable(n)
        known |= writes(n)
    for v in g.outputs:
        if v is not None:
            _view(v, "outputs")


def verify_nest(g: LoopGraph, n: Nest) -> None:
    """The invariants of one nest (see the module docstring)."""
    scalars = list(scalars_of(n))
    _axes(g, n)
    _ranks(n, scalars)
    _scope(g, n, scalars)
    _scalar_rules(n, scalars)
    _constants(n, scalars)
    _reductions(n)
    _stored_dtype(n)
    _self_reads(n, scalars)
    _bounds(g, n, scalars)
