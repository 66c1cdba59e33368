//! JSON objects of the protocol: documents, tensors, parameters.

use super::data::{self, TensorHeader};
use crate::{
    Error, InferTensor, Limits, Parameter, Parameters, RequestedOutput,
    json::Cursor,
    raw::{checked_shape, parse_datatype, tensor_from_raw},
};
use bytes::Bytes;
use gantry_tensor::Tensor;
use std::{
    borrow::Cow,
    fmt::{self, Display},
};

/// All fields of requests and responses.
#[derive(Default)]
pub(super) struct Document {
    pub(super) model_name: String,
    pub(super) model_version: String,
    pub(super) id: String,
    pub(super) parameters: Parameters,
    pub(super) tensors: Vec<InferTensor>,
    pub(super) has_tensors: bool,
    pub(super) requested: Vec<RequestedOutput>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Response,
}

impl Kind {
    /// The word for its tensors in errors.
    const fn tensor(self) -> &'static str {
        match self {
            Self::Request => "input",
            Self::Response => "output",
        }
    }
}

pub(super) struct Reader<'a> {
    pub(super) json: &'a Bytes,
    /// Bytes after the JSON, consumed tensor by tensor.
    pub(super) binary: Option<Bytes>,
    pub(super) limits: &'a Limits,
    pub(super) kind: Kind,
}

/// Rejects a duplicate key.
fn once(seen: &mut bool, owner: &impl Display, key: &str) -> Result<(), Error> {
    if std::mem::replace(seen, true) {
        return Err(Error::invalid(format!("{owner} has {key:?} twice")));
    }
    Ok(())
}

impl Reader<'_> {
    pub(super) fn document(&mut self) -> Result<Document, Error> {
        let json = self.json.clone();
        let mut cursor = Cursor::new(&json);
        let mut document = Document::default();
        if !cursor.eat(b'{') {
            return Err(if cursor.peek().is_none() {
                Error::invalid("the body is empty: send a JSON object with \"inputs\"")
            } else {
                Error::invalid("the body must be a JSON object with \"inputs\"")
            });
        }
        let mut seen = [false; 4];
        let [seen_id, seen_parameters, seen_inputs, seen_outputs] = &mut seen;
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            match &*key {
                "id" => {
                    once(seen_id, &"the body", "id")?;
                    document.id = self.text(&mut cursor, "id")?;
                }
                "model_name" => document.model_name = self.text(&mut cursor, "model_name")?,
                "model_version" => document.model_version = self.text(&mut cursor, "model_version")?,
                "parameters" => {
                    once(seen_parameters, &"the body", "parameters")?;
                    document.parameters = self.parameters(&mut cursor).map_err(|e| e.at("parameters"))?;
                }
                "inputs" if self.kind == Kind::Request => {
                    once(seen_inputs, &"the body", "inputs")?;
                    self.tensors(&mut cursor, "inputs", &mut document)?;
                }
                "outputs" if self.kind == Kind::Response => {
                    once(seen_outputs, &"the body", "outputs")?;
                    self.tensors(&mut cursor, "outputs", &mut document)?;
                }
                "outputs" => {
                    once(seen_outputs, &"the body", "outputs")?;
                    document.requested = self.requested(&mut cursor)?;
                }
                _ => cursor.skip(self.limits.depth)?,
            }
        }
        cursor.end()?;
        if let Some(left) = self.binary.as_ref().filter(|b| !b.is_empty()) {
            return Err(Error::invalid(format!(
                "{} bytes are left of the binary data after the last tensor: its parts must add up to the body",
                left.len()
            )));
        }
        Ok(document)
    }

    /// Bounded text; `null` counts as absent.
    fn text(&self, cursor: &mut Cursor<'_>, what: &str) -> Result<String, Error> {
        if cursor.eat_word("null") {
            return Ok(String::new());
        }
        let text = cursor.string(what)?;
        if text.len() > self.limits.text {
            return Err(Error::invalid(format!(
                "{what} has {} bytes, more than the {} allowed",
                text.len(),
                self.limits.text
            )));
        }
        Ok(text.into_owned())
    }

    fn tensors(&mut self, cursor: &mut Cursor<'_>, key: &str, document: &mut Document) -> Result<(), Error> {
        document.has_tensors = true;
        if !cursor.eat(b'[') {
            return Err(Error::invalid(format!("{key:?} must be an array of tensors")));
        }
        let mut first = true;
        while cursor.next_element(&mut first)? {
            if document.tensors.len() >= self.limits.tensors {
                return Err(Error::invalid(format!(
                    "{key:?} has more than the {} tensors allowed",
                    self.limits.tensors
                )));
            }
            let index = document.tensors.len();
            let tensor = self.tensor(cursor, index)?;
            let name = tensor.tensor.name();
            if document.tensors.iter().any(|t| t.tensor.name() == name) {
                return Err(Error::invalid(format!("{} {name} appears twice", self.kind.tensor())));
            }
            document.tensors.push(tensor);
        }
        Ok(())
    }

    fn tensor(&mut self, cursor: &mut Cursor<'_>, index: usize) -> Result<InferTensor, Error> {
        let kind = self.kind.tensor();
        let context = TensorIndex(kind, index);
        if !cursor.eat(b'{') {
            return Err(Error::invalid(format!("{context} must be an object")));
        }
        let mut fields = Fields::default();
        let mut seen = [false; 5];
        let [seen_name, seen_shape, seen_datatype, seen_parameters, seen_data] = &mut seen;
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            match &*key {
                "name" => {
                    once(seen_name, &context, "name")?;
                    fields.name = Some(self.text(cursor, "name").map_err(|e| e.at(context))?);
                }
                "datatype" => {
                    once(seen_datatype, &context, "datatype")?;
                    let text = cursor.string("datatype").map_err(|e| e.at(context))?;
                    fields.datatype = Some(text);
                }
                "shape" => {
                    once(seen_shape, &context, "shape")?;
                    fields.shape = Some(self.shape(cursor).map_err(|e| e.at(context))?);
                }
                "parameters" => {
                    once(seen_parameters, &context, "parameters")?;
                    fields.parameters = self.parameters(cursor).map_err(|e| e.at(context))?;
                }
                "data" => {
                    once(seen_data, &context, "data")?;
                    fields.data = Some(cursor.position());
                    if fields.describe_all() {
                        let header = fields.header(context, kind, self.limits)?;
                        fields.read = Some(self.data(cursor, header)?);
                    } else {
                        // With sorted keys the data comes first: it is decoded at the end.
                        cursor.skip(self.limits.depth)?;
                    }
                }
                _ => cursor.skip(self.limits.depth)?,
            }
        }
        self.finish(fields, cursor, context)
    }

    fn data(&self, cursor: &mut Cursor<'_>, header: TensorHeader) -> Result<Tensor, Error> {
        let kind = self.kind;
        let elements = data::read(cursor, &header, self.json, self.limits, kind == Kind::Response)
            .map_err(|e| e.at(format_args!("{} {}", kind.tensor(), header.name)))?;
        Tensor::new(header.name, header.shape, elements).map_err(|e| Error::invalid(e.to_string()))
    }

    fn finish(
        &mut self,
        mut fields: Fields<'_>,
        cursor: &Cursor<'_>,
        context: TensorIndex,
    ) -> Result<InferTensor, Error> {
        let kind = self.kind.tensor();
        reject_shared_memory(&fields.parameters).map_err(|e| e.at(context))?;
        let binary = fields.parameters.remove("binary_data_size");
        let tensor = if let Some(tensor) = fields.read.take() {
            if binary.is_some() {
                return Err(both(kind, tensor.name()));
            }
            tensor
        } else {
            let header = fields.header(context, kind, self.limits)?;
            let position = fields.data;
            if let (Some(position), None) = (position, &binary) {
                let tensor = self.data(&mut cursor.at(position), header)?;
                return Ok(InferTensor { tensor, parameters: fields.parameters });
            }
            let named = format!("{kind} {}", header.name);
            match (position, binary) {
                (Some(_), _) => return Err(both(kind, &header.name)),
                (None, Some(Parameter::I64(size))) => {
                    let raw = self.take_binary(size).map_err(|e| e.at(&named))?;
                    tensor_from_raw(header.name, header.shape, header.count, header.datatype, &raw)
                        .map_err(|e| e.at(&named))?
                }
                (None, Some(_)) => {
                    return Err(Error::invalid(format!("{named}: binary_data_size must be an integer")));
                }
                (None, None) => {
                    return Err(Error::invalid(format!("{named} has no \"data\" and no binary_data_size")));
                }
            }
        };
        Ok(InferTensor { tensor, parameters: fields.parameters })
    }

    /// The next `size` bytes after the JSON.
    fn take_binary(&mut self, size: i64) -> Result<Bytes, Error> {
        let Some(binary) = self.binary.as_mut() else {
            return Err(Error::invalid(
                "binary_data_size without the header Inference-Header-Content-Length, which marks the start of the binary data",
            ));
        };
        let size = usize::try_from(size).map_err(|_| Error::invalid("binary_data_size is negative"))?;
        if size > binary.len() {
            return Err(Error::invalid(format!(
                "binary_data_size is {size}, but {} bytes of binary data are left",
                binary.len()
            )));
        }
        Ok(binary.split_to(size))
    }

    fn shape(&self, cursor: &mut Cursor<'_>) -> Result<Vec<i64>, Error> {
        let bad = || Error::invalid("shape must be an array of integers");
        if !cursor.eat(b'[') {
            return Err(bad());
        }
        let mut dims = Vec::with_capacity(4);
        let mut first = true;
        while cursor.next_element(&mut first)? {
            let number = cursor.number().ok_or_else(bad)?;
            let crate::json::Integer::Is(dim) = number.to_integer() else {
                return Err(Error::invalid(format!(
                    "shape has {}, which is not a valid dimension",
                    number.text()
                )));
            };
            let dim = i64::try_from(dim)
                .map_err(|_| Error::invalid(format!("shape has {dim}, which is not a valid dimension")))?;
            if dims.len() >= self.limits.rank {
                return Err(Error::invalid(format!(
                    "shape has more than the {} dimensions allowed",
                    self.limits.rank
                )));
            }
            dims.push(dim);
        }
        Ok(dims)
    }

    fn parameters(&self, cursor: &mut Cursor<'_>) -> Result<Parameters, Error> {
        let mut parameters = Parameters::new();
        if cursor.eat_word("null") {
            return Ok(parameters);
        }
        if !cursor.eat(b'{') {
            return Err(Error::invalid("parameters must be an object"));
        }
        let mut first = true;
        while let Some(key) = cursor.next_key(&mut first)? {
            let value = match cursor.peek() {
                Some(b'"') => Parameter::String(self.text(cursor, &key)?),
                Some(b'-' | b'0'..=b'9') => number_parameter(cursor)?,
                _ if cursor.eat_word("true") => Parameter::Bool(true),
                _ if cursor.eat_word("false") => Parameter::Bool(false),
                _ if cursor.eat_word("null") => continue,
                Some(b'{' | b'[') => {
                    return Err(Error::invalid(format!(
                        "parameter {key:?} must be a string, a number, true or false"
                    )));
                }
                _ => return Err(cursor.error("a value")),
            };
            if parameters.len() >= self.limits.parameters {
                return Err(Error::invalid(format!(
                    "more than the {} parameters allowed",
                    self.limits.parameters
                )));
            }
            if parameters.insert(key.clone().into_owned(), value).is_some() {
                return Err(Error::invalid(format!("parameter {key:?} appears twice")));
            }
        }
        Ok(parameters)
    }

    fn requested(&self, cursor: &mut Cursor<'_>) -> Result<Vec<RequestedOutput>, Error> {
        let mut outputs: Vec<RequestedOutput> = Vec::new();
        if cursor.eat_word("null") {
            return Ok(outputs);
        }
        if !cursor.eat(b'[') {
            return Err(Error::invalid("\"outputs\" must be an array of objects with a \"name\""));
        }
        let mut first = true;
        while cursor.next_element(&mut first)? {
            let context = format!("output {}", outputs.len());
            if outputs.len() >= self.limits.tensors {
                return Err(Error::invalid(format!(
                    "\"outputs\" has more than the {} entries allowed",
                    self.limits.tensors
                )));
            }
            if !cursor.eat(b'{') {
                return Err(Error::invalid(format!("{context} must be an object")));
            }
            let mut name = None;
            let mut parameters = Parameters::new();
            let mut first = true;
            while let Some(key) = cursor.next_key(&mut first)? {
                match &*key {
                    "name" => name = Some(self.text(cursor, "name").map_err(|e| e.at(&context))?),
                    "parameters" => parameters = self.parameters(cursor).map_err(|e| e.at(&context))?,
                    _ => cursor.skip(self.limits.depth)?,
                }
            }
            let Some(name) = name.filter(|n| !n.is_empty()) else {
                return Err(Error::invalid(format!("{context} has no \"name\"")));
            };
            if outputs.iter().any(|o| o.name == name) {
                return Err(Error::invalid(format!("output {name} is requested twice")));
            }
            outputs.push(requested_output(name, parameters)?);
        }
        Ok(outputs)
    }
}

/// A tensor in shared memory is not in the body, and an output would not get there.
fn reject_shared_memory(parameters: &Parameters) -> Result<(), Error> {
    if parameters.contains_key(SHARED_MEMORY) { Err(shared_memory_unsupported()) } else { Ok(()) }
}

/// The parameter of a tensor in shared memory.
pub(crate) const SHARED_MEMORY: &str = "shared_memory_region";

pub(crate) fn shared_memory_unsupported() -> Error {
    Error::invalid("shared memory is not supported: send and receive tensors in the body")
}

/// A requested output from its parameters, over REST or gRPC.
pub(crate) fn requested_output(name: String, mut parameters: Parameters) -> Result<RequestedOutput, Error> {
    reject_shared_memory(&parameters).map_err(|e| e.at(format_args!("output {name}")))?;
    let binary = match parameters.remove("binary_data") {
        None => None,
        Some(Parameter::Bool(binary)) => Some(binary),
        Some(_) => {
            return Err(Error::invalid(format!("output {name}: binary_data must be true or false")));
        }
    };
    let classification = match parameters.remove("classification") {
        None => None,
        Some(Parameter::I64(classes)) if (1..=i64::from(u32::MAX)).contains(&classes) => Some(classes as u32),
        Some(_) => {
            return Err(Error::invalid(format!(
                "output {name}: classification must be the number of classes"
            )));
        }
    };
    Ok(RequestedOutput { name, binary, classification, parameters })
}

fn number_parameter(cursor: &mut Cursor<'_>) -> Result<Parameter, Error> {
    let Some(number) = cursor.number() else {
        return Err(cursor.error("a number"));
    };
    if !number.text.iter().any(|b| matches!(b, b'.' | b'e' | b'E'))
        && let crate::json::Integer::Is(value) = number.to_integer()
        && let Ok(value) = i64::try_from(value)
    {
        return Ok(Parameter::I64(value));
    }
    let value = number.to_f64();
    if value.is_finite() {
        return Ok(Parameter::F64(value));
    }
    Err(Error::invalid(format!("the number {} is too large", number.text())))
}

fn both(kind: &str, name: &str) -> Error {
    Error::invalid(format!("{kind} {name} has both \"data\" and binary_data_size"))
}

/// A tensor without a name yet: `input 0`.
#[derive(Clone, Copy)]
struct TensorIndex(&'static str, usize);

impl Display for TensorIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.1)
    }
}

#[derive(Default)]
struct Fields<'a> {
    name: Option<String>,
    datatype: Option<Cow<'a, str>>,
    shape: Option<Vec<i64>>,
    parameters: Parameters,
    /// Position of the data.
    data: Option<usize>,
    read: Option<Tensor>,
}

impl Fields<'_> {
    const fn describe_all(&self) -> bool {
        self.name.is_some() && self.datatype.is_some() && self.shape.is_some()
    }

    fn header(&mut self, context: TensorIndex, kind: &str, limits: &Limits) -> Result<TensorHeader, Error> {
        let missing = |what: &str| Error::invalid(format!("{context} has no {what:?}"));
        let Some(name) = self.name.take().filter(|n| !n.is_empty()) else {
            return Err(missing("name"));
        };
        let Some(datatype) = self.datatype.take() else {
            return Err(Error::invalid(format!("{kind} {name} has no \"datatype\"")));
        };
        let Some(dims) = self.shape.take() else {
            return Err(Error::invalid(format!("{kind} {name} has no \"shape\"")));
        };
        let datatype = parse_datatype(&datatype).map_err(|e| e.at(format_args!("{kind} {name}")))?;
        let (shape, count) =
            checked_shape(&dims, datatype, limits).map_err(|e| e.at(format_args!("{kind} {name}")))?;
        Ok(TensorHeader { name, shape, count, datatype })
    }
}
