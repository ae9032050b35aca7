"""More statements of the random programs: classes, generators, sets, texts, views, globals.

The classes are text too, so that each program has its own; `PRELUDE` goes before the function.
"""

from __future__ import annotations

import re

from tests.fuzz.program_maker import BOX, DICT, FLOAT, INT, LIST, TENSOR, Maker, assign

NODE, PAIR, SET, QUEUE, TEXT = "node", "pair", "set", "queue", "text"

PRELUDE = '''
counter = 0


class Odd(ValueError):
    def __init__(self, what, level=1):
        super().__init__(what)
        self.level = level


class Quiet:
    def __init__(self, kind=ValueError):
        self.kind = kind

    def __enter__(self):
        log.append("in")
        return self

    def __exit__(self, kind, error, trace):
        log.append("out")
        return kind is not None and issubclass(kind, self.kind)


class Node:
    made = 0
    limit = 4

    def __init__(self, held, count=1, *rest, **named):
        self.held, self.count, self.rest, self.named = held, count, list(rest), named
        self._size = 0

    @property
    def size(self):
        return self._size + self.count

    @size.setter
    def size(self, value):
        self._size = value

    @property
    def picky(self):
        if self.count > self.limit:
            raise AttributeError("too many")
        return self.count

    @classmethod
    def build(cls, held, **named):
        return cls(held, **named)

    @staticmethod
    def plus(q, k=1):
        return q + k

    def __getitem__(self, k):
        return self.held * k if isinstance(k, int) else self.named[k]

    def __setitem__(self, k, v):
        self.named[k] = v

    def __delitem__(self, k):
        del self.named[k]

    def __contains__(self, k):
        return k in self.named

    def __len__(self):
        return abs(self.count) % 4

    def __call__(self, q, *rest, scale=1):
        self.count += len(rest)
        return q * scale + self.held

    def __add__(self, other):
        return self.held + other

    __radd__ = __add__

    def __iter__(self):
        for k in range(2):
            yield self.held + k

    def __lt__(self, other):
        return self.count < other.count

    def __str__(self):
        return f"Node {self.count}"

    def __format__(self, how):
        return format(self.count, how)


class Leaf(Node):
    def __init__(self, held, **named):
        super().__init__(held, 3, **named)
        self.leaf = True

    def __call__(self, q, *rest, **named):
        return super().__call__(q, *rest, **named) * 2

    def __getattr__(self, name):
        if name.startswith("x_"):
            return len(name)
        raise AttributeError(name)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "size":
            self.seen = value


@dataclasses.dataclass
class Pair:
    a: object
    b: int = 2
    tags: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.a * self.b


@dataclasses.dataclass(frozen=True, order=True)
class Point:
    u: int
    v: int = 1


class Slotted:
    __slots__ = ("held", "count")

    def __init__(self, held, count):
        self.held, self.count = held, count


def spread(first, *rest, k=2, **named):
    return first * k + len(rest) + sum(named.values())


def walk(k, q):
    try:
        for i in range(k):
            got = yield q + i
            if got is not None:
                q = q * got
    finally:
        log.append("closed")
    return k


def chain(q):
    done = yield from walk(2, q)
    yield q * done
'''


def _say(m: Maker, text: str) -> None:
    """One line; `@int` is a new name of that kind, bound from here on."""
    m.line(re.sub(r"@([a-z]+)", lambda kind: m.bind(kind[1], m.new(kind[1])), text))


def _node(m: Maker) -> str:
    if not m.names[NODE]:
        new_node(m)
    return m.pick(NODE)


def new_node(m: Maker) -> None:
    text = m.dice.choice([
        f"Node({m.tensor(1)}, {m.integer()})", f"Leaf({m.tensor(0)})",
        f"Node.build({m.tensor(0)}, count={m.integer(0)})", f"Leaf.build({m.tensor(0)}, z=2)",
        f"Node({m.tensor(0)}, 1, 2, 3, z={m.integer(0)})", f"Slotted({m.tensor(0)}, 1) and "
        f"Node({m.tensor(0)})",
    ])  # fmt: skip
    _say(m, f"@node = {text}")


def on_node(m: Maker) -> None:
    name = _node(m)
    _say(m, m.dice.choice([
        f"{name}.size = {m.integer()}", f"{name}.size += {m.integer(0)}",
        f"{name}['k{m.dice.randrange(2)}'] = {m.integer()}", f"{name}.held = {m.tensor(1)}",
        f"{name}.held.mul_(0.5)", f"{name}.rest.append({m.integer()})",
        f"{name}.extra = {m.tensor(0)}", f"{name}.named.pop('k0', None)",
        f"setattr({name}, 'count', {m.integer()})", f"{name}.__dict__['note'] = {m.integer(0)}",
        f"{name}.made = {m.integer(0)}", f"{name}.held += 1",
    ]))  # fmt: skip


def on_class(m: Maker) -> None:
    name = _node(m)
    _say(m, m.dice.choice([
        "Node.made += 1", f"Node.limit = {m.integer()}", f"type({name}).made += 1",
        f"setattr(Leaf, 'limit', {m.integer(0)})", f"{name}.__class__.made = {m.integer(0)}",
    ]))  # fmt: skip


def from_node(m: Maker) -> None:
    name = _node(m)
    if m.dice.random() < 0.5:
        value = m.dice.choice([
            f"{name}({m.tensor(0)})", f"{name}({m.tensor(0)}, 1, 2, scale={m.integer(0)})",
            f"{name}[{m.integer(0)}]", f"({name} + {m.tensor(0)})", f"sum({name})",
            f"({m.tensor(0)}.sin() + {name}.held)", f"Node.plus({name}.held, k=3)",
            f"list({name})[-1]", f"max({name}, {_node(m)}).held", f"[*{name}][0]",
        ])  # fmt: skip
        _say(m, f"@tensor = {value}")
        return
    value = m.dice.choice([
        f"{name}.size", f"len({name})", f"{name}.made + {name}.limit", f"int('k0' in {name})",
        f"getattr({name}, 'extra_count', {m.integer(0)})", f"int(bool({name}))",
        f"int(hasattr({name}, 'x_long'))", f"int(isinstance({name}, Leaf))", "Node.made",
        f"getattr({name}, 'picky', -1)", f"len(vars({name}))", "Leaf.limit",
        f"int({name} < {_node(m)})", f"sum(1 for _ in {name})", f"len(f'{{{name}:>3}}')",
    ])  # fmt: skip
    _say(m, f"@int = {value}")


def on_pair(m: Maker) -> None:
    if not m.names[PAIR] or m.dice.random() < 0.3:
        text = m.dice.choice([f"Pair({m.tensor(0)})", f"Pair({m.tensor(0)}, b={m.integer()})",
                              f"Pair(a={m.tensor(1)}, b=1, tags=[{m.integer(0)}])"])  # fmt: skip
        _say(m, f"@pair = {text}")
        return
    name = m.pick(PAIR)
    value = m.dice.choice([f"{name}.total()", f"dataclasses.replace({name}, b=3).total()",
                           f"dataclasses.astuple(Pair({m.tensor(0)}))[0]"])  # fmt: skip
    _say(m, m.dice.choice([
        f"{name}.tags.append({m.integer()})", f"{name}.b = {m.integer()}",
        f"{name}.a = {m.tensor(1)}", f"@tensor = {value}",
    ]) if m.dice.random() < 0.7 else f"log.append(repr(Point({m.integer()}, {m.integer(0)})))")


def on_set(m: Maker) -> None:
    if not m.names[SET] or m.dice.random() < 0.3:
        text = m.dice.choice([
            f"{{{m.integer()}, {m.integer()}, 9}}", f"{{k % 3 for k in range({m.integer(0)})}}",
            f"set({m.pick(DICT)}.values())", f"{{{m.integer(0)}}} | {{1, 2}}",
            f"{{Point({m.integer(0)}).u, Point(1).v}}",
        ])  # fmt: skip
        _say(m, f"@set = {text}")
        return
    name = m.pick(SET)
    _say(m, m.dice.choice([
        f"{name}.add({m.integer()})", f"{name}.discard({m.integer(0)})", f"{name} |= {{3, 4}}",
        f"@int = len({name} & {{1, 2, {m.integer(0)}}})",
        f"@int = sum(sorted({name}, reverse=True)[:2])",
        f"log.append(sorted({name} ^ {{2, 3}}))", f"{name}.update([{m.integer()}, 7])",
        f"@int = int({m.integer(0)} in {name})",
    ]))  # fmt: skip


def on_queue(m: Maker) -> None:
    if not m.names[QUEUE] or m.dice.random() < 0.3:
        text = m.dice.choice([
            f"collections.deque([{m.tensor(0)}, {m.tensor(0)}])", "collections.deque(items)",
            f"collections.deque([{m.tensor(0)}], maxlen=2)",
        ])  # fmt: skip
        _say(m, f"@queue = {text}")
        return
    name = m.pick(QUEUE)
    _say(m, m.dice.choice([
        f"{name}.append({m.tensor(0)})", f"{name}.appendleft({m.tensor(1)})", f"{name}.rotate(1)",
        f"@tensor = {name}.popleft() if {name} else {m.tensor(0)}",
        f"@tensor = sum({name}, {m.tensor(0)})",
        f"@int = len({name})",
        f"{name}.extend(q * 2 for q in list({name}))",
    ]))  # fmt: skip


def on_text(m: Maker) -> None:
    n = m.integer(0)
    text = m.dice.choice([
        f"f'{{{n}:03d}}|{{{m.pick(FLOAT)}:.2f}}|{{{m.pick(DICT)}}}'",
        f"'%s-%05.1f' % ({n}, {m.floating()})", f"'{{0}}{{1!r}}'.format({n}, 'q')",
        f"','.join(str(k) for k in range({n}))", f"'a,b,{{}}'.format({n}).split(',')[-1]",
        f"'Abc'.lower().replace('b', str({n})).strip('a')", f"str({m.pick(DICT)}) + repr({n})",
        f"f'{{{m.tensor(0)}.shape[1]}} {{type({m.pick(LIST)}).__name__}}'",
        f"f'{{{n}=}} {{{m.pick(FLOAT)}:>8}}'.title()", f"str({_node(m)})",
        f"'{{:{{}}}}'.format({n}, 5)", f"'-'.join(sorted({m.pick(DICT)}))",
        f"'x'.rjust({n}, '.') * 2",
    ])  # fmt: skip
    name = m.bind(TEXT, m.new(TEXT))
    _say(m, f"{name} = {text}")
    if m.dice.random() < 0.4:
        _say(m, m.dice.choice([
            f"print({name}, end=';')", f"log.append({name})",
            f"@int = len({name}) + {name}.count('1')",
            f"print(*{name}[:2], sep='+')", f"print({name}.startswith('0'), {m.tensor(0)}.dtype)",
        ]))  # fmt: skip


def on_global(m: Maker) -> None:
    _say(m, m.dice.choice([
        "counter += 1", f"counter = {m.integer()}", f"counter += {m.integer(0)} % 2",
        "@int = counter + 1", "log.append(counter)",
    ]))  # fmt: skip


def sent(m: Maker) -> None:
    """A generator that is driven by hand, or delegates."""
    name, q = m.new("generator"), m.tensor(0)
    make = m.dice.choice([f"walk({m.dice.randrange(1, 4)}, {q})", f"chain({q})"])
    _say(m, f"{name} = {make}")
    first = m.bind(TENSOR, m.new(TENSOR))
    _say(m, f"{first} = next({name})")
    kind = m.dice.randrange(4)
    if kind == 0:
        _say(m, f"{name}.close()")
    elif kind == 1:
        with m.block("try:"):
            _say(m, f"{first} = {name}.send({m.integer(0)})")
        with m.block("except StopIteration as stop:"):
            _say(m, "log.append(stop.value)")
        _say(m, f"{name}.close()")
    elif kind == 2:
        with m.block("try:"):
            _say(m, f"{name}.throw(Odd('thrown', {m.integer(0)}))")
        with m.block("except (Odd, StopIteration) as odd:"):
            _say(m, "log.append(str(odd))")
    else:
        _say(m, f"@list = [{first}, *{name}]")


def on_view(m: Maker) -> None:
    """What is written to a view is seen through everything that shares its memory."""
    name, view = m.pick(TENSOR), m.new("view")
    _say(m, f"{view} = " + m.dice.choice([
        f"{name}[1:]", f"{name}.t()", f"{name}[:, 1]", f"{name}.unsqueeze(0)", f"{name}[0]",
        f"{name}.reshape(-1)", f"{name}.chunk(2)[-1]", f"{name}.unbind(1)[2]",
        f"{name}.transpose(0, 1)[1:]", f"{name}.expand(2, -1, -1)[0]", f"{name}.diagonal()",
        f"{name}.detach()", f"{name}.narrow(1, 0, 2)", f"{name}.view({name}.shape)",
    ]))  # fmt: skip
    if m.dice.random() < 0.3:
        _say(m, f"@tensor = {name} + 1")
    _say(m, m.dice.choice([
        f"{view}.add_({m.floating()})", f"{view}.mul_(2)", f"{view}.zero_()", f"{view} += 1",
        f"{view}.copy_({view} * 3)", f"{view}.fill_({m.floating()})", f"{view}.sub_({view})",
        f"{view}.clamp_(min=0)", f"{view}[0] = {m.floating()}", f"{view}.neg_()",
    ]))  # fmt: skip
    if m.dice.random() < 0.5:
        _say(m, f"log.append({view}.detach().clone())")


def reduced(m: Maker) -> None:
    """Numbers of the data, read in the middle."""
    q = m.tensor(0)
    _say(m, m.dice.choice([
        f"print(round({q}.sum().item(), 3), end=' ')", f"log.append({q}.argmax().item())",
        f"log.append(({q} > 0).sum())", f"@int = int({q}.sum() > 0)",
        f"log.append(tuple({q}.shape))", f"log.append({q}.tolist() == {m.tensor(0)}.tolist())",
        f"log.append({q}[{q} > 0].numel())", f"log.append({q}.mean(0).max(0))",
    ]))  # fmt: skip


def protected(m: Maker) -> None:
    """try, with its parts in any combination; finally that returns, breaks or raises on the way."""
    if m.indent > 3:
        return
    with m.block("try:"):
        m.small()
        if m.dice.random() < 0.6:
            with m.block(f"if {m.condition()}:"):
                _say(m, m.dice.choice(["raise Odd('odd', 2)", "raise KeyError('k')", "1 / 0",
                                      f"{m.pick(DICT)}['missing']", "[][1]", "int('q')",
                                      f"return {m.tensor(0)}" if not m.nested else "pass",
                                      ]))  # fmt: skip
    if m.dice.random() < 0.7:
        with m.block("except Odd as odd:"):
            _say(m, "log.append((odd.level, str(odd), odd.args))")
            m.small()
        with m.block("except (LookupError, ArithmeticError) as error:"):
            _say(m, "log.append(repr(error))")
            if m.dice.random() < 0.2:
                _say(m, "raise Odd('again') from error")
        if m.dice.random() < 0.4:
            with m.block("else:"):
                m.small()
    with m.block("finally:"):
        _say(m, "log.append('last')")
        m.small()


def managed(m: Maker) -> None:
    if m.indent > 3:
        return
    head = m.dice.choice([
        "with Quiet() as quiet:", "with Quiet(KeyError), Manager(log) as entered:",
        "with contextlib.ExitStack() as stack:", "with contextlib.nullcontext(3) as given:",
        "with torch.set_grad_enabled(False):", "with Quiet(Exception), torch.no_grad():",
    ])  # fmt: skip
    with m.block(head):
        if "stack" in head:
            _say(m, "stack.enter_context(Manager(log))")
            _say(m, "stack.callback(log.append, 'called back')")
        m.small()
        if m.dice.random() < 0.4:
            with m.block(f"if {m.condition()}:"):
                _say(m, m.dice.choice(["raise Odd('inside')", "raise KeyError(1)"]))


def counted(m: Maker) -> None:
    """Functions that share a cell, called several times."""
    if m.nested or m.indent > 2:
        return
    m.nested += 1
    cell, up, read = m.new(INT), m.new("up"), m.new("read")
    _say(m, f"{cell} = {m.integer(0)}")
    with m.block(f"def {up}(k=1, *, twice=False):"):
        _say(m, f"nonlocal {cell}")
        _say(m, f"{cell} += k * (1 + twice)")
        _say(m, f"return {m.tensor(0)} * {cell}")
    _say(m, f"{read} = lambda: {cell} + 1")
    m.bind(INT, cell)
    _say(m, f"@tensor = {up}({m.integer(0)}) + {up}(twice=True)")
    _say(m, f"@int = {read}()")
    m.nested -= 1


def called(m: Maker) -> None:
    rest = m.dice.choice(["*[1, 2]", "*range(2)", f"{m.integer(0)}", "k=3", "**{'p': 1}",
                          f"*(), k={m.integer(0)}, z=2"])  # fmt: skip
    _say(m, f"@tensor = spread({m.tensor(0)}, {rest})")


def sorted_things(m: Maker) -> None:
    _say(m, "@list = " + m.dice.choice([
        f"[{m.tensor(0)} + k for k in sorted([3, {m.integer(0)}, 2], key=lambda k: -k)]",
        f"[q for _, q in sorted(zip([2, {m.integer(0)}], {m.pick(LIST)}), key=lambda p: p[0])]"
        f" or [{m.tensor(0)}]",
        f"[{m.tensor(0)} * p.u for p in sorted({{Point(2), Point({m.integer(0)}), Point(1)}})]",
        f"[{{k: {m.tensor(0)} * k for k in range(3)}}[2]]",
        f"list({{str(k): {m.tensor(0)} + k for k in {m.pick(DICT)}.values()}}.values()) "
        f"or [{m.tensor(0)}]",
        f"[{m.tensor(0)} * len(list(g)) for _, g in itertools.groupby([1, 1, {m.integer(0)}])]",
        f"list(itertools.chain({m.pick(LIST)}, [{m.tensor(0)}]))[-2:]",
    ]))  # fmt: skip


def deleted(m: Maker) -> None:
    """A name that is gone; what is bound elsewhere stays."""
    name = m.new("gone")
    _say(m, f"{name} = {m.tensor(1)}")
    _say(m, f"@tensor = {name} * 2")
    _say(m, f"del {name}")
    _say(m, f"log.append('{name}' in locals())" if m.dice.random() < 0.2 else "log.append(0)")


def indexed(m: Maker) -> None:
    """Data that an operator checks, and refuses where nothing was written that cannot be undone."""
    q, i = m.tensor(0), m.integer(0)
    wrote = any(re.search(r"[a-z]_\(|\] \+?= ", text) for text in m.lines)
    limit = 4 if not wrote and m.dice.random() < 0.5 else 3
    _say(m, "@tensor = " + m.dice.choice([
        f"{q}[torch.tensor([0] * {q}.shape[0])]", f"{q}.index_select(1, torch.tensor([2, 1, 0]))",
        f"{q}.gather(1, torch.zeros_like({q}, dtype=torch.long) + abs({i}) % {limit})",
        f"torch.nn.functional.embedding(torch.zeros({q}.shape[0], dtype=torch.long), {q})",
        f"{q}.flip(0)", f"{q}.roll(1, 0)", f"{q}.masked_fill({m.tensor(0)} > 0, {i})",
        f"{q}.cumsum(0)", f"{q}.sort(0)[0]",
    ]))  # fmt: skip


WIDER = (
    new_node, on_node, on_node, on_class, from_node, from_node, on_pair, on_set, on_queue, on_text,
    on_global, sent, on_view, on_view, reduced, protected, managed, counted, called, sorted_things,
    deleted, indexed, assign,
)  # fmt: skip
KINDS = (TENSOR, INT, LIST, DICT, BOX, NODE, PAIR, SET, QUEUE, TEXT)
