"""The text form of plans and programs."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from tests.ir.plain_plans import plain_plan
from tests.ir.strategies import loop_graphs
from tests.ir.test_plan_eval import softmax_plan

from torchweld.base.errors import Refusal
from torchweld.base.loc import Loc
from torchweld.ir.dtype import DType
from torchweld.ir.loop import axis
from torchweld.ir.plan import Free, Slot, Tile
from torchweld.ir.plan_text import parse, text
from torchweld.ir.program import (
    Alloc,
    Artifact,
    Call,
    Drop,
    Launch,
    MakeView,
    Program,
    TensorArg,
    TensorSpec,
    TorchArg,
)
from torchweld.ir.program_text import text as program_text


@settings(deadline=None, max_examples=100, suppress_health_check=list(HealthCheck))
@given(loop_graphs())
def test_the_text_form_of_a_plan_round_trips(g):
    plan = plain_plan(g)
    assert parse(text(plan)) == plan


def test_a_kernel_is_printed_as_its_loops():
    shown = text(softmax_plan()).split("plan\n")[1]
    assert shown == (
        "kernel k0 grid i:2 args x, y\n"
        "  scalar m\n"
        "  scalar s\n"
        "  row e\n"
        "  stage j:3\n"
        "    m[i] = max over j:3 of x[i, j]  for i:2\n"
        "  stage j:3\n"
        "    e[i, j] = exp(x[i, j] - m[i])  for i:2, j:3\n"
        "    s[i] = sum over j:3 of e[i, j]  for i:2\n"
        "  stage j:3\n"
        "    y[i, j] = e[i, j] / s[i]  for i:2, j:3\n"
        "fresh y\n"
        "arena 0\n"
    )


def test_every_field_of_a_plan_round_trips():
    plan = softmax_plan()
    (kernel,) = plan.steps
    kernel = replace(kernel, lanes=axis("l", 16), grain=4, origins=("softmax", "a b"),
                     tile=Tile(4, 1024, 8, 2))  # fmt: skip
    e = kernel.locals[2].buffer
    refusals = (Refusal("W206", 'a "quoted" reason'), Refusal("W206", "b", Loc("m.py", 12)))
    plan = replace(plan, steps=(kernel, Free(e)), slots=(Slot(e, 64, 24),), arena_bytes=128,
                   refusals=refusals, arena_device="cuda:1")  # fmt: skip
    assert parse(text(plan)) == plan


def test_a_program_is_printed_with_every_step():
    f32 = DType.F32
    program = Program(
        (Artifact("cpp", "int x;\n", ("k0",)),),
        (TensorSpec("input", 0, f32, (2, 3), (3, 1), 0),
         TensorSpec("arena", 64, f32, (3,), (2,), 1, "cuda:0"),
         TensorSpec("fresh", 0, f32, (), (), 0)),
        (Alloc(2), Launch("k0", (0, 1), 6, 2), MakeView(1, 2),
         Call("aten.f.default", (TensorArg(0), 1.5, None, (True, "s")),
              (("to", TorchArg("dtype", "torch.f")),), (1, 2)), Drop(1)),
        1, (2, None), 128, {"cxx_flags": "-O2"},
    )  # fmt: skip
    assert program_text(program) == (
        "t0 input 0  f32[2, 3]\n"
        "t1 arena 64  f32[3] strides [2] offset 1 on cuda:0\n"
        "t2 fresh  f32[]\n"
        "inputs 1 arena 128\n"
        "\n"
        "alloc t2\n"
        "launch k0(t0, t1) over 6 grain 2\n"
        "t1 = view t2\n"
        't1, t2 = call aten.f.default(t0, 1.5, none, [true, "s"], to=@dtype("torch.f"))\n'
        "drop t1\n"
        "return t2, none\n"
        "meta cxx_flags = '-O2'\n"
        "\n"
        f"{'---- cpp: k0 ':-<80}\n"
        "int x;\n\n"
    )
