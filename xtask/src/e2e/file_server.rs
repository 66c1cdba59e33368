//! A server of model files for storage initializers.

use crate::{Failure, k8s, metadata};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
};

/// Serves one file over HTTP at every path, on the nodes' bridge.
pub(super) struct FileServer {
    pub(super) address: SocketAddr,
}

impl FileServer {
    /// With the iris model.
    pub(super) fn start() -> Result<Self, Failure> {
        Self::serve(fs::read(metadata::root().join("examples/quickstart/iris/model.onnx"))?)
    }

    pub(super) fn serve(model: Vec<u8>) -> Result<Self, Failure> {
        let listener = TcpListener::bind((k8s::node_address(), 0))?;
        let address = listener.local_addr()?;
        // Ends with the program.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let _ = send_file(stream, &model);
            }
        });
        Ok(Self { address })
    }
}

fn send_file(mut stream: TcpStream, file: &[u8]) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(buffer.get(..read).unwrap_or_default());
    }
    write!(stream, "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", file.len())?;
    if !request.starts_with(b"HEAD ") {
        stream.write_all(file)?;
    }
    Ok(())
}
