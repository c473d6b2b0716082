//! What definitions and workloads say, field by field.
//!
//! A field that is not known here may mean anything, and numbers that are made in a way that nobody asked for judge
//! nobody: whatever is not known is refused by its name.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The fields of a definition.
const DEFINITION: [&str; 11] = [
    "name",
    "op_type",
    "tags",
    "description",
    "hf_id",
    "axes",
    "inputs",
    "outputs",
    "reference",
    "constraints",
    "custom_inputs_entrypoint",
];
/// Kinds of axes, and what each has to say.
const AXES: [(&str, &[&str]); 3] = [("const", &["value"]), ("var", &[]), ("expr", &["expression"])];
/// Kinds of inputs, and what each has to say.
const INPUTS: [(&str, &[&str]); 4] =
    [("random", &[]), ("scalar", &["value"]), ("safetensors", &["path", "tensor_key"]), ("custom", &[])];
/// A line that is a trace, of which the workload is a part.
const TRACE: [&str; 4] = ["definition", "workload", "solution", "evaluation"];
const WORKLOAD: [&str; 4] = ["uuid", "axes", "inputs", "tolerance"];
const TOLERANCE: [&str; 7] =
    ["max_atol", "max_rtol", "atol", "rtol", "required_matched_ratio", "max_error_cap", "allow_negative_inf"];
/// Types that torch has numbers of, beside those of eight bits; of four bits it has pairs alone.
const TYPES: [&str; 10] =
    ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"];

/// What is wrong, and what it is called, by which its line is found.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) problem: String,
    pub(super) key: String,
}

fn refused<T>(key: &str, problem: String) -> Result<T, Refused> {
    Err(Refused { problem, key: key.to_owned() })
}

/// What something says, if it says nothing that is not known.
fn fields<'v>(of: &str, value: &'v Value, known: &[&str]) -> Result<&'v Map<String, Value>, Refused> {
    let Some(map) = value.as_object() else { return refused(of, format!("{of} is {value}, and not a mapping")) };
    match map.keys().find(|field| !known.contains(&field.as_str())) {
        Some(field) => refused(field, format!("{of} has the field {field}, which is not known here")),
        None => Ok(map),
    }
}

/// The kind of something, if that is known and it says what it has to.
fn kind(of: &str, value: &Value, kinds: &[(&'static str, &[&str])]) -> Result<&'static str, Refused> {
    let told = value.get("type").and_then(Value::as_str).unwrap_or_default();
    let Some((kind, needed)) = kinds.iter().find(|(kind, _)| *kind == told) else {
        let known: Vec<&str> = kinds.iter().map(|(kind, _)| *kind).collect();
        return refused(told, format!("{of} is of the type {told:?}, and only {} are known here", known.join(", ")));
    };
    let map = fields(of, value, &[&["type", "description"], *needed].concat())?;
    match needed.iter().find(|field| map.get(**field).is_none_or(Value::is_null)) {
        Some(missing) => refused(of, format!("{of} is of the type {kind}, and says no {missing}")),
        None => Ok(kind),
    }
}

/// A definition, of which nothing is unknown.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) name: String,
    axes: BTreeMap<String, &'static str>,
    constants: BTreeMap<String, Value>,
    inputs: Vec<String>,
    has_entrypoint: bool,
}

impl Definition {
    pub(super) fn read(value: &Value) -> Result<Self, Refused> {
        let map = fields("the definition", value, &DEFINITION)?;
        let word = |field: &str| map.get(field).and_then(Value::as_str);
        let part = |field: &str| match map.get(field).and_then(Value::as_object) {
            Some(part) => Ok(part),
            None => refused(field, format!("the definition has no {field}")),
        };
        let Some(name) = word("name") else { return refused("name", "the definition has no name".to_owned()) };
        let mut axes = BTreeMap::new();
        for (name, axis) in part("axes")? {
            axes.insert(name.clone(), kind(&format!("the axis {name}"), axis, &AXES)?);
        }
        let constants = part("axes")?.iter().filter(|(name, _)| axes[*name] == "const");
        let constants = constants.map(|(name, axis)| (name.clone(), axis["value"].clone())).collect();
        let mut tensors = part("inputs")?.iter().chain(part("outputs")?);
        tensors.try_for_each(|(name, tensor)| check_tensor(name, tensor, &axes))?;
        let inputs = part("inputs")?.keys().cloned().collect();
        let has_entrypoint = word("custom_inputs_entrypoint").is_some();
        Ok(Self { name: name.to_owned(), axes, constants, inputs, has_entrypoint })
    }

    /// The axes that a line of workloads gives sizes to, and the files that it reads.
    pub(super) fn workload(&self, line: &Value) -> Result<(BTreeMap<String, i64>, Vec<String>), Refused> {
        let workload = match line.get("workload") {
            Some(workload) => {
                fields("the line", line, &TRACE)?;
                workload
            }
            None => line,
        };
        if let Some(other) = line.get("definition").filter(|other| **other != self.name) {
            return refused("definition", format!("the workload is of the definition {other}"));
        }
        let map = fields("the workload", workload, &WORKLOAD)?;
        if let Some(tolerance) = map.get("tolerance").filter(|tolerance| !tolerance.is_null()) {
            fields("its tolerance", tolerance, &TOLERANCE)?;
        }
        let part = |field: &str| match map.get(field).and_then(Value::as_object) {
            Some(part) => Ok(part),
            None => refused(field, format!("the workload has no {field}")),
        };
        let (mut sizes, mut files) = (BTreeMap::new(), Vec::new());
        for (name, size) in part("axes")? {
            let varies = self.axes.get(name) == Some(&"var") || self.constants.get(name) == Some(size);
            match size.as_i64().filter(|size| varies && *size >= 0) {
                Some(size) => _ = sizes.insert(name.clone(), size),
                None => return refused(name, format!("the axis {name} is {size}, which is no size that it may have")),
            }
        }
        if let Some((name, _)) = self.axes.iter().find(|(name, kind)| **kind == "var" && !sizes.contains_key(*name)) {
            return refused("axes", format!("the axis {name} is given no size"));
        }
        for (name, input) in part("inputs")? {
            let of = format!("the input {name}");
            match kind(&of, input, &INPUTS)? {
                _ if !self.inputs.contains(name) => return refused(name, format!("there is no input {name}")),
                "custom" if !self.has_entrypoint => {
                    return refused(
                        name,
                        format!("{of} is custom, and the definition has no custom_inputs_entrypoint"),
                    );
                }
                "safetensors" => files.extend(input["path"].as_str().map(str::to_owned)),
                _ => {}
            }
        }
        Ok((sizes, files))
    }
}

/// Refuses a tensor whose type torch has no numbers of, or whose shape names no axes.
fn check_tensor(name: &str, value: &Value, axes: &BTreeMap<String, &'static str>) -> Result<(), Refused> {
    let tensor = fields(name, value, &["shape", "dtype", "description"])?;
    let told = tensor.get("dtype").and_then(Value::as_str).unwrap_or_default();
    let plain = told.trim_start_matches("torch.");
    let narrow = plain.starts_with("float8_") || (plain.starts_with("float4_") && plain.ends_with("_x2"));
    if !TYPES.contains(&plain) && !narrow {
        return refused(told, format!("{name} has the type {told}, which torch has no numbers of"));
    }
    let digits = |size: &str| !size.is_empty() && size.bytes().all(|digit| digit.is_ascii_digit());
    let known =
        |size: &&Value| size.is_u64() || size.as_str().is_some_and(|size| digits(size) || axes.contains_key(size));
    match tensor.get("shape") {
        Some(Value::Null) => Ok(()),
        Some(Value::Array(shape)) => match shape.iter().find(|size| !known(size)) {
            Some(size) => refused(name, format!("the shape of {name} has {size}, which is no axis")),
            None => Ok(()),
        },
        _ => refused(name, format!("{name} has no shape: write the names of its axes, or null for a single number")),
    }
}
