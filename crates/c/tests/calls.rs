//! The C functions as a C program would call them, rightly and wrongly.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use hammerhead::format::{Dense, quantize};
use hammerhead_c::*;

const N: usize = 24;
const K: usize = 32;
const M: usize = 3;

fn last_error() -> String {
    // SAFETY: the message is valid until the next failure on this thread.
    unsafe { CStr::from_ptr(hammerhead_last_error()) }.to_str().unwrap().to_owned()
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * 0.37).sin()).collect()
}

/// An NVFP4 matrix made through the interface, and the memory it lies in.
struct Owned {
    codes: Vec<u8>,
    scales: Vec<u8>,
    global_scale: f32,
    rows: usize,
}

impl Owned {
    fn new(rows: usize, factor: f32) -> Self {
        let values: Vec<f32> = numbers(rows * K).iter().map(|x| x * factor).collect();
        let mut made = Self { codes: vec![0; rows * K / 2], scales: vec![0; rows * K / 16], global_scale: 0.0, rows };
        // SAFETY: all sizes are those of the vectors.
        let status = unsafe {
            hammerhead_quantize(
                HAMMERHEAD_F32,
                values.as_ptr().cast(),
                4 * values.len(),
                rows,
                K,
                made.codes.as_mut_ptr(),
                made.codes.len(),
                made.scales.as_mut_ptr(),
                made.scales.len(),
                &mut made.global_scale,
            )
        };
        assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
        made
    }

    fn matrix(&self) -> Matrix {
        Matrix {
            codes: self.codes.as_ptr(),
            codes_bytes: self.codes.len(),
            scales: self.scales.as_ptr(),
            scales_bytes: self.scales.len(),
            rows: self.rows,
            k: K,
            global_scale: self.global_scale,
        }
    }
}

const NOTHING: Matrix =
    Matrix { codes: null(), codes_bytes: 0, scales: null(), scales_bytes: 0, rows: 0, k: 0, global_scale: 0.0 };

fn engine() -> *mut Engine {
    let mut engine = null_mut();
    // SAFETY: the text ends with a zero byte.
    let status = unsafe { hammerhead_engine_create(c"scalar".as_ptr(), 1, null(), &mut engine) };
    assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
    engine
}

fn load(engine: *const Engine, groups: &[Weights], gate: u32) -> Result<*mut Layer, i32> {
    let mut layer = null_mut();
    // SAFETY: the groups lie in a slice.
    match unsafe { hammerhead_layer_load(engine, groups.as_ptr(), groups.len(), gate, 0.0, &mut layer) } {
        HAMMERHEAD_OK => Ok(layer),
        status => Err(status),
    }
}

fn tokens(values: &[f32]) -> Tokens {
    Tokens {
        element: HAMMERHEAD_F32,
        values: values.as_ptr().cast(),
        values_bytes: 4 * values.len(),
        scales: null(),
        scales_bytes: 0,
        rows: values.len() / K,
        k: K,
        global_scale: 1.0,
    }
}

fn output(values: &mut [f32]) -> Output {
    Output { element: HAMMERHEAD_F32, values: values.as_mut_ptr().cast(), values_bytes: 4 * values.len() }
}

#[test]
fn groups_run_to_what_the_library_itself_computes() {
    let (b1, b2, engine) = (Owned::new(N, 1.0), Owned::new(N, -2.0), engine());
    let weights = Weights { b1: b1.matrix(), b2: b2.matrix() };
    let layer = load(engine, &[weights, weights], HAMMERHEAD_GATE_SILU).unwrap();
    let (mut n, mut k) = (0, 0);
    // SAFETY: the layer is one, and the sizes may be written.
    unsafe {
        assert_eq!(hammerhead_layer_groups(layer), 2);
        assert_eq!(hammerhead_layer_shape(layer, 1, &mut n, &mut k), HAMMERHEAD_OK);
        assert_eq!(hammerhead_layer_shape(layer, 2, &mut n, &mut k), HAMMERHEAD_INVALID);
    }
    assert_eq!((n, k), (N, K));
    let (a, mut c) = (numbers(M * K), vec![0f32; M * N]);
    let (all, results) = ([tokens(&a), tokens(&[])], [output(&mut c), output(&mut [])]);
    // SAFETY: all sizes are those of the slices.
    let status = unsafe { hammerhead_run(engine, layer, all.as_ptr(), results.as_ptr(), 2) };
    assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());

    let rust = hammerhead::Engine::new(hammerhead::Options { backend: Some("scalar".into()), ..Default::default() });
    let rust = rust.unwrap();
    let matrix = |factor: f32| {
        let values: Vec<f32> = numbers(N * K).iter().map(|x| x * factor).collect();
        quantize(&Dense::new(N, K, values, 1.0).unwrap(), None).unwrap()
    };
    let weights = hammerhead::Weights::gated(matrix(1.0), matrix(-2.0)).unwrap();
    let layer_of_rust = rust.load(&[weights], hammerhead::Gate::Silu).unwrap();
    let a = Dense::new(M, K, a, 1.0).unwrap();
    let expected = rust.run(&layer_of_rust, &[a.into()], hammerhead::Output::F32).unwrap();
    let mut row = vec![0.0; N];
    for (index, ours) in c.chunks(N).enumerate() {
        expected[0].row(index, &mut row);
        assert_eq!(ours, row);
    }
    // SAFETY: the layer is one, and texts end with a zero byte.
    let set = |name: &CStr| unsafe { hammerhead_layer_set_precision(layer, name.as_ptr()) };
    assert_eq!(set(c"fp7"), HAMMERHEAD_INVALID);
    assert!(last_error().contains("exact, fp8"), "{}", last_error());
    assert_eq!(set(c"fp8"), HAMMERHEAD_OK);
    // SAFETY: all sizes are those of the slices.
    let status = unsafe { hammerhead_run(engine, layer, all.as_ptr(), results.as_ptr(), 2) };
    assert_ne!(status, HAMMERHEAD_OK, "a processor does not round");
    assert!(last_error().contains("ask for exact"), "{}", last_error());
    // SAFETY: each was made once, and nobody uses them any more.
    unsafe {
        hammerhead_layer_destroy(layer);
        hammerhead_engine_destroy(engine);
    }
}

#[test]
fn tokens_are_multiplied_with_the_input_scale_of_their_group() {
    let (b1, engine) = (Owned::new(N, 1.0), engine());
    let weights = [Weights { b1: b1.matrix(), b2: NOTHING }; 2];
    let factors: Vec<f32> = (0..K).map(|k| 0.1 + k as f32 / 3.0).collect();
    let scale = InputScale { factors: factors.as_ptr(), factors_bytes: 4 * K };
    let none = InputScale { factors: null(), factors_bytes: 0 };
    let load_scaled = |first: InputScale| {
        let (scales, mut layer) = ([first, none], null_mut());
        let gate = HAMMERHEAD_GATE_NONE;
        // SAFETY: all sizes are those of the slices.
        let status = unsafe {
            let (groups, scales) = (weights.as_ptr(), scales.as_ptr());
            hammerhead_layer_load_scaled(engine, groups, scales, 2, gate, 0.0, &mut layer)
        };
        if status == HAMMERHEAD_OK { Ok(layer) } else { Err(status) }
    };
    let run = |layer: *mut Layer, a: &[f32]| {
        let (mut first, mut second) = (vec![0f32; M * N], vec![0f32; M * N]);
        let (all, results) = ([tokens(a), tokens(a)], [output(&mut first), output(&mut second)]);
        // SAFETY: all sizes are those of the slices.
        let status = unsafe { hammerhead_run(engine, layer, all.as_ptr(), results.as_ptr(), 2) };
        assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
        (first, second)
    };
    let (scaled, plain) = (load_scaled(scale).unwrap(), load(engine, &weights, HAMMERHEAD_GATE_NONE).unwrap());
    let a = numbers(M * K);
    let products: Vec<f32> = a.iter().enumerate().map(|(i, x)| x * factors[i % K]).collect();
    let found = run(scaled, &a);
    assert_eq!(found, (run(plain, &products).0, run(plain, &a).1));
    assert_ne!(found.0, found.1);
    assert_eq!(load_scaled(InputScale { factors_bytes: 4 * (K - 1), ..scale }), Err(HAMMERHEAD_INVALID));
    assert!(last_error().contains("input scale"), "{}", last_error());
    assert_eq!(load_scaled(InputScale { factors: null(), ..scale }), Err(HAMMERHEAD_INVALID));
    assert!(last_error().contains("the input scale of group 0 is NULL"), "{}", last_error());
    // SAFETY: each was made once, and nobody uses them any more.
    unsafe {
        hammerhead_layer_destroy(scaled);
        hammerhead_layer_destroy(plain);
        hammerhead_engine_destroy(engine);
    }
}

#[test]
fn every_kind_of_tokens_and_outputs_is_taken() {
    let (b1, engine) = (Owned::new(N, 1.0), engine());
    let layer = load(engine, &[Weights { b1: b1.matrix(), b2: NOTHING }], HAMMERHEAD_GATE_NONE).unwrap();
    let a = Owned::new(M, 1.0);
    let packed = Tokens {
        element: HAMMERHEAD_NVFP4,
        values: a.codes.as_ptr().cast(),
        values_bytes: a.codes.len(),
        scales: a.scales.as_ptr(),
        scales_bytes: a.scales.len(),
        rows: M,
        k: K,
        global_scale: a.global_scale,
    };
    let halves = [0u16; M * K];
    let half = |element| Tokens { element, values: halves.as_ptr().cast(), values_bytes: 2 * M * K, ..tokens(&[]) };
    let half = |element| Tokens { rows: M, ..half(element) };
    for tokens in [packed, half(HAMMERHEAD_F16), half(HAMMERHEAD_BF16)] {
        for (element, bytes) in [(HAMMERHEAD_F16, 2), (HAMMERHEAD_BF16, 2), (HAMMERHEAD_F32, 4)] {
            let mut c = vec![u32::MAX; M * N];
            let result = Output { element, values: c.as_mut_ptr().cast(), values_bytes: bytes * M * N };
            // SAFETY: all sizes are those of the vectors.
            let status = unsafe { hammerhead_run(engine, layer, &tokens, &result, 1) };
            assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
            assert!(!c[..bytes * M * N / 4].contains(&u32::MAX), "every element is written");
        }
    }
    // SAFETY: each was made once, and nobody uses them any more.
    unsafe {
        hammerhead_layer_destroy(layer);
        hammerhead_engine_destroy(engine);
    }
}

#[test]
fn wrong_operands_are_refused_with_words() {
    let (b1, b2, engine) = (Owned::new(N, 1.0), Owned::new(N, -2.0), engine());
    let weights = Weights { b1: b1.matrix(), b2: b2.matrix() };
    let layer = load(engine, &[weights], HAMMERHEAD_GATE_SILU).unwrap();
    let (a, mut c) = (numbers(M * K), vec![0f32; M * N]);
    let (good, room) = (tokens(&a), output(&mut c));
    let cases = [
        ("NULL", Tokens { values: null(), ..good }, room),
        ("bytes", Tokens { values_bytes: 4, ..good }, room),
        ("more elements than memory", Tokens { rows: usize::MAX, k: usize::MAX, ..good }, room),
        ("type 9", Tokens { element: 9, ..good }, room),
        ("k of the activations", Tokens { k: 16, rows: 2 * M, ..good }, room),
        ("multiple of 4", Tokens { values: good.values.wrapping_byte_add(1), ..good }, room),
        ("global scale", Tokens { global_scale: f32::NAN, ..good }, room),
        ("NULL", good, Output { values: null_mut(), ..room }),
        ("length", good, Output { values_bytes: 4, ..room }),
        ("memory", good, Output { values_bytes: usize::MAX - 3, ..room }),
        ("type 3", good, Output { element: HAMMERHEAD_NVFP4, ..room }),
        ("shares memory", good, Output { values: good.values.cast_mut(), ..room }),
    ];
    for (words, tokens, output) in cases {
        // SAFETY: whatever is not as it should be is refused before it is read.
        let status = unsafe { hammerhead_run(engine, layer, &tokens, &output, 1) };
        assert_eq!(status, HAMMERHEAD_INVALID, "{words}");
        assert!(last_error().contains(words), "{words}: {}", last_error());
    }
    let broken = |b1| load(engine, &[Weights { b1, ..weights }], HAMMERHEAD_GATE_SILU).unwrap_err();
    for (words, matrix) in [
        ("the codes of b1 of group 0 is NULL", Matrix { codes: null(), ..b1.matrix() }),
        ("the scales of b1 of group 0 has 1 bytes", Matrix { scales_bytes: 1, ..b1.matrix() }),
        ("must be alike", Owned::new(N + 1, 1.0).matrix()),
    ] {
        assert_eq!(broken(matrix), HAMMERHEAD_INVALID);
        assert!(last_error().contains(words), "{words}: {}", last_error());
    }
    assert_eq!(load(engine, &[], HAMMERHEAD_GATE_SILU), Err(HAMMERHEAD_INVALID));
    assert_eq!(load(engine, &[weights], 77), Err(HAMMERHEAD_INVALID));
    assert_eq!(load(engine, &[weights], HAMMERHEAD_GATE_NONE), Err(HAMMERHEAD_INVALID));
    assert_eq!(load(null(), &[weights], HAMMERHEAD_GATE_SILU), Err(HAMMERHEAD_INVALID));
    // SAFETY: each was made once, and nobody uses them any more.
    unsafe {
        hammerhead_layer_destroy(layer);
        hammerhead_engine_destroy(engine);
    }
}

#[test]
fn null_is_an_error_wherever_something_is_needed() {
    let mut engine = null_mut();
    // SAFETY: nothing is read through null.
    unsafe {
        assert_eq!(hammerhead_engine_create(null(), 0, null(), null_mut()), HAMMERHEAD_INVALID);
        assert!(last_error().contains("engine is NULL"));
        assert_eq!(hammerhead_engine_create(c"quantum".as_ptr(), 0, null(), &mut engine), HAMMERHEAD_INVALID);
        assert!(last_error().contains("unknown backend 'quantum'"));
        assert_eq!(hammerhead_engine_create(null(), 0, c"colour=red".as_ptr(), &mut engine), HAMMERHEAD_INVALID);
        assert_eq!(hammerhead_engine_create(c"\xff".as_ptr(), 0, null(), &mut engine), HAMMERHEAD_INVALID);
        assert!(engine.is_null());
        assert_eq!(hammerhead_run(null(), null(), null(), null(), 0), HAMMERHEAD_INVALID);
        assert_eq!(hammerhead_layer_groups(null()), 0);
        assert_eq!(hammerhead_layer_shape(null(), 0, null_mut(), null_mut()), HAMMERHEAD_INVALID);
        hammerhead_layer_destroy(null_mut());
        hammerhead_engine_destroy(null_mut());
        let (nowhere, void) = (null_mut(), null::<c_void>());
        let status = hammerhead_quantize(HAMMERHEAD_F32, void, 64, 1, 16, nowhere, 8, null_mut(), 1, null_mut());
        assert_eq!(status, HAMMERHEAD_INVALID);
        assert!(last_error().contains("values is NULL"));
    }
}

#[test]
fn a_layer_comes_from_a_model_on_disk() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../format/tests/data/modelopt_dense");
    let (path, engine) = (CString::new(data).unwrap(), engine());
    let load = |path: &CStr, number, which, experts: &[usize]| {
        let mut layer = null_mut();
        // SAFETY: texts end with a zero byte, and numbers lie in a slice.
        let status = unsafe {
            let (at, count) = (experts.as_ptr(), experts.len());
            hammerhead_layer_load_checkpoint(engine, path.as_ptr(), number, which, at, count, &mut layer)
        };
        // SAFETY: the layer is null or was just made, and nobody else knows it.
        unsafe {
            let groups = hammerhead_layer_groups(layer);
            hammerhead_layer_destroy(layer);
            (status, groups)
        }
    };
    assert_eq!(load(&path, 0, HAMMERHEAD_EXPERTS_ALL, &[]), (HAMMERHEAD_OK, 1));
    assert_eq!(load(&path, 0, HAMMERHEAD_EXPERTS_ONLY, &[0, 0]), (HAMMERHEAD_OK, 2));
    assert_eq!(load(&path, 99, HAMMERHEAD_EXPERTS_ALL, &[]), (HAMMERHEAD_INVALID, 0));
    assert_eq!(load(&path, 0, 7, &[]), (HAMMERHEAD_INVALID, 0));
    assert_eq!(load(c"/nowhere", 0, HAMMERHEAD_EXPERTS_ALL, &[]), (HAMMERHEAD_IO, 0));
    assert!(last_error().contains("nowhere"));
    // SAFETY: made once, and nobody uses it any more.
    unsafe { hammerhead_engine_destroy(engine) };
}

#[test]
fn each_thread_has_its_own_last_error() {
    // SAFETY: nothing is read through null.
    unsafe { hammerhead_run(null(), null(), null(), null(), 0) };
    assert!(last_error().contains("engine"));
    std::thread::spawn(|| assert_eq!(last_error(), "")).join().unwrap();
}

#[test]
fn the_version_is_the_packages() {
    // SAFETY: the text is static.
    assert_eq!(unsafe { CStr::from_ptr(hammerhead_version()) }.to_str().unwrap(), env!("CARGO_PKG_VERSION"));
}

const EMPTY: Vector = Vector { values: null(), bytes: 0 };

fn vector(values: &[f32]) -> Vector {
    Vector { values: values.as_ptr(), bytes: 4 * values.len() }
}

fn mlp(owned: &Owned, bias: Vector) -> MlpMatrices {
    MlpMatrices {
        b1: owned.matrix(),
        b2: owned.matrix(),
        down: owned.matrix(),
        b1_bias: EMPTY,
        b2_bias: bias,
        down_bias: bias,
        input_scale: EMPTY,
        down_input_scale: EMPTY,
        intermediate_scale: 0.0,
    }
}

#[test]
fn a_layer_of_experts_is_the_mlps_that_were_chosen() {
    let (owned, engine, bias) = ([0.5, 1.0, -0.7].map(|factor| Owned::new(K, factor)), engine(), numbers(K));
    let experts = owned.each_ref().map(|owned| mlp(owned, vector(&bias)));
    let mut moe = null_mut();
    let routing = Routing {
        scoring: HAMMERHEAD_ROUTING_TOPK_SOFTMAX,
        top_k: 1,
        correction: EMPTY,
        groups: 0,
        best_groups: 0,
        scaling: 0.0,
    };
    let options = WholeOptions {
        intermediate: HAMMERHEAD_INTERMEDIATE_F32,
        batch_invariant: 1,
        precision: HAMMERHEAD_PRECISION_EXACT,
        workspace_bytes: 1,
        gpu_bytes: 0,
        stream_rows: 0,
    };
    // SAFETY: all sizes are those of the slices.
    let status = unsafe {
        let gate = HAMMERHEAD_GATE_SILU;
        hammerhead_moe_load(engine, experts.as_ptr(), 3, null(), EMPTY, &routing, gate, 0.0, &options, &mut moe)
    };
    assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
    let (mut count, mut k, mut n, mut top) = (0, 0, 0, 0);
    // SAFETY: the sizes may be written.
    assert_eq!(unsafe { hammerhead_moe_shape(moe, &mut count, &mut k, &mut n, &mut top) }, HAMMERHEAD_OK);
    assert_eq!([count, k, n, top], [3, K, K, 1]);
    let a = numbers(3 * K);
    let (ids, ones, logits) = ([2, 0, -1], [1.0; 3], [0., 0., 1., 1., 0., 0., 0., 1., 0.]);
    let (mut given, mut chosen, mut alone) = (vec![0f32; 3 * K], vec![0f32; 3 * K], vec![0f32; 3 * K]);
    // SAFETY: all sizes are those of the slices.
    unsafe {
        let (x, y) = (tokens(&a), [output(&mut given), output(&mut chosen), output(&mut alone)]);
        let ids = ids.as_ptr().cast::<c_void>();
        assert_eq!(hammerhead_moe_run(engine, moe, &x, ids, 32, 12, vector(&ones), 0, &y[0]), HAMMERHEAD_OK);
        assert_eq!(hammerhead_moe_run_logits(engine, moe, &x, vector(&logits), &y[1]), HAMMERHEAD_OK);
        let mut one = null_mut();
        let load = hammerhead_mlp_load(engine, &experts[2], HAMMERHEAD_GATE_SILU, 0.0, &options, &mut one);
        assert_eq!(load, HAMMERHEAD_OK, "{}", last_error());
        assert_eq!(hammerhead_mlp_run(engine, one, &x, &y[2]), HAMMERHEAD_OK);
        hammerhead_layer_destroy(one);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = std::ffi::CString::new(folder.path().join("layer").to_str().unwrap()).unwrap();
    let (mut again, mut one) = (null_mut(), null_mut());
    let (mut saved, mut other) = (vec![0f32; 3 * K], vec![0f32; 3 * K]);
    // SAFETY: all sizes are those of the slices, and the path ends with a zero byte.
    unsafe {
        assert_eq!(hammerhead_layer_save(engine, moe, path.as_ptr()), HAMMERHEAD_OK, "{}", last_error());
        assert_eq!(
            hammerhead_layer_open(engine, path.as_ptr(), &options, &mut again),
            HAMMERHEAD_OK,
            "{}",
            last_error()
        );
        let y = output(&mut saved);
        assert_eq!(hammerhead_moe_run_logits(engine, again, &tokens(&a), vector(&logits), &y), HAMMERHEAD_OK);
        let y = output(&mut other);
        assert_eq!(hammerhead_mlp_run(engine, again, &tokens(&a), &y), HAMMERHEAD_INVALID, "which of three?");
        assert!(last_error().contains("number of experts is 3"), "{}", last_error());
        assert_eq!(hammerhead_run(engine, again, &tokens(&a), &y, 1), HAMMERHEAD_INVALID, "it is no products");
        assert!(last_error().contains("whole layer") && last_error().contains("moe_run"), "{}", last_error());
        assert_eq!(hammerhead_layer_groups(again), 0);
        hammerhead_layer_destroy(again);
    }
    assert_eq!(saved, chosen, "mapped back, with its routing");
    // SAFETY: as before.
    unsafe {
        let load = hammerhead_mlp_load(engine, &experts[2], HAMMERHEAD_GATE_SILU, 0.0, &options, &mut one);
        assert_eq!(load, HAMMERHEAD_OK, "{}", last_error());
        assert_eq!(hammerhead_layer_save(engine, one, path.as_ptr()), HAMMERHEAD_OK, "{}", last_error());
        hammerhead_layer_destroy(one);
        assert_eq!(hammerhead_layer_open(engine, path.as_ptr(), &options, &mut one), HAMMERHEAD_OK, "{}", last_error());
        assert_eq!(hammerhead_mlp_run(engine, one, &tokens(&a), &output(&mut saved)), HAMMERHEAD_OK);
        hammerhead_layer_destroy(one);
        assert_eq!(hammerhead_layer_save(engine, null(), path.as_ptr()), HAMMERHEAD_INVALID);
        assert_eq!(hammerhead_layer_open(engine, null(), &options, &mut again), HAMMERHEAD_INVALID);
    }
    assert_eq!(saved, alone);
    assert_eq!((&given[..K], &chosen[..K]), (&alone[..K], &alone[..K]));
    assert_eq!(given[K..2 * K], chosen[K..2 * K]);
    assert!(given[2 * K..].iter().all(|&y| y == 0.0), "somebody else's expert adds nothing");
    // SAFETY: each was made once, and nobody uses them any more.
    unsafe {
        hammerhead_layer_destroy(moe);
        hammerhead_engine_destroy(engine);
    }
}

#[test]
fn experts_that_were_chosen_elsewhere_have_the_weights_that_logits_give_them() {
    let (owned, engine) = ([0.5, 1.0, -0.7].map(|factor| Owned::new(K, factor)), engine());
    let experts = owned.each_ref().map(|owned| mlp(owned, EMPTY));
    let scoring = HAMMERHEAD_ROUTING_SQRT_SOFTPLUS;
    let routing = Routing { scoring, top_k: 2, correction: EMPTY, groups: 0, best_groups: 0, scaling: 1.5 };
    let load = |routing: *const Routing| {
        let (mut moe, gate) = (null_mut(), HAMMERHEAD_GATE_SILU);
        // SAFETY: all sizes are those of the slices.
        let status = unsafe {
            hammerhead_moe_load(engine, experts.as_ptr(), 3, null(), EMPTY, routing, gate, 0.0, null(), &mut moe)
        };
        assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
        moe
    };
    let (moe, unrouted) = (load(&routing), load(null()));
    // The largest logits first, as the layer chooses.
    let (a, logits, ids) = (numbers(2 * K), [0.5, 2.0, -1.0, 0.0, -3.0, 1.0], [1i64, 0, 2, 0]);
    let (mut given, mut chosen, mut weights) = (vec![0f32; 2 * K], vec![0f32; 2 * K], [0f32; 4]);
    let mut weigh = |layer: *const Layer, ids_bytes: usize, bytes: usize| {
        let (ids, logits) = (ids.as_ptr().cast(), vector(&logits));
        // SAFETY: no size is beyond that of its slice.
        let status = unsafe { hammerhead_moe_weigh(layer, 2, logits, ids, 64, ids_bytes, weights.as_mut_ptr(), bytes) };
        (status, weights)
    };
    for (layer, ids_bytes, bytes, word) in
        [(moe, 24, 16, "ids"), (moe, 32, 12, "the weights has 12 bytes"), (unrouted, 32, 16, "no routing")]
    {
        assert_eq!(weigh(layer, ids_bytes, bytes), (HAMMERHEAD_INVALID, [0.0; 4]));
        assert!(last_error().contains(word), "{} says nothing of {word}", last_error());
    }
    let (status, weights) = weigh(moe, 32, 16);
    assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
    // SAFETY: all sizes are those of the slices; each was made once, and nobody uses them any more.
    unsafe {
        let (x, y) = (tokens(&a), [output(&mut given), output(&mut chosen)]);
        let ids = ids.as_ptr().cast::<c_void>();
        assert_eq!(hammerhead_moe_run(engine, moe, &x, ids, 64, 32, vector(&weights), 0, &y[0]), HAMMERHEAD_OK);
        assert_eq!(hammerhead_moe_run_logits(engine, moe, &x, vector(&logits), &y[1]), HAMMERHEAD_OK);
        hammerhead_layer_destroy(moe);
        hammerhead_layer_destroy(unrouted);
        hammerhead_engine_destroy(engine);
    }
    assert!(given == chosen && given.iter().any(|&y| y != 0.0));
}

#[test]
fn whole_layers_are_refused_what_does_not_fit() {
    let (owned, engine, bias) = (Owned::new(K, 1.0), engine(), numbers(K - 1));
    let load = |experts: &[MlpMatrices], options: *const WholeOptions| {
        let (mut moe, gate) = (null_mut(), HAMMERHEAD_GATE_SILU);
        // SAFETY: all sizes are those of the slices.
        match unsafe {
            let (count, experts) = (experts.len(), experts.as_ptr());
            hammerhead_moe_load(engine, experts, count, null(), EMPTY, null(), gate, 0.0, options, &mut moe)
        } {
            HAMMERHEAD_OK => Ok(moe),
            _ => Err(last_error()),
        }
    };
    let usual = WholeOptions {
        intermediate: 0,
        batch_invariant: 0,
        precision: 0,
        workspace_bytes: 0,
        gpu_bytes: 0,
        stream_rows: 0,
    };
    let none = WholeOptions { intermediate: 9, ..usual };
    let unknown = WholeOptions { precision: 9, ..usual };
    let rounded = WholeOptions { precision: HAMMERHEAD_PRECISION_FP8, ..usual };
    for (refused, word) in [
        (load(&[], null()), "no groups"),
        (load(&[mlp(&owned, EMPTY), mlp(&owned, vector(&bias))], null()), "expert 1"),
        (load(&[MlpMatrices { b2: NOTHING, ..mlp(&owned, EMPTY) }], null()), "K is 0"),
        (load(&[mlp(&owned, EMPTY)], &none), "HAMMERHEAD_INTERMEDIATE_TOKENS"),
        (load(&[mlp(&owned, EMPTY)], &unknown), "HAMMERHEAD_PRECISION_EXACT"),
        (load(&[mlp(&owned, EMPTY)], &rounded), "ask for exact"),
    ] {
        let error = refused.unwrap_err();
        assert!(error.contains(word), "{error} says nothing of {word}");
    }
    let moe = load(&[mlp(&owned, EMPTY)], null()).unwrap();
    let (a, mut c, ids, one) = (numbers(K), vec![0f32; K], [0i64], [1f32]);
    let (x, y) = (tokens(&a), output(&mut c));
    let run = |x: *const Tokens, bits, weights: &[f32]| {
        // SAFETY: all sizes are those of the slices.
        unsafe { hammerhead_moe_run(engine, moe, x, ids.as_ptr().cast(), bits, 8, vector(weights), 0, &y) }
    };
    assert_eq!(run(&x, 64, &one), HAMMERHEAD_OK, "{}", last_error());
    let quantised = Tokens { element: HAMMERHEAD_NVFP4, ..x };
    for (status, word) in [
        (run(&x, 16, &one), "id_bits"),
        (run(&x, 64, &[]), "weights"),
        (run(null(), 64, &one), "tokens is NULL"),
        (run(&quantised, 64, &one), "codes"),
        // SAFETY: all sizes are those of the slices.
        (unsafe { hammerhead_moe_run_logits(engine, moe, &x, vector(&one), &y) }, "no routing"),
    ] {
        assert_eq!(status, HAMMERHEAD_INVALID, "{word}");
    }
    assert!(last_error().contains("hammerhead_moe_run"), "{}", last_error());
    // SAFETY: each was made once, and nobody uses them any more.
    unsafe {
        hammerhead_layer_destroy(moe);
        hammerhead_engine_destroy(engine);
    }
}

#[test]
fn a_queue_refuses_what_does_not_fit_and_layers_of_the_cpu() {
    let (owned, engine) = (Owned::new(K, 1.0), engine());
    let (mut moe, mut one, mut bytes) = (null_mut(), null_mut(), 0);
    // SAFETY: all sizes are those of the slices; nothing is computed, so nobody looks for the memory of a GPU.
    unsafe {
        let expert = mlp(&owned, EMPTY);
        let gate = HAMMERHEAD_GATE_SILU;
        assert_eq!(
            hammerhead_moe_load(engine, &expert, 1, null(), EMPTY, null(), gate, 0.0, null(), &mut moe),
            HAMMERHEAD_OK
        );
        assert_eq!(hammerhead_mlp_load(engine, &expert, gate, 0.0, null(), &mut one), HAMMERHEAD_OK);
        for status in [
            hammerhead_layer_workspace_bytes(moe, 8, HAMMERHEAD_BF16, 0, &mut bytes),
            hammerhead_layer_workspace_bytes(one, 8, HAMMERHEAD_BF16, 0, &mut bytes),
        ] {
            assert_eq!(status, HAMMERHEAD_INVALID);
            assert!(last_error().contains("cuda alone"), "{}", last_error());
        }
        assert_eq!(hammerhead_layer_workspace_bytes(moe, 8, HAMMERHEAD_NVFP4, 0, &mut bytes), HAMMERHEAD_INVALID);
        assert!(last_error().contains("HAMMERHEAD_BF16"), "{}", last_error());
        assert_eq!(hammerhead_layer_resident(moe, null_mut(), 0, &mut bytes), HAMMERHEAD_OK);
        assert_eq!(bytes, 0, "all experts are in one place");
        assert_eq!(hammerhead_layer_resident(moe, null_mut(), 1, &mut bytes), HAMMERHEAD_INVALID);
        assert!(last_error().contains("experts is NULL"), "{}", last_error());
        assert_eq!(hammerhead_queue_place_experts(null_mut(), moe, null(), 0), HAMMERHEAD_INVALID);
        bytes = 7;
        assert_eq!(hammerhead_layer_asked(moe, null_mut(), 0, &mut bytes), HAMMERHEAD_OK);
        assert_eq!(bytes, 0, "nobody counts where all experts are in one place");
        assert_eq!(hammerhead_layer_asked(moe, null_mut(), 1, &mut bytes), HAMMERHEAD_INVALID);
        assert!(last_error().contains("counts is NULL"), "{}", last_error());
        bytes = 7;
        assert_eq!(hammerhead_layer_streams_from(moe, &mut bytes), HAMMERHEAD_OK);
        assert_eq!(bytes, 0, "no weights are brought over");
        assert_eq!(hammerhead_layer_streams_from(null(), &mut bytes), HAMMERHEAD_INVALID);
        assert_eq!(hammerhead_layer_check_host(moe), HAMMERHEAD_OK, "nothing of it is on a GPU");
        assert_eq!(hammerhead_layer_check_host(null()), HAMMERHEAD_INVALID);
        let (x, y, none) = (tokens(&[]), output(&mut []), Workspace { address: null_mut(), bytes: 0 });
        assert_eq!(hammerhead_queue_mlp(null_mut(), one, &x, &y, none), HAMMERHEAD_INVALID);
        assert!(last_error().contains("queue is NULL"), "{}", last_error());
        let mut queue = null_mut();
        match hammerhead_queue_create(0, null_mut(), &mut queue) {
            HAMMERHEAD_OK => {
                let rows = numbers(K);
                let (x, short) = (tokens(&rows), Tokens { values_bytes: 4 * K - 4, ..tokens(&rows) });
                let (ids, weights) = (null(), vector(&rows[..1]));
                for (status, word) in [
                    (hammerhead_queue_mlp(queue, one, &x, &y, none), "the output has 0 bytes"),
                    (hammerhead_queue_mlp(queue, one, &short, &y, none), "the tokens"),
                    (hammerhead_queue_moe_logits(queue, moe, &x, EMPTY, &y, none), "no routing"),
                    (hammerhead_queue_moe(queue, moe, &x, ids, 32, 8, weights, 0, &y, none), "ids has 8 bytes"),
                ] {
                    assert_eq!(status, HAMMERHEAD_INVALID, "{word}");
                }
            }
            status => assert_eq!(status, HAMMERHEAD_UNAVAILABLE, "{}", last_error()),
        }
        hammerhead_queue_destroy(queue);
        hammerhead_layer_destroy(one);
        hammerhead_layer_destroy(moe);
        hammerhead_engine_destroy(engine);
    }
}

/// A host's function: every task on a thread of its own, and a note of how many there were.
unsafe extern "C" fn on_threads(
    pool: *mut c_void,
    task: unsafe extern "C" fn(*mut c_void, usize),
    arg: *mut c_void,
    count: usize,
) {
    // SAFETY: the test's pool is such a number.
    unsafe { &*pool.cast::<AtomicUsize>() }.fetch_add(count, Ordering::Relaxed);
    let arg = arg.expose_provenance();
    std::thread::scope(|scope| {
        for index in 0..count {
            // SAFETY: the task may be called on any thread with the argument that came with it.
            scope.spawn(move || unsafe { task(std::ptr::with_exposed_provenance_mut(arg), index) });
        }
    });
}

#[test]
fn an_engine_computes_on_threads_of_the_callers() {
    let ran = AtomicUsize::new(0);
    let threads = Threads { pool: (&raw const ran).cast_mut().cast(), threads: 3, run: Some(on_threads) };
    let create = |threads: *const Threads| {
        let mut engine = null_mut();
        // SAFETY: the text ends with a zero byte, and the function does what the header asks.
        let status = unsafe { hammerhead_engine_create_on(c"scalar".as_ptr(), threads, null(), &mut engine) };
        (status, engine)
    };
    let (status, theirs) = create(&threads);
    assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
    let (b1, ours, a) = (Owned::new(N, 1.0), engine(), numbers(M * K));
    let results = [theirs, ours].map(|engine| {
        let layer = load(engine, &[Weights { b1: b1.matrix(), b2: NOTHING }], HAMMERHEAD_GATE_NONE).unwrap();
        let mut c = vec![0f32; M * N];
        // SAFETY: all sizes are those of the slices; engine and layer were made above and end here.
        unsafe {
            assert_eq!(hammerhead_run(engine, layer, &tokens(&a), &output(&mut c), 1), HAMMERHEAD_OK);
            hammerhead_layer_destroy(layer);
            hammerhead_engine_destroy(engine);
        }
        c
    });
    assert_eq!(results[0], results[1]);
    assert!(ran.into_inner() >= 3, "the caller's threads were used");
    for (wrong, word) in [
        (Threads { threads: 0, ..threads }, "0 threads"),
        (Threads { threads: usize::MAX, ..threads }, "threads"),
        (Threads { run: None, ..threads }, "threads->run is NULL"),
    ] {
        assert_eq!(create(&wrong).0, HAMMERHEAD_INVALID);
        assert!(last_error().contains(word), "{}", last_error());
    }
    assert_eq!(create(null()).0, HAMMERHEAD_INVALID);
}

#[test]
fn tokens_have_what_their_adapters_add_and_others_their_bits() {
    let (owned, engine) = (Owned::new(K, 0.5), engine());
    let expert = mlp(&owned, EMPTY);
    let (a, b, x) = (numbers(2 * K), numbers(2 * K), numbers(3 * K));
    let (mut layer, mut adapters, mut refused) = (null_mut(), null_mut(), null_mut());
    let none = LowRank { rank: 0, element: HAMMERHEAD_F32, a: null(), a_bytes: 0, b: null(), b_bytes: 0 };
    let pair = LowRank {
        rank: 2,
        element: HAMMERHEAD_F32,
        a: a.as_ptr().cast(),
        a_bytes: 8 * K,
        b: b.as_ptr().cast(),
        b_bytes: 8 * K,
    };
    let down = ExpertLowRanks { b1: none, b2: none, down: pair };
    let of = |scaling: f32| Adapter { scaling, experts: &down, shared: null() };
    let (ids, ones) = ([0i32; 3], [1f32; 3]);
    // SAFETY: all sizes are those of the slices.
    unsafe {
        let gate = HAMMERHEAD_GATE_SILU;
        assert_eq!(hammerhead_mlp_load(engine, &expert, gate, 0.0, null(), &mut layer), HAMMERHEAD_OK);
        let both = [of(0.5), of(1.0)];
        let made = hammerhead_adapters_create(layer, both.as_ptr(), 2, &mut adapters);
        assert_eq!(made, HAMMERHEAD_OK, "{}", last_error());
        let run = |numbers: &[i32]| {
            let mut y = vec![0f32; 3 * K];
            let adapted = TokenAdapters { adapters, ids: numbers.as_ptr(), ids_bytes: 4 * numbers.len() };
            let (ids, weights, out) = (ids.as_ptr().cast(), vector(&ones), output(&mut y));
            let x = tokens(&x);
            let status = hammerhead_moe_run_adapted(engine, layer, &x, ids, 32, 12, weights, 0, adapted, &out);
            (status, y)
        };
        let (mut plain, (status, found)) = (vec![0f32; 3 * K], run(&[0, -1, 1]));
        assert_eq!(status, HAMMERHEAD_OK, "{}", last_error());
        assert_eq!(hammerhead_mlp_run(engine, layer, &tokens(&x), &output(&mut plain)), HAMMERHEAD_OK);
        assert_eq!(found[K..2 * K], plain[K..2 * K], "a token without an adapter has its bits");
        // What is added to down goes with the scaling.
        let (_, half) = run(&[0, 0, 0]);
        for column in 2 * K..3 * K {
            let [whole, half] = [found[column] - plain[column], half[column] - plain[column]];
            assert!((whole - 2.0 * half).abs() < 1e-4 * (1.0 + whole.abs() + plain[column].abs()), "{whole} {half}");
        }
        assert!(found[2 * K..] != plain[2 * K..] && found[..K] != plain[..K]);
        for (numbers, word) in [(&[0, 0][..], "one per token"), (&[0, 0, 2], "the number of a token's adapter")] {
            assert_eq!(run(numbers).0, HAMMERHEAD_INVALID);
            assert!(last_error().contains(word), "{}", last_error());
        }
        let short = ExpertLowRanks { down: LowRank { b_bytes: 8, ..pair }, ..down };
        let wide = ExpertLowRanks { down: LowRank { rank: 65, ..pair }, ..down };
        for (pairs, shared, word) in [
            (&short, null(), "b of down of expert 0 of adapter 0"),
            (&wide, null(), "a of down"),
            (&down, &raw const down, "no shared expert"),
        ] {
            let adapter = Adapter { scaling: 1.0, experts: pairs, shared };
            assert_eq!(hammerhead_adapters_create(layer, &adapter, 1, &mut refused), HAMMERHEAD_INVALID);
            assert!(last_error().contains(word), "{}", last_error());
        }
        hammerhead_adapters_destroy(adapters);
        hammerhead_layer_destroy(layer);
        hammerhead_engine_destroy(engine);
    }
}
