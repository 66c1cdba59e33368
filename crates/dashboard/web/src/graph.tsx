// A pipeline as a drawing: columns from the request to the response.
import type { Edge, PipelineDetail, Run } from "./api";
import { count, millis } from "./format";

const WIDTH = 176;
const HEIGHT = 62;
const GAP_X = 96;
const GAP_Y = 22;
const REQUEST = "";
const RESPONSE = "\u0000";

export interface StepFigures {
  runs: number;
  skipped: number;
  errors: number;
  meanMs: number | null;
  maxMs: number | null;
}

/** Figures of each step in the last runs. */
export function stepFigures(runs: Run[]): Map<string, StepFigures> {
  const found = new Map<string, { times: number[]; skipped: number; errors: number }>();
  const of = (step: string) => {
    const known = found.get(step) ?? { times: [], skipped: 0, errors: 0 };
    found.set(step, known);
    return known;
  };
  for (const run of runs) {
    for (const step of run.steps) {
      const entry = of(step.step);
      entry.times.push(step.ms);
      if (step.error) entry.errors += 1;
    }
    for (const step of run.skipped ?? []) of(step.step).skipped += 1;
  }
  const figures = new Map<string, StepFigures>();
  for (const [step, { times, skipped, errors }] of found) {
    const sum = times.reduce((all, one) => all + one, 0);
    figures.set(step, { runs: times.length, skipped, errors, meanMs: times.length ? sum / times.length : null, maxMs: times.length ? Math.max(...times) : null });
  }
  return figures;
}

/** The column of each node: one more than that of its last source. Cycles are cut. */
function columns(names: string[], edges: Edge[]): Map<string, number> {
  const column = new Map<string, number>([[REQUEST, 0]]);
  const visit = (node: string, path: Set<string>): number => {
    const known = column.get(node);
    if (known !== undefined) return known;
    if (path.has(node)) return 0;
    path.add(node);
    const sources = edges.filter((edge) => (edge.to ?? RESPONSE) === node).map((edge) => edge.from);
    const at = 1 + Math.max(0, ...sources.map((source) => visit(source, path)));
    path.delete(node);
    column.set(node, at);
    return at;
  };
  for (const name of names) visit(name, new Set());
  column.set(RESPONSE, 1 + Math.max(0, ...names.map((name) => column.get(name) ?? 0)));
  return column;
}

export function Graph({ detail }: { detail: PipelineDetail }) {
  const { steps, edges } = detail;
  const figures = stepFigures(detail.runs?.runs ?? []);
  const names = steps.map((step) => step.name);
  const column = columns(names, edges);
  const byColumn = new Map<number, string[]>();
  for (const node of [REQUEST, ...names, RESPONSE]) {
    const at = column.get(node) ?? 0;
    byColumn.set(at, [...(byColumn.get(at) ?? []), node]);
  }
  const tallest = Math.max(...[...byColumn.values()].map((nodes) => nodes.length));
  const height = tallest * (HEIGHT + GAP_Y) + GAP_Y;
  const width = (Math.max(...byColumn.keys()) + 1) * (WIDTH + GAP_X) - GAP_X + 8;
  const places = new Map<string, { x: number; y: number }>();
  for (const [at, nodes] of byColumn) {
    const used = nodes.length * (HEIGHT + GAP_Y) - GAP_Y;
    nodes.forEach((node, index) => places.set(node, { x: 4 + at * (WIDTH + GAP_X), y: (height - used) / 2 + index * (HEIGHT + GAP_Y) }));
  }
  const label = `Graph: ${edges.map((edge) => `${edge.from || "request"} to ${edge.to ?? "response"}${edge.trigger ? " as a trigger" : ""}`).join(", ")}`;
  return (
    <div class="scroll graph" tabIndex={0} role="group" aria-label="Graph of the pipeline, scrolls">
      <svg width={width} height={height} viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
            <path d="M0 0L8 4L0 8z" class="arrow" />
          </marker>
        </defs>
        {edges.map((edge) => {
          const from = places.get(edge.from);
          const to = places.get(edge.to ?? RESPONSE);
          if (!from || !to) return null;
          const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
          const bend = Math.max(24, Math.abs(x2 - x1) / 2);
          return (
            <g key={`${edge.from}>${edge.to}>${edge.label}>${edge.trigger}`}>
              <path class={edge.trigger ? "edge trigger" : "edge"} d={`M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 2} ${y2}`} marker-end="url(#arrow)" />
              {edge.label && (
                <text class="edge-label" x={(x1 + x2) / 2} y={(y1 + y2) / 2 + 4} text-anchor="middle">
                  {cut(edge.label, 14)}
                </text>
              )}
            </g>
          );
        })}
        {[...places].map(([node, { x, y }]) => {
          if (node === REQUEST || node === RESPONSE) {
            return (
              <g key={node} transform={`translate(${x} ${y})`}>
                <rect class="end" x={node === REQUEST ? WIDTH - 92 : 0} y={HEIGHT / 2 - 16} width="92" height="32" rx="16" />
                <text class="end-label" x={node === REQUEST ? WIDTH - 46 : 46} y={HEIGHT / 2 + 4} text-anchor="middle">
                  {node === REQUEST ? "request" : "response"}
                </text>
              </g>
            );
          }
          const step = steps.find((one) => one.name === node);
          const run = figures.get(node);
          const line = run && run.runs + run.skipped > 0 ? `${run.meanMs === null ? "skipped" : millis(run.meanMs)} · ${run.runs} of ${run.runs + run.skipped} runs` : "no run yet";
          return (
            <g key={node} transform={`translate(${x} ${y})`}>
              <rect class={`node ${step?.state ?? "failed"}`} width={WIDTH} height={HEIGHT} rx="8" />
              <rect class={`node-side ${step?.state ?? "failed"}`} width="4" height={HEIGHT - 16} x="0" y="8" rx="2" />
              <text class="node-name" x="14" y="23">
                {cut(node, 20)}
              </text>
              <text class="node-line" x="14" y="40">
                {line}
              </text>
              <text class="node-line" x="14" y="54">
                {`${count(step?.figures?.requests ?? 0)} requests in all`}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function cut(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
