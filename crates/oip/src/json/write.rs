//! JSON writer.

pub(crate) fn write_int(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Shortest representation that round-trips; NaN and infinity become `null`.
pub(crate) fn write_f32(out: &mut Vec<u8>, value: f32) {
    if value.is_finite() {
        out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    } else {
        out.extend_from_slice(b"null");
    }
}

/// Shortest representation that round-trips; NaN and infinity become `null`.
pub(crate) fn write_f64(out: &mut Vec<u8>, value: f64) {
    if value.is_finite() {
        out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    } else {
        out.extend_from_slice(b"null");
    }
}

pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(plain) = rest.iter().position(|&b| b < 0x20 || b == b'"' || b == b'\\') {
        let (before, special) = rest.split_at(plain);
        out.extend_from_slice(before);
        let Some((&byte, after)) = special.split_first() else {
            break;
        };
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                out.extend_from_slice(b"\\u00");
                for digit in [byte >> 4, byte & 15] {
                    out.extend(HEX.get(usize::from(digit)));
                }
            }
        }
        rest = after;
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}
