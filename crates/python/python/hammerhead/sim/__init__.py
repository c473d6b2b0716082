"""Kernels without a GPU: any compiler's PTX, and Triton's kernels as they are, run under adversarial schedules.

>>> import numpy
>>> from hammerhead import sim
>>> text = '''
... .version 8.0
... .target sm_80
... .address_size 64
... .visible .entry double(.param .u64 x, .param .u32 n) .reqntid 32 {
...     .reg .pred %out;
...     .reg .b32 %i, %n, %v;
...     .reg .b64 %x, %at;
...     ld.param.u64 %x, [x];
...     ld.param.u32 %n, [n];
...     mov.u32 %i, %tid.x;
...     setp.ge.u32 %out, %i, %n;
...     @%out ret;
...     mul.wide.u32 %at, %i, 4;
...     add.s64 %at, %at, %x;
...     ld.global.u32 %v, [%at];
...     add.s32 %v, %v, %v;
...     st.global.u32 [%at], %v;
...     ret;
... }'''
>>> x = numpy.arange(5, dtype=numpy.uint32)
>>> report = sim.launch(text, grid=1, args=[x, 5])
>>> report.findings, x.tolist()
([], [0, 2, 4, 6, 8])

Triton's kernels are launched as always, inside of :func:`triton` or through :func:`check`; no GPU and no driver has to
be there.
"""

from hammerhead.sim._launch import Parts, TensorMap, launch
from hammerhead.sim._memory import Tensor
from hammerhead.sim._report import Finding, FindingsError, Report
from hammerhead.sim._triton import check, triton

__all__ = ["Finding", "FindingsError", "Parts", "Report", "Tensor", "TensorMap", "check", "launch", "triton"]
