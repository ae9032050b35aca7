"""Philox4x32-10 against the known answers that its authors publish with Random123."""

import pytest

from torchweld.ir.dtype import DType
from torchweld.ir.op_value import op_value
from torchweld.ir.philox import philox, word

ONES = 0xFFFFFFFF
ANSWERS = (
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES), (ONES,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
)  # fmt: skip


@pytest.mark.parametrize(("key", "counter", "answer"), ANSWERS)
def test_known_answers(key, counter, answer):
    assert philox(key, counter) == answer


@pytest.mark.parametrize(("key", "counter", "answer"), ANSWERS)
def test_the_operator_takes_its_numbers_as_i64(key, counter, answer):
    def i64(low, high):
        n = low | high << 32
        return n - ((n >> 63) << 64)

    args = i64(*key), i64(*counter[:2]), i64(*counter[2:])
    assert tuple(op_value("philox", (*args, k), DType.I64) for k in range(4)) == answer
    assert word(*args, 2) == answer[2]
