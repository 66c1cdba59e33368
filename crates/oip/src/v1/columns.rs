//! Rows to columns: the values of each input as one JSON array.

use crate::{Error, Limits, json::Cursor};
use bytes::Bytes;
use gantry_tensor::TensorSpec;
use std::borrow::Cow;

/// The name of the only input of a model without metadata.
const UNNAMED: &str = "input-0";

/// The values of an input: one element for each instance.
pub(super) struct Column {
    pub(super) name: String,
    pub(super) json: Bytes,
}

/// Reads a body. With `inputs` every input has a column, and there are no others.
pub(super) fn read(body: &Bytes, inputs: &[TensorSpec], limits: &Limits) -> Result<Vec<Column>, Error> {
    let names = Names { inputs, limits };
    let mut cursor = Cursor::new(body);
    if !cursor.eat(b'{') {
        return Err(Error::invalid("the body must be a JSON object with \"instances\""));
    }
    let mut found: Option<(Cow<'_, str>, usize)> = None;
    let mut first = true;
    while let Some(key) = cursor.next_key(&mut first)? {
        if matches!(&*key, "instances" | "inputs") {
            cursor.peek();
            if let Some((earlier, _)) = &found {
                return Err(Error::invalid(format!("the body has both {earlier:?} and {key:?}")));
            }
            found = Some((key, cursor.position()));
        }
        cursor.skip(limits.depth)?;
    }
    cursor.end()?;
    let Some((key, position)) = found else {
        return Err(Error::invalid("the body has no \"instances\""));
    };
    let mut cursor = cursor.at(position);
    match cursor.peek() {
        Some(b'[') => names.rows(body, &mut cursor, &key),
        // TensorFlow Serving's column format.
        Some(b'{') if key == "inputs" => names.columns(body, &mut cursor),
        _ => Err(Error::invalid(format!("{key:?} must be an array with one element per instance"))),
    }
}

struct Names<'a> {
    inputs: &'a [TensorSpec],
    limits: &'a Limits,
}

impl Names<'_> {
    fn rows(&self, body: &Bytes, cursor: &mut Cursor<'_>, key: &str) -> Result<Vec<Column>, Error> {
        let start = cursor.position();
        cursor.eat(b'[');
        match cursor.peek() {
            Some(b']') => Err(Error::invalid(format!("{key:?} is empty: send at least one instance"))),
            Some(b'{') => self.objects(body, cursor),
            _ => {
                let name = match self.inputs {
                    [] => UNNAMED,
                    [only] => &only.name,
                    _ => {
                        return Err(Error::invalid(format!(
                            "the model has the inputs {}: each instance must be an object with these names",
                            self.list()
                        )));
                    }
                };
                let mut after = cursor.at(start);
                after.skip(self.limits.depth)?;
                Ok(vec![Column { name: name.to_owned(), json: body.slice(start..after.position()) }])
            }
        }
    }

    /// One object per instance, after the opening bracket.
    fn objects(&self, body: &Bytes, cursor: &mut Cursor<'_>) -> Result<Vec<Column>, Error> {
        let mut names: Vec<String> = self.inputs.iter().map(|input| input.name.clone()).collect();
        let mut texts: Vec<Vec<u8>> = vec![Vec::new(); names.len()];
        // How many instances have had each input.
        let mut counts: Vec<usize> = vec![0; names.len()];
        let (mut row, mut first) = (0usize, true);
        while cursor.next_element(&mut first)? {
            if !cursor.eat(b'{') {
                return Err(Error::invalid(format!("instance {row} must be an object, like the first")));
            }
            let mut first_key = true;
            while let Some(key) = cursor.next_key(&mut first_key)? {
                let index = match names.iter().position(|name| *name == key) {
                    Some(index) => index,
                    None if self.inputs.is_empty() && row == 0 && names.len() < self.limits.tensors => {
                        names.push(self.bounded(&key)?);
                        texts.push(Vec::new());
                        counts.push(0);
                        names.len() - 1
                    }
                    None => return Err(unknown(&format!("instance {row}"), &key, &names)),
                };
                let (Some(text), Some(count)) = (texts.get_mut(index), counts.get_mut(index)) else {
                    return Err(Error::internal("an input without a column"));
                };
                if *count > row {
                    return Err(Error::invalid(format!("instance {row} has {key:?} twice")));
                }
                *count += 1;
                text.push(if row == 0 { b'[' } else { b',' });
                text.extend_from_slice(self.value(body, cursor)?.as_ref());
            }
            row += 1;
            if let Some(missing) = counts.iter().position(|count| *count < row) {
                let missing = names.get(missing).map_or("", String::as_str);
                return Err(Error::invalid(format!("instance {} has no {missing:?}", row - 1)));
            }
        }
        if names.is_empty() {
            return Err(Error::invalid("instance 0 is an object without values"));
        }
        let finish = |(name, mut text): (String, Vec<u8>)| {
            text.push(b']');
            Column { name, json: text.into() }
        };
        Ok(names.into_iter().zip(texts).map(finish).collect())
    }

    /// An object with an array per input.
    fn columns(&self, body: &Bytes, cursor: &mut Cursor<'_>) -> Result<Vec<Column>, Error> {
        cursor.eat(b'{');
        let known: Vec<String> = self.inputs.iter().map(|input| input.name.clone()).collect();
        let mut columns: Vec<Column> = Vec::new();
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            if columns.iter().any(|column| column.name == key) {
                return Err(Error::invalid(format!("\"inputs\" has {key:?} twice")));
            }
            let is_known = known.contains(&key.clone().into_owned());
            if !is_known && (!known.is_empty() || columns.len() >= self.limits.tensors) {
                return Err(unknown("\"inputs\"", &key, &known));
            }
            let name = self.bounded(&key)?;
            columns.push(Column { name, json: self.value(body, cursor)? });
        }
        if let Some(missing) = known.iter().find(|name| !columns.iter().any(|column| column.name == **name)) {
            return Err(Error::invalid(format!("\"inputs\" has no {missing:?}")));
        }
        if columns.is_empty() {
            return Err(Error::invalid("\"inputs\" is an object without values"));
        }
        Ok(columns)
    }

    fn value(&self, body: &Bytes, cursor: &mut Cursor<'_>) -> Result<Bytes, Error> {
        cursor.peek();
        let start = cursor.position();
        cursor.skip(self.limits.depth)?;
        Ok(body.slice(start..cursor.position()))
    }

    fn bounded(&self, name: &str) -> Result<String, Error> {
        if name.is_empty() || name.len() > self.limits.text {
            let most = self.limits.text;
            return Err(Error::invalid(format!("the name of an input must have 1 to {most} bytes")));
        }
        Ok(name.to_owned())
    }

    fn list(&self) -> String {
        list(self.inputs.iter().map(|input| input.name.as_str()))
    }
}

/// At most ten names.
fn list<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = if names.len() > 10 { ", …" } else { "" };
    let shown: Vec<&str> = names.take(10).collect();
    format!("{}{more}", shown.join(", "))
}

fn unknown(owner: &str, key: &str, names: &[String]) -> Error {
    let shown: String = key.chars().take(100).collect();
    let names = list(names.iter().map(String::as_str));
    Error::invalid(format!("{owner} has {shown:?}, which is not an input of the model: it has {names}"))
}
