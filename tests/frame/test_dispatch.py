"""The dispatcher: binds like CPython, runs the first entry that matches, else the function."""

import contextlib
import gc
import inspect
import itertools
import sys
import threading
import weakref

import pytest

from torchweld.frame.program import Builder, Dispatcher, Entry, Op


def never(dispatcher, flat):
    return None


def entry_for(n_args, guard=lambda b, regs: None, **how):
    """An entry over all flat arguments; without `call` it returns them as a tuple."""
    b = Builder(n_args)
    regs = [b.arg(i) for i in range(n_args)]
    guard(b, regs)
    return Entry(b.build(), how.pop("inputs", regs), how.pop("call", lambda *a: a), **how)


def compiled(fn, guard=lambda b, regs: None, **how):
    d = Dispatcher(fn, never)
    d.add(entry_for(d.n_flat, guard, **how))
    return d


def is_int(b, regs):
    b.check(Op.TYPE, regs[0], int)


# --- binding ------------------------------------------------------------------------------------


def plain(a, b):
    return a, b


def defaults(a, b=2, c=3):
    return a, b, c


def positional_only(a, b=2, /, c=3):
    return a, b, c


def keyword_only(a, *, k, m=5):
    return a, k, m


def star(a, *args):
    return a, args


def star_keyword(a, *args, k=1):
    return a, k, args


def double_star(a, b=2, **kw):
    return a, b, kw


def posonly_and_kwargs(a, /, **kw):
    return a, kw


def everything(a, b=2, /, c=3, *args, k, m=5, **kw):
    return a, b, c, k, m, args, kw


def nothing():
    return ()


FUNCTIONS = [plain, defaults, positional_only, keyword_only, star, star_keyword, double_star,
             posonly_and_kwargs, everything, nothing]
KEYWORDS = [{}, {"b": 10}, {"c": 11}, {"k": 12}, {"m": 13}, {"a": 14}, {"z": 15},
            {"k": 1, "m": 2}, {"c": 1, "k": 2}, {"k": 1, "z": 2}, {"b": 1, "c": 2, "k": 3}]


def outcome(f, args, kwargs):
    try:
        return f(*args, **kwargs)
    except TypeError as e:
        return str(e)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_binding_is_that_of_cpython(fn):
    d = compiled(fn)
    hits = 0
    for n, kwargs in itertools.product(range(5), KEYWORDS):
        args = tuple(range(n))
        expected = outcome(fn, args, kwargs)
        assert outcome(d, args, kwargs) == expected, (n, kwargs)
        hits += type(expected) is tuple
        assert d.hits == hits, (n, kwargs)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_one_that_gives_its_function_has_it_behind_the_arguments(fn):
    d = Dispatcher(fn, never, gives=True)
    d.add(entry_for(d.n_flat))
    for n, kwargs in itertools.product(range(5), KEYWORDS):
        args = tuple(range(n))
        expected = outcome(fn, args, kwargs)
        got = outcome(d, args, kwargs)
        assert got == ((*expected, fn) if type(expected) is tuple else expected), (n, kwargs)


def test_binding_follows_the_defaults_of_the_moment():
    def f(a=1, *, k=2):
        return a, k

    d = compiled(f)
    f.__defaults__, f.__kwdefaults__ = (10,), {"k": 20}
    assert d() == (10, 20)
    f.__defaults__ = None
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'a'"):
        d()
    assert d.hits == 1


def test_every_call_has_its_own_kwargs():
    d = compiled(double_star)
    given = {"x": 1}
    assert d(0, **given)[2] is not given
    assert d(0)[2] is not d(0)[2]


def test_many_arguments():
    def f(*args):
        return args

    names = ", ".join(f"a{i}" for i in range(100))
    scope = {}
    exec(f"def g({names}): return ({names})", scope)
    values = tuple(range(100))
    assert compiled(f)(*values) == (values,)
    assert compiled(scope["g"])(*values) == values
    assert compiled(scope["g"])(*values[:50], **{f"a{i}": i for i in range(50, 100)}) == values


# --- entries ------------------------------------------------------------------------------------


def test_the_first_matching_entry_runs():
    d = Dispatcher(lambda x: "eager", never)
    d.add(entry_for(1, is_int, call=lambda x: "int"))
    d.add(entry_for(1, call=lambda x: "any"))
    assert (d(1), d("s")) == ("int", "any")
    assert [e.hits for e in d.entries] == [1, 1] and d.hits == 2


def test_no_match_runs_the_function():
    d = compiled(lambda x: ("eager", x), is_int)
    assert d("s") == ("eager", "s")


def test_result_picks_one_output():
    d = compiled(lambda x: x, call=lambda x: (x, x + 1), result=1)
    assert d(1) == 2
    d = compiled(lambda x: x, call=lambda x: [x, x + 1], result=0)
    assert d(1) == 1


def test_result_of_something_else_is_an_error():
    for outs in ((), 3):
        with pytest.raises(SystemError, match="item 0"):
            compiled(lambda x: x, call=lambda x: outs, result=0)(1)


def test_finish_sees_the_outputs_and_its_own_registers():
    d = compiled(lambda x, y: x, inputs=[0], call=lambda x: [x], finish=lambda *a: a,
                 finish_inputs=[1, 0])
    assert d("x", "y") == (["x"], "y", "x")


def test_without_call_finish_gets_none():
    b = Builder(1)
    b.arg(0)
    d = Dispatcher(lambda x: x, never)
    d.add(Entry(b.build(), [], None, lambda outs, x: (outs, x), [0]))
    assert d(3) == (None, 3)


def test_inputs_may_be_any_register():
    b = Builder(1)
    item = b.access(Op.ITEM_SEQ, b.arg(0), aux=1)
    d = Dispatcher(lambda x: x, never)
    d.add(Entry(b.build(), [item, item], lambda a, b: (a, b)))
    assert d([1, 2]) == (2, 2)


def test_an_unwritten_register_is_refused():
    program = Builder(1).build()
    with pytest.raises(ValueError, match="does not write"):
        Entry(program, [0], None)


def test_inputs_stay_alive_while_the_call_runs():
    holder = [["alive"]]
    b = Builder(1)
    item = b.access(Op.ITEM_SEQ, b.arg(0), aux=0)
    d = Dispatcher(lambda x: x, never)
    d.add(Entry(b.build(), [item], lambda x: (holder.clear(), gc.collect(), x)[2]))
    assert d(holder) == ["alive"]


def test_an_entry_may_be_removed_inside_its_own_call():
    def f(x):
        return "eager"

    d = Dispatcher(f, never)

    def call(x):
        d.remove(d.entries[0])
        gc.collect()
        return ("compiled", x)

    d.add(entry_for(1, call=call))
    assert (d(1), d(1)) == (("compiled", 1), "eager")


def test_entries_may_be_removed_inside_a_guard():
    d = Dispatcher(lambda x: "eager", never)
    for _ in range(3):
        d.add(entry_for(1, lambda b, r: b.check(Op.PREDICATE, r[0], lambda x: d.clear()),
                        call=lambda x: "compiled"))
    assert d(1) == "eager" and d.entries == ()


def test_exceptions_of_call_and_finish_come_out_unchanged():
    error = KeyError("mine")

    def fail(*args):
        raise error

    for d in (compiled(lambda x: x, call=fail), compiled(lambda x: x, finish=fail)):
        with pytest.raises(KeyError) as caught:
            d(1)
        assert caught.value is error and error.__context__ is None


def test_a_guard_that_raises_is_a_miss_and_leaves_no_exception():
    d = compiled(lambda x: "eager",
                 lambda b, r: b.check(Op.PREDICATE, r[0], lambda x: 1 / 0))
    assert d(1) == "eager"


def test_remove_of_a_stranger_and_add_of_a_stranger():
    d = compiled(plain)
    with pytest.raises(ValueError):
        d.remove(entry_for(2))
    with pytest.raises(TypeError):
        d.add(3)


# --- misses -------------------------------------------------------------------------------------


def test_miss_gets_the_flat_arguments_and_its_entry_runs():
    seen = []

    def miss(dispatcher, flat):
        seen.append((dispatcher, flat))
        entry = entry_for(3, call=lambda *a: ("compiled", *a))
        dispatcher.add(entry)
        return entry

    d = Dispatcher(defaults, miss)
    assert d(1, c=5) == ("compiled", 1, 2, 5)
    assert d(1) == ("compiled", 1, 2, 3)
    assert seen == [(d, (1, 2, 5))]


def test_an_entry_from_miss_that_does_not_match_runs_the_function():
    d = Dispatcher(lambda x: "eager", lambda d, flat: entry_for(1, is_int))
    assert d("s") == "eager"


def test_miss_may_raise_and_may_not_return_rubbish():
    def fail(d, flat):
        raise KeyError("mine")

    with pytest.raises(KeyError):
        Dispatcher(plain, fail)(1, 2)
    with pytest.raises(TypeError, match="Entry or None"):
        Dispatcher(plain, lambda d, flat: 3)(1, 2)


def test_binding_errors_do_not_reach_miss():
    d = Dispatcher(plain, lambda d, flat: pytest.fail("reached"))
    with pytest.raises(TypeError, match=r"plain\(\) missing 1 required"):
        d(1)


def test_miss_may_call_the_dispatcher_again():
    def miss(d, flat):
        (n,) = flat
        if n == 0:
            return None
        below = d(n - 1)
        return entry_for(1, call=lambda x: ("c", x, below))

    d = Dispatcher(lambda n: "eager", miss)
    assert d(2) == ("c", 2, ("c", 1, "eager"))


def test_a_disabled_dispatcher_runs_the_function():
    d = compiled(lambda x: "eager")
    d.enabled = False
    assert d(1) == "eager"
    d.enabled = True
    assert d(1) == (1,)


def test_new_code_drops_the_entries_and_asks_miss():
    seen = []

    def f(a, b):
        return "old"

    d = Dispatcher(f, lambda d, flat: seen.append(flat))
    d.add(entry_for(2))
    assert d(1, 2) == (1, 2)
    f.__code__ = (lambda a, *args: ("new", a, args)).__code__
    assert d(1, 2, 3) == ("new", 1, (2, 3))
    assert seen == [(1, (2, 3))] and d.entries == () and d.code is f.__code__


def test_recursion_ends_in_a_recursion_error():
    d = Dispatcher(plain, never)
    d.add(entry_for(2, call=d))
    with pytest.raises(RecursionError):
        d(1, 2)


# --- as an attribute ----------------------------------------------------------------------------


def test_it_binds_as_a_method():
    class Model:
        @compiled
        def forward(self, x):
            return self, x

    m = Model()
    assert m.forward(1) == (m, 1)
    bound = m.forward
    assert bound(2) == (m, 2) and bound.__self__ is m
    assert Model.forward(m, 3) == (m, 3)
    assert Model.__dict__["forward"].hits == 3


def test_signature_name_and_doc_come_from_the_function():
    d = compiled(everything)
    d.__wrapped__ = everything
    d.__name__ = "everything"
    d.__doc__ = "text"
    assert inspect.signature(d) == inspect.signature(everything)
    assert (d.__name__, d.__doc__) == ("everything", "text")

    class Model:
        f = d

    assert list(inspect.signature(Model().f).parameters) == ["b", "c", "args", "k", "m", "kw"]


def test_closures_are_seen_through_the_function():
    def make(value):
        def f(x):
            return "eager"

        d = Dispatcher(f, never)
        b = Builder(1)
        x = b.arg(0)
        fn = b.access(Op.CONST, obj=f)
        del fn
        d.add(Entry(b.build(), [x], lambda x: (value, x)))
        return d

    assert (make("a")(1), make("b")(2)) == (("a", 1), ("b", 2))


def test_only_functions_can_be_dispatched():
    with pytest.raises(TypeError):
        Dispatcher(len, never)
    with pytest.raises(TypeError):
        Dispatcher(plain, 3)


# --- life time ----------------------------------------------------------------------------------


def test_a_dispatcher_in_a_cycle_is_collected():
    def make():
        def f(x):
            return d

        d = compiled(f, lambda b, r: b.check(Op.IS_NOT, r[0], f))
        d.entries[0].owner = d
        d(1)
        return weakref.ref(d), weakref.ref(f)

    gone = make()
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_calls_leak_nothing():
    def fail(*args):
        raise KeyError

    marker = object()
    calls = [
        (compiled(plain), (marker, 1), {}),
        (compiled(everything), (marker, 1, 2, 3), {"k": marker, "z": marker}),
        (compiled(plain, finish=lambda *a: None, finish_inputs=[1, 0]), (marker, 2), {}),
        (Dispatcher(plain, never), (marker, 1), {}),
        (Dispatcher(plain, lambda d, flat: d.spare), (marker, 1), {}),
        (compiled(plain, call=fail), (marker, 1), {}),
        (compiled(plain), (marker,), {}),
    ]
    calls[4][0].spare = entry_for(2)

    def work(n):
        for d, args, kwargs in calls:
            for _ in range(n):
                with contextlib.suppress(KeyError, TypeError):
                    d(*args, **kwargs)

    def counts():
        gc.collect()
        return [sys.getrefcount(marker), sys.getrefcount(plain), len(gc.get_objects())] + [
            sys.getrefcount(e) for d, _, _ in calls for e in d.entries]

    work(100)
    before = counts()
    work(100_000 // len(calls))
    after = counts()
    assert after[:2] == before[:2] and after[3:] == before[3:]
    assert abs(after[2] - before[2]) < 20


def test_threads_share_a_dispatcher():
    def f(x, *, k):
        return "eager"

    d = Dispatcher(f, never)
    for t in range(4):
        d.add(entry_for(2, lambda b, r, t=t: (b.check(Op.EQ, r[1], t),
                                              b.check(Op.PREDICATE, r[0], lambda x: True)),
                        call=lambda x, k, t=t: (t, x)))
    wrong = []

    def work(t):
        for i in range(20_000):
            if d(i, k=t) != (t, i):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == [] and d.hits == 80_000
