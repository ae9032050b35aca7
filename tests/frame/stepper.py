"""Runs functions by the pieces of frame.steps and frame.resume: some steps, and then the rest."""

from __future__ import annotations

import inspect
import types

from torchweld.frame.decode import decode
from torchweld.frame.points import Point, can_step, cell_names, looked_at
from torchweld.frame.resume import resume_code
from torchweld.frame.steps import step_piece


def function(code, fn):
    """The code as a function; what it closes over is given by its parameters."""
    closure = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, fn.__globals__, fn.__name__, None, closure)


def start(fn, args):
    """The flat state at the first instruction."""
    code = decode(fn.__code__)
    bound = inspect.signature(fn).bind(*args)
    bound.apply_defaults()
    given = {name: bound.arguments[name] for name in code.params}
    cells = dict(zip(code.freevars, fn.__closure__ or (), strict=True))
    for name in code.cellvars:
        cells[name] = types.CellType(given.pop(name)) if name in given else types.CellType()
    unbound = frozenset(code.varnames).difference(given, cells)
    point = Point(0, unbound & looked_at(code, 0))
    return code, point, (*map(given.get, code.varnames), *map(cells.get, cell_names(code)))


def run(fn, args, steps, count):
    """What fn(*args) gives when its first `steps` instructions are run one by one.

    `count` gets how many of them were; control that a step cannot be is left to the rest.
    """
    code, point, values = start(fn, args)
    count.append(0)
    while count[-1] < steps:
        instr = code.instrs[point.index]
        if instr.op == "JUMP":
            point = Point(instr.target, point.unbound & looked_at(code, instr.target), point.holes)
            continue
        if not can_step(code, point.index):
            break
        piece = step_piece(code, point)
        which, values = function(piece.code, fn)(*values)
        point = piece.points[which]
        count[-1] += 1
    return function(resume_code(code, point), fn)(*values)
