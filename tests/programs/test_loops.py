# ruff: noqa: C400, C416
# The programs are written as users write them.
"""Loops, comprehensions, generators."""

import torch
from eager_twin import check, check_made

X = torch.arange(4.0)
Y = torch.ones(4)


def test_for_break_continue_else():
    def program(x, n):
        for i in range(n):
            if i == 1:
                continue
            if i == 4:
                break
            x = x + i
        else:
            x = x * 100
        while n > 0:
            n -= 2
            if n == 3:
                continue
            x = x - 1
        else:
            x = x + 0.5
        return x

    check(program, (X, 3), (X, 7), graphs=2)


def test_comprehensions():
    def program(x, n):
        a = [x + i for i in range(n) if i % 2]
        b = {i: x * i for i in range(n)}
        c = {i % 3 for i in range(n)}
        d = [(i, j) for i in range(2) for j in range(i + 1)]
        e = [[i * j for i in range(2)] for j in range(2)]
        return a, b, c, d, e

    check(program, (X, 5), (Y, 5))


def test_comprehension_variable_does_not_leak():
    def program(x):
        i = 10
        ys = [i + 1 for i in range(3)]
        return x + i, ys

    check(program, (X,))


def test_comprehension_with_closure():
    def program(x):
        fs = [lambda: i for i in range(3)]
        k = 2
        return x + fs[0](), [(lambda y: y * k + i)(x) for i in range(2)]

    check(program, (X,))


def test_generator_expression():
    check(lambda x: (sum(x * i for i in range(4)), list(i * 2 for i in range(3))), (X,), (Y,))


def test_generator_function():
    def gen(x, n):
        for i in range(n):
            x = x + i
            yield x
        return "done"

    def outer(x):
        result = yield from gen(x, 2)
        yield result

    def program(x):
        return list(gen(x, 3)), list(outer(x))

    check(program, (X,), (Y,))


def test_generator_send_throw_close():
    def gen(log):
        got = yield 1
        try:
            got = yield got + 1
        except ValueError as error:
            got = yield str(error)
        finally:
            log.append("finally")
        yield got

    def program(x):
        log = []
        g = gen(log)
        a = next(g)
        b = g.send(10)
        c = g.throw(ValueError("v"))
        d = g.send(5)
        g.close()
        return x + a, b, c, d, next(g, "end"), log

    check(program, (X,))


def test_close_runs_finally():
    def program(x):
        log = []

        def gen():
            try:
                yield 1
                yield 2
            finally:
                log.append("closed")

        g = gen()
        next(g)
        g.close()
        g.close()
        return x + 1, log

    check(program, (X,))


def test_generator_left_in_a_try_block_is_closed_with_the_frame():
    def program(x):
        log = []

        def gen():
            try:
                yield 1
                yield 2
            finally:
                log.append("closed")

        for i in gen():
            x = x + i
            break
        return x, log

    check(program, (X,))


def test_generator_return_value():
    def gen():
        yield 1
        return 7

    def program(x):
        g = gen()
        next(g)
        try:
            next(g)
        except StopIteration as stop:
            return x + stop.value
        return x

    check(program, (X,))


def test_stop_iteration_inside_a_generator_is_an_error():
    def gen():
        yield 1
        raise StopIteration

    def program(x):
        y = x + 1
        try:
            list(gen())
        except RuntimeError as error:
            return y, str(error)
        return y

    check(program, (X,))


def test_throw_through_yield_from():
    def inner():
        try:
            yield 1
        except KeyError:
            yield "caught inside"

    def outer():
        yield from inner()
        yield "after"

    def program(x):
        g = outer()
        a = next(g)
        b = g.throw(KeyError("k"))
        return x + a, b, list(g)

    check(program, (X,))


def test_yield_inside_except_keeps_the_outer_exception():
    def gen():
        try:
            raise KeyError("inner")
        except KeyError:
            yield 1
            raise

    def program(x):
        y = x
        try:
            raise ValueError("outer")
        except ValueError:
            g = gen()
            y = y + next(g)
            try:
                raise
            except ValueError as error:
                text = str(error)
        try:
            next(g)
        except KeyError as error:
            text += str(error)
        return y, text

    check(program, (X,))


def test_generator_passed_around_and_exhausted():
    def program(x):
        g = (i for i in range(4))
        first = next(g)
        rest = [v for v in g]
        return x + first, rest, list(g), next(g, None)

    check(program, (X,))


def test_infinite_generator():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    def program(x):
        total = 0
        for n in naturals():
            if n > 4:
                break
            total += n
        return x + total

    check(program, (X,))


def test_generator_changes_outer_list():
    def make():
        seen = []

        def gen(n):
            for i in range(n):
                seen.append(i)
                yield i

        return (lambda x: x + sum(gen(3))), seen

    check_made(make, (X,))


def test_unpacking():
    def program(x):
        a, (b, *c), d = 1, (x, 3, 4), {5}
        *e, f = range(3)
        g, *h = "xyz"
        (i, j), k = (x + 1, x + 2), [*h, *c, g]
        m, n = (t for t in (1, 2))
        return a, b, c, d, e, f, g, h, i, j, k, m, n

    check(program, (X,), (Y,))


def test_unpack_errors():
    def program(x):
        y, out = x + 1, []
        for bad in ((1, 2, 3), (1,), 5):
            try:
                a, b = bad
            except (ValueError, TypeError) as error:
                out.append((type(error).__name__, str(error)))
        try:
            a, b, *c = (1,)
        except ValueError as error:
            out.append(str(error))
        return y, out

    check(program, (X,))


def test_unpack_tensor_rows():
    def program(x):
        a, b = x.reshape(2, 2)
        c, *d = x
        return a + b, c, d

    check(program, (X,), (Y,))


def test_list_grows_while_it_is_read():
    def program(x):
        todo = [1]
        for n in todo:
            if n < 4:
                todo.append(n + 1)
            x = x + n
        return x, todo

    check(program, (X,))


def test_dict_changed_during_iteration_raises():
    def program(x):
        y, d = x + 1, {"a": 1}
        try:
            for k in d:
                d[k + "b"] = 1
        except RuntimeError as error:
            return y, str(error)
        return y

    check(program, (X,))


def test_walrus():
    def program(x):
        if (n := x.shape[0]) > 2:
            x = x * n
        return x, [y for i in range(4) if (y := i * 2) > 2], n

    check(program, (X,))


def test_nested_loops_over_tensors():
    def program(x):
        total = 0
        for row in x.reshape(2, 2):
            for v in row:
                total = total + v
        return total

    check(program, (X,), (Y,))


def test_conditional_chains():
    def program(x, a, b):
        y = x if a else x + 1 if b else x + 2
        z = (a and b) or 3
        return y * 2, z, 1 < 2 < 3, a is not b, not a

    check(program, (X, 0, 1), (X, 1, 0), graphs=2)
