//! `AdmissionReview` decoding and encoding.

use kube::core::{
    DynamicObject, TypeMeta,
    admission::{AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND},
};

pub type AdmissionRequest = kube::core::admission::AdmissionRequest<DynamicObject>;

/// The API server truncates longer warnings.
const MAX_WARNING_LENGTH: usize = 250;
/// The API server drops all warnings when their total length is too high.
const MAX_WARNINGS: usize = 8;

pub(super) fn decode(body: &[u8]) -> Result<AdmissionRequest, String> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|e| format!("invalid AdmissionReview: {e}"))?;
    let TypeMeta { api_version, kind } = &review.types;
    if kind != META_KIND || api_version != META_API_VERSION_V1 {
        let short = |text: &str| text.chars().take(100).collect::<String>();
        let (kind, api_version) = (short(kind), short(api_version));
        return Err(format!(
            "expected {META_KIND} of {META_API_VERSION_V1}, got {kind:?} of {api_version:?}"
        ));
    }
    let request: AdmissionRequest = review.try_into().map_err(|_| "request is missing")?;
    if request.uid.is_empty() {
        return Err("request.uid is empty".into());
    }
    Ok(request)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Why the request is rejected; `None` when it is allowed.
    pub rejection: Option<String>,
    pub warnings: Vec<String>,
}

impl Decision {
    /// The metric label.
    pub fn outcome(&self) -> &'static str {
        match (&self.rejection, self.warnings.is_empty()) {
            (Some(_), _) => "refused",
            (None, false) => "warned",
            (None, true) => "allowed",
        }
    }

    pub fn review(&self, request: &AdmissionRequest) -> AdmissionReview<DynamicObject> {
        let mut response = AdmissionResponse::from(request);
        if let Some(reason) = &self.rejection {
            response = response.deny(reason);
            response.result.code = 422;
            response.result.reason = "Invalid".into();
        }
        if !self.warnings.is_empty() {
            let warnings = self.warnings.iter().take(MAX_WARNINGS);
            response.warnings = Some(warnings.map(|warning| truncated(warning)).collect());
        }
        response.into_review()
    }
}

/// Warnings are HTTP headers: one line.
fn truncated(text: &str) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() > MAX_WARNING_LENGTH {
        line.truncate(line.floor_char_boundary(MAX_WARNING_LENGTH - '…'.len_utf8()));
        line.push('…');
    }
    line
}
