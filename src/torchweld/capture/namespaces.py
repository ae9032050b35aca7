"""The globals of a module as a dict: what is written there, and what LOAD_GLOBAL finds, are one.

And which modules are installed: what they consist of is not expected to change.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from typing import Any

from torchweld.capture.session import Capture
from torchweld.capture.values.base import Const, DictValue, Value
from torchweld.ir.source import Source

_INSTALLED = (*(sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")),
              str(Path(__file__).parent), "<")  # fmt: skip


@functools.cache
def of_the_user(filename: str) -> bool:
    """Whether code comes from the user's own files."""
    return not filename.startswith(_INSTALLED) and "site-packages" not in filename


def is_globals(obj: dict[Any, Any]) -> bool:
    """Whether a dict is the namespace of a module."""
    name = obj.get("__name__")
    if not isinstance(name, str):
        return False
    module = sys.modules.get(name)
    return "__builtins__" in obj or (module is not None and vars(module) is obj)


def open_globals(cap: Capture, obj: dict[object, object], source: Source) -> DictValue:
    """The dict, with what the frame has written so far."""
    cap.guard("is", source, obj)
    made = DictValue(dict, cap.pin(obj, "globals"), obj)
    for (table, name), (_, value) in list(cap.globals_written.items()):
        if table == id(obj) and value is not None:
            del cap.globals_written[table, name]
            made.items[name], made.keys[name] = value, Const(name)
            cap.mark(made)
    return made


def opened(cap: Capture, table: dict[str, object]) -> DictValue | None:
    """The dict of a namespace, if the frame has looked at it as a dict."""
    found = cap.objects.get(id(table))
    return found if isinstance(found, DictValue) else None


def written(cap: Capture, table: dict[str, object], name: str) -> Value | None:
    """What the frame has put into a namespace under a name; None if nothing."""
    found = cap.globals_written.get((id(table), name))
    if found is not None:
        return found[1]
    box = opened(cap, table)
    slot = box.items.get(name) if box is not None and box.changed else None
    return cap.force(slot) if slot is not None else None
