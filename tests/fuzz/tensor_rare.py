"""What random tensor programs rarely do, in the form of tensor_lines (for what `--rare` makes).

Operators of torch.special, torch.linalg, torch.fft; odd indices; segments; numbers that overflow;
losses with all their arguments; empty, expanded and resized tensors.
"""

from __future__ import annotations

POINTWISE = (
    "torch.special.i0e({x})", "torch.special.i1({x})", "torch.special.ndtr({x})",
    "torch.special.erfcx({x}.abs())", "torch.special.log_ndtr({x})", "torch.special.xlogy({x}, 2)",
    "torch.special.xlog1py({x}, {y}.abs())", "torch.special.bessel_j0({x})", "torch.digamma({x})",
    "torch.special.logit({x}.sigmoid(), eps=0.1)", "torch.special.multigammaln({x}.abs() + 3, 2)",
    "torch.special.zeta({x}.abs() + 2, 1.5)", "torch.polygamma(1, {x}.abs() + 1)",
    "torch.special.expit({x} * {n})", "torch.lgamma({x}.abs() + 1)", "torch.igamma({x}.abs() + 1, "
    "{y}.abs() + 1)", "torch.special.spherical_bessel_j0({x})", "torch.i0({x})",
    "{x} + torch.tensor({s})", "{x} * torch.tensor(2)", "{x} / torch.tensor(3, dtype=torch.int8)",
    "torch.tensor(1.5) - {x}", "torch.where({x} > 0, {s}, {x})", "torch.where({x} > 0, 1, 0)",
    "torch.where({x} > 0, 2.0, {n})", "torch.where(torch.tensor(True), {x}, {y})",
    "{x} + True", "{x}.bool() + {n}", "{x}.bool() * {s}", "{x}.to(torch.uint8) + {n}",
    "{x}.to(torch.int8) * {y}.to(torch.uint8)", "{x}.to(torch.int16) + 1.5", "{x} ** -1",
    "{x} ** 0.5", "{s} ** {x}", "{x}.abs() ** {y}", "{x} * (1 - 2j)", "torch.polar({x}.abs(), {y})",
    "torch.complex({x}, {y}) / (2 + 1j)", "torch.complex({x}, {y}).exp()", "torch.angle({x})",
    "torch.complex({x}, {y}).sigmoid()", "torch.complex({x}, {y}).tanh().abs()",
    "torch.complex({x}, {y}) ** 2", "torch.complex({x}, {y}).conj() * 1j", "torch.sgn({x} + 1j)",
    "torch.complex({x}, {y}).sqrt()", "({x} + 2j).log().real", "({x} + 1j).reciprocal().imag",
    "{x}.half().mul(3).sub(1).float()", "{x}.bfloat16().add({y}.bfloat16()).mul(0.3)",
    "{x}.half() * {y}.bfloat16()", "{x}.half() + {y}.double()", "{x}.bfloat16().float() + {y}",
    "torch.float_power({x}.abs() + 1, {y})", "torch.true_divide({x}, {n})", "F.tanhshrink({x})",
    "torch.clamp({x}, {y}, {y} + 1)", "torch.clamp({x}, max=torch.tensor({s}))", "F.relu6({x} * 4)",
    "torch.clamp({x}, 1, -1)", "torch.fmax({x}, {y})", "torch.fmin({x}, torch.tensor({s}))",
    "torch.nextafter({x}, {y})", "torch.nan_to_num({x} / 0, nan=1.0, posinf=2.0, neginf=-2.0)",
    "torch.nan_to_num(({x} - {x}) / ({y} - {y}))", "({x} / 0).clamp(-2, 2)",
    "({x} * float('inf')).tanh()", "torch.sigmoid(-{x} / 0.0).nan_to_num()", "torch.atanh({x} * 2)"
    ".nan_to_num()", "torch.log({x}).nan_to_num(0.5, 1.0, -1.0)", "F.softplus({x} * 30, 2, 10)",
)  # fmt: skip
EXACT = (
    "{x}.to(torch.uint8) - 7", "-{x}.to(torch.uint8)", "{x}.to(torch.int8) * 100",
    "{x}.to(torch.int16) * 30000", "{x}.int() * 2147483647", "{x}.long() << 62", "{x}.int() << 31",
    "{x}.to(torch.int8) << 7", "{x}.long() >> 63", "{x}.to(torch.int8) >> 9", "{x}.long() // -2",
    "{x}.long() % -3", "torch.fmod({x}.long(), -3)", "torch.div({x}, -2, rounding_mode='trunc')",
    "torch.div({x}.long(), {y}.long().abs() + 1, rounding_mode='floor')", "{x}.long().abs().neg()",
    "torch.div({x}.int(), -3, rounding_mode='trunc')", "({x} % 0).isnan()", "{x} // -0.7",
    "torch.remainder({x}, -1.5)", "torch.remainder(-{x}, {y}.abs() + 1)", "torch.remainder(7, {x})",
    "torch.gcd({x}.long(), {y}.long())", "torch.lcm({x}.int(), {y}.int())", "~{x}.to(torch.uint8)",
    "({x}.long() * 3).bitwise_not()", "{x}.bool() ^ {y}.bool()", "{x}.to(torch.uint8) & 6",
    "{x}.bool() | True", "{x}.long().pow(2)", "{x}.int() ** {n}", "2 ** {x}.long().abs()",
    "(-2) ** {x}.long().abs()", "{x}.bool().cumsum({e})", "{x}.to(torch.int8).cumprod({e})",
    "{x}.to(torch.uint8).sum({e})", "{x}.to(torch.uint8).sum({e}, dtype=torch.uint8)",
    "{x}.to(torch.int16).prod({e})", "{x}.bool().prod({e})", "{x}.int().cummin({e})[1]",
    "{x}.round().cummax({e})[1]", "{x}.round().topk(2, {e}, largest=False)[0]",
    "{x}.round().kthvalue(2, {e})[0]", "{x}.round().median()", "{x}.round().mode({e})[0]",
    "torch.sort({x}.round(), {e}, stable=True)[1]", "{x}.round().argmax({e})",
    "{x}.round().unique(return_counts=True)[1]", "{x}.round().unique_consecutive()",
    "{x}.round().unique(return_inverse=True, dim=0)[1]", "{x}.round().aminmax(dim={e})[1]",
    "({x} / 0).isposinf()", "({x} / ({y} * 0)).isnan()", "({x} / 0).argmax({e})",
    "({x} / 0).amax({e}).isinf()", "({x} * float('nan')).argmin({e})", "{x}.isfinite().all({e})",
    "({x} / 0) == ({y} / 0)", "torch.maximum({x} / 0, {y} * float('nan')).isnan()",
    "torch.equal({x}, {y}) + {x}", "torch.isin({x}.long(), i)", "{x}.round(decimals=1)",
    "torch.searchsorted({x}.sort(-1)[0].detach(), {x}, right=True)", "{x}.to(torch.complex64)",
    "torch.bucketize({x}, torch.tensor([-1.0, 0, 1]), right=True)", "{x}.histc(4, -2, 2)",
    "torch.combinations(d, 2)", "torch.bincount(i, minlength=5)", "torch.signbit(-{x} * 0)",
    "torch.logical_xor({x}, {y} > 0)", "torch.ge({x}, torch.tensor(0))", "{x}.bool().any((0, 1))",
    "torch.promote_types({x}.dtype, {y}.dtype) == {x}.dtype",
)  # fmt: skip
REDUCTIONS = (
    "{x}.quantile(0.3, {e})", "torch.quantile({x}, torch.tensor([0.2, 0.7]), {e})",
    "{x}.quantile(0.5, interpolation='nearest')", "torch.nanquantile({x}, 0.4, {e}, keepdim=True)",
    "{x}.nanmedian()", "torch.nanmean({x} / {x}, {e})", "{x}.var({e}, correction=0)",
    "torch.std_mean({x}, {e}, unbiased=False)[0]", "{x}.var((0, 1), keepdim=True)", "{x}.cov()",
    "torch.corrcoef({x})", "{x}.logsumexp((0, 1))", "{x}.amax((0, -1))", "{x}.sum(())",
    "torch.cumulative_trapezoid({x}, dim={e})", "torch.linalg.norm({x}, ord='nuc')",
    "torch.linalg.norm({x}, ord='fro', dim=(0, 1))", "torch.linalg.matrix_norm({x}, 1)",
    "torch.linalg.vector_norm({x}, float('inf'), {e})", "torch.linalg.vector_norm({x}, 0)",
    "torch.linalg.vector_norm({x}, 3, (0, 1))", "{x}.norm(p=0.5)", "{x}.renorm(1, 0, 0.7)",
    "torch.segment_reduce({x}, 'sum', lengths=torch.tensor([{x}.shape[0] - 1, 1]))",
    "{x}.scatter_reduce(-1, (i % {x}.shape[-1])[:, None], {y}, 'amax', include_self=False)",
    "torch.index_reduce({x}, 0, i, {y}, 'prod')", "torch.index_reduce({x}, 0, i, {y}, 'amax', "
    "include_self=False)", "{x}.index_add(0, i, {y}).cumsum(0)", "torch.trace({x}) * {y}",
    "F.cross_entropy({x}, i % {x}.shape[1], reduction='none', ignore_index=1)",
    "F.cross_entropy({x}, i % {x}.shape[1], reduction='sum', label_smoothing=0.2)",
    "F.cross_entropy({x}, i % {x}.shape[1], weight=d.detach().abs())",
    "F.cross_entropy({x}, {y}.softmax(-1), reduction='sum')",
    "F.nll_loss({x}.log_softmax(1), i % {x}.shape[1], ignore_index=0, reduction='sum')",
    "F.nll_loss({x}.log_softmax(1), i % {x}.shape[1], d.detach().abs(), reduction='none')",
    "F.huber_loss({x}, {y}, reduction='sum', delta=0.7)", "F.mse_loss({x}, {y}, reduction='none')",
    "F.smooth_l1_loss({x}, {y}, beta=0.0)", "F.soft_margin_loss({x}, {y}.sign())",
    "F.multilabel_soft_margin_loss({x}, ({y} > 0).float(), reduction='none')",
    "F.multi_margin_loss({x}, i % {x}.shape[1], reduction='sum')", "F.logsigmoid({x}).sum({e})",
    "F.margin_ranking_loss({x}, {y}, {x}.sign(), margin=0.3)", "F.gaussian_nll_loss({x}, {y}, "
    "{x}.abs() + 1)", "F.poisson_nll_loss({x}, {y}.abs(), reduction='none')",
    "F.poisson_nll_loss({x}, {y}.abs() + 2, full=True)", "F.hinge_embedding_loss({x}, {y}.sign())",
    "F.triplet_margin_loss({x}, {y}, {x} + 1, p=1)", "F.cosine_embedding_loss({x}, {y}, i.sign())",
    "F.kl_div({x}.log_softmax(-1), {y}.log_softmax(-1), log_target=True, reduction='batchmean')",
    "F.binary_cross_entropy({x}.sigmoid(), {y}.sigmoid(), {x}.detach().abs(), reduction='sum')",
    "F.binary_cross_entropy_with_logits({x}, {y}.sigmoid(), pos_weight=d.detach().abs(), "
    "reduction='none')", "F.pairwise_distance({x}, {y}, p=1, keepdim=True)", "F.pdist({x})",
    "F.ctc_loss({x}[:, None].log_softmax(-1), torch.tensor([[1]]), ({x}.shape[0],), (1,))",
    "F.normalize({x}, 1.0, {e}, 1e-3)", "F.layer_norm({x}, {x}.shape, eps=0.1)",
)  # fmt: skip
VIEWS = (
    "{x}[..., None, 0]", "{x}[None, :, None]", "{x}[:, None, 0:1]", "{x}[-2:, ...]", "{x}[3:1]",
    "{x}[:, :0]", "{x}[{n}:{n}]", "{x}.expand(0, *{x}.shape)", "{x}[:1].expand({m}, -1)",
    "{x}[:, :1].expand_as({x})", "{x}.unfold(0, 2, 2)", "{x}.unfold(-1, 3, 1).mT", "{x}.squeeze(1)",
    "{x}.as_strided((3, 2), (1, 1))", "{x}.as_strided((2,), (0,), 1)", "{x}.T.reshape({x}.shape)",
    "{x}.diagonal(1)", "{x}.diagonal(-1, 0, -1)", "{x}[1:].T[:, ::2]", "{x}.detach().T",
    "{x}.data", "{x}.data[0]", "{x}.view(torch.int32)", "{x}.view(torch.uint8)", "{x}.view(-1)[3:]",
    "torch.view_as_complex({x}[..., :2].contiguous())", "torch.view_as_real({x} + 0j)[..., 1]",
    "({x} + 1j).conj()[1:].imag", "({x} + 1j).mH", "{x}.split_with_sizes([1, {x}.shape[1] - 1], 1)"
    "[0]", "{x}.unsafe_chunk(2)[0]", "{x}.flatten(0, 1).unflatten(0, (1, -1))", "{x}[torch.tensor("
    "[], dtype=torch.long)]", "torch.broadcast_tensors({x}, {y})[0]", "{x}.unbind()[0][None]",
    "torch.broadcast_to({x}, (2, *{x}.shape))[1]", "{x}.swapdims(0, 1).contiguous()",
    "{x}.repeat_interleave(0, 0)", "{x}.new_empty(0, 3).sum(0)", "{x}.narrow(1, 0, 0).sum(1)",
)  # fmt: skip
PICKED = (
    "{x}[i, None]", "{x}[:, None, i % {x}.shape[1]]", "{x}[i, ..., None]", "{x}[None, i, :1]",
    "{x}[i, :, None]", "{x}[..., i % {x}.shape[-1], None]", "{x}[i][:, i % 2]", "{x}[True]",
    "{x}[False]", "{x}[i, True]", "{x}[torch.tensor(0)]", "{x}[torch.tensor(0), ...]",
    "{x}[i[:1], 0:2]", "{x}[0, i % {x}.shape[1]]", "{x}[i > 0, 0]", "{x}[i > 0, ..., :1]",
    "{x}[:, ({x} > 0)[0]]", "{x}[({x} > 0).any(1)]", "{x}[None, {x} > 0]", "{x}[i - {x}.shape[0]]",
    "{x}[[[0, 1], [1, 0]]]", "{x}[[0, 1], [1, 0]]", "{x}[:, [True] + [False] * ({x}.shape[1] - 1)]",
    "{x}[i.to(torch.int32)]", "{x}[(i % 2).bool()]", "{x}[i[:, None], i % {x}.shape[1]]",
    "{x}[::2, i % {x}.shape[1]]", "{x}[i[None], :, None]", "{x}[slice(None, None, 3), None, ...]",
    "{x}.take(i)", "{x}.index_select(-1, i % {x}.shape[-1])", "{x}.gather(0, i[None] % 2)",
    "{x}.scatter_add(0, i[:, None], {y}[:, :1])", "{x}.scatter(0, i[:1, None], 2.0)",
    "{x}.scatter(1, (i % {x}.shape[1])[:, None], {y}, reduce='add')", "{x}.put(i, {y}.flatten()"
    "[:i.shape[0]], accumulate=True)", "{x}.masked_scatter({y} > 0, {x}.flip(0))",
    "{x}.index_fill(1, i % {x}.shape[1], {s})", "{x}.index_copy(0, i[:1], {y}[:1])",
    "F.embedding(i, {x}, padding_idx=0, scale_grad_by_freq=True)",
    "F.embedding(i, {x}.detach().clone(), max_norm=0.5)", "F.embedding(i[None], {x}, -1)",
    "F.embedding_bag(i, {x}, torch.tensor([0, 1]), mode='sum', per_sample_weights={x}[:, 0])",
    "F.embedding_bag(i[None], {x}, mode='sum', padding_idx=0)", "torch.meshgrid(d, d[:2], "
    "indexing='ij')[0]", "torch.cartesian_prod(d, d[:2])", "torch.block_diag({x}, {y})",
    "torch.cat([{x}, {y}.to(torch.float64)])", "torch.cat([{x}[:0], {y}.long()])", "{x}.repeat(0, "
    "1)", "torch.stack([{x}, {x}.half()])", "torch.hstack([{x}, {y} > 0])", "torch.column_stack(["
    "{x}, i])", "F.pad({x}, (0, -1, 1, -1), value=3)", "F.pad({x}, (1, 0), 'constant', {n})",
    "F.pad({x}[None], (1, 2), mode='reflect')", "{x}.tril(-1) + {x}.triu(2)", "{x}.roll({n}, {e})",
    "{x}.roll(-{m})", "{x}.flip(-1, 0)", "torch.rot90({x}, -1)", "torch.diff({x}, 2, 0)",
    "torch.diff({x}, prepend={x}[:, :1])", "torch.gradient({x})[0]", "torch.diag(d, 1)[1:] @ {x}",
    "torch.block_diag(d, d)", "torch.full({x}.shape, {n}) + {x}", "torch.arange(5, 0, -2) * {n}",
    "torch.linspace(1, -1, {m}) ** 2", "torch.ones_like({x}, dtype=torch.int8) * 127 + {n}",
)  # fmt: skip
PRODUCTS = (
    "torch.linalg.slogdet({x} @ {x}.mT + 2 * torch.eye({x}.shape[-2]))[1]", "{x}.mT.matmul({x}[0])",
    "torch.linalg.eigvalsh({x} @ {x}.mT + torch.eye({x}.shape[-2]))", "torch.linalg.svdvals({x})",
    "torch.linalg.qr({x})[1].abs()", "torch.linalg.pinv({x}[:1])", "torch.linalg.lstsq({x}.mT @ {x}"
    " + 2 * torch.eye({x}.shape[-1]), {y}.mT)[0]", "torch.linalg.solve_triangular({x} @ {x}.mT + 3 "
    "* torch.eye({x}.shape[-2]), {y}, upper=True)",
    "torch.cholesky_solve({y}, torch.linalg.cholesky"
    "({x} @ {x}.mT + 3 * torch.eye({x}.shape[-2])))", "torch.linalg.vecdot({x}, {y})",
    "torch.linalg.vander(d, N=3)", "torch.linalg.cross({x}[:, :3], {y}[:, :3])",
    "torch.outer(d, d)",
    "torch.linalg.lu_factor({x} @ {x}.mT + 3 * torch.eye({x}.shape[-2]))[0]", "torch.ger(d, d[:2])",
    "torch.linalg.inv({x}[None] @ {x}.mT + 3 * torch.eye({x}.shape[-2]))", "torch.dot(d, d * 2)",
    "torch.fft.fft({x})", "torch.fft.ifft({x}, norm='ortho')", "torch.fft.rfft({x}, dim={e}).abs()",
    "torch.fft.irfft(torch.fft.rfft({x}))", "torch.fft.fft2({x}).real", "torch.fft.hfft({x})",
    "torch.fft.rfft({x}, n=5, norm='forward').imag", "torch.fft.fftshift({x}, {e})",
    "torch.fft.rfftn({x}, dim=(0, 1)).abs().sum({e})", "torch.fft.ihfft({x}, dim={e})",
    "torch.fft.ifftshift(torch.fft.fft({x}, dim=0)).conj()", "torch.fft.fftfreq({m}) + {s}",
    "torch.stft({x}.flatten(), 4, window=torch.ones(4), return_complex=True).abs()",
    "F.scaled_dot_product_attention({x}[None], {y}[None], {y}[None], is_causal=True)",
    "F.scaled_dot_product_attention({x}[None], {y}[None], {z}[None], attn_mask=({x} @ {y}.mT) > 0)"
    ".nan_to_num()", "F.scaled_dot_product_attention({x}[None, None], {y}[None, None], {z}[None, "
    "None], attn_mask=torch.ones({x}.shape[0], {y}.shape[0]).tril().bool())", "F.bilinear({x}, {y},"
    " {x}.new_ones(2, {x}.shape[1], {y}.shape[1]))", "torch.einsum('ij,kj->', {x}, {y})",
    "torch.einsum('ij,i->j', {x}, {x}[:, 0])", "torch.einsum('i...,j...->ij...', {x}, {y})",
    "torch.einsum('ii', {x} @ {x}.mT)", "torch.kron({x}[:1], {y}[:, :2])", "torch.chain_matmul({x},"
    " {y}.mT)", "{x}[:0] @ {y}[:0].mT", "{x}[:, :0] @ {y}[:, :0].mT", "{x}[None, :0] @ {y}.mT",
    "torch.addmm({x}[0, 0], {x}, {y}.mT, beta=0.5, alpha=2)", "torch.addmv({x}[:, 0], {x}, d)",
    "({x} + 1j) @ ({y} - 1j).mT", "({x} + 1j).mH @ ({x} + 1j)", "{x}.half() @ {y}.half().mT",
    "{x}.bfloat16() @ {y}.bfloat16().mT", "torch.cdist({x}, {y}, p=float('inf'))",
    "torch.cdist({x}[None], {y}[None])", "torch.tensordot({x}, {y}, 0).sum(0)",
)  # fmt: skip
IMAGES = (
    "F.conv2d({x}, {x}[:2, :, :2, :3], stride=(2, 1), padding=(1, 0), dilation=(1, 2))",
    "F.conv2d({x}, {x}[0, :, None, :3, :3], groups={x}.shape[1], padding=2)",
    "F.conv2d({x}[0], {x}[:1, :, :2, :2])", "F.conv2d({x}, {x}[:, :, :2, :1], padding='valid')",
    "F.conv1d({x}[:, :, 0], {x}[:, :, 0, :3], dilation=2)", "F.conv2d({x}[:0], {x}[:1, :, :2, :2])",
    "F.conv_transpose2d({x}, {x}[:1].transpose(0, 1)[:, :, :2, :3], dilation=2, stride=(1, 2))",
    "F.max_pool2d({x}, 3, 1, 1, ceil_mode=True)", "F.max_pool2d({x}, (2, 3), return_indices=True)"
    "[1]", "F.avg_pool2d({x}, 3, 2, 1, count_include_pad=False)", "F.avg_pool3d({x}, 2, 1)",
    "F.lp_pool2d({x}, 1.5, 2, ceil_mode=True)", "F.max_pool1d({x}[0], 3, 2, 1, return_indices=True)"
    "[1]", "F.adaptive_avg_pool2d({x}, (3, 5))", "F.adaptive_max_pool2d({x}, 2, True)[1]",
    "F.fractional_max_pool2d({x}, 2, output_size=2, _random_samples=torch.full(({x}.shape[0], "
    "{x}.shape[1], 2), 0.3))", "F.unfold({x}, (2, 3), dilation=1, padding=1, stride=2)",
    "F.fold(F.unfold({x}, 2, stride=2), ({x}.shape[2] // 2 * 2, {x}.shape[3] // 2 * 2), 2, "
    "stride=2)", "F.interpolate({x}, scale_factor=(0.5, 2.0))", "F.interpolate({x}, size=1)",
    "F.interpolate({x}, (5, 3), mode='bicubic', align_corners=True)", "F.pixel_unshuffle({x}[:, :, "
    ":4, :4], 2)", "F.interpolate({x}, scale_factor=0.6, recompute_scale_factor=True)",
    "F.instance_norm({x}, eps=0.1)", "F.instance_norm({x}, torch.zeros({x}.shape[1]), "
    "torch.ones({x}.shape[1]), use_input_stats=False)", "F.group_norm({x}, 1, {x}[0, :, 0, 0])",
    "F.batch_norm({x}, torch.zeros({x}.shape[1]), torch.ones({x}.shape[1]), {x}[0, :, 0, 0], None, "
    "False, 0.3, 0.1)", "F.local_response_norm({x}, 2)", "F.layer_norm({x}, {x}.shape[3:], None, "
    "{x}[0, 0, 0])", "F.rms_norm({x}, {x}.shape[2:], {x}[0, 0], 0.1)", "F.glu({x}.repeat(1, 2, 1, "
    "1), 1)", "F.prelu({x}, {x}[0, :, 0, 0])", "F.grid_sample({x}, torch.zeros({x}.shape[0], 2, 3, "
    "2), mode='nearest')", "F.pad({x}, (1, 0, 2, 1), mode='replicate')", "{x}.unfold(2, 3, 2)",
    "F.cross_entropy({x}, {x}[:, 0].long().abs() % {x}.shape[1], ignore_index=0)",
    "{x}[:, :, i % 2]", "{x}[:, 0, ..., None]", "{x}[..., [0, 1], :]",
    "{x}[i % {x}.shape[0], :, 0]",
    "{x}[i % {x}.shape[0], :, i % 2]", "{x}[:, i % {x}.shape[1], :, 1]", "{x}[{x} > 0].sum()",
    "{x}[:, :, {x}[0, 0] > 0]", "{x}.flatten(1).cumsum(1)", "{x}.logcumsumexp(2)",
)  # fmt: skip
RANDOM = (
    "torch.rand_like({x}) < 0.5", "torch.randint(0, 5, ({m},))", "torch.randperm({m})",
    "F.dropout({x}, 0.0)", "F.dropout({x}, 1.0)", "F.dropout2d({x}[None], 0.4)",
    "torch.multinomial({x}.abs() + 1, 2)", "torch.empty_like({x}).normal_(1, 2)",
    "torch.empty_like({x}).bernoulli_(0.3)", "torch.randn({x}.shape, dtype=torch.float64)",
    "torch.empty_like({x}).geometric_(0.4)", "torch.empty_like({x}).log_normal_()",
    "torch.empty_like({x}).cauchy_().atan()", "torch.randint_like({x}, 3)",
)  # fmt: skip
WRITES = (
    ".data.mul_(2)", ".data.add_({y})", ".detach().neg_()", ".T.add_({y}.T)",
    ".view(-1)[1:].mul_(2)",
    "[::2].copy_({y}[::2])", ".unfold(0, 1, 1).add_(1)", ".diagonal().fill_({s})",
    ".add_({y}, alpha={n})", ".addcmul_({y}, {z}, value=-0.5)", ".clamp_(1, -1)",
    ".clamp_max_({s})",
    ".index_fill_(0, i, {s})", ".index_copy_(0, i[:1], {y}[:1])", ".index_add_(0, i, {y}, alpha=2)",
    ".scatter_(0, i[None] % 1, {s})", ".scatter_add_(0, i[:, None], {y})", ".squeeze_()", ".t_()",
    ".unsqueeze_(0)", ".transpose_(0, 1)", ".resize_(2, 2)", ".set_({y})", ".copy_({n})",
    ".copy_({y}.half())", ".copy_({y}.long())", ".add_(True)", ".mul_(torch.tensor({s}))",
    ".pow_(2)", ".pow_({y}.abs())", ".fill_diagonal_({s})", ".digamma_()", ".lgamma_()", ".erf_()",
    ".sigmoid_().logit_(0.1)", ".tril_()", ".zero_().add_({y})", ".sub_(1).abs_()",
    ".bitwise_and_(3)",
    ".__irshift__(1)", ".logical_not_()", ".masked_fill_({y} > {n}, {s})", ".round_(decimals=1)",
    ".map_({y}, lambda p, q: p + q)", ".requires_grad_()", ".detach_()", ".remainder_(-2)",
    ".div_({y}.abs() + 1, rounding_mode='trunc')", ".floor_divide_(-2)", ".neg_().clamp_(min=0)",
    ".bernoulli_(0.5)", ".normal_()", ".put_(i, {y}.flatten()[:i.shape[0]], accumulate=True)",
)  # fmt: skip
STORES = (
    "{v}[None] = {y}", "{v}[i, None] = {y}[:, None]", "{v}[..., 0] = {n}", "{v}[i] = {y}[0]",
    "{v}[[0, 1], [1, 0]] = {s}", "{v}[{v} > 0] = {y}[{v} > 0]", "{v}[{v} > 0] += {s}",
    "{v}[i > 1] = {y}[0]", "{v}[:, ({v} > 0)[0]] = {s}", "{v}[True] = {y}", "{v}[False] = {s}",
    "{v}[()] = {s}", "{v}[i % 2 > 0, 0] *= 2", "{v}[i, i % {v}.shape[1]] += 1",
    "{v}[-1:] = {y}[:1]",
    "{v}[::2, ::2] = {s}", "{v}[1:][:, :1] = {y}[1:, :1]", "{v}.data = {y}", "{v}.data[0] = {s}",
    "{v}[torch.tensor(0)] = {y}[1]", "{v}[0], {v}[1] = {v}[1], {v}[0]", "{v} @= {v}.mT.clone()",
    "{v} <<= 1", "{v} ^= {y}", "{v} |= {y}", "{v} -= {v}[0].clone()", "{v} += {v}.T",
    "{v}[:] = {v}.flip(0)",
    "{v}[1:] += {v}[:-1]", "{v}.T[1:] *= {s}", "{v}[:0] = 5", "F.elu({v}, inplace=True)",
    "F.hardswish({v}, inplace=True)", "F.threshold_({v}, 0.1, 3)", "F.rrelu_({v})", "F.selu_({v})",
    "torch.nn.init.constant_({v}, {s})", "torch._foreach_div_([{v}], 2)", "torch._foreach_pow_([{v}"
    "], 2)", "torch._foreach_sub_([{v}, {v}], 1)", "torch._foreach_maximum_([{v}], [{y}])",
)  # fmt: skip
OUTS = (
    "torch.add({x}, {y}, out={v}[::2])", "torch.mul({x}, 2, out={v}.T)", "torch.sub({x}, {v}, "
    "out={v})", "torch.cumsum({x}, 0, out={v}.T)", "torch.sin({v}.T, out={v})", "torch.exp({x}[0], "
    "out={v}[0])", "torch.sum({x}, 1, out={v}[:, 0])", "torch.max({x}, {y}, out={v})",
    "torch.stack([{x}[0], {y}[0]], out={v}[:2])", "torch.cat([{x}[:1] * 1, {y}[1:] + 1], out={v})",
    "torch.index_select({x} * 1, 0, i, out={v})",
    "torch.linspace(0, 1, {v}.shape[0], out={v}[:, 0])",
    "{o} = torch.empty(0); torch.matmul({x}, {y}.mT, out={o})", "torch.floor({x}, out={v})",
    "{o} = torch.empty(2, 2)[:, :0]; torch.add({x}, 1, out={o})", "torch.logical_not({x}, out={v})",
    "{o} = torch.empty({x}.shape[::-1]).T; torch.tanh({x}, out={o})", "torch.where({x} > 0, {x}, "
    "{y}, out={v}[:])", "{o} = torch.empty({x}.shape).half(); torch.mul({x}, {y}, out={o})",
    "{o} = torch.empty(0, dtype=torch.float64); torch.cos({x}, out={o})", "torch.zeros({v}.shape, "
    "out={v})", "torch.full({v}.shape, 2.0, out={v})", "torch.prod({x}, 0, out={v}[0])",
    "torch.norm({x}, dim=0, out={v}[0])", "torch.argmax({x}, 0, out={v}[0])",
)  # fmt: skip
FORMS = (
    "{o} = {x}.detach(); {o}.mul_(2)", "{o} = {x}.data; {o}[0] = {s}",
    "{o} = {x}[1:]; {o}.add_(1); "
    "{o} = {o}.T; {o}[0] = {s}", "{o} = {x}.view(-1); {o}[0] = {s}; {o} = {x} * 2",
    "{o} = {x}.clone(); {o}[1:].mul_(2); {o}.T[0].sub_(1)", "{o} = {x} * 1; {o}[0].exp_()",
    "{o} = {x} * 1; {o}.view(-1)[::2] = {y}.view(-1)[::2]",
    "{o} = {x} * 1; {o}.chunk(2)[0].zero_()",
    "{o} = {x} * 1; {o}.diagonal().mul_({s})", "{o} = {x} * 1; {o}[{o} > 0] = {s}",
    "{o} = {x} * 1; {o}.unbind(0)[0].add_({y}[0])", "{o} = {x}.expand(2, *{x}.shape).clone(); "
    "{o}[0].mul_({y})", "{o} = {x} * 1; q = {o}[0]; {o}.mul_(2); {o} = q + {o}[1]",
    "{o} = torch.empty(0); {o}.resize_(2, 3).fill_({s})", "{o} = {x}.clone().resize_(1, 2)",
    "{o} = torch.empty(0).set_({x}.detach()); {o}.add_(1)", "{o} = torch.zeros({x}.shape); "
    "{o}.copy_({x})", "{o} = {x}.clone(memory_format=torch.preserve_format).t_()",
    "({o},) = torch.autograd.grad({x}.sin().sum(), {x}, create_graph=True); ({o},) = torch."
    "autograd.grad({o}.square().sum(), {x})",
    "{o} = {x}.detach().requires_grad_(); q = torch.autograd.grad(({o} ** 3).sum(), {o}, "
    "create_graph=True)[0]; q.sum().backward(); {o} = {o}.grad",
    "{o} = torch.func.grad(torch.func.grad(lambda q: (q ** 3).sum() + q.exp().sum()))(d[0])",
    "{o} = torch.func.vmap(lambda q: torch.linalg.vector_norm(q))({x})",
    "{o} = torch.func.vmap(lambda q, r: q[r % q.shape[0]])({x}, i)",
    "{o} = torch.func.vmap(lambda q: q.cumsum(0).flip(0))({x})",
    "{o} = torch.func.vmap(lambda q: torch.where(q > 0, q, {s}), in_dims=1)({x})",
    "{o} = torch.func.jacfwd(lambda q: q.sin() * q.sum())(d)", "{o} = torch.func.vmap(torch.dot)("
    "{x}, {y})", "{o} = torch.autograd.functional.jacobian(lambda q: q.square(), d)",
    "{o} = sum({x}.unbind(-1))", "{o} = torch.stack([q.max() for q in {x}])",
    "{o} = {x}\nwhile {o}.numel() > 8:\n    {o} = {o}[:{o}.shape[0] // 2]",
    "{o} = {x}[range({x}.shape[0] - 1, -1, -1)[0]]",
    "{o}, q = {x}.min({e}); {o} = {o} * (q + 1)", "{o} = torch.tensor({x}.shape) * {n}",
    "{o} = torch.zeros(2, dtype=torch.int8); {o} += 127; {o} += 1", "{o} = {x}.numpy(force=True)."
    "shape[0] * {y}", "{o} = {x}.float().mul(1e30).mul(1e30).isinf()",
)  # fmt: skip
CONTEXTS = (
    "with torch.no_grad():", "with torch.inference_mode(k > 1):", "for _ in range(2):",
    "with torch.enable_grad():", "with torch.autocast('cpu', dtype=torch.bfloat16):",
)  # fmt: skip
