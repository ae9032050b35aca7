"""Every error and refusal code, one row each: the documentation is printed from this table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Code:
    """A stable code, what it means, and what the reader can do today."""

    code: str
    title: str
    fix: str


_ROWS = (
    # capture: W1xx
    (
        "W101",
        "branch on the value of a Tensor",
        "use torch.where, or move the branch out of the compiled function",
    ),
    (
        "W102",
        "value of a Tensor read in Python",
        "keep the value as a Tensor, or read it outside of the compiled function",
    ),
    (
        "W103",
        "call that the capture cannot see into",
        "call it outside of the compiled function, or mark the caller with torchweld.disable",
    ),
    (
        "W104",
        "operator that cannot run on fake tensors",
        "call it outside of the compiled function, or register a fake kernel for it",
    ),
    ("W105", "output shape that depends on data", "call it outside of the compiled function"),
    ("W106", "side effect that cannot be replayed", "move it out of the compiled function"),
    (
        "W107",
        "object that the capture does not model",
        "pass plain tensors, numbers, containers and modules",
    ),
    (
        "W108",
        "function marked with disable",
        "remove the mark, or keep it outside of the compiled function",
    ),
    (
        "W109",
        "generator, coroutine or other frame that is not captured",
        "call it outside of the compiled function",
    ),
    (
        "W110",
        "bytecode instruction that the capture does not know",
        "run on a supported Python version",
    ),
    (
        "W111",
        "exception that leaves the compiled function during capture",
        "none needed: the frame runs eagerly and raises as usual",
    ),
    (
        "W112",
        "tensor kind that is not compiled yet",
        "use dense strided tensors on the CPU or on CUDA",
    ),
    ("W113", "no tensor operation in the frame", "none needed: there is nothing to compile"),
    (
        "W114",
        "recompile limit reached",
        "make the changing value a Tensor, or raise options={'recompile_limit': n}",
    ),
    (
        "W115",
        "active mode that changes what operators mean",
        "leave torch function and dispatch modes before the compiled call",
    ),
    ("W116", "capture exceeds its limits", "split the function, or shorten the unrolled loop"),
    (
        "W117",
        "graph break that the program asks for",
        "remove the call of graph_break",
    ),
    (
        "W118",
        "value that changed while the function was captured",
        "none needed: this call ran eagerly, a later one is compiled",
    ),
    (
        "W119",
        "graph of few operators beside a break",
        "none needed: its operators run one by one, as in eager",
    ),
    (
        "W120",
        "random number, or a time, that decides how Python goes on",
        "none needed: the graph ends before it; or draw it outside, or as a Tensor",
    ),
    (
        "W121",
        "graph that its own effects make useless: not compiled before it is used again",
        "none needed: its operators run one by one, as in eager; or set TORCHWELD_SKIP=passing",
    ),
    (
        "W122",
        "Python's own frames are looked at",
        "none needed: the frame runs eagerly, so that they are there",
    ),
    (
        "W123",
        "object that does something when it is dropped",
        "none needed: the frame runs eagerly, so that it is dropped where Python drops it",
    ),
    (
        "W124",
        "number of rounds or items that differs from call to call",
        "none needed: what is around it is compiled once; or pad to one length, or stack the items "
        "into a Tensor before the call",
    ),
    # graph, lower, fuse, codegen: W2xx
    ("W201", "graph cannot be made functional", "report it with the graph from TORCHWELD_DUMP"),
    ("W202", "operator without a lowering runs in ATen", "none needed"),
    ("W203", "dtype that generated code does not have", "none needed: the operator runs in ATen"),
    ("W204", "size that has no bound", "none needed: the operator runs in ATen"),
    (
        "W205",
        "gradients that are not compiled: the graph runs through ATen under autograd",
        "do as the reason says, or call under torch.no_grad() if no gradient is wanted",
    ),
    ("W206", "two loop nests that were not fused", "none needed"),
    (
        "W207",
        "weights not frozen: gradients are required",
        "call under torch.no_grad() or torch.inference_mode(), or drop options={'freeze': True}",
    ),
    (
        "W208",
        "operator that needs the value of a number that changes",
        "none needed: the graph is compiled for each value; or pass the number as a Tensor",
    ),
    # runtime: W3xx
    (
        "W301",
        "no C++ compiler found",
        "install g++ or clang++ (Debian: apt-get install g++), or set CXX",
    ),
    (
        "W302",
        "the C++ compiler failed on generated code",
        "report it with the folder that TORCHWELD_DUMP writes",
    ),
    (
        "W303",
        "cache entry that is damaged or not ours",
        "none needed: it is rebuilt; remove the folder if this repeats",
    ),
    (
        "W304",
        "cache folder that cannot be written",
        "set TORCHWELD_CACHE_DIR to a writable folder, or to off",
    ),
    ("W305", "native driver not available", "reinstall torchweld with a C compiler at hand"),
    ("W306", "matrix product left to ATen", "none needed"),
    # api: W4xx
    ("W401", "wrong argument to torchweld.compile", "see help(torchweld.compile)"),
    (
        "W402",
        "unknown backend",
        "pass 'torchweld', 'eager', a callable, or a name from torch.compiler.list_backends()",
    ),
    (
        "W403",
        "graph break under fullgraph=True",
        "remove the cause that is named above, or drop fullgraph=True",
    ),
    (
        "W404",
        "compilation while the stance forbids it",
        "compile for these arguments before, or leave set_stance('fail_on_recompile')",
    ),
    (
        "W405",
        "size that was promised to vary, but cannot",
        "use maybe_mark_dynamic, or change the line that needs one size",
    ),
    (
        "W406",
        "call with sizes that were promised not to come",
        "change the bounds or the shape specs, or the arguments of this call",
    ),
    # internal: W9xx
    (
        "W901",
        "internal error of torchweld",
        "the frame ran eagerly; please report it with TORCHWELD=strict output",
    ),
)

CODES: dict[str, Code] = {row[0]: Code(*row) for row in _ROWS}
