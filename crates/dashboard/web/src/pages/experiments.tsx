import type { Candidate, ExperimentDetail, ExperimentRow, Page } from "../api";
import { count, millis, owner, percent, rate, share } from "../format";
import { useLast, usePoll } from "../hooks";
import { Code, Empty, Explained, Facts, Failure, Loading, Section, Split, State, Table, Title, href } from "../ui";

export function Experiments() {
  const { data, error } = usePoll<Page<ExperimentRow>>("/api/experiments?limit=500");
  return (
    <>
      <Title>Experiments</Title>
      {!data && (error ? <Failure error={error} /> : <Loading />)}
      {data && data.rows.length === 0 && <Empty>No experiment. An Experiment splits the requests of a model or pipeline between candidates.</Empty>}
      {data?.rows.map((row) => (
        <section class="card flush" key={row.name} aria-labelledby={`experiment-${row.name}`}>
          <div class="card-head">
            <h2 id={`experiment-${row.name}`}>
              <a href={href("experiments", row.name)}>{row.name}</a> <State state={row.state} label={row.message} />
            </h2>
          </div>
          <div class="pad">
            <Split parts={row.candidates} />
          </div>
          <Candidates row={row} />
        </section>
      ))}
      {data && data.matched > data.rows.length && <Empty>{count(data.matched - data.rows.length)} more experiments are not shown.</Empty>}
    </>
  );
}

export function Experiment({ name }: { name: string }) {
  const polled = usePoll<ExperimentDetail>(`/api/experiments/${encodeURIComponent(name)}`);
  const data = useLast(polled.data);
  if (!data) {
    return (
      <>
        <Title kind="Experiment">{name}</Title>
        {polled.error ? <Failure error={polled.error} /> : <Loading />}
      </>
    );
  }
  const { row } = data;
  return (
    <>
      <Title kind="Experiment">
        {name} <State state={row.state} />
      </Title>
      {polled.error && polled.error.status !== 0 && <Failure error={polled.error} />}
      <Explained explanation={data.explanation} />
      <Section title="Candidates" flush>
        <div class="pad">
          <Split parts={row.candidates} />
        </div>
        <Candidates row={row} />
      </Section>
      <Section title="Experiment">
        <Facts
          facts={[
            ["Splits", `requests to ${row.of} ${row.target}`],
            ["Sticky sessions", row.sticky ? "yes" : "no"],
            ["Owner", owner(row.owner)],
          ]}
        />
      </Section>
      {data.manifest && (
        <Section title="Manifest">
          <Code label={`Manifest of ${name}`} text={data.manifest} />
        </Section>
      )}
    </>
  );
}

function Candidates({ row }: { row: ExperimentRow }) {
  const rows: (Candidate & { mirror?: boolean })[] = [...row.candidates, ...(row.mirror ? [{ ...row.mirror, mirror: true }] : [])];
  return (
    <Table
      caption={`Candidates of ${row.name}`}
      rows={rows}
      rowKey={(candidate) => `${candidate.name}${candidate.mirror ? " mirror" : ""}`}
      columns={[
        { heading: "Candidate", wide: true, cell: (c) => <><a href={href(`${row.of}s`, c.name)}>{c.name}</a>{c.mirror && <span class="kind-tag">mirror</span>}</> },
        { heading: "Weight", numeric: true, cell: (c) => share(c.share) },
        { heading: "Requests", numeric: true, cell: (c) => count(c.figures?.requests ?? 0) },
        { heading: "Requests/s", numeric: true, extra: true, cell: (c) => rate(c.figures?.rate) },
        { heading: "Errors", numeric: true, cell: (c) => <span class={c.figures?.errors ? "bad" : ""}>{c.figures?.requests ? percent(c.figures.errors, c.figures.requests) : "–"}</span> },
        { heading: "p50", numeric: true, extra: true, cell: (c) => millis(c.figures?.p50Ms) },
        { heading: "p99", numeric: true, cell: (c) => millis(c.figures?.p99Ms) },
      ]}
    />
  );
}
