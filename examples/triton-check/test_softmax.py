"""Checks Triton kernels on a machine without a GPU: results, and races under adversarial schedules."""

import numpy as np
import pytest
import softmax as kernels

from hammerhead import sim


@pytest.mark.parametrize("arch", [80, 90, 100])
@pytest.mark.parametrize("columns", [1, 100, 781])
def test_rows_add_up_to_one(arch, columns):
    x = np.random.default_rng(0).standard_normal((3, columns), dtype=np.float32)
    out = np.empty_like(x)
    # To compute with what an array that counts as not written holds is a finding.
    report = sim.check(kernels.softmax[(3,)], x, sim.Tensor(out, written=False), columns, columns, BLOCK=1024, sim_arch=arch)
    assert not report.findings, report
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.xfail(raises=sim.FindingsError, strict=True, reason="sums are added up without atomics")
def test_sums_of_columns():
    x, out = np.ones((3, 100), dtype=np.float32), np.zeros(100, dtype=np.float32)
    with sim.triton(90):
        kernels.column_sums[(3,)](sim.Tensor(x), sim.Tensor(out), 100, 100, BLOCK=128)
