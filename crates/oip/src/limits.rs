//! Request limits.

/// The defaults protect a small machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Body bytes, also after decompression.
    pub body: usize,
    /// Elements of a numeric or boolean tensor.
    pub elements: usize,
    /// Elements of a `BYTES` tensor; each needs several times its wire size.
    pub bytes_elements: usize,
    /// Tensors, and requested outputs.
    pub tensors: usize,
    /// Dimensions of a tensor.
    pub rank: usize,
    /// Parameters of a request or a tensor.
    pub parameters: usize,
    /// Bytes of a name, ID or text parameter.
    pub text: usize,
    /// Nesting depth of arrays and objects.
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
