"""What the tests of the frame hook share: entries that answer for a frame, and a clean hook."""

import pytest

from torchweld.frame import hook
from torchweld.frame.program import Builder, Entry


@pytest.fixture(autouse=True)
def clean():
    """No test leaves the hook active or code with entries behind."""
    yield
    assert not hook.active()
    hook.uninstall()
    hook.detach_all()


def entry_for(n_args, guard=lambda b, regs: None, **how):
    """An entry for frames of `n_args` arguments that answers ("compiled", *arguments)."""
    b = Builder(n_args)
    regs = [b.arg(i) for i in range(n_args)]
    guard(b, regs)
    return Entry(b.build(), regs, how.pop("call", lambda *a: ("compiled", *a)), **how)


def only(*functions):
    """A callback that records the named functions and gives each an entry."""
    seen = []
    codes = {f.__code__ for f in functions}

    def callback(view):
        if view.code not in codes:
            return None
        seen.append(view)
        return [entry_for(len(view.locals))]

    hook.install(callback)
    return seen
