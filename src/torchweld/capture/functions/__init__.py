"""Handlers of functions and methods, by topic. Importing this package fills the tables."""

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
    context_variables,
    control_flow,
    effects,
    exception_groups,
    exceptions,
    hooks,
    iterators,
    locks,
    objects,
    on_constants,
    optimizers,
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
    weak_references,
    whole,
)

__all__ = [
    "attention", "attributes", "attrs_callable", "autograd_functions", "backward", "builtin",
    "caches", "checkpoints", "checks", "classes", "containers", "context_variables",
    "control_flow", "effects",
    "exception_groups", "exceptions", "hooks", "iterators", "locks", "objects", "on_constants",
    "optimizers", "owned", "queues", "random_draws", "scopes", "sets", "sized_calls", "stdlib",
    "texts", "torch_calls", "torch_state", "transforms", "weak_references", "whole",
]  # fmt: skip

whole.register()
