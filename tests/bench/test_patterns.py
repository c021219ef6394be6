"""The known content of messages: its reductions are exact in every element type."""

import ml_dtypes
import numpy as np
import pytest

from hocket.bench.patterns import REDUCTIONS, pattern, to_reduce


@pytest.mark.parametrize("size", [2, 32, 33, 256, 300, 1000])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_reductions_of_16_bits_are_exact_for_any_number_of_ranks(size, reduction, dtype):
    contents = [to_reduce(pattern(24, "float32", rank, 1), reduction, rank, size) for rank in range(size)]
    halves = [each.astype(dtype) for each in contents]
    found, expected = halves[0], contents[0].astype(np.float64)
    for half, content in zip(halves[1:], contents[1:], strict=True):
        found = REDUCTIONS[reduction](found, half).astype(dtype)
        expected = REDUCTIONS[reduction](expected, content)
    assert np.array_equal(found.astype(np.float64), expected)
    assert expected.any() or reduction == "min"
