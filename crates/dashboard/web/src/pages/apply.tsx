import { useEffect, useState } from "preact/hooks";
import { get, post, type ModelDetail, type PlannedChange } from "../api";
import { usePlace } from "../hooks";
import { Empty, Failure, ObjectLink, Section, Table, Title } from "../ui";

interface Result {
  kind: string;
  name: string;
  error: string | null;
}

const VERBS: Record<PlannedChange["action"], string> = {
  unchanged: "unchanged",
  create: "new",
  update: "new version",
  adjust: "adjusted",
  delete: "deleted",
  refuse: "refused",
  put: "applied without a dry run",
};

/** A manifest: its differences first, then it is applied. */
export function Apply() {
  const { parameters } = usePlace();
  const model = parameters.get("model");
  const [manifest, setManifest] = useState("");
  const [plan, setPlan] = useState<{ of: string; changes: PlannedChange[] } | null>(null);
  const [results, setResults] = useState<Result[] | null>(null);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    if (!model) return;
    get<ModelDetail>(`/api/models/${encodeURIComponent(model)}`).then(
      (detail) => setManifest(detail.manifest ?? ""),
      (failed: Error) => setError(failed.message),
    );
  }, [model]);
  const run = async (what: () => Promise<void>) => {
    setBusy(true);
    setError("");
    try {
      await what();
    } catch (failed) {
      setError(failed instanceof Error ? failed.message : String(failed));
    }
    setBusy(false);
  };
  const diff = () =>
    run(async () => {
      setResults(null);
      setPlan(null);
      const { changes } = await post<{ changes: PlannedChange[] }>("/api/plan", { manifest });
      setPlan({ of: manifest, changes });
    });
  const apply = () =>
    run(async () => {
      const applied = await post<{ results: Result[] }>("/api/apply", { manifest });
      setResults(applied.results);
      setPlan(null);
    });
  const refused = plan?.changes.some((change) => change.action === "refuse") ?? false;
  const isCurrent = plan !== null && plan.of === manifest;
  return (
    <>
      <Title>Apply a manifest</Title>
      <Section title="Manifest">
        <div class="field">
          <label for="manifest">YAML of Models, Servers, Pipelines, Experiments or RolloutPolicies</label>
          <textarea id="manifest" class="tall" spellcheck={false} rows={16} value={manifest} onInput={(event) => setManifest(event.currentTarget.value)} />
        </div>
        {error && <Failure error={error} />}
        <div class="buttons start">
          <button type="button" class={isCurrent ? "" : "primary"} disabled={busy || manifest.trim() === ""} onClick={() => void diff()}>
            Show the differences
          </button>
          <button type="button" class={isCurrent ? "primary" : ""} disabled={busy || !isCurrent || refused} onClick={() => void apply()}>
            Apply
          </button>
        </div>
      </Section>
      <div aria-live="polite">
        {plan && (
          <Section title={isCurrent ? "Differences" : "Differences of an earlier text"} flush>
            {plan.changes.length === 0 ? (
              <Empty>Nothing would change.</Empty>
            ) : (
              <Table
                caption="Differences"
                rows={plan.changes}
                rowKey={(change) => `${change.kind}/${change.name}`}
                columns={[
                  { heading: "Object", cell: (change) => `${change.kind}/${change.name}` },
                  { heading: "Change", cell: (change) => <span class={change.action === "refuse" || change.action === "delete" ? "bad" : ""}>{VERBS[change.action]}{change.action === "update" ? ` ${change.fromVersion} → ${change.toVersion}` : ""}</span> },
                  { heading: "Effects", wide: true, cell: (change) => change.effects.map((effect) => <div key={effect}>{effect}</div>) },
                ]}
              />
            )}
          </Section>
        )}
        {results && (
          <Section title="Applied" flush>
            <Table
              caption="Applied"
              rows={results}
              rowKey={(result) => `${result.kind}/${result.name}`}
              columns={[
                { heading: "Object", cell: (result) => <><ObjectLink kind={result.kind} name={result.name} /> <span class="kind-tag">{result.kind}</span></> },
                { heading: "Result", wide: true, cell: (result) => (result.error ? <span class="bad">{result.error}</span> : "applied") },
              ]}
            />
          </Section>
        )}
      </div>
    </>
  );
}
