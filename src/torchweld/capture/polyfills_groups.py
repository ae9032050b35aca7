# ruff: noqa: SIM110
# any() would be one more frame of the interpreter.
"""Exception groups: how they are split, and what `except*` hands on, interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Found = tuple[Any, Any]


def copy_metadata(made: Any, group: Any) -> None:
    """`made` is a part of `group`. The interpreter does it: it knows the parts again."""


def same_metadata(exc: Any, group: Any) -> bool:
    """Whether an exception is a part of `group`, or the group itself. The interpreter answers."""
    return exc is group


def test_of(condition: Any) -> Callable[[Any], bool]:
    if isinstance(condition, type | tuple):
        return lambda exc: isinstance(exc, condition)
    return condition  # type: ignore[no-any-return]


def split(group: Any, condition: Any) -> Found:
    return divided(group, test_of(condition))


def subgroup(group: Any, condition: Any) -> Any:
    return divided(group, test_of(condition))[0]


def divided(group: Any, matches: Callable[[Any], bool]) -> Found:
    """The parts of a group whose exceptions match and do not, either may be None."""
    if matches(group):
        return group, None
    matched = []
    rest = []
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            inner, others = divided(exc, matches)
            if inner is not None:
                matched.append(inner)
            if others is not None:
                rest.append(others)
        elif matches(exc):
            matched.append(exc)
        else:
            rest.append(exc)
    return part_of(group, matched), part_of(group, rest)


def part_of(group: Any, excs: list[Any]) -> Any:
    if not excs:
        return None
    made = group.derive(excs)
    copy_metadata(made, group)
    return made


def match_star(exc: Any, kinds: Any) -> Found:
    """What an `except*` clause takes of an exception, and what is left."""
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if issubclass(kind, BaseExceptionGroup):
            raise TypeError("catching ExceptionGroup with except* is not allowed. "
                            "Use except instead.")  # fmt: skip
    if exc is None:
        return None, None
    if isinstance(exc, kinds):
        if isinstance(exc, BaseExceptionGroup):
            return exc, None
        return BaseExceptionGroup("", [exc]), None
    if isinstance(exc, BaseExceptionGroup):
        return divided(exc, test_of(kinds))
    return None, exc


def to_raise(original: Any, excs: list[Any]) -> Any:
    """What is raised after all `except*` clauses: what they raised, and what nobody took."""
    if not isinstance(original, BaseExceptionGroup):
        return excs[0] if excs else None
    raised = []
    leaves: list[Any] = []
    for exc in excs:
        if exc is None:
            continue
        if same_metadata(exc, original):
            collect_leaves(exc, leaves)
        else:
            raised.append(exc)
    left = None
    if leaves:
        left = divided(original, lambda exc: is_one_of(exc, leaves))[0]
    if not raised:
        return left
    if left is not None:
        raised.append(left)
    return BaseExceptionGroup("", raised) if len(raised) > 1 else raised[0]


def collect_leaves(exc: Any, leaves: list[Any]) -> None:
    if not isinstance(exc, BaseExceptionGroup):
        leaves.append(exc)
        return
    for inner in exc.exceptions:
        collect_leaves(inner, leaves)


def is_one_of(exc: Any, leaves: list[Any]) -> bool:
    for leaf in leaves:
        if leaf is exc:
            return True
    return False
