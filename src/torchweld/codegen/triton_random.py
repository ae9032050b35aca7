"""What the text of a kernel that draws random numbers defines before the kernel."""

from __future__ import annotations

# One block of Philox serves one word here: a kernel that needs two of them asks twice, and the
# compiler computes the block once. Products of 64 bits become one instruction for both halves.
# sin.approx and cos.approx are what CUDA's own normal numbers are made with.
RANDOM_TEXT = '''

@triton.jit
def philox(seed, block, subsequence, which):
    """Word `which` of Philox4x32-10 (Salmon et al. 2011)."""
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    c0 = block.to(tl.uint32)
    c1 = (block >> 32).to(tl.uint32)
    c2 = subsequence.to(tl.uint32)
    c3 = (subsequence >> 32).to(tl.uint32)
    for _ in tl.static_range(10):
        a = c0.to(tl.uint64) * 0xD2511F53
        b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = b.to(tl.uint32)
        c3 = a.to(tl.uint32)
        k0 = k0 + 0x9E3779B9
        k1 = k1 + 0xBB67AE85
    low = tl.where(which == 0, c0, c1)
    high = tl.where(which == 2, c2, c3)
    return tl.where(which < 2, low, high).to(tl.int64)


if weld.INTERPRETED:
    fast_sin, fast_cos = weld.sin, weld.cos
    sinpi, cospi = weld.sinpi, weld.cospi
else:
    sinpi, cospi = weld.libdevice.sinpi, weld.libdevice.cospi

    @triton.jit
    def fast_sin(x):
        return tl.inline_asm_elementwise(
            "sin.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )

    @triton.jit
    def fast_cos(x):
        return tl.inline_asm_elementwise(
            "cos.approx.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1
        )
'''
