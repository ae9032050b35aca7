"""Opcode handlers, by topic. Importing this package fills tables.OPCODES."""

from torchweld.capture.opcodes import build, call, iterate, jump, names, operators, protect, stack

__all__ = ["build", "call", "iterate", "jump", "names", "operators", "protect", "stack"]
