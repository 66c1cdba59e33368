// The inference API, as its own description has it.
import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { Code, Failure, Loading, Section, Title } from "../ui";

interface Schema {
  $ref?: string;
  type?: string;
  description?: string;
  example?: unknown;
}

interface Operation {
  summary?: string;
  description?: string;
  tags?: string[];
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: Schema }[];
  requestBody?: { content?: Record<string, { schema?: Schema; example?: unknown }> };
  responses?: Record<string, { description?: string; content?: Record<string, { schema?: Schema; example?: unknown }> }>;
}

interface Description {
  openapi: string;
  info: { title: string; version: string; description?: string };
  tags?: { name: string; description?: string }[];
  paths: Record<string, Record<string, Operation>>;
}

export function Api({ inference }: { inference: string }) {
  const [data, setData] = useState<Description | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    get<Description>("/api/openapi.json").then(setData, (failed: Error) => setError(failed.message));
  }, []);
  const operations = Object.entries(data?.paths ?? {}).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => ({ path, method, operation })));
  const groups = data?.tags ?? [{ name: "" }];
  return (
    <>
      <Title>API</Title>
      {error && <Failure error={error} />}
      {!data && !error && <Loading />}
      {data && (
        <p class="summary">
          {data.info.title}, described by <a href={`http://${inference}/openapi.json`}>/openapi.json</a> of the inference port, <code>http://{inference}</code>. gRPC serves the same as <code>inference.GRPCInferenceService</code>, with reflection.
        </p>
      )}
      {groups.map((group) => {
        const own = operations.filter(({ operation }) => !group.name || operation.tags?.includes(group.name));
        if (own.length === 0) return null;
        // What most clients need comes first.
        own.sort((a, b) => Number(b.path.endsWith("/infer")) - Number(a.path.endsWith("/infer")));
        return (
          <Section key={group.name} title={group.name || "Paths"} {...(group.description ? { aside: <span class="faint">{group.description}</span> } : {})}>
            {own.map(({ path, method, operation }) => (
              <details class="operation" key={`${method} ${path}`}>
                <summary>
                  <span class={`method ${method}`}>{method.toUpperCase()}</span> <code>{path}</code> <span class="faint">{operation.summary}</span>
                </summary>
                {operation.description && <p>{operation.description}</p>}
                {operation.parameters && operation.parameters.length > 0 && (
                  <dl class="facts rows">
                    {operation.parameters.map((parameter) => (
                      <div key={parameter.name}>
                        <dt>{parameter.name}</dt>
                        <dd>
                          {parameter.description} <span class="faint">({parameter.in})</span>
                        </dd>
                      </div>
                    ))}
                  </dl>
                )}
                <Code label={`${method} ${path} with curl`} text={command(inference, method, path, operation)} />
                <dl class="facts rows">
                  {Object.entries(operation.responses ?? {}).map(([code, response]) => (
                    <div key={code}>
                      <dt>{code}</dt>
                      <dd>{response.description}</dd>
                    </div>
                  ))}
                </dl>
              </details>
            ))}
          </Section>
        );
      })}
    </>
  );
}

function command(inference: string, method: string, path: string, operation: Operation): string {
  const example = operation.requestBody?.content?.["application/json"]?.example;
  const url = `http://${inference}${path}`;
  if (method === "get") return `curl '${url}'`;
  return `curl -X ${method.toUpperCase()} '${url}'${example === undefined ? "" : ` \\\n  -d '${JSON.stringify(example)}'`}`;
}
