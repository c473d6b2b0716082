//! Layers of experts in files, against loops over plain numbers in double precision.

use std::path::Path;

use crate::common::{Operand, Random, assert_refused, cpu_backends, hammerhead, read_result, stderr, succeed};
use format::tensors::{self, Dtype, File, Tensor};

const TOKENS: usize = 7;
const EXPERTS: usize = 5;
const K: usize = 48;
const INNER: usize = 32;

/// One expert's matrices, and biases where it has them.
struct Expert {
    b1: Operand,
    b2: Option<Operand>,
    down: Operand,
    biases: Option<[Vec<f32>; 3]>,
}

impl Expert {
    fn new(random: &mut Random, inner: usize, gated: bool, biased: bool) -> Self {
        let mut matrix = |rows, k: usize, by: f32| Operand::quantised(random, rows, k, Some(by / (k as f32).sqrt()));
        let (b1, down) = (matrix(inner, K, 0.25), matrix(K, inner, 0.5));
        let b2 = gated.then(|| matrix(inner, K, 0.75));
        let mut vector = |length| (0..length).map(|_| random.number()).collect::<Vec<f32>>();
        Self { b1, b2, down, biases: biased.then(|| [vector(inner), vector(inner), vector(K)]) }
    }

    fn tensors(&self, prefix: &str) -> Vec<Tensor<'static>> {
        let mut all = self.b1.tensors(&format!("{prefix}b1"));
        all.extend(self.b2.iter().flat_map(|b2| b2.tensors(&format!("{prefix}b2"))));
        all.extend(self.down.tensors(&format!("{prefix}down")));
        for (name, bias) in ["b1", "b2", "down"].iter().zip(self.biases.iter().flatten()) {
            if *name != "b2" || self.b2.is_some() {
                all.push(Tensor::from_f32(format!("{prefix}{name}_bias"), [bias.len()], bias.clone()));
            }
        }
        all
    }

    fn apply(&self, x: &[f64], gate: fn(f64, f64) -> f64) -> Vec<f64> {
        let product = |matrix: &Operand, x: &[f64], bias: usize| -> Vec<f64> {
            let sum = |row| (0..matrix.k).map(|k| matrix.at(row, k) * x[k]).sum::<f64>();
            let bias = |row: usize| self.biases.as_ref().map_or(0.0, |biases| f64::from(biases[bias][row]));
            (0..matrix.rows).map(|row| f64::from(matrix.global.unwrap()) * sum(row) + bias(row)).collect()
        };
        let gates = product(&self.b1, x, 0);
        let ups = self.b2.as_ref().map_or_else(|| vec![0.0; gates.len()], |b2| product(b2, x, 1));
        let h: Vec<f64> = gates.iter().zip(&ups).map(|(&g, &u)| gate(g, u)).collect();
        product(&self.down, &h, 2)
    }
}

/// A layer with its tokens; the routing is added by each test.
struct Layer {
    x: Operand,
    experts: Vec<Expert>,
    shared: Option<Expert>,
}

impl Layer {
    fn new(seed: u64, gated: bool, biased: bool, shared: bool) -> Self {
        let mut random = Random(seed);
        let x = Operand::floats(&mut random, TOKENS, K, Dtype::BF16, None);
        let experts = (0..EXPERTS).map(|_| Expert::new(&mut random, INNER, gated, biased)).collect();
        let shared = shared.then(|| Expert::new(&mut random, 2 * INNER, gated, biased));
        Self { x, experts, shared }
    }

    fn write(&self, path: &Path, routing: Vec<Tensor<'static>>) {
        let mut all = self.x.tensors("x");
        for (number, expert) in self.experts.iter().enumerate() {
            all.extend(expert.tensors(&format!("e{number}.")));
        }
        all.extend(self.shared.iter().flat_map(|shared| shared.tensors("shared.")));
        all.extend(routing);
        tensors::write(path, &all, None).unwrap();
    }

    /// The result, given every token's experts and weights.
    fn expected(&self, routed: &[Vec<(i64, f64)>], gate: fn(f64, f64) -> f64) -> Vec<f64> {
        let token = |(token, experts): (usize, &Vec<(i64, f64)>)| {
            let x: Vec<f64> = (0..K).map(|k| self.x.at(token, k)).collect();
            let mut y = self.shared.as_ref().map_or_else(|| vec![0.0; K], |shared| shared.apply(&x, gate));
            for &(expert, weight) in experts {
                if let Some(expert) = usize::try_from(expert).ok().and_then(|expert| self.experts.get(expert)) {
                    y.iter_mut().zip(expert.apply(&x, gate)).for_each(|(y, own)| *y += weight * own);
                }
            }
            y
        };
        routed.iter().enumerate().flat_map(token).collect()
    }
}

/// The simulator of every family of GPUs.
const SIMULATORS: [&str; 4] = ["sim", "sim:sm80", "sim:sm_100a", "sim:sm_120a"];

/// Runs the command on every backend and compares; the intermediate is f32, so that little is rounded.
fn check(input: &Path, expected: &[f64], more: &[&str]) {
    let output = input.with_file_name("y.safetensors");
    let largest = expected.iter().fold(0f64, |most, y| most.max(y.abs()));
    let ways = cpu_backends().into_iter().flat_map(|backend| [(backend, "f32", 2e-5), (backend, "bf16", 5e-3)]);
    for (backend, out, tolerance) in ways.chain(SIMULATORS.map(|simulator| (simulator, "f32", 2e-5))) {
        let files = ["run", "--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        let how = ["--backend", backend, "--result", out, "--intermediate", "f32"];
        succeed(files.iter().chain(&how).chain(more));
        let found = read_result(&File::open(&output).unwrap(), "y", out, [TOKENS, K]);
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let error = (found - expected).abs();
            assert!(error <= tolerance * largest, "{backend} {out} {more:?}: y[{at}] is {found}, not {expected}");
        }
    }
}

fn logits(seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..TOKENS * EXPERTS).map(|_| random.number()).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(g: f64, u: f64) -> f64 {
    g * sigmoid(g) * u
}

/// The k largest of some keys, largest first.
fn largest(keys: &[f64], k: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]).then(a.cmp(&b)));
    order.truncate(k);
    order
}

#[test]
fn every_routing_gate_and_bias_is_what_plain_loops_make_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("layer.safetensors");
    let (layer, logits) = (Layer::new(1, true, true, true), logits(2));
    layer.write(&input, vec![Tensor::from_f32("logits", [TOKENS, EXPERTS], logits.clone())]);
    let oai = |g: f64, u: f64| g.min(7.0) * sigmoid(1.702 * g.min(7.0)) * (u.clamp(-7.0, 7.0) + 1.0);
    for (routing, gate, function) in [
        ("softmax", "silu", silu as fn(f64, f64) -> f64),
        ("softmax-renorm", "gpt-oss", oai),
        ("topk-softmax", "silu:limit=0.5", |g, u| silu(g.min(0.5), u.clamp(-0.5, 0.5))),
        ("sigmoid", "silu", silu),
    ] {
        let route = |row: &[f32]| {
            let row: Vec<f64> = row.iter().map(|&x| x.into()).collect();
            let chosen = largest(&row, 3);
            let score = |e: usize| if routing == "sigmoid" { sigmoid(row[e]) } else { row[e].exp() };
            let sum: f64 = match routing {
                "softmax" => (0..EXPERTS).map(score).sum(),
                _ => chosen.iter().map(|&e| score(e)).sum(),
            };
            chosen.into_iter().map(|e| (e as i64, score(e) / sum)).collect::<Vec<_>>()
        };
        let routed: Vec<_> = logits.chunks(EXPERTS).map(route).collect();
        check(&input, &layer.expected(&routed, function), &["--routing", routing, "--top-k", "3", "--gate", gate]);
    }
}

#[test]
fn ids_of_both_types_are_read_and_those_outside_add_nothing() {
    // A few of a token's experts; and more than there are, as one rank of several meets them.
    for (top, pattern) in [(2, [0, -1, 4, 5, 2, 1 << 20]), (8, [3, 7, -1, 250, 1, 5])] {
        let ids: Vec<i64> = pattern.into_iter().cycle().take(top * TOKENS).collect();
        check_ids(&ids, top);
    }
}

fn check_ids(ids: &[i64], top: usize) {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("layer.safetensors");
    let mut random = Random(3);
    let weights: Vec<f32> = ids.iter().map(|&id| if id == -1 { f32::NAN } else { random.number() }).collect();
    let routed: Vec<Vec<(i64, f64)>> = ids
        .chunks(top)
        .zip(weights.chunks(top))
        .map(|(i, w)| i.iter().copied().zip(w.iter().map(|&w| w.into())).collect())
        .collect();
    for (gated, gate) in [(true, "silu"), (false, "relu2")] {
        let layer = Layer::new(4, gated, !gated, false);
        let function = if gated { silu } else { |g: f64, _| g.max(0.0).powi(2) };
        let expected = layer.expected(&routed, function);
        let narrow: Vec<u8> = ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect();
        let wide: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        for (dtype, bytes) in [(Dtype::I32, narrow), (Dtype::I64, wide)] {
            let ids = Tensor::from_bytes("ids", dtype, [TOKENS, top], bytes);
            layer.write(&input, vec![ids, Tensor::from_f32("weights", [TOKENS, top], weights.clone())]);
            check(&input, &expected, &["--gate", gate]);
            check(&input, &expected, &["--gate", gate, "--batch-invariant"]);
        }
    }
}

#[test]
fn a_layer_that_was_saved_is_mapped_back_with_its_routing() {
    let folder = tempfile::tempdir().unwrap();
    let [input, inputs, packed, first, second] =
        ["layer", "inputs", "packed", "first", "second"].map(|name| folder.path().join(name));
    let layer = Layer::new(5, true, true, true);
    let routing = || vec![Tensor::from_f32("logits", [TOKENS, EXPERTS], logits(6))];
    layer.write(&input, routing());
    let mut alone = layer.x.tensors("x");
    alone.extend(routing());
    tensors::write(&inputs, &alone, None).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let moe = |input: &Path, output: &Path, more: &[&str]| {
        let files = ["run".to_owned(), "--input".to_owned(), text(input), "--output".to_owned(), text(output)];
        files.into_iter().chain(more.iter().map(|&word| word.to_owned())).collect::<Vec<_>>()
    };
    let packed_at = text(&packed);
    succeed(moe(&input, &first, &["--routing", "softmax", "--top-k", "2", "--save", &packed_at]));
    let text_of = succeed(moe(&inputs, &second, &["--packed", &packed_at, "--json"]));
    assert!(text_of.contains("\"shared\": true") && text_of.contains("softmax, top 2"), "{text_of}");
    let [first, second] = [first, second].map(|path| std::fs::read(path).unwrap());
    assert_eq!(first, second);
    let third = folder.path().join("third");
    for (arguments, fragments) in [
        (moe(&input, &third, &["--packed", &packed_at]), &["\"e0.b1\"", "--packed"][..]),
        (moe(&inputs, &third, &["--packed", &text(&inputs)]), &["inputs"]),
        (moe(&inputs, &packed, &["--packed", &packed_at]), &["packed"]),
    ] {
        assert_refused(&hammerhead(arguments), fragments);
    }
}

#[test]
fn what_does_not_fit_is_refused_with_its_tensor_and_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("layer.safetensors"), folder.path().join("y.safetensors"));
    let layer = Layer::new(1, true, false, false);
    let routing = || vec![Tensor::from_f32("logits", [TOKENS, EXPERTS], logits(2))];
    let files =
        ["run", "--backend", "scalar", "--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
    let routed = ["--routing", "softmax", "--top-k", "2"];
    let refused = |tensors: Vec<Tensor<'static>>, more: &[&str], fragments: &[&str]| {
        layer.write(&input, tensors);
        assert_refused(&hammerhead(files.iter().chain(more)), fragments);
        assert!(!output.exists(), "{fragments:?}");
    };
    refused(routing(), &[], &["\"logits\"", "--routing"]);
    refused(routing(), &["--routing", "softmax", "--top-k", "6"], &["top-k is 6 of 5"]);
    refused(routing(), &["--routing", "softmax", "--top-k", "2", "--gate", "relu2"], &["e0.b2", "relu2"]);
    refused(vec![], &routed, &["\"logits\"", "missing"]);
    for spoiled in [f32::INFINITY, f32::NAN] {
        let mut given = logits(2);
        given[EXPERTS + 3] = spoiled;
        refused(vec![Tensor::from_f32("logits", [TOKENS, EXPERTS], given)], &routed, &["logits", "row 1, column 3"]);
    }
    refused(vec![Tensor::from_f32("logits", [TOKENS, 2], vec![0.0; 2 * TOKENS])], &routed, &["\"logits\"", "[7, 5]"]);
    let with = |tensor| routing().into_iter().chain([tensor]).collect::<Vec<_>>();
    refused(with(Tensor::from_f32("e1.b1_bias", [3], vec![0.0; 3])), &routed, &["\"e1.b1_bias\"", "[32]"]);
    refused(with(Tensor::from_f32("e1.bias", [3], vec![0.0; 3])), &routed, &["\"e1.bias\"", "no tensor of that name"]);
    refused(with(Tensor::from_f32("e7.b1", [3], vec![0.0; 3])), &routed, &["\"e5.b1\"", "without gaps"]);
    let ids = |dtype, bytes: usize| Tensor::from_bytes("ids", dtype, [TOKENS, 2], vec![0; 2 * TOKENS * bytes]);
    refused(vec![ids(Dtype::I32, 4)], &[], &["\"weights\"", "missing"]);
    let weights = || Tensor::from_f32("weights", [TOKENS, 2], vec![0.5; 2 * TOKENS]);
    refused(vec![ids(Dtype::F32, 4), weights()], &[], &["ids", "I32"]);
    refused(
        vec![ids(Dtype::I32, 4), Tensor::from_f32("weights", [TOKENS, 1], vec![0.5; TOKENS])],
        &[],
        &["\"weights\""],
    );
    refused(vec![ids(Dtype::I32, 4), weights()], &routed, &["\"ids\"", "--routing"]);
    let sized = |n| Expert::new(&mut Random(9), n, true, false).tensors("shared.");
    let narrow = sized(INNER).into_iter().filter(|tensor| !tensor.name.starts_with("shared.down"));
    refused(routing().into_iter().chain(narrow).collect(), &routed, &["\"shared.down\"", "missing"]);
}

#[test]
fn former_spellings_are_answered_with_the_new_ones() {
    let moe = ["moe", "--input", "layer.safetensors", "--top-k", "2"];
    let mlp = ["run", "--checkpoint", "model", "--layer", "0", "--mlp"];
    for (old, new) in [(&moe[..], "hammerhead run --input layer.safetensors --top-k 2"), (&mlp, "--whole")] {
        let output = hammerhead(old);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(new), "{text}");
    }
}

#[test]
fn options_of_whole_layers_are_refused_where_there_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let problem = folder.path().join("problem.safetensors");
    let tensors = ["a", "b1"].into_iter().flat_map(|name| {
        let scale = Tensor::from_bytes(format!("{name}_scale"), Dtype::F8_E4M3, [1, 1], vec![0x38; 1]);
        [Tensor::from_bytes(name, Dtype::U8, [1, 8], vec![0x22; 8]), scale]
    });
    tensors::write(&problem, &tensors.collect::<Vec<_>>(), None).unwrap();
    let output = folder.path().join("c.safetensors");
    let files = ["run", "--input", problem.to_str().unwrap(), "--output", output.to_str().unwrap()];
    succeed(files);
    assert_refused(&hammerhead(files.into_iter().chain(["--batch-invariant"])), &["--batch-invariant", "no x"]);
}
