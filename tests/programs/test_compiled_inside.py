"""Functions that are compiled themselves, called from a compiled function."""

from __future__ import annotations

import torch

import torchweld

X = torch.arange(4.0)


class Scaled:
    def __init__(self):
        self.by = 3.0

    @torchweld.compile
    def scale(self, x):
        return x * self.by


def test_compiled_method_is_captured_as_part_of_the_outer_frame():
    torchweld.reset()
    outer = torchweld.compile(lambda obj, x: obj.scale(x) + 1, fullgraph=True, backend="eager")
    torch.testing.assert_close(outer(Scaled(), X), X * 3 + 1)
    assert torchweld.statistics()["graphs"] == 1


def test_compiled_function_is_captured_as_part_of_the_outer_frame():
    torchweld.reset()
    inner = torchweld.compile(lambda x: x * 2)
    outer = torchweld.compile(lambda x: inner(x) + 1, fullgraph=True, backend="eager")
    torch.testing.assert_close(outer(X), X * 2 + 1)
    assert torchweld.statistics()["graphs"] == 1
