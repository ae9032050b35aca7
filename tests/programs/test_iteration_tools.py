# ruff: noqa: B905, RUF017
# The programs are written as users write them.
"""zip, map, filter, enumerate, sorted, itertools, functools.reduce."""

import functools
import itertools
import operator

import torch
from eager_twin import check

X = torch.arange(4.0)
Y = torch.ones(4)


def test_zip_enumerate_map_filter_reversed():
    def program(x):
        a = [i * t for i, t in enumerate((x, x + 1), 1)]
        b = list(zip(range(3), "abc", [x, x, x]))
        c = list(map(lambda p, q: p + q, [x, 1], [2, x]))
        d = list(filter(None, [0, 1, "", "a"])), list(filter(lambda n: n > 1, range(4)))
        e = list(reversed([1, x])), list(reversed(range(3))), "".join(reversed("ab"))
        return a, b, c, d, e

    check(program, (X,), (Y,))


def test_zip_strict_raises():
    def program(x):
        y = x + 1
        try:
            list(zip([1, 2], [1], strict=True))
        except ValueError as error:
            return y, str(error)
        return y

    check(program, (X,))


def test_unzip():
    def program(x):
        pairs = [(x, 1), (x + 1, 2)]
        a, b = zip(*pairs)
        return torch.stack(a), b, dict(zip("ab", pairs)), dict(enumerate("xy"))

    check(program, (X,))


def test_sorted_min_max_sum_any_all():
    def program(x):
        words = ["pear", "fig", "apple"]
        return (
            x + sum([1, 2], 3),
            sorted(words, key=len, reverse=True),
            sorted(words),
            min(words, key=len),
            max(3, 1),
            max([], default=7),
            any([0, 1]),
            all([]),
            sorted({"b": 1, "a": 2}.items()),
            sorted([(2, "a"), (1, "b")], key=operator.itemgetter(1)),
            max({"a": 1, "b": 3}, key={"a": 1, "b": 3}.get),
            sum([[1], [2]], []),
            min("b", "a"),
            sorted("cab"),
            max(x.shape),
        )

    check(program, (X,))


def test_sort_is_stable_in_reverse():
    check(
        lambda x: (x + 1, sorted([(1, "a"), (1, "b"), (2, "c")], key=lambda p: p[0], reverse=True)),
        (X,),
    )


def test_itertools():
    def program(x):
        it = itertools
        return (
            x + 1,
            list(it.chain([1], (2, 3))),
            list(it.chain.from_iterable([[1], [2]])),
            list(it.islice(it.count(5, 2), 3)),
            list(it.islice([1, 2, 3, 4, 5], 1, None, 2)),
            list(it.product("ab", [1, 2])),
            list(it.product([0, 1], repeat=2)),
            list(it.combinations([1, 2, 3], 2)),
            list(it.permutations([1, 2, 3], 2)),
            list(it.combinations_with_replacement("ab", 2)),
            list(it.repeat(3, 2)),
            list(it.zip_longest([1, 2], [3], fillvalue=0)),
            list(it.accumulate([1, 2, 3])),
            list(it.accumulate([1, 2, 3], operator.mul, initial=2)),
            list(it.pairwise([1, 2, 3])),
            list(it.starmap(pow, [(2, 3), (3, 2)])),
            list(it.takewhile(lambda n: n < 3, [1, 2, 3, 1])),
            list(it.dropwhile(lambda n: n < 3, [1, 3, 1])),
            [(k, list(g)) for k, g in it.groupby([1, 1, 2, 1])],
            list(it.compress("abc", [1, 0, 1])),
            list(it.filterfalse(lambda n: n % 2, range(5))),
            list(zip(it.cycle([1, 2]), range(5))),
        )

    check(program, (X,))


def test_itertools_on_tensors():
    def program(x):
        pairs = [a * b for a, b in itertools.combinations([x, x + 1, x + 2], 2)]
        return pairs, list(itertools.accumulate([x, x, x])), list(itertools.repeat(x, 2))

    check(program, (X,), (Y,))


def test_tee():
    def program(x):
        a, b = itertools.tee(i * 2 for i in range(3))
        return x + next(a), list(b), list(a)

    check(program, (X,))


def test_reduce():
    def program(x):
        return functools.reduce(lambda a, b: a + b, [x, 1, 2]), functools.reduce(
            operator.mul, [2, 3], x
        )

    check(program, (X,), (Y,))


def test_iter_with_sentinel_and_next():
    def program(x):
        stack = [3, 2, 1]
        it = iter(stack.pop, 3)
        a = iter([1, 2])
        return x + next(a), list(it), next(a), next(a, "end"), stack

    check(program, (X,))


def test_iterator_is_its_own_iterator():
    def program(x):
        it = iter([1, 2, 3, 4])
        return x + 1, list(zip(it, it))

    check(program, (X,))


def test_map_is_lazy():
    def program(x):
        log = []
        m = map(log.append, range(3))
        next(m)
        return x + 1, log

    check(program, (X,))


def test_dict_view_iterators():
    def program(x, d):
        it = iter(d.items())
        return x + next(it)[1], list(it), list(reversed(d.values())), list(reversed(d.items()))

    check(program, (X, {"a": 1, "b": 2, "c": 3}))


def test_range_arithmetic():
    def program(x):
        r = range(2, 10, 3)
        return (
            x + r[1],
            len(r),
            5 in r,
            list(r[1:]),
            r == range(2, 11, 3),
            r.start,
            r.index(8),
            list(r)[::-1],
        )

    check(program, (X,))


def test_counting_while_zipping_modules_and_tensors():
    layers = [torch.nn.ReLU(), torch.nn.Tanh()]
    check(lambda x: [m(t) for m, t in zip(layers, [x, -x], strict=True)], (X,))
