"""Objects of classes written in C: decimals, dates, bytes in memory, hashes."""

import array
import datetime
import decimal
import hashlib
import io
import struct
import sys
import types
import zlib

import pytest
import torch
from program_calls import Programs, check

import torchweld

PROGRAMS = Programs()
stateless = PROGRAMS.stateless
QUARTER = decimal.Decimal("0.25")
EPOCH = datetime.date(2000, 1, 1)
X = torch.arange(4.0)


@stateless()
def decimals(x, y, n):
    d = decimal.Decimal("1.5") * n + QUARTER
    root = decimal.Decimal(n).sqrt().quantize(decimal.Decimal("0.01"))
    return x * float(d), str(d), d, root, -d, d > 1, f"{d:.1f}", int(d), {d: 1}[d]


@stateless()
def dates(x, y, n):
    d = datetime.datetime(2020, 1, n) + datetime.timedelta(days=n)
    gap = d - datetime.datetime(2020, 1, 1)
    return x + d.day + EPOCH.year, d.isoformat(), gap.total_seconds(), d, d.strftime("%Y"), gap


@stateless()
def arrays_of_bytes(x, y, n):
    b = bytearray(b"abc")
    b.append(n)
    b[0] = 65
    b.extend(b"zz")
    del b[1]
    return x + b[1] + sum(b), bytes(b), len(b), b, 65 in b, [i * 2 for i in b], b.decode("latin1")


@stateless()
def arrays_of_numbers(x, y, n):
    a = array.array("i", [1, 2, n])
    a.append(4)
    return x + sum(a), a.tolist(), a


@stateless()
def in_memory(x, y, n):
    b = io.BytesIO(b"abc")
    b.read(1)
    b.write(b"z")
    return x + len(b.getvalue()), b.getvalue()


@stateless()
def hashes(x, y, n):
    made = hashlib.sha256(f"a{n}".encode())
    made.update(b"more")
    return x + len(made.hexdigest()), made.hexdigest(), zlib.crc32(b"abc"), sys.intern("a")


@stateless()
def formats(x, y, n):
    form = struct.Struct("<hf")
    return x + form.size, form.unpack(form.pack(n, 1.5)), "/".join(["a", str(n)])


@stateless()
def proxies(x, y, n):
    table = {"a": n}
    view = types.MappingProxyType(table)
    table["b"] = 2
    try:
        view["c"] = 1
    except TypeError as error:
        why = str(error)
    return x + view["b"], list(view), len(view), dict(view), "a" in view, view.get("z", 3), why


@pytest.mark.parametrize(("make", "breaks"), PROGRAMS.rows)
def test_program(make, breaks):
    check(make, breaks)


def test_the_precision_of_decimals_is_guarded():
    torchweld.reset()
    fn = lambda x: (x + 1, decimal.Decimal(1) / decimal.Decimal(3))
    compiled = torchweld.compile(fn, backend="eager", fullgraph=True)
    assert compiled(X)[1] == fn(X)[1]
    with decimal.localcontext() as context:
        context.prec = 5
        assert compiled(X)[1] == fn(X)[1] == decimal.Decimal("0.33333")


def test_a_date_that_changes_is_seen():
    torchweld.reset()
    compiled = torchweld.compile(lambda x, d: x + d.day, backend="eager", fullgraph=True)
    for day in (1, 2, 1):
        assert torch.equal(compiled(X, datetime.date(2020, 1, day)), X + day)
    assert torchweld.statistics()["captures"] == 2


def test_what_an_object_of_c_can_do_raises_no_error():
    def program(x, b):
        try:
            b[0] = 1
        except TypeError:
            return x
        return x + b[0]

    torchweld.reset()
    compiled = torchweld.compile(program, backend="eager")
    assert torch.equal(compiled(X, bytearray(2)), X + 1)
