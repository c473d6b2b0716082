//! Plain products with FP8 weights on every CPU backend of this machine.

use format::{Dense, Fp8Matrix, Fp8Scales, Values, e4m3};
use hammerhead::cpu::{self, Fp8Panels};
use hammerhead_testkit::fp8::{cases, verify};
use op::{Backend, Error, Target, Team};

fn available() -> impl Iterator<Item = &'static dyn Backend> {
    cpu::backends().iter().copied().filter(|backend| backend.available().is_ok())
}

fn computed(backend: &dyn Backend, matrix: &Fp8Matrix<'_>, tokens: &Dense<'_>, team: &Team) -> Vec<f32> {
    let mut c = vec![f32::NAN; tokens.rows() * matrix.rows()];
    let packed = Fp8Panels::new(matrix, None, team).unwrap();
    packed.run(backend.name(), &tokens.as_borrowed().into(), Target::F32(&mut c), team).unwrap();
    c
}

#[test]
fn every_backend_is_within_the_bound_on_every_case() {
    for threads in [1, 3] {
        let team = cpu::team(Some(threads)).unwrap();
        for (case, backend) in cases().iter().flat_map(|case| available().map(move |backend| (case, backend))) {
            let wrong = verify(case, backend, &team).unwrap();
            assert!(wrong.is_none(), "{}: {}", case.reason, wrong.unwrap_or_default());
        }
    }
}

#[test]
fn every_number_of_e4m3_comes_through_alone() {
    // Row by row a number that stands at each k once; tokens pick one k each.
    let team = cpu::team(Some(2)).unwrap();
    let codes: Vec<u8> = (0..256 * 32).map(|at| ((at / 32 + at % 32 * 8) % 256) as u8).collect();
    let codes: Vec<u8> = codes.into_iter().map(|code| if e4m3::is_nan(code) { 0 } else { code }).collect();
    let one_hot: Vec<f32> = (0..32 * 32).map(|at| if at / 32 == at % 32 { 1.0 } else { 0.0 }).collect();
    let tokens = Dense::new(32, 32, one_hot, 1.0).unwrap();
    for scales in [Fp8Scales::Matrix(1.0), Fp8Scales::Mx(vec![100; 256].into())] {
        let matrix = Fp8Matrix::new(256, 32, codes.clone(), scales).unwrap();
        let exact = matrix.dequantize();
        for backend in available() {
            let found = computed(backend, &matrix, &tokens, &team);
            for (at, &found) in found.iter().enumerate() {
                let (k, row) = (at / 256, at % 256);
                assert_eq!(found, exact[row * 32 + k], "{}, row {row}, k {k}", backend.name());
            }
        }
    }
}

#[test]
fn a_number_that_is_wrong_in_its_last_bit_is_noticed() {
    let case = cases().into_iter().find(|case| case.exact).unwrap();
    let team = cpu::team(Some(1)).unwrap();
    let (matrix, tokens) = (case.matrix().unwrap(), case.tokens().unwrap());
    let mut codes = matrix.codes().to_vec();
    let k = matrix.k();
    let (Values::BF16(values), at) = (tokens.values(), 5 * k + 100) else { panic!("the case has bf16 tokens") };
    let row = values.chunks(k).position(|row| row[100].to_f32() != 0.0).unwrap();
    codes[at] ^= 1;
    let spoilt = Fp8Matrix::new(matrix.rows(), k, codes, matrix.scales().clone()).unwrap();
    for backend in available() {
        let found = computed(backend, &spoilt, &tokens, &team)[row * matrix.rows() + 5];
        let expected = op::fp8::bounded(&tokens, &matrix, None, backend.arithmetic(case.activation)).unwrap();
        assert!(!expected[row * matrix.rows() + 5].accepts(found.into(), case.output), "{}", backend.name());
    }
}

#[test]
fn results_do_not_depend_on_threads_and_a_spoilt_token_spoils_only_its_own() {
    for case in cases().iter().filter(|case| case.shape[0] > 1) {
        let (matrix, tokens) = (case.matrix().unwrap(), case.tokens().unwrap());
        let k = matrix.k();
        for backend in available() {
            let on =
                |threads, tokens: &Dense<'_>| computed(backend, &matrix, tokens, &cpu::team(Some(threads)).unwrap());
            let (one, many) = (on(1, &tokens), on(4, &tokens));
            assert!(one.iter().zip(&many).all(|(a, b)| a.to_bits() == b.to_bits()), "{}, {case:?}", backend.name());
            let mut values = vec![0.0; tokens.rows() * k];
            values.chunks_mut(k).enumerate().for_each(|(row, out)| tokens.row(row, out));
            values[3] = f32::NAN;
            let spoilt = on(1, &Dense::new(tokens.rows(), k, values, tokens.global()).unwrap());
            let rows = spoilt.chunks(matrix.rows()).map(|row| row.iter().all(|x| !x.is_nan()));
            assert!(rows.skip(1).all(|whole| whole), "{}, {case:?}", backend.name());
            assert!(spoilt[0].is_nan());
        }
    }
}

#[test]
fn packed_weights_are_read_back() {
    let team = cpu::team(Some(1)).unwrap();
    for case in cases() {
        let (matrix, bias) = (case.matrix().unwrap(), case.bias());
        let packed = Fp8Panels::new(&matrix, bias.as_deref(), &team).unwrap();
        let (again, own) = packed.unpacked().unwrap();
        assert_eq!((again.codes(), own), (matrix.codes(), bias.as_deref()), "{case:?}");
        assert_eq!(again.dequantize(), matrix.dequantize(), "{case:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let team = cpu::team(Some(1)).unwrap();
    let matrix = Fp8Matrix::new(2, 32, vec![0x38; 64], Fp8Scales::Matrix(1.0)).unwrap();
    let packed = Fp8Panels::new(&matrix, None, &team).unwrap();
    let mut c = vec![0f32; 2];
    let tokens = |k: usize| Dense::new(1, k, vec![1f32; k], 1.0).unwrap().into();
    let refused = packed.run("scalar", &tokens(16), Target::F32(&mut c), &team);
    assert!(matches!(refused, Err(Error::Mismatch { what: "the activations' k", .. })));
    let refused = packed.run("scalar", &tokens(32), Target::F32(&mut c[..1]), &team);
    assert!(matches!(refused, Err(Error::Mismatch { what: "the output's length", .. })));
    let refused = packed.run("cuda", &tokens(32), Target::F32(&mut c), &team);
    assert!(matches!(refused, Err(Error::Mismatch { what: "the backend for FP8 weights", .. })));
    let quantised = format::Matrix::new(1, 32, vec![0x22; 16], vec![0x38; 2], 1.0).unwrap().into();
    assert!(packed.run("scalar", &quantised, Target::F32(&mut c), &team).is_err());
    assert!(matches!(Fp8Panels::new(&matrix, Some(&[1.0]), &team), Err(Error::BiasLength { .. })));
    let wide = Fp8Matrix::new(1, 64, vec![0x38; 64], Fp8Scales::Mx(vec![60, 200].into())).unwrap();
    assert!(matches!(Fp8Panels::new(&wide, None, &team), Err(Error::Fp8Spread { row: 0, span: 140, .. })));
}
