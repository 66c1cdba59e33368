//! Credentials in the headers of a request; gRPC metadata are headers too.

use crate::Denied;
use http::{HeaderMap, HeaderName, HeaderValue, header::AUTHORIZATION};
use std::fmt;

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
/// Of a token; keys are shorter.
const MAX_LENGTH: usize = 16 << 10;

/// A key or a token, as the client sent it.
#[derive(Clone)]
pub struct Credential {
    header: HeaderValue,
    /// Where it starts in the header.
    start: usize,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credential(…)")
    }
}

impl Credential {
    pub(crate) fn text(&self) -> &str {
        let bytes = self.header.as_bytes().get(self.start..).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Removes both headers, so that nothing behind the gateway sees a credential, and returns the one that they contain.
pub fn take(headers: &mut HeaderMap) -> Result<Option<Credential>, Denied> {
    let count = |name: &HeaderName| headers.get_all(name).iter().take(2).count();
    let repeated = count(&AUTHORIZATION) + count(&API_KEY) > 1;
    let (bearer, key) = (headers.remove(AUTHORIZATION), headers.remove(API_KEY));
    if repeated {
        return Err(Denied::invalid("the request has several credentials: send one"));
    }
    let (header, start) = match (bearer, key) {
        (Some(header), _) => {
            let start = bearer_start(header.as_bytes()).ok_or_else(|| {
                Denied::invalid("the header authorization must be Bearer and a key or token")
            })?;
            (header, start)
        }
        (None, Some(header)) => (header, 0),
        (None, None) => return Ok(None),
    };
    let text = header.as_bytes().get(start..).unwrap_or_default();
    if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) {
        return Err(Denied::invalid("the credential is empty or has characters that no key or token has"));
    }
    if text.len() > MAX_LENGTH {
        return Err(Denied::invalid(format!("the credential is longer than {MAX_LENGTH} bytes")));
    }
    Ok(Some(Credential { header, start }))
}

/// Removes both headers.
pub fn without_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    headers.remove(API_KEY);
}

/// Where the token starts after the scheme, whose case does not matter.
fn bearer_start(value: &[u8]) -> Option<usize> {
    let (scheme, rest) = value.split_at_checked(6)?;
    let blanks = rest.iter().take_while(|b| **b == b' ').count();
    (scheme.eq_ignore_ascii_case(b"bearer") && blanks > 0).then_some(6 + blanks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    type Case<'a> = (&'a [(&'static str, &'a [u8])], Result<Option<&'static str>, Reason>);

    fn headers(list: &[(&'static str, &[u8])]) -> HeaderMap {
        list.iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap()))
            .collect()
    }

    #[test]
    fn credential_is_taken_from_one_header_and_both_are_removed() {
        let huge = format!("Bearer {}", "a".repeat(MAX_LENGTH + 1)).into_bytes();
        let cases: &[Case<'_>] = &[
            (&[], Ok(None)),
            (&[("authorization", b"Bearer abc")], Ok(Some("abc"))),
            (&[("authorization", b"bEARER   abc")], Ok(Some("abc"))),
            (&[("x-api-key", b"abc")], Ok(Some("abc"))),
            (&[("authorization", b"Basic abc")], Err(Reason::Invalid)),
            (&[("authorization", b"Bearer")], Err(Reason::Invalid)),
            (&[("authorization", b"Bearer ")], Err(Reason::Invalid)),
            (&[("authorization", b"Bearerabc")], Err(Reason::Invalid)),
            (&[("authorization", b"")], Err(Reason::Invalid)),
            (&[("authorization", b"Bearer a b")], Err(Reason::Invalid)),
            (&[("authorization", b"Bearer \xff\xfe")], Err(Reason::Invalid)),
            (&[("x-api-key", b"")], Err(Reason::Invalid)),
            (&[("x-api-key", b"\xc3\xa4")], Err(Reason::Invalid)),
            (&[("authorization", &huge)], Err(Reason::Invalid)),
            (&[("authorization", b"Bearer a"), ("authorization", b"Bearer a")], Err(Reason::Invalid)),
            (&[("x-api-key", b"a"), ("x-api-key", b"b")], Err(Reason::Invalid)),
            (&[("authorization", b"Bearer a"), ("x-api-key", b"a")], Err(Reason::Invalid)),
        ];
        for (list, expected) in cases {
            let mut map = headers(list);
            let taken = take(&mut map);
            let shown = taken.as_ref().map(|c| c.as_ref().map(Credential::text)).map_err(|d| d.reason);
            assert_eq!(shown, *expected, "{list:?}");
            assert!(map.is_empty(), "{list:?} leaves {map:?}");
        }
    }

    #[test]
    fn debug_output_hides_the_credential() {
        let taken = take(&mut headers(&[("x-api-key", b"planted")])).unwrap();
        assert!(!format!("{taken:?}").contains("planted"));
    }
}
