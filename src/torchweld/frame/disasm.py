"""Code in the dialect as text, for golden tests and reports."""

from __future__ import annotations

from collections.abc import Iterator

from torchweld.frame.instr import Code, Instr


def text(code: Code) -> str:
    """One line an instruction, with source lines, labels and protected ranges.

    ```text
    def f(x)
       2      FOR_ITER              -> L2
       3  L1: LOAD_FAST             x
      protected L1..L2 -> L3 depth 1 lasti
    ```
    """
    labels = _labels(code)
    lines = [f"def {code.qualname}({', '.join(_parameters(code))})"]
    last = -1
    for i, instr in enumerate(code.instrs):
        number = "" if instr.line == last else str(instr.line)
        last = instr.line
        label = f"{labels[i]}:" if i in labels else ""
        lines.append(f"{number:>5} {label:>5} {_body(instr, labels)}")
    for row in code.protected:
        span = f"{labels[row.start]}..{labels.get(row.end, 'end')}"
        lasti = " lasti" if row.lasti else ""
        lines.append(f"  protected {span} -> {labels[row.target]} depth {row.depth}{lasti}")
    return "\n".join(lines) + "\n"


def _parameters(code: Code) -> Iterator[str]:
    plain = code.argcount + code.kwonly
    for i, name in enumerate(code.params[:plain]):
        if i == code.posonly and i:
            yield "/"
        if i == code.argcount and not code.varargs:
            yield "*"
        if i == code.argcount and code.varargs:
            yield f"*{code.varargs}"
        yield name
    if code.posonly and code.posonly == plain:
        yield "/"
    if code.varargs and not code.kwonly:
        yield f"*{code.varargs}"
    if code.varkw:
        yield f"**{code.varkw}"


def _labels(code: Code) -> dict[int, str]:
    """A name for each instruction that a jump or a protected range points to."""
    places = {instr.target for instr in code.instrs if instr.target is not None}
    for row in code.protected:
        places |= {row.start, row.end, row.target}
    count = len(code.instrs)
    return {place: f"L{i}" for i, place in enumerate(sorted(places), 1) if place < count}


def _body(instr: Instr, labels: dict[int, str]) -> str:
    op, _, argument = instr.text().partition(" ")
    target = "" if instr.target is None else f"-> {labels[instr.target]}"
    return f"{op:<22} {argument}{target}".rstrip()
