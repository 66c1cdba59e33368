//! ONNX files as plain structures that borrow from the file's bytes.
//!
//! Only what is needed to run a model is kept. Nothing is allocated by a size that the file merely claims: every
//! allocation is bounded by the bytes that are there, and the number of messages is limited.

mod tensor;
mod wire;

pub use tensor::TensorFault;
pub(crate) use tensor::{TensorProto, data_type};
use wire::Field;
pub(crate) use wire::Reader;

/// Why bytes are not an ONNX model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ParseError {
    #[error("the file ends in the middle of a field: it is cut short or not an ONNX file")]
    Truncated,
    #[error("this is not an ONNX file (no protobuf message)")]
    NotProtobuf,
    #[error("this is not an ONNX file (a field should hold {wanted})")]
    WireType { wanted: &'static str },
    #[error("a name in the file is not UTF-8")]
    NotUtf8,
    #[error("the file holds more than {MAX_MESSAGES} nodes, attributes and tensors")]
    TooMany,
    #[error("graphs are nested more than {MAX_DEPTH} deep")]
    TooDeep,
    #[error("the file has no graph: it is empty or not an ONNX model")]
    NoGraph,
}

/// Messages (nodes, attributes, tensors, value infos) that a file may hold.
const MAX_MESSAGES: usize = 500_000;
/// How deep graphs and types may be nested.
const MAX_DEPTH: usize = 8;

/// A model file.
#[derive(Debug, Default)]
pub(crate) struct ModelProto<'a> {
    /// The version of the file format; 0 when the file has none.
    pub ir_version: i64,
    pub opsets: Vec<(&'a str, i64)>,
    pub graph: GraphProto<'a>,
    pub functions: usize,
}

/// A graph.
#[derive(Debug, Default, Clone)]
pub(crate) struct GraphProto<'a> {
    pub nodes: Vec<NodeProto<'a>>,
    pub initializers: Vec<TensorProto<'a>>,
    pub sparse_initializers: usize,
    pub inputs: Vec<ValueInfo<'a>>,
    pub outputs: Vec<ValueInfo<'a>>,
}

/// An operator call.
#[derive(Debug, Default, Clone)]
pub(crate) struct NodeProto<'a> {
    pub name: &'a str,
    pub op_type: &'a str,
    pub domain: &'a str,
    pub inputs: Vec<&'a str>,
    pub outputs: Vec<&'a str>,
    pub attributes: Vec<AttributeProto<'a>>,
}

/// A named constant of a node.
#[derive(Debug, Clone)]
pub(crate) struct AttributeProto<'a> {
    pub name: &'a str,
    pub value: AttributeValue<'a>,
}

/// What an attribute holds.
#[derive(Debug, Clone)]
pub(crate) enum AttributeValue<'a> {
    Float(f32),
    Int(i64),
    Text(&'a [u8]),
    Tensor(Box<TensorProto<'a>>),
    Graph(Box<GraphProto<'a>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Texts(Vec<&'a [u8]>),
    Other,
}

impl AttributeValue<'_> {
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Float(_) => "a float",
            Self::Int(_) => "an integer",
            Self::Text(_) => "a string",
            Self::Tensor(_) => "a tensor",
            Self::Graph(_) => "a graph",
            Self::Floats(_) => "floats",
            Self::Ints(_) => "integers",
            Self::Texts(_) => "strings",
            Self::Other => "something this reader does not know",
        }
    }
}

/// The name and type of an input or output of a graph.
#[derive(Debug, Default, Clone)]
pub(crate) struct ValueInfo<'a> {
    pub name: &'a str,
    pub kind: ValueKind,
}

/// The type of a value.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) enum ValueKind {
    /// A tensor: ONNX's number of the element type, and the dimensions (-1 where any goes) when they are known.
    Tensor(i64, Option<Vec<i64>>),
    /// What `ZipMap` makes: a sequence of maps, with the element type of the values.
    MapSequence(i64),
    /// Any other type, or none.
    #[default]
    Unknown,
}

/// Counts messages, so that a small file cannot become a large structure.
struct Parser {
    left: usize,
}

/// Reads a model.
pub(crate) fn parse(bytes: &[u8]) -> Result<ModelProto<'_>, ParseError> {
    let mut parser = Parser { left: MAX_MESSAGES };
    let mut model = ModelProto::default();
    let mut has_graph = false;
    let mut reader = Reader::new(bytes);
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => model.ir_version = field.int()?,
            7 => {
                model.graph = parser.graph(field.bytes()?, 0)?;
                has_graph = true;
            }
            8 => {
                parser.count()?;
                model.opsets.push(opset(field.bytes()?)?);
            }
            25 => model.functions += 1,
            _ => {}
        }
    }
    if has_graph { Ok(model) } else { Err(ParseError::NoGraph) }
}

/// Reads one node.
pub(crate) fn parse_node(bytes: &[u8]) -> Result<NodeProto<'_>, ParseError> {
    Parser { left: MAX_MESSAGES }.node(bytes, 0)
}

fn opset(bytes: &[u8]) -> Result<(&str, i64), ParseError> {
    let (mut domain, mut version) = ("", 0);
    let mut reader = Reader::new(bytes);
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => domain = field.text()?,
            2 => version = field.int()?,
            _ => {}
        }
    }
    Ok((domain, version))
}

impl Parser {
    fn count(&mut self) -> Result<(), ParseError> {
        self.left = self.left.checked_sub(1).ok_or(ParseError::TooMany)?;
        Ok(())
    }

    fn graph<'a>(&mut self, bytes: &'a [u8], depth: usize) -> Result<GraphProto<'a>, ParseError> {
        if depth > MAX_DEPTH {
            return Err(ParseError::TooDeep);
        }
        let mut graph = GraphProto::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, field)) = reader.field()? {
            match number {
                1 => graph.nodes.push(self.node(field.bytes()?, depth)?),
                5 => {
                    self.count()?;
                    graph.initializers.push(TensorProto::parse(field.bytes()?)?);
                }
                11 => graph.inputs.push(self.value_info(field.bytes()?)?),
                12 => graph.outputs.push(self.value_info(field.bytes()?)?),
                15 => graph.sparse_initializers += 1,
                _ => {}
            }
        }
        Ok(graph)
    }

    fn node<'a>(&mut self, bytes: &'a [u8], depth: usize) -> Result<NodeProto<'a>, ParseError> {
        self.count()?;
        let mut node = NodeProto::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, field)) = reader.field()? {
            match number {
                1 => node.inputs.push(field.text()?),
                2 => node.outputs.push(field.text()?),
                3 => node.name = field.text()?,
                4 => node.op_type = field.text()?,
                5 => node.attributes.push(self.attribute(field.bytes()?, depth)?),
                7 => node.domain = field.text()?,
                _ => {}
            }
        }
        Ok(node)
    }

    fn attribute<'a>(&mut self, bytes: &'a [u8], depth: usize) -> Result<AttributeProto<'a>, ParseError> {
        self.count()?;
        let (mut name, mut kind) = ("", 0);
        let (mut float, mut int, mut text) = (0.0, 0, &[][..]);
        let (mut tensor, mut graph) = (None, None);
        let (mut floats, mut ints, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        let mut last = 0;
        let mut reader = Reader::new(bytes);
        while let Some((number, field)) = reader.field()? {
            match number {
                1 => name = field.text()?,
                2 => float = field.float()?,
                3 => int = field.int()?,
                4 => text = field.bytes()?,
                5 => {
                    self.count()?;
                    tensor = Some(TensorProto::parse(field.bytes()?)?);
                }
                6 => graph = Some(self.graph(field.bytes()?, depth + 1)?),
                7 => field.push_floats(&mut floats)?,
                8 => field.push_ints(&mut ints)?,
                9 => texts.push(field.bytes()?),
                20 => kind = field.int()?,
                _ => continue,
            }
            if (2..=9).contains(&number) {
                last = number;
            }
        }
        // Files of the first ONNX releases leave the type out: then the field that is set determines it.
        let kind = match (kind, last) {
            (0, 2) => 1,
            (0, 3) => 2,
            (0, 4) => 3,
            (0, 5) => 4,
            (0, 6) => 5,
            (0, 7) => 6,
            (0, 8) => 7,
            (0, 9) => 8,
            (kind, _) => kind,
        };
        let value = match kind {
            1 => AttributeValue::Float(float),
            2 => AttributeValue::Int(int),
            3 => AttributeValue::Text(text),
            4 => tensor.map_or(AttributeValue::Other, |t| AttributeValue::Tensor(Box::new(t))),
            5 => graph.map_or(AttributeValue::Other, |g| AttributeValue::Graph(Box::new(g))),
            6 => AttributeValue::Floats(floats),
            7 => AttributeValue::Ints(ints),
            8 => AttributeValue::Texts(texts),
            _ => AttributeValue::Other,
        };
        Ok(AttributeProto { name, value })
    }

    fn value_info<'a>(&mut self, bytes: &'a [u8]) -> Result<ValueInfo<'a>, ParseError> {
        self.count()?;
        let mut info = ValueInfo::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, field)) = reader.field()? {
            match number {
                1 => info.name = field.text()?,
                2 => info.kind = kind(field.bytes()?, 0)?,
                _ => {}
            }
        }
        Ok(info)
    }
}

fn kind(bytes: &[u8], depth: usize) -> Result<ValueKind, ParseError> {
    if depth > MAX_DEPTH {
        return Err(ParseError::TooDeep);
    }
    let mut reader = Reader::new(bytes);
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => return tensor_kind(field.bytes()?),
            4 => return sequence_kind(field.bytes()?, depth),
            _ => {}
        }
    }
    Ok(ValueKind::Unknown)
}

fn tensor_kind(bytes: &[u8]) -> Result<ValueKind, ParseError> {
    let (mut element, mut shape) = (0, None);
    let mut reader = Reader::new(bytes);
    while let Some((number, field)) = reader.field()? {
        match number {
            1 => element = field.int()?,
            2 => shape = Some(dimensions(field)?),
            _ => {}
        }
    }
    Ok(ValueKind::Tensor(element, shape))
}

fn dimensions(field: Field<'_>) -> Result<Vec<i64>, ParseError> {
    let mut dims = Vec::new();
    let mut reader = Reader::new(field.bytes()?);
    while let Some((number, field)) = reader.field()? {
        if number != 1 {
            continue;
        }
        let mut size = -1;
        let mut inner = Reader::new(field.bytes()?);
        while let Some((number, field)) = inner.field()? {
            match number {
                // Exporters write 0 or a negative number where they do not know the size.
                1 => size = Some(field.int()?).filter(|&n| n > 0).unwrap_or(-1),
                2 => size = -1,
                _ => {}
            }
        }
        dims.push(size);
    }
    Ok(dims)
}

/// `sequence(map(key, tensor(value)))`, the output of `ZipMap`, is the only sequence that matters here.
fn sequence_kind(bytes: &[u8], depth: usize) -> Result<ValueKind, ParseError> {
    let mut reader = Reader::new(bytes);
    while let Some((number, field)) = reader.field()? {
        if number != 1 {
            continue;
        }
        let mut element = Reader::new(field.bytes()?);
        while let Some((number, field)) = element.field()? {
            if number != 5 {
                continue;
            }
            let mut map = Reader::new(field.bytes()?);
            while let Some((number, field)) = map.field()? {
                if number == 2
                    && let ValueKind::Tensor(value, _) = kind(field.bytes()?, depth + 2)?
                {
                    return Ok(ValueKind::MapSequence(value));
                }
            }
        }
    }
    Ok(ValueKind::Unknown)
}
