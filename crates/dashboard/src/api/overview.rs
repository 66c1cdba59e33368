//! The first page: what serves, how much, what does not and why.

use super::{
    list::{add_replicas, prepare, with_figures},
    reply, rollout,
};
use crate::{
    Dashboard,
    events::now_ms,
    inventory::{Counts, Inventory, Of},
    rows::{ExperimentRow, ModelRow, PipelineRow, Row, ServerRow, State as ObjectState},
};
use axum::{extract::State, response::Response};
use serde_json::{Value, json};
use std::{collections::HashMap, sync::Arc};

/// Reasons why objects are not ready, with an explanation each.
const MAX_ATTENTION: usize = 20;
const MAX_BUSIEST: usize = 8;
const MAX_SERVERS: usize = 24;
const MAX_ROLLOUTS: usize = 12;
const MAX_EVENTS: usize = 12;

/// Objects of a kind that are not ready for the same reason.
struct Attention {
    kind: &'static str,
    /// The first of them.
    name: String,
    others: usize,
    state: ObjectState,
    message: String,
}

pub(crate) async fn overview(State(dashboard): State<Arc<Dashboard>>) -> Response {
    let sample = prepare(&dashboard).await;
    let processes = dashboard.source.processes();
    let (mut page, attention) = {
        let inventory = dashboard.follower.inventory();
        let mut busiest: Vec<_> = sample.models.iter().filter(|(_, f)| f.requests > 0).collect();
        let load = |f: &crate::figures::Figures| (f.rate, f.requests as f64);
        busiest.sort_by(|(a_name, a), (b_name, b)| {
            let ((a, a_all), (b, b_all)) = (load(a), load(b));
            b.total_cmp(&a).then(b_all.total_cmp(&a_all)).then(a_name.cmp(b_name))
        });
        let busiest: Vec<Value> = busiest
            .into_iter()
            .filter_map(|(name, figures)| Some(with_figures(inventory.models.get(name)?, Some(figures))))
            .take(MAX_BUSIEST)
            .collect();
        let mut servers: Vec<Value> =
            inventory.servers.values().take(MAX_SERVERS).map(|row| with_figures(row, None)).collect();
        for row in &mut servers {
            add_replicas(row, &sample, &processes);
        }
        let rollouts = inventory.rollouts.values().filter(|row| row.status.candidate.is_some());
        let page = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "nowMs": now_ms(),
            "link": inventory.link,
            "notices": inventory.notices,
            "actions": dashboard.settings.actions,
            "inference": dashboard.settings.inference,
            "authRequired": dashboard.settings.auth_required,
            "counts": {
                "models": Counts::of(inventory.models.values()),
                "servers": Counts::of(inventory.servers.values()),
                "pipelines": Counts::of(inventory.pipelines.values()),
                "experiments": Counts::of(inventory.experiments.values()),
            },
            "figures": sample.total,
            "history": sample.history,
            "busiest": busiest,
            "servers": servers,
            "rollouts": rollouts.take(MAX_ROLLOUTS).map(rollout::document).collect::<Vec<_>>(),
            "events": inventory.events.newest_first().take(MAX_EVENTS).collect::<Vec<_>>(),
        });
        (page, attention(&inventory))
    };
    let rows = attention
        .iter()
        .map(|row| ((row.kind, row.name.clone()), format!("{:?} {}", row.state, row.message)))
        .collect();
    let explanations = dashboard.explanations.of_rows(rows).await;
    let attention: Vec<Value> = attention
        .into_iter()
        .zip(explanations)
        .map(|(row, explanation)| {
            json!({
                "kind": row.kind,
                "name": row.name,
                "others": row.others,
                "state": row.state,
                "message": row.message,
                "headline": explanation.as_ref().map(|e| &e.headline),
                "next": explanation.as_ref().map(|e| &e.next),
            })
        })
        .collect();
    if let Some(fields) = page.as_object_mut() {
        fields.insert("attention".into(), attention.into());
    }
    reply(&page)
}

/// What is not ready, failures first, servers before what needs them.
fn attention(inventory: &Inventory) -> Vec<Attention> {
    let mut found = Vec::new();
    for state in [ObjectState::Failed, ObjectState::Progressing] {
        add::<ServerRow>(inventory, state, &mut found);
        add::<ModelRow>(inventory, state, &mut found);
        add::<PipelineRow>(inventory, state, &mut found);
        add::<ExperimentRow>(inventory, state, &mut found);
    }
    found
}

fn add<R: Row>(inventory: &Inventory, state: ObjectState, found: &mut Vec<Attention>)
where
    Inventory: Of<R>,
{
    let mut groups: HashMap<&str, usize> = HashMap::new();
    for row in inventory.rows().values().filter(|row| row.state() == state) {
        if let Some(group) = groups.get(row.message()).and_then(|at| found.get_mut(*at)) {
            group.others += 1;
        } else if found.len() < MAX_ATTENTION {
            groups.insert(row.message(), found.len());
            let (name, message) = (row.name().to_owned(), row.message().to_owned());
            found.push(Attention { kind: R::KIND, name, others: 0, state, message });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_with_the_same_reason_are_shown_once() {
        let mut inventory = Inventory::default();
        for index in 0..10_000 {
            let (name, reason) = (format!("p{index:05}"), if index == 77 { "broken" } else { "no server" });
            let row = PipelineRow {
                name: name.clone(),
                state: if index < 5 { ObjectState::Ready } else { ObjectState::Failed },
                message: reason.into(),
                version: 1,
                steps: Vec::new(),
                since_ms: None,
                owner: String::new(),
            };
            inventory.pipelines.insert(name, row);
        }
        let shown = attention(&inventory);
        let shown: Vec<_> = shown.iter().map(|a| (a.name.as_str(), a.others, a.message.as_str())).collect();
        assert_eq!(shown, [("p00005", 9993, "no server"), ("p00077", 0, "broken")]);
    }

    #[test]
    fn different_reasons_are_bounded() {
        let mut inventory = Inventory::default();
        for index in 0..100 {
            let name = format!("s{index}");
            let row = ServerRow {
                name: name.clone(),
                state: ObjectState::Progressing,
                message: name.clone(),
                available: 0,
                expected: 1,
                models: 0,
                memory_bytes: 0,
                free_bytes: 0,
                replicas: Vec::new(),
                owner: String::new(),
            };
            inventory.servers.insert(name, row);
        }
        assert_eq!(attention(&inventory).len(), MAX_ATTENTION);
    }
}
