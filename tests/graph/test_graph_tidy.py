"""What tidying removes and what it must keep; the verifier; imports."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch_capture import capture, compare, targets

from torchweld.base.config import Config
from torchweld.base.errors import InternalError
from torchweld.graph.run import normalize
from torchweld.graph.verify import verify
from torchweld.ir.graph import LOC, ORIGIN, VAL

aten = torch.ops.aten
X = torch.randn(4, 6)


def test_views_that_change_nothing_are_gone():
    def fn(x):
        x = x.view(4, 6).expand(4, 6).t().t().unsqueeze(0).squeeze(0)[:].permute(0, 1)
        return x.detach() + 1

    assert targets(compare(fn, X)) == ["aten.add.Tensor"]


def test_copies_that_change_nothing_are_gone():
    pair = compare(lambda x: x.clone().to(torch.float32).contiguous() + 1, X)
    assert targets(pair) == ["aten.add.Tensor"]


def test_copy_to_another_layout_stays():
    assert "aten.clone.default" in targets(compare(lambda x: x.t().contiguous() + 1, X))


def test_view_of_view_is_one_view():
    pair = compare(lambda x: x.view(2, 12).view(3, 8) * 2, X)
    assert targets(pair) == ["aten.view.default", "aten.mul.Tensor"]


def test_repeated_expression_is_computed_once():
    pair = compare(lambda x: torch.exp(x) + torch.exp(x) * torch.exp(x), X)
    assert targets(pair).count("aten.exp.default") == 1


def test_numbers_of_equal_value_and_other_type_are_not_merged():
    def fn(x):
        n = x.to(torch.int64)
        return n + 1, n + 1.0, n + True, x * 0.0, x * -0.0

    pair = compare(fn, X)
    assert targets(pair).count("aten.add.Tensor") == 3
    assert targets(pair).count("aten.mul.Tensor") == 2


def test_dead_code_is_gone():
    pair = compare(lambda x: (x.exp().sum(), x + 1)[1], X)
    assert targets(pair) == ["aten.add.Tensor"]


def test_uninitialised_memory_is_not_merged():
    def fn(x):
        a, b = torch.empty(4, 6), torch.empty(4, 6)
        a.copy_(x.t().contiguous().view(4, 6))
        b.zero_()
        return a, b

    compare(fn, X)


def test_attention_without_dropout_is_merged():
    q = torch.randn(1, 2, 5, 8)
    attend = F.scaled_dot_product_attention
    pair = compare(lambda q: attend(q, q, q) + attend(q, q, q), q)
    assert sum("attention" in t for t in targets(pair)) == 1


def test_passes_can_be_skipped():
    gm = capture(lambda x: torch.exp(x.view(4, 6)) + torch.exp(x.view(4, 6)), X)
    cfg = replace(Config(), skip=("simplify", "cse", "dce"), verify=True)
    assert targets(normalize(gm, cfg)).count("aten.view.default") == 2


def test_nodes_know_their_origin_and_value():
    gm = capture(lambda x: F.softmax(x, -1) * 2, X)
    pair = normalize(gm, Config())
    origins = [n.meta[ORIGIN] for n in pair.forward.nodes if n.op == "call_function"]
    assert origins == ["softmax", "mul"]
    for node in pair.forward.nodes:
        if node.op == "call_function":
            assert node.meta[VAL].shape == (4, 6) and LOC in node.meta


def test_what_lowering_handles_is_not_decomposed():
    from torchweld.graph.decompose import FROM_TORCH
    from torchweld.lower import run as lower  # fills the table
    from torchweld.lower.registry import supported

    assert lower and not {str(op) for op in FROM_TORCH} & set(supported())


def broken(change):
    pair = normalize(capture(lambda x: (x.add_(1), x.t(), x.exp()), X), Config())
    verify(pair)
    return change(pair) or pair


def test_verify_finds_an_operator_that_writes():
    def change(pair):
        node = next(n for n in pair.forward.nodes if n.target is aten.add.Tensor)
        node.target = aten.add_.Tensor

    with pytest.raises(InternalError, match="writes arguments"):
        verify(broken(change))


def test_verify_finds_a_missing_value():
    def change(pair):
        next(n for n in pair.forward.nodes if n.target is aten.exp.default).meta.clear()

    with pytest.raises(InternalError, match="no value"):
        verify(broken(change))


def test_verify_finds_a_wrong_number_of_outputs():
    with pytest.raises(InternalError, match="length"):
        verify(broken(lambda pair: replace(pair, aliases=(0, 0))))


def test_verify_finds_an_alias_of_another_value():
    with pytest.raises(InternalError, match="not a view"):
        verify(broken(lambda pair: replace(pair, aliases=(0, 0, 0))))


def test_verify_finds_an_input_returned_without_saying_so():
    pair = normalize(capture(lambda x: (x.t(), x + 1), X), Config())
    with pytest.raises(InternalError, match="without saying so"):
        verify(replace(pair, aliases=(None, None)))


def test_peers_compilers_are_not_imported():
    program = """
        import sys
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torchweld.base.config import Config
        from torchweld.graph.run import normalize
        assert "torch._dynamo" not in sys.modules
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        y = graph.call_function(torch.softmax, (x, -1))
        graph.output((graph.call_method("add_", (y, 1)),))
        x.meta["val"] = FakeTensorMode().from_tensor(torch.randn(3, 4))
        before = set(sys.modules)  # making a FakeTensorMode imports parts of torch._dynamo
        normalize(torch.fx.GraphModule({}, graph), Config())
        for name in ("torch._inductor.compile_fx", "torch._functorch.aot_autograd",
                     "torch._inductor.graph"):
            assert name not in sys.modules, name
        peers = ("torch._dynamo", "torch._inductor", "torch._functorch")
        more = [name for name in set(sys.modules) - before if name.startswith(peers)]
        assert not more, more
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
