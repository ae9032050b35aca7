"""Opcode handlers, by topic. Importing this package fills tables.OPCODES."""

from torchweld.capture.opcodes import (
    build,
    call,
    class_body,
    iterate,
    jump,
    match,
    names,
    operators,
    protect,
    stack,
)

__all__ = [
    "build", "call", "class_body", "iterate", "jump", "match", "names", "operators", "protect",
    "stack",
]  # fmt: skip
