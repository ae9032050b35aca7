"""Random small Python functions over tensors, one statement at a time.

`f(x, y, n, s, items, table, box)`: two f32 tensors [m, 3], an int, a float, a list of tensors, a
dict of numbers and an object. The text only uses what is bound on every path, so an exception in it
is one that the program means to raise, or one that eager raises too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

TENSOR, INT, FLOAT, LIST, DICT, BOX = "tensor", "int", "float", "list", "dict", "box"

UNARY = ["torch.relu({})", "{}.sin()", "-{}", "{} * 2", "torch.tanh({})", "{}.abs()", "{} + 0.5",
         "{}.clone()", "{}.t().contiguous().t()", "torch.softmax({}, -1)",
         "{}.detach()"]  # fmt: skip
BINARY = ["{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})",
          "torch.where({0} > 0, {0}, {1})",
          "torch.cat([{0}, {1}])[:{0}.shape[0]]", "torch.stack([{}, {}]).mean(0)"]  # fmt: skip
INTS = ["{} + 1", "{} * 2", "{} % 3", "-{}", "abs({})", "{} // 2", "int({} > 1)", "max({}, 2)",
        "{} if {} > 2 else 5", "len(str({}))", "min({}, 3)", "{} & 3"]  # fmt: skip
ERRORS = ["ValueError", "KeyError", "IndexError", "RuntimeError", "StopIteration", "Exception"]


class Maker:
    """One function being written. names: by type, what is bound at this point."""

    def __init__(self, seed: int, statements: Sequence[Callable[[Maker], None]],
                 kinds: Sequence[str]) -> None:  # fmt: skip
        self.dice = Random(seed)
        self.statements = statements
        self.lines: list[str] = []
        self.indent = 1
        self.count = 0
        self.names: dict[str, list[str]] = {
            **{kind: [] for kind in kinds}, TENSOR: ["x", "y"], INT: ["n"], FLOAT: ["s"],
            LIST: ["items"], DICT: ["table"], BOX: ["box"],
        }  # fmt: skip
        self.loops = 0
        self.nested = 0

    # ------------------------------------------------------------ text
    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """An indented block; what it binds is forgotten at its end."""
        self.line(head)
        kept = {k: list(v) for k, v in self.names.items()}
        self.indent += 1
        yield
        self.indent -= 1
        self.names = kept

    def new(self, kind: str) -> str:
        self.count += 1
        return f"{kind[0]}{self.count}"

    def bind(self, kind: str, name: str) -> str:
        if name not in self.names[kind]:
            self.names[kind].append(name)
        return name

    def pick(self, kind: str) -> str:
        return self.dice.choice(self.names[kind])

    def target(self, kind: str) -> str:
        """A name to assign to: a new one, or one that is bound."""
        own = [v for v in self.names[kind] if v[-1].isdigit()]
        return self.dice.choice(own) if own and self.dice.random() < 0.4 else self.new(kind)

    # ------------------------------------------------------------ expressions
    def tensor(self, depth: int = 2) -> str:
        roll = self.dice.random()
        if depth == 0 or roll < 0.25:
            return self.pick(TENSOR)
        if roll < 0.55:
            return "(" + self.dice.choice(UNARY).format(self.tensor(depth - 1)) + ")"
        if roll < 0.8:
            a, b = self.tensor(depth - 1), self.tensor(depth - 1)
            return "(" + self.dice.choice(BINARY).format(a, b) + ")"
        return self.dice.choice([
            f"({self.tensor(depth - 1)} * {self.integer()})",
            f"({self.tensor(depth - 1)} + {self.floating()})",
            f"{self.pick(LIST)}[{self.dice.choice(['0', '-1'])}]",
            f"{self.pick(BOX)}.held", f"{self.pick(BOX)}.scaled({self.tensor(depth - 1)})",
            f"sum([{self.tensor(0)}, {self.tensor(0)}])",
            f"(lambda q, k=1: q + k)({self.tensor(depth - 1)})",
            f"max([{self.tensor(0)}, {self.tensor(0)}], key=lambda q: q.shape[0])",
            f"functools.reduce(operator.add, [{self.tensor(0)} for _ in range(2)])",
        ])  # fmt: skip

    def integer(self, depth: int = 1) -> str:
        roll = self.dice.random()
        if depth == 0 or roll < 0.4:
            return self.dice.choice([self.pick(INT), str(self.dice.randrange(5))])
        if roll < 0.75:
            text, a = self.dice.choice(INTS), self.integer(depth - 1)
            return "(" + text.replace("{}", a) + ")"
        return self.dice.choice([
            f"len({self.pick(LIST)})", f"{self.tensor(0)}.shape[{self.dice.randrange(2)}]",
            f"{self.pick(DICT)}.get('a', 3)", f"{self.tensor(0)}.dim()", f"{self.pick(BOX)}.count",
            f"sum(i for i in range({self.dice.randrange(4)}))", f"len({self.pick(DICT)})",
        ])  # fmt: skip

    def floating(self) -> str:
        return self.dice.choice([self.pick(FLOAT), "0.25", f"({self.pick(FLOAT)} / 2)",
                                 f"float({self.integer()})", "math.sqrt(2.0)"])  # fmt: skip

    def condition(self) -> str:
        plain = [
            f"{self.integer()} > {self.integer(0)}", f"{self.pick(LIST)}",
            f"'a' in {self.pick(DICT)}", f"{self.pick(FLOAT)} < 1.0", f"{self.integer()} % 2 == 0",
            f"isinstance({self.pick(BOX)}, Box)", f"not {self.integer()}",
            f"{self.pick(LIST)} is {self.pick(LIST)}", f"{self.tensor(0)}.shape[1:] == (3,)",
            f"any(v > 2 for v in {self.pick(DICT)}.values())",
            f"{self.integer(0)} < {self.integer(0)} <= 4",
        ]  # fmt: skip
        return self.dice.choice(plain)

    # ------------------------------------------------------------ statements
    def body(self, size: int) -> None:
        for _ in range(size):
            self.dice.choice(self.statements)(self)

    def small(self) -> None:
        before = len(self.lines)
        self.body(self.dice.randrange(1, 3))
        if len(self.lines) == before:  # what was drawn does not go this deep
            assign(self)


def assign(m: Maker) -> None:
    value = m.tensor()
    m.line(f"{m.bind(TENSOR, m.target(TENSOR))} = {value}")


def assign_int(m: Maker) -> None:
    value = m.integer(2)
    m.line(f"{m.bind(INT, m.target(INT))} = {value}")


def several(m: Maker) -> None:
    values = f"{m.tensor(1)}, {m.integer()}"
    a, b = m.target(TENSOR), m.target(INT)
    m.line(f"{a}, {b} = {values}")
    m.bind(TENSOR, a)
    m.bind(INT, b)


def augmented(m: Maker) -> None:
    own = [v for v in m.names[TENSOR] if v[-1].isdigit()]
    if own:
        m.line(f"{m.dice.choice(own)} = {m.dice.choice(own)} * 1.0")
    m.line(f"{m.pick(INT)} += {m.integer(0)}")


def in_place(m: Maker) -> None:
    m.line(m.dice.choice([
        f"{m.pick(TENSOR)}.add_({m.floating()})", f"{m.pick(TENSOR)}[0] = {m.floating()}",
        f"{m.pick(TENSOR)}.mul_(0.5)", f"{m.pick(TENSOR)}[:, 1] += 1",
        f"{m.pick(LIST)}[0].add_(1)",
    ]))  # fmt: skip


def on_list(m: Maker) -> None:
    name = m.pick(LIST)
    m.line(m.dice.choice([
        f"{name}.append({m.tensor(1)})", f"{name}.insert(0, {m.tensor(0)})",
        f"{name}[-1] = {m.tensor(1)}", f"{name} += [{m.tensor(0)}]", f"{name}.reverse()",
        f"{name}.extend([{m.tensor(0)}])", f"{name}[1:] = [{m.tensor(0)}]",
    ]))  # fmt: skip


def new_list(m: Maker) -> None:
    text = m.dice.choice([
        f"[{m.tensor(1)}, {m.tensor(0)}]", f"list({m.pick(LIST)})", f"{m.pick(LIST)}[::-1]",
        f"[q * {m.integer()} for q in {m.pick(LIST)}]", f"[*{m.pick(LIST)}, {m.tensor(0)}]",
        f"sorted({m.pick(LIST)}, key=lambda q: q.shape[0])", f"{m.pick(LIST)}",
        f"[q for q in {m.pick(LIST)} if q.shape[0] > {m.integer(0)}] or [{m.tensor(0)}]",
        f"list(map(lambda q: q + 1, {m.pick(LIST)}))",
    ])  # fmt: skip
    m.line(f"{m.bind(LIST, m.new(LIST))} = {text}")


def on_dict(m: Maker) -> None:
    name = m.pick(DICT)
    m.line(m.dice.choice([
        f"{name}['k{m.dice.randrange(3)}'] = {m.integer()}",
        f"{name}.setdefault('a', {m.integer()})",
        f"{name}.update(b={m.integer()})", f"{name}.pop('b', None)",
        f"{name}['a'] = {name}.get('a', 0) + 1",
    ]))  # fmt: skip


def new_dict(m: Maker) -> None:
    text = m.dice.choice([
        f"dict({m.pick(DICT)})", f"{{'a': {m.integer()}, **{m.pick(DICT)}}}",
        f"{{k: v + 1 for k, v in {m.pick(DICT)}.items()}}", f"{m.pick(DICT)}",
    ])  # fmt: skip
    m.line(f"{m.bind(DICT, m.new(DICT))} = {text}")


def on_box(m: Maker) -> None:
    name = m.pick(BOX)
    m.line(m.dice.choice([
        f"{name}.held = {m.tensor(1)}", f"{name}.count += {m.integer(0)}",
        f"{name}.note = {m.integer()}", f"{name}.bump({m.integer()})",
        f"setattr({name}, 'note', {m.integer(0)})",
    ]))  # fmt: skip


def new_box(m: Maker) -> None:
    m.line(f"{m.bind(BOX, m.new(BOX))} = Box({m.tensor(1)}, {m.integer()})")


def output(m: Maker) -> None:
    m.line(m.dice.choice([
        f"print({m.integer()}, f'{{{m.pick(INT)}:>4}} {{{m.pick(FLOAT)}!r}}')",
        f"print({m.tensor(0)}.shape)",
        f"print('{{}}'.format({m.integer()}), sep='')", f"log.append({m.integer()})",
    ]))  # fmt: skip


def branch(m: Maker) -> None:
    if m.indent > 4:
        return
    with m.block(f"if {m.condition()}:"):
        m.small()
    if m.dice.random() < 0.5:
        with m.block("else:"):
            m.small()


def data_branch(m: Maker) -> None:
    if m.indent > 3:
        return
    test = m.dice.choice([f"{m.tensor(0)}.sum() > 0", f"bool(({m.tensor(0)} > 9).any())",
                          f"{m.tensor(0)}[0, 0].item() > 0.5"])  # fmt: skip
    with m.block(f"if {test}:"):
        m.small()


def loop(m: Maker) -> None:
    if m.loops >= 2 or m.indent > 3:
        return
    m.loops += 1
    i, kind = m.new(INT), INT
    head = m.dice.choice([
        f"for {i} in range({m.dice.randrange(1, 4)}):", f"for {i}, _ in enumerate([7, 8]):",
        f"for {i} in list({m.pick(DICT)}.values()):", f"for {i}, _ in zip(range(3), [1, 2]):",
        f"for {i} in reversed([1, 2]):",
    ])  # fmt: skip
    with m.block(head):
        m.bind(kind, i)
        m.small()
        if m.dice.random() < 0.3:
            with m.block(f"if {m.condition()}:"):
                m.line(m.dice.choice(["break", "continue"]))
            m.small()
    if m.dice.random() < 0.15:
        with m.block("else:"):
            m.small()
    m.loops -= 1


def while_loop(m: Maker) -> None:
    if m.loops >= 2 or m.indent > 3:
        return
    m.loops += 1
    w = m.new("while")
    m.line(f"{w} = 0")
    with m.block(f"while {w} < {m.dice.randrange(1, 4)}:"):
        m.line(f"{w} += 1")
        m.small()
    m.loops -= 1


def handled(m: Maker) -> None:
    if m.indent > 3:
        return
    error = m.dice.choice(ERRORS)
    with m.block("try:"):
        m.small()
        if m.dice.random() < 0.6:
            with m.block(f"if {m.condition()}:"):
                m.line(f"raise {error}('e{m.dice.randrange(9)}')")
        m.small()
    caught = m.dice.choice([error, "Exception", "(ValueError, KeyError)"])
    with m.block(f"except {caught} as error:"):
        m.line("log.append(type(error).__name__)")
        m.small()
    if m.dice.random() < 0.3:
        with m.block("finally:"):
            m.line("log.append('finally')")


def raised(m: Maker) -> None:
    with m.block(f"if {m.integer(0)} > 7:"):
        m.line(f"raise {m.dice.choice(ERRORS)}('out')")


def context(m: Maker) -> None:
    if m.indent > 3:
        return
    head = m.dice.choice(["with torch.no_grad():", "with Manager(log) as entered:",
                          "with contextlib.suppress(KeyError):",
                          "with torch.enable_grad():"])  # fmt: skip
    with m.block(head):
        m.small()


def closure(m: Maker) -> None:
    if m.nested or m.indent > 2:
        return
    m.nested += 1
    name, state = m.new("function"), m.new(INT)
    m.line(f"{state} = {m.integer()}")
    with m.block(f"def {name}(q, k=2, *rest, **named):"):
        if m.dice.random() < 0.6:
            m.line(f"nonlocal {state}")
            m.line(f"{state} += k + len(rest)")
        m.line(f"return q * k + {m.tensor(0)} + named.get('z', 0)")
    m.bind(INT, state)
    call = m.dice.choice(["{}({})", "{}({}, 3)", "{}({}, 1, 2, z=4)", "{}(k=5, q={})",
                          "functools.partial({}, k=3)({})"])  # fmt: skip
    m.line(f"{m.bind(TENSOR, m.new(TENSOR))} = {call.format(name, m.tensor(1))}")
    m.nested -= 1


def generator(m: Maker) -> None:
    if m.nested or m.indent > 2:
        return
    m.nested += 1
    name = m.new("generator")
    with m.block(f"def {name}(k):"):
        m.line(f"for i in range(k):\n{'    ' * (m.indent + 1)}yield {m.tensor(0)} + i")
    use = m.dice.choice([f"sum({name}(2))", f"list({name}(2))[-1]", f"next({name}(1))",
                         f"[q * 2 for q in {name}(2)][0]",
                         f"functools.reduce(operator.mul, {name}(2))"])  # fmt: skip
    m.line(f"{m.bind(TENSOR, m.new(TENSOR))} = {use}")
    m.nested -= 1


def matched(m: Maker) -> None:
    if m.indent > 2:
        return
    subject = m.dice.choice([f"({m.integer()}, {m.integer(0)})", m.pick(DICT), m.integer()])
    m.line(f"match {subject}:")
    m.indent += 1
    for case in m.dice.sample(["case 0 | 1:", "case (0, k):", "case {'a': k}:", "case [k, *_]:",
                               "case int(k) if k > 3:"], 2):  # fmt: skip
        with m.block(case):
            m.small()
    with m.block("case _:"):
        m.small()
    m.indent -= 1


def walrus(m: Maker) -> None:
    name = m.new(INT)
    m.line(f"{m.bind(INT, m.new(INT))} = ({name} := {m.integer()}) + 1")
    m.bind(INT, name)


def leave(m: Maker) -> None:
    if m.nested:
        return
    with m.block(f"if {m.condition()} and {m.integer(0)} > 3:"):
        m.line(f"return {m.tensor(1)}, {m.integer()}")


STATEMENTS = (
    assign, assign, assign, assign, assign_int, several, augmented, in_place, on_list, new_list,
    on_dict, new_dict, on_box, new_box, output, branch, branch, data_branch, loop, loop, while_loop,
    handled, raised, context, closure, generator, matched, walrus, leave,
)  # fmt: skip
