import { useEffect, useState } from "preact/hooks";
import type { ModelRow, ObjectState, Page } from "../api";
import { ago, count, millis, rate } from "../format";
import { setParameters, useNow, usePlace, useSettled } from "../hooks";
import { State, Title, countsNote, href } from "../ui";
import { VirtualList, type VirtualColumn } from "../virtual";

const FILTERS: [ObjectState | "", string][] = [
  ["", "All"],
  ["ready", "Ready"],
  ["progressing", "Progressing"],
  ["failed", "Failed"],
  ["idle", "Scaled to zero"],
];

export function Models({ actions }: { actions: boolean }) {
  const [page, setPage] = useState<Page<ModelRow> | null>(null);
  return (
    <>
      <Title {...(actions ? { actions: <a class="button" href="#/apply">Apply a manifest</a> } : {})}>Models</Title>
      <p class="summary" role="status">
        {page ? `${count(page.total)} models; ${page.matched === page.total ? countsNote(page.counts) : `${count(page.matched)} shown`}` : " "}
      </p>
      <ModelList onPage={setPage} />
    </>
  );
}

/** All models, or those of a server. */
export function ModelList({ server, onPage }: { server?: string; onPage?: (page: Page<ModelRow>) => void }) {
  const { parameters } = usePlace();
  const now = useNow();
  const [typed, setTyped] = useState(parameters.get("q") ?? "");
  const search = useSettled(typed);
  const state = parameters.get("state") ?? "";
  useEffect(() => setParameters({ q: search }), [search]);
  const columns: VirtualColumn<ModelRow>[] = [
    { id: "name", heading: "Name", sort: "name", cell: (row) => <a href={href("models", row.name)}>{row.name}</a> },
    { id: "state", heading: "State", sort: "state", cell: (row) => <State state={row.state} /> },
    { id: "message", heading: "Message", extra: true, cell: (row) => <span title={row.message}>{row.message}</span> },
    { id: "server", heading: "Server", extra: true, cell: (row) => (row.server ? <a href={href("servers", row.server)}>{row.server}</a> : "–") },
    { id: "replicas", heading: "Replicas", numeric: true, extra: true, cell: (row) => `${row.available}/${row.desired}` },
    { id: "rate", heading: "Req/s", sort: "rate", numeric: true, cell: (row) => rate(row.figures?.rate) },
    { id: "errors", heading: "Errors", sort: "errors", numeric: true, cell: (row) => <span class={row.figures?.errors ? "bad" : ""}>{count(row.figures?.errors ?? 0)}</span> },
    { id: "p50", heading: "p50", sort: "p50", numeric: true, extra: true, cell: (row) => millis(row.figures?.p50Ms ?? row.figures?.meanMs) },
    { id: "p99", heading: "p99", sort: "p99", numeric: true, cell: (row) => millis(row.figures?.p99Ms) },
    { id: "since", heading: "Changed", sort: "since", numeric: true, extra: true, cell: (row) => ago(row.sinceMs, now) },
  ];
  const filters = { q: search, state, server };
  return (
    <div class="list">
      <div class="filters">
        <label class="hidden" for="search">
          Search models
        </label>
        <input id="search" type="search" placeholder="Search by name, server or requirement" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} />
        <div class="chips" role="group" aria-label="State">
          {FILTERS.map(([value, label]) => (
            <button type="button" key={value} aria-pressed={state === value} onClick={() => setParameters({ state: value })}>
              {label}
            </button>
          ))}
        </div>
      </div>
      <VirtualList<ModelRow>
        label="Models"
        path="/api/models"
        parameters={filters}
        columns={columns}
        sort={parameters.get("sort") ?? "name"}
        desc={parameters.get("desc") === "1"}
        rowKey={(row) => row.name}
        empty={search || state ? "No model matches." : server ? "No model is placed on this server." : "No model yet: gantry apply -f MODEL.yaml, or gantry up DIRECTORY."}
        {...(onPage ? { onPage } : {})}
      />
    </div>
  );
}
