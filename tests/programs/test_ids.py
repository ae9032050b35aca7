"""id() of objects, as walks over what a program has made use it."""

import copy
import pprint
import sys

import torch
from eager_twin import check, check_refused

X = torch.arange(4.0)


def test_ids_in_sets_and_dicts():
    def program(x):
        seen, names = set(), {}
        made = [x + 1, x + 2]
        for t in (made[0], made[1], made[0]):
            if id(t) not in seen:
                seen.add(id(t))
                names[id(t)] = len(names)
        return made, len(seen), names[id(made[1])], id(made) == id(made), id(made) != id(names)

    check(program, (X,))


def test_a_walk_that_stops_at_what_it_has_seen():
    def walk(node, seen):
        if id(node) in seen:
            return 0
        seen.add(id(node))
        parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
        return 1 + sum(walk(p, seen) for p in parts)

    def program(x):
        inner = [x * 2, {"a": x + 1}]
        tree = {"left": inner, "right": inner}
        inner.append(tree)
        return x + walk(tree, set())

    check(program, (X,))


def test_an_id_that_leaves_is_that_of_the_object():
    def program(x):
        made = [x + 1]
        return made, id(made)

    import torchweld

    made, number = torchweld.compile(program, fullgraph=True, backend="eager")(X)
    assert number == id(made)


def test_arithmetic_with_an_id_is_refused():
    check_refused(lambda x: (x + 1, id([x]) % 1), X, code="W107", says="")


def test_a_shallow_copy_of_a_tensor_shares_its_memory():
    def program(x):
        y = x * 2
        z = copy.copy(y)
        z.add_(1)
        return y, z, y is z

    check(program, (X,))


def test_pretty_texts(capsys):
    def program(x):
        pprint.pprint({"b": [1, 2], "a": tuple(x.shape)}, width=20)
        return x + 1, pprint.pformat([("k", 1.5)] * 2)

    check(program, (X,))
    printed = capsys.readouterr().out
    assert printed == "{'a': (4,),\n 'b': [1, 2]}\n" * 4


def test_frames_of_exceptions_are_looked_at_eagerly():
    def program(x):
        y = x + 1
        try:
            raise ValueError("a")
        except ValueError:
            return y, sys.exc_info()[2].tb_frame.f_code.co_name

    check_refused(program, X, code="W122", says="frames")
