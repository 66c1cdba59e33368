//! Lists: searched, sorted and cut here.

use super::reply;
use crate::{
    Dashboard,
    figures::{Figures, Sample},
    inventory::{Counts, Inventory, Of, Rows},
    rows::{ExperimentRow, ModelRow, PipelineRow, Row, ServerRow, State as ObjectState},
};
use axum::{
    extract::{Query, State},
    response::Response,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{cmp::Ordering, sync::Arc};

/// Rows in one response.
const MAX_LIMIT: usize = 500;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListQuery {
    /// Words that all must match.
    q: String,
    state: Option<ObjectState>,
    /// Models of this server.
    server: Option<String>,
    /// Events of this kind, and of this object.
    kind: Option<String>,
    name: Option<String>,
    sort: Sort,
    /// Descending.
    desc: bool,
    offset: usize,
    limit: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Sort {
    #[default]
    Name,
    State,
    Since,
    Rate,
    Requests,
    Errors,
    P50,
    P99,
}

pub(crate) async fn models(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<ListQuery>,
) -> Response {
    let sample = prepare(&dashboard).await;
    let inventory = dashboard.follower.inventory();
    let is_on = |row: &ModelRow| query.server.as_ref().is_none_or(|server| *server == row.server);
    let figures = |row: &ModelRow| sample.models.get(&row.name);
    reply(&page(&inventory, &query, is_on, figures))
}

pub(crate) async fn servers(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<ListQuery>,
) -> Response {
    let sample = prepare(&dashboard).await;
    let processes = dashboard.source.processes();
    let inventory = dashboard.follower.inventory();
    let mut page = page(&inventory, &query, |_: &ServerRow| true, |_| None);
    for row in page.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        add_replicas(row, &sample, &processes);
    }
    reply(&page)
}

pub(crate) async fn pipelines(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<ListQuery>,
) -> Response {
    let sample = prepare(&dashboard).await;
    let inventory = dashboard.follower.inventory();
    reply(&page(&inventory, &query, |_: &PipelineRow| true, |row| sample.pipelines.get(&row.name)))
}

pub(crate) async fn experiments(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<ListQuery>,
) -> Response {
    let sample = prepare(&dashboard).await;
    let inventory = dashboard.follower.inventory();
    let mut page = page(&inventory, &query, |_: &ExperimentRow| true, |_| None);
    for row in page.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        add_candidates(row, &sample);
    }
    reply(&page)
}

pub(crate) async fn events(
    State(dashboard): State<Arc<Dashboard>>,
    Query(query): Query<ListQuery>,
) -> Response {
    dashboard.follower.ready().await;
    let inventory = dashboard.follower.inventory();
    let words = words(&query.q);
    let found = inventory.events.newest_first().filter(|event| {
        let is_of =
            |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        is_of(&query.kind, event.kind)
            && is_of(&query.name, &event.name)
            && words.iter().all(|word| event.name.contains(word) || event.message.contains(word))
    });
    let limit = query.limit.unwrap_or(200).min(MAX_LIMIT);
    let rows: Vec<_> = found.skip(query.offset).take(limit).collect();
    reply(&json!({ "link": inventory.link, "notices": inventory.notices, "rows": rows }))
}

/// The current figures, with rows to go with them.
pub(crate) async fn prepare(dashboard: &Arc<Dashboard>) -> Arc<Sample> {
    let sampling = Arc::clone(dashboard);
    // Reading the metrics of ten thousand models takes some milliseconds of a processor.
    let sample = tokio::task::spawn_blocking(move || sampling.sampler.sample(&*sampling.source));
    dashboard.follower.ready().await;
    sample.await.unwrap_or_default()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_lowercase).collect()
}

fn page<'a, R>(
    inventory: &'a Inventory,
    query: &ListQuery,
    is_listed: impl Fn(&R) -> bool,
    figures: impl Fn(&R) -> Option<&'a Figures>,
) -> Value
where
    R: Row + Serialize,
    Inventory: Of<R>,
{
    let all: &Rows<R> = inventory.rows();
    let words = words(&query.q);
    let matches = |row: &R| words.iter().all(|word| row.name().contains(word) || row.matches(word));
    let found: Vec<&R> = all.values().filter(|row| is_listed(row) && matches(row)).collect();
    let counts = Counts::of(found.iter().copied());
    let of_state = |row: &&R| query.state.is_none_or(|state| state == row.state());
    let mut found: Vec<(&R, Option<&Figures>)> =
        found.into_iter().filter(of_state).map(|row| (row, figures(row))).collect();
    if query.sort != Sort::Name {
        found.sort_by(|a, b| compare(query.sort, *a, *b, query.desc));
    } else if query.desc {
        found.reverse();
    }
    let matched = found.len();
    let limit = query.limit.unwrap_or(100).min(MAX_LIMIT);
    let rows: Vec<Value> = found
        .into_iter()
        .skip(query.offset)
        .take(limit)
        .map(|(row, figures)| with_figures(row, figures))
        .collect();
    json!({
        "link": inventory.link,
        "notices": inventory.notices,
        "total": all.len(),
        "counts": counts,
        "matched": matched,
        "offset": query.offset,
        "rows": rows,
    })
}

/// Rows without a figure are last in both directions; equal ones are in the order of their names.
fn compare<R: Row>(
    sort: Sort,
    (a, figures_a): (&R, Option<&Figures>),
    (b, figures_b): (&R, Option<&Figures>),
    desc: bool,
) -> Ordering {
    let direction = |order: Ordering| if desc { order.reverse() } else { order };
    let figure = |figures: Option<&Figures>| {
        let figures = figures?;
        match sort {
            Sort::Rate => Some(figures.rate),
            Sort::Requests => Some(figures.requests as f64),
            Sort::Errors => Some(figures.errors as f64),
            Sort::P50 => figures.p50_ms.or(figures.mean_ms),
            Sort::P99 => figures.p99_ms,
            Sort::Name | Sort::State | Sort::Since => None,
        }
    };
    let order = match sort {
        Sort::Name => Ordering::Equal,
        Sort::State => direction(a.state().cmp(&b.state())),
        Sort::Since => match (a.since_ms(), b.since_ms()) {
            (Some(a), Some(b)) => direction(a.cmp(&b)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        },
        _ => match (figure(figures_a), figure(figures_b)) {
            (Some(a), Some(b)) => direction(a.total_cmp(&b)),
            (a, b) => b.is_some().cmp(&a.is_some()),
        },
    };
    order.then_with(|| a.name().cmp(b.name()))
}

pub(crate) fn with_figures(row: &impl Serialize, figures: Option<&Figures>) -> Value {
    let mut value = serde_json::to_value(row).unwrap_or_default();
    if let (Some(figures), Some(fields)) = (figures, value.as_object_mut()) {
        fields.insert("figures".into(), serde_json::to_value(figures).unwrap_or_default());
    }
    value
}

/// Adds load and process to each replica of a server.
pub(crate) fn add_replicas(server: &mut Value, sample: &Sample, processes: &Value) {
    let name = server.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let process = |index: u64| {
        let mut processes = processes.get("replicas")?.as_array()?.iter();
        processes.find(|process| {
            process.get("server").and_then(Value::as_str) == Some(&name)
                && process.get("replica").and_then(Value::as_u64) == Some(index)
        })
    };
    let replicas = server.get_mut("replicas").and_then(Value::as_array_mut);
    for replica in replicas.into_iter().flatten().filter_map(Value::as_object_mut) {
        let index = replica.get("replica").and_then(Value::as_u64).unwrap_or(0);
        let key = (name.clone(), u32::try_from(index).unwrap_or(u32::MAX));
        if let Some(figures) = sample.replicas.get(&key) {
            replica.insert("figures".into(), serde_json::to_value(figures).unwrap_or_default());
        }
        if let Some(process) = process(index) {
            replica.insert("process".into(), process.clone());
        }
    }
}

/// Adds load to each candidate of an experiment.
pub(crate) fn add_candidates(experiment: &mut Value, sample: &Sample) {
    let name = experiment.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(fields) = experiment.as_object_mut() else { return };
    for field in ["candidates", "mirror"] {
        let rows = match fields.get_mut(field) {
            Some(Value::Array(rows)) => rows.iter_mut().collect(),
            Some(row) => vec![row],
            None => Vec::new(),
        };
        for row in rows.into_iter().filter_map(Value::as_object_mut) {
            let candidate = row.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            if let Some(figures) = sample.candidates.get(&(name.clone(), candidate)) {
                row.insert("figures".into(), serde_json::to_value(figures).unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn inventory(count: usize) -> Inventory {
        let mut inventory = Inventory::default();
        for index in 0..count {
            let name = format!("model-{index:05}");
            let state = if index % 100 == 7 { ObjectState::Failed } else { ObjectState::Ready };
            let row = ModelRow {
                name: name.clone(),
                state,
                message: String::new(),
                version: 1,
                server: if index % 2 == 0 { "even".into() } else { "odd".into() },
                available: 1,
                desired: 1,
                since_ms: None,
                requirements: vec!["onnx".into()],
                memory_bytes: None,
                namespace: None,
                owner: String::new(),
            };
            inventory.models.insert(name, row);
        }
        inventory
    }

    fn names(page: &Value) -> Vec<&str> {
        page["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect()
    }

    #[test]
    fn ten_thousand_models_are_searched_filtered_and_cut() {
        let inventory = inventory(10_000);
        let list = |query: ListQuery| page(&inventory, &query, |_: &ModelRow| true, |_| None);
        let first = list(ListQuery { limit: Some(2), ..ListQuery::default() });
        assert_eq!((&first["total"], &first["matched"]), (&json!(10_000), &json!(10_000)));
        assert_eq!(names(&first), ["model-00000", "model-00001"]);
        let all = list(ListQuery { limit: Some(usize::MAX), ..ListQuery::default() });
        assert_eq!(names(&all).len(), MAX_LIMIT);
        let found = list(ListQuery { q: "0420 EVEN".into(), ..ListQuery::default() });
        assert_eq!(
            names(&found),
            ["model-00420", "model-04200", "model-04202", "model-04204", "model-04206", "model-04208"]
        );
        let failed = list(ListQuery { state: Some(ObjectState::Failed), offset: 99, ..ListQuery::default() });
        assert_eq!(failed["matched"], 100);
        assert_eq!(names(&failed), ["model-09907"]);
        let beyond = list(ListQuery { offset: usize::MAX, ..ListQuery::default() });
        assert!(names(&beyond).is_empty());
    }

    #[test]
    fn rows_without_figures_are_sorted_last() {
        let inventory = inventory(4);
        let rates = [("model-00001", 3.0), ("model-00003", 7.0)];
        let sample: HashMap<String, Figures> =
            rates.map(|(name, rate)| (name.to_owned(), Figures { rate, ..Figures::default() })).into();
        for (desc, expected) in [
            (true, ["model-00003", "model-00001", "model-00000", "model-00002"]),
            (false, ["model-00001", "model-00003", "model-00000", "model-00002"]),
        ] {
            let query = ListQuery { sort: Sort::Rate, desc, ..ListQuery::default() };
            let page = page(&inventory, &query, |_: &ModelRow| true, |row| sample.get(&row.name));
            assert_eq!(names(&page), expected);
        }
    }

    #[test]
    fn replicas_and_candidates_get_their_figures() {
        let mut sample = Sample::default();
        let figures = Figures { requests: 3, ..Figures::default() };
        sample.replicas.insert(("s".into(), 1), figures.clone());
        sample.candidates.insert(("e".into(), "m".into()), figures);
        let mut server = json!({ "name": "s", "replicas": [{ "replica": 0 }, { "replica": 1 }] });
        let processes = json!({ "replicas": [{ "server": "s", "replica": 0, "state": "crashed" }] });
        add_replicas(&mut server, &sample, &processes);
        assert_eq!(server["replicas"][0]["process"]["state"], "crashed");
        assert_eq!(server["replicas"][1]["figures"]["requests"], 3);
        let mut experiment = json!({ "name": "e", "candidates": [{ "name": "m" }], "mirror": null });
        add_candidates(&mut experiment, &sample);
        assert_eq!(experiment["candidates"][0]["figures"]["requests"], 3);
    }
}
