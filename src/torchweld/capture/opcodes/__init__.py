"""Opcode handlers, by topic. Importing this package fills tables.OPCODES."""

from torchweld.capture.opcodes import (
    build,
    call,
    iterate,
    jump,
    match,
    names,
    operators,
    protect,
    stack,
)

__all__ = [
    "build", "call", "iterate", "jump", "match", "names", "operators", "protect", "stack",
]  # fmt: skip
