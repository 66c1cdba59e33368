//! An entry of the audit log.

use super::{
    AuditLog,
    change::{Change, Object, bounded},
};
use crate::access::Caller;
use gantry_proto::redacted_uri;
use serde::Serialize;
use std::net::SocketAddr;
use tonic::Code;

const MAX_IDENTITY: usize = 300;
const MAX_RPC: usize = 128;
const MAX_REASON: usize = 500;

/// Where a call comes from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) identity: String,
    pub(crate) role: &'static str,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) rpc: String,
}

/// One call. Serialized as one line for each object that it changes.
#[derive(Debug)]
pub(super) struct Entry {
    time: jiff::Timestamp,
    source: Source,
    change: Change,
    code: &'static str,
    reason: String,
    suppressed: u64,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    identity: &'a str,
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
    rpc: &'a str,
    #[serde(flatten)]
    object: Option<&'a Object>,
    #[serde(skip_serializing_if = "Option::is_none")]
    action: Option<&'a str>,
    code: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    /// Further objects of the call.
    #[serde(skip_serializing_if = "is_zero")]
    more: u64,
    /// Denied calls before this one that have no line.
    #[serde(skip_serializing_if = "is_zero")]
    suppressed: u64,
    /// Entries before this one that could not be written.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Entry {
    /// About its size in memory.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.source.identity.len() + self.reason.len() + self.change.size()
    }

    /// The lines of the entry, each with a line end.
    pub(super) fn line(&self, dropped: u64) -> Vec<u8> {
        let Self { time, source, change, code, reason, suppressed } = self;
        let time = time.to_string();
        let mut text = Vec::with_capacity(512);
        let objects = change.objects.iter().map(Some);
        let none = change.objects.is_empty().then_some(None);
        let last = change.objects.len().saturating_sub(1);
        for (i, object) in objects.chain(none).enumerate() {
            let line = Line {
                time: time.clone(),
                identity: &source.identity,
                role: source.role,
                owner: change.owner.as_deref(),
                address: source.address,
                rpc: &source.rpc,
                object,
                action: change.action.as_deref(),
                code,
                reason,
                more: if i == last { change.more } else { 0 },
                suppressed: if i == 0 { *suppressed } else { 0 },
                dropped: if i == 0 { dropped } else { 0 },
            };
            // Strings and numbers: serialization cannot fail.
            if serde_json::to_writer(&mut text, &line).is_ok() {
                text.push(b'\n');
            }
        }
        text
    }
}

/// A call whose result is not known yet. Dropped before, the caller has left: the change may still be applied.
#[derive(Debug)]
pub(crate) struct Pending {
    log: AuditLog,
    source: Option<Source>,
    caller: Caller,
    suppressed: u64,
}

impl Pending {
    pub(super) const fn new(log: AuditLog, source: Source, caller: Caller, suppressed: u64) -> Self {
        Self { log, source: Some(source), caller, suppressed }
    }

    pub(crate) fn finish(mut self, code: Code, message: &str) {
        self.write(name(code), message);
    }

    fn write(&mut self, code: &'static str, message: &str) {
        let Some(mut source) = self.source.take() else { return };
        source.identity = bounded(&source.identity, MAX_IDENTITY);
        source.rpc = bounded(&source.rpc, MAX_RPC);
        let change = std::mem::take(&mut *self.caller.change());
        let reason = bounded(&without_credentials(message), MAX_REASON);
        let time = jiff::Timestamp::now();
        self.log.write(Entry { time, source, change, code, reason, suppressed: self.suppressed });
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.write("CANCELLED", "the caller left before the result; the change may still be applied");
    }
}

/// Messages may quote a URI of the request.
fn without_credentials(message: &str) -> String {
    let shown = |word: &str| if word.contains("://") { redacted_uri(word) } else { word.to_owned() };
    message.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
