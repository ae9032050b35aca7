"""One compiler on one case, in a process of its own: `python -m torchweld.workbench.worker`.

The parent writes one JSON request a line and reads one JSON answer a line, so that several
workers can take turns on the same cores.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchweld.workbench.cases import case_named
from torchweld.workbench.compare import largest_difference, tensors
from torchweld.workbench.suites import to_device
from torchweld.workbench.work import Work


def copy_elements(device: str) -> int:
    """Elements of f32 that the copy moves: 16 MB on a CPU, 512 MB on a GPU, past its cache."""
    return (4 if device == "cpu" else 128) * 1024 * 1024


Compiler = Callable[[Work], Callable[..., Any]]
SEED = 20
SETTLING = 64  # calls after something was compiled in the background


def _eager(work: Work) -> Callable[..., Any]:
    return work.compiled(lambda fn: fn, False)


def _torchweld(work: Work) -> Callable[..., Any]:
    return work.compiled(importlib.import_module("torchweld").compile, True)


def _torchweld_static(work: Work) -> Callable[..., Any]:
    compile = importlib.import_module("torchweld").compile
    return work.compiled(partial(compile, dynamic=False), True)


def _torchweld_frozen(work: Work) -> Callable[..., Any]:
    compile = importlib.import_module("torchweld").compile
    return work.compiled(partial(compile, options={"freeze": True}), True)


def _torch_compile(work: Work) -> Callable[..., Any]:
    return work.compiled(torch.compile, False)


def _torch_compile_static(work: Work) -> Callable[..., Any]:
    return work.compiled(partial(torch.compile, dynamic=False), False)


def _torch_compile_frozen(work: Work) -> Callable[..., Any]:
    # as an option it comes too late: the capture asks the global setting, read at the first import
    os.environ["TORCHINDUCTOR_FREEZING"] = "1"
    return work.compiled(torch.compile, False)


def _torch_reduce_overhead(work: Work) -> Callable[..., Any]:
    return work.compiled(partial(torch.compile, mode="reduce-overhead"), False)


def _bare_graph(work: Work) -> Callable[..., Any]:
    """Not a compiler: torchweld's launch list in a CUDA graph of the user's own, replayed as it is:
    no guards, no fresh outputs. What the GPU and a graph launch need."""
    compiled = importlib.import_module("torchweld").compile(work.fn, options={"cudagraphs": False})
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work.call(compiled)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work.call(compiled)

    def replay(*args: Any, **kwargs: Any) -> Any:
        graph.replay()
        return result

    return replay


def _torch_trace(work: Work) -> Callable[..., Any]:
    return torch.jit.trace(  # type: ignore[no-any-return,no-untyped-call]
        work.fn, work.args, check_trace=False, strict=False
    )


def _copy(work: Work) -> Callable[..., Any]:
    """Not a compiler: the bandwidth of a plain copy, measured between the others."""
    device = next(a.device for a in work.args if isinstance(a, torch.Tensor))
    source = torch.randn(copy_elements(device.type), device=device)
    target = torch.empty_like(source)
    return lambda *args, **kwargs: target.copy_(source)


def _unbroken(compiler: Compiler, work: Work) -> Callable[..., Any]:
    """What a compiler makes of the same model without its break."""
    work.fn.broken = False  # type: ignore[attr-defined]
    return compiler(work)


COMPILERS: dict[str, Compiler] = {
    "eager": _eager,
    "torchweld": _torchweld,
    "torchweld static": _torchweld_static,
    "torchweld frozen": _torchweld_frozen,
    "torchweld unbroken": partial(_unbroken, _torchweld),
    "torch.compile": _torch_compile,
    "torch.compile static": _torch_compile_static,
    "torch.compile unbroken": partial(_unbroken, _torch_compile),
    "torch.compile frozen": _torch_compile_frozen,
    "torch.compile reduce-overhead": _torch_reduce_overhead,
    "torch.jit.trace": _torch_trace,
    "bare graph": _bare_graph,
    "copy": _copy,
}


class OpCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the ATen calls that compute something: views and metadata are left out."""

    count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not func.is_view:
            self.count += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Worker:
    """The state of one worker process."""

    compiler: str
    work: Work
    device: str
    fn: Callable[..., Any] | None = None
    result: Any = None
    per_call: float = 0.0

    def call(self) -> Any:
        return self.work.call(self.fn)

    def synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def first(self, request: dict[str, Any]) -> dict[str, Any]:
        """Seconds from nothing but torch imported to the first result, of every size together.

        each: the seconds of every size, the compiler's import in the first.
        """
        if self.compiler.endswith(" static"):
            self.work = self.work.last()
        torch.manual_seed(SEED)
        marks = [time.perf_counter()]
        self.fn = COMPILERS[self.compiler](self.work)
        for result in self.work.each(self.fn):
            self.result = result
            self.synchronize()
            marks.append(time.perf_counter())
        return {"seconds": marks[-1] - marks[0], "each": [b - a for a, b in pairwise(marks)]}

    def warm(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call until `seconds` have passed, three times at least; microseconds of the last call."""
        end = time.perf_counter() + request["seconds"]
        calls = 0
        while calls < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            self.call()
            self.synchronize()
            self.per_call = time.perf_counter() - start
            calls += 1
        self._settle()
        return {"us": self.per_call * 1e6}

    def _settle(self) -> None:
        """Wait for what is compiled in the background, and let calls decide whether it is used."""
        background = sys.modules.get("torchweld.runtime.background")
        if background is not None and self.compiler.startswith("torchweld"):
            background.BACKGROUND.wait()
            for _ in range(SETTLING):
                self.call()
                self.synchronize()

    def round(self, request: dict[str, Any]) -> dict[str, Any]:
        """Mean microseconds a call over about `seconds`."""
        n = max(1, round(request["seconds"] / max(self.per_call, 1e-7)))
        call, fn = self.work.call, self.fn
        self.synchronize()
        start = time.perf_counter()
        for _ in range(n):
            call(fn)
        self.synchronize()
        return {"us": (time.perf_counter() - start) / n * 1e6, "calls": n}

    def save(self, request: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(SEED)
        torch.save(self._results(), request["path"])
        return {}

    def check(self, request: dict[str, Any]) -> dict[str, Any]:
        """The largest difference from the results that eager saved, over all sizes called."""
        torch.manual_seed(SEED)
        mine = self._results()
        theirs = torch.load(request["path"], weights_only=True)[-len(mine) :]
        return {
            "difference": largest_difference(mine, theirs),
            "magnitude": max((float(t.abs().max()) for t in tensors(theirs) if t.numel()),
                             default=0.0),
        }  # fmt: skip

    def _results(self) -> list[list[torch.Tensor]]:
        """What every size gives, on the CPU."""
        return [[t.detach().cpu() for t in tensors(r)] for r in self.work.each(self.fn)]

    def count(self, request: dict[str, Any]) -> dict[str, Any]:
        """Kernels of one call, as far as this compiler lets them be counted."""
        if self.compiler.startswith("torchweld"):
            return _own_counts()
        if self.compiler.startswith("torch.compile"):
            return _inductor_counts(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
        with OpCount() as mode:  # type: ignore[no-untyped-call]
            self.call()
        return {"kernels": mode.count}

    def profile(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start torch's profiler once, which takes seconds."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
            torch.zeros(1, device=self.device)
            self.synchronize()
        return {}

    def gpu(self, request: dict[str, Any]) -> dict[str, Any]:
        """Microseconds that the GPU works for one call: the sum over its kernels and copies."""
        calls = 10
        self.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(calls):
                self.call()
            self.synchronize()
        events = [e for e in profile.key_averages() if e.device_type.name == "CUDA"]
        total = sum(e.self_device_time_total for e in events)
        return {"gpu_us": total / calls, "gpu_kernels": sum(e.count for e in events) / calls}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        """Peak memory of the process, and of the device, in bytes; and that of a call by now."""
        found = {"host": _peak_rss(), "device": self._device_peak()}
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            _forget_peak_rss()
        self.call()
        self.synchronize()
        found["call"] = self._device_peak() if self.device == "cuda" else _peak_rss()
        return found

    def _device_peak(self) -> int:
        return torch.cuda.max_memory_allocated() if self.device == "cuda" else 0


def _own_counts() -> dict[str, Any]:
    """Kernels and ATen calls in one call of what torchweld compiled last, and its counters."""
    found = importlib.import_module("torchweld.pipeline").STATISTICS
    last = found.compiled[-1] if found.compiled else None
    launches = last.kernels + last.externs if last is not None and last.executable else None
    counters = {**found.counts(), **importlib.import_module("torchweld.runtime.cudagraph").counts()}
    return {"kernels": launches, "counters": counters, "compilations": found.graphs}


def _inductor_counts(cache: Path) -> dict[str, Any]:
    """torch.compile's graphs compiled, and the kernels of a call where all belong to it."""
    compilations = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    launches = _inductor_launches(cache) if compilations == 1 else None
    return {"kernels": launches, "compilations": compilations}


def _inductor_launches(cache: Path) -> int | None:
    """Kernels and ATen calls in the wrapper code that torch.compile wrote into its cache."""
    launch = re.compile(r"^ +(?:\w+ = )?(?:cpp_fused\w*|triton_\w+\.run|extern_kernels\.\w+"
                        r"|torch\.ops\.\w+\.\w+\.\w+)\(", re.MULTILINE)  # fmt: skip
    count = 0
    for path in cache.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        _, call, body = text.partition("def call(")
        if call:
            count += len(launch.findall(body.partition("\ndef ")[0]))
    return count or None


def _peak_rss() -> int:
    """VmHWM: unlike ru_maxrss it does not remember the parent that this process was forked from."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _forget_peak_rss() -> None:
    """From now on _peak_rss tells the most since now (Linux 4.0 and newer)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def serve(worker: Worker, answers: Any) -> None:
    """Answer requests until the parent closes the pipe."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request["do"])(request)
        except Exception as error:
            # a compiler that cannot do a case is a result of the benchmark, not its end
            answer = {"error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    name, compiler, device, threads = sys.argv[1:5]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not get between the answers
    torch.set_num_threads(int(threads))
    torch.manual_seed(SEED)
    case = case_named(name)
    with torch.device(case.device or "cpu"):
        work = to_device(case.build(), device)
    answers.write(json.dumps({"ready": True}) + "\n")
    answers.flush()
    with torch.no_grad():
        serve(Worker(compiler, work, device), answers)


if __name__ == "__main__":
    main()
