"""``hammerhead.sim``: kernels as text, and Triton's where its compiler is there. No GPU is needed for either."""

from pathlib import Path

import numpy as np
import pytest

from hammerhead import sim

KERNELS = Path(__file__).parent / "data" / "kernels"

HAND = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry hand(.param .u64 out, .param .u32 n) .reqntid 64
{
.reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %d<4>;
.shared .align 4 .b8 words[256];
mov.u32 %r1, %tid.x; mov.b32 %r2, words; mad.lo.s32 %r3, %r1, 4, %r2;
st.shared.u32 [%r3], %r1;
bar.sync 0;
xor.b32 %r4, %r1, 32; mad.lo.s32 %r4, %r4, 4, %r2;
ld.shared.u32 %r5, [%r4];
ld.param.u32 %r6, [n]; setp.lt.u32 %p1, %r1, %r6;
ld.param.u64 %d1, [out]; mad.wide.u32 %d2, %r1, 4, %d1;
@%p1 st.global.u32 [%d2], %r5;
ret;
}
"""


def add_kernel():
    """`add` of triton_kernels.py with BLOCK=1024 for sm_90, as Triton 3.9 compiles it: three pointers, a number, two
    pointers to scratch memory."""
    return (KERNELS / "add.ptx").read_text()


def test_results_are_in_the_caller_s_array():
    out = np.full(64, 7, dtype=np.uint32)
    report = sim.launch(HAND, 1, [out, 60])
    assert report.findings == [] and report.kernel == "hand" and report.differs == [] and report.schedules == 10
    assert out.tolist() == [(i ^ 32) if i < 60 else 7 for i in range(64)]
    assert str(report) == "hand: nothing found under 10 schedules"


def test_a_missing_barrier_is_a_race_with_both_lines():
    report = sim.launch(HAND.replace("bar.sync 0;", ""), 1, [np.zeros(64, dtype=np.uint32), 64])
    race = next(found for found in report.findings if found.rule == "race")
    assert race.grade == "broken" and {race.line, race.other_line} == {10, 13}
    assert "shared memory" in race.place and "order" in race.lacks and "barrier" in race.remedy
    assert "findings under 10 schedules" in str(report) and "race on 4 bytes" in str(report)


def test_what_was_never_written_must_not_be_computed_with():
    doubled = HAND.replace("st.global.u32 [%d2], %r5;", "ld.global.u32 %r7, [%d2]; @%p1 st.global.u32 [%d2], %r7;")
    held = np.arange(64, dtype=np.uint32)
    assert sim.launch(doubled, 1, [held, 64]).findings == []
    report = sim.launch(doubled, 1, [sim.Tensor(held, written=False), 64])
    assert {found.rule for found in report.findings} == {"uninitialised read"}


def test_what_a_kernel_leaves_out_of_an_unwritten_array_stays():
    out = np.full(64, 7, dtype=np.uint32)
    assert sim.launch(HAND, 1, [sim.Tensor(out, written=False), 3]).findings == []
    assert out.tolist() == [32, 33, 34] + [7] * 61


def test_what_triton_compiled_adds(rng):
    n = 1504
    x, y = (rng.standard_normal(n, dtype=np.float32) for _ in range(2))
    out = np.empty(n, dtype=np.float32)
    report = sim.launch(add_kernel(), 2, [x, y, sim.Tensor(out, written=False), n, 0, 0], schedules=4)
    assert report.findings == [] and report.profile
    np.testing.assert_array_equal(out, x + y)


def test_beyond_the_end_is_out_of_bounds():
    x = np.zeros(1504, dtype=np.float32)
    report = sim.launch(add_kernel(), 2, [x, x.copy(), x.copy(), 1600, 0, 0])
    assert {found.rule for found in report.findings} == {"out of bounds"}


def test_views_share_memory_and_keep_their_place():
    both = np.zeros(3000, dtype=np.float32)
    both[:1504] = np.arange(1504)
    x, out = both[:1504], both[752:2256]
    report = sim.launch(add_kernel(), 2, [x, x, out, 1504, 0, 0])
    # Half of the results lie over what others still read.
    assert any(found.rule == "race" for found in report.findings)
    odd = np.zeros(1505, dtype=np.float32)[1:]
    report = sim.launch(add_kernel(), 2, [odd, x.copy(), x.copy(), 1504, 0, 0])
    assert [found.rule for found in report.findings] == ["misaligned"], "the kernel was compiled for multiples of 16"


TILE = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry tile(.param .align 64 .b8 map[128], .param .u64 out) .reqntid 32
{
.reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %d<5>;
.shared .align 128 .b8 box[64];
.shared .align 8 .b64 full;
mov.u32 %r1, %tid.x; setp.eq.u32 %p1, %r1, 0;
mov.b32 %r2, full; mov.b32 %r3, box; mov.b32 %r4, 8; mov.b32 %r5, 1;
mov.b64 %d1, map; cvta.param.u64 %d1, %d1;
@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p1 fence.mbarrier_init.release.cluster;
bar.sync 0;
@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%d1, {%r4, %r5}], [%r2];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;
@!%p2 bra WAIT;
shl.b32 %r6, %r1, 1; add.s32 %r6, %r6, %r3; ld.shared.u16 %r7, [%r6];
ld.param.u64 %d2, [out]; mad.wide.u32 %d3, %r1, 2, %d2;
st.global.u16 [%d3], %r7;
ret;
}
"""


def test_a_tile_by_a_tensor_map():
    a = np.arange(16 * 16, dtype=np.uint16).reshape(16, 16)
    out = np.zeros((4, 8), dtype=np.uint16)
    report = sim.launch(TILE, 1, [sim.TensorMap(a, box=(4, 8)), out])
    assert not report.findings, report
    np.testing.assert_array_equal(out, a[1:5, 8:16])
    with pytest.raises(ValueError, match="argument 0: .*as many sides"):
        sim.launch(TILE, 1, [sim.TensorMap(a, box=(8,)), out])
    with pytest.raises(TypeError, match="float64"):
        sim.launch(TILE, 1, [sim.TensorMap(a.astype(float), box=(4, 8)), out])


def test_a_structure_by_its_parts():
    # The same kernel with one parameter: the map, the pointer behind it, and a number that nobody reads.
    text = TILE.replace(".b8 map[128], .param .u64 out)", ".b8 map[192])").replace("[out]", "[map+128]")
    a = np.arange(16 * 16, dtype=np.uint16).reshape(16, 16)
    out = np.zeros((4, 8), dtype=np.uint16)
    params = {0: sim.TensorMap(a, box=(4, 8)), 128: out, 136: np.uint32(64), 140: b"\1\2"}
    report = sim.launch(text, 1, [sim.Parts(params)])
    assert not report.findings, report
    np.testing.assert_array_equal(out, a[1:5, 8:16])
    for change, error, match in [
        ({132: np.uint32(1)}, ValueError, "part at 128 ends before byte 136, and the part at 132 overlaps"),
        ({188: np.uint64(1)}, ValueError, "part at 188: its 8 bytes reach beyond the parameter's 192"),
        ({0: b"", 32: sim.TensorMap(a, box=(4, 8))}, ValueError, "multiple of 64"),
        ({144: 64}, TypeError, "the part at 144 is a int; .*numpy.uint32"),
    ]:
        with pytest.raises(error, match=match):
            sim.launch(text, 1, [sim.Parts(params | change)])


def test_torch_s_tensors():
    torch = pytest.importorskip("torch")
    x, y = torch.randn(1504), torch.randn(1504)
    out = torch.empty(1504)
    assert sim.launch(add_kernel(), 2, [x, y, out, 1504, 0, 0]).findings == []
    assert torch.equal(out, x + y)


def test_what_cannot_be_run_is_refused_with_a_reason():
    out = np.zeros(64, dtype=np.uint32)
    for change, text, args in [
        ("line 1, column", "no ptx", [out, 1]),
        ("2 parameters: out, n", HAND, [out]),
        ("does not fit into 4 bytes", HAND, [out, 2**40]),
        ("shfl", HAND.replace("bar.sync 0;", "shfl.sync.nothing %r5;"), [out, 64]),
        ("no name", HAND, [out, 64]),
    ]:
        with pytest.raises(ValueError, match=change):
            sim.launch(text, 1, args, entry="no name" if change == "no name" else None)
    with pytest.raises(ValueError, match="letter"):
        sim.launch(HAND, 1, [out, 64], rules="mine")
    with pytest.raises(ValueError, match="one to three"):
        sim.launch(HAND, (1, 1, 1, 1), [out, 64])
    with pytest.raises(TypeError, match="argument 1 is a str"):
        sim.launch(HAND, 1, [out, "64"])
    fixed = np.zeros(64, dtype=np.uint32)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="argument 0.*read-only"):
        sim.launch(HAND, 1, [fixed, 64])


class TestTriton:
    """Kernels that Triton compiles here."""

    @pytest.fixture(autouse=True)
    def kernels(self, tmp_path, monkeypatch):
        pytest.importorskip("triton")
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        import triton_kernels

        self.k = triton_kernels

    @pytest.mark.parametrize("arch", [80, 90, 100, 120])
    def test_numpy_s_arrays(self, rng, arch):
        x, y = (rng.standard_normal(1500, dtype=np.float32) for _ in range(2))
        out = np.zeros_like(x)
        report = sim.check(self.k.add[(2,)], x, y, out, 1500, BLOCK=1024, sim_arch=arch, sim_schedules=4)
        assert not report.findings, report
        assert f".target sm_{arch}" in report.ptx
        np.testing.assert_array_equal(out, x + y)

    def test_a_grid_that_depends_on_constants(self, rng):
        x = rng.standard_normal(1500, dtype=np.float32)
        out = np.zeros_like(x)
        report = sim.check(self.k.add[lambda meta: (-(-1500 // meta["BLOCK"]),)], x, x, out, 1500, BLOCK=256)
        assert not report.findings and np.array_equal(out, x + x)

    def test_a_race_is_found_and_named_by_its_line(self):
        out = np.zeros(256, dtype=np.int32)
        report = sim.check(self.k.all_store[(4,)], out, BLOCK=256)
        assert [found.rule for found in report.findings] == ["race"]
        assert "triton_kernels.py" in report.findings[0].source and report.differs

    def test_leaving_the_block_raises_what_was_found(self):
        with pytest.raises(sim.FindingsError, match="race on") as raised, sim.triton(90) as reports:
            self.k.all_store[(4,)](sim.Tensor(np.zeros(256, dtype=np.int32)), BLOCK=256)
        assert len(reports) == len(raised.value.reports) == 1

    def test_descriptors_and_the_copy_engine(self, rng):
        from triton.tools.tensor_descriptor import TensorDescriptor

        a, b = ((rng.integers(-8, 8, shape) / 8).astype(np.float16) for shape in ((128, 128), (64, 128)))
        c = np.zeros((128, 64), dtype=np.float16)
        maps = [
            TensorDescriptor.from_tensor(sim.Tensor(array), block)
            for array, block in ((a, [64, 64]), (b, [64, 64]), (c, [64, 64]))
        ]
        with sim.triton(90, schedules=6) as reports:
            self.k.product[(2, 1)](*maps, 128, BLOCK=64, STEP=64, num_warps=4)
        assert "cp.async.bulk.tensor" in reports[0].ptx
        np.testing.assert_array_equal(c, (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float16))

    def test_every_configuration_of_an_autotuned_kernel_runs(self, rng):
        x = rng.standard_normal(1500, dtype=np.float32)
        out = np.zeros_like(x)
        with sim.triton(90, schedules=2) as reports:
            self.k.tuned[lambda meta: (-(-1500 // meta["BLOCK"]),)](sim.Tensor(x), sim.Tensor(x), sim.Tensor(out), 1500)
        assert len({report.ptx for report in reports}) == 2 and np.array_equal(out, x + x)

    def test_what_launches_nothing_is_refused(self):
        with pytest.raises(ValueError, match="no kernel was launched"):
            sim.check(lambda x: None, np.zeros(1))
