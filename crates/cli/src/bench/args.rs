//! What `hammerhead bench` can be asked.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::options::How;
use crate::selection::{self, Layers, Selection};

/// Measure speed, with cold and with warm weights
#[derive(Debug, ClapArgs)]
#[command(mut_arg("suite", |suite| suite.help(selection::suite_help("dual, group and decode"))))]
#[command(mut_arg("activation", |tokens| tokens.help("The tokens' type: nvfp4, f16, bf16 or f32; may be given several times \
    [default: each case's own, and nvfp4 for a shape; with --backend cuda f16 and nvfp4]")))]
#[command(
    long_about = "Measure speed. Each case is checked against the reference first, then timed with cold weights (a \
    different copy each time, more than 1.2 GB of them, as in a model of many layers) and with warm ones (the same copy \
    again). Timings of all cases and of the machine's own ceilings, arithmetic and memory, are interleaved in rounds. \
    The medians are given with the range of the middle eight tenths; `floor` is the least time that the ceilings would \
    allow as a part of the median. Warm weights may beat the floor, because caches are faster than memory.\n\n\
    The copies take up to 1.2 GB for each size of weights, and less where memory is short; the report says how many \
    bytes were rotated.\n\n\
    Each row names its backend. Where a GPU is planned without being asked for by name, the time is the host's, and copies of \
    tokens and results to and from the device are part of it; the row is marked.\n\n\
    With --backend cuda the device's own clock times graphs of calls over weights, tokens and results in rotation \
    beyond its cache, after a pause (burst) and after 300 ms of load (sustained); copies to and from the host are not part of \
    it, the expansion of NVFP4 tokens is.\n\n\
    The suite moe measures whole layers of experts as models have them, from the router's logits to the combined result, in bf16 unless \
    --activation and --result say otherwise, with experts that change from call to call.\n\n\
    Examples:\n  \
    hammerhead bench\n  \
    hammerhead bench --suite decode --seconds 5 --export decode.json\n  \
    hammerhead bench --shape 256x4096x7168 --shape 80,176,128x4096x7168 --activation bf16\n  \
    hammerhead bench --suite dual --backend scalar --threads 1 --config strategy=ping-pong\n  \
    hammerhead bench --suite group --scaling\n  \
    hammerhead bench --shape 256x1024x32 --regret\n  \
    hammerhead bench --suite moe --model qwen3-30b-a3b --tokens 1,16,512\n  \
    hammerhead bench --suite decode --html decode.html --against before.json\n  \
    hammerhead bench --backend cuda --suite dual --activation f16 --export h200.json"
)]
pub struct Args {
    /// Every case of the suites, also those that are not there for their speed
    #[arg(long, conflicts_with = "shape")]
    pub all: bool,
    /// Seconds of timing for each case, though each gets three cold and three warm runs
    #[arg(long, value_name = "T", default_value_t = 2.0, value_parser = positive)]
    pub seconds: f64,
    /// Time each case on one thread too, and a group's problems one after another, in the same rounds (CPU only)
    #[arg(long)]
    pub scaling: bool,
    /// Time the planner's choice against its other candidates instead, on each CPU backend by itself and on all
    #[arg(long, conflicts_with_all = ["scaling", "html"])]
    pub regret: bool,
    /// Show the configuration of every case, too
    #[arg(long)]
    pub explain: bool,
    /// Print the record as JSON in place of the tables
    #[arg(long)]
    pub json: bool,
    /// Write a record to this file as well, by its ending as JSON, CSV or Markdown (.json, .csv, .md); may be given
    /// several times
    #[arg(long, value_name = "FILE")]
    pub export: Vec<PathBuf>,
    /// Write one HTML page to this file as well: bars of time against the floor, and every number; it needs no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show the rows of this record beside the same problems on the page: a JSON file that --export wrote, or
    /// benchmarks/beside.py or benchmarks/h200/peers.py; may be given several times
    #[arg(long, value_name = "RECORD", requires = "html")]
    pub against: Vec<PathBuf>,
    /// Of the suite moe these numbers of tokens
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 16, 64, 512, 4096], value_parser = token_count)]
    pub tokens: Vec<usize>,
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub layers: Layers,
    #[command(flatten)]
    pub how: How,
}

fn token_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=1 << 20).contains(&count) => Ok(count),
        _ => Err("a number of tokens from 1 to 1048576 is expected".to_owned()),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if f64::is_finite(seconds) && seconds > 0.0 => Ok(seconds),
        _ => Err("a number of seconds above zero is expected".to_owned()),
    }
}
