"""Whole layers, packed once and called on tokens: a linear layer, an MLP, and experts with their router."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, overload

from hammerhead import _native
from hammerhead._adapters import Adapter, Adapters, native_parts
from hammerhead._adapters import lent as lent_adapters
from hammerhead._arrays import NUMBERS, A, Library, element_name, expect_element, library_of
from hammerhead._matrix import Matrix
from hammerhead._native import Checkpoint
from hammerhead._packed import EngineOptions, LayerOptions, MlpOptions, Packed, asked, declared, engine_of, opened
from hammerhead._registry import register
from hammerhead._weights import _matrix, _number, _target, _tokens, _vector

if TYPE_CHECKING:
    from os import PathLike

    from typing_extensions import Self, Unpack

    from hammerhead._arrays import Dtype

IDS = ("int32", "int64")
"""The types that experts' numbers may have."""


class PackedLayer(Packed):
    """What all layers have in common.

    Tensors of torch may be passed under ``torch.compile``, which sees one custom operation. There are no gradients: a
    tensor that requires one is refused. Layers of the backend ``cuda`` take tensors on that GPU: the work is queued in
    torch's current stream like torch's own, and the call returns before it is done.
    """

    in_features: int
    """The width of tokens."""

    out_features: int
    """The width of results."""

    _name: str

    def __init__(self) -> None:
        kind = type(self).__name__
        raise TypeError(f"layers are made by {kind}.from_checkpoint or {kind}.from_arrays")

    def _hold(self, layer: Any, in_features: int, out_features: int) -> None:
        self._layer, self.in_features, self.out_features = layer, in_features, out_features
        register(self)

    def _call(
        self,
        x: Any,
        routing: tuple[Any, ...],
        on_input: bool,
        dtype: Dtype | None,
        out: Any,
        adapted: tuple[Adapters | None, Any] = (None, None),
    ) -> Any:
        """Lends tokens, what routes them, their adapters and room for results to the native half."""
        torch = sys.modules.get("torch")
        if torch is not None and torch.compiler.is_compiling():
            from hammerhead import _torch

            if adapted != (None, None):
                raise NotImplementedError("adapters: layers take none under torch.compile; call them outside of it")

            return _torch.call(self, x, routing, on_input, dtype, out)
        library = library_of(x, "x")
        if len(x.shape) == 0:
            raise ValueError("x: its shape is [], where tokens by k is expected")
        tokens = _tokens(x, library)
        shape = (*x.shape[:-1], self.out_features)
        if out is None:
            out = library.empty(x, shape, tokens[1] if dtype is None else element_name(dtype))
        target, element = _target(out, shape, dtype, library)
        room = library.room(target)
        lent = () if adapted == (None, None) else (lent_adapters(*adapted, int(tokens[0].shape[0]), library),)
        self._run(library, tokens, routing, on_input, (room, element), *lent)
        library.settle(target, room)
        return out

    def _run(
        self, library: Library, tokens: Any, routing: tuple[Any, ...], on_input: bool, room: Any, adapted: Any = None
    ) -> None:
        raise NotImplementedError


class Linear(PackedLayer):
    """One NVFP4 or MXFP4 matrix: ``x @ weight.T + bias``. Tensors on a GPU are computed there, in torch's current
    stream."""

    _layer: _native.Layer

    @classmethod
    def _of(cls, layer: _native.Layer) -> Self:
        linear = cls.__new__(cls)
        [(n, k)] = layer.columns
        linear._hold(layer, k, n)
        return linear

    @classmethod
    def _from_bytes(cls, data: bytes, options: Any) -> Self:
        return cls._of(_native.Layer.from_bytes(data, options))

    @classmethod
    def from_arrays(
        cls,
        weight: Matrix[A],
        *,
        bias: Any = None,
        input_scale: Any = None,
        **options: Unpack[EngineOptions],
    ) -> Linear:
        """Packs a matrix ``[n, k]`` and a bias of n numbers; tokens are multiplied with ``input_scale`` first, if there
        is one (AWQ).

        The arrays are not needed afterwards. ``backend``, ``threads`` and ``config`` are as for
        :meth:`DualWeights.from_arrays`.
        """
        group = _weights([weight], [bias], input_scale, ["weight"], "the layer")
        return cls._of(_native.Layer.pack([group], "none", None, *engine_of(options, weight)))

    @classmethod
    def from_checkpoint(
        cls,
        model: str | PathLike[str] | Checkpoint,
        name: str,
        **options: Unpack[EngineOptions],
    ) -> Linear:
        """Reads one matrix of a model, with its bias, by the name of its module, such as
        ``"model.layers.0.self_attn.q_proj"``."""
        return cls._of(_native.Layer.load_linear(opened(model), name, *engine_of(options)))

    def __call__(self, x: A, *, dtype: Dtype | None = None, out: A | None = None) -> A:
        """Computes tokens ``[..., k]`` to ``[..., n]``, of the type of ``x`` unless ``dtype`` or ``out`` says
        otherwise."""
        return self._call(x, (), False, dtype, out)

    def _run(
        self, library: Library, tokens: Any, routing: tuple[Any, ...], on_input: bool, room: Any, adapted: Any = None
    ) -> None:
        x, element = tokens
        with library.at_device_of(x):
            self._layer.run([(library.loan(x), element)], [_lent(library, room)], library.stream(x))

    def __repr__(self) -> str:
        return f"Linear(in_features={self.in_features}, out_features={self.out_features}, backends={self.backends})"


@dataclass(frozen=True, eq=False)
class MlpArrays(Generic[A]):
    """The weights of one MLP: ``down(gate(x @ b1.T + b1_bias, x @ b2.T + b2_bias)) + down_bias``."""

    b1: Matrix[A]
    """Gate weights, or the only ones where the gate takes one matrix: ``[n, k]``."""

    b2: Matrix[A] | None
    """Up weights, ``[n, k]``."""

    down: Matrix[A]
    """The down projection, ``[k, n]``."""

    b1_bias: Any = None
    """n numbers."""

    b2_bias: Any = None
    """n numbers."""

    down_bias: Any = None
    """k numbers."""

    input_scale: Any = None
    """k numbers that tokens are multiplied with first (AWQ's ``pre_quant_scale``)."""

    down_input_scale: Any = None
    """n numbers that the intermediate is multiplied with before ``down``."""

    intermediate_scale: float | None = None
    """The global scale of an NVFP4 intermediate (ModelOpt's ``input_scale`` of the down projection), 1 if not given."""

    def _parts(self, of: str) -> Any:
        """The MLP as the native half takes it."""
        return (
            _weights([self.b1, self.b2], [self.b1_bias, self.b2_bias], self.input_scale, ["b1", "b2"], of),
            _weights([self.down], [self.down_bias], self.down_input_scale, ["down"], of),
            1.0 if self.intermediate_scale is None else float(self.intermediate_scale),
        )


class FeedForward(PackedLayer):
    """What :class:`Mlp` and :class:`Experts` have in common."""

    _layer: _native.FeedForward

    @classmethod
    def _of(cls, layer: _native.FeedForward) -> Self:
        made = cls.__new__(cls)
        k, _, n = layer.widths
        made._hold(layer, k, n)
        _, refusal = layer.streams_from
        if refusal is not None:
            warnings.warn(f"hammerhead: the processor computes its experts in every call: {refusal}", stacklevel=3)
        return made

    @classmethod
    def _named(cls, model: Checkpoint, projections: Any, gate: str, **options: Unpack[LayerOptions]) -> Self:
        """Reads projections by their whole names: those of every expert, or of one MLP."""
        is_experts = issubclass(cls, Experts)
        mlps = list(projections) if is_experts else [projections]
        own = asked(options, known=LayerOptions if is_experts else MlpOptions)
        return cls._of(_native.FeedForward.load_named(model, mlps, is_experts, (gate, None), own))

    @classmethod
    def _from_bytes(cls, data: bytes, options: Any) -> Self:
        # What another version has pickled may have other options: then its bytes say first which version they are.
        usual = asked({})
        is_known = len(options) == len(usual)
        layer = cls._read(data, options if is_known else usual)
        if not is_known:
            found = f"there are {len(options)}, where {len(usual)} are expected"
            raise ValueError(f"options of the layer: {found}; another version has pickled it, pickle it again from the model")
        return cls._of(layer)

    @staticmethod
    def _read(data: bytes, options: Any) -> _native.FeedForward:
        raise NotImplementedError

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the packed layer, with its rule of routing if it has one, to a file, so that :meth:`load` need not
        pack again. Layers on a GPU are not written."""
        self._layer.save(path)

    def adapters(self, adapters: Sequence[Adapter[Any]]) -> Adapters:
        """Low-rank adapters beside the packed weights, of which each token of a call may have one. They are copied; on
        a GPU they are put beside the weights at their first call."""
        return Adapters(self._layer.adapters(native_parts(adapters)))

    def _run(
        self, library: Library, tokens: Any, routing: tuple[Any, ...], on_input: bool, room: Any, adapted: Any = None
    ) -> None:
        lent = [library.loan(array) for array in self._routing(library, routing, on_input)]
        stream = library.stream(tokens[0])
        self._layer.run(_lent(library, tokens), lent, on_input, _lent(library, room), stream, adapted)

    def _routing(self, library: Library, routing: tuple[Any, ...], on_input: bool) -> list[Any]:
        """What says which experts compute which tokens, as it can be lent."""
        return []


class Mlp(FeedForward):
    """A gated MLP: ``down(gate(x @ b1.T + b1_bias, x @ b2.T + b2_bias)) + down_bias``; or one that is not gated,
    without ``b2``."""

    @classmethod
    def from_arrays(
        cls,
        b1: Matrix[A],
        b2: Matrix[A] | None,
        down: Matrix[A],
        *,
        b1_bias: Any = None,
        b2_bias: Any = None,
        down_bias: Any = None,
        input_scale: Any = None,
        down_input_scale: Any = None,
        intermediate_scale: float | None = None,
        gate: str = "silu",
        clamp: float | None = None,
        **options: Unpack[MlpOptions],
    ) -> Mlp:
        """Packs the weights, which :class:`MlpArrays` describes. The arrays are not needed afterwards.

        - ``gate``, ``clamp``, and of the options ``backend``, ``threads`` and ``config``: as for
          :meth:`DualWeights.from_arrays`.
        - ``intermediate``: what stands between the two products: the type of the tokens, ``"f32"``, or ``"nvfp4"`` with
          ``intermediate_scale``.
        - ``precision``: what the operands of both products are rounded to: ``"exact"``, or ``"fp8"``, which changes
          results, as docs/fp8.md defines, and is computed by Hopper GPUs alone.
        - ``batch_invariant``: whether a token's result may depend on nothing but that token and the weights, to the
          bit.
        - ``workspace_bytes``: what the rows that are computed at a time may take, 512 MiB if not given.
        - ``gpu_bytes``: what the weights may take of a GPU's memory.
        """
        arrays = MlpArrays(
            b1, b2, down, b1_bias, b2_bias, down_bias, input_scale, down_input_scale, intermediate_scale
        )
        return cls._of(_native.FeedForward.pack_mlp(arrays._parts("the MLP"), (gate, clamp), asked(options, b1, MlpOptions)))

    @classmethod
    def from_checkpoint(
        cls,
        model: str | PathLike[str] | Checkpoint,
        layer: int,
        expert: int | Literal["shared"] | None = None,
        *,
        gate: str | None = None,
        clamp: float | None = None,
        **options: Unpack[MlpOptions],
    ) -> Mlp:
        """Reads the MLP of a model's layer; of one with experts that of this number, or the ``"shared"`` one. ``gate``
        is as the model declares if not given. The rest is as for :meth:`from_arrays`."""
        if isinstance(expert, str) and expert != "shared":
            raise ValueError(f"expert: a number is expected, or 'shared', not {expert!r}")
        shared = isinstance(expert, str)
        number = None if expert is None or isinstance(expert, str) else _number(expert, "expert")
        chosen = (_number(layer, "layer"), number, shared)
        return cls._of(_native.FeedForward.load_mlp(opened(model), *chosen, declared(gate, clamp), asked(options, known=MlpOptions)))

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        **options: Unpack[MlpOptions],
    ) -> Mlp:
        """Maps what :meth:`save` wrote, without copying it: the file is read once, to see that it is whole, and must
        not be changed while the layer lives. The options are those of :meth:`from_arrays`."""
        return cls._of(_native.FeedForward.open_mlp(path, asked(options, known=MlpOptions)))

    @staticmethod
    def _read(data: bytes, options: Any) -> _native.FeedForward:
        return _native.FeedForward.mlp_from_bytes(data, options)

    def __call__(
        self,
        x: A,
        *,
        adapters: Adapters | None = None,
        adapter_ids: A | None = None,
        dtype: Dtype | None = None,
        out: A | None = None,
    ) -> A:
        """Computes tokens ``[..., k]``, of the type of ``x`` unless ``dtype`` or ``out`` says otherwise. Adapters are
        as for :class:`Experts`."""
        return self._call(x, (), False, dtype, out, (adapters, adapter_ids))

    def __repr__(self) -> str:
        k, inner, n = self._layer.widths
        return f"Mlp(widths={k}→{inner}→{n}, gate={self.gate!r}, backends={self.backends})"


class Experts(FeedForward):
    """A layer of experts, of which a few compute each token: ``y[t] = sum(w[t, j] * mlp[e[t, j]](x[t]))``, plus a
    shared expert's result.

    Which experts compute a token is said by a router's logits, ``layer(x, router_logits)``, or by their numbers and
    weights, ``layer(x, ids, weights)``. The sum is taken in the order of the token's experts in float32, and rounded
    once.
    """

    _heat: tuple[list[int], list[float]] | None = None
    """How often experts had been asked for when :meth:`place_hottest` looked last, and how hot each was."""

    @property
    def num_experts(self) -> int:
        """How many experts there are, the shared one not counted."""
        return self._layer.count

    @classmethod
    def from_arrays(
        cls,
        b1: Sequence[Matrix[A]],
        b2: Sequence[Matrix[A]] | None,
        down: Sequence[Matrix[A]],
        *,
        b1_bias: Any = None,
        b2_bias: Any = None,
        down_bias: Any = None,
        input_scale: Any = None,
        down_input_scale: Any = None,
        intermediate_scale: Any = None,
        shared: MlpArrays[A] | None = None,
        shared_gate: Any = None,
        routing: str | None = None,
        top_k: int | None = None,
        correction: Any = None,
        groups: tuple[int, int] | None = None,
        scaling: float = 1.0,
        gate: str = "silu",
        clamp: float | None = None,
        **options: Unpack[LayerOptions],
    ) -> Experts:
        """Packs the weights of every expert: sequences with one matrix per expert, and of biases and scales one vector
        per expert (or an array of as many rows), as :class:`MlpArrays` describes them. The arrays are not needed
        afterwards.

        - ``shared``: an expert that computes every token; its result is multiplied with ``sigmoid(x @ shared_gate)`` if
          that is given.
        - ``routing``, ``top_k``: how logits become experts and weights: ``"softmax"``, ``"softmax-renorm"``,
          ``"topk-softmax"``, ``"sigmoid"``, ``"sigmoid-plain"`` or ``"sqrt-softplus"`` (with a ``correction`` per expert,
          and ``groups`` that there are and that may be chosen from), ``"sigmoid-input"``. Weights are multiplied with
          ``scaling``. Not needed where ids and weights are given.
        - ``gpu_bytes``: what the weights may take of a GPU's memory; experts beyond it are the processor's. With
          ``stream`` the GPU computes those itself in calls with many rows, with weights that it brings over
          (docs/layers.md).
        - The rest is as for :meth:`Mlp.from_arrays`.
        """
        columns = {
            "b2": b2,
            "down": down,
            "b1_bias": b1_bias,
            "b2_bias": b2_bias,
            "down_bias": down_bias,
            "input_scale": input_scale,
            "down_input_scale": down_input_scale,
            "intermediate_scale": intermediate_scale,
        }
        firsts = list(b1)
        others = {name: _one_per_expert(column, len(firsts), name) for name, column in columns.items()}
        experts = [
            MlpArrays(first, **{name: column[expert] for name, column in others.items()})._parts(f"expert {expert}")
            for expert, first in enumerate(firsts)
        ]
        return cls._of(
            _native.FeedForward.pack_experts(
                experts,
                None if shared is None else shared._parts("the shared expert"),
                None if shared_gate is None else _vector(shared_gate, "shared_gate"),
                _router(routing, top_k, correction, groups, scaling),
                (gate, clamp),
                asked(options, firsts[0] if firsts else None),
            )
        )

    @classmethod
    def from_checkpoint(
        cls,
        model: str | PathLike[str] | Checkpoint,
        layer: int,
        *,
        experts: Iterable[int] | None = None,
        shared: bool = True,
        routing: str | None = None,
        top_k: int | None = None,
        correction: Any = None,
        groups: tuple[int, int] | None = None,
        scaling: float = 1.0,
        gate: str | None = None,
        clamp: float | None = None,
        **options: Unpack[LayerOptions],
    ) -> Experts:
        """Reads the experts of a model's layer, with biases and input scales: all, or those of the numbers in
        ``experts``, which are counted anew from 0; and the shared one, unless ``shared`` is false.

        ``gate`` and ``routing`` (with what belongs to it) are as the model declares if not given; a table that chooses
        experts stays, whatever ``routing`` weighs them. Logits are the caller's: the router's own product is left to
        the model. The rest is as for :meth:`from_arrays`.
        """
        return cls._of(
            _native.FeedForward.load_experts(
                opened(model),
                _number(layer, "layer"),
                None if experts is None else [_number(expert, "experts") for expert in experts],
                shared,
                _router(routing, top_k, correction, groups, scaling),
                declared(gate, clamp),
                asked(options),
            )
        )

    @classmethod
    def load(
        cls,
        path: str | PathLike[str],
        **options: Unpack[LayerOptions],
    ) -> Experts:
        """Maps what :meth:`save` wrote, without copying it: the file is read once, to see that it is whole, and must
        not be changed while the layer lives. The options are those of :meth:`from_arrays`."""
        return cls._of(_native.FeedForward.open_experts(path, asked(options)))

    @staticmethod
    def _read(data: bytes, options: Any) -> _native.FeedForward:
        return _native.FeedForward.experts_from_bytes(data, options)

    @property
    def resident(self) -> list[int] | None:
        """The experts that the GPU holds, where ``gpu_bytes`` leaves others to the processor; None where it does
        not."""
        return self._layer.resident

    @property
    def streams_from(self) -> int | None:
        """Rows (tokens times experts of each) from which on the GPU computes all experts of a call, with weights that
        it brings over (``stream``); None where it never does."""
        return self._layer.streams_from[0]

    @property
    def asked(self) -> list[int] | None:
        """How often each expert was asked for since the layer was made, modulo 2**32, where they lie in two places."""
        return self._layer.asked

    def check_host(self) -> None:
        """Raises ``RuntimeError`` if the processor could not compute its experts in an earlier call, whose results are
        NaN where they needed them; once for each time. The next call would raise it too, but graphs that are replayed
        make none: ask before results are used, when the GPU is done with them."""
        self._layer.check_host()

    def host_failure(self) -> str | None:
        """What :meth:`check_host` would raise, which still raises it: for logs and monitors."""
        return self._layer.host_failure()

    def place(self, experts: Iterable[int], *, device: int = 0, stream: int = 0) -> None:
        """Moves as many experts as :attr:`resident` names to the GPU of this number, and others away from it, in the
        order of a stream by its handle (``torch.cuda.current_stream().cuda_stream``): calls before find the old ones
        there, calls behind it these. Graphs of the layer must be launched in the same stream, or in its order. A row's
        bits depend on where its expert lies."""
        self._layer.place([_number(expert, "experts") for expert in experts], device, stream)

    @property
    def heat(self) -> list[float] | None:
        """How often each expert was asked for since :meth:`place_hottest` looked last, and half of what it found then;
        None where all experts lie in one place. Plain numbers, which a later run's layer can begin with."""
        return None if self.resident is None else self._look()[1]

    def _look(self) -> tuple[list[int], list[float]]:
        asked = self.asked or []
        before, heat = self._heat or ([0] * len(asked), [0.0] * len(asked))
        return asked, [(now - then) % 2**32 + old / 2 for now, then, old in zip(asked, before, heat)]

    def place_hottest(
        self, *, most: int | None = None, heat: Sequence[float] | None = None, device: int = 0, stream: int = 0
    ) -> list[int]:
        """Moves the experts to the GPU that were asked for most since the last time (what was before counts half),
        ``most`` of them at most, in place of those asked for least; says which. An expert moves if it was asked for
        clearly more often than the one that it replaces: by more than even routing makes happen by chance. ``heat`` is
        what :attr:`heat` was in an earlier run, in place of what was counted so far. Device and stream are as for
        :meth:`place`. Nothing happens where all experts lie in one place."""
        resident = self.resident
        if resident is None:
            return []
        asked, hot = self._look()
        if heat is not None:
            hot = [float(each) for each in heat]
        if len(hot) != len(asked):
            raise ValueError(f"heat: it has {len(hot)} numbers, and the layer {len(asked)} experts")
        self._heat = asked, hot
        there = sorted(resident, key=lambda expert: hot[expert])
        away = sorted(set(range(len(asked))) - set(resident), key=lambda expert: -hot[expert])
        swaps = [(old, new) for old, new in zip(there, away[:most]) if _is_clearly_more(hot[new], hot[old])]
        if swaps:
            incoming = dict(swaps)
            self.place([incoming.get(expert, expert) for expert in resident], device=device, stream=stream)
        return [new for _, new in swaps]

    @property
    def routing(self) -> tuple[str, int] | None:
        """How logits become weights, and how many experts compute each token; None where ids and weights must be
        given."""
        return self._layer.routing

    @property
    def has_table(self) -> bool:
        """Whether a table chooses the experts by the token's number (DeepSeek-V4's first layers), so that calls need
        ``ids``, and :meth:`weigh` makes their weights."""
        return self._layer.has_table

    def weigh(self, router_logits: A, ids: A) -> A:
        """The weights that the layer's routing gives experts which something else has chosen: ``router_logits`` of
        tokens, ``[..., experts]``, and ``ids``, int32 or int64 ``[..., top_k]``, make float32 ``[..., top_k]``, with
        which the layer is called: ``layer(x, ids, layer.weigh(router_logits, ids))``. Both lie in the CPU's memory."""
        library = library_of(router_logits, "router_logits")
        if library_of(ids, "ids") is not library:
            raise TypeError("ids: it must come from the same library as router_logits")
        [logits] = self._routing(library, (router_logits,), False)
        expect_element(ids, library, IDS, "ids")
        if tuple(ids.shape[:-1]) != tuple(router_logits.shape[:-1]):
            expected = f"{[*router_logits.shape[:-1], 'top_k']} is expected, as router_logits has tokens"
            raise ValueError(f"ids: its shape is {list(ids.shape)}, where {expected}")
        weights = library.empty(router_logits, tuple(ids.shape), "float32")
        self._layer.weigh(logits, library.lendable(ids), library.writable(weights))
        return weights

    @overload
    def __call__(
        self,
        x: A,
        router_logits: A,
        /,
        *,
        adapters: Adapters | None = None,
        adapter_ids: A | None = None,
        dtype: Dtype | None = None,
        out: A | None = None,
    ) -> A: ...

    @overload
    def __call__(
        self,
        x: A,
        ids: A,
        weights: A,
        /,
        *,
        weights_on_input: bool = False,
        adapters: Adapters | None = None,
        adapter_ids: A | None = None,
        dtype: Dtype | None = None,
        out: A | None = None,
    ) -> A: ...

    def __call__(
        self,
        x: Any,
        routing: Any,
        weights: Any = None,
        /,
        *,
        weights_on_input: bool = False,
        adapters: Adapters | None = None,
        adapter_ids: Any = None,
        dtype: Dtype | None = None,
        out: Any = None,
    ) -> Any:
        """Computes tokens ``[..., k]``, of the type of ``x`` unless ``dtype`` or ``out`` says otherwise.

        Either with ``router_logits``, ``[..., experts]`` in float32 (or 16 bits, which are widened), for a layer that
        knows its routing and has no table (:attr:`has_table`); or with ``ids``, int32 or int64 ``[..., k]``, and ``weights`` of the same shape. An id
        outside of the layer's experts adds nothing, and its weight is not looked at. With ``weights_on_input`` weights
        multiply tokens instead of results (Llama-4).

        ``adapters`` are what :meth:`adapters` has made, and ``adapter_ids`` int32 ``[...]``, the number of each token's
        adapter or -1 for none. An adapter adds ``scaling * (h @ a.T) @ b.T`` in float32 to what a matrix makes of h,
        before the gate and, of down, before the token's weight. The shared expert has none.
        """
        given = (routing,) if weights is None else (routing, weights)
        return self._call(x, given, weights_on_input, dtype, out, (adapters, adapter_ids))

    def _routing(self, library: Library, routing: tuple[Any, ...], on_input: bool) -> list[Any]:
        names = ("router_logits",) if len(routing) == 1 else ("ids", "weights")
        for array, name in zip(routing, names):
            if library_of(array, name) is not library:
                raise TypeError(f"{name}: it must come from the same library as x")
        if len(routing) == 1:
            if on_input:
                raise ValueError("weights_on_input: it was given without weights; a layer's routing says that itself")
            [logits] = routing
            expect_element(logits, library, NUMBERS, "router_logits")
            if len(logits.shape) == 0 or logits.shape[-1] != self.num_experts:
                expected = f"[..., {self.num_experts}] is expected, a number per expert"
                raise ValueError(f"router_logits: its shape is {list(logits.shape)}, where {expected}")
            return [library.lendable(library.widened(logits))]
        ids, weights = routing
        expect_element(ids, library, IDS, "ids")
        expect_element(weights, library, NUMBERS, "weights")
        if ids.shape != weights.shape:
            raise ValueError(f"weights: its shape is {list(weights.shape)}, where {list(ids.shape)} is expected, as ids have")
        return [library.lendable(ids), library.lendable(library.widened(weights))]

    def __repr__(self) -> str:
        k, inner, n = self._layer.widths
        routing = "given" if self.routing is None else "{}, top {}".format(*self.routing)
        return (
            f"Experts(experts={self.num_experts}, widths={k}→{inner}→{n}, gate={self.gate!r}, routing={routing!r}, "
            f"backends={self.backends})"
        )


def _is_clearly_more(one: float, other: float) -> bool:
    """Whether a count is so much higher than another that it is not by chance: by four standard deviations of their
    difference. The extremes of a hundred experts that are asked for alike come near that."""
    return one > other and (one - other) ** 2 > 16 * (one + other)


def _lent(library: Library, numbers: tuple[Any, str]) -> tuple[Any, str]:
    return library.loan(numbers[0]), numbers[1]


def _router(
    routing: str | None, top_k: int | None, correction: Any, groups: tuple[int, int] | None, scaling: float
) -> Any:
    """A rule of routing as the native half takes it."""
    if routing is None:
        if top_k is not None or correction is not None or groups is not None or scaling != 1.0:
            raise ValueError("routing: top_k, correction, groups or scaling was given without it; give both")
        return None
    if top_k is None:
        raise ValueError(f"top_k: it is missing, and routing is {routing!r}; say how many experts compute each token")
    vector = None if correction is None else _vector(correction, "correction")
    pair = None if groups is None else (_number(groups[0], "groups"), _number(groups[1], "groups"))
    return routing, _number(top_k, "top_k"), vector, pair, float(scaling)


def _one_per_expert(column: Any, experts: int, name: str) -> list[Any]:
    values = [None] * experts if column is None else list(column)
    if len(values) != experts:
        raise ValueError(f"{name}: there are {len(values)}, and {experts} matrices in b1; every expert needs one")
    return values


def _weights(matrices: list[Any], biases: list[Any], input_scale: Any, names: list[str], of: str) -> Any:
    """The weights of one product as the native half takes them. Where one of two matrices has a bias, the other's is
    zero."""
    first = _matrix(matrices[0], f"{names[0]} of {of}")
    second = _matrix(matrices[1], f"{names[1]} of {of}") if matrices[1:] and matrices[1] is not None else None
    if second is None and any(bias is not None for bias in biases[1:]):
        raise ValueError(f"{names[1]}_bias of {of}: it is there, but its matrix is not; leave it out, or add the matrix")
    vectors = None
    if any(bias is not None for bias in biases):
        given = zip(biases, names, (first, second))
        vectors = [
            [0.0] * int(matrix[0].shape[0]) if bias is None else _vector(bias, f"{name}_bias of {of}")
            for bias, name, matrix in given
            if matrix is not None
        ]
    scale = None if input_scale is None else _vector(input_scale, f"input_scale of {of}")
    return first, second, vectors, scale
