import type { Overview as Data, ServerRow } from "../api";
import { ago, bytes, count, millis, percent, plural, rate } from "../format";
import { useNow } from "../hooks";
import { Curve, Empty, Meter, ObjectLink, Section, Stat, State, Table, Title, countsNote, href } from "../ui";
import { RolloutCard } from "./rollouts";

export function Overview({ data }: { data: Data }) {
  const now = useNow();
  const { counts, figures } = data;
  const used = data.servers.reduce((all, server) => all + server.memoryBytes - server.freeBytes, 0);
  const total = data.servers.reduce((all, server) => all + server.memoryBytes, 0);
  const kinds: [string, keyof Data["counts"]][] = [
    ["Models", "models"],
    ["Servers", "servers"],
    ["Pipelines", "pipelines"],
    ["Experiments", "experiments"],
  ];
  const headline = data.attention.length === 0 ? (counts.models.total ? `${plural(counts.models.total, "model")} served` : "No model yet") : `${plural(notReady(data), "object")} not ready`;
  return (
    <>
      <Title>{headline}</Title>
      <div class="stats tiles">
        {kinds.map(([label, kind]) => (
          <a key={kind} href={href(kind)} class="tile">
            <Stat label={label} value={`${count(counts[kind].ready)}/${count(counts[kind].total)}`} note={countsNote(counts[kind])} {...(counts[kind].failed ? { tone: "bad" as const } : {})} />
          </a>
        ))}
        <div class="tile">
          <Stat label="Requests/s" value={rate(figures.rate)} note={`${count(figures.requests)} since the start`} />
        </div>
        <div class="tile">
          <Stat label="Errors" value={figures.requests ? percent(figures.errors, figures.requests) : "–"} note={`${count(figures.errors)} since the start`} {...(figures.errorRate > 0 ? { tone: "bad" as const } : {})} />
        </div>
        <div class="tile">
          <Stat label="p50" value={millis(figures.p50Ms)} note="last minute" />
        </div>
        <div class="tile">
          <Stat label="p99" value={millis(figures.p99Ms)} note={total ? `${bytes(used)} of ${bytes(total)} used` : "last minute"} />
        </div>
      </div>
      {counts.models.total === 0 && data.attention.length === 0 && <FirstModel />}
      {data.attention.length > 0 && (
        <Section title="Not ready" aside={<a href="#/models?state=failed">Failed models</a>}>
          <ul class="attention">
            {data.attention.map((row) => (
              <li key={`${row.kind}/${row.name}`}>
                <State state={row.state} />
                <div>
                  <p class="headline">
                    <ObjectLink kind={row.kind} name={row.name} /> <span class="kind-tag">{row.kind}</span>
                    {row.others > 0 && <span class="others"> and {count(row.others)} more with this reason</span>}
                  </p>
                  <p>{row.headline ?? row.message}</p>
                  {row.next && (
                    <p class="next">
                      <span>Next:</span> {row.next}
                    </p>
                  )}
                </div>
              </li>
            ))}
          </ul>
        </Section>
      )}
      <div class="columns">
        <Section title="Requests per second">
          <Curve points={data.history} />
        </Section>
        <Section title="Servers" aside={<a href="#/servers">All servers</a>} flush>
          {data.servers.length === 0 ? <Empty>No server has joined.</Empty> : <Servers rows={data.servers} />}
        </Section>
      </div>
      {data.rollouts.length > 0 && (
        <Section title="Rollouts in progress" aside={<a href="#/rollouts">All rollouts</a>}>
          {data.rollouts.map((rollout) => (
            <RolloutCard key={rollout.name} rollout={rollout} actions={false} />
          ))}
        </Section>
      )}
      <div class="columns">
        <Section title="Busiest models" aside={<a href="#/models?sort=rate&desc=1">All models</a>} flush>
          {data.busiest.length === 0 ? (
            <Empty>No inference request yet.</Empty>
          ) : (
            <Table
              caption="Busiest models"
              rows={data.busiest}
              rowKey={(row) => row.name}
              columns={[
                { heading: "Model", wide: true, cell: (row) => <a href={href("models", row.name)}>{row.name}</a> },
                { heading: "Requests/s", numeric: true, cell: (row) => rate(row.figures?.rate) },
                { heading: "Errors", numeric: true, cell: (row) => <span class={row.figures?.errors ? "bad" : ""}>{count(row.figures?.errors ?? 0)}</span> },
                { heading: "p99", numeric: true, cell: (row) => millis(row.figures?.p99Ms ?? row.figures?.meanMs) },
              ]}
            />
          )}
        </Section>
        <Section title="Events" aside={<a href="#/events">All events</a>} flush>
          {data.events.length === 0 ? (
            <Empty>Nothing has changed yet.</Empty>
          ) : (
            <ul class="events">
              {data.events.map((event) => (
                <li key={event.number}>
                  <State state={event.state} label="" />
                  <span class="event-text">
                    <ObjectLink kind={event.kind} name={event.name} /> {event.message}
                  </span>
                  <time class="faint">{ago(event.atMs, now)}</time>
                </li>
              ))}
            </ul>
          )}
        </Section>
      </div>
    </>
  );
}

function notReady(data: Data): number {
  return Object.values(data.counts).reduce((all, one) => all + one.failed + one.progressing, 0);
}

function Servers({ rows }: { rows: ServerRow[] }) {
  return (
    <Table
      caption="Servers"
      rows={rows}
      rowKey={(row) => row.name}
      columns={[
        { heading: "Server", cell: (row) => <a href={href("servers", row.name)}>{row.name}</a> },
        { heading: "Replicas", cell: (row) => <State state={row.state} label={`${row.available}/${row.expected}`} /> },
        { heading: "Models", numeric: true, cell: (row) => count(row.models) },
        { heading: "Memory", cell: (row) => <Meter used={row.memoryBytes - row.freeBytes} total={row.memoryBytes} label={`Memory of ${row.name}`} /> },
      ]}
    />
  );
}

function FirstModel() {
  return (
    <Section title="Serve a first model">
      <p>
        A directory of model files needs no manifest: <code>gantry up models/</code> serves <code>models/churn.onnx</code> as <code>churn</code>. A manifest names the files:
      </p>
      <pre>{`apiVersion: mlops.seldon.io/v1alpha1
kind: Model
metadata:
  name: churn
spec:
  storageUri: /srv/models/churn`}</pre>
      <p>
        <code>gantry apply -f churn.yaml --wait</code> loads it; <code>gantry infer churn</code> sends a request.
      </p>
    </Section>
  );
}
