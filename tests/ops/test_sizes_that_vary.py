"""Operators of many kinds at five shapes each, with gradients: two compilations, equal to eager."""

import pytest
import torch
import torch.nn.functional as F

import torchweld

SHAPES = (5, 8, 4, 11, 7)
SMALL = (5, 8, 1, 0, 6)  # sizes 0 and 1 have compilations of their own
FILTERS = {n: torch.linspace(-1, 1, 4 * 3 * 3**n).reshape(4, 3, *(3,) * n) for n in (1, 2, 3)}
BACK = {n: torch.linspace(-1, 1, 3 * 4 * 3**n).reshape(3, 4, *(3,) * n) for n in (1, 2, 3)}


def needs_grad(*shape):
    return torch.randn(*shape, requires_grad=True)


def rows(n):
    return (needs_grad(n, 4),)


def two(n):
    return (needs_grad(n, 4), needs_grad(n + 1, 4))


def middle(n):
    return (needs_grad(3, n, 4),)


def odd(n):
    return (needs_grad(2, n + 2, 2 * n + 3),)


def sequence(n):
    return (needs_grad(2, 3, n + 6),)


def image(n):
    return (needs_grad(2, 3, n + 4, n + 6),)


def volume(n):
    return (needs_grad(1, 3, n + 3, n + 4, n + 5),)


def heads(n):
    return tuple(needs_grad(2, 2, n, 8) for _ in "qkv")


def convolutions(n):
    conv = getattr(F, f"conv{n}d")
    back = getattr(F, f"conv_transpose{n}d")
    return lambda x: (
        conv(x, FILTERS[n], padding=1), conv(x, FILTERS[n], stride=2, padding=1),
        conv(x, FILTERS[n], padding="same", dilation=2), back(x, BACK[n], stride=2, padding=1),
    )  # fmt: skip


def pools(n):
    largest, mean = (getattr(F, f"{kind}_pool{n}d") for kind in ("max", "avg"))
    return lambda x: (largest(x, 2), largest(x, 3, 2, 1, ceil_mode=True), mean(x, 2),
                      mean(x, 3, 2, 1), mean(x, 3, 2, 1, count_include_pad=False),
                      mean(x, 3, 2, 1, ceil_mode=True))  # fmt: skip


def adaptive(n):
    mean, largest = (getattr(F, f"adaptive_{kind}_pool{n}d") for kind in ("avg", "max"))
    return lambda x: (mean(x, 3), mean(x, 1), largest(x, 2))


def resized(mode, aligned=False):
    def fn(x):
        sizes = x.shape[2:]
        wide = F.interpolate(x, size=tuple(n + 3 for n in sizes), mode=mode)
        if aligned:
            target = tuple(2 * n for n in sizes)
            return wide, F.interpolate(x, size=target, mode=mode, align_corners=True)
        return wide, F.interpolate(x, size=(6,) * len(sizes), mode=mode)

    return fn


def scaled(mode):
    return lambda x: (
        F.interpolate(x, scale_factor=2.0, mode=mode),
        F.interpolate(x, scale_factor=1.5, mode=mode),
        F.interpolate(x, scale_factor=0.5, mode=mode, recompute_scale_factor=True),
    )


def windows(x):
    parts = F.unfold(x, 3, padding=1)
    matrix = torch.tensor([[1.0, 0.1, 0.0], [0.0, 1.0, 0.2]]).expand(2, 2, 3)
    grid = F.affine_grid(matrix, x.shape, align_corners=False)
    return (parts, F.fold(parts, x.shape[2:], 3, padding=1), F.grid_sample(x, grid),
            F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2))  # fmt: skip


def grids_of_volumes(x):
    matrix = torch.linspace(-1, 1, 12).view(1, 3, 4)
    return [F.affine_grid(matrix, x.shape, align_corners=a).sum(-1) + x for a in (False, True)]


def attention(q, k, v):
    n = q.shape[2]
    below = torch.ones(n, n, dtype=torch.bool).tril()
    ramp = torch.arange(n, dtype=q.dtype)
    attend = F.scaled_dot_product_attention
    return (attend(q, k, v), attend(q, k, v, is_causal=True), attend(q, k, v, attn_mask=below),
            attend(q, k, v, attn_mask=ramp - ramp[:, None]),
            attend(q[:, :, :2], k, v))  # fmt: skip


def joined(x, y):
    return (torch.cat([x, y * 2, x]), torch.stack([x, x * 2], 1), torch.cat([x, x.sin()], 1),
            F.pad(x, (1, 2, 0, 3)), x[:, None].expand(-1, 3, -1) * 2, x.repeat(2, 3),
            y.repeat_interleave(2, 0), y.tile((2, 1)), torch.kron(x, torch.ones(2, 1)))  # fmt: skip


def divided(x):
    half = x.shape[1] // 2
    parts = (*x.split([half, x.shape[1] - half], 1), *torch.tensor_split(x, 3, 1),
             *x.chunk(2, -1))  # fmt: skip
    return (*(p * 2 for p in parts), x.unfold(1, 2, 1) * 2, x.unfold(2, 3, 2).sum(-1),
            x.narrow(1, 1, x.shape[1] - 2) * 2, x[:, 1:-1, ::2] * 2, x[:, -1] * 2,
            x.diff(dim=1))  # fmt: skip


def moved(x):
    return (x.roll(1, 0), x.roll((1, -2), (0, 1)), x.roll(x.shape[0] // 2, 0), x.flip(0),
            x.rot90(1, (0, 1)) * 2, x.t().reshape(-1), x.view(x.shape[0] * 2, 2) + 1)  # fmt: skip


def made(x):
    n = x.shape[0]
    i = torch.arange(n)
    return (x * i[:, None], x * torch.linspace(0, 1, n)[:, None], torch.eye(n) @ x,
            torch.full((n, 4), 2.0) * x, x.new_zeros(n + 1, 4)[1:] + x, (x @ x.t()).tril(-1),
            (x @ x.t()).triu(1), F.one_hot(i % 4, 4) * x, torch.diag_embed(x),
            torch.meshgrid(i, torch.arange(4), indexing="ij")[0] * x)  # fmt: skip


def reduced(x):
    return (x.mean(0), x.sum(1), x.var(1), x.std(0, unbiased=False), x.norm(dim=1), x.amax(1),
            x.logsumexp(1), x.softmax(0), x.log_softmax(-1), x.cumsum(0), x.prod(1),
            x * x.argmax(1)[:, None])  # fmt: skip


def normalized(x):
    return (F.layer_norm(x, x.shape[2:]), F.group_norm(x, 3), F.instance_norm(x),
            F.batch_norm(x, None, None, training=True))  # fmt: skip


def chosen(x):
    n = x.shape[0]
    i = torch.arange(n)
    threes = (i % 3)[:, None].expand(-1, 4)
    return (x[i.flip(0)], x.gather(1, torch.zeros(n, 2, dtype=torch.long)),
            torch.zeros(n, 6).scatter(1, torch.arange(4).expand(n, 4), x),
            torch.zeros(3, 4).scatter_add(0, threes, x), torch.zeros(3, 4).index_add(0, i % 3, x),
            torch.zeros(n, 4).index_put((i,), x), x.masked_fill(x > 0, 0.0),
            torch.where(x > 0, x, x * 0.1), F.embedding(i % 3, torch.ones(3, 4)) * x)  # fmt: skip


def ordered(x):
    return (x.sort(0)[0], x.topk(2, -1)[0], x.gather(0, x.argsort(0)), x.cummax(0)[0],
            torch.searchsorted(torch.arange(4.0), x.detach()) * x)  # fmt: skip


def arranged(x):
    gram, column = x @ x.t(), x[:, 0].detach()
    along = torch.take_along_dim
    return (along(x, x.argsort(0), 0), along(x, x.sum(1, keepdim=True).argsort(0), -2),
            along(x, x.flatten().argsort()), torch.linalg.multi_dot([x.t(), x, x[:4, :4]]),
            torch.vander(column, 3), torch.vander(column, N=3, increasing=True),
            gram.fill_diagonal_(0.5))  # fmt: skip


def losses(x):
    target = torch.arange(x.shape[0]) % 4
    other = x.detach() * 2
    return (F.cross_entropy(x, target), F.mse_loss(x, other), F.smooth_l1_loss(x, other),
            F.kl_div(x.log_softmax(-1), other.softmax(-1), reduction="batchmean"))  # fmt: skip


PROGRAMS = {
    "convolutions in one dimension": (convolutions(1), sequence),
    "convolutions in two dimensions": (convolutions(2), image),
    "convolutions in three dimensions": (convolutions(3), volume),
    "pools in one dimension": (pools(1), sequence),
    "pools in two dimensions": (pools(2), image),
    "pools in three dimensions": (pools(3), volume),
    "adaptive pools in one dimension": (adaptive(1), sequence),
    "adaptive pools in two dimensions": (adaptive(2), image),
    "adaptive pools in three dimensions": (adaptive(3), volume),
    "nearest": (resized("nearest"), image),
    "nearest by factors": (scaled("nearest"), sequence),
    "nearest-exact": (resized("nearest-exact"), sequence),
    "nearest-exact by factors": (scaled("nearest-exact"), image),
    "area": (resized("area"), image),
    "area by factors": (scaled("area"), sequence),
    "linear": (resized("linear", True), sequence),
    "linear by factors": (scaled("linear"), sequence),
    "bilinear": (resized("bilinear", True), image),
    "bilinear by factors": (scaled("bilinear"), image),
    "bicubic": (resized("bicubic", True), image),
    "bicubic by factors": (scaled("bicubic"), image),
    "trilinear": (lambda x: (F.interpolate(x, scale_factor=2.0, mode="trilinear"),), volume),
    "windows": (windows, image),
    "grids of volumes": (grids_of_volumes, volume),
    "attention": (attention, heads),
    "joined": (joined, two),
    "divided": (divided, odd),
    "moved": (moved, rows),
    "made": (made, rows),
    "reduced": (reduced, rows),
    "normalized": (normalized, image),
    "chosen": (chosen, rows),
    "ordered": (ordered, rows),
    "arranged": (arranged, rows),
    "losses": (losses, rows),
}  # fmt: skip


def gradients(outs, args):
    total = sum((t * torch.cos(torch.arange(t.numel(), dtype=t.dtype).view(t.shape))).sum()
                for t in outs if t.requires_grad)  # fmt: skip
    return torch.autograd.grad(total, args)


def compare(fn, make, sizes):
    """How often `fn` is compiled for these sizes; its results are eager's."""
    torchweld.reset()
    torch.manual_seed(0)
    compiled = torchweld.compile(fn, fullgraph=True)
    for n in sizes:
        args = make(n)
        got, expected = compiled(*args), fn(*args)
        pairs = [*zip(got, expected, strict=True)]
        pairs += zip(gradients(got, args), gradients(expected, args), strict=True)
        for a, b in pairs:
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4, equal_nan=True)
    counts = torchweld.statistics()
    assert counts["internal_errors"] == 0
    assert counts["aten_graphs"] == 0 or 0 in sizes  # a mean of nothing
    return counts["captures"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_five_shapes_are_two_compilations(name):
    assert compare(*PROGRAMS[name], SHAPES) <= 2


@pytest.mark.parametrize("name", ["joined", "made", "reduced", "chosen", "losses", "moved"])
def test_sizes_0_and_1_are_right_too(name):
    fn, make = PROGRAMS[name]
    assert compare(fn, make, SMALL) <= 4




def test_bytes_are_resampled_by_the_kernel():
    """torch's composition rounds once, eager's kernel in each direction."""

    def program(x):
        return (F.interpolate(x, (5, 4), mode="bilinear"),
                F.interpolate(x, scale_factor=1.7, mode="bilinear"))  # fmt: skip

    torchweld.reset()
    compiled = torchweld.compile(program)
    for n in (9, 11, 14, 20):
        x = (torch.rand(2, 3, n, 8) * 255).to(torch.uint8)
        assert all(map(torch.equal, compiled(x), program(x)))
    counts = torchweld.statistics()
    assert (counts["graphs"], counts["breaks"]) == (2, 0)
