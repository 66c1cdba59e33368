//! Who a request is from, and what it may do. Without authentication nothing here does any work.
//!
//! A request is authenticated by its head, before its body is read. REST paths and the header `seldon-model` name the
//! object, so it is authorised then too; a gRPC message names its model, so that is authorised when it has arrived. Both
//! happen before a replica is selected.

use super::{
    Worker,
    client::Exchange,
    destination::Name,
    headers, local_response,
    path::{Operation, Path},
    service::Named,
};
use crate::{body::ResponseBody, routes::Service};
use gantry_auth::{Action, Auth, Credential, Denied, Principal, Reason, Target};
use gantry_oip::{Code, Error, grpc::SERVICE};
use gantry_transport::Protocol;
use http::{HeaderValue, Method, Response, header, request::Parts};
use std::sync::Arc;

/// The rights of a request.
#[derive(Clone, Default)]
pub(super) enum Access {
    /// The gateway has no authentication.
    #[default]
    Off,
    /// Without a credential: health only.
    Open,
    Known(Arc<Principal>, Credential),
}

impl Access {
    /// Whether the client may do this with the object.
    pub(super) fn authorize(&self, action: Action, target: Target<'_>) -> Result<(), Error> {
        match self {
            Self::Off => Ok(()),
            Self::Open => Err(no_credential()),
            Self::Known(principal, _) => principal.authorize(action, target).map_err(|denied| error(&denied)),
        }
    }

    /// Whether the client may do this with any object.
    pub(super) fn authorize_right(&self, action: Action) -> Result<(), Error> {
        match self {
            Self::Off => Ok(()),
            Self::Open => Err(no_credential()),
            Self::Known(principal, _) => principal.authorize_right(action).map_err(|denied| error(&denied)),
        }
    }

    /// Whether a list shows the model.
    pub(super) fn sees(&self, model: &str) -> bool {
        match self {
            Self::Off => true,
            Self::Open => false,
            Self::Known(principal, _) => principal.sees(model),
        }
    }

    /// Checks a message of a stream: the credential may have expired or been withdrawn, and each message counts.
    pub(super) fn renew(&mut self, auth: Option<&Arc<Auth>>) -> Result<(), Denied> {
        if let (Some(auth), Self::Known(principal, credential)) = (auth, self) {
            *principal =
                auth.authenticate(Some(credential)).inspect_err(|denied| auth.count_refusal(denied))?;
        }
        Ok(())
    }
}

/// Defensive: what is open is decided before.
fn no_credential() -> Error {
    Error::new(Code::Unauthenticated, "this request needs a credential")
}

pub(super) fn error(denied: &Denied) -> Error {
    let code = match denied.reason {
        Reason::Missing | Reason::Invalid | Reason::Expired => Code::Unauthenticated,
        Reason::Forbidden => Code::PermissionDenied,
        Reason::Limited => Code::ResourceExhausted,
        Reason::Unavailable => Code::Unavailable,
    };
    Error { retry_after: denied.retry_after, ..Error::new(code, denied.message.clone()) }
}

/// The response to a request that is not authenticated.
pub(super) fn refusal(denied: &Denied, protocol: Protocol) -> Response<ResponseBody> {
    let mut response = local_response::error(&error(denied), protocol);
    if let Some(challenge) = denied.challenge() {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    }
    response
}

impl Worker {
    /// Takes the credential out of the headers, and looks up its rights.
    pub(super) fn authenticate(
        &self,
        parts: &mut Parts,
        protocol: Protocol,
        exchange: &mut Exchange,
    ) -> Result<(), Denied> {
        let Some(auth) = &self.shared.config.auth else { return Ok(()) };
        exchange.access = Access::Open;
        let taken = gantry_auth::take(&mut parts.headers);
        if self.is_open(parts, protocol) {
            return Ok(());
        }
        let known = taken.and_then(|credential| Ok((auth.authenticate(credential.as_ref())?, credential)));
        match known {
            Ok((principal, Some(credential))) => exchange.access = Access::Known(principal, credential),
            Ok((_, None)) => {}
            Err(denied) => {
                auth.count_refusal(&denied);
                return Err(denied);
            }
        }
        Ok(())
    }

    /// Health of the gateway itself needs no credential: load balancers and kubelets have none.
    fn is_open(&self, parts: &Parts, protocol: Protocol) -> bool {
        let path = parts.uri.path();
        let is_health = match protocol {
            Protocol::Rest => {
                matches!(Path::parse(path), Some(Path::Alive | Path::OpenApi | Path::Live | Path::Ready))
            }
            Protocol::Grpc => {
                matches!(path.strip_prefix(SERVICE), Some("ServerLive" | "ServerReady"))
                    || path.starts_with("/grpc.health.v1.Health/")
            }
        };
        is_health && matches!(self.host(parts), Ok(None))
    }
}

/// Refuses what the client of a REST request may not do. `owner` is the InferenceService that the host or the path names, if
/// a model of the scheduler serves this request of it.
pub(super) fn authorize_rest(
    access: &Access,
    parts: &Parts,
    named: &Named<'_>,
    owner: Option<&Service>,
    text: &str,
) -> Result<(), Error> {
    if matches!(access, Access::Off) {
        return Ok(());
    }
    let path = Path::parse(text);
    let namespace = match named {
        Named::Service(service, _) => {
            let action = pod_action(&parts.method, path);
            return access.authorize(action, Target::Service { namespace: service.namespace() });
        }
        Named::Model { namespace, .. } => Some(*namespace),
        Named::Gateway => owner.map(Service::namespace),
    };
    let Some(path) = path else { return Ok(()) };
    match path {
        Path::Alive | Path::OpenApi | Path::Live | Path::ServerMetadata => Ok(()),
        Path::Ready => match named {
            Named::Model { name, namespace } => {
                access.authorize(Action::Ready, Target::ServiceModel { namespace, model: name })
            }
            _ => Ok(()),
        },
        Path::Names | Path::ModelList | Path::Index => access.authorize_right(Action::Metadata),
        Path::AllStatistics => access.authorize(Action::Metadata, Target::AllModels),
        Path::Load(model) | Path::Unload(model) => access.authorize(Action::Repository, Target::Model(model)),
        Path::Model { model, operation, .. } => {
            let target = match Name::of(&parts.headers, model)? {
                Name::Model(name) if name == model => of_model(name, namespace),
                name => of_name(name),
            };
            access.authorize(of_operation(operation), target)
        }
        Path::Pipeline { pipeline, operation } => {
            let name = Name::of_pipeline(&parts.headers, pipeline)?;
            access.authorize(of_operation(operation), of_name(name))
        }
    }
}

const fn of_operation(operation: Operation<'_>) -> Action {
    match operation {
        Operation::Infer | Operation::Predict | Operation::Explain | Operation::Other(_) => Action::Infer,
        Operation::Metadata | Operation::Config | Operation::Statistics => Action::Metadata,
        Operation::Ready => Action::Ready,
    }
}

/// Pods have paths of their own: what is not known to read only is inference.
fn pod_action(method: &Method, path: Option<Path<'_>>) -> Action {
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Action::Infer;
    }
    match path {
        Some(Path::Alive | Path::Live | Path::Ready) => Action::Ready,
        Some(Path::Names | Path::ModelList | Path::OpenApi | Path::ServerMetadata) => Action::Metadata,
        Some(Path::Model { operation, .. }) => of_operation(operation),
        _ => Action::Infer,
    }
}

const fn of_model<'a>(model: &'a str, namespace: Option<&'a str>) -> Target<'a> {
    match namespace {
        Some(namespace) => Target::ServiceModel { namespace, model },
        None => Target::Model(model),
    }
}

pub(super) const fn of_name(name: Name<'_>) -> Target<'_> {
    match name {
        Name::Model(name) => Target::Model(name),
        Name::Pipeline(name) => Target::Pipeline(name),
        Name::Experiment(name) => Target::Experiment(name),
    }
}

/// What a unary method of the inference service does with its model.
pub(super) fn of_method(method: &str) -> Action {
    match method {
        "ModelMetadata" | "ModelStatistics" => Action::Metadata,
        "ModelReady" => Action::Ready,
        _ => Action::Infer,
    }
}

/// Refuses a gRPC request by its head: by the name in a header, else by the right alone.
pub(super) fn authorize_grpc_head(access: &Access, parts: &Parts, method: &str) -> Result<(), Error> {
    if matches!(access, Access::Off) {
        return Ok(());
    }
    let action = of_method(method);
    if parts.headers.contains_key(headers::MODEL) {
        return access.authorize(action, of_name(Name::of(&parts.headers, "")?));
    }
    access.authorize_right(action)
}

/// Refuses a unary gRPC request by the name in its message. In a request to an InferenceService, `owner` has the model.
pub(super) fn authorize_message(
    access: &Access,
    owner: Option<&Service>,
    method: &str,
    name: Name<'_>,
) -> Result<(), Error> {
    if matches!(access, Access::Off) {
        return Ok(());
    }
    let target = match (name, owner) {
        (Name::Model(model), Some(owner)) if owner.has_model(model) => {
            of_model(model, Some(owner.namespace()))
        }
        (name, _) => of_name(name),
    };
    access.authorize(of_method(method), target)
}
