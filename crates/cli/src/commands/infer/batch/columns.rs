//! From a row of a file to the values of the model's inputs.

use super::{super::payload::Input, rows::Row, send::Values};
use crate::error::CommandError;
use serde_json::{Number, Value};

/// How the rows of one file become tensors.
#[derive(Debug)]
pub(super) struct Columns {
    inputs: Vec<InputColumns>,
}

#[derive(Debug)]
struct InputColumns {
    name: String,
    datatype: String,
    /// Dimensions after the first.
    row_shape: Vec<usize>,
    /// Largest first dimension.
    max_rows: Option<usize>,
    source: FieldSource,
}

/// Where the values of an input are in a row.
#[derive(Debug)]
enum FieldSource {
    /// Fields of a CSV row, by index and name.
    Cells(Vec<(usize, String)>),
    /// Fields of a JSON object, in this order.
    Fields(Vec<String>),
    /// The field of a JSON object with the input's name, or a JSON list if the model has one input.
    Whole,
}

impl Columns {
    pub(super) fn new(
        inputs: &[Input],
        header: Option<&[String]>,
        selected: &[String],
    ) -> Result<Self, CommandError> {
        if inputs.is_empty() {
            return Err(CommandError::usage("the model's metadata has no inputs: send requests with DATA"));
        }
        if let Some(duplicate) = header.and_then(first_duplicate) {
            return Err(CommandError::usage(format!(
                "the column {duplicate} is there twice: column names are unique"
            )));
        }
        if inputs.len() > 1 && !selected.is_empty() {
            return Err(CommandError::usage(format!(
                "--columns is for models with one input; this one has {}, found by their names",
                inputs.len()
            )));
        }
        let mut used = Vec::new();
        let mut columns = Vec::new();
        for input in inputs {
            let Some((&first, rest)) = input.shape.split_first() else {
                return Err(CommandError::usage(format!(
                    "input {} has no dimension for rows: send requests with DATA",
                    input.name
                )));
            };
            let source = match header {
                Some(header) => FieldSource::Cells(cells(input, inputs.len() == 1, header, selected)?),
                None if selected.is_empty() => FieldSource::Whole,
                None => FieldSource::Fields(selected.to_vec()),
            };
            let found = match &source {
                FieldSource::Cells(cells) => {
                    used.extend(cells.iter().map(|(index, _)| *index));
                    Some(cells.len())
                }
                FieldSource::Fields(names) => Some(names.len()),
                FieldSource::Whole => None,
            };
            columns.push(InputColumns {
                name: input.name.clone(),
                datatype: input.datatype.clone(),
                row_shape: row_shape(input, rest, found)?,
                max_rows: usize::try_from(first).ok(),
                source,
            });
        }
        if let Some(header) = header
            && selected.is_empty()
            && let Some((_, unused)) = header.iter().enumerate().find(|(index, _)| !used.contains(index))
        {
            return Err(CommandError::usage(format!(
                "column {unused} belongs to no input of the model (inputs are {}): remove it, or choose with --columns",
                names(inputs)
            )));
        }
        Ok(Self { inputs: columns })
    }

    /// Rows of one request that the model accepts; `None` for any number.
    pub(super) fn max_rows(&self) -> Option<usize> {
        self.inputs.iter().filter_map(|i| i.max_rows).min()
    }

    /// The values of each input.
    pub(super) fn values(&self, row: &Row) -> Result<Values, String> {
        self.inputs.iter().map(|input| input.values(row, self.inputs.len() == 1)).collect()
    }

    /// A request with these rows.
    pub(super) fn request(&self, rows: &[Values]) -> Value {
        let tensors: Vec<Value> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(index, input)| {
                let data: Vec<Value> = rows.iter().filter_map(|r| r.get(index)).flatten().cloned().collect();
                let mut shape = vec![rows.len()];
                shape.extend(&input.row_shape);
                serde_json::json!({"name": input.name, "shape": shape, "datatype": input.datatype, "data": data})
            })
            .collect();
        serde_json::json!({ "inputs": tensors })
    }
}

impl InputColumns {
    fn values(&self, row: &Row, only: bool) -> Result<Vec<Value>, String> {
        let mut values = Vec::new();
        match (row, &self.source) {
            (Row::Cells(record), FieldSource::Cells(cells)) => {
                for (index, column) in cells {
                    let text = record.get(*index).unwrap_or_default();
                    values.push(self.parse(text).map_err(|why| format!("column {column}: {why}"))?);
                }
            }
            (Row::Json(Value::Object(fields)), FieldSource::Fields(names)) => {
                for name in names {
                    let value = fields.get(name).ok_or_else(|| format!("field {name} is missing"))?;
                    self.flatten(value, &mut values)?;
                }
            }
            (Row::Json(Value::Object(fields)), _) => {
                let value = fields.get(&self.name).ok_or_else(|| {
                    let hint =
                        if only { "; --columns names the fields of the features in their order" } else { "" };
                    format!("field {} is missing{hint}", self.name)
                })?;
                self.flatten(value, &mut values)?;
            }
            (Row::Json(list @ Value::Array(_)), _) if only => self.flatten(list, &mut values)?,
            (Row::Json(Value::Array(_)), _) => {
                return Err("a row must be an object: the model has several inputs".into());
            }
            _ => return Err("a row must be an object or a list".into()),
        }
        let expected: usize = self.row_shape.iter().product();
        if values.len() != expected {
            return Err(format!("input {} needs {expected} values, got {}", self.name, values.len()));
        }
        Ok(values)
    }

    fn parse(&self, text: &str) -> Result<Value, String> {
        let trimmed = text.trim();
        let wrong = |kind: &str| {
            if trimmed.is_empty() {
                format!("is empty, expected {kind}")
            } else {
                format!("\"{}\" is not {kind}", trimmed.chars().take(40).collect::<String>().escape_debug())
            }
        };
        match self.datatype.as_str() {
            "BYTES" => Ok(Value::String(text.to_owned())),
            "BOOL" => match trimmed.to_ascii_lowercase().as_str() {
                "true" | "1" => Ok(Value::Bool(true)),
                "false" | "0" => Ok(Value::Bool(false)),
                _ => Err(wrong("true or false")),
            },
            float if float.starts_with("FP") || float == "BF16" => trimmed
                .parse::<f64>()
                .ok()
                .and_then(Number::from_f64)
                .map(Value::Number)
                .ok_or_else(|| wrong("a finite number")),
            _ => trimmed
                .parse::<i64>()
                .map(Value::from)
                .or_else(|_| trimmed.parse::<u64>().map(Value::from))
                .map_err(|_| wrong("a whole number")),
        }
    }

    fn flatten(&self, value: &Value, values: &mut Vec<Value>) -> Result<(), String> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.flatten(item, values)),
            Value::Object(_) | Value::Null => {
                Err(format!("input {}: values must be numbers, strings or booleans, got {value}", self.name))
            }
            scalar => {
                values.push(scalar.clone());
                Ok(())
            }
        }
    }
}

fn names(inputs: &[Input]) -> String {
    inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn first_duplicate(header: &[String]) -> Option<&String> {
    let mut seen = std::collections::HashSet::new();
    header.iter().find(|name| !seen.insert(*name))
}

/// The columns of an input: all (or the selected) ones for the only input, else the one with its name, or `NAME_0`, `NAME_1`, ….
fn cells(
    input: &Input,
    only: bool,
    header: &[String],
    selected: &[String],
) -> Result<Vec<(usize, String)>, CommandError> {
    let find = |name: &str| header.iter().position(|h| h == name).map(|index| (index, name.to_owned()));
    if only && selected.is_empty() {
        return Ok(header.iter().cloned().enumerate().collect());
    }
    if only {
        let missing = |name: &String| {
            let hint = gantry_api::nearest(name, header.iter().map(String::as_str))
                .map(|near| format!(" Did you mean {near}?"))
                .unwrap_or_default();
            CommandError::usage(format!("--columns: the file has no column {name}.{hint}"))
        };
        return selected.iter().map(|name| find(name).ok_or_else(|| missing(name))).collect();
    }
    if let Some(cell) = find(&input.name) {
        return Ok(vec![cell]);
    }
    let numbered: Vec<_> = (0..header.len()).map_while(|n| find(&format!("{}_{n}", input.name))).collect();
    if numbered.is_empty() {
        return Err(CommandError::usage(format!(
            "the file has no column for input {0}: name it {0}, or {0}_0, {0}_1, … for several values",
            input.name
        )));
    }
    Ok(numbered)
}

/// Dimensions of a row; a dynamic one is derived from the number of columns.
fn row_shape(input: &Input, dimensions: &[i64], found: Option<usize>) -> Result<Vec<usize>, CommandError> {
    let dynamic = dimensions.iter().filter(|d| **d < 0).count();
    let known = dimensions
        .iter()
        .filter_map(|d| usize::try_from(*d).ok())
        .try_fold(1usize, usize::checked_mul)
        .unwrap_or(usize::MAX);
    let rest = match (dynamic, found) {
        (0, Some(found)) if found != known => {
            return Err(CommandError::usage(format!(
                "input {} needs {known} columns, the file has {found}: choose them with --columns",
                input.name
            )));
        }
        (0, _) => 1,
        (1, Some(found)) if known > 0 && found % known == 0 => found / known,
        _ => {
            return Err(CommandError::usage(format!(
                "input {} has shape {:?}: the shape of a row is not known; send requests with DATA",
                input.name, input.shape
            )));
        }
    };
    Ok(dimensions.iter().map(|d| usize::try_from(*d).unwrap_or(rest)).collect())
}
