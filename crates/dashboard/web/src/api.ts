// The data of the pages, as crates/dashboard/src/api sends it.

export type ObjectState = "ready" | "progressing" | "failed" | "idle";

export interface Figures {
  requests: number;
  errors: number;
  rate: number;
  errorRate: number;
  meanMs: number | null;
  p50Ms: number | null;
  p99Ms: number | null;
}

export interface Row {
  name: string;
  state: ObjectState;
  message: string;
  owner: string;
  figures?: Figures;
}

export interface ModelRow extends Row {
  version: number;
  server: string;
  available: number;
  desired: number;
  sinceMs: number | null;
  requirements: string[];
  memoryBytes: number | null;
  namespace: string | null;
}

export interface Process {
  server: string;
  replica: number;
  state: string;
  command: string;
  pid: number | null;
  failures: number;
  lastEnd: string;
  lastLines: string[];
}

export interface ReplicaRow {
  replica: number;
  models: number;
  memoryBytes: number;
  freeBytes: number;
  overCommitPercentage: number;
  figures?: Figures;
  process?: Process;
}

export interface ServerRow extends Row {
  available: number;
  expected: number;
  models: number;
  memoryBytes: number;
  freeBytes: number;
  replicas: ReplicaRow[];
}

export interface PipelineRow extends Row {
  version: number;
  steps: string[];
  sinceMs: number | null;
}

export interface Candidate {
  name: string;
  share: number;
  figures?: Figures;
}

export interface ExperimentRow extends Row {
  target: string;
  of: "model" | "pipeline";
  candidates: Candidate[];
  mirror: Candidate | null;
  sticky: boolean;
}

export interface Revision {
  revision: string;
  version: number;
  weight: number;
  ready: boolean;
  requests: number;
  failures: number;
  p99Ms: number | null;
  replicas: number;
}

export interface Rollout {
  name: string;
  policy: string;
  phase: string;
  message: string;
  stable: Revision | null;
  candidate: Revision | null;
  stage: number;
  stages: number;
  mirrorPercent: number;
  pause: string;
  stageMs: number;
  holdMs: number;
  watch: string;
  previous: string;
  failed: { revision: string; reason: string; message: string; atMs: number }[];
  history: { revision: string; startedMs: number; endedMs: number; outcome: string; reason: string }[];
}

export interface Policy {
  name: string;
  models: string[];
  pipelines: string[];
  owner: string;
  spec: unknown;
}

export interface Event {
  number: number;
  atMs: number;
  kind: string;
  name: string;
  state: ObjectState | null;
  message: string;
  version: number;
}

export type Link = { state: "connecting" } | { state: "live" } | { state: "lost"; sinceMs: number; error: string };

export interface Counts {
  total: number;
  ready: number;
  progressing: number;
  failed: number;
  idle: number;
}

export interface Linked {
  link: Link;
  notices: string[];
}

export interface Page<R> extends Linked {
  total: number;
  counts: Counts;
  matched: number;
  offset: number;
  rows: R[];
}

export interface Point {
  atMs: number;
  rate: number;
  errorRate: number;
  p50Ms: number | null;
  p99Ms: number | null;
}

export interface Attention {
  kind: string;
  name: string;
  /** Further objects with the same reason. */
  others: number;
  state: ObjectState;
  message: string;
  headline: string | null;
  next: string | null;
}

export interface Overview extends Linked {
  version: string;
  nowMs: number;
  actions: boolean;
  inference: string;
  authRequired: boolean;
  counts: { models: Counts; servers: Counts; pipelines: Counts; experiments: Counts };
  figures: Figures;
  history: Point[];
  attention: Attention[];
  busiest: ModelRow[];
  servers: ServerRow[];
  rollouts: Rollout[];
  events: Event[];
}

export interface Explanation {
  headline: string;
  reason: string;
  facts: { label: string; lines: string[] }[];
  next: string;
}

export interface ReplicaStatus {
  replica: number;
  state: string;
  reason: string;
  sinceMs: number | null;
}

export interface Version {
  version: number;
  state: string;
  reason: string;
  server?: string;
  available?: number;
  desired?: number;
  sinceMs: number | null;
  storageUri?: string | null;
  replicas?: ReplicaStatus[];
}

export interface ModelDetail {
  row: ModelRow;
  explanation: Explanation | null;
  versions: Version[];
  manifest: string | null;
  rollout: Rollout | null;
}

export interface ServerDetail {
  row: ServerRow;
  explanation: Explanation | null;
  processes: Process[];
}

export interface Edge {
  from: string;
  to: string | null;
  label: string;
  trigger: boolean;
}

export interface Run {
  request_id: string;
  time_ms: number;
  version: number;
  ms: number;
  error?: string;
  steps: { step: string; start_ms: number; ms: number; replica?: string; error?: string; model?: string }[];
  skipped: { step: string; reason?: string }[];
}

export interface PipelineDetail {
  row: PipelineRow;
  explanation: Explanation | null;
  steps: { name: string; state: ObjectState | null; figures?: Figures }[];
  edges: Edge[];
  inputs: { tensor: string; step: string; input: string | null }[];
  runs: { runs: Run[] } | null;
  versions: Version[];
  manifest: string;
  rollout: Rollout | null;
}

export interface ExperimentDetail {
  row: ExperimentRow;
  explanation: Explanation | null;
  manifest: string | null;
}

export interface Tensor {
  name: string;
  datatype: string;
  shape: number[];
}

export interface Metadata {
  name: string;
  versions?: string[];
  platform?: string;
  inputs?: Tensor[];
  outputs?: Tensor[];
}

export interface PlannedChange {
  kind: string;
  name: string;
  action: "unchanged" | "create" | "update" | "adjust" | "delete" | "refuse" | "put";
  fromVersion?: number;
  toVersion?: number;
  effects: string[];
}

/** A response that is not 2xx, or none. */
export class RequestFailed extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

const TIMEOUT = 15_000;
/** Without it, the server refuses anything but reading. */
const HEADERS = { "x-gantry-dashboard": "1" };

async function send(path: string, init: RequestInit): Promise<Response> {
  const timeout = AbortSignal.timeout(TIMEOUT);
  const signal = init.signal ? AbortSignal.any([init.signal, timeout]) : timeout;
  try {
    return await fetch(path, { ...init, headers: { ...HEADERS, ...init.headers }, signal, cache: "no-store" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new RequestFailed(timeout.aborted ? "Gantry did not answer in time" : "no connection to Gantry", 0);
  }
}

async function failure(response: Response): Promise<RequestFailed> {
  const text = await response.text();
  try {
    const parsed = JSON.parse(text) as { error?: unknown };
    if (typeof parsed.error === "string") return new RequestFailed(parsed.error, response.status);
  } catch {
    // Not JSON: the text is the message.
  }
  return new RequestFailed(text.trim() || `HTTP ${response.status}`, response.status);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await send(path, signal ? { signal } : {});
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  const headers = { "content-type": "application/json" };
  const response = await send(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!response.ok) throw await failure(response);
  return (await response.json()) as T;
}

export interface InferAnswer {
  status: number;
  text: string;
  tookMs: number | null;
  route: string | null;
  requestId: string | null;
}

/** Sends the body unchanged, and returns any answer of the inference port. */
export async function infer(path: string, body: string, authorization: string): Promise<InferAnswer> {
  const headers: Record<string, string> = { "content-type": "application/json" };
  if (authorization) headers["authorization"] = authorization;
  const response = await send(path, { method: "POST", headers, body });
  const took = response.headers.get("x-gantry-took-ms");
  return {
    status: response.status,
    text: await response.text(),
    tookMs: took === null ? null : Number(took),
    route: response.headers.get("x-seldon-route"),
    requestId: response.headers.get("x-request-id"),
  };
}

/** Path with its query; empty parameters are left out. */
export function query(path: string, parameters: Record<string, string | number | boolean | undefined>): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== "" && value !== false) search.set(name, String(value));
  }
  const text = search.toString();
  return text ? `${path}?${text}` : path;
}
