"""cuBLAS's workspaces while graphs are recorded: given back, unless somebody else may need them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

# each runs in a process of its own, where no other graph was ever captured
BEGIN = """
import threading
import torch, torchweld

LEAST = 4 << 20  # bytes; a workspace has more

def workspaces():
    blocks = (b for s in torch.cuda.memory_snapshot() for b in s["blocks"])
    return sum(b["size"] >= LEAST for b in blocks if b["state"] == "active_allocated")

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
net = net.cuda().bfloat16()
x = torch.randn(32, 64, device="cuda", dtype=torch.bfloat16)

def steps(model):
    for _ in range(5):
        net.zero_grad()
        loss = model(x).float().square().mean()
        loss.backward()
        grads = [p.grad.clone() for p in net.parameters()]
    return [loss.detach(), *grads]

expected = steps(net)
"""
END = """
for got, like in zip(steps(torchweld.compile(net)), expected, strict=True):
    torch.testing.assert_close(got, like, rtol=0.05, atol=0.01)
assert torchweld.statistics()["cuda_graphs"] == 2
"""
ALONE = f"""
assert workspaces() == 2  # of this thread and of autograd's
{END}
assert workspaces() == 0
"""
A_GRAPH_OF_THE_USERS = f"""
stream = torch.cuda.Stream()
a = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
with torch.cuda.stream(stream):
    want = a @ a
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        product = a @ a
before = workspaces()
{END}
assert workspaces() >= before
there = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(64)]
graph.replay()
torch.cuda.synchronize()
torch.testing.assert_close(product, want)
assert all((t == 7.0).all() for t in there)
"""
ANOTHER_THREAD = f"""
end = threading.Event()
other = threading.Thread(target=end.wait)
other.start()
{END}
end.set()
other.join()
assert workspaces() >= 2
"""


@pytest.mark.parametrize("program", [ALONE, A_GRAPH_OF_THE_USERS, ANOTHER_THREAD],
                         ids=["alone", "a graph of the user's", "another thread"])  # fmt: skip
def test_workspaces(program):
    done = subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
