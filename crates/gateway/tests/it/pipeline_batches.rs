//! Batches of steps.

use crate::support::{Answer, Pipelined, outputs, pipeline, rows, step, until};
use gantry_proto::scheduler::{Batch, Pipeline, PipelineStep};
use std::sync::atomic::Ordering;
use tokio::task::JoinHandle;

fn batched(size: u32, window_ms: u32) -> Pipeline {
    let batch = Some(Batch { size: Some(size), window_ms: Some(window_ms), rolling: false });
    pipeline("p", vec![PipelineStep { batch, ..step("a", &[]) }], &["a"])
}

fn send(pipelined: &Pipelined, values: &[&str]) -> JoinHandle<Answer> {
    let (client, body) = (pipelined.running.client(), rows(values));
    tokio::spawn(async move { client.send("POST", "/v2/pipelines/p/infer", &[], body).await })
}

#[tokio::test(flavor = "multi_thread")]
async fn full_batch_is_one_call_and_each_request_gets_its_rows() {
    let pipelined = Pipelined::local().await;
    pipelined.models.by_row("a");
    pipelined.pipeline(batched(4, 60_000));
    let requests = [["1", "2"].as_slice(), &["3"], &["4"]].map(|values| send(&pipelined, values));
    let mut answers = Vec::new();
    for request in requests {
        answers.push(outputs(&request.await.unwrap()));
    }
    assert_eq!(answers, ["y=a(1)+a(2)", "y=a(3)", "y=a(4)"]);
    assert_eq!(pipelined.models.calls("a_1"), 1);
    let large = send(&pipelined, &["1", "2", "3", "4", "5"]).await.unwrap();
    assert_eq!(outputs(&large), "y=a(1)+a(2)+a(3)+a(4)+a(5)", "as many rows as a batch do not wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_that_is_not_full_starts_at_the_end_of_its_window() {
    let pipelined = Pipelined::local().await;
    pipelined.models.by_row("a");
    pipelined.pipeline(batched(100, 20));
    assert_eq!(outputs(&send(&pipelined, &["1"]).await.unwrap()), "y=a(1)");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_row_fails_its_request_only() {
    let pipelined = Pipelined::local().await;
    pipelined.models.by_row("a");
    pipelined.pipeline(batched(3, 60_000));
    let requests = ["1", "bad", "3"].map(|value| send(&pipelined, &[value]));
    let mut answers = Vec::new();
    for request in requests {
        answers.push(outputs(&request.await.unwrap()));
    }
    assert_eq!(answers, ["y=a(1)", "{\"error\":\"a : a row is bad\"}", "y=a(3)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_goes_on_while_one_client_waits() {
    let pipelined = Pipelined::local().await;
    pipelined.models.waits("a");
    pipelined.pipeline(batched(2, 60_000));
    let gone = send(&pipelined, &["1"]);
    until("it waits", || async { pipelined.running.metric("gantry_gateway_in_flight ") == 1 }).await;
    let stays = send(&pipelined, &["2"]);
    until("the batch runs", || async { pipelined.models.calls("a_1") == 1 }).await;
    gone.abort();
    until("it is gone", || async { pipelined.running.metric("gantry_gateway_in_flight ") == 1 }).await;
    pipelined.models.by_row("a");
    pipelined.models.release();
    assert_eq!(outputs(&stays.await.unwrap()), "y=a(2)");

    pipelined.models.waits("a");
    let clients = [send(&pipelined, &["3"]), send(&pipelined, &["4"])];
    until("the batch runs", || async { pipelined.models.calls("a_1") == 2 }).await;
    let cancelled = || pipelined.models.cancelled.load(Ordering::SeqCst);
    assert_eq!(cancelled(), 0);
    clients.iter().for_each(JoinHandle::abort);
    until("the batch is cancelled with its last client", || async { cancelled() == 1 }).await;
}
