//! Protocol between client and worker: length-prefixed little-endian frames.

use super::ModelFiles;
use crate::rten_engine::Rejection;
use gantry_tensor::{DataType, Elements, Tensor};
use std::collections::HashMap;
use std::io::{self, Read, Write};

/// The first frame; the model follows in its own frames.
pub(super) struct WorkerConfig {
    pub threads: usize,
    /// Memory limit of the process, in bytes.
    pub memory: u64,
}

pub(super) struct RunRequest {
    /// Repeated in the response: responses may be out of order.
    pub id: u64,
    pub inputs: Vec<Tensor>,
    pub outputs: Vec<usize>,
}

pub(super) enum Response {
    /// Size of the loaded model in bytes.
    Loaded(usize),
    Rejected(Rejection),
    Ran(u64, Result<Vec<Tensor>, String>),
}

const LOADED: u64 = 0;
const REJECTED: u64 = 1;
const RAN: u64 = 2;
const FAILED: u64 = 3;

impl WorkerConfig {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        Message::default().number(self.threads as u64).number(self.memory).send(out)
    }

    pub(super) fn read(input: &mut impl Read) -> io::Result<Self> {
        let frame = expect(input)?;
        let mut fields = Fields(&frame);
        Ok(Self { threads: fields.size()?, memory: fields.number()? })
    }
}

/// Sends a model without copying it: it may have gigabytes.
pub(super) fn write_model(out: &mut impl Write, files: &ModelFiles) -> io::Result<()> {
    Message::default().number(files.files.len() as u64).send(out)?;
    write_frame(out, &files.model)?;
    for (name, bytes) in &files.files {
        write_frame(out, name.as_bytes())?;
        write_frame(out, bytes)?;
    }
    Ok(())
}

pub(super) fn read_model(input: &mut impl Read) -> io::Result<ModelFiles> {
    let count = Fields(&expect(input)?).number()?;
    let model = expect(input)?;
    let mut files = HashMap::new();
    for _ in 0..count {
        let name = String::from_utf8(expect(input)?).map_err(|_| malformed())?;
        files.insert(name, expect(input)?);
    }
    Ok(ModelFiles { model, files })
}

/// The frame of a run, from borrowed tensors.
pub(super) fn run(id: u64, inputs: &[&Tensor], outputs: &[usize]) -> Message {
    let mut message = Message::default().number(id).number(outputs.len() as u64);
    for &output in outputs {
        message = message.number(output as u64);
    }
    inputs.iter().fold(message, |m, t| m.tensor(t))
}

impl RunRequest {
    pub(super) fn parse(frame: &[u8]) -> io::Result<Self> {
        let mut fields = Fields(frame);
        let id = fields.number()?;
        let count = fields.number()?;
        let outputs = (0..count).map(|_| fields.size()).collect::<io::Result<_>>()?;
        Ok(Self { id, outputs, inputs: fields.tensors()? })
    }
}

impl Response {
    pub(super) fn message(&self) -> Message {
        let message = Message::default();
        match self {
            Self::Loaded(bytes) => message.number(LOADED).number(*bytes as u64),
            Self::Rejected(rejection) => message
                .number(REJECTED)
                .number(u64::from(rejection.operator))
                .text(&rejection.message)
                // Empty for a node without a name.
                .text(rejection.node.as_deref().unwrap_or_default()),
            Self::Ran(id, Ok(tensors)) => {
                tensors.iter().fold(message.number(RAN).number(*id), Message::tensor)
            }
            Self::Ran(id, Err(error)) => message.number(FAILED).number(*id).text(error),
        }
    }

    pub(super) fn parse(frame: &[u8]) -> io::Result<Self> {
        let mut fields = Fields(frame);
        Ok(match fields.number()? {
            LOADED => Self::Loaded(fields.size()?),
            REJECTED => {
                let operator = fields.number()? != 0;
                let message = fields.text()?;
                let node = Some(fields.text()?).filter(|n| !n.is_empty());
                Self::Rejected(Rejection { node, operator, message })
            }
            RAN => Self::Ran(fields.number()?, Ok(fields.tensors()?)),
            FAILED => Self::Ran(fields.number()?, Err(fields.text()?)),
            _ => return Err(malformed()),
        })
    }
}

/// A frame being built; `send` fills in the length prefix.
pub(super) struct Message(Vec<u8>);

impl Default for Message {
    fn default() -> Self {
        Self(vec![0; size_of::<u64>()])
    }
}

impl Message {
    fn number(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let mut message = self.number(bytes.len() as u64);
        message.0.extend_from_slice(bytes);
        message
    }

    fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    fn tensor(self, tensor: &Tensor) -> Self {
        let elements = tensor.elements();
        let datatype = DataType::ALL.iter().position(|d| *d == elements.datatype()).unwrap_or_default();
        let mut message =
            self.text(tensor.name()).number(datatype as u64).number(tensor.shape().len() as u64);
        for &dimension in tensor.shape() {
            message = message.number(dimension as u64);
        }
        let length = elements.raw_len();
        message = message.number(length as u64);
        message.0.reserve(length);
        elements.write_raw(&mut message.0);
        message
    }

    /// In one write, so that the peer wakes once.
    pub(super) fn send(mut self, out: &mut impl Write) -> io::Result<()> {
        if let Some((length, frame)) = self.0.split_first_chunk_mut() {
            *length = (frame.len() as u64).to_le_bytes();
        }
        out.write_all(&self.0)
    }
}

fn write_frame(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(bytes)
}

/// The next frame; `None` when the peer has closed the socket. `limit` bounds the allocation.
pub(super) fn read_frame(input: &mut impl Read, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match input.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    if length > limit {
        return Err(malformed());
    }
    let mut frame = Vec::with_capacity(usize::try_from(length).map_err(|_| malformed())?);
    input.take(length).read_to_end(&mut frame)?;
    if frame.len() as u64 == length { Ok(Some(frame)) } else { Ok(None) }
}

fn expect(input: &mut impl Read) -> io::Result<Vec<u8>> {
    read_frame(input, u64::MAX)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// Reads the fields of a frame.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> io::Result<u64> {
        let (number, rest) = self.0.split_first_chunk().ok_or_else(malformed)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*number))
    }

    fn size(&mut self) -> io::Result<usize> {
        usize::try_from(self.number()?).map_err(|_| malformed())
    }

    fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = self.size()?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn text(&mut self) -> io::Result<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| malformed())
    }

    /// All tensors up to the end of the frame.
    fn tensors(&mut self) -> io::Result<Vec<Tensor>> {
        let mut tensors = Vec::new();
        while !self.0.is_empty() {
            let name = self.text()?;
            let datatype = *DataType::ALL.get(self.size()?).ok_or_else(malformed)?;
            let rank = self.number()?;
            let shape = (0..rank).map(|_| self.size()).collect::<io::Result<Vec<_>>>()?;
            let elements = Elements::from_raw(datatype, self.bytes()?).ok_or_else(malformed)?;
            tensors.push(Tensor::new(name, shape, elements).map_err(|_| malformed())?);
        }
        Ok(tensors)
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "malformed message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sent(message: Message) -> Vec<u8> {
        let mut wire = Vec::new();
        message.send(&mut wire).unwrap();
        read_frame(&mut wire.as_slice(), 1 << 20).unwrap().unwrap()
    }

    #[test]
    fn messages_round_trip() {
        let x = Tensor::new("x", [2, 2], Elements::Fp32(vec![0.5, -1.0, f32::INFINITY, 3.0])).unwrap();
        let n = Tensor::new("n", [0], Elements::Int64(vec![])).unwrap();
        let read = RunRequest::parse(&sent(run(7, &[&x, &n], &[1, 0]))).unwrap();
        assert_eq!((read.id, read.outputs, read.inputs), (7, vec![1, 0], vec![x.clone(), n]));

        let ran = Response::Ran(9, Ok(vec![x.clone()]));
        let Response::Ran(9, Ok(tensors)) = Response::parse(&sent(ran.message())).unwrap() else {
            panic!("unexpected response")
        };
        assert_eq!(tensors, [x]);
        let rejection = Rejection { node: Some("conv".into()), operator: true, message: "no".into() };
        let Response::Rejected(read) =
            Response::parse(&sent(Response::Rejected(rejection).message())).unwrap()
        else {
            panic!("unexpected response")
        };
        assert_eq!((read.node.as_deref(), read.operator, read.message.as_str()), (Some("conv"), true, "no"));
    }

    #[test]
    fn model_round_trips_and_truncation_is_an_error() {
        let files = HashMap::from([("w.bin".to_owned(), vec![1, 2, 3])]);
        let sent = ModelFiles { model: b"model".to_vec(), files };
        let mut wire = Vec::new();
        write_model(&mut wire, &sent).unwrap();
        let read = read_model(&mut wire.as_slice()).unwrap();
        assert_eq!((read.model, read.files), (sent.model, sent.files));
        let cut = wire.len() - 1;
        assert!(read_model(&mut &wire[..cut]).is_err());
    }

    #[test]
    fn frame_beyond_limit_is_not_allocated() {
        let mut wire = (1u64 << 60).to_le_bytes().to_vec();
        wire.push(0);
        assert!(read_frame(&mut wire.as_slice(), 1 << 20).is_err());
        assert!(read_frame(&mut [].as_slice(), 1 << 20).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Response::parse(&bytes);
            let _ = RunRequest::parse(&bytes);
        }
    }
}
