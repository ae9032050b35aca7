"""Which locals and cells may still be read from an instruction on, and which questions end a loop.

A resume function receives exactly these, so that what eager would have freed is freed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from torchweld.frame.instr import TERMINAL, Code, Instr

# A cell may be shared, so every op that touches it needs it and none ends its life.
_CELL_OPS = frozenset(
    (
        "DELETE_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_CLOSURE",
        "LOAD_CLOSURE_AND_CLEAR",
        "LOAD_DEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "STORE_DEREF",
    )
)
# Deleting an unbound local is an error, so the deletion needs to know whether it is bound.
_READS = frozenset(("DELETE_FAST", "LOAD_FAST", "LOAD_FAST_AND_CLEAR"))
_WRITES = frozenset(("DELETE_FAST", "LOAD_FAST_AND_CLEAR", "STORE_FAST"))


def live_locals(code: Code, index: int) -> frozenset[str]:
    """The names of locals and cells that may be read at or after instruction `index`."""
    rows, names = _live(code)
    bits = rows[index]
    return frozenset(name for i, name in enumerate(names) if bits >> i & 1)


@lru_cache(maxsize=1024)
def _live(code: Code) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """A set of bits for each instruction, and the name of each bit: locals first, then cells."""
    names = (*code.varnames, *code.cellvars, *code.freevars)
    n_locals = len(code.varnames)
    local_bit = {name: 1 << i for i, name in enumerate(code.varnames)}
    cell_bit = {name: 1 << i for i, name in enumerate(names[n_locals:], n_locals)}
    super_bits = _super_bits(code, local_bit, cell_bit)
    reads, keeps = [], []
    for instr in code.instrs:
        read, written = _touched(instr, local_bit, cell_bit)
        if instr.op in ("LOAD_GLOBAL", "LOAD_NAME") and instr.arg == "super":
            read |= super_bits
        reads.append(read)
        keeps.append(~written)
    return _backwards(code, reads, keeps), names


def _touched(instr: Instr, local: dict[str, int], cell: dict[str, int]) -> tuple[int, int]:
    """The bits that the instruction reads and those that it overwrites."""
    op = instr.op
    if op in _CELL_OPS:
        return cell[instr.arg], 0
    read = local[instr.arg] if op in _READS else 0
    return read, local[instr.arg] if op in _WRITES else 0


def _super_bits(code: Code, local: dict[str, int], cell: dict[str, int]) -> int:
    """What super() without arguments takes from the frame: the first parameter, __class__."""
    if "__class__" not in code.freevars or not code.params:
        return 0
    first = code.params[0]
    return cell["__class__"] | cell.get(first, local[first])


def _backwards(code: Code, reads: list[int], keeps: list[int]) -> tuple[int, ...]:
    """Solve live = reads | (live of what follows & keeps) | live of the handler."""
    instrs = code.instrs
    count = len(instrs)
    handlers = [-1] * count
    for row in reversed(code.protected):
        handlers[row.start : row.end] = [row.target] * (row.end - row.start)
    ways = [tuple(_successors(i, instr, count)) for i, instr in enumerate(instrs)]
    live = [0] * (count + 1)
    changed = True
    while changed:
        changed = False
        for i in range(count - 1, -1, -1):
            after = 0
            for way in ways[i]:
                after |= live[way]
            # an exception may come before the local is written, so the handler's needs stay
            now = reads[i] | after & keeps[i] | live[handlers[i]]
            if now != live[i]:
                live[i] = now
                changed = True
    return tuple(live[:count])


def _successors(index: int, instr: Instr, count: int) -> Iterator[int]:
    if instr.op not in TERMINAL and index + 1 < count:
        yield index + 1
    if instr.target is not None:
        yield instr.target


# so near to a comparison is the jump that it decides
_NEAR = 4


@lru_cache(maxsize=1024)
def ends_loop(code: Code, index: int) -> bool:
    """Whether the answer to what the instruction asks may be that the loop around it ends."""
    instrs = code.instrs
    around = [(i.target, j) for j, i in enumerate(instrs)
              if i.target is not None and i.target <= index <= j]  # fmt: skip
    jump = next((i for i in range(index, min(index + _NEAR, len(instrs)))
                 if instrs[i].op.startswith("POP_JUMP")), None)  # fmt: skip
    if not around or jump is None:
        return False
    first = max(target for target, _ in around)
    loop = range(first, max(j for target, j in around if target == first) + 1)
    ways = [_reaches(instrs, s, index, loop) for s in _successors(jump, instrs[jump], len(instrs))]
    return not all(ways)


def _reaches(instrs: tuple[Instr, ...], start: int, index: int, inside: range) -> bool:
    """Whether a way leads from one instruction to another one through these."""
    found, left = set[int](), [start]
    while left:
        at = left.pop()
        if at not in found and at in inside:
            found.add(at)
            left += _successors(at, instrs[at], len(instrs))
    return index in found
