"""torch.utils._pytree: flattening, mapping and putting together again are no part of the graph."""

import collections
import dataclasses

import torch
from eager_twin import check
from torch.utils import _pytree as pytree

X = torch.linspace(-1, 1, 4)
Point = collections.namedtuple("Point", "x y")


class Box:
    def __init__(self, tensor, name):
        self.tensor = tensor
        self.name = name


pytree.register_pytree_node(Box, lambda b: ([b.tensor], b.name), lambda xs, name: Box(*xs, name),
                            serialized_type_name="torchweld_test.Box")  # fmt: skip


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: list


pytree.register_dataclass(Pair, serialized_type_name="torchweld_test.Pair")


def test_flatten_and_put_together_again():
    def doubled(tree):
        leaves, spec = pytree.tree_flatten(tree)
        made = pytree.tree_unflatten([x * 2 for x in leaves], spec)
        return made, spec.num_leaves, pytree.tree_structure(made) == spec

    check(doubled, ({"a": X, "b": [X + 1, (X, X * 3)]},))


def test_map_over_several_trees():
    check(lambda a, b: pytree.tree_map(lambda x, y: x + y, a, b), ({"a": [X]}, {"a": [X * 2]}))


def test_map_of_some_leaves_by_a_builtin_function():
    check(lambda tree: pytree.tree_map_only(torch.Tensor, torch.sin, tree), ([X, 3, {"n": None}],))
    check(lambda tree: pytree.tree_map_only(lambda x: x is not None, torch.neg, tree),
          ([X, None],))  # fmt: skip


def test_containers_of_the_library():
    def sines(x):
        tree = [Point(x, [x]), collections.OrderedDict(a=x), collections.deque([x], 3),
                collections.defaultdict(list, {"z": x})]  # fmt: skip
        return pytree.tree_map(torch.sin, tree)

    check(sines, (X,))


def test_paths():
    def named(tree):
        found, _ = pytree.tree_flatten_with_path(tree)
        by_path = pytree.tree_map_with_path(lambda path, x: x * len(path), tree)
        return [pytree.keystr(path) for path, _ in found], by_path

    check(named, ({"a": X, "b": [X, (X,)]},))


def test_questions_about_all_leaves():
    def asked(tree):
        return (pytree.tree_all(lambda x: x.dim() == 1, tree), X + 1,
                pytree.tree_any(lambda x: x.dim() == 2, tree), pytree.tree_leaves(tree)[1])

    check(asked, ([X, {"a": X * 2}],))


def test_classes_that_are_registered():
    def mapped(x):
        box = pytree.tree_map(torch.cos, Box(x, "a"))
        pair = pytree.tree_map(torch.cos, Pair(x, [x * 2]))
        return box.tensor, box.name, pair.first, pair.second

    check(mapped, (X,))


def test_arguments_and_leaves_that_are_chosen():
    def chosen(tree):
        whole = pytree.tree_map(lambda x: x["n"] * 2, tree, is_leaf=lambda x: isinstance(x, dict))
        return whole, pytree.tree_map_(lambda x: x, [X * 1]), pytree.tree_flatten(None)[0]

    check(chosen, ([{"n": X}, {"n": X + 1}],))
