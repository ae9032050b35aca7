"""Runs decoded code: the dialect's meaning, small and slow, to compare with CPython itself."""

from __future__ import annotations

import builtins
import inspect
import operator
import types

from torchweld.frame.decode import decode
from torchweld.frame.instr import Code

UNBOUND = object()


def evaluate(fn, args, before=None):
    """What fn(*args) gives when its decoded instructions are followed.

    `before(frame, index)` is called before each instruction.
    """
    code = decode(fn.__code__)
    bound = inspect.signature(fn).bind(*args)
    bound.apply_defaults()
    frame = Frame(code, fn, {name: bound.arguments[name] for name in code.params}, before)
    steps = frame.steps()
    if code.is_generator:
        return steps
    try:
        next(steps)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a function yielded")


class Frame:
    def __init__(self, code: Code, fn, params, before):
        self.code, self.globals, self.before = code, fn.__globals__, before
        self.locals = dict(params)
        self.first = next(iter(params.values()), None)
        self.cells = {
            name: types.CellType(self.locals.pop(name)) if name in self.locals else types.CellType()
            for name in code.cellvars
        }
        self.cells.update(zip(code.freevars, fn.__closure__ or (), strict=True))
        self.stack = []
        self.handled = None  # sys.exception() of this frame

    def pop(self):
        return self.stack.pop()

    def popn(self, n):
        values = self.stack[len(self.stack) - n :]
        del self.stack[len(self.stack) - n :]
        return values

    def push(self, *values):
        self.stack.extend(values)

    def steps(self):
        """A generator that yields where the code yields and returns what the code returns."""
        at = 0
        instrs = self.code.instrs
        while True:
            instr = instrs[at]
            if self.before:
                self.before(self, at)
            try:
                if instr.op == "RETURN_VALUE":
                    return self.pop()
                if instr.op == "YIELD_VALUE":
                    self.push((yield self.pop()))
                    at += 1
                    continue
                at = instr.target if getattr(self, "op_" + instr.op)(instr.arg) else at + 1
            except BaseException as error:
                row = self.code.handler(at)
                if row is None:
                    raise
                del self.stack[row.depth :]
                self.push(*([at] if row.lasti else []), error)
                at = row.target

    # constants and names

    def op_LOAD_CONST(self, value):
        self.push(value)

    def op_LOAD_FAST(self, name):
        if name not in self.locals:
            raise UnboundLocalError(name)
        self.push(self.locals[name])

    def op_STORE_FAST(self, name):
        value = self.pop()
        if value is UNBOUND:
            self.locals.pop(name, None)
        else:
            self.locals[name] = value

    def op_DELETE_FAST(self, name):
        if name not in self.locals:
            raise UnboundLocalError(name)
        del self.locals[name]

    def op_LOAD_FAST_AND_CLEAR(self, name):
        self.push(self.locals.pop(name, UNBOUND))

    def op_LOAD_DEREF(self, name):
        try:
            self.push(self.cells[name].cell_contents)
        except ValueError:
            raise NameError(name) from None

    def op_STORE_DEREF(self, name):
        self.cells[name].cell_contents = self.pop()

    def op_DELETE_DEREF(self, name):
        del self.cells[name].cell_contents

    def op_LOAD_CLOSURE(self, name):
        self.push(self.cells[name])

    def op_LOAD_CLOSURE_AND_CLEAR(self, name):
        self.push(self.cells.pop(name))

    def op_STORE_CLOSURE(self, name):
        self.cells[name] = self.pop()

    def op_MAKE_CELL(self, name):
        self.cells[name] = types.CellType()

    def op_LOAD_GLOBAL(self, name):
        if name in self.globals:
            self.push(self.globals[name])
        elif hasattr(builtins, name):
            self.push(getattr(builtins, name))
        else:
            raise NameError(name)

    def op_STORE_GLOBAL(self, name):
        self.globals[name] = self.pop()

    def op_DELETE_GLOBAL(self, name):
        del self.globals[name]

    # attributes and calls

    def op_LOAD_ATTR(self, name):
        self.push(getattr(self.pop(), name))

    def op_STORE_ATTR(self, name):
        value, owner = self.popn(2)
        setattr(owner, name, value)

    def op_DELETE_ATTR(self, name):
        delattr(self.pop(), name)

    def op_LOAD_SUPER_ATTR(self, name):
        made, cls, self_ = self.popn(3)
        self.push(getattr(made(cls, self_), name))

    def op_CALL(self, arg):
        count, names = arg
        fn, *values = self.popn(count + 1)
        if fn is super and not values:
            values = [self.cells["__class__"].cell_contents, self.first]
        plain = len(values) - len(names)
        self.push(fn(*values[:plain], **dict(zip(names, values[plain:], strict=True))))

    def op_CALL_EX(self, has_kwargs):
        fn, args, *kwargs = self.popn(2 + has_kwargs)
        self.push(fn(*args, **(kwargs[0] if kwargs else {})))

    # operators

    def op_BINARY_OP(self, symbol):
        left, right = self.popn(2)
        self.push(OPERATORS[symbol](left, right))

    def op_BINARY_SUBSCR(self, _):
        owner, key = self.popn(2)
        self.push(owner[key])

    def op_STORE_SUBSCR(self, _):
        value, owner, key = self.popn(3)
        owner[key] = value

    def op_DELETE_SUBSCR(self, _):
        owner, key = self.popn(2)
        del owner[key]

    def op_BINARY_SLICE(self, _):
        owner, start, stop = self.popn(3)
        self.push(owner[start:stop])

    def op_STORE_SLICE(self, _):
        value, owner, start, stop = self.popn(4)
        owner[start:stop] = value

    def op_COMPARE_OP(self, symbol):
        left, right = self.popn(2)
        self.push(OPERATORS[symbol](left, right))

    def op_IS_OP(self, invert):
        left, right = self.popn(2)
        self.push((left is right) is not invert)

    def op_CONTAINS_OP(self, invert):
        left, right = self.popn(2)
        self.push((left in right) is not invert)

    def op_UNARY(self, symbol):
        self.push(UNARY[symbol](self.pop()))

    # the stack itself

    def op_POP_TOP(self, _):
        self.pop()

    def op_COPY(self, n):
        self.push(self.stack[-n])

    def op_SWAP(self, n):
        self.stack[-1], self.stack[-n] = self.stack[-n], self.stack[-1]

    # containers and strings

    def op_BUILD_TUPLE(self, n):
        self.push(tuple(self.popn(n)))

    def op_BUILD_LIST(self, n):
        self.push(self.popn(n))

    def op_BUILD_SET(self, n):
        self.push(set(self.popn(n)))

    def op_BUILD_MAP(self, n):
        values = self.popn(2 * n)
        self.push(dict(zip(values[::2], values[1::2], strict=True)))

    def op_BUILD_CONST_KEY_MAP(self, n):
        keys = self.pop()
        self.push(dict(zip(keys, self.popn(n), strict=True)))

    def op_BUILD_STRING(self, n):
        self.push("".join(self.popn(n)))

    def op_BUILD_SLICE(self, n):
        self.push(slice(*self.popn(n)))

    def op_LIST_APPEND(self, i):
        value = self.pop()
        self.stack[-i].append(value)

    def op_SET_ADD(self, i):
        value = self.pop()
        self.stack[-i].add(value)

    def op_MAP_ADD(self, i):
        key, value = self.popn(2)
        self.stack[-i][key] = value

    def op_LIST_EXTEND(self, i):
        value = self.pop()
        self.stack[-i].extend(value)

    def op_SET_UPDATE(self, i):
        value = self.pop()
        self.stack[-i].update(value)

    op_DICT_UPDATE = op_SET_UPDATE

    def op_DICT_MERGE(self, i):
        value = self.pop()
        if self.stack[-i].keys() & value.keys():
            raise TypeError("multiple values for keyword argument")
        self.stack[-i].update(value)

    def op_LIST_TO_TUPLE(self, _):
        self.push(tuple(self.pop()))

    def op_CONVERT_VALUE(self, conversion):
        self.push(CONVERSIONS[conversion](self.pop()))

    def op_FORMAT_VALUE(self, arg):
        conversion, has_spec = arg
        spec = self.pop() if has_spec else ""
        self.push(format(CONVERSIONS[conversion](self.pop()), spec))

    def op_UNPACK_SEQUENCE(self, n):
        values = list(self.pop())
        if len(values) != n:
            raise ValueError("wrong number of values to unpack")
        self.push(*reversed(values))

    def op_UNPACK_EX(self, arg):
        before, after = arg
        values = list(self.pop())
        if len(values) < before + after:
            raise ValueError("not enough values to unpack")
        middle = values[before : len(values) - after]
        tail = values[len(values) - after :]
        self.push(*reversed(tail), middle, *reversed(values[:before]))

    # iteration and matching

    def op_GET_ITER(self, _):
        self.push(iter(self.pop()))

    op_GET_YIELD_FROM_ITER = op_GET_ITER

    def op_FOR_ITER(self, _):
        try:
            self.push(next(self.stack[-1]))
        except StopIteration:
            self.pop()
            return True

    def op_GET_LEN(self, _):
        self.push(len(self.stack[-1]))

    def op_MATCH_MAPPING(self, _):
        self.push(isinstance(self.stack[-1], dict))

    def op_MATCH_SEQUENCE(self, _):
        self.push(isinstance(self.stack[-1], list | tuple))

    def op_MATCH_KEYS(self, _):
        subject, keys = self.stack[-2:]
        found = all(key in subject for key in keys)
        self.push(tuple(subject[key] for key in keys) if found else None)

    def op_MATCH_CLASS(self, count):
        subject, cls, names = self.popn(3)
        if not isinstance(subject, cls):
            self.push(None)
            return
        names = (*cls.__match_args__[:count], *names) if count else names
        found = all(hasattr(subject, name) for name in names)
        self.push(tuple(getattr(subject, name) for name in names) if found else None)

    # control flow

    def op_JUMP(self, _):
        return True

    def op_POP_JUMP_IF_TRUE(self, _):
        return bool(self.pop())

    def op_POP_JUMP_IF_FALSE(self, _):
        return not self.pop()

    def op_POP_JUMP_IF_NONE(self, _):
        return self.pop() is None

    def op_POP_JUMP_IF_NOT_NONE(self, _):
        return self.pop() is not None

    # exceptions and with

    def op_RAISE(self, n):
        error, *cause = self.popn(n) if n else [self.handled]
        if isinstance(error, type):
            error = error()
        if cause:
            error.__cause__ = cause[0]
        raise error

    def op_RERAISE(self, _):
        raise self.pop()

    def op_PUSH_EXC_INFO(self, _):
        error = self.pop()
        self.push(self.handled, error)
        self.handled = error

    def op_POP_EXCEPT(self, _):
        self.handled = self.pop()

    def op_CHECK_EXC_MATCH(self, _):
        kind = self.pop()
        self.push(isinstance(self.stack[-1], kind))

    def op_WITH_EXCEPT_START(self, _):
        leave, _, _, error = self.stack[-4:]
        self.push(leave(type(error), error, error.__traceback__))

    def op_BEFORE_WITH(self, _):
        context = self.pop()
        self.push(context.__exit__, context.__enter__())

    def op_LOAD_ASSERTION_ERROR(self, _):
        self.push(AssertionError)

    # definitions, imports, generators

    def op_LOAD_BUILD_CLASS(self, _):
        self.push(builtins.__build_class__)

    def op_MAKE_FUNCTION(self, parts):
        code = self.pop()
        given = {part: self.pop() for part in reversed(PARTS) if part in parts}
        fn = types.FunctionType(code, self.globals, closure=given.get("closure"))
        fn.__defaults__ = given.get("defaults")
        fn.__kwdefaults__ = given.get("kwdefaults")
        flat = given.get("annotations", ())
        fn.__annotations__ = dict(zip(flat[::2], flat[1::2], strict=True))
        self.push(fn)

    def op_IMPORT_NAME(self, name):
        level, names = self.popn(2)
        self.push(__import__(name, self.globals, None, names, level))

    def op_IMPORT_FROM(self, name):
        self.push(getattr(self.stack[-1], name))

    def op_RETURN_GENERATOR(self, _):
        self.push(None)

    def op_SEND(self, _):
        receiver, value = self.popn(2)
        try:
            result = next(receiver) if value is None else receiver.send(value)
        except StopIteration as stop:
            self.push(stop.value)
            return True
        self.push(receiver, result)
        return False

    def op_STOPITERATION_ERROR(self, _):
        error = self.pop()
        if isinstance(error, StopIteration):
            error = RuntimeError("generator raised StopIteration")
        self.push(error)


PARTS = ("defaults", "kwdefaults", "annotations", "closure")
CONVERSIONS = {None: lambda x: x, "s": str, "r": repr, "a": ascii}
UNARY = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "not": operator.not_,
    "bool": operator.truth,
}
_NAMES = {
    "+": "add", "&": "and_", "//": "floordiv", "<<": "lshift", "@": "matmul", "*": "mul",
    "%": "mod", "|": "or_", "**": "pow", ">>": "rshift", "-": "sub", "/": "truediv", "^": "xor",
}  # fmt: skip
OPERATORS = {
    **{symbol: getattr(operator, name) for symbol, name in _NAMES.items()},
    **{f"{s}=": getattr(operator, f"i{name.strip('_')}") for s, name in _NAMES.items()},
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}
