"""Handlers of functions and methods, by topic. Importing this package fills the tables.

What few programs call is in modules that are imported when the first one does.
"""

import contextvars
import datetime
import importlib
import os
import sys
import threading
import time
import types
import warnings
import weakref
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchweld.capture import attrs_callable
from torchweld.capture.arrays import attributes
from torchweld.capture.functions import (
    attention,
    autograd_functions,
    backward,
    builtin,
    caches,
    checkpoints,
    checks,
    classes,
    containers,
    control_flow,
    effects,
    exception_groups,
    exceptions,
    hooks,
    iterators,
    kinds,
    objects,
    on_constants,
    owned,
    queues,
    random_draws,
    scopes,
    sets,
    sized_calls,
    stdlib,
    texts,
    torch_calls,
    torch_state,
    transforms,
    whole,
)
from torchweld.capture.late import LateNumber
from torchweld.capture.tables import CLASSES, FUNCTIONS, GETATTR, METHODS, NAMED
from torchweld.capture.values.owned import PreparedValue
from torchweld.capture.wrap import WRAPPERS, by_identity

__all__ = [
    "attention", "attributes", "attrs_callable", "autograd_functions", "backward", "builtin",
    "caches", "checkpoints", "checks", "classes", "containers",
    "control_flow", "effects",
    "exception_groups", "exceptions", "hooks", "iterators", "kinds", "objects", "on_constants",
    "owned", "queues", "random_draws", "scopes", "sets", "sized_calls", "stdlib",
    "texts", "torch_calls", "torch_state", "transforms", "whole",
]  # fmt: skip

whole.register()


def _later(module: str, name: str, *first: Any) -> Any:
    """A handler of a module of this package that is imported when somebody needs it."""

    def handler(*args: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(*first, *args)

    return handler


_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
for _name in (*_CLOCKS, *(f"{n}_ns" for n in _CLOCKS), "strftime", "ctime", "asctime"):
    FUNCTIONS.add(getattr(time, _name), _later("system", "clock", getattr(time, _name)))
for _fn in (os.getpid, os.getppid, os.getcwd, os.cpu_count, os.path.exists, os.path.isfile,
            os.path.isdir):  # fmt: skip
    FUNCTIONS.add(_fn, _later("system", "reading", _fn))
FUNCTIONS.add(torch._C._group_tensors_by_device_and_dtype, _later("optimizers", "group_tensors"))
for _name in ("_cuda_graph_capture_health_check", "_accelerator_graph_capture_health_check"):
    _check = vars(torch.optim.Optimizer).get(_name)
    if _check is not None:
        FUNCTIONS.add(_check, _later("optimizers", "health_check"))
_REFS: tuple[Any, ...] = (weakref.ref, weakref.KeyedRef, weakref.WeakMethod)
for _ref in _REFS:
    METHODS.add((_ref, "__call__"), _later("weak_references", "call_weakref"))
for _name, _fn_name in (("__new__", "new_weakref"), ("__init__", "init_weakref")):
    METHODS.add((weakref.ref, _name), _later("weak_references", _fn_name))
    FUNCTIONS.add(getattr(weakref.ref, _name), _later("weak_references", _fn_name))
CLASSES.add(weakref.ref, _later("weak_references", "make_weakref"))
for _ref in weakref.ProxyTypes:
    WRAPPERS.add(_ref, _later("weak_references", "proxy"))
for _ref in _REFS[:2]:
    WRAPPERS.add(_ref, by_identity)
WRAPPERS.add(types.AsyncGeneratorType, _later("async_generators", "outside"))
FUNCTIONS.add(aiter, _later("async_generators", "aiter_"))
FUNCTIONS.add(anext, _later("async_generators", "anext_"))
FUNCTIONS.add(warnings.warn, _later("warned", "warn"))
for _name in ("simplefilter", "filterwarnings", "resetwarnings"):
    FUNCTIONS.add(getattr(warnings, _name), _later("warned", "change", getattr(warnings, _name)))
FUNCTIONS.add(warnings.catch_warnings.__enter__, _later("warned", "enter"))
FUNCTIONS.add(warnings.catch_warnings.__exit__, _later("warned", "leave"))
NAMED.add(("pprint", "pprint"), _later("system", "print_pretty"))
for _kind in (type(threading.Lock()), type(threading.RLock())):
    for _name, _fn_name in (("__enter__", "take"), ("acquire", "take"), ("release", "release"),
                            ("__exit__", "leave")):  # fmt: skip
        METHODS.add((_kind, _name), _later("locks", _fn_name))
for _name, _fn_name in (("get", "get"), ("set", "put"), ("reset", "reset")):
    METHODS.add((contextvars.ContextVar, _name), _later("context_variables", _fn_name))
WRAPPERS.add(contextvars.Token, _later("context_variables", "token"))
CLASSES.add(RemovableHandle, _later("module_hooks", "make"))
FUNCTIONS.add(sys._getframe, _later("own_frames", "frame"))
for _of, _name in ((datetime.datetime, "now"), (datetime.datetime, "utcnow"),
                     (datetime.datetime, "today"), (datetime.date, "today")):  # fmt: skip
    METHODS.add((_of, _name), _later("late_times", "now", _name))
GETATTR.add(LateNumber, _later("late_times", "attr"))
for _fn in (torch.set_float32_matmul_precision, torch.use_deterministic_algorithms,
            torch.set_num_threads, *(
                fn for name, fn in vars(torch._C).items() if name.startswith(("_set_cudnn_",
                "_set_cublas_allow", "_set_mkldnn_", "_cuda_set_cudnn_benchmark_limit"))
            )):  # fmt: skip
    FUNCTIONS.add(_fn, _later("settings", "change", _fn))
for _flags in (torch.backends.cudnn.flags, torch.backends.mkldnn.flags):
    FUNCTIONS.add(_flags, _later("settings", "flags", _flags))
for _name, _fn_name in (("_set_fp32_precision_setter", "precision"),
                        ("_get_fp32_precision_getter", "read_precision")):  # fmt: skip
    if hasattr(torch._C, _name):
        FUNCTIONS.add(getattr(torch._C, _name), _later("settings", _fn_name))
CLASSES.add(torch.Generator, _later("torch_generators", "make"))
GETATTR.add(PreparedValue, _later("torch_generators", "attr"))
FUNCTIONS.add(torch.random.manual_seed, _later("torch_generators", "seed_all"))
for _name in ("manual_seed", "get_state", "set_state", "initial_seed"):
    METHODS.add((torch._C.Generator, _name), _later("torch_generators", _name))
