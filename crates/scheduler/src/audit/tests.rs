//! Rotation, dropped entries, content of a line.

use super::*;
use crate::access::{Caller, Identity};
use std::{fs, path::Path, sync::mpsc};
use tonic::Code;

fn settings(directory: &Path, max_size: u64, max_files: u32) -> AuditSettings {
    AuditSettings { file: directory.join("audit.jsonl"), max_size, max_files }
}

fn source() -> Source {
    Source {
        identity: "spiffe://a/gantry/role/client".into(),
        role: "client",
        address: Some("192.0.2.1:5000".parse().unwrap()),
        rpc: "seldon.mlops.scheduler.Scheduler/LoadModel".into(),
    }
}

fn caller() -> Caller {
    let caller = Caller::new(Identity { name: "x".into(), grant: crate::access::Grant::All });
    caller.change().set_owner("cli");
    let meta = gantry_proto::scheduler::KubernetesMeta { namespace: "ml".into(), generation: 3 };
    caller.change().add(Object::new("model", "iris").in_kubernetes(Some(&meta)));
    caller
}

fn lines(file: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn line_has_caller_change_address_and_result() {
    let dir = tempfile::tempdir().unwrap();
    let (log, writer) = AuditLog::open(settings(dir.path(), 1 << 20, 2)).unwrap();
    log.pending(source(), caller(), 0).finish(Code::Ok, "");
    let refused = "iris: https://user:secret@host/m?sig=secret is unreachable\u{1b}[2J\n";
    log.pending(source(), caller(), 7).finish(Code::FailedPrecondition, refused);
    // The caller left.
    drop(log.pending(source(), caller(), 0));
    writer.finish(Duration::from_secs(20)).await;
    let file = dir.path().join("audit.jsonl");
    assert!(!fs::read_to_string(&file).unwrap().contains("secret"));
    let lines = lines(&file);
    assert_eq!(lines.len(), 3);
    let mut first = lines[0].clone();
    let time = first.as_object_mut().unwrap().remove("time").unwrap();
    time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(
        first,
        serde_json::json!({
            "identity": "spiffe://a/gantry/role/client", "role": "client", "owner": "cli",
            "address": "192.0.2.1:5000", "rpc": "seldon.mlops.scheduler.Scheduler/LoadModel",
            "kind": "model", "name": "iris", "namespace": "ml", "generation": 3, "code": "OK",
        })
    );
    assert_eq!((&lines[1]["code"], &lines[1]["suppressed"]), (&"FAILED_PRECONDITION".into(), &7.into()));
    assert!(lines[1]["reason"].as_str().unwrap().contains("https://redacted@host/m?redacted"));
    assert_eq!(lines[2]["code"], "CANCELLED");
}

#[tokio::test]
async fn call_with_many_objects_has_a_bounded_number_of_bounded_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (log, writer) = AuditLog::open(settings(dir.path(), 1 << 30, 2)).unwrap();
    let caller = caller();
    for _ in 0..10_000 {
        caller.change().add(Object::new("server", &"é".repeat(100_000)));
    }
    let source = Source { identity: "i".repeat(100_000), rpc: "r".repeat(100_000), ..source() };
    log.pending(source, caller, 0).finish(Code::Internal, &"m".repeat(100_000));
    writer.finish(Duration::from_secs(20)).await;
    let lines = lines(&dir.path().join("audit.jsonl"));
    assert_eq!((lines.len(), &lines[0]["more"], &lines[99]["more"]), (100, &().into(), &9901.into()));
    assert!(lines.iter().all(|line| line.to_string().len() < 3072));
}

#[tokio::test]
async fn files_are_rotated_and_the_oldest_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let (log, writer) = AuditLog::open(settings(dir.path(), 1024, 3)).unwrap();
    for i in 0..40 {
        log.pending(Source { rpc: i.to_string(), ..source() }, caller(), 0).finish(Code::Ok, "");
    }
    writer.finish(Duration::from_secs(20)).await;
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
    let mut rpcs = Vec::new();
    for name in names.iter().rev() {
        let file = dir.path().join(name);
        assert!(fs::metadata(&file).unwrap().len() <= 1024);
        rpcs.extend(lines(&file).iter().map(|line| line["rpc"].as_str().unwrap().parse::<u32>().unwrap()));
    }
    assert_eq!(rpcs.last(), Some(&39));
    assert!(rpcs.windows(2).all(|pair| pair[0] + 1 == pair[1]), "without a gap: {rpcs:?}");
}

#[tokio::test]
async fn one_file_is_replaced_when_it_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let (log, writer) = AuditLog::open(settings(dir.path(), 1024, 1)).unwrap();
    for _ in 0..40 {
        log.pending(source(), caller(), 0).finish(Code::Ok, "");
    }
    writer.finish(Duration::from_secs(20)).await;
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(fs::metadata(dir.path().join("audit.jsonl")).unwrap().len() <= 1024);
}

#[tokio::test]
async fn unfinished_line_of_a_killed_process_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    fs::write(&file, "{\"time\":").unwrap();
    let (log, writer) = AuditLog::open(settings(dir.path(), 1 << 20, 2)).unwrap();
    log.pending(source(), caller(), 0).finish(Code::Ok, "");
    writer.finish(Duration::from_secs(20)).await;
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(serde_json::from_str::<serde_json::Value>(text.lines().nth(1).unwrap()).is_ok());
}

#[test]
fn file_in_a_missing_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(AuditLog::open(settings(&dir.path().join("missing"), 1024, 2)).is_err());
}

/// A disk that does not respond: calls do not wait, and the next line has the number of entries that are missing.
#[test]
fn slow_disk_drops_entries_and_the_next_line_counts_them() {
    let (queue, entries) = sync_channel(QUEUE);
    let counts = Arc::<Counts>::default();
    let log = AuditLog { queue: queue.clone(), counts: counts.clone() };
    for _ in 0..QUEUE + 10 {
        log.pending(source(), caller(), 0).finish(Code::Ok, "");
    }
    let missing = counts.dropped.get();
    assert!(missing >= 10, "{missing}");
    let (written, lines) = mpsc::channel();
    let shared = counts.clone();
    let writer = thread::spawn(move || {
        run(&entries, &shared, |line| {
            written.send(line.to_vec()).unwrap();
            Ok(())
        });
    });
    let first: serde_json::Value = serde_json::from_slice(&lines.recv().unwrap()).unwrap();
    assert_eq!(first["dropped"], missing);
    queue.send(Message::Stop).unwrap();
    writer.join().unwrap();
    assert_eq!(counts.written.get() + missing, QUEUE as u64 + 10);
    assert_eq!(counts.queued.load(Ordering::Relaxed), 0);
}

#[test]
fn full_disk_drops_entries_and_the_next_line_counts_them() {
    let (queue, entries) = sync_channel(QUEUE);
    let counts = Arc::<Counts>::default();
    let log = AuditLog { queue: queue.clone(), counts: counts.clone() };
    for _ in 0..4 {
        log.pending(source(), caller(), 0).finish(Code::Ok, "");
    }
    queue.send(Message::Stop).unwrap();
    let mut lines = Vec::new();
    let mut calls = 0;
    run(&entries, &counts, |line| {
        calls += 1;
        if calls <= 3 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        lines.push(serde_json::from_slice::<serde_json::Value>(line).unwrap());
        Ok(())
    });
    assert_eq!((lines.len(), &lines[0]["dropped"]), (1, &3.into()));
    assert_eq!((counts.written.get(), counts.dropped.get()), (1, 3));
}
