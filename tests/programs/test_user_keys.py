# The programs are written as users write them.
"""Keys and elements whose class writes its own __hash__ and __eq__."""

import collections

import pytest
import torch
from eager_twin import check_refused
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
stateless = PROGRAMS.stateless


class K:
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        return hash(s.v)

    def __eq__(s, o):
        return isinstance(o, K) and s.v == o.v


class KB:  # collides
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        return 1

    def __eq__(s, o):
        return s.v == o.v


class KL:
    log = []

    def __init__(s, v):
        s.v = v

    def __hash__(s):
        print("hash", s.v)
        return s.v

    def __eq__(s, o):
        print("eq", s.v, o.v)
        return s.v == o.v


class KX:
    def __init__(s, v):
        s.v = v

    def __hash__(s):
        return hash(("kx", s.v))

    def __eq__(s, o):
        return type(o) is KX and o.v == s.v

    def __repr__(s):
        return f"KX({s.v})"


class KSub(KX):
    def __eq__(s, o):
        return isinstance(o, KX) and o.v == s.v

    __hash__ = KX.__hash__


k1, k2 = K(1), K(2)
TABLE, KSET = {k1: 10, k2: 20}, {k1, k2}
TB2 = {KX(1): 1, KX(2): 2}


@stateless()
def key_(x, y, n):
    d = {K(1): n}
    d[K(1)] = 5
    d[K(2)] = 6
    return x + d[K(2)], len(d), K(1) in d, K(9) in d, [k.v for k in d], d.get(K(3), 7)


@stateless()
def key_out_(x, y, n):
    return x + TABLE[K(1)], K(2) in TABLE, TABLE.get(K(3)), TABLE[k1]


@stateless()
def key_set_(x, y, n):
    s = {K(1), K(1), K(n)}
    s.add(K(2))
    s.discard(K(1))
    return x + len(s), sorted(k.v for k in s), K(2) in s


@stateless()
def key_setout_(x, y, n):
    return x + len(KSET), K(1) in KSET


@stateless()
def key_collide_(x, y, n):
    d = {KB(1): 1, KB(2): 2, KB(n): 3}
    return x + len(d), d[KB(1)], d.pop(KB(2)), KB(5) in d


@stateless()
def key_tuple_(x, y, n):
    d = {(1, K(1)): n}
    return x + d[(1, K(1))], (1, K(2)) in d


@stateless()
def key_write_(x, y, n):
    TABLE[K(3)] = n
    TABLE[k1] = 11
    r = TABLE.pop(K(2), None)
    TABLE[k2] = 20
    return x + 1, r, len(TABLE)


@stateless()
def key_eqonly_(x, y, n):
    class E:
        def __eq__(self, o):
            return True

    try:
        return x, {E(): 1}
    except TypeError as e:
        return x + 1, str(e)


@stateless()
def key_more_(x, y, n):
    d = {KX(i): i for i in range(3)}
    d.setdefault(KX(1), 9)
    d.setdefault(KX(n + 5), 8)
    e = dict(d)
    e.update({KX(0): "z"})
    s = {KX(1), KX(2)} & {KX(2), KX(n)}
    return (
        x + len(d),
        sorted(k.v for k in e),
        e[KX(0)],
        len(s),
        {KX(1)} == {KX(1)},
        d == {KX(0): 0},
        KX(1) in [KX(1)],
        str(next(iter(d))),
        d.pop(KX(2)),
        len({KX(3): 1} | {KX(3): 2}),
    )


@stateless()
def key_counter_(x, y, n):
    c = collections.Counter([KX(1), KX(1), KX(n)])
    return x + c[KX(1)], c.most_common(1)[0][1], len(c)


@stateless()
def key_dd_(x, y, n):
    d = collections.defaultdict(list)
    for v in (1, n, 1):
        d[KX(v)].append(v)
    return x + len(d), [len(v) for v in d.values()], next(iter(d.items()))[1]


@stateless()
def key_sub_(x, y, n):
    d = {KX(1): 1}
    return x + 1, d.get(KSub(1)), KSub(1) in d, {KSub(1): 2}.get(KX(1))


@stateless()
def key_mut_(x, y, n):
    k = KX(1)
    d = {k: 1}
    k.v = 2
    return x + 1, k in d, KX(1) in d, KX(2) in d


@stateless()
def key_tuple2_(x, y, n):
    d = {(KX(1), "a"): n}
    return x + d[(KX(1), "a")], (KX(2), "a") in d, {KX(1): {KX(2): 3}}[KX(1)][KX(2)]


@stateless()
def key_order_(x, y, n):
    s = {KX(i) for i in range(6)}
    s.add(KX(n))
    return x + 1, [k.v for k in s], [k.v for k in {KX(9), KX(3), KX(n)}]


@stateless()
def key_outw_(x, y, n):
    TB2[KX(n)] = x.shape[0]
    r = TB2.pop(KX(n))
    return x + r, len(TB2), TB2[KX(1)]


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_keys_are_made_again_when_the_dict_leaves():
    table = torch_compiled(lambda x: {KX(1): x, KX(2): x + 1})(torch.ones(2))
    assert [k.v for k in table] == [1, 2]
    assert torch.equal(table[KX(2)], torch.full((2,), 2.0))


def torch_compiled(fn):
    return torchweld.compile(fn, backend="eager", fullgraph=True)


def test_a_change_of_what_the_hash_is_made_of_is_seen():
    key = KX(1)
    table = {key: 5}
    compiled = torchweld.compile(lambda x: x + table.get(KX(1), 0), backend="eager")
    assert torch.equal(compiled(torch.zeros(2)), torch.full((2,), 5.0))
    key.v = 9
    assert torch.equal(compiled(torch.zeros(2)), torch.zeros(2))


def test_a_hash_that_prints_is_refused():
    check_refused(lambda x: x + len({KL(1): 1, KL(2): 2}), torch.ones(2), code="W106",
                  says="side effect of __hash__")  # fmt: skip


def test_keys_of_two_classes_with_one_hash_are_refused():
    check_refused(lambda x: x + len({K(5): 1, 5: 2}), torch.ones(2), code="W107",
                  says="keys of different classes")  # fmt: skip
