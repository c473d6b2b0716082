"""Exact and fast gated dual GEMMs on NVFP4 data: ``gate(a @ b1.T) * (a @ b2.T)``.

>>> import hammerhead, numpy
>>> rng = numpy.random.default_rng(0)
>>> some = lambda *shape: rng.standard_normal(shape, dtype=numpy.float32)
>>> b1, b2 = (hammerhead.quantize(some(40, 64)) for _ in range(2))
>>> weights = hammerhead.DualWeights.from_arrays(b1, b2)     # packed once
>>> weights(some(3, 64)).shape                               # tokens in, one row for each out
(3, 40)

Whole layers are :class:`Linear`, :class:`Mlp` and :class:`Experts`, and :class:`Fp8Linear` is what stands beside them in
mixed models. Arrays are numpy's or torch's, and results are of the kind of the tokens. Nothing is rounded but sums, the
gate and the output.
"""

from hammerhead._adapters import Adapter, Adapters, LowRank
from hammerhead._fp8 import Fp8Linear
from hammerhead._layers import Experts, Linear, Mlp, MlpArrays
from hammerhead._matrix import MxFp4, NvFp4, quantize
from hammerhead._native import Checkpoint, __version__
from hammerhead._threads import use_threads
from hammerhead._weights import DualWeights, backends, dual_gemm, grouped

__all__ = [
    "Adapter",
    "Adapters",
    "Checkpoint",
    "DualWeights",
    "Experts",
    "Fp8Linear",
    "Linear",
    "LowRank",
    "Mlp",
    "MlpArrays",
    "MxFp4",
    "NvFp4",
    "__version__",
    "backends",
    "dual_gemm",
    "grouped",
    "quantize",
    "use_threads",
]
