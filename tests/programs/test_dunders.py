# ruff: noqa: C416, UP031
# The programs are written as users write them.
"""Special methods written in Python."""

import torch
from eager_twin import check

X = torch.arange(4.0)
Y = torch.ones(4)


class Vec:
    def __init__(self, *parts):
        self.parts = list(parts)

    def __add__(self, o):
        if isinstance(o, Vec):
            return Vec(*(a + b for a, b in zip(self.parts, o.parts, strict=True)))
        if isinstance(o, int | float):
            return Vec(*(a + o for a in self.parts))
        return NotImplemented

    __radd__ = __add__

    def __iadd__(self, o):
        self.parts = [a + o for a in self.parts]
        return self

    def __sub__(self, o):
        return Vec(*(a - o for a in self.parts))

    def __mul__(self, o):
        return Vec(*(a * o for a in self.parts))

    def __rmul__(self, o):
        return self * o

    def __matmul__(self, o):
        return sum(a * b for a, b in zip(self.parts, o.parts, strict=True))

    def __neg__(self):
        return self * -1

    def __abs__(self):
        return Vec(*(abs(a) for a in self.parts))

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, i):
        return self.parts[i]

    def __setitem__(self, i, v):
        self.parts[i] = v

    def __delitem__(self, i):
        del self.parts[i]

    def __iter__(self):
        return iter(self.parts)

    def __contains__(self, n):
        return n == "magic"

    def __eq__(self, o):
        return isinstance(o, Vec) and len(o) == len(self)

    def __lt__(self, o):
        return len(self) < len(o)

    def __hash__(self):
        return len(self)

    def __bool__(self):
        return len(self.parts) > 1

    def __call__(self, k=2):
        return self * k

    def __str__(self):
        return f"Vec{len(self)}"

    def __repr__(self):
        return f"<vec {len(self)}>"

    def __format__(self, spec):
        return "f:" + spec

    def __int__(self):
        return 7

    def __index__(self):
        return 1

    def __float__(self):
        return 2.5

    def __reversed__(self):
        return iter(self.parts[::-1])

    def __round__(self, n=0):
        return n + 1

    def __divmod__(self, o):
        return o, 1

    def __pow__(self, o, mod=None):
        return Vec(*(a**o for a in self.parts))

    def __invert__(self):
        return "inverted"


def test_arithmetic():
    def program(x):
        v = Vec(x, 2)
        w = v + Vec(1, x) + 3
        w = 2 + w
        return (w - 1).parts, (v @ v), (2 * v).parts, (-v).parts, (v**2).parts, abs(v).parts, ~v

    check(program, (X,), (Y,))


def test_in_place():
    def program(x, v):
        w = v
        w += x
        return w is v, v.parts

    check(program, (X, Vec(1, 2)))


def test_tensor_on_the_left():
    class R:
        def __radd__(self, t):
            return ("radd", t)

        def __rmul__(self, t):
            return t * 3

    check(lambda x: (x + R(), x * R()), (X,))


def test_items():
    def program(x, v):
        v[0] = x
        del v[1]
        return v[0] + len(v), v[-1], v[0:1]

    check(program, (X, Vec(1, 2, 3)))


def test_iteration_and_containment():
    def program(x):
        v = Vec(x, x + 1)
        a, b = v
        return [t * 2 for t in v], list(reversed(v)), "magic" in v, 1 in v, a + b, sum(v), tuple(v)

    check(program, (X,))


def test_comparison():
    def program(x):
        a, b, c = Vec(1, 2), Vec(3, 4), Vec(1)
        return x + 1, a == b, a != b, a == c, c < a, a > c, a == 3, a in [b], sorted([a, c])[0] is c

    check(program, (X,))


def test_truth():
    def program(x):
        y = x + 1 if Vec(1, 2) else x
        return y * 2 if not Vec(1) else y, bool(Vec()), Vec() or 5, Vec(1, 2) and 6

    check(program, (X,))


def test_truth_by_len():
    class L:
        def __init__(self, n):
            self.n = n

        def __len__(self):
            return self.n

    check(lambda x: (x + 1 if L(0) else x - 1, bool(L(2)), len(L(3))), (X,))


def test_text():
    def program(x):
        v = Vec(1, 2)
        return x + 1, str(v), repr(v), f"{v}", f"{v!r:>10}", f"{v:spec}", f"{v} {v!r}", "%s" % v

    check(program, (X,))


def test_numbers():
    def program(x):
        v = Vec(1, 2)
        return x + 1, int(v), float(v), round(v, 3), divmod(v, 5)

    check(program, (X,))


def test_hash_is_called():
    check(lambda x: x + hash(Vec(1, 2, 3)), (X,))


def test_keys_with_their_own_hash():
    def program(x):
        table = {Vec(1, 2): 5}
        return x * table[Vec(3, 4)], Vec(1) in table

    check(program, (X,))


def test_call_method():
    check(lambda x: Vec(x, 1)(3).parts, (X,))


class OldSequence:
    def __getitem__(self, i):
        if i > 2:
            raise IndexError(i)
        return i * 10

    def __len__(self):
        return 3


def test_iteration_by_getitem():
    def program(x):
        s = OldSequence()
        return x + sum(s), list(s), 20 in s, [i for i in s], list(reversed(s))

    check(program, (X,))


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


def test_iterator_class():
    def program(x):
        y = x
        for i in Countdown(3):
            y = y + i
        return (
            y,
            list(Countdown(2)),
            next(Countdown(5)),
            next(Countdown(0), "none"),
            max(Countdown(4)),
        )

    check(program, (X,), (Y,))


def test_not_implemented_raises():
    def program(x):
        y = x + 1
        try:
            return Vec(1) + "a"
        except TypeError:
            return y

    check(program, (X,))


def test_missing_of_dict_subclass():
    class D(dict):
        def __missing__(self, key):
            self[key] = len(key)
            return self[key]

    def program(x):
        d = D(a=1)
        return x * d["abc"] + d["a"], d

    check(program, (X,))


def test_list_subclass():
    class L(list):
        def total(self):
            return sum(self)

        def append(self, x):
            super().append(x * 2)

    def program(x, ls):
        ls.append(x)
        return ls.total(), ls[0], len(ls), isinstance(ls, list), ls

    check(program, (X, L([1, 2])))


def test_reflected_priority_of_subclass():
    class A:
        def __add__(self, o):
            return 1

    class B(A):
        def __radd__(self, o):
            return 2

    check(lambda x: x * (A() + B()), (X,))


def test_class_getitem():
    class G:
        def __class_getitem__(cls, n):
            return n * 2

    check(lambda x: x * G[3], (X,))


def test_int_subclass():
    class Kilo(int):
        def double(self):
            return self * 2

    k = Kilo(4)
    check(lambda x: (x * k, k.double(), k + 1), (X,))


def test_str_subclass():
    class Name(str):
        pass

    n = Name("ab")
    check(lambda x: (x + len(n), n.upper(), n == "ab"), (X,))


class Meta(type):
    def __iter__(cls):
        return iter([1, 2])

    def __contains__(cls, k):
        return k == 1

    def __getitem__(cls, k):
        return k * 2


class OfMeta(metaclass=Meta):
    pass


def test_special_methods_of_a_metaclass():
    check(lambda x: ([x * i for i in OfMeta], 1 in OfMeta, 3 in OfMeta, OfMeta[4]), (X,))


class Counting:
    def __init__(self):
        self.n = 0

    def __iter__(self):
        for k in range(3):
            self.n += 1
            yield k


def test_iter_that_is_a_generator():
    def program(x):
        it = Counting()
        total = sum(it)
        b, c, d = it
        return x + total, it.n, (b, c, d), list(zip(it, "ab", strict=False)), it.n

    check(program, (X,))
