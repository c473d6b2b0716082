//! JSON files beside the weights, read with distrust: of a bounded size, nested to a bounded depth (which `serde_json`
//! sees to), and without a key given twice, since two readers could then see two different models.

use std::borrow::Cow;
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

/// Parses JSON text, or says in one line what is wrong with it. Python's `json` writes numbers that JSON does not have,
/// and models do have limits that are infinite: such numbers are read as null.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let Strict(value) = serde_json::from_slice(&without_non_finite(bytes)).map_err(|error| {
        let error: String = error.to_string().chars().take(200).collect();
        format!("it is not valid JSON ({})", error.replace(char::is_control, " "))
    })?;
    Ok(value)
}

/// JSON text with null in place of `NaN`, `Infinity` and `-Infinity` outside strings.
fn without_non_finite(bytes: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut at, mut copied, mut in_string) = (0, 0, false);
    while let Some(&byte) = bytes.get(at) {
        let words: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
        let word = words.iter().find(|word| !in_string && bytes[at..].starts_with(word));
        at += match (byte, word) {
            (b'\\', _) if in_string => 2,
            (_, Some(word)) => {
                out.extend_from_slice(&bytes[copied..at]);
                out.extend_from_slice(b"null");
                copied = at + word.len();
                word.len()
            }
            _ => 1,
        };
        in_string ^= byte == b'"';
    }
    if copied == 0 {
        return Cow::Borrowed(bytes);
    }
    out.extend_from_slice(&bytes[copied..]);
    Cow::Owned(out)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_only_python_writes_are_read_as_null() {
        let text =
            br#"{"limit": [0.0, Infinity], "low": -Infinity, "nan":NaN, "said": "NaN, \"Infinity\" \\", "k": 2}"#;
        let value = parse(text).unwrap();
        assert_eq!(value["limit"][1], Value::Null);
        assert_eq!((&value["low"], &value["nan"]), (&Value::Null, &Value::Null));
        assert_eq!(value["said"], "NaN, \"Infinity\" \\");
        assert_eq!(value["k"], 2);
        assert!(parse(b"Infinit").is_err());
    }
}
