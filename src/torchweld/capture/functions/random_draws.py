"""`random` and `np.random`: single numbers and seeds; other draws are one step of Python each."""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import sys
import types
from typing import Any

from torchweld.capture.draws import draw, prepare, set_seed
from torchweld.capture.functions.owned import run_owned
from torchweld.capture.ops import changed
from torchweld.capture.policy import inline_anyway
from torchweld.capture.session import Capture
from torchweld.capture.state import Cont, refuse
from torchweld.capture.tables import FUNCTIONS, METHODS, NAMED
from torchweld.capture.values.base import NONE, ArrayValue, Const, ListValue, Value, constant
from torchweld.capture.values.owned import OwnedValue
from torchweld.capture.values.sequences import GrowingList

Args = list[Value]
Kwargs = dict[str, Value]

_NUMBERS = (
    "random", "uniform", "triangular", "randint", "randrange", "getrandbits", "gauss",
    "normalvariate", "lognormvariate", "expovariate", "vonmisesvariate", "gammavariate",
    "betavariate", "paretovariate", "weibullvariate", "binomialvariate", "choice", "choices",
    "sample",
)  # fmt: skip
_OTHER = ("shuffle", "randbytes", "getstate", "setstate")
_NUMPY_NUMBERS = (
    "beta", "binomial", "chisquare", "choice", "exponential", "f", "gamma", "geometric", "gumbel",
    "hypergeometric", "integers", "laplace", "logistic", "lognormal", "logseries",
    "negative_binomial", "noncentral_chisquare", "noncentral_f", "normal", "pareto", "poisson",
    "power", "rand", "randint", "randn", "random", "random_sample", "rayleigh", "standard_cauchy",
    "standard_exponential", "standard_gamma", "standard_normal", "standard_t", "tomaxint",
    "triangular", "uniform", "vonmises", "wald", "weibull", "zipf", "permutation", "dirichlet",
    "multinomial", "multivariate_normal", "permuted", "random_integers", "shuffle",
)  # fmt: skip


def _number(method: Any) -> Any:
    """A handler of a method that draws one number."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if isinstance(args[0], OwnedValue):
            run_owned(cap, method, args, kwargs, cont)
            return
        if isinstance(method, types.FunctionType) and args[0].cls() is not random.Random:
            inline_anyway(cap, method, args, kwargs, cont)  # the user's class may draw otherwise
            return
        if len(args) > 1 and isinstance(args[1], ArrayValue) and method.__name__ in _OF_ARRAYS:
            more = [constant(kwargs[n]) if n in kwargs else v for n, v in _CHOICE if kwargs]
            _arrays().of_array(cap, method.__name__, [*args, *map(Const, more)], cont)
            return
        if method.__name__ == "shuffle":
            raise refuse("W103", "shuffle of what is no array", cap.loc())
        fn, given = method, args[1:]
        if kwargs and isinstance(method, types.FunctionType):
            bound = inspect.signature(method).bind(*args, **kwargs)
            given, kwargs = list(bound.args[1:]), bound.kwargs
        if kwargs:
            named = {k: constant(cap.unwrap(v)) for k, v in kwargs.items()}
            fn = functools.partial(method, **named)
        cap.deliver(draw(cap, fn, args[0], given), cont)

    return handler


def _seed(method: Any) -> Any:
    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if isinstance(method, types.FunctionType) and args[0].cls() is not random.Random:
            inline_anyway(cap, method, args, kwargs, cont)
            return
        if isinstance(args[0], OwnedValue):
            run_owned(cap, method, args, kwargs, cont)
            return
        set_seed(cap, method, args[0], [*args[1:], *kwargs.values()])
        cap.deliver(Const(None), cont)

    return handler


def _whole(name: str) -> Any:
    """A method that runs as one step: a break, without a look inside."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        if args[0].cls() is not random.Random:
            inline_anyway(cap, getattr(random.Random, name), args, kwargs, cont)
            return
        if isinstance(args[0], OwnedValue):
            run = _shuffle_owned if name == "shuffle" else run_owned
            run(cap, getattr(random.Random, name), args, kwargs, cont)
            return
        method = getattr(random.Random, name)
        lists = (ListValue, GrowingList)
        if name == "shuffle" and len(args) == 2 and type(args[1]) in lists and not kwargs:
            _arrays().shuffle_list(cap, args[0], args[1], shuffled)
            cap.deliver(NONE, cont)
        elif name == "getstate":
            cap.deliver(_arrays().get_state(cap, method, args[0]), cont)
        elif name == "setstate" and len(args) == 2:
            _arrays().set_state(cap, method, *args)
            cap.deliver(NONE, cont)
        else:
            raise refuse("W103", f"random.{name} changes the state of a generator", cap.loc())

    return handler


# methods of arrays that choose places; what choice is given besides, if it is named
_OF_ARRAYS = ("shuffle", "permutation", "choice")
_CHOICE = (("size", None), ("replace", True), ("p", None))


def _arrays() -> Any:
    return importlib.import_module("torchweld.capture.arrays.drawn")


def _shuffle_owned(cap: Capture, fn: Any, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """Shuffle a list with a generator that the frame has made: places are shuffled, then items."""
    box = args[1]
    if type(box) is not ListValue or len(args) > 2 or kwargs:
        raise refuse("W107", f"shuffle of a {box.cls().__name__}", cap.loc())
    before = cap.force_items(box.items)
    places = ListValue([Const(i) for i in range(len(before))])

    def put(order: Value) -> None:
        assert isinstance(order, ListValue)
        box.items = [before[constant(i)] for i in order.items]
        changed(cap, box)
        cap.deliver(Const(None), cont)

    run_owned(cap, shuffled, [args[0], places], {}, put)


def shuffled(generator: random.Random, items: list[Any]) -> list[Any]:
    """The items, shuffled."""
    kept = list(items)
    generator.shuffle(kept)
    return kept


def _of(owner: object, handler: Any) -> Any:
    """The handler of a function that is a method bound to `owner`."""

    def bound(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        handler(cap, [cap.wrap(owner, cap.pin(owner)), *args], kwargs, cont)

    return bound


def _register_python() -> None:
    handlers = {n: _number(getattr(random.Random, n)) for n in _NUMBERS
                if hasattr(random.Random, n)}  # fmt: skip
    handlers |= {n: _whole(n) for n in _OTHER}
    handlers["seed"] = _seed(random.Random.seed)
    for name, handler in handlers.items():
        method = getattr(random.Random, name)
        if isinstance(method, types.FunctionType):
            FUNCTIONS.add(method, handler)
        else:
            METHODS.add((method.__objclass__, name), handler)
            FUNCTIONS.add(getattr(random, name), _of(random._inst, handler))


def _of_numpy(kind: str, name: str) -> Any:
    """The handler of a method of NumPy's, which is there when somebody calls it."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        method = getattr(getattr(sys.modules["numpy.random"], kind), name)
        (_seed if name == "seed" else _number)(method)(cap, args, kwargs, cont)

    return handler


def _state_of_numpy(name: str) -> Any:
    """get_state and set_state of a RandomState."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        method = getattr(sys.modules["numpy.random"].RandomState, name)
        if name == "get_state" and len(args) == 1 and not kwargs:
            cap.deliver(_arrays().get_state(cap, method, args[0]), cont)
        elif name == "set_state" and len(args) == 2:
            _arrays().set_state(cap, method, *args)
            cap.deliver(NONE, cont)
        else:
            raise refuse("W103", f"{name} of a generator with other arguments", cap.loc())

    return handler


def _make_numpy(name: str) -> Any:
    """A generator that the frame makes."""

    def handler(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
        fn = getattr(sys.modules["numpy.random"], name)
        cap.deliver(prepare(cap, fn, [*args, *kwargs.values()]), cont)

    return handler


def _seed_numpy(cap: Capture, args: Args, kwargs: Kwargs, cont: Cont | None) -> None:
    """numpy.random.seed: of the generator that the functions of the module draw from."""
    module: Any = sys.modules["numpy.random"]
    _of(module.mtrand._rand, _seed(module.RandomState.seed))(cap, args, kwargs, cont)


def _register_numpy() -> None:
    for kind in ("RandomState", "Generator"):
        for name in (*_NUMPY_NUMBERS, *(("seed",) if kind == "RandomState" else ())):
            NAMED.add(("numpy.random", f"{kind}.{name}"), _of_numpy(kind, name))
            NAMED.add((f"numpy.random.{_MODULES[kind]}", f"{kind}.{name}"), _of_numpy(kind, name))
    for name in ("get_state", "set_state"):
        for module in ("numpy.random", "numpy.random.mtrand"):
            NAMED.add((module, f"RandomState.{name}"), _state_of_numpy(name))
    for name, module in (("RandomState", "mtrand"), ("default_rng", "_generator")):
        NAMED.add(("numpy.random", name), _make_numpy(name))
        NAMED.add((f"numpy.random.{module}", name), _make_numpy(name))
    NAMED.add(("numpy.random", "seed"), _seed_numpy)
    NAMED.add(("numpy.random.mtrand", "seed"), _seed_numpy)


_MODULES = {"RandomState": "mtrand", "Generator": "_generator"}
_register_python()
_register_numpy()
