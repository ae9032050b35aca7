"""Object identity: inside, in results, between arguments."""

import torch
from eager_twin import check, check_made

import torchweld

X = torch.arange(4.0)
Y = torch.ones(4)


def compiled(fn):
    torchweld.reset()
    return torchweld.compile(fn, fullgraph=True, backend="eager")


def test_results_share_objects():
    def program(x):
        y = x + 1
        a = [y]
        return a, (a, y), {"y": y, "a": a}

    check(program, (X,), (Y,))


def test_argument_returned_is_the_argument():
    def program(x, a, d):
        return x + 1, x, a, d["k"], a[0]

    k, a = [1], [2]
    d = {"k": k}
    got = compiled(program)(X, a, d)
    assert got[1] is X
    assert got[2] is a
    assert got[3] is k


def test_view_and_in_place_results():
    def program(x):
        y = x.view(2, 2)
        z = y.mul_(2)
        return y, z is y, x

    check(program, (X,), (Y,))


def test_same_list_twice_then_two_lists():
    def program(x, a, b):
        a.append(1)
        return x + len(b), a is b

    f = compiled(program)
    both = [0]
    assert f(X, both, both)[1] is True
    assert len(both) == 2
    one, two = [0], [0]
    y, same = f(X, one, two)
    assert same is False
    assert torch.equal(y, X + 1)


def test_two_lists_then_the_same_list_twice():
    def program(x, a, b):
        a.append(1)
        return x + len(b)

    f = compiled(program)
    assert torch.equal(f(X, [0], [0]), X + 1)
    both = [0]
    assert torch.equal(f(X, both, both), X + 2)


def test_two_objects_then_one_twice():
    class A:
        def __init__(self):
            self.n = 1

    def program(x, a, b):
        a.n = 5
        return x * b.n, a is b, a == b

    f = compiled(program)
    assert f(X, A(), A())[1:] == (False, False)
    a = A()
    y, *same = f(X, a, a)
    assert same == [True, True]
    assert torch.equal(y, X * 5)


def test_identity_of_arguments_without_change():
    def program(x, a, b):
        return x + (1 if a is b else 2)

    f = compiled(program)
    a = [1]
    assert torch.equal(f(X, a, [1]), X + 2)
    assert torch.equal(f(X, a, a), X + 1)
    assert torch.equal(f(X, a, [1]), X + 2)


def test_identity_of_tensors():
    def program(x, y):
        return x + (1 if x is y else 2)

    f = compiled(program)
    assert torch.equal(f(X, Y), X + 2)
    assert torch.equal(f(X, X), X + 1)


def test_identity_with_none_and_sentinel():
    missing = object()

    def program(x, a=missing):
        return x + (1 if a is missing else 2 if a is None else 3)

    check(program, (X,), (X, None), (X, 1), graphs=3)


def test_self_referential_list():
    def program(x):
        a = [x + 1]
        a.append(a)
        return a

    out = torchweld.compile(program, backend="eager")(X)
    assert out[1] is out


def test_self_referential_instance():
    class Node:
        def __init__(self, x):
            self.x = x
            self.me = self
            self.child = [self]

    def program(x):
        return Node(x + 1)

    check(program, (X,), (Y,))


def test_object_stored_in_argument_and_returned():
    def program(x, box):
        item = {"x": x + 1}
        box.append(item)
        return item

    check(program, (X, []))


def test_swap_of_list_items():
    def program(x, a):
        a[0], a[1] = a[1], a[0]
        return x + 1

    check(program, (X, [[1], [2]]))


def test_tensor_attribute_swap():
    def make():
        class Box:
            pass

        box = Box()
        box.old, box.new = torch.zeros(4), torch.ones(4)

        def program(x):
            box.old, box.new = box.new, x + box.old
            return box.old * 2

        return program, box

    check_made(make, (X,), (Y,))


def test_bound_method_identity_and_equality():
    class A:
        def f(self):
            return 1

    check(lambda x, a: (x + a.f(), a.f == a.f, a.f is a.f), (X, A()))


def test_output_aliasing_an_argument_in_two_places():
    def program(x, a):
        a["first"] = x
        return a["first"], [x, x.t()]

    check(program, (X, {}))
