"""The text form of a Program: tensors, launch list and sources, for dumps and golden files."""

from __future__ import annotations

import json

from torchweld.base.errors import InternalError
from torchweld.ir.program import (
    Alloc,
    Artifact,
    Call,
    CallArg,
    Draw,
    Drop,
    Instruction,
    Launch,
    MakeView,
    Program,
    SizeArg,
    Sizes,
    TensorArg,
    TensorSpec,
    TorchArg,
)

_INDEXED = ("input", "const", "arena", "number")


def text(p: Program) -> str:
    """Tensors, then the steps in order, then every source in full.

    t0 input 0   f32[64, 32]
    t1 arena 256 f32[64]
    launch k0(t0, t1) over 64 grain 4
    return t2
    """
    lines = [tensor_text(k, t) for k, t in enumerate(p.tensors)]
    lines += sizes_text(p.sizes) if p.sizes is not None else []
    lines += [f"inputs {p.n_inputs} arena {p.arena_bytes}", ""]
    lines += [step_text(s) for s in p.steps]
    lines += [f"return {', '.join(_name(t) for t in p.outputs)}".rstrip()]
    lines += [f"meta {key} = {value!r}" for key, value in sorted(p.meta.items())]
    lines += [artifact_text(a) for a in p.artifacts]
    if p.prologue is not None:
        inputs = ", ".join(map(_name, p.prologue.frozen))
        lines += ["", f"prologue of {inputs}", text(p.prologue.program)]
    return "\n".join(lines) + "\n"


def sizes_text(s: Sizes) -> list[str]:
    """The table of sizes: where its rows come from, and the numbers that they replace."""
    lines = [
        f"z{k} = {kind} {dim} of t{n} in {'' if lo is None else lo}..{'' if hi is None else hi}"
        for k, ((kind, n, dim), (lo, hi)) in enumerate(zip(s.readings, s.bounds, strict=True))
    ]
    row, code = len(s.readings), list[str]()
    for operation, n in s.code:
        if operation == "store":
            lines.append(f"z{row} = {' '.join(code)}")
            row, code = row + 1, []
        else:
            code.append({"const": f"{n}", "row": f"z{n}"}.get(operation, operation))
    return lines + [f"{p.what} {p.dim} of {p.at} is z{p.row}" for p in s.patches]


def _name(tensor: int | None) -> str:
    return "none" if tensor is None else f"t{tensor}"


def tensor_text(number: int, t: TensorSpec) -> str:
    """One line; row-major strides, offset 0 and cpu go without saying."""
    step, row_major = 1, []
    for n in reversed(t.sizes):
        row_major.append(step)
        step *= max(n, 1)
    strides = "" if list(t.strides) == row_major[::-1] else f" strides {list(t.strides)}"
    offset = f" offset {t.offset}" if t.offset else ""
    device = "" if t.device == "cpu" else f" on {t.device}"
    place = f"{t.place} {t.index}" if t.place in _INDEXED else t.place
    return f"t{number} {place}  {t.dtype.value}{list(t.sizes)}{strides}{offset}{device}"


def step_text(s: Instruction) -> str:
    match s:
        case Alloc():
            return f"alloc t{s.tensor}"
        case MakeView():
            return f"t{s.tensor} = view t{s.source}"
        case Launch():
            args = ", ".join(map(_name, s.args))
            return f"launch {s.function}({args}) over {s.extent} grain {s.grain}"
        case Call():
            args = ", ".join(
                [arg_text(a) for a in s.args] + [f"{k}={arg_text(a)}" for k, a in s.kwargs]
            )
            outs = f"{', '.join(map(_name, s.results))} = " if s.results else ""
            return f"{outs}call {s.op}({args})"
        case Draw():
            return f"t{s.seed}, t{s.block} = draw {s.count} from {s.device}"
        case Drop():
            return f"drop t{s.tensor}"
    raise InternalError(f"no text for the step {s!r}")


def arg_text(a: CallArg) -> str:
    """An operator argument, written as in the LoopGraph's externs."""
    match a:
        case TensorArg():
            return _name(a.tensor)
        case SizeArg():
            return f"z{a.row}"
        case TorchArg():
            return f"@{a.kind}({json.dumps(a.name)})"
        case tuple():
            return f"[{', '.join(map(arg_text, a))}]"
        case str():
            return json.dumps(a)
        case None | bool():
            return str(a).lower()
        case _:
            return repr(a)


def artifact_text(a: Artifact) -> str:
    bar = f"---- {a.lang}: {', '.join(a.functions)} "
    return f"\n{bar:-<80}\n{a.source}"
