import { useState } from "preact/hooks";
import { post, type Linked, type Policy, type Revision, type Rollout } from "../api";
import { count, duration, millis, moment, percent } from "../format";
import { usePoll } from "../hooks";
import { Code, Confirm, Empty, Failure, Loading, Section, Split, Table, Title, rolloutHref } from "../ui";

interface Data extends Linked {
  total: number;
  rows: Rollout[];
  policies: Policy[];
}

export function Rollouts({ actions }: { actions: boolean }) {
  const { data, error } = usePoll<Data>("/api/rollouts");
  return (
    <>
      <Title>Rollouts</Title>
      {!data && (error ? <Failure error={error} /> : <Loading />)}
      {data && data.rows.length === 0 && <Empty>No rollout. A RolloutPolicy makes new versions of its models and pipelines arrive in steps.</Empty>}
      {data?.rows.map((rollout) => (
        <section class="card" key={rollout.name} aria-labelledby={`rollout-${rollout.name}`}>
          <div class="card-head">
            <h2 id={`rollout-${rollout.name}`}>
              <a href={rolloutHref(rollout.name)}>{rollout.name}</a>
            </h2>
            <div class="aside faint">policy {rollout.policy}</div>
          </div>
          <RolloutCard rollout={rollout} actions={actions} />
          <History rollout={rollout} />
        </section>
      ))}
      {data && data.policies.length > 0 && (
        <Section title="Policies">
          {data.policies.map((policy) => (
            <details key={policy.name}>
              <summary>
                {policy.name}: {[...policy.models, ...policy.pipelines.map((name) => `pipeline/${name}`)].join(", ") || "no object"}
              </summary>
              <Code label={`Spec of ${policy.name}`} text={JSON.stringify(policy.spec, null, 2)} />
            </details>
          ))}
        </Section>
      )}
    </>
  );
}

const ACTIONS: [string, string, string][] = [
  ["promote", "Promote", "The next stage starts without waiting for evidence."],
  ["promoteFull", "Promote fully", "The candidate gets all requests, without further stages."],
  ["pause", "Pause", "The weights stay as they are until it is resumed."],
  ["resume", "Resume", "The rollout goes on."],
  ["abort", "Abort", "All requests go to the stable version; the candidate is unloaded."],
];

/** Weights, stage and evidence of a rollout. */
export function RolloutCard({ rollout, actions }: { rollout: Rollout; actions: boolean }) {
  const [action, setAction] = useState<[string, string, string] | null>(null);
  const { stable, candidate } = rollout;
  const revisions: (Revision & { role: string })[] = [...(stable ? [{ ...stable, role: "stable" }] : []), ...(candidate ? [{ ...candidate, role: "candidate" }] : [])];
  const offered = ACTIONS.filter(([verb]) => candidate && (rollout.pause ? verb !== "pause" : verb !== "resume"));
  return (
    <div class="rollout">
      <p class="headline">
        <a href={rolloutHref(rollout.name)}>{rollout.name}</a>: {rollout.message || rollout.phase}
      </p>
      {candidate && <Split parts={revisions.map((one) => ({ name: `${one.role} v${one.version}`, share: one.weight }))} />}
      <p class="note">
        {[
          rollout.phase,
          rollout.stages ? `stage ${rollout.stage} of ${rollout.stages}` : "",
          rollout.stages ? `${duration(rollout.stageMs)} of at least ${duration(rollout.holdMs)}` : "",
          rollout.mirrorPercent ? `${rollout.mirrorPercent} % mirrored to the candidate` : "",
          rollout.pause ? `paused: ${rollout.pause}` : "",
          rollout.watch && rollout.watch !== "Off" ? `watch: ${rollout.watch}` : "",
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      {revisions.length > 0 && (
        <Table
          caption={`Versions of ${rollout.name}`}
          rows={revisions}
          rowKey={(one) => one.role}
          columns={[
            { heading: "Version", cell: (one) => `${one.role} v${one.version}` },
            { heading: "Weight", numeric: true, cell: (one) => `${one.weight} %` },
            { heading: "Requests", numeric: true, cell: (one) => count(one.requests) },
            { heading: "Failures", numeric: true, cell: (one) => <span class={one.failures ? "bad" : ""}>{one.requests ? percent(one.failures, one.requests) : "–"}</span> },
            { heading: "p99", numeric: true, cell: (one) => millis(one.p99Ms) },
          ]}
        />
      )}
      {actions && offered.length > 0 && (
        <div class="buttons start">
          {offered.map((one) => (
            <button type="button" key={one[0]} class={one[0] === "abort" ? "danger" : ""} onClick={() => setAction(one)}>
              {one[1]}
            </button>
          ))}
        </div>
      )}
      {action && (
        <Confirm title={`${action[1]}: ${rollout.name}`} verb={action[1]} close={() => setAction(null)} act={() => post<void>("/api/steer", { name: rollout.name, action: action[0] })}>
          <p>{action[2]}</p>
        </Confirm>
      )}
    </div>
  );
}

function History({ rollout }: { rollout: Rollout }) {
  if (rollout.history.length === 0) return null;
  return (
    <details>
      <summary>History</summary>
      <Table
        caption={`History of ${rollout.name}`}
        rows={rollout.history}
        rowKey={(entry) => `${entry.revision}${entry.startedMs}`}
        columns={[
          { heading: "Revision", cell: (entry) => <code>{entry.revision}</code> },
          { heading: "Outcome", cell: (entry) => entry.outcome },
          { heading: "Reason", wide: true, cell: (entry) => entry.reason || rollout.failed.find((one) => one.revision === entry.revision)?.message || "–" },
          { heading: "Started", extra: true, cell: (entry) => moment(entry.startedMs) },
          { heading: "Took", numeric: true, cell: (entry) => (entry.endedMs ? duration(entry.endedMs - entry.startedMs) : "–") },
        ]}
      />
    </details>
  );
}
