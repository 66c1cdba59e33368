//! How much a request may ask for.

/// Bounds on what a client may send; the defaults protect a small machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a body, also after decompression.
    pub body: usize,
    /// Elements of one tensor of numbers or booleans.
    pub elements: usize,
    /// Elements of one `BYTES` tensor; each costs several times its bytes on the wire.
    pub bytes_elements: usize,
    /// Tensors of one request, and outputs it may ask for.
    pub tensors: usize,
    /// Dimensions of one tensor.
    pub rank: usize,
    /// Parameters of a request or a tensor.
    pub parameters: usize,
    /// Bytes of a name, an id or a text parameter.
    pub text: usize,
    /// How deep arrays and objects may be nested.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 64 << 20,
            elements: 64 << 20,
            bytes_elements: 4 << 20,
            tensors: 256,
            rank: 32,
            parameters: 256,
            text: 64 << 10,
            depth: 64,
        }
    }
}
