"""What one would use instead of `hammerhead.Experts`: the peers that `peers_moe.py` times.

A peer is made for a layer, and `ways(tokens, fp8)` gives its calls by name, each from tokens and the router's logits to
the combined result. Nothing of the peers is in this repository: their packages are found where they are installed, or
in folders that are named. In doubt a peer is favoured: its weights are in its best layout beforehand, it chooses its
configurations, and vLLM's own kernels route and sum.
"""

import json
import pathlib
import sys

import torch
import triton
import triton.language as tl

# Where one code of e2m1 ends and the next begins.
BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def mxfp4(matrix):
    """The codes of a matrix [n, k], two per byte, and its e8m0 scales [n, k/32], as OCP's recommendation has them."""
    blocks = matrix.float().unflatten(-1, (-1, 32))
    exponents = blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-100).log2().floor() - 2
    values = blocks / exponents.exp2()
    codes = torch.bucketize(values.abs(), torch.tensor(BETWEEN, device=matrix.device)) + 8 * (values < 0)
    codes = codes.flatten(-2).unflatten(-1, (-1, 2)).to(torch.uint8)
    return codes[..., 0] | codes[..., 1] << 4, (exponents[..., 0] + 127).to(torch.uint8)


class Triton:
    """triton_kernels of the Triton project, of one folder or as it is installed, with its routing and its fused SwiGLU.

    Weights are MXFP4, and the gate is that of gpt-oss whatever the model, so that its results are not compared. Tokens
    in FP8 do not compile with its layouts for Hopper (v3.5.1, v3.7.1).
    """

    def __init__(self, layer, folder):
        self.layer = layer
        self.name = f"triton {pathlib.Path(folder).name}".strip()
        # One process holds several versions of the package, which import more of themselves when they are called.
        self.modules = {}
        self._be_the_package()
        if folder:
            sys.path.insert(0, folder)
        from triton_kernels import swiglu
        from triton_kernels.numerics import InFlexData
        from triton_kernels.numerics_details.mxfp import downcast_to_mxfp
        from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
        from triton_kernels.tensor_details import layout

        try:
            from triton_kernels import matmul as products
        except ImportError:
            from triton_kernels import matmul_ogs as products
        newer = hasattr(products, "matmul")

        def packed(matrix, warps):
            """A matrix in the layout for so many warps; older versions give a layout's class and its options."""
            axis = -2 if newer else 1
            layouts = (
                layout.make_default_matmul_mxfp4_w_layout(axis),
                layout.make_default_matmul_mxfp4_w_scale_layout(axis, warps),
            )
            values, scales = [(made, {}) if newer else made for made in layouts]
            codes, blocks = (part[layer.which] for part in downcast_to_mxfp(matrix.contiguous(), torch.uint8, axis=1))
            # What is packed lies along the unit stride.
            codes, blocks = (part.mT.contiguous().mT for part in (codes, blocks))
            weights = convert_layout(wrap_torch_tensor(codes, dtype=FP4), values[0], **values[1])
            blocks = convert_layout(wrap_torch_tensor(blocks), scales[0], **scales[1])
            config = {"b_mx_scale" if newer else "weight_scale": blocks, "out_dtype": torch.bfloat16}
            return weights, products.PrecisionConfig(flex_ctx=products.FlexCtx(rhs_data=InFlexData()), **config)

        specs = "swiglu", swiglu.swiglu_fn, ("alpha", "limit")
        if newer:
            gate = products.FusedActivation(products.FnSpecs(*specs, reduction_n=2), (1.702, 7.0))
        else:
            gate = products.FusedActivation(products.FnSpecs(*specs), (1.702, 7.0), 2)
        biases = [torch.zeros(layer.experts, width, device="cuda") for width in (2 * layer.n, layer.k)]
        run = self._newer(products, gate, biases) if newer else self._older(products, gate, biases)
        self.packed, self.run, self.warps = packed, run, None
        self.modules = self._imported()

    @staticmethod
    def _imported():
        return {name: module for name, module in sys.modules.items() if name.split(".")[0] == "triton_kernels"}

    def _be_the_package(self):
        """Makes this version the one that `import triton_kernels` finds."""
        for name in self._imported():
            del sys.modules[name]
        sys.modules.update(self.modules)

    def _newer(self, products, gate, biases):
        from triton_kernels.reduce import reduce
        from triton_kernels.tensor import make_ragged_tensor_metadata
        from triton_kernels.topk import topk

        layer = self.layer

        def run(x, logits, both, of_both, down, of_down):
            routed = topk(logits.to(torch.bfloat16), layer.top, apply_softmax=True)
            order = routed.mask_metadata.col_sorted_indx
            ragged = make_ragged_tensor_metadata(routed.mask_metadata.col_sum, len(order))
            inner = products.matmul(
                x,
                both,
                biases[0],
                ragged,
                gather_indx=order // layer.top,
                precision_config=of_both,
                fused_activation=gate,
            )
            weights = routed.vals.flatten()[order]
            out = products.matmul(
                inner, down, biases[1], ragged, scatter_indx=order, precision_config=of_down, gammas=weights
            )
            return reduce(out.view(len(x), layer.top, layer.k), dim=1)[0]

        return run

    def _older(self, products, gate, biases):
        from triton_kernels.routing import routing

        def run(x, logits, both, of_both, down, of_down):
            routed, gather, scatter = routing(logits.to(torch.bfloat16), self.layer.top)
            inner = products.matmul_ogs(
                x, both, biases[0], routed, gather_indx=gather, precision_config=of_both, fused_activation=gate
            )
            weights = routed.gate_scal
            return products.matmul_ogs(
                inner, down, biases[1], routed, scatter_indx=scatter, precision_config=of_down, gammas=weights
            )

        return run

    def ways(self, tokens, fp8):
        warps = 4 if tokens <= 512 else 8
        self._be_the_package()
        if warps != self.warps:
            self.both, self.down = None, None
            self.both, self.down, self.warps = (
                self.packed(self.layer.some_both, warps),
                self.packed(self.layer.some_down, warps),
                warps,
            )

        def run(x, logits):
            self._be_the_package()
            result = self.run(x, logits, *self.both, *self.down)
            self.modules = self._imported()
            return result

        return {self.name: run}


class Vllm:
    """The kernels of vLLM's `_moe_C` library around its products: routing, sorting by expert, and sums."""

    def __init__(self, layer, library):
        torch.ops.load_library(library)
        self.layer, self.ops = layer, torch.ops._moe_C

    def routed(self, logits):
        """Weights and numbers of every token's experts; softmax over the chosen is what both routings come to."""
        weights = torch.empty(len(logits), self.layer.top, device="cuda")
        ids, rows = (torch.empty(len(logits), self.layer.top, device="cuda", dtype=torch.int32) for _ in range(2))
        self.ops.topk_softmax(weights, ids, rows, logits, True, None, None)
        return weights, ids

    def sorted(self, ids, block):
        """The tokens of every expert in blocks of so many, the expert of each block, and how many rows that makes."""
        room = ids.numel() + self.layer.experts * (block - 1)
        if ids.numel() < self.layer.experts:
            room = min(room, ids.numel() * block)
        order, owners, total = (
            torch.empty(size, device="cuda", dtype=torch.int32) for size in (room, -(-room // block), 1)
        )
        self.ops.moe_align_block_size(ids, self.layer.experts, block, order, owners, total, None, None)
        return order, owners, total


@triton.jit
def _gated(values, out, n: tl.constexpr, oss: tl.constexpr, block: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * block + tl.arange(0, block)
    g = tl.load(values + row * 2 * n + at, mask=at < n, other=0.0).to(tl.float32)
    u = tl.load(values + row * 2 * n + n + at, mask=at < n, other=0.0).to(tl.float32)
    if oss:
        g, u = tl.minimum(g, 7.0), tl.minimum(tl.maximum(u, -7.0), 7.0) + 1.0
        g = g * tl.sigmoid(1.702 * g)
    else:
        g = g * tl.sigmoid(g)
    tl.store(out + row * n + at, (g * u).to(tl.bfloat16), mask=at < n)


class Marlin(Vllm):
    """vLLM's Marlin layer, `fused_marlin_moe`, with its kernels and the layer's own NVFP4 weights.

    The gate is a kernel of this file, since vLLM's is in another library. Marlin has no FP8 tokens for Hopper. When its
    kernel multiplies by the experts' weights, it applies the global scale with them, after the bias: where there are
    biases, another of vLLM's kernels multiplies by the weights.
    """

    def __init__(self, layer, library):
        super().__init__(layer, library)
        self.width = layer.n if layer.k % 128 == 0 else -(-layer.n // 128) * 128
        pad = self.width - layer.n
        rows = lambda part: torch.nn.functional.pad(part, (0, 0, 0, pad))  # noqa: E731
        columns = lambda part, each: torch.nn.functional.pad(part, (0, pad // each))  # noqa: E731
        both, down = [], []
        for b1, b2, b3 in layer.firsts:
            both.append(
                [
                    torch.cat([rows(b1.codes), rows(b2.codes)]),
                    torch.cat([rows(b1.scales), rows(b2.scales)]),
                    b1.global_scale,
                ]
            )
            down.append([columns(b3.codes, 2), columns(b3.scales, 16), b3.global_scale])
        biases = [None, None]
        if layer.biases[0] is not None:
            gate_and_up = torch.cat([torch.nn.functional.pad(bias, (0, pad)) for bias in layer.biases[:2]], 1)
            biases = [self._bias(bias.to(torch.bfloat16)) for bias in (gate_and_up, layer.biases[2])]
        self.both, self.down = (*self._packed(both), biases[0]), (*self._packed(down), biases[1])
        self.locks = torch.zeros(
            4 * torch.cuda.get_device_properties(0).multi_processor_count, device="cuda", dtype=torch.int32
        )

    @staticmethod
    def _bias(bias):
        order = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
        return bias.view(-1, 32)[:, order].view(bias.shape).contiguous()

    def _packed(self, matrices):
        """For all experts: weights in Marlin's tiles of 16×64, scales in its order without a sign, global scales."""
        packed = [(self._tiles(codes), self._scales(scales)) for codes, scales, _ in matrices]
        weights, scales = (torch.stack([part[index] for part in packed])[self.layer.which] for index in range(2))
        # The kernel takes codes and scales as bits of bf16 whose exponents are too small by this much.
        factors = torch.tensor([factor * 2.0 ** (126 - 7) for *_, factor in matrices], device="cuda")[self.layer.which]
        return weights, scales, factors

    @staticmethod
    def _tiles(codes):
        n, k = len(codes), 2 * codes.shape[1]
        values = torch.stack([codes & 15, codes >> 4], -1).view(n, k).T.int()
        lane = lambda i: [
            16 * row + i // 4 + 8 * half for half in (0, 1) for row in (2 * (i % 4) + j for j in (0, 1, 8, 9))
        ]  # noqa: E731
        order = torch.tensor([at + 256 * j for i in range(32) for j in range(4) for at in lane(i)]).view(-1, 8)[
            :, [0, 2, 4, 6, 1, 3, 5, 7]
        ]
        tiles = (
            values.reshape(k // 16, 16, n // 16, 16).permute(0, 2, 1, 3).reshape(-1, 1024)[:, order.flatten().cuda()]
        )
        words = tiles.reshape(k // 16, -1, 8) << torch.arange(0, 32, 4, device="cuda", dtype=torch.int32)
        return words.sum(-1, dtype=torch.int32)

    @staticmethod
    def _scales(scales):
        rows = scales.view(torch.float8_e4m3fn).half().T.reshape(-1, 64)
        # The format has no scales below 2⁻⁶.
        rows = (rows * (rows >= 2.0**-6))[:, [i + 8 * j for i in range(8) for j in range(8)]].view(-1, 4)[
            :, [0, 2, 1, 3]
        ]
        bits = (rows.reshape(-1, len(scales)) * 2**7).view(torch.int16) << 1
        return bits.view(torch.float8_e4m3fn)[:, 1::2].contiguous()

    def ways(self, tokens, fp8):
        layer = self.layer
        block = next((size for size in (8, 16, 32, 48) if tokens * layer.top / layer.experts / size < 0.9), 64)
        themselves = torch.arange(tokens * layer.top, device="cuda", dtype=torch.int32)

        def product(x, matrix, out, sorted_ids, weights, top, last):
            values, scales, factors, bias = matrix
            order, owners, total = sorted_ids
            n, k = out.shape[1], x.shape[1]
            # From the type e2m1's number: rows, columns, k; no atomics, sums in f32; shapes of its own choice.
            return self.ops.moe_wna16_marlin_gemm(
                x, out, values, bias, scales, None, factors, None, self.locks, order, owners, total, weights,
                block, top, last, 562949953487106, len(x), n, k, False, True, False, -1, -1, -1,
            )  # fmt: skip

        def run(x, logits):
            weights, ids = self.routed(logits)
            order = self.sorted(ids, block)
            rows = ids.numel()
            both, inner, out = (x.new_empty(rows, width) for width in (2 * self.width, self.width, layer.k))
            product(x, self.both, both, order, weights, layer.top, False)
            _gated[rows, triton.cdiv(self.width, 1024)](both, inner, self.width, layer.gate == "gpt-oss", 1024)
            biased = self.down[-1] is not None
            product(inner, self.down, out, order, weights, 1, not biased)
            if not biased:
                return out.view(len(x), layer.top, layer.k).sum(1)
            result = torch.empty_like(x)
            self.ops.moe_unpermute(out, weights, themselves, None, layer.top, result)
            return result

        return {"marlin": run}


class Humming(Vllm):
    """humming_kernels as vLLM's `HummingIndexedExperts` calls them, with the configurations that the package chooses.

    Three ways: with bf16 tokens the layer's own NVFP4 weights, and MXFP4 weights, which are 6 % smaller; with FP8
    tokens, one scale per token, MXFP4 weights, since the package has no NVFP4 weights for Hopper there.
    """

    GATES = {
        "silu": "(a / (1.f + expf(-a))) * b",
        "gpt-oss": "[](float a, float b) { const float g = fminf(a, 7.f); const float u = fmaxf(fminf(b, 7.f), -7.f);"
        " return g / (1.f + expf(-1.702f * g)) * (u + 1.f); }(a, b)",
    }

    def __init__(self, layer, library):
        super().__init__(layer, library)
        both = []
        for b1, b2, _ in layer.firsts:
            codes, scales = torch.cat([b1.codes, b2.codes]), torch.cat([b1.scales, b2.scales])
            both.append(type(b1)(codes, scales, b1.global_scale))
        biases = [None, None]
        if layer.biases[0] is not None:
            biases = [torch.cat(layer.biases[:2], 1).to(torch.bfloat16), layer.biases[2].to(torch.bfloat16)]
        self.formats = {"nvfp4": [], "mxfp4": [], "mxfp4 fp8": []}
        for matrices, bias in zip((both, [b3 for *_, b3 in layer.firsts]), biases):
            rounded = [mxfp4(matrix.dequantize()) for matrix in matrices]
            own = {
                "weight": self._all([matrix.codes for matrix in matrices]),
                "weight_scale": self._all([matrix.scales for matrix in matrices]).view(torch.float8_e4m3fn),
                "weight_scale_2": self._all([torch.tensor(matrix.global_scale) for matrix in matrices]),
            }
            other = {
                "weight": self._all([codes for codes, _ in rounded]),
                "weight_scale": self._all([scales for _, scales in rounded]).view(torch.float8_e8m0fnu),
            }
            self.formats["nvfp4"].append(self._packed(own, bias, "nvfp4", "bfloat16"))
            self.formats["mxfp4"].append(self._packed(other, bias, "mxfp4", "bfloat16"))
            self.formats["mxfp4 fp8"].append(self._packed(other, bias, "mxfp4", "float8e4m3"))

    def _all(self, parts):
        """Of the few experts that differ, all of the layer's."""
        return torch.stack(parts).to(self.layer.which.device)[self.layer.which]

    @staticmethod
    def schemas(weights, dtype):
        from humming.schema import HummingInputSchema, HummingWeightSchema

        options = {"bs_dtype": "float8e4m3", "weight_scale_group_size": 16, "weight_scale_2_type": "tensor"}
        if weights == "mxfp4":
            options = {"bs_dtype": "float8e8m0", "weight_scale_group_size": 32}
        return HummingWeightSchema(b_dtype="float4e2m1", **options), HummingInputSchema(a_dtype=dtype)

    def _packed(self, tensors, bias, weights, dtype):
        """One of the layer's two stacks of matrices as the package wants it: its description, and its tensors."""
        from humming.transform import prepare_and_transform_humming_tensors

        tensors = {name: part.clone() for name, part in tensors.items()}
        tensors["weight"] = tensors["weight"].view(torch.int32)
        n, k = tensors["weight"].shape[1], 8 * tensors["weight"].shape[2]
        if bias is not None:
            tensors["bias"] = bias
        weight_schema, input_schema = self.schemas(weights, dtype)
        return prepare_and_transform_humming_tensors(
            tensors,
            n,
            k,
            weight_schema,
            input_schema,
            self.layer.experts,
            256,
            128,
            bias is not None,
            torch.bfloat16,
            torch.device("cuda", 0),
        )

    def ways(self, tokens, fp8):
        return {
            f"humming {name}": self._way(parts, tokens)
            for name, parts in self.formats.items()
            if fp8 or not name.endswith("fp8")
        }

    def _way(self, parts, tokens):
        from humming.forward import humming_forward, may_process_input
        from humming.tune import get_heuristics_config

        layer, rows = self.layer, tokens * self.layer.top
        plans = [get_heuristics_config(config, rows, gemm_type="indexed") for config, _ in parts]
        blocks = [plan["block_shape"][0] for plan in plans]
        locks = torch.zeros(2048, device="cuda", dtype=torch.int32)
        themselves = torch.arange(rows, device="cuda", dtype=torch.int32)

        def product(part, x, scale, out, ids, top):
            (config, tensors), plan, (order, owners, total) = parts[part], plans[part], ids
            return humming_forward(
                config, x, **tensors, outputs=out, input_scale=scale, sorted_ids=order, expert_ids=owners,
                num_tokens_padded=total, locks=locks, top_k=top, valid_shape_m=rows,
                compute_config=json.dumps({"gemm_type": "indexed"}), tuning_config=json.dumps(plan),
            )  # fmt: skip

        def run(x, logits):
            weights, ids = self.routed(logits)
            order = self.sorted(ids, blocks[0])
            both, out, result = x.new_empty(rows, 2 * layer.n), x.new_empty(rows, layer.k), torch.empty_like(x)
            values, _, scale = may_process_input(parts[0][0], x)
            product(0, values, scale, both, order, layer.top)
            inner, _, scale = may_process_input(
                parts[1][0], both, activation_type="binary_split", activation_impl=self.GATES[layer.gate]
            )
            product(1, inner, scale, out, order if blocks[0] == blocks[1] else self.sorted(ids, blocks[1]), 1)
            self.ops.moe_unpermute(out, weights, themselves, None, layer.top, result)
            return result

        return run


def found(layer, folders, library):
    """The peers that are there, by the names that their results have, and whatever the others died of."""
    makers = [(f"triton {folder}".strip(), lambda folder=folder: Triton(layer, folder)) for folder in folders]
    if library:
        makers += [("marlin", lambda: Marlin(layer, library)), ("humming", lambda: Humming(layer, library))]
    peers = []
    for name, make in makers:
        try:
            peers.append(make())
        except Exception as problem:  # noqa: BLE001  (whatever a peer dies of is its result)
            print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}")
    return peers
