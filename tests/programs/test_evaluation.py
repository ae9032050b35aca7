# ruff: noqa: F821, B012, B015, E741, PIE804, RET503
# The programs are written as users write them.
"""In which order and how often things happen."""

import contextlib

import pytest
import torch
from program_calls import Programs, check

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


@stateless()
def uses_inplace_arg(x, y, n):
    x += n
    y[0] = 5.0
    return x * y


@stateless()
def uses_inplace_view(x, y, n):
    v = x[1:3]
    v.mul_(n)
    w = x.view(2, 2)
    w[0] += 1
    return v, w, x


@stateless()
def uses_out_kw(x, y, n):
    o = torch.empty(4)
    torch.add(x, y, out=o)
    return o * 2


@stateless(1)
def uses_return_arg(x, y, n):
    return x, x is y, [x, x]


@stateless()
def uses_return_self_alias(x, y, n):
    z = x + 1
    return z, z, [z], {"k": z}


@stateless()
def uses_bool_ops_tensor(x, y, n):
    return (x > 1) & (y > 0), ~(x > 1), (x > 1).any() | (y > 5).all(), x.bool() ^ y.bool()


@stateless()
def uses_chain_tensor_cmp(x, y, n):
    try:
        return 0 < x < 3
    except RuntimeError as e:
        return str(e)[:20]


@stateless(1)
def uses_if_tensor(x, y, n):
    if x.sum() > 3:
        return x * 2
    return x - 1


@stateless(2)
def uses_while_tensor(x, y, n):
    while x.sum() < 100:
        x = x * 2 + 1
    return x


@stateless(1)
def uses_tolist(x, y, n):
    return [v * 2 for v in x.tolist()], x + 1


@stateless()
def uses_try_in_loop(x, y, n):
    out = []
    for i in range(4):
        try:
            if i % 2:
                raise KeyError(i)
            out.append(x * i)
        except KeyError as e:
            out.append(e.args[0])
            continue
        else:
            out.append("else")
        finally:
            out.append("f")
    return out


@stateless()
def uses_nested_finally(x, y, n):
    log = []

    def f():
        try:
            try:
                raise ValueError(1)
            finally:
                log.append("a")
        except ValueError:
            try:
                return x + 1
            finally:
                log.append("b")

    return f(), log


@stateless()
def uses_return_in_finally(x, y, n):
    def f():
        for i in range(3):
            try:
                raise KeyError
            finally:
                if i == 1:
                    return i
                continue

    return x + f()


@stateless()
def uses_except_star_else(x, y, n):
    z = x * 2
    try:
        pass
    except* ValueError:
        z = z + 1
    else:
        z = z + 2
    return z


@stateless()
def uses_with_multi(x, y, n):
    with torch.no_grad(), contextlib.nullcontext(n) as k:
        z = x * k
    with torch.enable_grad():
        w = y + 1
    return z, w, torch.is_grad_enabled()


@stateless()
def uses_gen_expr_late(x, y, n):
    k = 1
    g = (i * k for i in range(3))
    k = 10
    return x + 1, list(g)


@stateless()
def uses_lambda_late(x, y, n):
    fs = []
    for i in range(3):
        fs.append(lambda: i)
    return x + 1, [f() for f in fs]


@stateless()
def uses_class_scope(x, y, n):
    v = 1

    class A:
        v = 2
        w = [v for _ in range(2)]

        def g(self):
            return v

    return x + 1, A.w, A().g()


@stateless()
def uses_del_closure(x, y, n):
    v = 1

    def g():
        return v

    del v
    try:
        g()
    except NameError as e:
        return x + 1, str(e)


@stateless()
def uses_star_kw_order(x, y, n):
    def f(**kw):
        return list(kw.items())

    return x + 1, f(b=1, **{"a": 2}, c=3), dict(**{"z": 1}, y=2)


@stateless()
def uses_eval_order(x, y, n):
    log = []

    def t(v):
        log.append(v)
        return v

    d = {t("k1"): t("v1"), t("k2"): t("v2")}
    a = [t(1), t(2)][t(0)]
    t(5) + t(6) * t(7)
    t(8) if t(0) else t(9)
    t(1) < t(2) < t(0) < t(99)

    def f(*a, **k):
        pass

    f(t("a"), *[t("b")], k=t("c"), **{t("d"): t("e")})
    return x + 1, log, a


@stateless()
def uses_aug_order(x, y, n):
    log = []

    class L(list):
        def __getitem__(s, i):
            log.append(("g", i))
            return super().__getitem__(i)

        def __setitem__(s, i, v):
            log.append(("s", i, v))
            super().__setitem__(i, v)

    l = L([1, 2])
    l[0] += 5
    l[0], l[1] = l[1], l[0]
    return x + 1, log, list(l)


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)
