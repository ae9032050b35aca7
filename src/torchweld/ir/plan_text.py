"""The text form of a Plan: `parse(text(p)) == p`. The graph first, then what was decided about it.

    plan
    kernel k0 grid i:64 grain 4 args x, y  # from softmax
    kernel k1 grid i:64 tile 4 1024 warps 8 args x, y
      scalar m
      row e
      stage j:32
        m[i] = max over j:32 of x[i, j]  for i:64
      stage j:32
        ...
    bundle b0 of 2
      kernel k2 grid ...
      kernel k3 grid ...
    h = aten.mm.default(x, w)
    free h
    slot a at 0 bytes 256
    fresh y
    arena 256
    refusal W206 "why" at "file.py" 12

Indentation is for the reader only.
"""

from __future__ import annotations

import json

from torchweld.base.errors import Refusal
from torchweld.base.loc import NOWHERE, Loc
from torchweld.ir.loop import Axis, Buffer, Extern, Nest
from torchweld.ir.loop_parse import Reader
from torchweld.ir.loop_text import axes_text, extern_text, nest_text, origins_text
from torchweld.ir.loop_text import text as graph_text
from torchweld.ir.loop_verify import buffers_of
from torchweld.ir.plan import (
    ALIGN,
    Bundle,
    Free,
    Kernel,
    Local,
    Plan,
    Slot,
    Stage,
    Step,
    Tile,
    kernels_of,
)
from torchweld.ir.text_tokens import Line, lines_of

LOCAL_KINDS = ("register", "scalar", "row")


def text(p: Plan) -> str:
    """The graph, the word `plan`, then steps and memory."""
    known = set(buffers_of(p.graph))
    extra = [b for b in _buffers(p) if b not in known]
    declared = graph_text(p.graph, tuple(dict.fromkeys(extra)))
    lines = ["plan", *(step_text(s) for s in p.steps)]
    lines += [f"slot {s.buffer.name} at {s.offset} bytes {s.bytes}" for s in p.slots]
    lines += [f"fresh {_names(p.fresh)}"] if p.fresh else []
    place = "" if p.arena_device == "cpu" else f" on {json.dumps(p.arena_device)}"
    apart = "" if p.align == ALIGN else f" align {p.align}"
    lines.append(f"arena {p.arena_bytes}{apart}{place}")
    lines += [_refusal_text(r) for r in p.refusals]
    return declared + "\n" + "\n".join(lines) + "\n"


def _buffers(p: Plan) -> list[Buffer]:
    """The buffers that steps and memory mention (a pass may have made new ones)."""
    out = [*(x.buffer for x in p.slots), *p.fresh]
    for k in kernels_of(p.steps):
        out += [*k.args, *(x.buffer for x in k.locals)]
    for s in p.steps:
        out += s.outs if isinstance(s, Extern) else ()
    return out


def _names(buffers: tuple[Buffer, ...]) -> str:
    return ", ".join(b.name for b in buffers)


def step_text(s: Step) -> str:
    match s:
        case Kernel():
            return kernel_text(s)
        case Bundle():
            inner = "\n".join(map(kernel_text, s.kernels)).replace("\n", "\n  ")
            return f"bundle {s.name} of {len(s.kernels)}\n  {inner}"
        case Extern():
            return extern_text(s)
        case Free():
            return f"free {s.buffer.name}"


def kernel_text(k: Kernel) -> str:
    """The head line, the locals by kind, then each stage with its nests."""
    head = f"kernel {k.name}"
    head += f" grid {axes_text(k.grid)}" if k.grid else ""
    head += f" lanes {k.lanes.text()}" if k.lanes else ""
    head += f" grain {k.grain}" if k.grain != 1 else ""
    head += "" if k.tile is None else f" {_tile_text(k.tile)}"
    head += f" args {_names(k.args)}" if k.args else ""
    lines = [head + origins_text(k.origins)]
    lines += [f"  {x.kind} {x.buffer.name}" for x in k.locals]
    for stage in k.stages:
        lines.append(f"  stage {axes_text(stage.loops)}".rstrip())
        lines += [nest_text(n, "    ") for n in stage.nests]
    return "\n".join(lines)


def _tile_text(t: Tile) -> str:
    """`tile 4 1024 warps 8 stages 2`: points, then loop iterations, of one block."""
    stages = "" if t.stages == 1 else f" stages {t.stages}"
    return f"tile {t.points} {t.loop} warps {t.warps}{stages}"


def _refusal_text(r: Refusal) -> str:
    at = "" if r.at == NOWHERE else f" at {json.dumps(r.at.file)} {r.at.line}"
    return f"refusal {r.code} {json.dumps(r.why)}{at}"


def parse(source: str) -> Plan:
    """The plan that the text describes. Errors: InternalError naming the line."""
    return _PlanReader(lines_of(source)).plan()


class _PlanReader:
    """Reads the graph up to the line `plan`, then steps and memory."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines
        self.reader = Reader()
        self.at = 0
        self.steps: list[Step] = []
        self.slots: list[Slot] = []
        self.fresh: tuple[Buffer, ...] = ()
        self.arena = 0
        self.align = ALIGN
        self.arena_device = "cpu"
        self.refusals: list[Refusal] = []

    def plan(self) -> Plan:
        while self.at < len(self.lines) and [t.text for t in self._line.tokens] != ["plan"]:
            self.at = self.reader.statement(self.lines, self.at)
        self.at += 1
        graph = self.reader.graph()
        while self.at < len(self.lines):
            self._statement()
        return Plan(graph, tuple(self.steps), tuple(self.slots), self.fresh, self.arena,
                    tuple(self.refusals), self.arena_device, self.align)  # fmt: skip

    @property
    def _line(self) -> Line:
        return self.lines[self.at]

    def _statement(self) -> None:
        read = {
            "kernel": self._kernel, "bundle": self._bundle, "free": self._free,
            "slot": self._slot, "fresh": self._fresh, "arena": self._arena,
            "refusal": self._refusal,
        }.get(self._line.peek().text)  # fmt: skip
        if read is not None and self._line.peek(1).kind in ("name", "number"):
            self.at += 1
            line = self.lines[self.at - 1]
            line.next()
            read(line)
            line.end()
            return
        node, self.at = self.reader.node(self.lines, self.at)
        assert isinstance(node, Extern)
        self.steps.append(node)

    def _buffers(self, line: Line) -> tuple[Buffer, ...]:
        out = [self.reader.buffer(line)]
        while line.take(","):
            out.append(self.reader.buffer(line))
        return tuple(out)

    def _kernel(self, line: Line) -> None:
        name = line.name()
        grid = self.reader.axes(line) if line.take("grid") else ()
        lanes: Axis | None = self.reader.axes(line)[0] if line.take("lanes") else None
        grain = line.integer() if line.take("grain") else 1
        tile = self._tile(line) if line.take("tile") else None
        args = self._buffers(line) if line.take("args") else ()
        inner: list[Local] = []
        while self.at < len(self.lines) and self._is_local(self._line):
            kind = self._line.name()
            inner.append(Local(self.reader.buffer(self._line), kind))
            self.at += 1
        stages: list[Stage] = []
        while self.at < len(self.lines) and self._begins_stage(self._line):
            stages.append(self._stage())
        kernel = Kernel(name, grid, lanes, tuple(stages), tuple(inner), args, grain, line.origins,
                        tile)  # fmt: skip
        self.steps.append(kernel)

    def _bundle(self, line: Line) -> None:
        name = line.name()
        line.expect("of")
        count, first = line.integer(), len(self.steps)
        for _ in range(count):
            self._statement()
        inner = tuple(kernels_of(self.steps[first:]))
        self.steps[first:] = [Bundle(name, inner)]

    @staticmethod
    def _tile(line: Line) -> Tile:
        points, loop = line.integer(), line.integer()
        line.expect("warps")
        warps = line.integer()
        return Tile(points, loop, warps, line.integer() if line.take("stages") else 1)

    @staticmethod
    def _is_local(line: Line) -> bool:
        return line.peek().text in LOCAL_KINDS and line.peek(1).kind == "name"

    @staticmethod
    def _begins_stage(line: Line) -> bool:
        return line.peek().text == "stage" and line.peek(1).text not in ("[", "=", ",")

    def _stage(self) -> Stage:
        line = self._line
        line.next()
        loops = self.reader.axes(line) if line.peek().kind == "name" else ()
        line.end()
        self.at += 1
        nests: list[Nest] = []
        while self.at < len(self.lines) and self._line.peek(1).text == "[":
            node, self.at = self.reader.node(self.lines, self.at)
            assert isinstance(node, Nest)
            nests.append(node)
        return Stage(loops, tuple(nests))

    def _free(self, line: Line) -> None:
        self.steps.append(Free(self.reader.buffer(line)))

    def _slot(self, line: Line) -> None:
        b = self.reader.buffer(line)
        line.expect("at")
        offset = line.integer()
        line.expect("bytes")
        self.slots.append(Slot(b, offset, line.integer()))

    def _fresh(self, line: Line) -> None:
        self.fresh = self._buffers(line)

    def _arena(self, line: Line) -> None:
        self.arena = line.integer()
        if line.take("align"):
            self.align = line.integer()
        if line.take("on"):
            self.arena_device = line.string()

    def _refusal(self, line: Line) -> None:
        code, why = line.name(), line.string()
        at = Loc(line.string(), line.integer()) if line.take("at") else NOWHERE
        self.refusals.append(Refusal(code, why, at))
