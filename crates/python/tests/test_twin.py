"""Whether a module computes what ours does: modules that do, and modules that differ in one thing each."""

import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import hammerhead  # noqa: E402
from hammerhead._twin import Differs, Stacks, alike, experts_form, mlp_form  # noqa: E402

WIDE, NARROW, COUNT = 256, 128, 5


class Mlp(nn.Module):
    def __init__(self, act=F.silu, multiplier=1.0, bias=False, wide=WIDE, narrow=NARROW):
        super().__init__()
        self.hidden_size, self.act, self.multiplier = wide, act, multiplier
        with torch.device("meta"):
            self.gate_proj = nn.Linear(wide, narrow, bias=bias)
            self.up_proj = nn.Linear(wide, narrow, bias=bias)
            self.down_proj = nn.Linear(narrow, wide, bias=bias)

    def forward(self, x):
        assert x.shape[-1] == self.hidden_size
        return self.down_proj(self.act(self.gate_proj(x) * self.multiplier) * self.up_proj(x))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(256, 128), (128, 128), (64, 128), (192, 4160)])
def test_a_gated_mlp_is_known_by_its_gate(bias, sizes):
    assert mlp_form(Mlp(bias=bias, wide=sizes[0], narrow=sizes[1])).gate == "silu"
    gelu = Mlp(lambda x: F.gelu(x, approximate="tanh"), bias=bias, wide=sizes[0], narrow=sizes[1])
    assert mlp_form(gelu).gate == "gelu-tanh"


@pytest.mark.parametrize("act", [F.gelu, F.relu, lambda x: F.silu(x).clamp(max=20), lambda x: F.silu(x) * (x.abs() > x.abs().mean(-1, True))])
def test_another_function_is_not_taken_for_ours(act):
    with pytest.raises(Differs, match="computes something else"):
        mlp_form(Mlp(act))


def test_a_multiplier_is_seen():
    with pytest.raises(Differs, match="computes something else"):
        mlp_form(Mlp(multiplier=1.001))


def test_a_limit_that_the_module_names_is_found():
    mlp = Mlp()
    mlp.swiglu_limit = 10.0
    mlp.forward = types.MethodType(
        lambda self, x: self.down_proj(F.silu(self.gate_proj(x).clamp(max=10)) * self.up_proj(x).clamp(-10, 10)), mlp
    )
    assert mlp_form(mlp).gate == "silu:limit=10.0"


def test_weights_beside_the_projections_are_not_forgotten():
    mlp = Mlp()
    mlp.norm = nn.LayerNorm(WIDE, device="meta")
    with pytest.raises(Differs, match=r"norm\.(weight|bias) beside its projections"):
        mlp_form(mlp)


def test_modules_share_a_twin_only_if_their_attributes_are_the_same():
    act = F.silu
    assert alike(Mlp(act)) == alike(Mlp(act))
    assert alike(Mlp(act)) != alike(Mlp(act, multiplier=0.5))
    assert alike(Mlp(act)) != alike(Mlp(act, narrow=64))


class Experts(nn.Module):
    """As transformers' are: stacked matrices, and a loop over experts."""

    def __init__(self, turned=False, halves="first", beyond=0, bias=False, act=F.silu, scale=1.0):
        super().__init__()
        self.num_experts, self.hidden_dim, self.intermediate_dim = COUNT, WIDE, NARROW
        self.turned, self.halves, self.act, self.scale = turned, halves, act, scale
        first, down = (2 * NARROW, WIDE), (WIDE, NARROW)
        with torch.device("meta"):
            self.gate_up_proj = nn.Parameter(torch.empty(COUNT + beyond, *(first[::-1] if turned else first)))
            self.down_proj = nn.Parameter(torch.empty(COUNT, *(down[::-1] if turned else down)))
            if bias:
                self.gate_up_proj_bias = nn.Parameter(torch.empty(COUNT, 2 * NARROW))
                self.down_proj_bias = nn.Parameter(torch.empty(COUNT, WIDE))

    def one(self, x, e):
        if e >= self.num_experts:
            return x
        first, down = self.gate_up_proj[e], self.down_proj[e]
        first, down = (first.T, down.T) if self.turned else (first, down)
        bias = hasattr(self, "gate_up_proj_bias")
        both = F.linear(x, first, self.gate_up_proj_bias[e] if bias else None)
        gate, up = (both[..., ::2], both[..., 1::2]) if self.halves == "even" else both.chunk(2, -1)
        gate, up = (up, gate) if self.halves == "second" else (gate, up)
        return F.linear(self.act(gate) * up, down, self.down_proj_bias[e] if bias else None) * self.scale

    def forward(self, hidden, ids, weights):
        assert hidden.shape[-1] == self.hidden_dim
        rows = [sum(self.one(x, int(e)) * w for e, w in zip(*row)) for x, *row in zip(hidden, ids, weights)]
        return torch.stack(rows)


class Sorted(Experts):
    def forward(self, hidden):
        each = hidden.view(self.num_experts, -1, self.hidden_dim)
        return torch.stack([self.one(x, e) for e, x in enumerate(each)]).view(hidden.shape)


def form_of(module):
    return experts_form(module, Stacks.of(module))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("halves", "rows"), [("first", ("first-half", "second-half")), ("even", ("even", "odd")), ("second", ("second-half", "first-half"))])
@pytest.mark.parametrize("bias", [False, True])
def test_the_arrangement_of_experts_is_found(turned, halves, rows, bias):
    form = form_of(Experts(turned, halves, bias=bias))
    assert (form.gate, form.halves, form.sorted, form.count, form.beyond) == ("silu", rows, False, COUNT, 0)


def test_experts_that_take_sorted_rows_are_known():
    assert form_of(Sorted(turned=True)).sorted


def test_experts_without_weights_return_their_token():
    assert form_of(Experts(beyond=3)).beyond == 3


def test_a_token_that_is_returned_is_computed_by_no_expert():
    form, rows = form_of(Experts(beyond=3)), []

    def layer(x, ids, weights):
        rows.append(ids)
        return torch.zeros_like(x)

    x, ids = torch.randn(2, WIDE), torch.tensor([[COUNT, 1], [COUNT + 2, COUNT + 1]])
    weights = torch.tensor([[0.25, 0.5], [2.0, 1.0]])
    assert torch.equal(form(layer, x, ids, weights), x * torch.tensor([[0.25], [3.0]]))
    assert torch.equal(rows[0], ids), "an id beyond the layer's experts adds nothing there"
    # A token that the first expert would make infinite.
    matrices = [[hammerhead.quantize(torch.ones(sides)) for _ in range(COUNT)] for sides in ((NARROW, WIDE), (NARROW, WIDE), (WIDE, NARROW))]
    large = torch.full((1, WIDE), 1e30)
    returned = form(hammerhead.Experts.from_arrays(*matrices), large, torch.tensor([[COUNT]]), torch.ones(1, 1))
    assert torch.equal(returned, large)


def test_a_gate_with_a_limit_and_a_shift_is_found():
    class GptOss(Experts):
        alpha, limit = 1.702, 7.0

        def __init__(self):
            super().__init__(turned=True, halves="even", bias=True)
            self.alpha, self.limit = 1.702, 7.0

        def one(self, x, e):
            both = x @ self.gate_up_proj[e] + self.gate_up_proj_bias[e]
            gate, up = both[..., ::2].clamp(max=self.limit), both[..., 1::2].clamp(-self.limit, self.limit)
            return ((up + 1) * gate * torch.sigmoid(gate * self.alpha)) @ self.down_proj[e] + self.down_proj_bias[e]

    form = form_of(GptOss())
    assert form.gate == "gpt-oss:alpha=1.702,beta=1,limit=7.0" and form.halves == ("even", "odd")


@pytest.mark.parametrize("module", [lambda: Experts(scale=1.01), lambda: Experts(act=F.gelu), lambda: Sorted(scale=0.5)])
def test_experts_that_compute_something_else_are_told(module):
    with pytest.raises(Differs, match="computes something else"):
        form_of(module())


def test_a_norm_after_experts_is_not_forgotten():
    experts = Experts()
    experts.post_expert_norm = nn.LayerNorm(WIDE, device="meta")
    with pytest.raises(Differs, match="post_expert_norm"):
        form_of(experts)


def test_experts_that_cannot_be_run_by_themselves_say_why():
    class Needy(Experts):
        def forward(self, hidden, ids, weights):
            return hidden + self.missing

    with pytest.raises(Differs, match="cannot be run by itself .*missing"):
        form_of(Needy())
