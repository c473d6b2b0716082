//! JSON files beside the weights, read with distrust: of a bounded size, nested to a bounded depth (which `serde_json`
//! sees to), and without a key given twice, since two readers could then see two different models.

use std::fmt;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
pub(super) use serde_json::Value;
use serde_json::{Map, Number};

use crate::files::Files;
use crate::{Error, Result};

/// The longest file that is read. The index of a model with 100 000 tensors has about 10 MB.
const MAX_BYTES: usize = 256 << 20;

/// Reads a JSON file.
pub(super) fn read(files: &Files, path: &Path) -> Result<Value> {
    let refuse = |problem: String| Err(Error::Companion { path: path.to_path_buf(), problem });
    let bytes = match files.bytes(path, 1) {
        Err(Error::NotAFile { what, .. }) => return refuse(format!("it is {what}")),
        bytes => bytes?,
    };
    let bytes = bytes.as_deref().unwrap_or_default();
    if bytes.len() > MAX_BYTES {
        return refuse(format!("it has {} bytes, more than the {MAX_BYTES} allowed", bytes.len()));
    }
    parse(bytes).or_else(refuse)
}

/// Parses JSON text, or says in one line what is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let Strict(value) = serde_json::from_slice(bytes).map_err(|error| {
        let error: String = error.to_string().chars().take(200).collect();
        format!("it is not valid JSON ({})", error.replace(char::is_control, " "))
    })?;
    Ok(value)
}

/// A value in which no object has a key twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Strict)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated keys")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Strict(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if map.contains_key(&key) {
                return Err(de::Error::custom(format!("the key {key:?} is there twice")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
