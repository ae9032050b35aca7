"""What decode promises: over the standard library, and on chosen functions."""

from __future__ import annotations

import dis
import sys
import tokenize
from pathlib import Path
from types import CodeType

import pytest

from torchweld.frame import decode as decode_module
from torchweld.frame.decode import decode
from torchweld.frame.instr import JUMPS, OPS, TERMINAL, Code, Instr, effect
from torchweld.frame.translate import unknown
from torchweld.frame.versions import VERSIONS, py311, py312, py313

LIBRARY = (
    "argparse", "ast", "asyncio.base_events", "asyncio.streams", "base64", "bisect", "calendar",
    "cmd", "code", "codecs", "collections", "configparser", "contextlib", "copy", "csv",
    "dataclasses", "datetime", "decimal", "difflib", "dis", "email.message", "enum", "fileinput",
    "fnmatch", "fractions", "functools", "gzip", "heapq", "html.parser", "http.client", "inspect",
    "io", "ipaddress", "json.decoder", "json.encoder", "linecache", "locale", "logging", "mailbox",
    "mimetypes", "ntpath", "numbers", "optparse", "os", "pathlib", "pdb", "pickle", "pickletools",
    "platform", "posixpath", "pprint", "random", "re", "reprlib", "sched", "selectors", "shelve",
    "shlex", "shutil", "socket", "statistics", "string", "subprocess", "tarfile", "tempfile",
    "textwrap", "threading", "tokenize", "traceback", "types", "typing", "unittest.case",
    "unittest.mock", "urllib.parse", "uuid", "weakref", "zipfile",
)  # fmt: skip


def code_objects(top):
    yield top
    for const in top.co_consts:
        if isinstance(const, CodeType):
            yield from code_objects(const)


def library_code(module):
    path = Path(dis.__file__).parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    with tokenize.open(path) as file:
        return code_objects(compile(file.read(), str(path), "exec", dont_inherit=True))


def check_depths(code: Code) -> None:
    """Every way into an instruction brings the same depth, and every instruction is reached."""
    depths, work = {0: 0}, [0]

    def reach(index, depth):
        if index not in depths:
            work.append(index)
        assert 0 <= index < len(code.instrs)
        assert depths.setdefault(index, depth) == depth, (code.qualname, index)

    while work:
        index = work.pop()
        instr, depth = code.instrs[index], depths[index]
        row = code.handler(index)
        if row is not None:
            assert row.depth <= depth
            reach(row.target, row.depth + row.lasti + 1)
        pops, pushes = effect(instr)
        assert depth >= pops
        assert instr.op != "RETURN_VALUE" or depth == 1
        assert (instr.target is None) == (instr.op not in JUMPS)
        if instr.target is not None:
            jump_pops, jump_pushes = effect(instr, jump=True)
            reach(instr.target, depth - jump_pops + jump_pushes)
        if instr.op not in TERMINAL:
            reach(index + 1, depth - pops + pushes)
    assert len(depths) == len(code.instrs)


def test_the_library_is_large_enough_to_prove_something():
    assert len(LIBRARY) >= 60


@pytest.mark.parametrize("module", LIBRARY)
def test_library_decodes_with_consistent_depths_and_nothing_unknown(module):
    for raw in library_code(module):
        code = decode(raw)
        assert {i.op for i in code.instrs} <= OPS - {"UNKNOWN"}
        check_depths(code)


def test_lines_and_offsets_are_those_of_dis():
    for raw in library_code("argparse"):
        lines = dict(_dis_lines(raw))
        for instr in decode(raw).instrs:
            assert lines[instr.offset] in (None, instr.line)


def _dis_lines(raw):
    spans = [(start, end, line) for start, end, line in raw.co_lines()]
    for start, end, line in spans:
        for offset in range(start, end, 2):
            yield offset, line


def test_protected_ranges_are_those_of_the_exception_table():
    for raw in library_code("contextlib"):
        rows = dis._parse_exception_table(raw)
        code = decode(raw)
        for index, instr in enumerate(code.instrs):
            expected = [r for r in rows if r.start <= instr.offset < r.end]
            found = code.handler(index)
            assert bool(expected) == (found is not None)
            if found:
                assert found.lasti == expected[0].lasti
                assert code.instrs[found.target].offset == expected[0].target


# One call protocol


def ops(fn):
    return [(i.op, i.arg) for i in decode(fn.__code__).instrs]


def calls_of(fn):
    return [arg for op, arg in ops(fn) if op == "CALL"]


def test_a_call_counts_its_arguments_and_names_its_keywords():
    assert calls_of(lambda f: f(1, 2, x=3)) == [(3, ("x",))]
    assert calls_of(lambda f: print(f, end="")) == [(2, ("end",))]
    assert calls_of(lambda f: f.method(1, k=2)) == [(2, ("k",))]


def test_nested_calls_do_not_mix_up_their_nulls():
    assert calls_of(lambda f, g: f(g(1), f.m(g(2), 3))(4)) == [
        (1, ()), (1, ()), (2, ()), (2, ()), (1, ()),
    ]  # fmt: skip


def test_a_normal_exit_of_with_calls_with_three_nones():
    def fn(c):
        with c:
            pass

    assert calls_of(fn) == [(3, ())]


def test_a_normal_exit_of_with_inside_a_call_keeps_the_outer_null_apart():
    def fn(c, f):
        with c as (x, y):
            return f(f(x), *y, k=f(1))

    assert calls_of(fn) == [(1, ()), (1, ()), (3, ())]


def test_a_decorator_and_an_assertion_message_are_one_argument():
    source = """
def fn(mark, x):
    @mark
    def inner(): ...
    assert x, "message"
"""
    scope = {}
    exec(source, scope)
    assert calls_of(scope["fn"]) == [(1, ()), (1, ())]


def test_call_ex_says_whether_keywords_are_on_the_stack():
    assert ("CALL_EX", False) in ops(lambda f, a: f(*a))
    assert ("CALL_EX", True) in ops(lambda f, a: f(1, *a, k=1))


def test_method_and_attribute_load_alike():
    assert ("LOAD_ATTR", "m") in ops(lambda x: x.m())
    assert ("LOAD_ATTR", "m") in ops(lambda x: x.m)


# The shape of Code


def test_parameters_come_in_the_order_of_the_frame():
    def fn(a, b, /, c, *rest, d, e=1, **more):
        local = 1

    code = decode(fn.__code__)
    assert code.params == ("a", "b", "c", "d", "e", "rest", "more")
    assert (code.argcount, code.posonly, code.kwonly) == (3, 2, 2)
    assert (code.varargs, code.varkw) == ("rest", "more")


def test_cells_are_named_and_their_making_is_left_out():
    def fn(a):
        b = 1

        def inner():
            return a, b

        return inner

    code = decode(fn.__code__)
    assert set(code.cellvars) == {"a", "b"}
    assert [i.arg for i in code.instrs if i.op == "LOAD_CLOSURE"] == ["a", "b"]
    assert code.instrs[0].op == "LOAD_CONST"
    inner = decode(fn(1).__code__)
    assert inner.freevars == ("a", "b")
    assert [(i.op, i.arg) for i in inner.instrs[:2]] == [("LOAD_DEREF", "a"), ("LOAD_DEREF", "b")]


def test_make_function_names_its_parts():
    def fn(x):
        def inner(a: int = 1, *, b=2):
            return x

    parts = [arg for op, arg in ops(fn) if op == "MAKE_FUNCTION"]
    assert parts == [frozenset(("defaults", "kwdefaults", "annotations", "closure"))]


def test_an_exhausted_loop_jumps_to_what_follows_it():
    def fn(xs):
        for _ in xs:
            pass
        return 7

    code = decode(fn.__code__)
    (loop,) = (i for i in code.instrs if i.op == "FOR_ITER")
    assert [i.op for i in code.instrs[loop.target :]] == ["LOAD_CONST", "RETURN_VALUE"]


def test_a_test_of_truth_is_left_to_the_jump():
    def fn(x, y):
        return 1 if not x and (x < y) else 2

    assert "UNARY" not in [op for op, _ in ops(fn)]


def test_loc_is_the_line_of_the_instruction():
    def fn(x):
        y = x
        return [y]

    code = decode(fn.__code__)
    assert code.loc(0).file == __file__
    assert code.loc(len(code.instrs) - 1).line == fn.__code__.co_firstlineno + 2


def test_only_suspendable_code_is_a_generator():
    def gen():
        yield

    async def coro(): ...

    assert decode(gen.__code__).is_generator and decode(coro.__code__).is_generator
    assert not decode(ops.__code__).is_generator


# What cannot be said


def test_an_unknown_opcode_ends_the_flow_as_unknown(monkeypatch):
    fn = lambda x: -x
    number = dis.opmap["UNARY_NEGATIVE"]
    table = list(decode_module.TABLE)
    table[number] = unknown
    monkeypatch.setattr(decode_module, "TABLE", tuple(table))
    assert ops(fn) == [("LOAD_FAST", "x"), ("UNKNOWN", "UNARY_NEGATIVE")]


def test_a_call_that_eats_the_null_of_another_is_refused():
    fn = lambda f, x: f(x)
    raw = bytearray(fn.__code__.co_code)
    (place,) = (i.offset for i in dis.get_instructions(fn) if i.opname == "CALL")
    raw[place + 1] = 7
    broken = fn.__code__.replace(co_code=bytes(raw))
    assert decode(broken).instrs[-1].op == "UNKNOWN"


def test_a_name_that_is_a_cell_and_free_at_once_is_refused():
    source = """
def outer():
    __class__ = 1
    class Inner:
        nonlocal __class__
        __class__ = 2
        def get(self): return __class__
"""
    last = [decode(c).instrs[-1] for c in code_objects(compile(source, "f", "exec"))]
    assert ("UNKNOWN", "STORE_DEREF") in [(i.op, i.arg) for i in last]


# The cache


def test_decoding_twice_gives_the_same_object():
    assert decode(ops.__code__) is decode(ops.__code__)


def test_equal_code_objects_are_decoded_apart():
    one, two = (compile("x = 1", "f", "exec") for _ in range(2))
    assert one == two and decode(one).raw is one and decode(two).raw is two


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(decode_module, "_CACHE_LIMIT", 8)
    monkeypatch.setattr(decode_module, "_decoded", {})
    for i in range(50):
        decode(compile(f"x = {i}", "f", "exec"))
    assert 0 < len(decode_module._decoded) <= 8


# The tables


def test_rows_exist_only_for_opcodes_of_their_version():
    names = set(dis.opmap)
    rows = VERSIONS.get(sys.version_info[:2])
    assert set(rows) <= names


def test_each_version_differs_from_its_predecessor():
    assert py311.ROWS.keys() - py312.ROWS.keys() >= {"PRECALL", "LOAD_METHOD"}
    assert py313.ROWS.keys() - py312.ROWS.keys() >= {"CALL_KW", "TO_BOOL"}


def test_every_op_of_the_dialect_is_text_and_has_an_effect():
    for op in OPS - {"UNKNOWN"}:
        assert op.isupper()
    assert effect(Instr("CALL", (3, ("k",)), 0, 0)) == (4, 1)
    assert effect(Instr("FOR_ITER", None, 0, 0, 5), jump=True) == (1, 0)
