# ruff: noqa: C416, UP031
# The programs are written as users write them.
"""Strings: methods, formatting."""

import torch
from eager_twin import check

X = torch.arange(4.0)


def test_methods():
    def program(x, s):
        return (
            x + len(s),
            s.upper(),
            s.split(","),
            s.replace("a", "b"),
            s.startswith("a"),
            s.endswith(("c", "d")),
            s.find("b"),
            s.partition(","),
            ",".join(["x", "y"]),
            s.strip("a"),
            s[1:],
            s[-1],
            s * 2,
            s + "!",
            "b" in s,
            s.count("a"),
            s.isdigit(),
            s.title(),
            s.rjust(8, "."),
            s.rsplit(",", 1),
            s < "b",
            s.encode(),
            s.lower() == s,
            "a-b".removeprefix("a"),
            s.casefold(),
            [c for c in s],
            "%d %s" % (1, s),
            s.format(),
            s.zfill(9),
            ["x", "y"],
            ord("a"),
            chr(98),
        )

    check(program, (X, "a,b,c"), (X, "zz"), graphs=2)


def test_formatting():
    def program(x):
        n, f, d = 3, 2.5, {"k": [1, (2,)]}
        return (
            x + 1,
            f"{n:03d} {f:.2f} {n!r} {d} {n=} {'q':>{n}}",
            f"{n:>5}|{d['k']}",
            str(1.0),
            repr("a"),
            str([1, "a"]),
            f"{x.shape} {x.dtype} {x.device}",
            f"{None} {True} {int}",
            format(3.14159, ".3f"),
            str(x.shape),
            f"{tuple(x.shape)}",
            "%s|%5.1f" % (d, f),
            str(torch.float32),
            hex(255),
            bin(3),
            ascii("é"),
        )

    check(program, (X,))


def test_text_of_objects():
    class A:
        def __repr__(self):
            return "A!"

    class B(A):
        def __str__(self):
            return "B?"

    def program(x):
        a, b = A(), B()
        return (
            x + 1,
            f"{a} {b} {b!r}",
            str(a),
            str(b),
            "%s %r" % (a, b),
            f"{b} {b!r}",
            str(ValueError("m")),
        )

    check(program, (X,))


def test_text_of_containers_of_objects():
    class A:
        def __repr__(self):
            return "A!"

    check(lambda x: (x + 1, str([A(), (A(),)]), f"{ {'k': A()} }"), (X,))


def test_string_keys_built_at_run_time():
    table = {f"layer_{i}": i for i in range(3)}
    check(lambda x: sum(x * table[f"layer_{i}"] for i in range(3)), (X,))


def test_format_errors():
    def program(x):
        y = x + 1
        try:
            return f"{'a':d}"
        except ValueError as error:
            return y, str(error)

    check(program, (X,))


def test_parsing():
    check(
        lambda x: (x * int("3") + float("1.5"), int("ff", 16), bool("a"), int(2.7), complex(1, 2)),
        (X,),
    )


def test_regular_expression():
    import re

    pattern = re.compile(r"(\w+)\.(\d+)")
    check(lambda x: x * int(pattern.match("layer.3").group(2)), (X,))


def test_join_of_generator():
    check(lambda x: (x + 1, "-".join(str(i) for i in range(3)), ", ".join(map(str, x.shape))), (X,))


def test_bytes_are_decoded():
    check(lambda x: (x + 1, str(b"a\xc3", "latin1"), str(b"ab", errors="strict")), (X,))
