//! Where in which trace we are, as the header `traceparent` says it (W3C Trace Context).

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header that carries a trace from one process to the next.
pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// What other systems have to say about the trace. It is passed on as it is.
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A span of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace; never 0.
    pub trace: u128,
    /// The span; never 0.
    pub span: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl Context {
    /// The span that a request comes from. What is not well formed counts as absent.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        Self::parse(headers.get(TRACEPARENT)?.as_bytes())
    }

    /// Reads a header's value: `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut parts = text.split(|b| *b == b'-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let version = number(version, 2)?;
        // A later version may add to the end; 255 is none.
        if version == 255 || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace = number(trace, 32).filter(|n| *n != 0)?;
        let span = number(span, 16).filter(|n| *n != 0)?;
        let flags = number(flags, 2)?;
        Some(Self { trace, span: span as u64, sampled: flags & 1 == 1 })
    }

    /// The header's value.
    pub fn header(self) -> Option<HeaderValue> {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let (_, rest) = text.split_at_mut(3);
        let (trace, rest) = rest.split_at_mut(32);
        write(trace, self.trace);
        let (_, rest) = rest.split_at_mut(1);
        let (span, rest) = rest.split_at_mut(16);
        write(span, u128::from(self.span));
        let (_, flags) = rest.split_at_mut(1);
        write(flags, u128::from(self.sampled));
        HeaderValue::from_bytes(&text).ok()
    }
}

fn number(digits: &[u8], length: usize) -> Option<u128> {
    if digits.len() != length {
        return None;
    }
    digits.iter().try_fold(0_u128, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            // Capitals are not allowed.
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

fn write(digits: &mut [u8], number: u128) {
    let mut left = number;
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef".get((left & 15) as usize).copied().unwrap_or(b'0');
        left >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_example_is_read() {
        let context = Context::parse(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        assert_eq!(context.trace, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((context.span, context.sampled), (0xb7ad_6b71_6920_3331, true));
    }

    #[test]
    fn what_is_not_well_formed_counts_as_absent() {
        for (text, good) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true),
            ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes", true),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false),
            ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false),
            ("00-00000000000000000000000000000000-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false),
            ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01", false),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false),
            ("", false),
            ("-", false),
        ] {
            assert_eq!(Context::parse(text.as_bytes()).is_some(), good, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(trace in 1_u128.., span in 1_u64.., sampled: bool) {
            let context = Context { trace, span, sampled };
            prop_assert_eq!(Context::parse(context.header().unwrap().as_bytes()), Some(context));
        }

        #[test]
        fn anything_gets_an_answer(text: Vec<u8>) {
            let _ = Context::parse(&text);
        }
    }
}
