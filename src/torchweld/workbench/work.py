"""Work: something to call, and with what.

Step: the same with a backward; WholeStep: and AdamW; Sizes: with several sizes, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

Compile = Callable[[Any], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Work:
    """A callable and its arguments."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    def call(self, fn: Callable[..., Any] | None = None) -> Any:
        """Call `fn`, or the work's own callable, with the work's arguments."""
        return (self.fn if fn is None else fn)(*self.args, **self.kwargs)

    def compiled(self, compile: Compile, whole: bool) -> Callable[..., Any]:
        """What `call` takes, compiled. whole: the compiler takes training steps as a whole."""
        return compile(self.fn)

    def each(self, fn: Callable[..., Any] | None = None) -> Iterator[Any]:
        """The results of all that the work calls, one by one; `call` is the last of them."""
        yield self.call(fn)

    def last(self) -> Work:
        """The work that calls its last size alone."""
        return self


@dataclass(frozen=True, slots=True)
class Sizes(Work):
    """A callable that is called with several sizes. before: the arguments of all but the last."""

    before: tuple[tuple[Any, ...], ...] = ()

    def each(self, fn: Callable[..., Any] | None = None) -> Iterator[Any]:
        for args in self.before:
            yield (self.fn if fn is None else fn)(*args, **self.kwargs)
        yield self.call(fn)

    def last(self) -> Work:
        return replace(self, before=())


@dataclass(frozen=True, slots=True)
class Step(Work):
    """A module that gives a loss. A call differentiates it: the loss, then every gradient.

    parameters: the module's, listed once, as an optimizer does.
    """

    parameters: tuple[torch.nn.Parameter, ...] = field(init=False)

    def __post_init__(self) -> None:
        module: Any = self.fn
        object.__setattr__(self, "parameters", tuple(module.parameters()))

    def call(self, fn: Callable[..., Any] | None = None) -> Any:
        for p in self.parameters:
            p.grad = None
        with torch.enable_grad():
            loss = (self.fn if fn is None else fn)(*self.args, **self.kwargs)
            loss.backward()
        return (loss, *(p.grad for p in self.parameters))


@dataclass(frozen=True, slots=True)
class WholeStep(Work):
    """A module that gives a loss. A call is a step of AdamW: gives the loss and the parameters.

    A compiler that takes it as a whole gets one function; any other gets the module, between
    torch's own backward and fused optimizer. parameters: the module's, listed once.
    """

    parameters: tuple[torch.nn.Parameter, ...] = field(init=False)

    def __post_init__(self) -> None:
        module: Any = self.fn
        object.__setattr__(self, "parameters", tuple(module.parameters()))

    def compiled(self, compile: Compile, whole: bool) -> Callable[..., Any]:
        if not whole:
            return _step(compile(self.fn), self.fn, fused=True)
        return compile(_step(self.fn, self.fn, fused=False))

    def call(self, fn: Callable[..., Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = (self.compiled(lambda f: f, False) if fn is None else fn)(
                *self.args, **self.kwargs)  # fmt: skip
        return (loss.detach(), *self.parameters)

    def each(self, fn: Callable[..., Any] | None = None) -> Iterator[Any]:
        """Two steps: a compiler may wait for the second one, which finds the optimizer's state."""
        step = self.compiled(lambda f: f, False) if fn is None else fn
        yield self.call(step)
        yield self.call(step)


def _step(model: Callable[..., Any], module: Any, fused: bool) -> Callable[..., Any]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=fused or None)

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer.zero_grad()
        loss: Any = model(*args, **kwargs)
        loss.backward()
        optimizer.step()
        return loss

    return step
