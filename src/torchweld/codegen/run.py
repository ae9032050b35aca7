"""Plan -> Program: one C++ translation unit, the Triton kernels, and the launch list.

Kernels whose texts are equal (layers repeat) become one function that is launched with different
arguments. A kernel with a tile becomes Triton, any other C++.
"""

from __future__ import annotations

import importlib
import re
from typing import Any

from torchweld.codegen.alike import key_of, printed
from torchweld.codegen.cpp_index import memory_bytes
from torchweld.codegen.cpp_kernel import print_kernel
from torchweld.codegen.launch import Assembler
from torchweld.codegen.settle import settle
from torchweld.codegen.sizes import symbols_of
from torchweld.ir.loop import Buffer
from torchweld.ir.plan import Bundle, Kernel, Plan, kernels_of
from torchweld.ir.program import ALIGN, Artifact, Program

# -fwrapv: integers wrap. No contraction: a * b + c rounds twice, as eager does. Errno, traps and
# exceptions are not looked at by anybody.
CXX_FLAGS = (
    "-std=c++17", "-O2", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti",
    "-fno-asynchronous-unwind-tables", "-fno-stack-protector", "-w",
)  # fmt: skip

STREAM_RESULT = 4 << 20  # bytes from which a result is written past the caches
STREAM_TEMP = 16 << 20  # a temporary is read again soon: only what no cache holds



def generate(plan: Plan) -> Program:
    """The Program of `plan`.

    Errors: InternalError for what generated code cannot express; Unsupported W202 for a kernel that
    cannot run in tiles.
    """
    names, source = _functions(plan)
    tiles = _tiled(plan)
    a = Assembler(plan)
    a.assemble(names | {k: x.functions[0] for k, x in tiles.items()})
    outputs = a.outputs()
    functions = tuple(dict.fromkeys(names.values()))
    artifacts = (Artifact("cpp", source, functions),) if functions else ()
    return Program(
        artifacts + tuple(dict.fromkeys(tiles.values())),
        tuple(a.tensors),
        tuple(a.steps),
        sum(b.role == "input" for b in plan.graph.inputs),
        outputs,
        plan.arena_bytes,
        {"cxx_flags": CXX_FLAGS, ALIGN: plan.align} | _origins(plan, tiles),
        plan.arena_device,
        sizes=a.sizes(),
    )


def _tiled(plan: Plan) -> dict[str, Artifact]:
    """Kernel or bundle -> its Triton text: the same object for equal ones."""
    found: dict[str, Artifact] = {}
    known: dict[Artifact, Artifact] = {}
    for s in plan.steps:
        if isinstance(s, Bundle):
            made = _triton("triton_bundle").print_bundle(s).artifact()
        elif isinstance(s, Kernel) and s.tile is not None:
            made = printed(key_of(s), _tiled_text, s)
        else:
            continue
        found[s.name] = known.setdefault(made, made)
    return found


def _tiled_text(k: Kernel) -> Artifact:
    made: Artifact = _triton("triton_kernel").print_tiled(k).artifact()
    return made


def _triton(name: str) -> Any:
    """A module that prints for GPUs, which most processes have none of."""
    return importlib.import_module(f"torchweld.codegen.{name}")


def _cpp_text(k: Kernel, streamed: frozenset[Buffer]) -> str:
    return print_kernel(settle(k), streamed, symbols_of(k))


def _origins(plan: Plan, tiles: dict[str, Artifact]) -> dict[str, object]:
    """What the first kernel of each Triton text came from: not in the text, which layers share."""
    shown: dict[str, str] = {}
    for s in plan.steps:
        if isinstance(s, Kernel | Bundle) and s.name in tiles:
            shown.setdefault(tiles[s.name].functions[0], _origin(s))
    return {"origins": shown} if shown else {}


def _origin(s: Kernel | Bundle) -> str:
    found = dict.fromkeys(o for k in kernels_of((s,)) for o in k.origins)
    return ", ".join(found)[:90]


def _functions(plan: Plan) -> tuple[dict[str, str], str]:
    """Kernel name -> function name, and the text of the translation unit."""
    streamed = _streamed(plan)
    names: dict[str, str] = {}
    known: dict[str, str] = {}
    parts = ['#include "weld_vec.h"', "namespace weld {"]
    for k in plan.steps:
        if not isinstance(k, Kernel) or k.tile is not None:
            continue
        past = streamed & frozenset(k.args)
        key = (key_of(k), tuple(b in past for b in k.args))
        text = printed(key, _cpp_text, k, past)
        if text not in known:
            known[text] = _identifier(k.name, known)
            parts += ["", *_comment(k), text.replace("@", known[text], 1)]
        names[k.name] = known[text]
    parts += ["", "}  // namespace weld", ""]
    return names, "\n".join(parts)


def _identifier(name: str, known: dict[str, str]) -> str:
    base = name if re.fullmatch(r"k\d+", name) else "k_" + re.sub(r"\W+", "_", name).strip("_")
    taken = set(known.values())
    return base if base not in taken else f"{base}_{len(taken)}"


def _comment(k: Kernel) -> list[str]:
    if not k.origins:
        return []
    text = re.sub(r"[^\x20-\x7e]|\\", "?", ", ".join(k.origins))
    return [f"// {text[:90]}"]


def _streamed(plan: Plan) -> frozenset[Buffer]:
    fresh = set(plan.fresh)
    large = set()
    for k in plan.steps:
        if isinstance(k, Kernel):
            for b in k.args:
                if memory_bytes(b) >= (STREAM_RESULT if b in fresh else STREAM_TEMP):
                    large.add(b)
    return frozenset(large)
