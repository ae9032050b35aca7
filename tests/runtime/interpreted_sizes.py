"""Programs of symbolic sizes in Triton's interpreter: run by test_triton_sizes.py.

A process of its own, because Triton decides once per process whether it interprets.
"""

import sys

from tests.runtime.sized_graphs import BOTH, GRAPHS, SIZES, Sized

for name in sys.argv[1:] or GRAPHS:
    graph = Sized(BOTH + GRAPHS[name], "python", interpret=True)
    for values in (*SIZES[:-2], (2, 200)):  # as many as a block has positions, and more
        graph.check(*values)
    print(name, *sorted({a.lang for a in graph.program.artifacts}), sep="; ")
