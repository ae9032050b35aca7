"""Programs of symbolic sizes in Triton's interpreter: run by test_triton_sizes.py.

A process of its own, because Triton decides once per process whether it interprets.
"""

import sys

from tests.runtime.sized_graphs import BOTH, GRAPHS, SIZES, Sized

from torchweld.base.config import current, override
from torchweld.fixing import program_of
from torchweld.ir.lengthen import Origin
from torchweld.pipeline import INCLUDE
from torchweld.runtime.executable import make_executable

for name in sys.argv[1:] or GRAPHS:
    graph = Sized(BOTH + GRAPHS[name], "python", interpret=True)
    for values in (*SIZES[:-2], (2, 200)):  # as many as a block has positions, and more
        graph.check(*values)
    with override(interpret=True, verify=True, driver="python"):
        alone = program_of(Origin(graph.graph), (5, 64), current())
        graph.executable = make_executable(alone, current(), INCLUDE)
    graph.check(5, 64)
    print(name, *sorted({a.lang for a in graph.program.artifacts}), sep="; ")
