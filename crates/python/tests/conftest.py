"""What the tests are fed with."""

import numpy as np
import pytest

import hammerhead


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def matrices(rng):
    """Makes so many NVFP4 matrices of one shape, with global scales that differ."""

    def make(count, n, k):
        def one(factor):
            return hammerhead.quantize(rng.standard_normal((n, k), dtype=np.float32) * factor / np.float32(np.sqrt(k)))

        return [one(np.float32(1 + i)) for i in range(count)]

    return make
