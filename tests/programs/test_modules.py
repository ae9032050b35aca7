"""nn.Module: containers, buffers, hooks, train and eval, replaced parts."""

import functools

import torch
from eager_twin import check, check_made, check_refused
from torch import nn

import torchweld

X = torch.arange(8.0).reshape(2, 4)
Y = torch.ones(2, 4)


def module_case(make_module, *calls, graphs=1, run=None):
    """The module's call, compiled as a function of it; the module itself is compared too."""

    def make():
        torch.manual_seed(0)
        m = make_module()
        return (lambda *a: run(m, *a) if run else m(*a)), m

    check_made(make, *calls, graphs=graphs)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.ones(4))
        self.steps = 0

    def forward(self, x):
        return torch.relu(self.lin(x)) * self.scale + self.shift


def test_module():
    module_case(Block, (X,), (Y,))


def test_sequential():
    module_case(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (X,), (Y,))


def test_sequential_slices_and_items():
    def run(m, x):
        for layer in m[:2]:
            x = layer(x)
        return m[-1](x), len(m), m[0].out_features

    module_case(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (X,), run=run)


def test_module_list():
    def run(m, x):
        for i, layer in enumerate(m):
            x = layer(x) + i
        return x, len(m), [type(q).__name__ for q in m[1:]]

    module_case(lambda: nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), (X,), (Y,), run=run)


def test_module_dict():
    def run(m, x):
        y = x
        for name, layer in m.items():
            y = layer(y) + len(name)
        return y, "a" in m, "z" in m, list(m.keys()), m["b"](x), [type(v) for v in m.values()]

    module_case(lambda: nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()}), (X,), run=run)


def test_parameter_list():
    def run(m, x):
        for p in m.ps:
            x = x * p
        return x + m.ps[0], len(m.ps)

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.ps = nn.ParameterList([nn.Parameter(torch.randn(4)) for _ in range(3)])

    module_case(M, (X,), (Y,), run=run)


def test_parameter_dict():
    def run(m, x):
        for k, p in m.ps.items():
            x = x * p + len(k)
        return x + m.ps["a"], "b" in m.ps

    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.ps = nn.ParameterDict({k: nn.Parameter(torch.randn(4)) for k in ("a", "bb")})

    module_case(M, (X,), (Y,), run=run)


def test_named_parameters_buffers_modules_children():
    def run(m, x):
        total = x.sum()
        for _, p in m.named_parameters():
            total = total + p.sum()
        for b in m.buffers():
            total = total + b.sum()
        names = [n for n, _ in m.named_modules()], [n for n, _ in m.named_children()]
        return total, names, len(list(m.modules())), [type(c).__name__ for c in m.children()]

    module_case(Block, (X,), (Y,), run=run)


def test_get_submodule_and_get_parameter():
    module_case(Block, (X,), run=lambda m, x: m.get_submodule("lin")(x) * m.get_parameter("scale"))


def test_train_and_eval():
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    m.eval()
    check(lambda x, m: m(x) + (1 if m.training else 2), (X, m), (Y, m))


def test_eval_called_inside():
    def run(m, x):
        m.eval()
        y = m(x)
        m.train()
        return y, m.training, m[1].training

    module_case(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), (X,), run=run)


def test_attribute_written():
    def run(m, x):
        m.last = x + 1
        m.seen = True
        return m.lin(x)

    module_case(Block, (X,), (Y,), run=run, graphs=2)


def test_buffer_written():
    def run(m, x):
        m.shift = m.shift + x.mean(0)
        return x + m.shift

    module_case(Block, (X,), (Y,), run=run)


def test_buffer_changed_in_place():
    def run(m, x):
        m.shift += 1
        m.shift.mul_(2)
        return x + m.shift

    module_case(Block, (X,), (Y,), run=run)


def test_batch_norm_updates_its_buffers():
    module_case(lambda: nn.BatchNorm1d(4), (X,), (Y,))


def test_submodule_replaced_inside():
    def run(m, x):
        old = m.lin
        m.lin = nn.Identity()
        y = m(x)
        m.lin = old
        return y

    module_case(Block, (X,), run=run)


def test_parameter_of_other_module():
    def run(m, x):
        return nn.functional.linear(x, m.lin.weight.t(), m.lin.bias)

    module_case(Block, (X,), run=run)


def test_forward_hook():
    def make():
        torch.manual_seed(0)
        m, seen = Block(), []
        m.lin.register_forward_hook(lambda mod, args, out: seen.append(out))
        m.register_forward_hook(lambda mod, args, out: out * 2)
        return (lambda x: m(x)), seen

    check_made(make, (X,))


def test_forward_pre_hook():
    def make():
        torch.manual_seed(0)
        m = Block()
        m.register_forward_pre_hook(lambda mod, args: (args[0] + 1,))
        m.lin.register_forward_pre_hook(lambda mod, args: args[0] * 2)
        return lambda x: m(x)

    check_made(make, (X,), (Y,))


def test_hooks_with_kwargs():
    class M(nn.Module):
        def forward(self, x, by=1):
            return x * by

    def make():
        m = M()
        m.register_forward_pre_hook(lambda mod, a, k: (a, {"by": k["by"] + 1}), with_kwargs=True)
        m.register_forward_hook(lambda mod, a, k, out: out + k["by"], with_kwargs=True)
        return lambda x: m(x, by=2)

    check_made(make, (X,), (Y,))


def test_hooks_that_the_frame_registers_and_removes():
    def make():
        m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

        def program(x):
            found = {}

            def keep(name, mod, args, out):
                found[name] = out

            handles = [
                child.register_forward_hook(functools.partial(keep, name), prepend=True)
                for name, child in m.named_children()
            ]
            y = m(x)
            for handle in handles:
                handle.remove()
            with m[0].register_forward_pre_hook(lambda mod, args: (args[0] * 2,)):
                z = m(x)
            return y, z, found, m(x), len(m[0]._forward_hooks)

        with torch.no_grad():
            m[0].weight.fill_(0.5)
            m[0].bias.fill_(0.1)
        return program

    check_made(make, (X[0, :3],))


def test_a_hook_that_stays():
    m = nn.Tanh()
    seen = []

    def program(x):
        handle = m.register_forward_hook(lambda mod, args, out: seen.append(out) or out * 2)
        return m(x + 1), handle

    torchweld.reset()
    y, handle = torchweld.compile(program, backend="eager")(X)
    assert torch.equal(y, torch.tanh(X + 1) * 2)
    assert list(m._forward_hooks) == [handle.id]
    assert handle.id >= 0
    handle.remove()
    assert torch.equal(m(X), torch.tanh(X))
    assert len(seen) == 1


def test_a_handle_from_outside_is_removed():
    def make():
        m = nn.Tanh()
        handle = m.register_forward_hook(lambda mod, args, out: out * 2)

        def program(x):
            y = m(x)
            handle.remove()
            return y, m(x)

        return program

    check_made(make, (X,), graphs=2)


def test_always_called_hook():
    def make():
        m = nn.Tanh()
        m.register_forward_hook(lambda mod, args, out: out + 1, always_call=True)
        return lambda x: m(x * 2)

    check_made(make, (X,))


def test_an_exception_that_an_always_called_hook_waits_for_is_refused():
    class M(nn.Module):
        def forward(self, x):
            if x.shape[0] == 2:
                raise ValueError("two rows")
            return x * 2

    def make():
        m = M()
        m.register_forward_hook(lambda mod, a, out: None, always_call=True)

        def program(x):
            y = x + 1
            try:
                return m(y)
            except ValueError:
                return y

        return program

    check_refused(make(), X, code="W107", says="always_call")


def test_hook_object():
    class Hook:
        def __init__(self):
            self.calls = []

        def __call__(self, module, args, out):
            self.calls.append(type(module).__name__)
            return out + 1

    def make():
        torch.manual_seed(0)
        m, hook = Block(), Hook()
        m.lin.register_forward_hook(hook)
        return (lambda x: m(x)), hook

    check_made(make, (X,))


def test_global_forward_hook():
    from torch.nn.modules.module import register_module_forward_hook

    def program(x):
        return nn.functional.relu(layer(x))

    layer = nn.Identity()
    handle = register_module_forward_hook(lambda mod, args, out: out + 1)
    try:
        check(program, (X,), (Y,))
    finally:
        handle.remove()


def test_forward_on_the_instance():
    def make():
        torch.manual_seed(0)
        m = Block()
        m.lin.forward = lambda x: x * 3
        return lambda x: m(x)

    check_made(make, (X,), (Y,))


def test_module_made_in_the_frame():
    check(lambda x: nn.Sequential(nn.ReLU(), nn.Tanh())(x) + nn.GELU()(x), (X,), (Y,))


def test_shared_submodule():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.b = self.a

        def forward(self, x):
            return self.a(self.b(x)), self.a is self.b

    module_case(M, (X,), (Y,))


def test_module_getattr_written_by_the_user():
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, x):
            return self.inner(x) * self.scale

    module_case(lambda: Wrapper(Block()), (X,), (Y,))


def test_module_with_property():
    class M(Block):
        @property
        def doubled(self):
            return self.scale * 2

        @doubled.setter
        def doubled(self, value):
            self.steps = value

        def forward(self, x):
            self.doubled = 5
            return x * self.doubled

    module_case(M, (X,), (Y,))


def test_zero_grad_and_requires_grad_read():
    module_case(Block, (X,), run=lambda m, x: [p.requires_grad for p in m.parameters()] and x + 1)


def test_apply_counts_modules():
    def run(m, x):
        seen = []
        m.apply(lambda mod: seen.append(type(mod).__name__))
        return x + len(seen), seen

    module_case(Block, (X,), run=run)


def test_modules_compared_and_used_as_keys():
    def run(m, x):
        table = {m.lin: 2, m: 3}
        return x * table[m.lin] + table[m], m.lin == m.lin, m.lin != m, m.lin in table

    module_case(Block, (X,), run=run)


def test_list_of_modules_in_plain_attribute():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = [nn.Linear(4, 4), nn.Linear(4, 4)]

        def forward(self, x):
            for layer in self.stack:
                x = layer(x)
            return x

    module_case(M, (X,), (Y,))


def test_register_buffer_inside():
    def run(m, x):
        m.register_buffer("extra", x.sum(0))
        return x + m.extra

    module_case(Block, (X,), run=run, graphs=2)


def test_multihead_attention():
    module_case(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        (X.reshape(1, 2, 4),),
        run=lambda m, x: m(x, x, x, need_weights=False),
    )


def test_transformer_layer():
    module_case(
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        (X.reshape(1, 2, 4),),
    )


def test_lstm():
    module_case(lambda: nn.LSTM(4, 3, batch_first=True), (X.reshape(1, 2, 4),))


def test_embedding_and_parametrization():
    from torch.nn.utils import parametrize

    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    def make():
        m = nn.Linear(4, 4)
        parametrize.register_parametrization(m, "weight", Double())
        return m

    module_case(make, (X,), (Y,))


def test_module_made_in_the_frame_after_torch_compile_ran():
    torch.compile(lambda y: y + 1, backend="eager")(torch.zeros(2))  # wraps nn.Module.__init__
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
    torchweld.reset()

    def program(x):
        for layer in layers[:2]:
            x = layer(x)
        return x

    x = torch.ones(2, 4)
    got = torchweld.compile(program, fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(got, program(x))
    assert torchweld.statistics()["graphs"] == 1
