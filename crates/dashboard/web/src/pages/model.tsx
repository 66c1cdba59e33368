import { useState } from "preact/hooks";
import { post, type ModelDetail, type Overview, type Version } from "../api";
import { ago, bytes, owner } from "../format";
import { useNow, usePoll } from "../hooks";
import { RequestForm } from "../form";
import { Code, Confirm, Explained, Facts, Failure, LoadStats, Loading, Section, State, Table, Title, href } from "../ui";
import { EventList } from "./events";
import { RolloutCard } from "./rollouts";

export function Model({ name, overview }: { name: string; overview: Overview }) {
  const { data, error } = usePoll<ModelDetail>(`/api/models/${encodeURIComponent(name)}`);
  const [confirms, setConfirms] = useState(false);
  if (!data) {
    return (
      <>
        <Title kind="Model">{name}</Title>
        {error ? <Failure error={error} /> : <Loading />}
      </>
    );
  }
  const { row } = data;
  const prefix = row.namespace ? `/serving/${row.namespace}/${name}` : "";
  const actions = overview.actions ? (
    <>
      <a class="button" href={`#/apply?model=${encodeURIComponent(name)}`}>
        Edit manifest
      </a>
      <button type="button" class="danger" onClick={() => setConfirms(true)}>
        Unload
      </button>
    </>
  ) : undefined;
  return (
    <>
      <Title kind={row.namespace ? `InferenceService in ${row.namespace}` : "Model"} {...(actions ? { actions } : {})}>
        {name} <State state={row.state} />
      </Title>
      {error && error.status !== 0 && <Failure error={error} />}
      <Explained explanation={data.explanation} />
      <LoadStats figures={row.figures} />
      <div class="columns">
        <div>
          <RequestForm
            key={name}
            kind="models"
            name={name}
            url={`http://${overview.inference}${prefix}/v2/models/${name}/infer`}
            address={overview.inference}
            auth={overview.authRequired}
            ready={row.state === "idle" || data.versions.some((version) => (version.available ?? 0) > 0)}
          />
        </div>
        <div>
          <Section title="Model">
            <Facts
              facts={[
                ["Version", String(row.version)],
                ["Server", row.server ? <a href={href("servers", row.server)}>{row.server}</a> : "not placed"],
                ["Replicas", `${row.available} of ${row.desired} available`],
                ["Requirements", row.requirements.join(", ") || "none"],
                ["Memory", row.memoryBytes ? bytes(row.memoryBytes) : "not set"],
                ["Owner", owner(row.owner)],
              ]}
            />
          </Section>
          {data.rollout && (
            <Section title="Rollout">
              <RolloutCard rollout={data.rollout} actions={overview.actions} />
            </Section>
          )}
          <Section title="Versions" flush>
            <Versions versions={data.versions} />
          </Section>
          <Section title="History" flush>
            <EventList kind="model" name={name} />
          </Section>
          {data.manifest && (
            <Section title="Manifest">
              <Code label={`Manifest of ${name}`} text={data.manifest} />
            </Section>
          )}
        </div>
      </div>
      {confirms && (
        <Confirm title={`Unload ${name}?`} verb="Unload" close={() => setConfirms(false)} act={() => post("/api/delete", { kind: "model", name }).then(() => void (location.hash = "#/models"))}>
          <p>The model is deleted: requests to it get 404 as soon as no request is in flight. Its files stay where they are.</p>
        </Confirm>
      )}
    </>
  );
}

export function Versions({ versions }: { versions: Version[] }) {
  const now = useNow();
  return (
    <Table
      caption="Versions, latest first"
      rows={versions}
      rowKey={(version) => version.version}
      columns={[
        { heading: "Version", cell: (version) => version.version },
        { heading: "State", cell: (version) => version.state },
        {
          heading: "Details",
          wide: true,
          cell: (version) => (
            <>
              {version.reason && <div class={/Failed/.test(version.state) ? "bad" : ""}>{version.reason}</div>}
              {version.storageUri && <div class="faint pre">{version.storageUri}</div>}
              {(version.replicas ?? []).map((replica) => (
                <div key={replica.replica} class="faint">
                  {version.server}-{replica.replica}: {replica.state}
                  {replica.reason && `, ${replica.reason}`}
                </div>
              ))}
            </>
          ),
        },
        { heading: "Since", numeric: true, cell: (version) => ago(version.sinceMs, now) },
      ]}
    />
  );
}
