"""Calls of layers that read or write objects besides their own, or know which layer they are."""

import pytest
from layer_stacks import Layer, Stack, check
from torch import nn


class Counting(Layer):
    n = 0

    def forward(self, x):
        self.n += 1
        return super().forward(x) * self.n


def test_a_layer_that_changes_itself_is_interpreted():
    layers = [Counting() for _ in range(3)]
    model = Stack(layers)
    check(model)
    assert [layer.n for layer in layers] == [1, 1, 1]
    again = Stack([layers[0], layers[0], layers[0]])
    check(again)
    assert layers[0].n == 4


class Log(nn.Module):
    """Passes lists that layers write or read."""

    def __init__(self, layer):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(3))
        self.seen = []

    def forward(self, x):
        log = []
        for layer in self.layers:
            x = layer(x, log, self.seen)
        return x, len(log), log


class Writes(Layer):
    def forward(self, x, log, seen):
        log.append(x)
        return super().forward(x) * len(log)


class WritesOutside(Layer):
    def forward(self, x, log, seen):
        seen.append(1)
        return super().forward(x) * len(seen)


class Reads(Layer):
    def forward(self, x, log, seen):
        return super().forward(x) * (1 + len(log) + len(seen))


@pytest.mark.parametrize("layer", [Writes, WritesOutside, Reads])
def test_lists_that_are_written_are_seen(layer):
    model = Log(layer)
    check(model)
    assert len(model.seen) == 3 * (layer is WritesOutside)


class Between(Log):
    """The frame itself writes what layers read."""

    def forward(self, x):
        log = []
        for layer in self.layers:
            x = layer(x, log, self.seen)
            self.seen.append(0)
            log.append(0)
        return x


def test_lists_that_are_written_between_calls_are_seen():
    check(Between(Reads))


class Keeps(nn.Module):
    """Layers put their result where they are told, in each call at the same place."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Puts() for _ in range(4))

    def forward(self, x):
        kept, found = {}, []
        for layer in self.layers:
            x = layer(x, kept)
            found.append(kept["last"])
        return x, found


class Puts(Layer):
    def forward(self, x, kept):
        kept["last"] = x = super().forward(x)
        return x


def test_a_dict_that_layers_write():
    check(Keeps())


class PutsInside(Layer):
    def __init__(self):
        super().__init__()
        self.state = State()

    def forward(self, x):
        self.state.n = 5
        return super().forward(x)


def test_an_object_of_their_own_that_layers_write():
    layers = [PutsInside() for _ in range(4)]
    check(Stack(layers))
    assert [layer.state.n for layer in layers] == [5] * 4


class State:
    def __init__(self):
        self.n = 0


class ReadsState(Layer):
    def forward(self, x):
        return super().forward(x) * self.state.n


class WritesState(nn.Module):
    def __init__(self):
        super().__init__()
        self.state = State()
        self.layers = nn.ModuleList(ReadsState() for _ in range(3))
        for layer in self.layers:
            layer.state = self.state

    def forward(self, x):
        for layer in self.layers:
            self.state.n += 1
            x = layer(x)
        return x


def test_an_object_that_the_frame_changes_is_read_anew():
    check(WritesState())


FIRST = None
CURRENT = {"layer": None, "names": {}}


class Knows(Layer):
    """Its result depends on which layer it is, by ways that do not start at the layer."""

    way = "list"

    def forward(self, x):
        return super().forward(x) * (2.0 if WAYS[self.way](self) else 1.0)


WAYS = {
    "list": lambda self: self.parent[0].layers[0] is self,
    "last": lambda self: self.parent[0].layers[2] is self,
    "global": lambda self: CURRENT["layer"] is self,
    "name": lambda self: FIRST is self,
    "names": lambda self: CURRENT["names"].get(self) == "first",
    "in": lambda self: self in self.friends,
    "equal": lambda self: self == self.friends[0],
    "weight": lambda self: self.linear.weight is self.friends[0].linear.weight,
    "has": lambda self: hasattr(self, "extra"),
    "vars": lambda self: len(vars(self)) > self.usual,
    "class": lambda self: type(self).way == self.way,
    "method": lambda self: self.extra_repr.__self__ is self.friends[0],
}


class Parent(Stack):
    def __init__(self, way, first):
        super().__init__(Knows() for _ in range(3))
        global FIRST
        FIRST = CURRENT["layer"] = self.layers[first]
        CURRENT["names"] = dict.fromkeys(self.layers, "other")
        CURRENT["names"][self.layers[first]] = "first"
        self.layers[first].extra = 3
        for layer in self.layers:
            layer.way = way
            layer.parent = [self]
            layer.friends = [self.layers[first]]
            layer.usual = 30

    def __deepcopy__(self, memo):
        return self

    def forward(self, x):
        if FIRST is None or CURRENT["layer"] is None:
            return x
        return super().forward(x)


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_layer_that_knows_which_one_it_is(way, first):
    check(Parent(way, first))


SECOND = None


class IsFirst(Layer):
    def forward(self, x):
        return super().forward(x) * (2 if FIRST is self else 1)


class ByName(nn.Module):
    def forward(self, x):
        return SECOND(FIRST(x + 1))


def test_layers_that_are_globals():
    global FIRST, SECOND
    FIRST, SECOND = IsFirst(), IsFirst()
    check(ByName())
    FIRST, SECOND = Layer(), Layer()
    assert check(ByName()) == [1]
