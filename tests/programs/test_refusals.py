"""What stays out is refused with a reason, and runs eagerly."""

import pytest
import torch
from eager_twin import check_refused

import torchweld

X = torch.arange(4.0)


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        (lambda x: (x + 1, len()), "W107", "len"),
        (lambda x: (x + 1, isinstance(x)), "W107", "isinstance"),
        (lambda x: (x + 1, getattr(x, 3)), "W", ""),
        (lambda x: (x + 1, [1].append(1, 2)), "W", ""),
        (lambda x: (x + 1, {}.get()), "W107", "get"),
        (lambda x: (x + 1, dict(1)), "W", ""),
        (lambda x: (x + 1, max()), "W107", "max"),
        (lambda x: (x + 1, [1][x]), "W102", "Tensor as an index"),
        (lambda x: (x + 1, [1, 2][x[1].long()]), "W102", "Tensor as an index"),
        (lambda x: (x + 1, range(x.sum())), "W102", "range"),
        (lambda x: (x + 1, int(x.sum())), "W102", "int"),
        (lambda x: (x + 1, x.tolist()), "W102", "tolist"),
        (lambda x: x + 1 if x.sum() > 0 else x, "W101", "graph runs"),
        (lambda x: (x + 1, id(x + 2) > 0), "W107", "of int and int"),
        (lambda x: (x + 1, str(x)[0]), "W102", ""),
        (lambda x: (x + 1, f"{x}" == "a"), "W102", "looked at"),
        (lambda x: (x + 1, exec("1")), "W106", "builtin"),
        (lambda x: (x + 1, open("/dev/null").close()), "W106", "builtin"),
        (lambda x: (x + 1, sorted([lambda: 1, lambda: 2])), "W", ""),
        (lambda x: (x + 1, (lambda *, a: a)()), "W", ""),
        (lambda x: (x + 1, [].sort(1)), "W", ""),
        (lambda x: (x + 1, "a".join([1])), "W", "sequence item 0"),
        (lambda x: (x + 1, 1 + None), "W", ""),
        (lambda x: (x + 1, object() < object()), "W", "not supported"),
        (lambda x: (x + 1, setattr(3, "a", 1)), "W", ""),
        (lambda x: (x + 1, next(3)), "W", "iterator"),
        (lambda x: (x + 1, super()), "W", ""),
        (lambda x: (x + 1, type("A", (3,), {})), "W", ""),
        (lambda x: (x + 1, {x: 1}[x.clone()]), "W", ""),
    ],
)
def test_refused(program, code, says):
    check_refused(program, X, code=code, says=says)


def test_asynchronous_generator_that_others_have_to_close():
    log = []

    async def later(x):
        try:
            yield x
        finally:
            log.append("closed")

    def program(x):
        made = later(x)
        try:
            made.asend(None).send(None)
        except StopIteration as end:
            return end.value + 1, made

    torchweld.reset()
    expected, kept = program(X)
    (got, made) = torchweld.compile(program, backend="eager")(X)
    assert torch.equal(got, expected)
    refusals = torchweld.pipeline.STATISTICS.refusals
    assert any(r.code in ("W107", "W109") for r in refusals)
    assert log == []
    del kept, made


def test_coroutine_that_nobody_awaits():
    async def later(x):
        return x

    def program(x):
        c = later(x)
        return x + 1, c.close

    torchweld.reset()
    _, close = torchweld.compile(program, backend="eager")(X)
    close()
    assert torchweld.statistics()["breaks"] == 1


def test_print_of_a_tensor_that_requires_grad():
    def program(x):
        y = x * 2
        print(y)
        return y

    check_refused(program, X.clone().requires_grad_(), code="W102", says="requires grad")


def test_a_lock_with_a_time_limit():
    import threading

    lock = threading.Lock()

    def program(x):
        if lock.acquire(timeout=1):
            lock.release()
        return x + 1

    check_refused(program, X, code="W107", says="with a time limit")


def test_a_loop_that_takes_too_many_instructions_runs_eagerly(monkeypatch):
    def program(x):
        n = 0
        while n < 1000:
            n += 1
        return x + n

    monkeypatch.setattr("torchweld.capture.interp.MAX_STEPS", 500)
    check_refused(program, X, code="W116", says="more than 500 instructions")


def test_a_quantized_tensor():
    x = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
    torchweld.reset()
    assert torch.equal(torchweld.compile(lambda x: x.dequantize() + 1)(x), x.dequantize() + 1)
    assert any("x is quantized" in r.why for r in torchweld.pipeline.STATISTICS.refusals)


def test_a_view_whose_history_is_lost_is_refused():
    """Autograd raises when such a view is looked at."""
    base = torch.ones(3, requires_grad=True) * 1
    with torch.no_grad():
        view = base[1:]
    base.add_(1)
    torchweld.reset()
    compiled = torchweld.compile(lambda v: v + 1, backend="eager")
    for fn in (compiled, compiled.fn):
        with pytest.raises(RuntimeError, match="view was created in no_grad mode"):
            fn(view)
    assert torchweld.statistics()["internal_errors"] == 0
