"""Tensor guards: the shim and the attributes must give the same answers, and the right ones."""

import os
import random

import pytest
import torch

from torchweld.frame.program import (
    Builder,
    Op,
    tensor_codes,
    torch_fast,
    torch_inference,
    torch_init,
)

TensorBase = torch._C.TensorBase
LIBTORCH = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
DTYPES = sorted((d for d in vars(torch).values() if isinstance(d, torch.dtype)), key=str)


class Sub(torch.Tensor):
    pass


def of_dtype(dtype):
    return torch.empty(2, 3, dtype=dtype)


def samples():
    return [
        *(of_dtype(d) for d in dict.fromkeys(DTYPES)),
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.zeros(4, 6)[::2, 1::3],
        torch.zeros(3).expand(5, 3),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, requires_grad=True),
        torch.zeros(2, requires_grad=True) * 2,
        torch.nn.Parameter(torch.zeros(2, 2)),
        torch.nn.Parameter(torch.zeros(2, 2), requires_grad=False),
        torch.zeros(2, 2).to_sparse(),
    ]


@pytest.fixture(autouse=True)
def initialised():
    assert torch_init(TensorBase, LIBTORCH, samples())


@pytest.fixture(params=["shim", "attributes"])
def reader(request):
    assert torch_fast(request.param == "shim") is (request.param == "shim")
    yield request.param
    torch_fast(True)


def guard(spec):
    b = Builder(1)
    b.check(Op.TENSOR, b.arg(0), spec)
    return b.build()


def replaced(t, **fields):
    names = ("type", "dtype", "device_type", "device_index", "layout", "requires_grad", "sizes",
             "strides")
    return tuple(fields.get(n, v) for n, v in zip(names, tensor_codes(t), strict=True))


def variants():
    return [
        torch.zeros(2, 3),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(2, 4),
        torch.zeros(6),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2, 3)),
        torch.zeros(2, 3).to_sparse(),
        torch.zeros(()),
        torch.zeros(0, 3),
        Sub(torch.zeros(2, 3)),
    ]


def test_a_spec_accepts_only_its_own_kind_of_tensor(reader):
    tensors, again = variants(), variants()
    programs = [guard(tensor_codes(t)) for t in tensors]
    for i, program in enumerate(programs):
        assert [program.check((t,)) for t in again] == [i == k for k in range(len(again))]


def test_what_is_not_a_tensor_fails(reader):
    program = guard(tensor_codes(torch.zeros(2)))
    for value in (None, 3, [1], torch.Size([2])):
        assert program.explain((value,)) == 1


def test_both_readers_agree_on_every_sample():
    tensors = [*samples(), *variants(), torch.zeros(1)[:0], torch.zeros(2, dtype=torch.bool).T]
    by_shim = [tensor_codes(t) for t in tensors]
    torch_fast(False)
    assert [tensor_codes(t) for t in tensors] == by_shim


def test_dtypes_have_different_codes(reader):
    codes = [tensor_codes(of_dtype(d))[1] for d in dict.fromkeys(DTYPES)]
    assert len(set(codes)) == len(codes)


def test_sizes_and_strides_are_those_of_the_tensor(reader):
    t = torch.zeros(4, 6)[::2, 1::3]
    assert tensor_codes(t)[5:] == (False, tuple(t.shape), t.stride())


def test_none_is_any(reader):
    t = torch.zeros(2, 3)
    free_size = guard(replaced(t, sizes=(None, 3)))
    assert free_size.check((torch.zeros(9, 3),)) and not free_size.check((torch.zeros(2, 4),))
    free_stride = guard(replaced(t, strides=(None, 1)))
    assert free_stride.check((torch.zeros(2, 5)[:, :3],))
    assert not free_stride.check((torch.zeros(3, 2).t(),))
    no_strides = guard(replaced(t, strides=()))
    assert no_strides.check((torch.zeros(3, 2).t(),))
    any_grad = guard(replaced(t, requires_grad=None))
    assert any_grad.check((torch.zeros(2, 3, requires_grad=True),))
    assert not any_grad.check((torch.zeros(2, 3, 1),))


def test_changes_in_place_are_seen(reader):
    m = torch.nn.Linear(3, 2)
    program = guard(tensor_codes(m.weight))
    changes = [
        lambda: m.half(),
        lambda: m.weight.requires_grad_(False),
        lambda: setattr(m.weight, "data", torch.zeros(2, 5)),
        lambda: m.to_empty(device="meta"),
        lambda: setattr(m.weight, "__class__", Sub),
    ]
    for change in changes:
        m = torch.nn.Linear(3, 2)
        assert program.check((m.weight,))
        change()
        assert not program.check((m.weight,))


def test_an_optimizer_step_changes_nothing_that_is_guarded(reader):
    m = torch.nn.Linear(3, 2)
    program = guard(tensor_codes(m.weight))
    m(torch.zeros(1, 3)).sum().backward()
    torch.optim.SGD(m.parameters(), 0.1).step()
    assert program.check((m.weight,))


def test_a_torch_function_mode_does_not_see_the_guard():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    t = torch.zeros(2)
    program = guard(tensor_codes(t))
    with Mode():
        assert program.check((t,))
    assert seen == []


def test_plain_classes_do_not_make_a_program_hold_references():
    plain, sub = torch.zeros(2), Sub(torch.zeros(2))
    for t, owning in ((plain, False), (torch.nn.Parameter(plain), False), (sub, True)):
        program = guard(tensor_codes(t))
        assert program.check((t,)) and program.owning is owning


def test_a_subclass_with_its_own_python_sizes_is_read_safely(reader):
    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, dtype=inner.dtype, dispatch_sizes_strides_policy="sizes")

        def __init__(self, inner):
            self.inner = inner

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            return {"dim": 2, "sym_size": [2, 3], "size": [2, 3], "stride": [3, 1],
                    "sym_stride": [3, 1]}[name]

    t = Wrapper(torch.zeros(2, 3))
    program = guard((Wrapper, *tensor_codes(torch.zeros(2, 3))[1:]))
    assert program.explain((t,)) in (-1, 1)


def test_agrees_with_torchs_own_guard():
    from torch._C._dynamo import guards

    tensors = variants()[:9]
    tensors = [t for t in tensors if t.layout is torch.strided]
    ours = [guard(tensor_codes(t)) for t in tensors]
    sizes = [[*t.shape] for t in tensors]
    strides = [[*t.stride()] for t in tensors]
    for t, program, size, stride in zip(tensors, ours, sizes, strides, strict=True):
        theirs = guards.TensorGuards(
            t, dynamic_dims_sizes=[size], dynamic_dims_strides=[stride])
        for other in tensors:
            assert theirs.check(other) == program.check((other,))


def test_random_tensors_agree_with_torchs_own_guard():
    from torch._C._dynamo import guards

    rng = random.Random(0)
    base = torch.zeros(4000)

    def any_tensor():
        size = [rng.choice([0, 1, 2, 3]) for _ in range(rng.randrange(4))]
        stride = [rng.choice([0, 1, 2, 6]) for _ in size]
        t = torch.as_strided(base, size, stride).to(rng.choice([torch.float32, torch.int64]))
        if t.dtype is torch.float32 and rng.random() < 0.5:
            t = t.detach().requires_grad_()
        return t

    tensors = [any_tensor() for _ in range(60)]
    agreed = 0
    for t in tensors:
        program = guard(tensor_codes(t))
        theirs = guards.TensorGuards(
            t, dynamic_dims_sizes=[[*t.shape]], dynamic_dims_strides=[[*t.stride()]])
        for other in tensors:
            assert program.check((other,)) == theirs.check(other)
            agreed += program.check((other,))
    assert agreed > len(tensors)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 3))
        self.scale = 2.0


def module_program(m):
    """What a capture of a module reads: its dicts followed, its classes and parameters checked."""
    b = Builder(1)

    def visit(x, module):
        b.check(Op.TYPE, x, type(module))
        own = b.access(Op.INSTANCE_DICT, x)
        with b.while_unchanged(own):
            parts = [b.access(Op.ITEM_DICT, own, k) for k in ("_modules", "_parameters")]
            hooks = b.access(Op.ITEM_DICT, own, "_forward_hooks")
            b.check(Op.EQ, b.access(Op.ITEM_DICT, own, "training"), module.training)
            b.check(Op.LACKS_KEY, own, "forward")
            if "scale" in vars(module):
                b.check(Op.EQ, b.access(Op.ITEM_DICT, own, "scale"), module.scale)
        b.check(Op.LEN, hooks, aux=0)
        with b.while_unchanged(parts[0]):
            b.check(Op.KEYS, parts[0], tuple(module._modules))
            children = [b.access(Op.ITEM_DICT, parts[0], k) for k in module._modules]
        with b.while_unchanged(parts[1]):
            parameters = [b.access(Op.ITEM_DICT, parts[1], k) for k in module._parameters]
        for reg, p in zip(parameters, module._parameters.values(), strict=True):
            b.check(Op.TENSOR, reg, tensor_codes(p))
            found.append(reg)
        for reg, child in zip(children, module._modules.values(), strict=True):
            visit(reg, child)

    found = []
    visit(b.arg(0), m)
    b.check(Op.ALL_DISTINCT, obj=tuple(found))
    return b.build()


class OtherLinear(torch.nn.Linear):
    pass


MODULE_CHANGES = {
    "half": lambda m: m.half(),
    "float64": lambda m: m.double(),
    "data of another shape": lambda m: setattr(m.layers[0].weight, "data", torch.zeros(4, 2)),
    "requires_grad_": lambda m: m.requires_grad_(False),
    "one requires_grad": lambda m: m.layers[1].bias.requires_grad_(False),
    "eval": lambda m: m.eval(),
    "child eval": lambda m: m.layers[1].eval(),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "forward on the instance": lambda m: setattr(m.layers[0], "forward", lambda x: x),
    "class": lambda m: setattr(m.layers[0], "__class__", OtherLinear),
    "dict": lambda m: setattr(m, "__dict__", {**m.__dict__, "scale": 3.0}),
    "hook": lambda m: m.layers[0].register_forward_hook(lambda *a: None),
    "child replaced": lambda m: m.layers.__setitem__(0, torch.nn.Linear(3, 4, bias=False)),
    "child of another kind": lambda m: m.layers.__setitem__(1, torch.nn.ReLU()),
    "child added": lambda m: m.layers.append(torch.nn.ReLU()),
    "parameter removed": lambda m: setattr(m.layers[0], "bias", None),
    "parameter with other strides": lambda m: setattr(
        m.layers[0], "weight", torch.nn.Parameter(m.layers[0].weight.t().contiguous().t())),
}


@pytest.mark.parametrize("name", MODULE_CHANGES)
def test_a_module_guard_notices(name):
    m = Net()
    program = module_program(m)
    for _ in range(3):
        assert program.explain((m,)) == -1
    assert program.known > 0
    MODULE_CHANGES[name](m)
    assert not program.check((m,))
    assert program.check((Net(),))


def test_a_module_guard_ignores_what_does_not_matter():
    m = Net()
    program = module_program(m)
    for change in (
        lambda: m.load_state_dict(Net().state_dict()),
        lambda: m.load_state_dict(Net().state_dict(), assign=True),
        lambda: setattr(m.layers[0], "weight", torch.nn.Parameter(torch.zeros(4, 3))),
        lambda: setattr(m, "note", "text"),
        lambda: m.layers.__setitem__(0, torch.nn.Linear(3, 4)),
    ):
        assert program.check((m,))
        change()
        assert program.check((m,))


def test_a_module_that_counts_its_calls_still_passes():
    m = Net()
    m.count = 0
    program = module_program(m)
    for _ in range(10):
        m.count += 1
        assert program.check((m,))
    assert program.demoted == 1
    m.scale = 3.0
    assert not program.check((m,))


def test_without_a_library_the_attributes_are_read():
    assert torch_init(TensorBase, "/nonexistent/libtorch_cpu.so", samples()) is False
    assert torch_fast(True) is False
    t = torch.zeros(2, 3)
    program = guard(tensor_codes(t))
    assert program.check((t,)) and not program.check((t.double(),)) and program.owning


def test_a_sample_that_is_no_tensor_turns_the_shim_off():
    assert torch_init(TensorBase, LIBTORCH, [torch.zeros(2), 3]) is False
    assert torch_init(TensorBase, LIBTORCH, []) is False


def test_malformed_specs_are_refused():
    t = torch.zeros(2)
    for spec, error in (
        ((1, 2), TypeError),
        (replaced(t, type=int), TypeError),
        (replaced(t, requires_grad=1), TypeError),
        (replaced(t, strides=(1, 2)), ValueError),
        (replaced(t, sizes=("a",)), TypeError),
    ):
        with pytest.raises(error):
            guard(spec)
    with pytest.raises(TypeError):
        tensor_codes(3)


def inference(*shape):
    with torch.inference_mode():
        return torch.zeros(*shape)


@pytest.mark.parametrize("wanted", [True, False])
def test_inference_tensors_are_told_apart(reader, wanted):
    assert torch_init(TensorBase, LIBTORCH, [*samples(), inference(1)])
    assert torch_fast(reader == "shim") is torch_inference() is (reader == "shim")
    t, other = (inference(2), torch.zeros(2)) if wanted else (torch.zeros(2), inference(2))
    program = guard((*tensor_codes(t), wanted))
    for _ in range(4):
        assert program.check((t,))
        assert not program.check((other,))
    assert program.owning is (reader == "attributes")
    assert guard((*tensor_codes(t), None)).check((other,))


def test_without_an_inference_tensor_among_the_samples_python_is_asked():
    assert torch_init(TensorBase, LIBTORCH, samples())
    assert not torch_inference()
    program = guard((*tensor_codes(torch.zeros(2)), True))
    assert program.check((inference(2),)) and not program.check((torch.zeros(2),))
    assert program.owning


def same_values(count, size):
    b = Builder(count)
    b.check(Op.SAME_VALUES, obj=tuple(b.arg(i) for i in range(count)), aux=size)
    return b.build()


def test_values_are_the_same_bit_for_bit(reader):
    program = same_values(3, 4)
    one, other, third = (torch.tensor(5.0) for _ in range(3))
    assert program.check((one, other, third))
    for value in (6.0, -5.0):
        third.fill_(value)
        assert not program.check((one, other, third))
    for x in (one, other, third):
        x.fill_(0.0)
    assert program.check((one, other, third))
    other.neg_()  # -0.0 is another number to what divides by it
    assert not program.check((one, other, third))


def test_values_that_change_in_place_are_seen_by_settled_programs(reader):
    program = same_values(2, 8)
    pair = torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    for _ in range(20):
        assert program.check(pair)
        pair[0].add_(1)
        assert not program.check(pair)
        pair[1].add_(1)


def test_values_need_a_number_of_bytes():
    with pytest.raises(ValueError, match="number of bytes"):
        same_values(2, 0)
