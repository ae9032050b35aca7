"""match statements."""

import dataclasses
import enum

import torch
from eager_twin import check

X = torch.arange(4.0)


@dataclasses.dataclass
class P:
    a: object
    b: object = 0


class Kind(enum.Enum):
    A = 1
    B = 2


def describe(x, v):
    match v:
        case 0 | 1:
            return x, "small"
        case int(n) if n > 10:
            return x * n, "big"
        case int():
            return x, "int"
        case Kind.A:
            return x, "kind a"
        case "go" | "run" as word:
            return x, word
        case str():
            return x, "str"
        case []:
            return x, "empty"
        case [one]:
            return x + 1, one
        case [first, *rest]:
            return x, first, rest
        case {"k": value, "deep": {"n": int(n)}, **others}:
            return x * n, value, others
        case {"k": value}:
            return x, value
        case P(a=0, b=b):
            return x, "zero", b
        case P(a, b):
            return x, a, b
        case None:
            return x, "none"
        case _:
            return x, "other"


def test_patterns():
    def program(x):
        values = (
            0,
            1,
            20,
            5,
            Kind.A,
            Kind.B,
            "go",
            "other",
            [],
            [3],
            (1, 2, 3),
            {"k": 1, "deep": {"n": 2}, "z": 3},
            {"k": 7},
            {},
            P(0, 4),
            P(1, 2),
            None,
            2.5,
        )
        return [describe(x + 1, v) for v in values]

    check(program, (X,), (torch.ones(4),))


def test_match_on_arguments_recompiles():
    check(lambda x, v: describe(x + 1, v), (X, 0), (X, [1, 2]), (X, "go"), (X, {"k": 1}), graphs=4)


def test_match_tensor_class_and_shape():
    def program(x):
        match x:
            case torch.Tensor(shape=(n,)):
                return x + n
            case torch.Tensor():
                return x

    check(program, (X,))
