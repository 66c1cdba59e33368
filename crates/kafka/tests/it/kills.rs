//! `kill -9` of workers and of the broker at every record boundary of a short flow, and of a worker between the writes of one
//! record: every record is answered, none is lost, the order of each key is kept. Duplicates are allowed for records that were
//! not committed, and counted.

use crate::support::{Broker, Flow, Input, Output, Worker, is_long};
use gantry_kafka::topics::Side;
use std::collections::BTreeMap;

/// Of each key.
const RECORDS: usize = 6;
const KEYS: [&str; 3] = ["0.p.a", "customer-7", "2.p.c"];
/// Above all other numbers.
const LAST: i64 = 1_000_000;

const fn answer(x: i64) -> i64 {
    (x + 1) * 2
}

/// Keys take turns; each record takes a while, so that records are in flight at the kill.
async fn feed(flow: &Flow, keys: &[&str]) {
    for x in 0..RECORDS {
        for key in keys {
            flow.send(Input::number(key, i64::try_from(x).unwrap()).header("x-sleep-ms", "30")).await;
        }
    }
}

/// Waits until everything is answered, then checks the answers of each key. Returns the number of duplicates.
async fn check(flow: &mut Flow, keys: &[&str], what: &str) -> usize {
    let topic = flow.pipeline(Side::Outputs);
    let answered = |outputs: &[Output], key: &str| {
        let mut numbers: Vec<i64> =
            outputs.iter().filter(|o| o.key == key).map(|o| o.number(Side::Outputs)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.len()
    };
    flow.read_until(&topic, &format!("all answers after {what}"), |outputs| {
        keys.iter().all(|key| answered(outputs, key) >= RECORDS)
    })
    .await;
    // Records of a key end in order: after these there are no more duplicates.
    for key in keys {
        flow.send(Input::number(key, LAST)).await;
    }
    let outputs = flow
        .read_until(&topic, &format!("the last answers after {what}"), |outputs| {
            let is_last = |output: &&Output| output.number(Side::Outputs) == answer(LAST);
            keys.iter().all(|key| outputs.iter().filter(is_last).any(|output| output.key == *key))
        })
        .await;
    let mut by_key: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for output in &outputs {
        let numbers = by_key.entry(&output.key).or_default();
        if !numbers.contains(&output.number(Side::Outputs)) {
            numbers.push(output.number(Side::Outputs));
        }
    }
    let records = i64::try_from(RECORDS).unwrap();
    let expected: Vec<i64> = (0..records).chain([LAST]).map(answer).collect();
    for key in keys {
        assert_eq!(by_key[key], expected, "answers of {key} after {what}");
    }
    outputs.len() - keys.len() * (RECORDS + 1)
}

const ASSIGNED: &str = "partitions assigned";
const NOT_ACKNOWLEDGED: &str = "the broker does not acknowledge: retrying";

fn occurrences(text: &str, workers: &[&Worker]) -> usize {
    workers.iter().map(|worker| worker.log().matches(text).count()).sum()
}

/// At-least-once: a record is answered once for each assignment of its partition after the first ones, and once more for each
/// write that was not acknowledged. How often consumers join again depends on the load of the machine, since their session
/// expires after a second.
fn check_duplicates(count: usize, keys: &[&str], first_assignments: usize, workers: &[&Worker]) {
    let assignments = occurrences(ASSIGNED, workers).saturating_sub(first_assignments);
    let allowed = keys.len() * (RECORDS + 1) * assignments + occurrences(NOT_ACKNOWLEDGED, workers);
    let logs: Vec<String> = workers.iter().map(|worker| worker.log()).collect();
    assert!(count <= allowed, "{count} duplicates, {allowed} allowed:\n{}", logs.join("\n"));
}

fn boundaries(all: usize) -> Vec<usize> {
    if is_long() { (0..=all).collect() } else { vec![0, all / 2, all] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_killed_at_every_record() {
    let broker = Broker::shared();
    let mut duplicates = Vec::new();
    for boundary in boundaries(RECORDS) {
        let name = format!("killed-{boundary}");
        let keys = &KEYS[..1];
        let mut flow = Flow::new(broker, &name, 1).await;
        feed(&flow, keys).await;
        let mut first = Worker::start(broker, 1, "", &[&name]);
        if boundary == 0 {
            first.wait_for_log("partitions assigned");
        }
        flow.outputs(boundary).await;
        first.kill();
        let second = Worker::start(broker, 1, "", &[&name]);
        let count = check(&mut flow, keys, &format!("a kill at record {boundary}")).await;
        check_duplicates(count, keys, 1, &[&first, &second]);
        duplicates.push(count);
    }
    println!("worker killed: duplicates by boundary {duplicates:?} of {RECORDS} records");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_workers_killed_at_every_record() {
    let broker = Broker::shared();
    let mut duplicates = Vec::new();
    for boundary in boundaries(KEYS.len() * RECORDS) {
        let name = format!("two-killed-{boundary}");
        let mut flow = Flow::new(broker, &name, 3).await;
        let mut workers: Vec<Worker> = (0..3).map(|_| Worker::start(broker, 3, "", &[&name])).collect();
        for worker in &workers {
            worker.wait_for_log("partitions assigned");
        }
        feed(&flow, &KEYS).await;
        flow.outputs(boundary).await;
        workers.iter_mut().take(2).for_each(Worker::kill);
        let workers: Vec<&Worker> = workers.iter().collect();
        let joined = occurrences(ASSIGNED, &workers);
        let count = check(&mut flow, &KEYS, &format!("two kills at record {boundary}")).await;
        check_duplicates(count, &KEYS, joined, &workers);
        duplicates.push(count);
    }
    println!(
        "two of three workers killed: duplicates by boundary {duplicates:?} of {} records",
        KEYS.len() * RECORDS
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_killed_at_every_record() {
    let mut broker = Broker::start();
    let mut duplicates = Vec::new();
    for boundary in boundaries(RECORDS) {
        let name = format!("broker-killed-{boundary}");
        let mut flow = Flow::new(&broker, &name, 3).await;
        feed(&flow, &KEYS).await;
        let worker = Worker::start(&broker, 3, "", &[&name]);
        if boundary == 0 {
            worker.wait_for_log("partitions assigned");
        }
        flow.outputs(KEYS.len() * boundary).await;
        broker.kill();
        broker.restart();
        let count = check(&mut flow, &KEYS, &format!("a kill of the broker at record {boundary}")).await;
        check_duplicates(count, &KEYS, 1, &[&worker]);
        duplicates.push(count);
    }
    println!("broker killed: duplicates by boundary {duplicates:?} of {} records", KEYS.len() * RECORDS);
}

/// The results of a record in the order in which they are written.
fn results(flow: &Flow) -> [String; 5] {
    [
        flow.model("add", Side::Inputs),
        flow.model("add", Side::Outputs),
        flow.model("double", Side::Inputs),
        flow.model("double", Side::Outputs),
        flow.pipeline(Side::Outputs),
    ]
}

/// After so many results of one record are acknowledged, and before the next one is sent; after the last one, before its offset
/// is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_killed_between_the_writes_of_a_record() {
    const INSIDE: [&str; 2] = ["customer-1", "customer-2"];
    const KILLED: &str = "customer-1-3";
    let broker = Broker::shared();
    let mut duplicates = Vec::new();
    let points = if is_long() { (0..=5).collect() } else { vec![0, 2, 5] };
    for writes in points {
        let name = format!("inside-{writes}");
        let mut flow = Flow::new(broker, &name, 1).await;
        let number = |key: &str, x: usize| {
            Input::number(key, i64::try_from(x).unwrap()).header("x-request-id", &format!("{key}-{x}"))
        };
        for x in 0..RECORDS {
            for key in INSIDE {
                flow.send(number(key, x)).await;
            }
        }
        let mut first = Worker::start_aborting(broker, 1, &[&name], (&name, KILLED, writes));
        first.wait_for_abort();
        let _second = Worker::start(broker, 1, "", &[&name]);
        // Records of a key end in order: after these there are no more duplicates.
        for key in INSIDE {
            flow.send(number(key, RECORDS)).await;
        }
        for (index, topic) in results(&flow).into_iter().enumerate() {
            let ids = |key: &str| (0..=RECORDS).map(|x| format!("{key}-{x}")).collect::<Vec<_>>();
            let what = format!("all results after {writes} writes");
            let records = flow
                .read_until(&topic, &what, |records| {
                    INSIDE
                        .iter()
                        .filter_map(|key| ids(key).pop())
                        .all(|last| records.iter().any(|record| record.header("x-request-id") == last))
                })
                .await;
            for key in INSIDE {
                let mut first_ones: Vec<&str> = Vec::new();
                for record in records.iter().filter(|record| record.key == key) {
                    let id = record.header("x-request-id");
                    if !first_ones.contains(&id) {
                        first_ones.push(id);
                    }
                }
                assert_eq!(first_ones, ids(key), "{topic} after {writes} writes");
            }
            // The results that were acknowledged are there twice, all others once: the record was not committed.
            let killed = records.iter().filter(|record| record.header("x-request-id") == KILLED);
            assert_eq!(killed.count(), 1 + usize::from(index < writes), "{topic} after {writes} writes");
            if topic == flow.pipeline(Side::Outputs) {
                duplicates.push(records.len() - INSIDE.len() * (RECORDS + 1));
            }
        }
    }
    println!(
        "worker killed inside a record: duplicate answers by writes {duplicates:?} of {} records",
        INSIDE.len() * (RECORDS + 1)
    );
    assert!(duplicates.iter().all(|count| *count <= INSIDE.len() * RECORDS), "{duplicates:?}");
}
