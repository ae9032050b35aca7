"""Context managers: classes, contextlib, torch's own."""

import contextlib

import torch
from eager_twin import check, check_made

X = torch.arange(4.0)
Y = torch.ones(4)


class Scope:
    def __init__(self, log, swallow=False):
        self.log = log
        self.swallow = swallow

    def __enter__(self):
        self.log.append("in")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(kind.__name__ if kind else None)
        return self.swallow


@contextlib.contextmanager
def scope(log, value):
    log.append("enter")
    try:
        yield value
    except KeyError:
        log.append("swallowed")
    finally:
        log.append("exit")


def test_class_context_manager():
    def program(x):
        log = []
        with Scope(log) as s:
            y = x + len(s.log)
        with Scope(log, swallow=True):
            raise ValueError("a")
        with Scope(log), Scope(log):
            y = y * 2
        return y, log

    check(program, (X,), (Y,))


def test_exit_sees_the_exception_and_lets_it_pass():
    def program(x):
        log = []
        try:
            with Scope(log):
                raise KeyError("k")
        except KeyError as error:
            return x + 1, log, error.args

    check(program, (X,))


def test_generator_context_manager():
    def program(x):
        log = []
        with scope(log, 3) as n:
            y = x * n
        with scope(log, 1):
            raise KeyError("k")
        try:
            with scope(log, 2):
                raise ValueError("v")
        except ValueError as error:
            log.append(error.args)
        return y, log

    check(program, (X,), (Y,))


def test_context_manager_as_decorator():
    log = []

    @scope(log, 1)
    def inner(x):
        return x + 1

    def program(x):
        log.clear()
        y = inner(x)
        return y, list(log)

    check(program, (X,))


def test_return_from_inside_a_with():
    def make():
        log = []

        def program(x):
            with Scope(log):
                return x + 1

        return program, log

    check_made(make, (X,))


def test_exit_stack_nullcontext_suppress_closing():
    def program(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Scope(log))
            stack.callback(log.append, "callback")
            y = x + 1
        with contextlib.nullcontext(5) as n:
            y = y * n
        with contextlib.suppress(ValueError, KeyError):
            raise KeyError("gone")
        return y, log

    check(program, (X,), (Y,))


def test_exit_stack_swallows():
    def program(x):
        log = []
        with contextlib.ExitStack() as stack:
            stack.enter_context(Scope(log, swallow=True))
            raise ValueError("v")
        return x + 1, log

    check(program, (X,))


def test_conditional_context():
    def program(x, on):
        with torch.no_grad() if on else contextlib.nullcontext():
            y = x * 2
        return y, torch.is_grad_enabled()

    check(program, (X, True), (X, False), graphs=2)


def test_torch_contexts():
    def program(x):
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            z = x * 3
        with torch.set_grad_enabled(False):
            w = x * 4
        return y, z, w

    check(program, (X.clone().requires_grad_(),))


def test_no_grad_decorator_inside():
    @torch.no_grad()
    def inner(x):
        return x * 2

    check(lambda x: inner(x) + x, (X.clone().requires_grad_(),))


def test_autocast():
    def program(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x.reshape(2, 2) @ x.reshape(2, 2)

    check(program, (X,))


def test_context_manager_from_outside_keeps_state():
    def make():
        class Counter:
            depth = 0
            most = 0

            def __enter__(self):
                self.depth += 1
                self.most = max(self.most, self.depth)

            def __exit__(self, *exc):
                self.depth -= 1

        c = Counter()

        def program(x):
            with c, c:
                return x + c.depth

        return program, c

    check_made(make, (X,), graphs=2)


def test_not_a_context_manager():
    def program(x):
        y = x + 1
        try:
            with 3:
                pass
        except TypeError as error:
            return y, str(error)

    check(program, (X,))


def test_generator_context_with_state_on_module():
    class M(torch.nn.Module):
        flag = False

        @contextlib.contextmanager
        def flagged(self):
            old, self.flag = self.flag, True
            try:
                yield self
            finally:
                self.flag = old

        def forward(self, x):
            with self.flagged() as me:
                return x + (1 if me.flag else 2)

    m = M()
    check(lambda x: (m(x), m.flag), (X,), (Y,))
