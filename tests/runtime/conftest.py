"""Fixtures of the runtime tests: a cache of their own, and a Program on each driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from launch_lists import Make, maker

from torchweld.base import events
from torchweld.ir.program import Program
from torchweld.runtime.executable import Executable


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def fresh_events() -> Iterator[None]:
    events.clear()
    yield
    events.clear()


@pytest.fixture
def native(shared_cache: str) -> Make:
    """Builds on the native driver."""
    return maker("native", shared_cache)


@pytest.fixture(params=["native", "python"])
def make(request: pytest.FixtureRequest, shared_cache: str) -> Make:
    """Builds on either driver: both must pass."""
    return maker(request.param, shared_cache)


@pytest.fixture
def both(shared_cache: str) -> Callable[[Program], tuple[Executable, Executable]]:
    """Builds on the native and on the reference driver."""

    def build(program: Program) -> tuple[Executable, Executable]:
        return maker("native", shared_cache)(program), maker("python", shared_cache)(program)

    return build
