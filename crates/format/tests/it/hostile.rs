//! Checkpoints that lie: refused in one clear line, never a panic, never a read outside the files.
//!
//! The corpus and the functions that read it are the fuzzer's own.

#[path = "../../../../fuzz/src/checkpoints.rs"]
mod checkpoints;

use std::fs;
use std::path::{Path, PathBuf};

use hammerhead_format::checkpoint::Checkpoint;
use tempfile::{TempDir, tempdir};

fn corpus(kind: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(kind);
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 10);
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn seed(kind: &str, name: &str) -> Vec<u8> {
    let found = corpus(kind).into_iter().find(|(path, _)| path.ends_with(name));
    found.unwrap_or_else(|| panic!("no {kind}/{name}")).1
}

/// Opens bytes as a file of this name, and gives the message with which that is refused.
fn refusal(name: &str, bytes: &[u8]) -> String {
    let folder = tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    one_line(Checkpoint::open(&path).map(drop))
}

fn one_line(result: hammerhead_format::Result<()>) -> String {
    let message = result.expect_err("it should be refused").to_string();
    assert!(!message.contains('\n') && message.len() < 2000, "{message}");
    message
}

#[test]
fn the_whole_corpus_is_read_without_a_panic() {
    for (kind, entry) in checkpoints::TARGETS {
        for (_, bytes) in corpus(kind) {
            entry(&bytes);
        }
    }
}

/// The same numbers every time: a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

/// Changes bytes as a fuzzer would: bits, bytes, numbers at the edges, cuts, repetitions, pieces of another file.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    let at = random.below(bytes.len());
    match random.below(8) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
        1 if !bytes.is_empty() => bytes[at] = random.below(256) as u8,
        2 if !bytes.is_empty() => bytes[at] = b"0123456789[]{}\",:.-"[random.below(19)],
        3 => bytes.truncate(at),
        4 if bytes.len() >= at + 8 => {
            let edges = [0, 1, u64::MAX, u64::MAX / 2 + 1, u64::MAX - 31, bytes.len() as u64, 1 << 32, 1 << 16];
            bytes[at..at + 8].copy_from_slice(&edges[random.below(edges.len())].to_le_bytes());
        }
        5 => {
            let from = random.below(bytes.len());
            let piece = bytes[from..(from + random.below(40)).min(bytes.len())].to_vec();
            bytes.splice(at..at, piece);
        }
        6 => {
            let from = random.below(other.len());
            let piece = &other[from..(from + random.below(80)).min(other.len())];
            bytes.splice(at..at, piece.iter().copied());
        }
        _ if !bytes.is_empty() => {
            bytes.remove(at);
        }
        _ => {}
    }
}

#[test]
fn no_mutation_of_the_corpus_makes_reading_panic() {
    let mut random = Random(2026);
    for (kind, entry) in checkpoints::TARGETS {
        let corpus = corpus(kind);
        for (_, bytes) in &corpus {
            for _ in 0..25 {
                let mut bytes = bytes.clone();
                let other = &corpus[random.below(corpus.len())].1;
                for _ in 0..=random.below(4) {
                    mutate(&mut bytes, other, &mut random);
                }
                entry(&bytes);
            }
        }
    }
}

#[test]
fn every_lie_of_a_gguf_file_is_named() {
    for (name, fragment) in [
        ("nested_arrays", "nested more than 4 deep"),
        ("huge_array", "array items"),
        ("huge_text_array", "array items"),
        ("huge_text", "characters"),
        ("huge_counts", "9223372036854775808 tensors"),
        ("huge_sides", "larger than memory has addresses"),
        ("many_sides", "9 sides"),
        ("beyond_the_end", "cut off"),
        ("offset_overflows", "cut off"),
        ("unaligned", "no multiple of 32"),
        ("overlap", "\"a\" and \"b\" overlap"),
        ("same_name_twice", "two tensors are named \"a\""),
        ("same_key_twice", "\"general.architecture\" twice"),
        ("uneven_rows", "rows of 48 elements"),
        ("unknown_value", "unknown type 77"),
        ("alignment_of_three", "no power of two"),
        ("alignment_of_zero", "no power of two"),
        ("alignment_huge", "ends before its tensors"),
        ("name_is_no_text", "not UTF-8"),
        ("big_endian", "big-endian"),
        ("version_1", "version is 1"),
        ("only_magic", "shorter than"),
    ] {
        let message = refusal("model.gguf", &seed("gguf", name));
        assert!(message.contains(fragment), "{name}: {message}");
    }
}

#[test]
fn every_lie_of_a_safetensors_file_is_named() {
    for (name, fragment) in [
        ("overlap", "its header is wrong"),
        ("beyond_the_end", "take 8 bytes, but 4 follow"),
        ("overflowing_shape", "its header is wrong"),
        ("same_name_twice", "the name of a tensor twice"),
        ("header_too_long", "more than the 100000000 allowed"),
        ("header_cut", "only 2 follow"),
        ("deep", "its header is wrong"),
        ("nothing", "shorter than its 8-byte header length"),
        ("mixed_names", "--format"),
        ("no_up", "no up projection"),
        ("fused_and_apart", "both fused and apart"),
        ("odd_fused", "3 rows"),
        ("two_towers", "--tower"),
        ("one_part_twice", "the same part"),
        ("empty_stack", "not one scale for 16 elements"),
        ("torchao_without_metadata", "metadata do not describe it"),
        ("fused_transposed", "--gate-up-order"),
    ] {
        let message = refusal("model.safetensors", &seed("safetensors", name));
        assert!(message.contains(fragment), "{name}: {message}");
    }
}

#[test]
fn a_stack_that_no_bytes_stand_for_is_not_expanded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, seed("gguf", "tall_without_bytes")).unwrap();
    let model = Checkpoint::open(&path).unwrap();
    assert_eq!(model.layers()[0].pairs.len(), 1);
    assert!(model.layer(0).unwrap_err().to_string().contains("type 99"));
}

/// A folder with an index that names these shards, each a copy of the same good file.
fn folder_with_index(index: &str, shards: &[&str]) -> TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    for shard in shards {
        fs::write(folder.path().join(shard), seed("safetensors", "modelopt")).unwrap();
    }
    folder
}

fn open(folder: &Path) -> hammerhead_format::Result<()> {
    Checkpoint::open(folder).map(drop)
}

#[test]
fn an_index_may_name_only_plain_files_beside_it() {
    for shard in ["../x.safetensors", "/etc/passwd", ".", "..", "", "a/b.safetensors", "..\\\\x", "a\\u0000b"] {
        let index = format!(r#"{{"weight_map":{{"a":"{shard}"}}}}"#);
        let folder = folder_with_index(&index, &["a.safetensors"]);
        let message = one_line(open(folder.path()));
        assert!(message.contains("no plain file name"), "{shard}: {message}");
    }
}

#[test]
fn shards_and_tensors_that_an_index_names_must_be_there() {
    let name = "model.layers.0.mlp.gate_proj.weight";
    let missing = folder_with_index(&format!(r#"{{"weight_map":{{"{name}":"b.safetensors"}}}}"#), &["a.safetensors"]);
    assert!(one_line(open(missing.path())).contains("fetch the missing files"));
    let ghost = folder_with_index(r#"{"weight_map":{"ghost":"a.safetensors"}}"#, &["a.safetensors"]);
    assert!(one_line(open(ghost.path())).contains("holds no tensor \"ghost\""));
    for (index, fragment) in [
        ("{}", "no weight_map"),
        (r#"{"weight_map":{"a":1}}"#, "no text"),
        (r#"{"weight_map":{"a":"x","a":"y"}}"#, "\"a\" is there twice"),
        ("[", "not valid JSON"),
    ] {
        let folder = folder_with_index(index, &["a.safetensors"]);
        let message = one_line(open(folder.path()));
        assert!(message.contains(fragment), "{message}");
    }
}

#[test]
fn numbered_parts_must_be_whole_and_no_tensor_may_be_in_two() {
    let folder = tempdir().unwrap();
    let part = |n: usize| folder.path().join(format!("model-{n:05}-of-00002.safetensors"));
    fs::write(part(1), seed("safetensors", "modelopt")).unwrap();
    assert!(one_line(open(folder.path())).contains("fetch the missing files"));
    fs::write(part(2), seed("safetensors", "modelopt")).unwrap();
    assert!(one_line(open(folder.path())).contains("is in"));
    fs::write(part(2), seed("safetensors", "gpt_oss")).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().layers()[0].pairs.len(), 3);
    fs::write(folder.path().join("other.safetensors"), []).unwrap();
    assert!(one_line(open(folder.path())).contains("could be any of"));
}

#[test]
fn folders_without_a_model_say_so() {
    let folder = tempdir().unwrap();
    assert!(one_line(open(folder.path())).contains("no .safetensors and no .gguf"));
    assert!(one_line(open(&folder.path().join("nowhere"))).contains("cannot read"));
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    assert!(one_line(open(&folder.path().join("config.json"))).contains("no index of shards"));
    fs::write(folder.path().join("model.gguf"), seed("gguf", "pair")).unwrap();
    assert!(Checkpoint::open(folder.path()).is_ok());
    fs::write(folder.path().join("x.safetensors"), seed("safetensors", "modelopt")).unwrap();
    assert!(one_line(open(folder.path())).contains("could be any of"));
}

#[cfg(unix)]
mod links {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_out_of_the_folder_is_refused_unless_it_is_named_itself() {
        let (outside, folder) = (tempdir().unwrap(), tempdir().unwrap());
        let target = outside.path().join("weights");
        fs::write(&target, seed("safetensors", "modelopt")).unwrap();
        symlink(&target, folder.path().join("model.safetensors")).unwrap();
        assert!(one_line(open(folder.path())).contains("outside the folder"));
        assert!(Checkpoint::open(folder.path().join("model.safetensors")).is_ok());
    }

    #[test]
    fn a_link_within_the_folder_is_followed() {
        let folder = tempdir().unwrap();
        fs::write(folder.path().join("weights"), seed("safetensors", "modelopt")).unwrap();
        symlink("weights", folder.path().join("model.safetensors")).unwrap();
        assert!(Checkpoint::open(folder.path()).is_ok());
    }

    #[test]
    fn the_cache_of_the_hub_is_followed_to_its_blobs_and_no_further() {
        let hub = tempdir().unwrap();
        let (blobs, snapshot) = (hub.path().join("blobs"), hub.path().join("snapshots/0123abcd"));
        fs::create_dir_all(&blobs).unwrap();
        fs::create_dir_all(&snapshot).unwrap();
        fs::write(blobs.join("ffff"), seed("safetensors", "modelopt")).unwrap();
        symlink("../../blobs/ffff", snapshot.join("model.safetensors")).unwrap();
        assert!(Checkpoint::open(&snapshot).is_ok());
        fs::write(hub.path().join("secret"), seed("safetensors", "modelopt")).unwrap();
        fs::remove_file(snapshot.join("model.safetensors")).unwrap();
        symlink("../../secret", snapshot.join("model.safetensors")).unwrap();
        assert!(one_line(open(&snapshot)).contains("outside the folder"));
    }

    #[test]
    fn a_link_in_circles_or_to_a_pipe_is_an_error() {
        let folder = tempdir().unwrap();
        symlink("model.safetensors", folder.path().join("model.safetensors")).unwrap();
        assert!(Checkpoint::open(folder.path()).is_err());
    }
}
