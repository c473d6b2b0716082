"""Low-rank adapters (LoRA) of one packed layer, of which every token may have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from hammerhead._arrays import NUMBERS, A, expect_element, library_of

if TYPE_CHECKING:
    from hammerhead import _native
    from hammerhead._arrays import Library


@dataclass(frozen=True, eq=False)
class LowRank(Generic[A]):
    """What an adapter adds to one matrix's product: ``x @ a.T @ b.T``, times the adapter's scaling."""

    a: A
    """``[rank, k]``, peft's ``lora_A``; at most rank 64; float16, bfloat16 or float32."""

    b: A
    """``[n, rank]``, peft's ``lora_B``."""

    def _parts(self, of: str) -> Any:
        return tuple(_lent(array, f"{name} of {of}") for name, array in (("a", self.a), ("b", self.b)))


@dataclass(frozen=True, eq=False)
class Adapter(Generic[A]):
    """One adapter of a layer."""

    scaling: float
    """What all that it adds is multiplied with: peft's ``lora_alpha / r``."""

    experts: Sequence[tuple[LowRank[A] | None, LowRank[A] | None, LowRank[A] | None]]
    """For every expert (of an MLP, for the only one) what is added to gate, up and down, or None. Where the gate takes
    one matrix, that is the first."""

    shared: tuple[LowRank[A] | None, LowRank[A] | None, LowRank[A] | None] | None = None
    """The same of the layer's shared expert."""


class Adapters:
    """Adapters as one layer takes them: ``layer(x, ..., adapters=adapters, adapter_ids=ids)``. Made by
    ``layer.adapters([...])``."""

    def __init__(self, native: _native.Adapters) -> None:
        self._native = native

    def __len__(self) -> int:
        return len(self._native)

    @property
    def rank(self) -> int:
        """The largest rank."""
        return self._native.rank

    def __repr__(self) -> str:
        return f"Adapters({len(self)}, rank={self.rank})"


def native_parts(adapters: Sequence[Adapter[Any]]) -> Any:
    """Adapters as the native half takes them."""

    def parts(pairs: Any, of: str) -> Any:
        names = ("gate", "up", "down")
        return tuple(None if pair is None else pair._parts(f"{name} of {of}") for name, pair in zip(names, pairs))

    return [
        (
            float(adapter.scaling),
            [parts(pairs, f"expert {expert} of adapter {number}") for expert, pairs in enumerate(adapter.experts)],
            None if adapter.shared is None else parts(adapter.shared, f"the shared expert of adapter {number}"),
        )
        for number, adapter in enumerate(adapters)
    ]


def lent(adapters: Adapters | None, ids: Any, tokens: int, library: Library) -> Any:
    """Adapters and the number of each token's as the native half takes them, or None."""
    if adapters is None:
        if ids is not None:
            raise ValueError("adapter_ids: they were given without adapters; give both")
        return None
    if ids is None:
        raise ValueError("adapter_ids: they are missing; give the number of each token's adapter, -1 for none")
    if library_of(ids, "adapter_ids") is not library:
        raise TypeError("adapter_ids: it must come from the same library as x")
    expect_element(ids, library, ("int32",), "adapter_ids")
    count = 1
    for side in ids.shape:
        count *= int(side)
    if count != tokens:
        raise ValueError(f"adapter_ids: there are {count}, and {tokens} tokens; every token needs one")
    return adapters._native, library.loan(library.lendable(ids))


def _lent(array: Any, what: str) -> Any:
    library = library_of(array, what)
    element = expect_element(array, library, NUMBERS, what)
    if len(array.shape) != 2:
        raise ValueError(f"{what}: its shape is {list(array.shape)}, where two dimensions are expected")
    return library.loan(library.lendable(library.on_host(array))), element
