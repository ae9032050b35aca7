"""Re-write the generated parts of docs/architecture.md by compiling its example.

    python tools/architecture_doc.py            rewrite the file
    python tools/architecture_doc.py --check    exit 1 if the file is stale
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from torchweld.base.config import current
from torchweld.capture.interp import capture
from torchweld.capture.session import Capture
from torchweld.codegen.run import generate
from torchweld.frame.decode import decode
from torchweld.frame.disasm import text as code_text
from torchweld.frames import prepare
from torchweld.fuse.run import fuse
from torchweld.graph.run import normalize
from torchweld.ir.loop_text import text as loop_text
from torchweld.ir.plan_text import text as plan_text
from torchweld.ir.program_text import text as program_text
from torchweld.lower.run import lower

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
MARK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def block(x, seen):  # type: ignore[no-untyped-def]
    y = torch.softmax(x * 2.0 + 1.0, dim=-1)
    seen.append(y.shape[0])
    return {"probabilities": y}


def sections() -> dict[str, str]:
    """Each stage's text for the example."""
    prepare()
    with torch.no_grad():
        region = capture(Capture(), block, (torch.zeros(64, 128), []))
        pair = normalize(region.graph, current())
    loop = lower(pair)
    plan = fuse(loop, current())
    program = generate(plan)
    assert region.finish is not None
    guards = "\n".join(g.text() for g in region.guards if g.source is not None)
    kernel = program.artifacts[0].source
    return {
        "bytecode": code_text(decode(block.__code__)),
        "graph": str(region.graph.graph).strip(),
        "guards": guards,
        "finish": region.finish.source,
        "aten": str(pair.forward).strip(),
        "loop": loop_text(loop),
        "plan": plan_text(plan),
        "cpp": kernel,
        "program": program_text(program),
    }


def main() -> int:
    texts = sections()
    page = PAGE.read_text(encoding="utf-8")

    def fill(m: re.Match[str]) -> str:
        body = re.sub(r"'/[^']*site-packages/", "'.../", texts[m[2]].strip())
        body = re.sub(r" at 0x[0-9a-f]+", "", body)
        return f"{m[1]}```text\n{body}\n```\n{m[3]}"

    fresh = MARK.sub(fill, page)
    if "--check" in sys.argv:
        if fresh != page:
            print(f"{PAGE.name} is stale: run `make bless`")
            return 1
        return 0
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
