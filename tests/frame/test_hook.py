"""The frame hook: what it sees, what runs in place of a frame, and that nothing else changes."""

import asyncio
import contextlib
import gc
import sys
import threading
import traceback
import types
import weakref

import pytest
from hook_entries import clean as clean
from hook_entries import entry_for, only

from torchweld.frame import hook
from torchweld.frame.program import Dispatcher, Op

# --- what is seen -------------------------------------------------------------------------------


def test_inner_frames_are_shown_once_and_run_their_entry():
    def inner(a, b=2):
        return ("eager", a, b)

    def outer():
        return inner(1), inner(3, b=4)

    seen = only(inner)
    assert hook.run_hooked(outer) == (("compiled", 1, 2), ("compiled", 3, 4))
    assert [v.locals for v in seen] == [(1, 2)]
    assert seen[0].function is inner and seen[0].code is inner.__code__
    assert inner(1) == ("eager", 1, 2)


def test_the_function_of_run_hooked_itself_runs_as_it_is():
    def f(n):
        return n if n == 0 else f(n - 1)

    seen = only(f)
    assert hook.run_hooked(f, 3) == ("compiled", 2)
    assert [v.locals for v in seen] == [(2,)]


def test_run_hooked_takes_methods_keywords_and_c_functions():
    class C:
        def m(self, x, *, k):
            return x, k

    seen = only(C.m)
    assert hook.run_hooked(C().m, 1, k=2) == (1, 2) and seen == []
    assert hook.run_hooked(max, [1, 2], key=lambda x: -x) == 1
    with pytest.raises(TypeError):
        hook.run_hooked()


def test_all_kinds_of_arguments_come_flat():
    def inner(a, /, b, *args, k, **kw):
        return "eager"

    seen = only(inner)
    assert hook.run_hooked(lambda: inner(1, 2, 3, 4, k=5, z=6)) == (
        "compiled", 1, 2, 5, (3, 4), {"z": 6})
    assert len(seen) == 1


def test_wrong_arguments_raise_before_the_hook():
    def inner(a):
        return a

    seen = only(inner)
    with pytest.raises(TypeError, match="missing 1 required"):
        hook.run_hooked(lambda: inner())
    assert seen == []


def test_cell_arguments_come_as_values():
    def inner(x):
        return lambda: x

    only(inner)
    assert hook.run_hooked(lambda: inner(5)) == ("compiled", 5)


def test_closures_are_seen_through_the_function():
    def make(value):
        def inner(x):
            return value + x

        return inner

    one, two = make(1), make(2)
    seen = []

    def callback(view):
        if view.code is not one.__code__:
            return None
        seen.append(view.function.__closure__[0].cell_contents)
        return [entry_for(1, lambda b, r: b.check(
            Op.IS, b.access(Op.CLOSURE, b.access(Op.CONST, obj=view.function)), 1))]

    hook.install(callback)
    answers = hook.run_hooked(lambda: (one(1), two(1), one(2)))
    assert answers == (("compiled", 1), 3, ("compiled", 2))
    assert seen == [1]


def test_functions_that_share_only_their_code_do_not_share_entries():
    def inner(x):
        return x, name  # noqa: F821

    one = types.FunctionType(inner.__code__, {"name": "one"})
    two = types.FunctionType(inner.__code__, {"name": "two"})
    seen = only(inner)
    for _ in range(2):
        assert hook.run_hooked(lambda: (one(1), two(1))) == (("compiled", 1), (1, "two"))
    assert [v.function for v in seen] == [one]


def test_methods_and_super():
    class Base:
        def f(self, x):
            return "eager", x

    class Derived(Base):
        def f(self, x):
            return super().f(x)

    seen = only(Base.f)
    d = Derived()
    assert hook.run_hooked(lambda: d.f(3)) == ("compiled", d, 3)
    assert len(seen) == 1


def test_generators_coroutines_classes_and_modules_are_left_alone():
    seen = []

    def generator():
        yield 1

    async def coroutine():
        return 2

    def outer():
        class Body:
            x = 3

        scope = {}
        exec("y = 4", scope)
        return list(generator()), asyncio.run(coroutine()), Body.x, scope["y"]

    hook.install(lambda view: seen.append(view.code.co_name))
    assert hook.run_hooked(outer) == ([1], 2, 3, 4)
    assert not {"generator", "coroutine", "Body", "<module>"} & set(seen)


def test_none_skips_for_ever():
    def inner():
        return 1

    seen = []
    hook.install(lambda view: seen.append(view.code))
    for _ in range(3):
        assert hook.run_hooked(lambda: inner()) == 1
    assert seen.count(inner.__code__) == 1 and hook.state(inner.__code__) == "skip"


def test_detach_all_forgets_what_a_callback_skipped_but_not_set_skip():
    def asked_for(x):
        return x

    def hidden(x):
        return x

    seen = []
    hook.install(lambda view: seen.append(view.code.co_name))
    hook.set_skip(hidden.__code__)

    def run():
        asked_for(1)
        hidden(1)

    hook.run_hooked(run)
    hook.run_hooked(run)
    assert seen == ["asked_for"]
    hook.detach_all()
    hook.run_hooked(run)
    assert seen == ["asked_for", "asked_for"]


def test_no_entries_asks_again():
    def inner():
        return 1

    seen = []
    hook.install(lambda view: seen.append(view.code) or [])
    for _ in range(3):
        assert hook.run_hooked(lambda: inner()) == 1
    assert seen.count(inner.__code__) == 3


def test_set_quiet_hides_code_and_all_that_it_calls():
    def inner():
        return "eager"

    def quiet():
        return inner()

    def outer():
        return quiet(), inner()

    seen = only(inner, quiet)
    hook.set_quiet(quiet.__code__)
    assert hook.run_hooked(outer) == ("eager", ("compiled",))
    assert [v.code for v in seen] == [inner.__code__]
    assert hook.state(quiet.__code__) == "quiet"
    hook.detach_all()
    assert hook.state(quiet.__code__) == "quiet"
    hook.detach(quiet.__code__)
    assert hook.state(quiet.__code__) is None


def test_a_callback_may_say_that_code_is_quiet():
    def inner():
        return "eager"

    def quiet():
        return inner()

    def callback(view):
        if view.code is quiet.__code__:
            hook.set_quiet(view.code)
        return [entry_for(0)] if view.code is inner.__code__ else None

    hook.install(callback)
    for _ in range(2):
        assert hook.run_hooked(lambda: (quiet(), inner())) == ("eager", ("compiled",))


def test_an_exception_leaves_quiet_code_and_the_region_goes_on():
    def inner():
        return "eager"

    def quiet():
        raise KeyError

    def outer():
        with contextlib.suppress(KeyError):
            quiet()
        return inner()

    only(inner, quiet)
    hook.set_quiet(quiet.__code__)
    assert hook.run_hooked(outer) == ("compiled",)


def test_set_skip_hides_code():
    def inner():
        return 1

    hook.set_skip(inner.__code__)
    seen = only(inner)
    assert hook.run_hooked(lambda: inner()) == 1 and seen == []
    hook.detach(inner.__code__)
    assert hook.run_hooked(lambda: inner()) == ("compiled",)


def test_equal_code_objects_are_not_confused():
    def make():
        def inner():
            return 1

        return inner

    one = make()
    two = make()
    two.__code__ = two.__code__.replace()
    assert one.__code__ == two.__code__ and one.__code__ is not two.__code__
    hook.set_skip(one.__code__)
    assert hook.state(two.__code__) is None


# --- entries ------------------------------------------------------------------------------------


def test_no_match_runs_the_frame_and_on_miss_may_replace_the_entries():
    def inner(x):
        return ("eager", x)

    def entries(kind):
        return [entry_for(1, lambda b, r: b.check(Op.TYPE, r[0], kind))]

    missed = []

    def on_miss(view):
        missed.append(view.locals[0])
        return entries(str) if view.locals[0] == "s" else None

    hook.install(lambda view: entries(int) if view.code is inner.__code__ else None)
    assert hook.run_hooked(lambda: (inner(1), inner("s"))) == (("compiled", 1), ("eager", "s"))
    hook.install(lambda view: None, on_miss)
    assert hook.run_hooked(lambda: (inner(1), inner("s"))) == (("compiled", 1), ("compiled", "s"))
    assert missed == ["s"]
    assert hook.run_hooked(lambda: (inner(1), inner(2), inner("s"))) == (
        ("eager", 1), ("eager", 2), ("compiled", "s"))
    assert missed == ["s", 1]


def test_attach_and_state():
    def inner(x):
        return x

    entry = entry_for(1)
    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry])
    assert hook.state(inner.__code__) == (entry,)
    assert hook.run_hooked(lambda: inner(3)) == ("compiled", 3)
    hook.detach_all()
    assert hook.state(inner.__code__) == () and hook.run_hooked(lambda: inner(3)) == 3
    with pytest.raises(TypeError, match="entries or None"):
        hook.attach(inner.__code__, [3])
    with pytest.raises(TypeError):
        hook.set_skip(inner)


def test_an_entry_may_detach_itself_inside_its_own_call():
    def inner(x):
        return "eager"

    def call(x):
        hook.detach(inner.__code__)
        gc.collect()
        return x

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(1, call=call)])
    assert hook.run_hooked(lambda: (inner(3), inner(3))) == (3, "eager")


def test_a_weakly_attached_entry_dies_with_its_owner():
    def inner(x):
        return "eager"

    entry = entry_for(1)
    hook.install(lambda view: [])
    hook.attach(inner.__code__, [weakref.ref(entry)])
    assert hook.run_hooked(lambda: inner(3)) == ("compiled", 3)
    del entry
    assert hook.run_hooked(lambda: inner(3)) == "eager"


def test_code_that_dies_frees_its_entries():
    def make():
        scope = {}
        exec("def inner(x): return x", scope)
        return scope["inner"]

    inner, entry = make(), entry_for(1)
    hook.attach(inner.__code__, [entry])
    gone = weakref.ref(entry)
    del entry
    assert gone() is not None
    del inner
    gc.collect()
    assert gone() is None
    hook.detach_all()


def test_exceptions_come_out_unchanged_and_frames_are_ended():
    error = KeyError("mine")

    def inner(x):
        return x

    def call(x):
        raise error

    def outer():
        try:
            inner([1])
        except KeyError as e:
            return e

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(1, call=call)])
    kept = [hook.run_hooked(outer) for _ in range(1000)]
    assert all(e is error for e in kept)
    assert any(f.name == "call" for f in traceback.extract_tb(error.__traceback__))


def test_a_handler_in_the_code_does_not_catch_what_its_entry_raises():
    def inner(x):
        try:
            return x
        except KeyError:
            return "caught"

    def call(x):
        raise KeyError

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(1, call=call)])
    with pytest.raises(KeyError):
        hook.run_hooked(lambda: inner(1))


def test_a_callback_that_raises_is_reported_and_skips(monkeypatch):
    def inner():
        return 1

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: reported.append(info.exc_type))

    def callback(view):
        raise KeyError

    hook.install(callback)
    assert hook.run_hooked(lambda: (inner(), inner())) == (1, 1)
    assert reported == [KeyError] and hook.state(inner.__code__) == "skip"
    hook.detach(inner.__code__)
    hook.install(lambda view: [3])
    assert hook.run_hooked(lambda: inner()) == 1
    assert reported == [KeyError, TypeError]


def test_locals_are_released_when_an_entry_took_the_frame():
    class Thing:
        pass

    def inner(x, y):
        z = [x, y]
        return z[0]

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(2, call=lambda x, y: None)])

    def outer():
        thing = Thing()
        ref = weakref.ref(thing)
        inner(thing, [thing])
        before = sys.getrefcount(thing)
        for _ in range(100):
            inner(thing, [thing])
        assert sys.getrefcount(thing) == before
        del thing
        return ref

    assert hook.run_hooked(outer)() is None


# --- regions ------------------------------------------------------------------------------------


def test_outside_a_region_nothing_is_seen():
    def inner():
        return 1

    seen = only(inner)
    assert inner() == 1
    with hook.Hooked():
        assert hook.active()
        assert inner() == ("compiled",)
        with hook.Hooked():
            assert inner() == ("compiled",)
        assert inner() == ("compiled",)
    assert inner() == 1 and len(seen) == 1


def test_a_region_ends_at_an_exception():
    with pytest.raises(ZeroDivisionError), hook.Hooked():
        1 / 0
    assert not hook.active()
    with pytest.raises(ZeroDivisionError):
        hook.run_hooked(lambda: 1 / 0)
    assert not hook.active()


def test_leave_without_enter_is_an_error():
    with pytest.raises(RuntimeError, match="without"):
        hook.hook_leave()


def test_other_threads_are_not_hooked():
    def inner():
        return 1

    only(inner)
    found = []
    with hook.Hooked():
        t = threading.Thread(target=lambda: found.append(inner()))
        t.start()
        t.join()
        assert inner() == ("compiled",)
    assert found == [1]


def test_callback_call_finish_and_guards_are_not_hooked():
    def quiet(x):
        return x

    def inner(x):
        return x

    seen = []

    def callback(view):
        seen.append(view.code)
        quiet(1)
        if view.code is not inner.__code__:
            return None
        return [entry_for(1, lambda b, r: b.check(Op.PREDICATE, r[0], lambda x: bool(quiet(1))),
                          call=quiet, finish=lambda outs: quiet(outs))]

    hook.install(callback)
    assert hook.run_hooked(lambda: inner(7)) == 7
    assert quiet.__code__ not in seen and inner.__code__ in seen


def test_finish_may_open_a_region_of_its_own():
    def inner():
        return "eager"

    def outer():
        return inner()

    hook.install(lambda view: None)
    hook.attach(inner.__code__, [entry_for(0)])
    reopen = entry_for(0, call=None, finish=lambda outs: hook.run_hooked(outer))
    hook.attach(outer.__code__, [reopen])
    assert hook.run_hooked(lambda: (outer(), hook.active())) == (("compiled",), True)


def test_a_dispatcher_inside_a_region_suspends_it():
    def quiet(x):
        return x

    seen = []

    def miss(d, flat):
        quiet(1)
        entry = entry_for(1, call=quiet)
        d.add(entry)
        return entry

    d = Dispatcher(lambda x: "eager", miss)
    hook.install(lambda view: seen.append(view.code))
    assert hook.run_hooked(lambda: (d(1), d(2))) == (1, 2)
    assert quiet.__code__ not in seen


def test_uninstall_inside_a_region_runs_frames_as_they_are():
    def inner():
        return 1

    only(inner)
    with hook.Hooked():
        hook.uninstall()
        assert inner() == 1


def test_entries_that_read_the_function_serve_all_functions_with_its_code():
    """The function is behind the arguments, of which there may be many."""

    def make(value):
        def inner(x, *rest, **named):
            return value

        def many(a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q, r, s, t, u, v, w, x, y, z, *rest):
            return value

        return inner, many

    asked = []

    def callback(view):
        if view.code.co_name not in ("inner", "many"):
            return None
        asked.append(view.code.co_name)
        n = len(view.locals) + 1
        return [entry_for(n, lambda b, r: b.check(
            Op.IS_NOT, b.access(Op.CLOSURE, r[-1]), 3), call=lambda *a: a[-1])]

    hook.install(callback)
    for which in (0, 1):
        functions = [make(value)[which] for value in range(4)]
        args = range(25) if which else (1,)
        answers = hook.run_hooked(lambda fns=functions, args=args: [fn(*args) for fn in fns])
        assert answers == [*functions[:3], 3]
    assert asked[:1] == ["inner"] and "many" in asked
