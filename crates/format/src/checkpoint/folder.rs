//! Which files a model is made of.
//!
//! A model is a single file, a folder, or the index of a folder. Where there is an index, it decides which shards there
//! are; where there is none, names of the kind `…-00001-of-00003.safetensors` do. The names in an index come from
//! strangers: they must be plain names of files in the index's own folder, and a link must not lead out of it, but for
//! the one that the Hugging Face cache makes, from `snapshots/REVISION/` to `blobs/` beside it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use super::json::{self, Value};
use crate::files::Files;
use crate::{Error, Result};

/// The files of a model.
#[derive(Debug)]
pub(super) struct Found {
    /// The folder that they, and the configuration, are in.
    pub folder: PathBuf,
    pub weights: Weights,
}

/// What holds the weights.
#[derive(Debug)]
pub(super) enum Weights {
    /// safetensors, and where an index says so which of them each tensor is in.
    Safetensors {
        files: Vec<PathBuf>,
        index: Option<BTreeMap<String, usize>>,
    },
    Gguf {
        files: Vec<PathBuf>,
    },
}

const INDEX_ENDING: &str = ".safetensors.index.json";

/// Finds the files of the model at `path`.
pub(super) fn find(files: &Files, path: &Path) -> Result<Found> {
    if files.is_folder(path)? {
        return in_folder(files, path);
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let weights = if name.ends_with(".index.json") {
        indexed(files, path, &folder)?
    } else if name.ends_with(".gguf") {
        Weights::Gguf { files: gguf_parts(files, path, &folder, &name)? }
    } else if name.ends_with(".json") {
        return no_model(
            path,
            "it is a JSON file but no index of shards".to_owned(),
            "name the model's folder, its *.safetensors.index.json, or a weights file",
        );
    } else {
        Weights::Safetensors { files: vec![path.to_path_buf()], index: None }
    };
    Ok(Found { folder, weights })
}

fn no_model<T>(path: &Path, problem: String, remedy: &'static str) -> Result<T> {
    Err(Error::NoModel { path: path.to_path_buf(), problem, remedy })
}

/// Finds what a folder holds: an index first, then `model.safetensors`, then whatever is the only thing it can be.
fn in_folder(files: &Files, folder: &Path) -> Result<Found> {
    let names = files.names(folder)?;
    let ending = |ending: &str| names.iter().filter(|name| name.ends_with(ending)).cloned().collect::<Vec<_>>();
    let (indices, tensors, ggufs) = (ending(INDEX_ENDING), ending(".safetensors"), ending(".gguf"));
    let main_index = format!("model{INDEX_ENDING}");
    let weights = match (&indices[..], &tensors[..], &ggufs[..]) {
        (indices, ..) if indices.contains(&main_index) => indexed(files, &folder.join(main_index), folder)?,
        ([index], ..) => indexed(files, &folder.join(index), folder)?,
        ([], tensors, _) if tensors.iter().any(|name| name == "model.safetensors") => {
            Weights::Safetensors { files: vec![inside(files, folder, folder, "model.safetensors")?], index: None }
        }
        ([], [], []) => {
            return no_model(
                folder,
                "the folder holds no .safetensors and no .gguf".to_owned(),
                "check that the download is complete",
            );
        }
        ([], tensors, []) => {
            let files = whole_set(files, folder, tensors, ".safetensors")?;
            Weights::Safetensors { files, index: None }
        }
        ([], [], ggufs) => Weights::Gguf { files: whole_set(files, folder, ggufs, ".gguf")? },
        _ => {
            let all: Vec<&str> = [&indices, &tensors, &ggufs].into_iter().flatten().map(String::as_str).collect();
            return no_model(
                folder,
                format!("it could be any of {}", some(&all)),
                "name the one file or index that you mean",
            );
        }
    };
    Ok(Found { folder: folder.to_path_buf(), weights })
}

/// All files of a folder with one ending, if they are a single one or the numbered parts of one thing.
fn whole_set(files: &Files, folder: &Path, names: &[String], ending: &str) -> Result<Vec<PathBuf>> {
    if let [name] = names {
        if let Some((base, _, of)) = numbered(name, ending) {
            return parts(files, [folder; 2], base, of, ending);
        }
        return Ok(vec![inside(files, folder, folder, name)?]);
    }
    match names.first().and_then(|first| numbered(first, ending)) {
        Some((base, _, of))
            if names.iter().all(|name| numbered(name, ending).is_some_and(|n| (n.0, n.2) == (base, of))) =>
        {
            parts(files, [folder; 2], base, of, ending)
        }
        _ => {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            no_model(
                folder,
                format!("it could be any of {}", some(&names)),
                "name the one file that you mean, or add the index that says how they belong together",
            )
        }
    }
}

/// `base-00002-of-00003.ending` as base, 2 and 3.
fn numbered<'n>(name: &'n str, ending: &str) -> Option<(&'n str, usize, usize)> {
    let (rest, of) = name.strip_suffix(ending)?.rsplit_once("-of-")?;
    let (base, part) = rest.rsplit_once('-')?;
    let five = |digits: &str| (digits.len() == 5).then(|| digits.parse::<usize>().ok()).flatten();
    Some((base, five(part)?, five(of)?))
}

/// Every one of so many numbered parts.
fn parts(files: &Files, [origin, folder]: [&Path; 2], base: &str, of: usize, ending: &str) -> Result<Vec<PathBuf>> {
    (1..=of).map(|part| inside(files, origin, folder, &format!("{base}-{part:05}-of-{of:05}{ending}"))).collect()
}

/// The parts of a split GGUF file of which one is named, or that file alone.
fn gguf_parts(files: &Files, path: &Path, folder: &Path, name: &str) -> Result<Vec<PathBuf>> {
    match numbered(name, ".gguf") {
        Some((base, _, of)) => parts(files, [path, folder], base, of, ".gguf"),
        None => Ok(vec![path.to_path_buf()]),
    }
}

/// What an index says.
fn indexed(files: &Files, path: &Path, folder: &Path) -> Result<Weights> {
    let bad = |problem: &str| Error::Companion { path: path.to_path_buf(), problem: problem.to_owned() };
    let index = json::read(files, path)?;
    let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(|| bad("it has no weight_map"))?;
    let mut shards: BTreeMap<&str, usize> = BTreeMap::new();
    for shard in map.values() {
        let shard = shard.as_str().ok_or_else(|| bad("its weight_map names a shard with something that is no text"))?;
        shards.insert(shard, 0);
    }
    let mut paths = Vec::new();
    for (shard, at) in &mut shards {
        *at = paths.len();
        paths.push(inside(files, path, folder, shard)?);
    }
    let place = |(name, shard): (&String, &Value)| Some((name.clone(), *shards.get(shard.as_str()?)?));
    let index = map.iter().filter_map(place).collect();
    Ok(Weights::Safetensors { files: paths, index: Some(index) })
}

/// The path of a file that must be in `folder` itself, and that no link may lead out of it. `origin` names it.
fn inside(files: &Files, origin: &Path, folder: &Path, name: &str) -> Result<PathBuf> {
    let refuse = |problem: String, remedy| {
        let shard = name.chars().take(200).collect();
        Err(Error::Shard { path: origin.to_path_buf(), shard, problem, remedy })
    };
    let plain =
        matches!(Path::new(name).components().collect::<Vec<_>>()[..], [Component::Normal(only)] if only == name);
    if !plain || name.contains(['/', '\\', '\0']) {
        let remedy = "shards lie in the folder of their index under plain names; do not trust this download";
        return refuse("that is no plain file name".to_owned(), remedy);
    }
    let path = folder.join(name);
    let real = match files.real(&path) {
        Ok(real) => real,
        Err(cause) => return refuse(format!("it cannot be found ({cause})"), "fetch the missing files"),
    };
    let home = files.real(folder).map_err(|cause| Error::Read { path: folder.to_path_buf(), cause })?;
    if real.starts_with(&home) || in_hub_cache(&home, &real) {
        return Ok(path);
    }
    let remedy = "name the file itself if you trust it, or copy it into the folder";
    refuse(format!("it is a link to {real:?}, outside the folder"), remedy)
}

/// Whether a file is where the Hugging Face cache keeps the contents of this snapshot's files.
fn in_hub_cache(snapshot: &Path, real: &Path) -> bool {
    let Some(snapshots) = snapshot.parent().filter(|folder| folder.ends_with("snapshots")) else { return false };
    let blobs = snapshots.parent().map(|repository| repository.join("blobs"));
    real.parent().is_some_and(|folder| Some(folder) == blobs.as_deref())
}

/// A few of many names, in words.
fn some(names: &[&str]) -> String {
    const SHOWN: usize = 4;
    let shown = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    match names.len() {
        count if count > SHOWN => format!("{shown} and {} more", count - SHOWN),
        _ => shown,
    }
}
