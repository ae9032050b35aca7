"""What several programs of the language use."""

import functools

import torch


class Prop:
    def __init__(self, v):
        self._v = v

    @property
    def v(self):
        "doc"
        return self._v

    @v.setter
    def v(self, z):
        self._v = z * 2

    @v.deleter
    def v(self):
        self._v = 0

    @functools.cached_property
    def c(self):
        return self._v + 100

    @staticmethod
    def s(a):
        return a + 1

    @classmethod
    def k(cls, a):
        return cls(a)


@functools.singledispatch
def sd(a):
    return "obj"


@sd.register
def _(a: int):
    return "int"


@sd.register(list)
def _(a):
    return "list"


@sd.register
def _(a: torch.Tensor):
    return a * 2
