// The form that sends a request to a model or a pipeline.
import { useEffect, useState } from "preact/hooks";
import { get, infer, type InferAnswer, type Metadata, type Tensor } from "./api";
import { millis } from "./format";
import { body, build, curl, pythonRest, pythonTriton, shapeText, zeros, type Built } from "./request";
import { Code, Empty, Failure, Section, Table, Tabs } from "./ui";

interface Props {
  /** `models` or `pipelines`. */
  kind: "models" | "pipelines";
  name: string;
  /** Where clients send it. */
  url: string;
  address: string;
  auth: boolean;
  ready: boolean;
  /** Reads the inputs; those of a model by default. */
  load?: (signal: AbortSignal) => Promise<Metadata>;
}

export function RequestForm({ kind, name, url, address, auth, ready, load }: Props) {
  const [metadata, setMetadata] = useState<Metadata | null>(null);
  const [problem, setProblem] = useState("");
  const [values, setValues] = useState<Record<string, string>>({});
  const [raw, setRaw] = useState<string | null>(null);
  const [credential, setCredential] = useState("");
  const [answer, setAnswer] = useState<InferAnswer | null>(null);
  const [failed, setFailed] = useState("");
  const [busy, setBusy] = useState(false);
  const [language, setLanguage] = useState<"curl" | "python" | "triton">("curl");
  useEffect(() => {
    if (!ready) return;
    const controller = new AbortController();
    const read = load ?? ((signal: AbortSignal) => get<Metadata>(`/api/${kind}/${encodeURIComponent(name)}/metadata`, signal));
    read(controller.signal)
      .then((found) => {
        setMetadata(found);
        setProblem("");
        setValues((before) => ({ ...Object.fromEntries((found.inputs ?? []).map((input) => [input.name, zeros(input)])), ...before }));
      })
      .catch((error: Error) => !controller.signal.aborted && setProblem(error.message));
    return () => controller.abort();
  }, [kind, name, ready]);

  const inputs = metadata?.inputs ?? [];
  const isRaw = raw !== null || inputs.length === 0;
  const built: (Built | string)[] = inputs.map((input) => {
    try {
      return build(input, values[input.name] ?? "");
    } catch (error) {
      return error instanceof Error ? error.message : String(error);
    }
  });
  const complete = built.every((one): one is Built => typeof one !== "string") ? (built as Built[]) : null;
  const json = isRaw ? (raw ?? EXAMPLE) : complete ? body(complete) : null;

  const send = async (event: Event) => {
    event.preventDefault();
    if (json === null) return;
    setBusy(true);
    setFailed("");
    try {
      setAnswer(await infer(`/api/${kind}/${encodeURIComponent(name)}/infer`, json, credential));
    } catch (error) {
      setAnswer(null);
      setFailed(error instanceof Error ? error.message : String(error));
    }
    setBusy(false);
  };

  return (
    <>
      <Section title="Send a request">
        {problem && <Failure error={problem} title="Inputs are not known:" />}
        {!ready && !metadata && <Empty>The form appears when the {kind === "models" ? "model" : "pipeline"} is ready.</Empty>}
        {(metadata || problem) && (
          <form onSubmit={(event) => void send(event)}>
            {!isRaw &&
              inputs.map((input, index) => {
                const one = built[index]!;
                const text = typeof one === "string" ? one : one.problem;
                const id = `input-${index}`;
                return (
                  <div class="field" key={input.name}>
                    <label for={id}>
                      {input.name}{" "}
                      <span class="type">
                        {input.datatype} {shapeText(input.shape)}
                      </span>
                    </label>
                    <textarea
                      id={id}
                      spellcheck={false}
                      rows={Math.min(8, (values[input.name] ?? "").split("\n").length)}
                      value={values[input.name] ?? ""}
                      aria-invalid={text !== ""}
                      aria-describedby={`${id}-note`}
                      onInput={(event) => setValues({ ...values, [input.name]: event.currentTarget.value })}
                    />
                    <p id={`${id}-note`} class={text ? "note bad" : "note"}>
                      {text || `sent with the shape ${shapeText((one as Built).shape)}`}
                    </p>
                  </div>
                );
              })}
            {isRaw && (
              <div class="field">
                <label for="raw">Request as JSON</label>
                <textarea id="raw" spellcheck={false} rows={8} value={raw ?? EXAMPLE} onInput={(event) => setRaw(event.currentTarget.value)} />
              </div>
            )}
            {auth && (
              <div class="field">
                <label for="credential">
                  Authorization <span class="type">not stored</span>
                </label>
                <input id="credential" type="password" autocomplete="off" placeholder="Bearer …" value={credential} onInput={(event) => setCredential(event.currentTarget.value)} />
              </div>
            )}
            <div class="buttons start">
              <button type="submit" class="primary" disabled={busy || json === null}>
                {busy ? "Sending…" : "Send"}
              </button>
              {inputs.length > 0 && (
                <button type="button" onClick={() => setRaw(isRaw ? null : (json ?? EXAMPLE))}>
                  {isRaw ? "Edit values" : "Edit as JSON"}
                </button>
              )}
            </div>
          </form>
        )}
        <div aria-live="polite">
          {failed && <Failure error={failed} />}
          {answer && <Answer answer={answer} />}
        </div>
      </Section>
      {metadata && tensors(metadata).length > 0 && (
        <Section title="Inputs and outputs" flush {...(metadata.platform ? { aside: <span class="faint">{metadata.platform}</span> } : {})}>
          <Table
            caption="Inputs and outputs"
            rows={tensors(metadata)}
            rowKey={(row) => `${row.direction} ${row.name}`}
            columns={[
              { heading: "Tensor", wide: true, cell: (row) => row.name },
              { heading: "Direction", cell: (row) => row.direction },
              { heading: "Datatype", cell: (row) => row.datatype },
              { heading: "Shape", cell: (row) => shapeText(row.shape) },
            ]}
          />
        </Section>
      )}
      {json !== null && (metadata || problem) && (
        <Section title="The same request">
          <Tabs label="Language" tabs={[["curl", "curl"], ["python", "Python"], ["triton", "tritonclient"]]} selected={language} select={setLanguage} />
          {language === "curl" && <Code label="The request with curl" text={curl(url, json, auth)} />}
          {language === "python" && <Code label="The request in Python" text={pythonRest(url, json, auth)} />}
          {language === "triton" &&
            (complete && !isRaw ? <Code label="The request with tritonclient" text={pythonTriton(address, name, complete, auth)} /> : <Empty>tritonclient takes typed inputs: edit the values instead of the JSON.</Empty>)}
        </Section>
      )}
    </>
  );
}

function tensors(metadata: Metadata): (Tensor & { direction: string })[] {
  const inputs = (metadata.inputs ?? []).map((tensor) => ({ ...tensor, direction: "input" }));
  return [...inputs, ...(metadata.outputs ?? []).map((tensor) => ({ ...tensor, direction: "output" }))];
}

const EXAMPLE = `{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[0]}]}`;

interface Output {
  name: string;
  datatype: string;
  shape: number[];
  data?: unknown[];
}

interface Parsed {
  outputs?: Output[];
  error?: string;
  model_version?: string;
}

function parse(text: string): Parsed | null {
  try {
    return JSON.parse(text) as Parsed | null;
  } catch {
    return null;
  }
}

function Answer({ answer }: { answer: InferAnswer }) {
  const parsed = parse(answer.text);
  const facts = [`HTTP ${answer.status}`, answer.tookMs === null ? "" : millis(answer.tookMs), parsed?.model_version ? `version ${parsed.model_version}` : "", answer.requestId ? `request ${answer.requestId}` : ""];
  if (answer.status >= 300) {
    return (
      <>
        <Failure error={parsed?.error ?? answer.text} title={`HTTP ${answer.status}:`} />
        <p class="note">{facts.slice(1).filter(Boolean).join(" · ")}</p>
      </>
    );
  }
  return (
    <div class="answer">
      <p class="note">{facts.filter(Boolean).join(" · ")}</p>
      {(parsed?.outputs ?? []).map((output) => (
        <div key={output.name} class="output">
          <div>
            <strong>{output.name}</strong>{" "}
            <span class="type">
              {output.datatype} {shapeText(output.shape)}
            </span>
          </div>
          <pre tabIndex={0} role="group" aria-label={`Output ${output.name}`}>
            {rows(output)}
          </pre>
        </div>
      ))}
      {!parsed?.outputs && <Code label="The answer" text={answer.text} />}
    </div>
  );
}

const MAX_VALUES = 2000;

/** One line for each row of the last dimension. */
function rows(output: Output): string {
  const data = output.data ?? [];
  const width = Math.max(1, output.shape.at(-1) ?? 1);
  const lines: string[] = [];
  for (let at = 0; at < Math.min(data.length, MAX_VALUES); at += width) lines.push(data.slice(at, at + width).map((value) => JSON.stringify(value)).join(", "));
  if (data.length > MAX_VALUES) lines.push(`… ${data.length - MAX_VALUES} more values`);
  return lines.join("\n");
}
