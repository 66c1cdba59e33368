//! The clock of the API server, from the `Date` of a response.

use k8s_openapi::jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use kube::{Client, client::Body};
use std::time::Duration;

/// Parts accept certificates of a clock that is less than an hour ahead.
const MAX_DIFFERENCE: Duration = Duration::from_mins(10);

/// Fails if the operator's clock differs so much from the API server's that its certificates would not be valid for others.
pub(super) async fn compare(client: &Client, now: Timestamp) -> Result<(), String> {
    let request = http::Request::get("/version").body(Body::empty()).map_err(|e| e.to_string())?;
    let response =
        client.send(request).await.map_err(|e| format!("failed to read the API server's clock: {e}"))?;
    let date = response.headers().get(http::header::DATE).and_then(|date| date.to_str().ok());
    // Without a date there is nothing to compare with.
    let Some(theirs) = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok()) else {
        return Ok(());
    };
    check(now, theirs)
}

fn check(ours: Timestamp, theirs: Timestamp) -> Result<(), String> {
    let difference = ours.duration_since(theirs).unsigned_abs();
    if difference <= MAX_DIFFERENCE {
        return Ok(());
    }
    Err(format!(
        "the operator's clock is {ours}, the API server's {theirs}: no certificate is issued until they agree; synchronize \
         the clock of the operator's node"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_of_http_is_read() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let time = DateTimeParser::new().parse_timestamp(date).unwrap();
        assert_eq!(time, "1994-11-06T08:49:37Z".parse().unwrap());
    }

    #[test]
    fn clocks_that_differ_too_much_issue_nothing() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let theirs = at("2026-01-01T00:00:00Z");
        assert_eq!(check(at("2026-01-01T00:09:00Z"), theirs), Ok(()));
        for ours in ["2026-01-01T00:11:00Z", "2025-12-31T23:49:00Z", "2036-01-01T00:00:00Z"] {
            assert!(check(at(ours), theirs).unwrap_err().contains("synchronize the clock"), "{ours}");
        }
    }
}
