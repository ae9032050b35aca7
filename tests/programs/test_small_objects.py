"""Objects: configurations, outputs, data classes, descriptors, metaclasses, modules."""

import collections
import dataclasses
import enum
import types
import typing

import torch
import torch.nn.functional as F
from eager_twin import check
from torch import nn
from transformers.utils import ModelOutput

X = torch.arange(6.0).reshape(2, 3)


class Config:
    def __init__(self, **k):
        self.__dict__.update(k)
        self._extra = {"z": 5}

    def __getattr__(self, n):
        if n in self.__dict__.get("_extra", {}):
            return self._extra[n]
        raise AttributeError(n)

    def get(self, n, d=None):
        return getattr(self, n, d)

    def __contains__(self, n):
        return hasattr(self, n)


class Output(collections.OrderedDict):
    def __getattr__(self, n):
        try:
            return self[n]
        except KeyError:
            raise AttributeError(n) from None

    def to_tuple(self):
        return tuple(self.values())


@dataclasses.dataclass
class Answer(ModelOutput):
    logits: torch.Tensor = None
    hidden: tuple | None = None


class Meta(type):
    def __call__(cls, *a):
        o = super().__call__(*a)
        o.tag = cls.__name__
        return o


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


class Vec:
    __slots__ = ("t",)

    def __init__(self, t):
        self.t = t

    def __add__(self, o):
        return Vec(self.t + (o.t if isinstance(o, Vec) else o))

    __radd__ = __add__

    def __getitem__(self, i):
        return self.t[i]

    def __len__(self):
        return len(self.t)

    def __iter__(self):
        return iter(self.t)

    def __call__(self, k=1):
        return self.t * k

    def __eq__(self, o):
        return isinstance(o, Vec)

    def __bool__(self):
        return True

    def __hash__(self):
        return 3


class Kind(str, enum.Enum):  # noqa: UP042
    A = "a"
    B = "b"


class Access(enum.IntFlag):
    R = 1
    W = 2


class Doubled:
    def __set_name__(self, o, n):
        self.n = "_" + n

    def __get__(self, o, t=None):
        return getattr(o, self.n, 7) if o is not None else self

    def __set__(self, o, v):
        setattr(o, self.n, v * 2)


class Holder:
    d = Doubled()


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
        self.d = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
        self.p = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(2)])
        self.seq = nn.Sequential(collections.OrderedDict(one=nn.Linear(3, 3), two=nn.ReLU()))
        self.pd = nn.ParameterDict({"w": nn.Parameter(torch.ones(3))})
        self.register_buffer("b", torch.zeros(3))
        self.reg = None

    @property
    def n(self):
        return len(self.l)

    def forward(self, x):
        for i, layer in enumerate(self.l[:2]):
            x = layer(x) + i
        for m in self.d.values():
            x = m(x)
        for q in self.p:
            x = x * q
        x = self.seq.two(self.seq[0](x)) + self.pd["w"] + self.b
        names = (
            [n for n, _ in self.named_children()],
            sum(p.numel() for p in self.parameters()),
            "a" in self.d,
            self.reg is None,
        )
        return (
            x,
            self.n,
            names,
            [n for n, m in self.named_modules() if isinstance(m, nn.ReLU)],
            self.training,
            next(self.parameters()).dtype,
        )


Pair = collections.namedtuple("Pair", "t s")


@dataclasses.dataclass
class Scaled:
    x: torch.Tensor
    n: int = 2
    seen: list = dataclasses.field(default_factory=list)
    c: typing.ClassVar[int] = 5

    def __post_init__(self):
        self.seen.append(self.n)

    @property
    def y(self):
        return self.x * self.n

    def __add__(self, o):
        return dataclasses.replace(self, n=self.n + o.n)


@dataclasses.dataclass(order=True, frozen=True, slots=True)
class Key:
    a: int = 1
    b: str = "s"


class Magic:
    def __init__(self):
        self.items = {"a": 1}

    def __getattribute__(self, n):
        if n == "magic":
            return 42
        return object.__getattribute__(self, n)

    def __setattr__(self, n, v):
        object.__setattr__(self, n, v)

    def __delitem__(self, k):
        del self.items[k]

    def __setitem__(self, k, v):
        self.items[k] = v

    def __getitem__(self, k):
        return self.items[k]

    def __contains__(self, k):
        return k in self.items

    def keys(self):
        return self.items.keys()


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 3)

    def forward(self, x):
        return self.l(x)


def hooked():
    h = Hooked()
    torch.manual_seed(0)
    nn.init.ones_(h.l.weight)
    nn.init.zeros_(h.l.bias)
    h.l.register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    h.l.register_forward_hook(lambda m, a, o: o + 1)
    return h


config = Config(hidden=4, act="relu", layers=[1, 2])
tree = Tree()
hooked_module = hooked()
normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
mha = nn.MultiheadAttention(3, 1, batch_first=True).eval()
lstm = nn.LSTM(3, 3, batch_first=True)
gru = nn.GRUCell(3, 3)


def test_config_object_with_getattr():
    def program(x):
        act = {"relu": F.relu, "gelu": F.gelu}[config.act]
        return (
            act(x) * config.hidden + config.z + config.get("none", 3) + len(config.layers),
            "z" in config,
            "q" in config,
            hasattr(config, "hidden"),
        )

    check(program, (X,))


def test_dict_like_output():
    def program(x):
        o = Output(a=x, b=x * 2)
        o["c"] = 3
        return o.a + o.b, o.to_tuple(), list(o), getattr(o, "zz", None)

    check(program, (X,))


def test_model_output_of_transformers():
    def program(x):
        o = Answer(logits=x * 2)
        return o, o[0], o.logits, o["logits"], "hidden" in o, o.to_tuple()

    check(program, (X,))


def test_metaclass_with_a_call_of_its_own():
    def program(x):
        w = WithMeta(x)
        return w.v * 2, w.tag

    check(program, (X,))


def test_operators_of_a_class():
    def program(x):
        v = Vec(x)
        return (
            (v + 1).t,
            sum([v, v]).t,
            v[0],
            len(v),
            list(v),
            v(3),
            v == 3,
            v == Vec(1),
            bool(v),
        )

    check(program, (X,))


def test_enums_of_strings_and_flags():
    def program(x):
        return (
            x * (2 if Kind("a") is Kind.A else 3),
            Kind.A == "a",
            Kind.B.value,
            [e.name for e in Kind],
            (Access.R | Access.W).value,
            Access.R in (Access.R | Access.W),
            Kind.A in (Kind.A, Kind.B),
            {Kind.A: 1}[Kind.A],
            str(Kind.A.value),
        )

    check(program, (X,))


def test_simple_namespace_is_returned():
    def program(x):
        n = types.SimpleNamespace(a=x, b=2)
        n.c = n.a * n.b
        return n.c, vars(n)["b"], n

    check(program, (X,))


def test_simple_namespace_loses_an_attribute():
    def program(x):
        class_ = types.SimpleNamespace(a=1, b=2)
        del class_.a
        return hasattr(class_, "a"), x + class_.b, list(vars(class_))

    check(program, (X,))


def test_descriptors_get_and_set():
    def program(x):
        h = Holder()
        a = h.d
        h.d = 4
        return x * h.d, a

    check(program, (X,))


def test_cooperative_init():
    def program(x):
        class A:
            def __init__(self, *, k=1, **kw):
                self.k = k
                super().__init__(**kw)

        class B:
            def __init__(self, *, j=2):
                self.j = j

        class C(A, B):
            pass

        c = C(k=3, j=4)
        return x * c.k + c.j

    check(program, (X,))


def test_attribute_hooks_of_a_class():
    def program(x):
        o = Magic()
        o["b"] = x
        del o["a"]
        o.q = 3
        return o.magic, o["b"] * o.q, "a" in o, {**o}, dict(o)

    check(program, (X,))


def test_data_classes_replaced_ordered_and_hashed():
    def program(x):
        d = Scaled(x) + Scaled(x, 5)
        return (
            d.y,
            d.seen,
            [f.name for f in dataclasses.fields(d)],
            dataclasses.is_dataclass(d),
            Key(1) < Key(2),
            hash(Key()) == hash(Key()),
            {Key(): 1}[Key(1, "s")],
            d,
            Scaled.c,
            dataclasses.astuple(Key()),
        )

    check(program, (X,))


def test_rebuilding_nested_containers_by_type():
    def program(x):
        def walk(o):
            if isinstance(o, torch.Tensor):
                return o * 2
            if isinstance(o, dict):
                return type(o)((k, walk(v)) for k, v in o.items())
            if isinstance(o, tuple) and hasattr(o, "_fields"):
                return type(o)(*map(walk, o))
            if isinstance(o, (list, tuple)):
                return type(o)(walk(v) for v in o)
            return o

        NT = Pair
        return walk({"a": [x, (x, 1)], "n": NT(x, "s"), "o": collections.OrderedDict(z=x)})

    check(program, (X,))


def test_module_containers():
    def program(x):
        return tree(x)

    check(program, (X,))


def test_module_lookups_by_name():
    def program(x):
        m = tree
        return (
            m.get_parameter("l.0.weight").shape,
            m.get_submodule("seq.one").in_features,
            hasattr(m, "nope"),
            getattr(m, "zz", 3),
            x + 1,
            isinstance(m.l, nn.ModuleList),
            len(list(m.children())),
        )

    check(program, (X,))


def test_forward_hooks():
    def program(x):
        return hooked_module(x)

    check(program, (X,))


def test_parametrized_weight():
    def program(x):
        with torch.no_grad():
            return normed(x)

    check(program, (X,))


def test_attention_module():
    def program(x):
        return mha(x[None], x[None], x[None], need_weights=True)

    check(program, (X,))


def test_recurrent_modules():
    def program(x):
        o, (h, c) = lstm(x[None])
        return o, h, c, gru(x, x)

    check(program, (X,))
