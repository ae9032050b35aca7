"""torch.func and torch.vmap: a transform is one node, which holds the graph of its function."""

import torch
from gradient_twin import check
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

import torchweld

X = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.linspace(0, 2, 12).reshape(3, 4)
NEEDS_GRAD = W.clone().requires_grad_()
doubled_rows = vmap(lambda row: row * 2 + row.shape[0])


def cube(x):
    return (x**3).sum()


def test_vmap_of_functions_that_use_other_tensors():
    check(lambda x, w: vmap(lambda row: w @ row)(x) + 1, X, W)
    check(lambda x, w: vmap(lambda row: w @ row)(x) + 1, X, NEEDS_GRAD)


def test_vmap_along_other_dimensions():
    check(lambda x, w: vmap(torch.dot, in_dims=(1, 1))(x, w), X, W)
    check(lambda x, w: vmap(lambda a, b: (a * b, a + b), in_dims=(1, None), out_dims=(0, 1))(x, w),
          X, W[:, 0])  # fmt: skip


def test_vmap_of_nested_arguments_along_their_dimensions():
    def rows(d, w):
        along = {"a": 0, "b": (None, 1)}
        return vmap(lambda d, y: d["a"] * y + d["b"][0] + d["b"][1], in_dims=(along, -1),
                    out_dims=-1)(d, w)  # fmt: skip

    check(rows, {"a": X, "b": (W[0], W.T)}, W.T)


def test_vmap_inside_of_vmap():
    check(lambda x: vmap(vmap(lambda a: a * 2 + 1))(x), X)


def test_vmap_of_a_dict_and_of_a_keyword():
    check(lambda x: vmap(lambda d: {"y": d["a"] * 2, "n": d["a"].sum()})({"a": x}), X)
    check(lambda x, w: vmap(lambda a, b=None: a * b)(x, b=w), X, W)


def test_a_function_that_vmap_has_made_before():
    check(lambda x: doubled_rows(x) + 1, X)


def test_random_numbers_in_vmap():
    torchweld.reset()
    f = torchweld.compile(
        lambda x: vmap(lambda a: a + torch.rand(4), randomness="different")(x), fullgraph=True
    )
    assert (f(X) - X).unique().numel() == X.numel()


def test_dropout_in_vmap():
    check(lambda x: vmap(lambda a: nn.functional.dropout(a), randomness="different")(x), X)
    check(lambda x: vmap(lambda a: nn.functional.dropout(a), randomness="same")(x), X)


def test_vmap_writes_to_its_argument():
    check(lambda x: (vmap(lambda a: a.add_(1))(x), x * 2), X)


def test_a_mask_made_by_nested_vmaps():
    def masked(x):
        places = torch.arange(4)
        fn = lambda b, h, q, k: k <= q
        for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0,) * 1
                     + (None,) * 3):  # fmt: skip
            fn = torch.vmap(fn, in_dims=dims, out_dims=0)
        return x + fn(torch.arange(2), torch.arange(1), places, places)[0, 0, :3].float()

    check(masked, X)


def test_gradients_of_functions():
    check(lambda x: grad(cube)(x), X)
    check(lambda x, w: grad(lambda a: (a * w).sin().sum())(x) * 2, X, NEEDS_GRAD)
    check(lambda x: grad_and_value(cube)(x), X)
    check(lambda x: grad(lambda a: (cube(a), a * 2), has_aux=True)(x), X)
    check(lambda x, w: grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, w), X, W)
    check(lambda x, w: grad(lambda p: (p["a"] * p["b"]).sum())({"a": x, "b": w}), X, W)


def test_a_gradient_of_a_gradient():
    check(lambda x: grad(lambda a: grad(cube)(a).sin().sum())(x), X)


def test_gradients_per_sample():
    model = nn.Linear(4, 2)

    def per_sample(x):
        params = {k: v.detach() for k, v in model.named_parameters()}
        return vmap(grad(lambda p, s: functional_call(model, p, (s[None],)).sum()),
                    in_dims=(None, 0))(params, x)  # fmt: skip

    check(per_sample, X)


def test_an_ensemble_of_modules():
    models = [nn.Linear(4, 2) for _ in range(3)]
    params, buffers = stack_module_state(models)

    def ensemble(x):
        return vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)),
                    in_dims=(0, 0, None))(params, buffers, x)  # fmt: skip

    check(ensemble, X)


def test_vector_products():
    def pulled(x):
        out, back = vjp(torch.sin, x)
        return out, back(torch.ones_like(out)), back(out)

    check(pulled, X)
    check(lambda x: vjp(lambda a: (a.sin(), a * 2), x, has_aux=True)[2], X)
    check(lambda x, w: jvp(torch.sin, (x,), (w,)), X, W)


def test_in_chunks():
    check(lambda x, w: vmap(lambda a, b: (a * b.sum(), a @ w[0]), in_dims=(0, 1), chunk_size=2)(
        x, w.T), X, W)  # fmt: skip
    check(lambda x: vmap(lambda a: a.sin(), chunk_size=1)(x), NEEDS_GRAD)
    check(lambda v: jacrev(torch.sin, chunk_size=2)(v), X[0])


def test_a_function_with_effects_is_not_called_in_chunks():
    seen = []

    def noted(a):
        seen.append(1)
        return a * 2

    check(lambda x: vmap(noted, chunk_size=2)(x) + 1, X, graphs=1, breaks=1)
    seen.clear()
    torchweld.compile(lambda x: vmap(noted, chunk_size=2)(x))(X)
    assert len(seen) == 2


def test_a_linear_function():
    def pushed(x, w):
        out, push = linearize(lambda a, b: (a.sin() * b, b * 2), x, w)
        return out, push(x, w), push(w, x)[0]

    check(pushed, X, W)
    check(lambda x, w: linearize(lambda d: {"y": d["a"] ** 3}, {"a": x})[1]({"a": w}), X, W)


def test_jacobians_and_a_hessian():
    row = X[0]
    check(lambda v: jacrev(torch.sin)(v), row)
    check(lambda v: jacfwd(torch.sin)(v), row)
    check(lambda v: hessian(cube)(v), row)


def test_tangents_that_are_known_to_be_zero():
    def second(x, w):
        with torch.no_grad():
            return hessian(lambda a: (a @ w).sin().sum())(x)

    check(second, X[0], W[0])


def test_transforms_in_other_modes():
    def mixed(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            low = vmap(lambda row: w @ row)(x)
        with torch.inference_mode():
            slope = grad(lambda a: (a @ w.T).sum())(x)
        return low, slope + 1

    def written_out(x, w):
        return (w.bfloat16() @ x.bfloat16().T).T, w.sum(0).expand(x.shape) + 1

    check(mixed, X, W, like={"torchweld": written_out})


def test_a_transform_around_a_break():
    def broken(x):
        doubled = vmap(lambda row: row * 2)
        y = (x + 1).sin() - x
        torchweld.graph_break()
        return doubled(y).cos() + y - 1

    check(broken, X, graphs=2, breaks=1)


def test_a_transform_is_compiled():
    torchweld.reset()
    torchweld.compile(lambda x: vmap(grad(cube))(x).sin() + 1)(X)
    counts = torchweld.statistics()
    assert counts["aten_graphs"] == 0
    assert counts["kernels"] > 0


def test_what_the_function_does_besides_happens_once():
    seen = []

    def noted(x):
        seen.append(vmap(lambda row: (seen.append(row.shape), row.sum())[1])(x).shape)
        return x + 1

    torchweld.reset()
    compiled = torchweld.compile(noted, fullgraph=True)
    compiled(X)
    assert seen == [torch.Size([4]), torch.Size([3])]


def test_an_error_of_the_function_is_the_callers():
    def failing(x):
        try:
            vmap(lambda row: [1, 2][row.shape[0]])(x)
        except IndexError:
            return vmap(lambda row: row * 2)(x)

    check(failing, X)


def test_a_tensor_that_leaves_the_transform_is_left_to_eager():
    def leaking(x):
        kept = []
        out = vmap(lambda row: (kept.append(row.shape), row * 2)[1])(x)
        inside = []
        vmap(lambda row: (inside.append(row * 2), row)[1])(x)
        return out, len(inside), kept

    check(leaking, X)

    def used(x):
        inside = []
        grad(lambda a: (inside.append(a * 2), a.sum())[1])(x)
        return inside[0] + x

    torchweld.reset()
    got = torchweld.compile(used, backend="eager")(X)
    torch.testing.assert_close(got, used(X))


def test_values_are_left_to_eager_as_one_step():
    check(lambda x: vmap(lambda row: row.sum().item())(x), X, graphs=0, breaks=1)
