"""Random DAGs of many small kernels (hypothesis), as text: wide, with operators in between.

Nothing in them fuses into one loop nest: every node reads its operands from the other end.
"""

from hypothesis import strategies as st

SIZES = (3, 8, 21)


def _node(draw, out, operands, n):
    """One node that writes `out`, of `n` elements."""
    kind = draw(st.sampled_from(("map", "map", "map", "sum", "operator")))
    x, y = (draw(st.sampled_from(operands)) for _ in range(2))
    if kind == "operator":
        return f"{out} = test.twice.default({x})"
    if kind == "sum":
        return f"{out}[i] = max over j:{n} of {x}[j] - {y}[{n - 1} - i]  for i:{n}"
    sign = draw(st.sampled_from("+-*"))
    return f"{out}[i] = {x}[{n - 1} - i] {sign} {y}[{n - 1} - i]  for i:{n}"


@st.composite
def small_kernels(draw, most=14):
    """A program: nodes of three sizes; some write an input that others have read."""
    lines = [f"x{n}: f32[{n}] input\nz{n}: f32[{n}] input" for n in SIZES]
    known = {n: [f"x{n}", f"z{n}"] for n in SIZES}
    nodes = []
    for k in range(draw(st.integers(4, most))):
        n = draw(st.sampled_from(SIZES))
        if draw(st.integers(0, 7)) == 0:
            nodes.append(f"x{n}[i] = z{n}[i] * {k}.0  for i:{n}")
            continue
        out = f"t{k}"
        lines.append(f"{out}: f32[{n}]")
        nodes.append(_node(draw, out, known[n], n))
        known[n].append(out)
    made = [b for found in known.values() for b in found[2:]]
    return "\n".join([*lines, *nodes, "return " + ", ".join(made[-6:] or ["x3"]), ""])
