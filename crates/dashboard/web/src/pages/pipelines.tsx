import { useState } from "preact/hooks";
import { get, post, type Metadata, type Overview, type Page, type PipelineDetail, type PipelineRow, type Run, type Tensor } from "../api";
import { ago, count, millis, owner, rate } from "../format";
import { RequestForm } from "../form";
import { Graph, stepFigures } from "../graph";
import { useLast, useNow, usePlace, usePoll } from "../hooks";
import { Code, Confirm, Empty, Explained, Facts, Failure, LoadStats, Loading, Section, State, Table, Title, href } from "../ui";
import { VirtualList, type VirtualColumn } from "../virtual";
import { RolloutCard } from "./rollouts";
import { Versions } from "./model";

export function Pipelines() {
  const { parameters } = usePlace();
  const [page, setPage] = useState<Page<PipelineRow> | null>(null);
  const columns: VirtualColumn<PipelineRow>[] = [
    { id: "name", heading: "Name", sort: "name", cell: (row) => <a href={href("pipelines", row.name)}>{row.name}</a> },
    { id: "state", heading: "State", sort: "state", cell: (row) => <State state={row.state} /> },
    { id: "message", heading: "Message", extra: true, cell: (row) => <span title={row.message}>{row.message}</span> },
    { id: "steps", heading: "Steps", numeric: true, extra: true, cell: (row) => row.steps.length },
    { id: "rate", heading: "Req/s", sort: "rate", numeric: true, cell: (row) => rate(row.figures?.rate) },
    { id: "errors", heading: "Errors", sort: "errors", numeric: true, cell: (row) => count(row.figures?.errors ?? 0) },
    { id: "p99", heading: "p99", sort: "p99", numeric: true, cell: (row) => millis(row.figures?.p99Ms) },
  ];
  return (
    <>
      <Title>Pipelines</Title>
      <p class="summary" role="status">
        {page ? `${count(page.total)} pipelines` : " "}
      </p>
      <VirtualList<PipelineRow>
        label="Pipelines"
        path="/api/pipelines"
        parameters={{}}
        columns={columns}
        sort={parameters.get("sort") ?? "name"}
        desc={parameters.get("desc") === "1"}
        rowKey={(row) => row.name}
        empty="No pipeline yet. A Pipeline connects models to a graph."
        onPage={setPage}
      />
    </>
  );
}

export function Pipeline({ name, overview }: { name: string; overview: Overview }) {
  const polled = usePoll<PipelineDetail>(`/api/pipelines/${encodeURIComponent(name)}`);
  const data = useLast(polled.data);
  const [confirms, setConfirms] = useState(false);
  if (!data) {
    return (
      <>
        <Title kind="Pipeline">{name}</Title>
        {polled.error ? <Failure error={polled.error} /> : <Loading />}
      </>
    );
  }
  const { row } = data;
  const runs = data.runs?.runs ?? [];
  const figures = stepFigures(runs);
  const actions = overview.actions ? (
    <button type="button" class="danger" onClick={() => setConfirms(true)}>
      Unload
    </button>
  ) : undefined;
  return (
    <>
      <Title kind="Pipeline" {...(actions ? { actions } : {})}>
        {name} <State state={row.state} />
      </Title>
      {polled.error && polled.error.status !== 0 && <Failure error={polled.error} />}
      <Explained explanation={data.explanation} />
      <LoadStats figures={row.figures} />
      <Section title="Graph" aside={<span class="faint">times of the last {runs.length} runs; dashed: triggers</span>}>
        <Graph detail={data} />
      </Section>
      <Section title="Steps" flush>
        <Table
          caption="Steps"
          rows={data.steps}
          rowKey={(step) => step.name}
          columns={[
            { heading: "Step", cell: (step) => <a href={href("models", step.name)}>{step.name}</a> },
            { heading: "Model", cell: (step) => <State state={step.state} {...(step.state === null ? { label: "Missing" } : {})} /> },
            { heading: "Runs", numeric: true, cell: (step) => count(figures.get(step.name)?.runs ?? 0) },
            { heading: "Skipped", numeric: true, cell: (step) => count(figures.get(step.name)?.skipped ?? 0) },
            { heading: "Errors", numeric: true, cell: (step) => count(figures.get(step.name)?.errors ?? 0) },
            { heading: "Mean", numeric: true, cell: (step) => millis(figures.get(step.name)?.meanMs) },
            { heading: "Slowest", numeric: true, extra: true, cell: (step) => millis(figures.get(step.name)?.maxMs) },
            { heading: "Requests/s", numeric: true, extra: true, cell: (step) => rate(step.figures?.rate) },
            { heading: "All requests", numeric: true, extra: true, cell: (step) => count(step.figures?.requests ?? 0) },
          ]}
        />
      </Section>
      <div class="columns">
        <div>
          <RequestForm
            key={name}
            kind="pipelines"
            name={name}
            url={`http://${overview.inference}/v2/pipelines/${name}/infer`}
            address={overview.inference}
            auth={overview.authRequired}
            ready={row.state === "ready"}
            load={(signal) => requestMetadata(data, signal)}
          />
        </div>
        <div>
          <Section title="Last runs" flush>
            {runs.length === 0 ? <Empty>No run yet.</Empty> : <Runs runs={runs} />}
          </Section>
          {data.rollout && (
            <Section title="Rollout">
              <RolloutCard rollout={data.rollout} actions={overview.actions} />
            </Section>
          )}
          <Section title="Versions" flush>
            <Versions versions={data.versions} />
          </Section>
          <Section title="Pipeline">
            <Facts
              facts={[
                ["Version", String(row.version)],
                ["Owner", owner(row.owner)],
              ]}
            />
          </Section>
          <Section title="Manifest">
            <Code label={`Manifest of ${name}`} text={data.manifest} />
          </Section>
        </div>
      </div>
      {confirms && (
        <Confirm title={`Unload ${name}?`} verb="Unload" close={() => setConfirms(false)} act={() => post("/api/delete", { kind: "pipeline", name }).then(() => void (location.hash = "#/pipelines"))}>
          <p>The pipeline is deleted. The models of its steps stay.</p>
        </Confirm>
      )}
    </>
  );
}

/** The inputs of a pipeline: what its steps read of the request, as their models describe it. */
async function requestMetadata(detail: PipelineDetail, signal: AbortSignal): Promise<Metadata> {
  const inputs = new Map<string, Tensor>();
  for (const { tensor, step, input } of detail.inputs) {
    const metadata = await get<Metadata>(`/api/models/${encodeURIComponent(step)}/metadata`, signal);
    const known = metadata.inputs ?? [];
    const read = tensor === "" ? known : known.filter((one) => one.name === (input ?? tensor));
    for (const one of read) inputs.set(tensor || one.name, { ...one, name: tensor || one.name });
  }
  return { name: detail.row.name, inputs: [...inputs.values()] };
}

function Runs({ runs }: { runs: Run[] }) {
  const now = useNow();
  return (
    <Table
      caption="Last runs, newest first"
      rows={runs}
      rowKey={(run) => run.request_id}
      columns={[
        { heading: "Run", numeric: true, cell: (run) => ago(run.time_ms, now) },
        { heading: "Took", numeric: true, cell: (run) => millis(run.ms) },
        {
          heading: "Steps",
          wide: true,
          cell: (run) => (
            <>
              {run.error && <div class="bad">{run.error}</div>}
              <div class="faint">
                {run.steps.map((step) => `${step.step} ${millis(step.ms)}`).join(", ")}
                {run.skipped?.length ? `; skipped: ${run.skipped.map((step) => step.step).join(", ")}` : ""}
              </div>
            </>
          ),
        },
      ]}
    />
  );
}
