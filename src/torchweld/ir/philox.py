"""Philox4x32-10: four words of 32 random bits from a key and a counter, in plain Python.

CUDA's generators are counters: element k of a tensor has words of its own, whoever computes it and
when. How a generator's state and an element's position make a key and a counter is the business of
lower/random_draws.py.
"""

from __future__ import annotations

# The Extern that takes numbers of a CUDA generator once per call, before anything else:
#     seed, block = weld.draw.default(device, count)
# seed: i64, the generator's seed; block: i64, its offset in blocks of four words. The generator
# then moves on by `count` words.
DRAW = "weld.draw.default"

WORDS = 4  # of a block
_ROUNDS = 10
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_STEP = (0x9E3779B9, 0xBB67AE85)
_LOW = (1 << 32) - 1

Words = tuple[int, int, int, int]


def philox(key: tuple[int, int], counter: Words) -> Words:
    """The block of the counter. All numbers are words of 32 bits, the least significant first.

    Source: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011.
    """
    (k0, k1), (c0, c1, c2, c3) = key, counter
    for _ in range(_ROUNDS):
        a, b = _MULTIPLY[0] * c0, _MULTIPLY[1] * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _LOW, (a >> 32) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _STEP[0]) & _LOW, (k1 + _STEP[1]) & _LOW
    return c0, c1, c2, c3


def word(seed: int, block: int, subsequence: int, which: int) -> int:
    """Word `which` of a block of one of a seed's 2**64 subsequences, each 2**64 blocks long.

    The first three are 64 bits, taken as unsigned.
    """
    key = seed & _LOW, (seed >> 32) & _LOW
    counter = (block & _LOW, (block >> 32) & _LOW, subsequence & _LOW, (subsequence >> 32) & _LOW)
    return philox(key, counter)[which % WORDS]
