//! A transformer for tests: divides the numbers of a request by ten, and marks the response.
//!
//! It understands the flags that an `InferenceService` gives to a transformer, and V1 requests.

use serde_json::{Value, json};
use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

/// The value of a flag, written as two arguments.
fn flag(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

/// The first line and the body of a message with a content-length.
fn read(stream: &TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((first, body))
}

/// Tenths of every number.
fn scaled(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(scaled).collect(),
        Value::Number(number) => json!(number.as_f64().unwrap_or_default() / 10.0),
        other => other.clone(),
    }
}

fn predict(path: &str, body: &[u8], predictor: &str) -> io::Result<String> {
    let request: Value = serde_json::from_slice(body)?;
    let body = json!({ "instances": scaled(request.get("instances").unwrap_or(&Value::Null)) }).to_string();
    let address = if predictor.contains(':') { predictor.to_owned() } else { format!("{predictor}:80") };
    let mut upstream = TcpStream::connect(address)?;
    write!(
        upstream,
        "POST {path} HTTP/1.1\r\nhost: {predictor}\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let (_, answer) = read(&upstream)?;
    let mut answer: Value = serde_json::from_slice(&answer)?;
    if let Some(answer) = answer.as_object_mut() {
        answer.insert("transformed".into(), json!(true));
    }
    Ok(answer.to_string())
}

fn serve(mut stream: TcpStream, predictor: &str) -> io::Result<()> {
    let (first, body) = read(&stream)?;
    let path = first.split(' ').nth(1).unwrap_or("/");
    let (status, body) = match predict(path, &body, predictor) {
        Ok(body) => ("200 OK", body),
        Err(error) => ("502 Bad Gateway", json!({ "error": error.to_string() }).to_string()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn main() -> io::Result<()> {
    let port = flag("--http_port").unwrap_or_else(|| "8080".into());
    let predictor = flag("--predictor_host").unwrap_or_default();
    let listener = TcpListener::bind(format!("0.0.0.0:{port}"))?;
    for stream in listener.incoming() {
        let predictor = predictor.clone();
        std::thread::spawn(move || serve(stream?, &predictor));
    }
    Ok(())
}
