//! Asking models and pipelines: the request as it was written, the answer as it came.

use super::{
    args::{Data, Infer, Metadata, Mode},
    failure,
    indent::indent,
    place::Speaker,
    protojson::{self, INFERENCE},
    session,
};
use crate::{
    client::{Address, Connection, HttpProblem},
    failure::{Exit, Failure},
    output::{emit, emit_line, harmless, say},
};
use bytes::Bytes;
use gantry_oip::{InferRequest, Limits, grpc};
use gantry_proto::inference::{self as pb, grpc_inference_service_client::GrpcInferenceServiceClient};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use std::{collections::BTreeMap, io::Read as _, path::Path, time::Duration};
use tonic::{
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

/// Largest request that is read from a file, and largest answer that is taken.
const LARGEST: usize = 256 << 20;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Model,
    Pipeline,
}

impl Of {
    /// The value of `seldon-model`.
    fn target(self, name: &str) -> String {
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

/// A model behind a protocol.
enum Wire {
    Rest { connection: Connection, path: String, body: Bytes },
    Grpc { client: Box<GrpcInferenceServiceClient<Channel>>, request: Box<pb::ModelInferRequest> },
}

struct Asker<'a> {
    args: &'a Infer,
    speaker: &'a Speaker,
    host: String,
    headers: HeaderMap,
    wire: Wire,
}

/// What came back.
struct Answer {
    headers: HeaderMap,
    body: Vec<u8>,
}

/// `model infer`, `pipeline infer`.
pub(super) async fn infer(speaker: &Speaker, args: &Infer, of: Of) -> Result<(), Failure> {
    gantry_api::check_name(&args.name).map_err(|e| failure::usage(format!("name {e}")))?;
    let payload = payload(args)?;
    let mut asker = Asker::new(speaker, args, of, payload).await?;
    if args.show_request {
        asker.show_request()?;
    }
    if args.iterations == 1 && args.seconds.is_none() {
        let answer = asker.ask().await?;
        return if args.show_response { emit_text(&answer.body) } else { Ok(()) };
    }
    let mut routes = BTreeMap::new();
    let end = args.seconds.map(|s| tokio::time::Instant::now() + Duration::from_secs(s));
    let mut sent = 0;
    loop {
        let more = end.map_or(sent < args.iterations, |end| tokio::time::Instant::now() < end);
        if !more {
            return emit_line(&tally(&routes));
        }
        match asker.ask().await {
            Ok(answer) => {
                for route in routes_of(&answer.headers).iter().flat_map(|r| r.split_whitespace()) {
                    *routes.entry(route.to_owned()).or_insert(0u64) += 1;
                }
            }
            Err(failure) => {
                // What succeeded before it is not lost.
                emit_line(&tally(&routes))?;
                return Err(failure);
            }
        }
        sent += 1;
    }
}

/// `Success: map[:iris_1::57]`
fn tally(routes: &BTreeMap<String, u64>) -> String {
    let counts: Vec<String> = routes.iter().map(|(route, count)| format!("{route}:{count}")).collect();
    format!("Success: map[{}]", counts.join(" "))
}

/// The values of the header that names the routes taken.
fn routes_of(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(session::ROUTE).iter();
    values.map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned()).collect()
}

fn payload(args: &Infer) -> Result<Bytes, Failure> {
    let file = match (&args.payload, &args.file) {
        (Some(text), _) => return Ok(text.clone().into()),
        (None, Some(file)) => file,
        (None, None) => {
            return Err(failure::usage("there is no request: write it behind the name, or give -f FILE"));
        }
    };
    let mut bytes = Vec::new();
    let most = LARGEST as u64 + 1;
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(file).and_then(|f| f.take(most).read_to_end(&mut bytes))
    };
    read.map_err(|e| failure::usage(format!("{}: {e}", file.display())))?;
    if bytes.len() > LARGEST {
        return Err(failure::usage(format!("{} has more than {LARGEST} bytes", file.display())));
    }
    Ok(bytes.into())
}

impl<'a> Asker<'a> {
    async fn new(speaker: &'a Speaker, args: &'a Infer, of: Of, payload: Bytes) -> Result<Self, Failure> {
        let address = speaker.inference(args.data.inference_host.as_deref())?;
        let mut headers: HeaderMap = HeaderMap::new();
        if args.inference_mode == Mode::Rest {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        headers.insert("seldon-model", value(&of.target(&args.name))?);
        headers.extend(args.header.iter().cloned());
        if args.sticky_session {
            for route in session::load() {
                headers.append(session::ROUTE, value(&route)?);
            }
        }
        let host = args.data.authority.clone().unwrap_or_else(|| address.to_string());
        let wire = match args.inference_mode {
            Mode::Rest => Wire::Rest {
                connection: connection(speaker, &address, &args.data),
                path: of.path(&args.name, "/infer"),
                body: payload,
            },
            Mode::Grpc => {
                let mut request: pb::ModelInferRequest =
                    protojson::read(INFERENCE, "ModelInferRequest", &payload)?;
                request.model_name.clone_from(&args.name);
                Wire::Grpc {
                    client: Box::new(client(speaker, &address, &args.data).await?),
                    request: Box::new(request),
                }
            }
        };
        Ok(Self { args, speaker, host, headers, wire })
    }

    fn show_request(&self) -> Result<(), Failure> {
        match &self.wire {
            Wire::Rest { body, .. } => emit_text(body),
            Wire::Grpc { request, .. } => {
                emit_line(&protojson::write(INFERENCE, "ModelInferRequest", &**request)?)
            }
        }
    }

    async fn ask(&mut self) -> Result<Answer, Failure> {
        if self.args.show_headers {
            emit(self.head())?;
        }
        let deadline = self.speaker.call;
        let as_seldon = self.speaker.as_seldon;
        let answer = match &mut self.wire {
            Wire::Rest { connection, path, body } => {
                let answer = connection.send(Method::POST, path, &self.headers, body.clone()).await;
                let answer = answer.map_err(|p| unreachable(&self.host, &p))?;
                let (parts, body) = answer.into_parts();
                let headers = parts.headers;
                let said = checked(parts.status, &body);
                (headers, said.map(|()| indent(&body)))
            }
            Wire::Grpc { client, request } => {
                let mut request = tonic::Request::new((**request).clone());
                *request.metadata_mut() = MetadataMap::from_headers(self.headers.clone());
                let late = || tonic::Status::deadline_exceeded(format!("no answer within {deadline:?}"));
                let answer = tokio::time::timeout(deadline, client.model_infer(request))
                    .await
                    .unwrap_or_else(|_| Err(late()));
                match answer {
                    Ok(answer) => {
                        let headers = answer.metadata().clone().into_headers();
                        (headers, Ok(typed(answer.into_inner())?.into_bytes()))
                    }
                    Err(status) => {
                        let headers = status.metadata().clone().into_headers();
                        (headers, Err(failure::status(&status, as_seldon)))
                    }
                }
            }
        };
        let (headers, body) = answer;
        if self.args.show_headers {
            emit(self.headers_text('<', &headers) + "\n")?;
        }
        if let Err(error) = session::save(&routes_of(&headers))
            && self.args.sticky_session
        {
            say(&format!("the session could not be kept: {error}"));
        }
        Ok(Answer { headers, body: body? })
    }

    /// The request's first line and headers.
    fn head(&self) -> String {
        let first = match &self.wire {
            Wire::Rest { path, .. } => format!("> POST {path} HTTP/1.1\n"),
            Wire::Grpc { .. } => "> /inference.GRPCInferenceService/ModelInfer HTTP/2\n".to_owned(),
        };
        format!("{first}> Host: {}\n{}\n", self.host, self.headers_text('>', &self.headers))
    }

    /// A line for each header, with all its values. HTTP/1 names are written with capitals.
    fn headers_text(&self, mark: char, headers: &HeaderMap) -> String {
        let mut text = String::new();
        for name in headers.keys() {
            let values: Vec<_> =
                headers.get_all(name).iter().map(|v| String::from_utf8_lossy(v.as_bytes())).collect();
            let name = match self.args.inference_mode {
                Mode::Rest => capitals(name.as_str()),
                Mode::Grpc => name.as_str().to_owned(),
            };
            text += &harmless(&format!("{mark} {name}:[{}]\n", values.join(" ")));
        }
        text
    }
}

/// `x-seldon-route` as `X-Seldon-Route`.
fn capitals(name: &str) -> String {
    let part = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}

/// An answer with its tensors readable, whichever way the server sent them.
fn typed(message: pb::ModelInferResponse) -> Result<String, Failure> {
    let limits = Limits { body: usize::MAX, ..Limits::default() };
    // What cannot be read as tensors is shown as it came.
    let shown = if message.raw_output_contents.is_empty() {
        message
    } else {
        match grpc::decode_response(message.clone(), &limits) {
            Ok(response) => grpc::encode_response(response, &InferRequest::default()),
            Err(_) => message,
        }
    };
    protojson::write(INFERENCE, "ModelInferResponse", &shown)
}

/// `model metadata`.
pub(super) async fn metadata(speaker: &Speaker, args: &Metadata) -> Result<(), Failure> {
    gantry_api::check_name(&args.name).map_err(|e| failure::usage(format!("name {e}")))?;
    let address = speaker.inference(args.data.inference_host.as_deref())?;
    let mut headers = HeaderMap::new();
    headers.insert("seldon-model", value(&args.name)?);
    let mut connection = connection(speaker, &address, &args.data);
    let path = Of::Model.path(&args.name, "");
    let answer = connection.send(Method::GET, &path, &headers, Bytes::new()).await;
    let answer = answer.map_err(|p| unreachable(&address.to_string(), &p))?;
    checked(answer.status(), answer.body())?;
    emit_text(&indent(answer.body()))
}

fn connection(speaker: &Speaker, address: &Address, data: &Data) -> Connection {
    let connection = Connection::new(address.clone(), speaker.call);
    match &data.authority {
        Some(host) => connection.with_host(host.clone()),
        None => connection,
    }
}

async fn client(
    speaker: &Speaker,
    address: &Address,
    data: &Data,
) -> Result<GrpcInferenceServiceClient<Channel>, Failure> {
    let wrong = |e: &dyn std::fmt::Display| failure::usage(format!("{address}: {e}"));
    let mut endpoint =
        Endpoint::from_shared(address.url()).map_err(|e| wrong(&e))?.connect_timeout(speaker.call);
    if let Some(host) = &data.authority {
        let origin = format!("http://{host}").parse().map_err(|e| wrong(&e))?;
        endpoint = endpoint.origin(origin);
    }
    let channel = endpoint.connect().await.map_err(|_| {
        let words = format!("rpc error: code = Unavailable desc = {}", nobody(&address.to_string()));
        Failure::new(Exit::Unavailable, format!("Error: {words}"))
    })?;
    Ok(GrpcInferenceServiceClient::new(channel)
        .max_decoding_message_size(LARGEST)
        .max_encoding_message_size(LARGEST))
}

fn nobody(host: &str) -> String {
    format!("no gateway answers at {host}: start one with `gantry up`, or name another with --inference-host")
}

fn unreachable(host: &str, problem: &HttpProblem) -> Failure {
    match problem {
        HttpProblem::Refused => Failure::new(Exit::Unavailable, format!("Error: {}", nobody(host))),
        HttpProblem::Late(time) => {
            Failure::new(Exit::Timeout, format!("Error: {host} did not answer within {time:?}"))
        }
        HttpProblem::Broken(why) => {
            Failure::new(Exit::Unavailable, format!("Error: {host} broke off: {why}"))
        }
    }
}

/// `Error: V2 server error: 400 …`
fn checked(status: StatusCode, body: &[u8]) -> Result<(), Failure> {
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
    Err(Failure::new(exit, format!("Error: V2 server error: {} {}", status.as_u16(), text.trim_end())))
}

fn value(text: &str) -> Result<HeaderValue, Failure> {
    HeaderValue::from_str(text)
        .map_err(|_| failure::usage(format!("\"{}\" cannot stand in a header", text.escape_debug())))
}

fn emit_text(text: &[u8]) -> Result<(), Failure> {
    emit(text)?;
    if text.ends_with(b"\n") { Ok(()) } else { emit("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_counted_as_go_prints_a_map() {
        let routes = [(":iris_1:".to_owned(), 43), (":iris2_1:".to_owned(), 57)].into();
        assert_eq!(tally(&routes), "Success: map[:iris2_1::57 :iris_1::43]");
        assert_eq!(tally(&BTreeMap::new()), "Success: map[]");
    }

    #[test]
    fn names_of_headers() {
        for (name, expected) in [("x-seldon-route", "X-Seldon-Route"), ("date", "Date"), ("ce-id", "Ce-Id")] {
            assert_eq!(capitals(name), expected);
        }
    }

    #[test]
    fn raw_tensors_are_made_readable() {
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
            typed(message).unwrap(),
            r#"{"modelName":"iris_1","outputs":[{"name":"y","datatype":"FP32","shape":["1","2"],"contents":{"fp32Contents":[1.0,2.5]}}]}"#
        );
    }
}
