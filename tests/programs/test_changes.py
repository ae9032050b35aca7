# ruff: noqa: E741, F601
# The programs are written as users write them.
"""Programs whose surroundings change between calls: functions, classes, modes, kinds of values."""

import functools

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
program = PROGRAMS.program


@program(2)
def default_changes():
    def h(x, s=1):
        return x * s

    def f(x, y, n):
        h.__defaults__ = (n,)
        return h(x)

    return f


@program(2)
def code_changes():
    def a(x):
        return x + 1

    def b(x):
        return x * 5

    def h(x):
        return x

    def f(x, y, n):
        h.__code__ = (a if n == 2 else b).__code__
        return h(x)

    return f


@program(2)
def class_of_changes():
    class A:
        def g(s, x):
            return x + 1

    class B:
        def g(s, x):
            return x * 7

    o = A()

    def f(x, y, n):
        r = o.g(x)
        o.__class__ = B if type(o) is A else A
        return r

    return f


@program()
def instance_method_shadow():
    class A:
        def g(s, x):
            return x + 1

    o = A()

    def f(x, y, n):
        r = o.g(x)
        if n == 3:
            o.g = lambda x: x * 50
        elif n == 5:
            del o.g
        return r

    return f


@program(1)
def list_len_guard():
    l = [1]

    def f(x, y, n):
        r = x * len(l) + sum(l)
        l.append(n)
        return r

    return f


@program()
def nested_dict():
    d = {"a": {"b": [1, 2]}}

    def f(x, y, n):
        r = x * d["a"]["b"][0]
        d["a"]["b"][0] += n
        d["a"]["c"] = n
        return r, len(d["a"])

    return f


@program()
def key_types():
    d = {1: 1.0, "1": 2.0, (1,): 3.0, None: 4.0, True: 5.0}

    def f(x, y, n):
        return x * d[1] + d["1"] + d[(1,)] + d[None] + d.get(n, 9.0)

    return f


@program()
def module_submodule_swap():
    m = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh())

    def f(x, y, n):
        r = m(x - 2)
        m[0], m[1] = m[1], m[0]
        return r

    return f


@program()
def train_eval():
    m = torch.nn.Dropout(0.0)
    m2 = torch.nn.BatchNorm1d(4)

    def f(x, y, n):
        m.train(n == 2)
        m2.train(n == 3)
        return m(x), m2(torch.stack([x, y])), m2.running_mean.clone()

    return f


@program()
def dtype_default():
    def f(x, y, n):
        return torch.ones(2).dtype, torch.tensor(1.5).dtype, x

    return f


@program()
def grad_mode_changes():
    p = torch.ones(4, requires_grad=True)

    def f(x, y, n):
        with torch.set_grad_enabled(n == 2):
            z = x * p
        return z.requires_grad, z.detach()

    return f


@program()
def int_float_switch():
    s = {"v": 1}

    def f(x, y, n):
        r = x * s["v"]
        s["v"] = {2: 1.0, 3: True, 5: 2}[n]
        return r, type(s["v"]).__name__

    return f


@program(2)
def none_switch():
    s = [None]

    def f(x, y, n):
        r = x if s[0] is None else x * s[0]
        s[0] = n if s[0] is None else None
        return r

    return f


@program(1)
def arg_kind():
    c = [0]

    def f(x, y, n, z=None):
        c[0] += 1
        a = [x, [x], {"k": x}, (x, n), None][c[0] % 5]

        def g(v):
            if isinstance(v, torch.Tensor):
                return v + 1
            if isinstance(v, dict):
                return {k: g(w) for k, w in v.items()}
            if isinstance(v, (list, tuple)):
                return type(v)(g(w) for w in v)
            return v

        return g(a)

    return f


@program()
def alias_switch():
    s = {}

    def f(x, y, n):
        a = s.get("a", x)
        s["a"] = y if a is x else x
        a = a + 0
        return a is x, a + n

    return f


@program()
def hasattr_class_late():
    class K:
        pass

    k = K()
    c = [0]

    def f(x, y, n):
        c[0] += 1
        r = hasattr(k, "late")
        if c[0] == 2:
            K.late = 3
        return x + 1, r

    return f


@program()
def string_state():
    s = {"name": "a"}

    def f(x, y, n):
        r = x * len(s["name"])
        s["name"] += "b"
        return r, s["name"], s["name"] == "ab", s["name"].startswith("ab")

    return f


@program()
def str_args_pass():
    names = ["p", "q", "r", "s", "t", "u", "v"]
    c = [0]

    def g(x, name):
        return x + 1, name, {"n": name}

    def f(x, y, n):
        c[0] += 1
        return g(x, names[c[0]])

    return f


@program()
def tensor_shape_change():
    def f(x, y, n):
        z = torch.cat([x] * n)
        return z.shape[0], z.view(n, -1).sum(1)

    return f


@program()
def bool_flag_arg():
    c = [0]

    def g(x, flag, mode):
        return (x + 1 if flag else x - 1) * (2 if mode == "a" else 3)

    def f(x, y, n):
        c[0] += 1
        return g(x, c[0] % 2 == 0, "ab"[c[0] % 2])

    return f


@program()
def func_as_value():
    fs = {2: torch.relu, 3: lambda t: t * 9, 5: torch.nn.Tanh()}

    def f(x, y, n):
        return fs[n](x - 1)

    return f


@program()
def partial_state():
    c = [0]

    def h(x, k):
        return x * k

    def f(x, y, n):
        c[0] += 1
        p = functools.partial(h, k=c[0])
        return p(x)

    return f


@program()
def nonlocal_tensor():
    h = torch.zeros(4)

    def f(x, y, n):
        nonlocal h
        h = h * 0.5 + x
        return h * n

    return f


@program(1)
def exc_state():
    c = [0]

    def f(x, y, n):
        c[0] += 1
        if c[0] == 3:
            raise RuntimeError("third")
        return x * c[0]

    return f


@program()
def super_changes():
    class A:
        def g(s, x):
            return x + 1

    class A2:
        def g(s, x):
            return x * 9

    class B(A):
        def g(s, x):
            return super().g(x)

    b = B()
    c = [0]

    def f(x, y, n):
        return b.g(x)

    return f


@program(2)
def property_patched():
    class A:
        @property
        def v(s):
            return 2

    a = A()
    c = [0]

    def f(x, y, n):
        c[0] += 1
        r = x * a.v
        if c[0] == 2:
            A.v = property(lambda s: 5)
        return r

    return f


@program()
def slots_unset():
    class A:
        __slots__ = ("v",)

    a = A()
    c = [0]

    def f(x, y, n):
        c[0] += 1
        r = getattr(a, "v", 1)
        if c[0] == 2:
            a.v = 6
        if c[0] == 4:
            del a.v
        return x * r

    return f


@program()
def range_obj():
    s = [range(3)]

    def f(x, y, n):
        r = sum(s[0])
        s[0] = range(n)
        return x + r

    return f


@program()
def slice_obj():
    s = [slice(0, 2)]

    def f(x, y, n):
        r = x[s[0]]
        s[0] = slice(0, n % 4)
        return r

    return f


@program()
def device_dtype_obj():
    s = [torch.float32]

    def f(x, y, n):
        r = x.to(s[0])
        s[0] = torch.float64 if n == 2 else torch.float16
        return r, s[0]

    return f


@program()
def frozenset_state():
    s = [frozenset([1])]

    def f(x, y, n):
        r = n in s[0]
        s[0] = s[0] | {n}
        return x + len(s[0]), r

    return f


@program()
def complex_state():
    s = [1 + 1j]

    def f(x, y, n):
        s[0] *= 1j
        return x * s[0].real, s[0]

    return f


@program()
def bytes_state():
    s = [b"a"]

    def f(x, y, n):
        s[0] += b"b"
        return x * len(s[0]), s[0]

    return f


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
