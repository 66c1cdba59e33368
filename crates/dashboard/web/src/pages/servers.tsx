import type { Page, Process, ReplicaRow, ServerDetail, ServerRow } from "../api";
import { count, millis, owner, rate } from "../format";
import { useLast, usePoll } from "../hooks";
import { Empty, Explained, Facts, Failure, Loading, Meter, Section, State, Table, Title, href } from "../ui";
import { ModelList } from "./models";

export function Servers() {
  const { data, error } = usePoll<Page<ServerRow>>("/api/servers?limit=500");
  return (
    <>
      <Title>Servers</Title>
      {!data && (error ? <Failure error={error} /> : <Loading />)}
      {data && data.rows.length === 0 && <Empty>No server has joined. gantry up starts a built-in one; agents bring others.</Empty>}
      {data?.rows.map((row) => (
        <section class="card flush" key={row.name} aria-labelledby={`server-${row.name}`}>
          <div class="card-head">
            <h2 id={`server-${row.name}`}>
              <a href={href("servers", row.name)}>{row.name}</a> <State state={row.state} label={row.message} />
            </h2>
            <div class="aside faint">{count(row.models)} models loaded</div>
          </div>
          <Replicas row={row} />
        </section>
      ))}
      {data && data.matched > data.rows.length && <Empty>{count(data.matched - data.rows.length)} more servers are not shown.</Empty>}
    </>
  );
}

export function Server({ name }: { name: string }) {
  const polled = usePoll<ServerDetail>(`/api/servers/${encodeURIComponent(name)}`);
  const data = useLast(polled.data);
  if (!data) {
    return (
      <>
        <Title kind="Server">{name}</Title>
        {polled.error ? <Failure error={polled.error} /> : <Loading />}
      </>
    );
  }
  const { row } = data;
  return (
    <>
      <Title kind="Server">
        {name} <State state={row.state} label={row.message} />
      </Title>
      {polled.error && polled.error.status !== 0 && <Failure error={polled.error} />}
      <Explained explanation={data.explanation} />
      <Section title="Replicas" flush>
        <Replicas row={row} />
      </Section>
      {data.processes.length > 0 && (
        <Section title="Processes">
          {data.processes.map((process) => (
            <ProcessCard key={process.replica} process={process} />
          ))}
        </Section>
      )}
      <Section title="Server">
        <Facts
          facts={[
            ["Replicas", `${row.available} of ${row.expected} joined`],
            ["Models loaded", count(row.models)],
            ["Owner", owner(row.owner)],
          ]}
        />
      </Section>
      <Section title="Models placed here">
        <ModelList server={name} />
      </Section>
    </>
  );
}

function Replicas({ row }: { row: ServerRow }) {
  if (row.replicas.length === 0) return <Empty>No replica has joined.</Empty>;
  return (
    <Table<ReplicaRow>
      caption={`Replicas of ${row.name}`}
      rows={row.replicas}
      rowKey={(replica) => replica.replica}
      columns={[
        { heading: "Replica", cell: (replica) => `${row.name}-${replica.replica}` },
        { heading: "Process", cell: (replica) => replica.process?.state ?? "–" },
        { heading: "Models", numeric: true, cell: (replica) => count(replica.models) },
        { heading: "Memory", wide: true, cell: (replica) => <Meter used={replica.memoryBytes - replica.freeBytes} total={replica.memoryBytes} label={`Memory of ${row.name}-${replica.replica}`} /> },
        { heading: "Requests/s", numeric: true, cell: (replica) => rate(replica.figures?.rate) },
        { heading: "Requests", numeric: true, extra: true, cell: (replica) => count(replica.figures?.requests ?? 0) },
        { heading: "Errors", numeric: true, cell: (replica) => <span class={replica.figures?.errors ? "bad" : ""}>{count(replica.figures?.errors ?? 0)}</span> },
        { heading: "p50", numeric: true, extra: true, cell: (replica) => millis(replica.figures?.p50Ms) },
        { heading: "p99", numeric: true, cell: (replica) => millis(replica.figures?.p99Ms) },
      ]}
    />
  );
}

function ProcessCard({ process }: { process: Process }) {
  return (
    <div class="process">
      <Facts
        facts={[
          ["Replica", String(process.replica)],
          ["State", process.state],
          ["Command", <code key="c">{process.command}</code>],
          ["PID", process.pid ? String(process.pid) : "none"],
          ...(process.lastEnd ? ([["Last end", process.lastEnd]] as [string, string][]) : []),
          ...(process.failures ? ([["Crashes in a row", String(process.failures)]] as [string, string][]) : []),
        ]}
      />
      {process.lastLines.length > 0 && (
        <pre tabIndex={0} role="group" aria-label={`Last output of replica ${process.replica}`}>
          {process.lastLines.join("\n")}
        </pre>
      )}
    </div>
  );
}
