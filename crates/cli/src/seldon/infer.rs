//! `infer` and `metadata`: sends the request unchanged and prints the response.

use super::{
    args::{Data, Infer, Metadata, Mode},
    endpoints::Endpoints,
    error,
    pretty_json::indent,
    protojson::{self, INFERENCE},
    session,
    trace::{TRACE, Trace},
};
use crate::{
    client::{Address, Connection, HttpError},
    error::{CommandError, Exit},
    object_ref::ObjectRef,
    output::{emit, emit_line, print_stderr, sanitize},
};
use bytes::Bytes;
use gantry_api::Kind;
use gantry_oip::{InferRequest, Limits, grpc};
use gantry_proto::inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::{collections::BTreeMap, io::Read as _, path::Path, time::Duration};
use tonic::{
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

/// Limit of requests read from a file and of responses.
const MAX_BODY_BYTES: usize = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetKind {
    Model,
    Pipeline,
}

impl TargetKind {
    /// Value of the `seldon-model` header.
    fn header_value(self, name: &str) -> String {
        match self {
            Self::Model => name.to_owned(),
            Self::Pipeline => format!("{name}.pipeline"),
        }
    }

    fn path(self, name: &str, rest: &str) -> String {
        match self {
            Self::Model => format!("/v2/models/{name}{rest}"),
            Self::Pipeline => format!("/v2/pipelines/{name}{rest}"),
        }
    }
}

enum Transport {
    Rest { connection: Connection, path: String, body: Bytes },
    Grpc { client: Box<GrpcInferenceServiceClient<Channel>>, request: Box<pb::ModelInferRequest> },
}

struct InferClient<'a> {
    args: &'a Infer,
    endpoints: &'a Endpoints,
    host: String,
    headers: HeaderMap,
    transport: Transport,
}

/// A response; the headers are there also if the request failed.
struct InferResponse<B = Vec<u8>> {
    headers: HeaderMap,
    body: B,
}

/// `model infer`, `pipeline infer`.
pub(super) async fn infer(endpoints: &Endpoints, args: &Infer, kind: TargetKind) -> Result<(), CommandError> {
    gantry_api::check_name(&args.name).map_err(|e| error::usage(format!("name {e}")))?;
    let payload = payload(args)?;
    let mut client = InferClient::new(endpoints, args, kind, payload).await?;
    if args.show_request {
        client.show_request()?;
    }
    if args.iterations == 1 && args.seconds.is_none() {
        let response = match client.infer().await {
            Err(error) if kind == TargetKind::Pipeline => {
                return Err(with_similar_name(endpoints, &args.name, error).await);
            }
            other => other?,
        };
        return if args.show_response { emit_text(&response.body) } else { Ok(()) };
    }
    let mut routes = BTreeMap::new();
    let end = args.seconds.map(|s| tokio::time::Instant::now() + Duration::from_secs(s));
    let mut sent = 0;
    loop {
        let more = end.map_or(sent < args.iterations, |end| tokio::time::Instant::now() < end);
        if !more {
            return emit_line(&tally(&routes));
        }
        match client.infer().await {
            Ok(response) => {
                for route in routes_of(&response.headers).iter().flat_map(|r| r.split_whitespace()) {
                    *routes.entry(route.to_owned()).or_insert(0u64) += 1;
                }
            }
            Err(error) => {
                emit_line(&tally(&routes))?;
                return Err(error);
            }
        }
        sent += 1;
    }
}

/// `pipeline infer --trace`: prints the steps, also of a request that failed.
pub(super) async fn trace(endpoints: &Endpoints, args: &Infer) -> Result<(), CommandError> {
    gantry_api::check_name(&args.name).map_err(|e| error::usage(format!("name {e}")))?;
    let mut client = InferClient::new(endpoints, args, TargetKind::Pipeline, payload(args)?).await?;
    client.headers.insert(TRACE, HeaderValue::from_static("true"));
    if args.show_request {
        client.show_request()?;
    }
    let response = client.send().await?;
    let trace = response.headers.get(TRACE).map(HeaderValue::as_bytes);
    match (trace.map(Trace::parse), response.body) {
        (Some(Some(trace)), body) => {
            emit(trace.text(body.is_ok()))?;
            body.map(drop)
        }
        (_, Err(error)) => Err(with_similar_name(endpoints, &args.name, error).await),
        (_, Ok(_)) => Err(error::failed(
            "the gateway returned no trace: it is not a Gantry gateway, or an older version",
        )),
    }
}

/// Adds the most similar pipeline to the error of an unknown one, if a scheduler is reachable. Gateways add that of a
/// model themselves.
async fn with_similar_name(endpoints: &Endpoints, name: &str, mut error: CommandError) -> CommandError {
    if error.exit != Exit::NotFound || endpoints.as_seldon {
        return error;
    }
    let Ok(scheduler) = endpoints.scheduler(None, None).await else { return error };
    let unknown = ObjectRef { kind: Kind::Pipeline, name: name.to_owned() };
    let message = scheduler.not_found(&unknown).await.message;
    if let Some((_, hint)) = message.split_once(" not found. ") {
        error.message += &format!("\n{hint}");
    }
    error
}

/// `Success: map[:iris_1::57]`
fn tally(routes: &BTreeMap<String, u64>) -> String {
    let counts: Vec<String> = routes.iter().map(|(route, count)| format!("{route}:{count}")).collect();
    format!("Success: map[{}]", counts.join(" "))
}

fn routes_of(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(session::ROUTE).iter();
    values.map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).collect()
}

fn payload(args: &Infer) -> Result<Bytes, CommandError> {
    let file = match (&args.payload, &args.file) {
        (Some(text), _) => return Ok(text.clone().into()),
        (None, Some(file)) => file,
        (None, None) => {
            return Err(error::usage("request missing: pass it after the name, or with -f FILE"));
        }
    };
    let mut bytes = Vec::new();
    let limit = MAX_BODY_BYTES as u64 + 1;
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(limit).read_to_end(&mut bytes))
    };
    read.map_err(|e| error::usage(format!("{}: {e}", file.display())))?;
    if bytes.len() > MAX_BODY_BYTES {
        return Err(error::usage(format!("{} has more than {MAX_BODY_BYTES} bytes", file.display())));
    }
    Ok(bytes.into())
}

impl<'a> InferClient<'a> {
    async fn new(
        endpoints: &'a Endpoints,
        args: &'a Infer,
        kind: TargetKind,
        payload: Bytes,
    ) -> Result<Self, CommandError> {
        let address = endpoints.inference(args.data.inference_host.as_deref())?;
        let mut headers: HeaderMap = HeaderMap::new();
        if args.inference_mode == Mode::Rest {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.insert("seldon-model", value(&kind.header_value(&args.name))?);
        headers.extend(args.header.iter().cloned());
        if args.sticky_session {
            for route in session::load() {
                headers.append(session::ROUTE, value(&route)?);
            }
        }
        let host = args.data.authority.clone().unwrap_or_else(|| address.to_string());
        let transport = match args.inference_mode {
            Mode::Rest => Transport::Rest {
                connection: connection(endpoints, &address, &args.data),
                path: kind.path(&args.name, "/infer"),
                body: payload,
            },
            Mode::Grpc => {
                let mut request: pb::ModelInferRequest =
                    protojson::read(INFERENCE, "ModelInferRequest", &payload)?;
                request.model_name.clone_from(&args.name);
                Transport::Grpc {
                    client: Box::new(client(endpoints, &address, &args.data).await?),
                    request: Box::new(request),
                }
            }
        };
        Ok(Self { args, endpoints, host, headers, transport })
    }

    fn show_request(&self) -> Result<(), CommandError> {
        match &self.transport {
            Transport::Rest { body, .. } => emit_text(&indent(body)),
            Transport::Grpc { request, .. } => {
                emit_line(&protojson::write(INFERENCE, "ModelInferRequest", &**request)?)
            }
        }
    }

    async fn infer(&mut self) -> Result<InferResponse, CommandError> {
        let InferResponse { headers, body } = self.send().await?;
        Ok(InferResponse { headers, body: body? })
    }

    async fn send(&mut self) -> Result<InferResponse<Result<Vec<u8>, CommandError>>, CommandError> {
        if self.args.show_headers {
            emit(self.head())?;
        }
        let timeout = self.endpoints.call_timeout;
        let as_seldon = self.endpoints.as_seldon;
        let (headers, body) = match &mut self.transport {
            Transport::Rest { connection, path, body } => {
                let response = connection.send(Method::POST, path, &self.headers, body.clone()).await;
                let (parts, body) = response.map_err(|e| http_error(&self.host, &e))?.into_parts();
                (parts.headers, check_status(parts.status, &body).map(|()| indent(&body)))
            }
            Transport::Grpc { client, request } => {
                let mut request = tonic::Request::new((**request).clone());
                *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
                let timed_out =
                    || tonic::Status::deadline_exceeded(format!("no response within {timeout:?}"));
                let response = tokio::time::timeout(timeout, client.model_infer(request))
                    .await
                    .unwrap_or_else(|_| Err(timed_out()));
                match response {
                    Ok(response) => {
                        let headers = response.metadata().clone().into_headers();
                        (headers, Ok(typed_json(response.into_inner())?.into_bytes()))
                    }
                    Err(status) => {
                        let headers = status.metadata().clone().into_headers();
                        (headers, Err(error::status(&status, as_seldon)))
                    }
                }
            }
        };
        if self.args.show_headers {
            emit(self.headers_text('<', &headers) + "\n")?;
        }
        if let Err(error) = session::save(&routes_of(&headers))
            && self.args.sticky_session
        {
            print_stderr(&format!("cannot save the session: {error}"));
        }
        Ok(InferResponse { headers, body })
    }

    /// Request line and headers.
    fn head(&self) -> String {
        let first = match &self.transport {
            Transport::Rest { path, .. } => format!("> POST {path} HTTP/1.1\n"),
            Transport::Grpc { .. } => "> /inference.GRPCInferenceService/ModelInfer HTTP/2\n".to_owned(),
        };
        format!("{first}> Host: {}\n{}\n", self.host, self.headers_text('>', &self.headers))
    }

    /// One line per header; HTTP/1 names are capitalized.
    fn headers_text(&self, mark: char, headers: &HeaderMap) -> String {
        let mut text = String::new();
        for name in headers.keys() {
            let values: Vec<_> =
                headers.get_all(name).iter().map(|v| String::from_utf8_lossy(v.as_bytes())).collect();
            let name = match self.args.inference_mode {
                Mode::Rest => capitalize(name.as_str()),
                Mode::Grpc => name.as_str().to_owned(),
            };
            text += &sanitize(&format!("{mark} {name}:[{}]\n", values.join(" ")));
        }
        text
    }
}

/// `x-seldon-route` as `X-Seldon-Route`.
fn capitalize(name: &str) -> String {
    let part = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}

/// Serializes a response with raw tensors decoded; undecodable ones are printed as received.
fn typed_json(message: pb::ModelInferResponse) -> Result<String, CommandError> {
    let limits = Limits { body: usize::MAX, ..Limits::default() };
    let readable = if message.raw_output_contents.is_empty() {
        message
    } else {
        match grpc::decode_response(message.clone(), &limits) {
            Ok(response) => grpc::encode_response(response, &InferRequest::default()),
            Err(_) => message,
        }
    };
    protojson::write(INFERENCE, "ModelInferResponse", &readable)
}

/// `model metadata`.
pub(super) async fn metadata(endpoints: &Endpoints, args: &Metadata) -> Result<(), CommandError> {
    gantry_api::check_name(&args.name).map_err(|e| error::usage(format!("name {e}")))?;
    let address = endpoints.inference(args.data.inference_host.as_deref())?;
    let mut headers = HeaderMap::new();
    headers.insert("seldon-model", value(&args.name)?);
    let mut connection = connection(endpoints, &address, &args.data);
    let path = TargetKind::Model.path(&args.name, "");
    let response = connection.send(Method::GET, &path, &headers, Bytes::new()).await;
    let response = response.map_err(|e| http_error(&address.to_string(), &e))?;
    check_status(response.status(), response.body())?;
    emit_text(&indent(response.body()))
}

fn connection(endpoints: &Endpoints, address: &Address, data: &Data) -> Connection {
    let connection = Connection::new(address.clone(), endpoints.call_timeout);
    match &data.authority {
        Some(host) => connection.with_host(host.clone()),
        None => connection,
    }
}

async fn client(
    endpoints: &Endpoints,
    address: &Address,
    data: &Data,
) -> Result<GrpcInferenceServiceClient<Channel>, CommandError> {
    let wrong = |e: &dyn std::fmt::Display| error::usage(format!("{address}: {e}"));
    let mut endpoint =
        Endpoint::from_shared(address.url()).map_err(|e| wrong(&e))?.connect_timeout(endpoints.call_timeout);
    if let Some(host) = &data.authority {
        let origin = format!("http://{host}").parse().map_err(|e| wrong(&e))?;
        endpoint = endpoint.origin(origin);
    }
    let channel = endpoint.connect().await.map_err(|_| {
        let message = no_gateway(&address.to_string());
        CommandError::new(Exit::Unavailable, format!("Error: rpc error: code = Unavailable desc = {message}"))
    })?;
    Ok(GrpcInferenceServiceClient::new(channel)
        .max_decoding_message_size(MAX_BODY_BYTES)
        .max_encoding_message_size(MAX_BODY_BYTES))
}

fn no_gateway(host: &str) -> String {
    format!("no gateway at {host}: start one with `gantry up`, or set --inference-host")
}

fn http_error(host: &str, error: &HttpError) -> CommandError {
    match error {
        HttpError::Refused => CommandError::new(Exit::Unavailable, format!("Error: {}", no_gateway(host))),
        HttpError::Timeout(time) => {
            CommandError::new(Exit::Timeout, format!("Error: {host} did not answer within {time:?}"))
        }
        HttpError::Failed(why) => {
            CommandError::new(Exit::Unavailable, format!("Error: connection to {host} failed: {why}"))
        }
    }
}

/// `Error: V2 server error: 400 …`
fn check_status(status: StatusCode, body: &[u8]) -> Result<(), CommandError> {
    if status.is_success() {
        return Ok(());
    }
    let exit = match status {
        StatusCode::NOT_FOUND => Exit::NotFound,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
            Exit::Unavailable
        }
        StatusCode::GATEWAY_TIMEOUT | StatusCode::REQUEST_TIMEOUT => Exit::Timeout,
        status if status.is_client_error() => Exit::Usage,
        _ => Exit::Failed,
    };
    let text = String::from_utf8_lossy(body);
    Err(CommandError::new(exit, format!("Error: V2 server error: {} {}", status.as_u16(), text.trim_end())))
}

fn value(text: &str) -> Result<HeaderValue, CommandError> {
    HeaderValue::from_str(text)
        .map_err(|_| error::usage(format!("\"{}\" is not a valid header value", text.escape_debug())))
}

fn emit_text(text: &[u8]) -> Result<(), CommandError> {
    emit(text)?;
    if text.ends_with(b"\n") { Ok(()) } else { emit("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tally_formats_routes_as_a_go_map() {
        let routes = [(":iris_1:".to_owned(), 43), (":iris2_1:".to_owned(), 57)].into();
        assert_eq!(tally(&routes), "Success: map[:iris2_1::57 :iris_1::43]");
        assert_eq!(tally(&BTreeMap::new()), "Success: map[]");
    }

    #[test]
    fn capitalize_http1_header_names() {
        for (name, expected) in [("x-seldon-route", "X-Seldon-Route"), ("date", "Date"), ("ce-id", "Ce-Id")] {
            assert_eq!(capitalize(name), expected);
        }
    }

    #[test]
    fn typed_json_decodes_raw_tensors() {
        let output = pb::model_infer_response::InferOutputTensor {
            name: "y".into(),
            datatype: "FP32".into(),
            shape: vec![1, 2],
            ..Default::default()
        };
        let raw = [1.0f32, 2.5].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let message = pb::ModelInferResponse {
            model_name: "iris_1".into(),
            outputs: vec![output],
            raw_output_contents: vec![raw.into()],
            ..Default::default()
        };
        assert_eq!(
            typed_json(message).unwrap(),
            r#"{"modelName":"iris_1","outputs":[{"name":"y","datatype":"FP32","shape":["1","2"],"contents":{"fp32Contents":[1.0,2.5]}}]}"#
        );
    }
}
