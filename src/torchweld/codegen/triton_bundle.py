"""Bundle -> one Triton function: a range of the blocks for each kernel.

    b = tl.program_id(0)
    if b < 6:                             # two kernels of one text: 2 and 4 blocks
        if b < 2:
            x0_0 = t0
            at0 = b
        else:
            x0_0 = t2
            at0 = b - 2
        part0(x0_0, t1, at0)
    else:
        part1(t3, t4, b - 6, 5000)

A part is the text of a kernel that counts its blocks from a parameter. Kernels whose parts have
equal texts share it, however many points they have: branches choose pointers, first block and
points, then one call follows, which Triton inlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torchweld.codegen.alike import key_of, printed
from torchweld.codegen.tiles import blocks_of, tiled
from torchweld.codegen.triton_kernel import TilePrinter, TritonKernel
from torchweld.ir.loop import Buffer
from torchweld.ir.plan import Bundle, Kernel


@dataclass(slots=True)
class _Part:
    """Kernels with one text. masked: it takes the number of points."""

    name: str
    text: str
    masked: bool
    members: list[_Member] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return sum(m.blocks for m in self.members)


@dataclass(frozen=True, slots=True)
class _Member:
    """args: the names of its pointers."""

    args: tuple[str, ...]
    blocks: int
    points: int


def print_bundle(bundle: Bundle) -> TritonKernel:
    """The Triton form of a bundle. Errors: Unsupported W202 for a kernel that cannot be a tile."""
    names = {b: f"t{i}" for i, b in enumerate(bundle.args)}
    parts: dict[object, _Part] = {}
    types: dict[Buffer, str] = {}
    made = [printed(("part", key_of(k)), _alone, k) for k in bundle.kernels]
    for k, (one, kinds, total, masked) in zip(bundle.kernels, made, strict=True):
        types |= dict(zip(k.args, kinds, strict=True))
        # a branch chooses between pointers of one type; masks whose end is a multiple of 16
        # elements cover whole accesses
        key = one.text, *kinds, masked and total % 16 == 0
        part = parts.setdefault(key, _Part(f"part{len(parts)}", one.text, masked))
        part.members.append(_Member(tuple(names[b] for b in k.args), blocks_of(k).value, total))
    lines = [f"def @({', '.join(names.values())}):", "    b = tl.program_id(0)"]
    lines += _branches(list(parts.values()))
    texts = tuple(p.text.replace("@", p.name, 1) for p in parts.values())
    options = _options(bundle.kernels, [x[0] for x in made], " ".join(types[b] for b in names))
    return TritonKernel("bundle", "\n".join(lines) + "\n", options, texts)


def _alone(k: Kernel) -> tuple[TritonKernel, tuple[str, ...], int, bool]:
    """The text of one kernel as a part, the types of its pointers, how many points it has, and
    whether they are masked."""
    printer = TilePrinter(tiled(k), part=True)
    made = printer.kernel()
    kinds = tuple(printer.parameter(b) for b in k.args)
    return made, kinds, printer.tiled.total.value, printer.tiled.masked


def _options(
    kernels: Sequence[Kernel], made: Sequence[TritonKernel], signature: str
) -> tuple[tuple[str, int | str], ...]:
    tiles = [k.tile for k in kernels if k.tile is not None]
    found: list[tuple[str, int | str]] = [
        ("signature", signature), ("num_warps", max(t.warps for t in tiles)),
        ("num_stages", max(t.stages for t in tiles)),
    ]  # fmt: skip
    checked = any(("debug", 1) in one.options for one in made)
    return (*found, ("debug", 1)) if checked else tuple(found)


def _branches(parts: list[_Part]) -> list[str]:
    """The ranges of the parts, one after the other."""
    lines: list[str] = []
    first = 0
    for i, part in enumerate(parts):
        end = first + part.blocks
        word = "if" if i == 0 else "elif"
        head = "else:" if i and i + 1 == len(parts) else f"{word} b < {end}:"
        pad = "        "
        if len(parts) == 1:
            head, pad = "", "    "
        lines += [f"    {head}"] if head else []
        lines += [pad + line for line in _call(part, first, i)]
        first = end
    return lines


def _call(part: _Part, first: int, number: int) -> list[str]:
    """Which pointers a block of the part works on, and the call."""
    columns = list(zip(*(m.args for m in part.members), strict=True))
    chosen = {i: f"x{number}_{i}" for i, c in enumerate(columns) if len(set(c)) > 1}
    args = [chosen.get(i, c[0]) for i, c in enumerate(columns)]
    sizes = {m.points for m in part.members} if part.masked else set()
    last = [str(n) if len(sizes) == 1 else f"n{number}" for n in list(sizes)[:1]]
    if len(part.members) == 1:
        return [f"{part.name}({', '.join([*args, _behind(first), *last])})"]
    rows = []
    for m in part.members:
        row = [f"{name} = {m.args[i]}" for i, name in chosen.items()]
        row += [f"n{number} = {m.points}"] if len(sizes) > 1 else []
        rows.append((first, [*row, f"at{number} = {_behind(first)}"]))
        first += m.blocks
    return [*_choice(rows), f"{part.name}({', '.join([*args, f'at{number}', *last])})"]


def _behind(first: int) -> str:
    return f"b - {first}" if first else "b"


def _choice(rows: list[tuple[int, list[str]]]) -> list[str]:
    """A binary search for the last row that begins at or before block b."""
    if len(rows) == 1:
        return rows[0][1]
    half = len(rows) // 2
    low, high = (_choice(r) for r in (rows[:half], rows[half:]))
    return [
        f"if b < {rows[half][0]}:", *(f"    {line}" for line in low),
        "else:", *(f"    {line}" for line in high),
    ]  # fmt: skip
