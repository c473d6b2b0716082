"""A layer of experts whose experts are shared out among the ranks of a process group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import torch
import torch.distributed as dist

import hammerhead


def shares(experts: int, ranks: int) -> list[int]:
    """How many experts each rank holds: as even as can be, the first ones one more."""
    return [experts // ranks + (rank < experts % ranks) for rank in range(ranks)]


ELEMENTS = (torch.float16, torch.bfloat16, torch.float32)
"""The types that tokens can have."""


class Experts:
    """``y[t] = sum(w[t, j] * mlp[e[t, j]](x[t]))`` over all ranks' experts, plus a shared expert's result.

    All ranks of the group call it together, each with its own tokens, all of one type and width; a rank without tokens
    passes none (``x[:0]``). Where types or widths differ every rank raises ``ValueError``, and the group stays usable.
    A call is two exchanges there (how much, then tokens) and one back; the shared expert, which every rank has, is
    computed while tokens travel. Every expert's result comes back by itself in float32 and is added in the order of the
    token's experts, so results are those of one process to the bit, if layers are batch-invariant, as those made here
    are.

    Where a rank fails, the others' call ends with an error when the connection breaks or the group's timeout is over,
    and the group is of no use afterwards.
    """

    def __init__(
        self,
        local: hammerhead.Experts | None,
        counts: Sequence[int],
        *,
        shared: Callable[[torch.Tensor], torch.Tensor] | None = None,
        group: Any = None,
    ) -> None:
        """``local``: this rank's experts, a layer without a shared one; None where it has none. ``counts``: how many
        each rank has, in the order of ranks. ``shared``: computes every token in float32, ``[tokens, k]`` to ``[tokens,
        n]``."""
        self.group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.counts = [int(count) for count in counts]
        if len(self.counts) != self.ranks or min(self.counts, default=0) < 0:
            raise ValueError(f"counts: {self.counts} do not say how many experts each of {self.ranks} ranks has")
        held = 0 if local is None else local.num_experts
        if held != self.counts[self.rank]:
            raise ValueError(f"local: it has {held} experts, and counts give rank {self.rank} {self.counts[self.rank]}")
        self.local, self.shared = local, shared
        self.num_experts = sum(self.counts)
        owners = torch.repeat_interleave(torch.arange(self.ranks), torch.tensor(self.counts, dtype=torch.int64))
        starts = torch.tensor([sum(self.counts[:rank]) for rank in range(self.ranks)], dtype=torch.int64)
        self._places = {torch.device("cpu"): torch.stack([owners, torch.arange(self.num_experts) - starts[owners]])}

    def _places_on(self, device: torch.device) -> torch.Tensor:
        """Of every expert its rank and its number there."""
        if device not in self._places:
            self._places[device] = self._places[torch.device("cpu")].to(device)
        return self._places[device]

    @classmethod
    def from_checkpoint(
        cls,
        model: str | PathLike[str] | hammerhead.Checkpoint,
        layer: int,
        *,
        counts: Sequence[int] | None = None,
        group: Any = None,
        batch_invariant: bool = True,
        **options: Any,
    ) -> Experts:
        """Reads this rank's experts of a model's layer, and the shared one if there is one. ``counts``: :func:`shares`
        if not given. ``gpu_bytes`` is what this rank's experts may take of its GPU; the shared one lies there whole,
        beside them. The rest is as for :meth:`hammerhead.Experts.from_checkpoint`."""
        model = model if isinstance(model, hammerhead.Checkpoint) else hammerhead.Checkpoint(model)
        options["batch_invariant"] = batch_invariant
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        total, beside = model.experts(layer)
        counts = shares(total, ranks) if counts is None else list(counts)
        if len(counts) != ranks or sum(counts) != total:
            raise ValueError(f"counts: {counts} do not share the {total} experts of layer {layer} out among {ranks} ranks")
        first = sum(counts[:rank])
        own = range(first, first + counts[rank])
        load = hammerhead.Experts.from_checkpoint
        local = load(model, layer, experts=own, shared=False, **options) if own else None
        whole = {name: value for name, value in options.items() if name not in ("gpu_bytes", "stream")}
        shared = _alone(load(model, layer, experts=[0], shared=True, **whole)) if beside else None
        return cls(local, counts, shared=shared, group=group)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Computes this rank's tokens ``[tokens, k]`` by their experts ``[tokens, top_k]``, numbered over all ranks; an
        id that is nobody's adds nothing."""
        if x.dim() != 2 or ids.shape != weights.shape or ids.dim() != 2 or ids.shape[0] != x.shape[0]:
            raise ValueError(
                f"x, ids, weights: their shapes are {list(x.shape)}, {list(ids.shape)}, {list(weights.shape)}, where [tokens, k] and twice "
                "[tokens, top_k] are expected"
            )
        ids, weights = ids.to(x.device), weights.to(x.device)
        route = _Route(self, ids)
        there = self._exchange_counts(route, x)
        rows = self._start(x[route.token_of_row], route.rows_for, there[0], "tokens")
        pairs = self._start(route.pairs, route.pairs_for, there[1], "experts of tokens")
        added = None if self.shared is None else self.shared(x)
        came, asked = rows(), pairs()
        results = self._compute(came, asked, there)
        back = self._start(results, there[1], route.pairs_for, "results")()
        return route.combined(back, weights, added, x)

    def _exchange_counts(self, route: _Route, x: torch.Tensor) -> list[list[int]]:
        """How many rows and pairs every rank sends here. Beside them travels what rows are made of: an exchange of rows
        of different lengths ends the process."""
        element = ELEMENTS.index(x.dtype) if x.dtype in ELEMENTS else len(ELEMENTS)
        columns = [route.rows_for, route.pairs_for, [element] * self.ranks, [x.shape[1]] * self.ranks]
        out = torch.tensor(columns, dtype=torch.int64).t().contiguous().to(x.device)
        here = torch.empty_like(out)
        self._guarded("counts", lambda: dist.all_to_all_single(here, out, group=self.group))
        rows, pairs, elements, widths = ([int(number) for number in column] for column in here.t().tolist())
        _expect_alike([_described(*kind) for kind in zip(elements, widths)])
        return [rows, pairs]

    def _start(self, values: torch.Tensor, out: list[int], here: list[int], what: str) -> Callable[[], torch.Tensor]:
        """Sends rows off and receives others', which the returned function waits for."""
        width = values.shape[1]
        room = values.new_empty((sum(here), width))
        sent = values.contiguous()
        work = self._guarded(
            what, lambda: dist.all_to_all_single(room, sent, here, out, group=self.group, async_op=True)
        )

        def wait(sent: torch.Tensor = sent) -> torch.Tensor:
            self._guarded(what, work.wait)
            return room

        return wait

    def _compute(self, rows: torch.Tensor, pairs: torch.Tensor, there: list[list[int]]) -> torch.Tensor:
        """The result of every pair that was asked of this rank, unweighted, in float32."""
        if self.local is None or len(pairs) == 0:
            return rows.new_empty((0, rows.shape[1]), dtype=torch.float32)
        # A sender numbers the rows that it sends us; before them come those of the senders before it.
        before = torch.tensor([0, *there[0][:-1]]).cumsum(0)
        tokens = rows[pairs[:, 0] + before.repeat_interleave(torch.tensor(there[1])).to(rows.device)]
        ids = pairs[:, 1:].contiguous()
        return self.local(tokens, ids, rows.new_ones(ids.shape, dtype=torch.float32), dtype="float32")

    def _guarded(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.ranks} could not exchange {what}: a rank has failed, or did not come within the group's "
                f"timeout ({str(error).splitlines()[0]}); end the group and start it anew"
            ) from error


class _Route:
    """Where this rank's tokens go: rows sorted by rank, each token once per rank, and pairs of a row and an expert."""

    def __init__(self, layer: Experts, ids: torch.Tensor) -> None:
        tokens, self.top_k = ids.shape
        flat = ids.reshape(-1).to(torch.int64)
        mine = ((flat >= 0) & (flat < layer.num_experts)).nonzero().reshape(-1)
        owner, number = layer._places_on(ids.device)[:, flat[mine]]
        order = torch.sort(owner, stable=True).indices
        self.place = mine[order]
        """Of every pair, in the order in which they are sent: token · top_k + j."""
        owner, token = owner[order], self.place // self.top_k
        # One row per rank and token; pairs of one token are neighbours within a rank, so equal keys are.
        keys, row = torch.unique_consecutive(owner * max(tokens, 1) + token, return_inverse=True)
        self.token_of_row = keys % max(tokens, 1)
        self.rows_for = torch.bincount(keys // max(tokens, 1), minlength=layer.ranks).tolist()
        self.pairs_for = torch.bincount(owner, minlength=layer.ranks).tolist()
        before = torch.tensor([0, *self.rows_for], device=ids.device).cumsum(0)
        self.pairs = torch.stack([row - before[owner], number[order]], 1)
        """Of every pair, the row among those for its rank, and the expert's number there."""
        self.tokens = tokens

    def combined(
        self, back: torch.Tensor, weights: torch.Tensor, added: torch.Tensor | None, x: torch.Tensor
    ) -> torch.Tensor:
        """Adds up every token's results in the order of its experts, then the shared one's, and rounds once."""
        row = torch.full((self.tokens * self.top_k,), len(back), device=back.device)
        row[self.place] = torch.arange(len(back), device=back.device)
        if len(back) < len(row):
            # What is nobody's adds zero.
            back = torch.cat([back, back.new_zeros((1, back.shape[1]))])
        row, weights = row.reshape(self.tokens, self.top_k), weights.to(torch.float32)
        total = back.new_zeros((self.tokens, back.shape[1]))
        for j in range(self.top_k):
            total += back[row[:, j]].mul_(weights[:, j, None])
        if added is not None:
            total += added
        return total.to(x.dtype)


def _described(element: int, width: int) -> str:
    name = str(ELEMENTS[element]).removeprefix("torch.") if element < len(ELEMENTS) else "another type"
    return f"{name} [tokens, {width}]"


def _expect_alike(kinds: list[str]) -> None:
    """Refuses a call in which ranks pass tokens of different kinds; every rank sees all of them, and raises the
    same."""
    ranks: dict[str, list[int]] = {}
    for rank, kind in enumerate(kinds):
        ranks.setdefault(kind, []).append(rank)
    if len(ranks) > 1 or any(kind.startswith("another") for kind in ranks):
        found = "; ".join(f"{kind} on rank{'s' * (len(of) > 1)} {', '.join(map(str, of))}" for kind, of in ranks.items())
        names = ", ".join(str(element).removeprefix("torch.") for element in ELEMENTS)
        raise ValueError(f"x: it is {found}; all ranks must pass tokens of one width and one type ({names}), also where they pass none")


def _alone(layer: hammerhead.Experts) -> Callable[[torch.Tensor], torch.Tensor]:
    """The shared expert of a layer by itself: what is left if no expert is asked."""

    def shared(x: torch.Tensor) -> torch.Tensor:
        nobody = torch.full((x.shape[0], 1), -1, dtype=torch.int32, device=x.device)
        return layer(x, nobody, torch.zeros(nobody.shape, device=x.device), dtype="float32")

    return shared
