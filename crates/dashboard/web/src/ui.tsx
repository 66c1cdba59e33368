// Parts that all pages share.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Counts, Explanation, Figures, ObjectState, Point, RequestFailed } from "./api";
import { NONE, bytes, clock, count, millis, percent, rate } from "./format";

const STATES: Record<ObjectState, string> = {
  ready: "Ready",
  progressing: "Progressing",
  failed: "Failed",
  idle: "Scaled to zero",
};

/** Shape and word, not colour alone. */
export function State({ state, label }: { state: ObjectState | null; label?: string }) {
  if (state === null) return <span class="state gone">{label ?? "Deleted"}</span>;
  return <span class={`state ${state}`}>{label ?? STATES[state]}</span>;
}

export function href(...path: string[]): string {
  return `#/${path.map(encodeURIComponent).join("/")}`;
}

const PAGES: Record<string, string> = {
  model: "models",
  server: "servers",
  pipeline: "pipelines",
  experiment: "experiments",
};

/** A link to an object by the kind of an event. */
export function ObjectLink({ kind, name }: { kind: string; name: string }) {
  const page = PAGES[kind];
  if (kind === "rollout") return <a href={rolloutHref(name)}>{name}</a>;
  return page ? <a href={href(page, name)}>{name}</a> : <>{name}</>;
}

export function rolloutHref(name: string): string {
  if (name.startsWith("pipeline/")) return href("pipelines", name.slice("pipeline/".length));
  if (name.startsWith("isvc/")) return href("models", name.split("/").at(-1) ?? "");
  return href("models", name);
}

export function Title({ children, kind, actions }: { children: ComponentChildren; kind?: string; actions?: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  return (
    <header class="title">
      <div>
        {kind && <p class="kind">{kind}</p>}
        <h1 ref={heading} tabIndex={-1}>
          {children}
        </h1>
      </div>
      {actions && <div class="actions">{actions}</div>}
    </header>
  );
}

export function Section({ title, children, aside, flush }: { title: string; children: ComponentChildren; aside?: ComponentChildren; flush?: boolean }) {
  const id = `section-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return (
    <section class={flush ? "card flush" : "card"} aria-labelledby={id}>
      <div class="card-head">
        <h2 id={id}>{title}</h2>
        {aside && <div class="aside">{aside}</div>}
      </div>
      {children}
    </section>
  );
}

export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

export function Loading() {
  return (
    <p class="empty" role="status">
      Loading…
    </p>
  );
}

export function Failure({ error, title }: { error: RequestFailed | string; title?: string }) {
  const text = typeof error === "string" ? error : error.message;
  return (
    <div class="failure" role="alert">
      {title && <strong>{title} </strong>}
      <span class="pre">{text}</span>
    </div>
  );
}

export interface Column<R> {
  heading: string;
  cell: (row: R) => ComponentChildren;
  numeric?: boolean;
  /** Takes the rest of the width, and is cut. */
  wide?: boolean;
  /** Left out on narrow screens. */
  extra?: boolean;
}

export function Table<R>({ caption, columns, rows, rowKey }: { caption: string; columns: Column<R>[]; rows: R[]; rowKey: (row: R) => string | number }) {
  const kind = (column: Column<R>) => [column.numeric && "num", column.wide && "wide", column.extra && "extra"].filter(Boolean).join(" ");
  return (
    <div class="scroll" tabIndex={0} role="group" aria-label={caption}>
      <table>
        <caption class="hidden">{caption}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.heading} scope="col" class={kind(column)}>
                {column.heading}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column, index) =>
                index === 0 ? (
                  <th key={column.heading} scope="row" class={kind(column)}>
                    {column.cell(row)}
                  </th>
                ) : (
                  <td key={column.heading} class={kind(column)}>
                    {column.cell(row)}
                  </td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Names and values. */
export function Facts({ facts }: { facts: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {facts.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export function Stat({ label, value, note, tone }: { label: string; value: string; note?: ComponentChildren; tone?: "bad" }) {
  return (
    <div class="stat">
      <div class="stat-label">{label}</div>
      <div class={tone === "bad" ? "stat-value bad" : "stat-value"}>{value}</div>
      {note !== undefined && <div class="stat-note">{note}</div>}
    </div>
  );
}

export function LoadStats({ figures }: { figures: Figures | undefined }) {
  const f = figures;
  return (
    <div class="stats">
      <Stat label="Requests/s" value={rate(f?.rate ?? 0)} note={`${count(f?.requests ?? 0)} since the start`} />
      <Stat label="Errors" value={f && f.requests > 0 ? percent(f.errors, f.requests) : NONE} note={`${count(f?.errors ?? 0)} since the start`} {...(f && f.errors > 0 ? { tone: "bad" as const } : {})} />
      <Stat label="p50" value={millis(f?.p50Ms)} note={f?.meanMs ? `mean ${millis(f.meanMs)}` : "no request yet"} />
      <Stat label="p99" value={millis(f?.p99Ms)} />
    </div>
  );
}

/** A summary such as `3 ready, 1 failed`. */
export function countsNote(counts: Counts): string {
  const parts: string[] = [];
  if (counts.failed) parts.push(`${count(counts.failed)} failed`);
  if (counts.progressing) parts.push(`${count(counts.progressing)} progressing`);
  if (counts.idle) parts.push(`${count(counts.idle)} scaled to zero`);
  return parts.length ? parts.join(", ") : counts.total ? "all ready" : "none";
}

export function Meter({ used, total, label }: { used: number; total: number; label: string }) {
  const share = total > 0 ? Math.min(100, (used / total) * 100) : 0;
  const text = `${bytes(used)} of ${bytes(total)}`;
  return (
    <div class="meter">
      <div class="meter-bar" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share)} aria-valuetext={text}>
        <div class={share > 90 ? "meter-fill full" : "meter-fill"} style={{ width: `${share}%` }} />
      </div>
      <span class="meter-text">{text}</span>
    </div>
  );
}

/** Weights of a split, side by side. */
export function Split({ parts }: { parts: { name: string; share: number }[] }) {
  const label = parts.map((part) => `${part.name} ${Math.round(part.share * 10) / 10} percent`).join(", ");
  return (
    <div class="split" role="img" aria-label={label}>
      {parts
        .filter((part) => part.share > 0)
        .map((part, index) => (
          <div key={part.name} class={`part part-${index % 4}`} style={{ flexGrow: part.share }} title={`${part.name}: ${part.share} %`}>
            {part.share >= 12 ? part.name : ""}
          </div>
        ))}
    </div>
  );
}

const WIDTH = 600;
const HEIGHT = 96;

/** Requests per second of the last minutes, errors in front. */
export function Curve({ points }: { points: Point[] }) {
  if (points.length < 2) return <Empty>The curve starts with the second measurement.</Empty>;
  const first = points[0]!.atMs;
  const last = points[points.length - 1]!.atMs;
  const top = Math.max(1, ...points.map((p) => p.rate));
  const x = (p: Point) => ((p.atMs - first) / Math.max(1, last - first)) * WIDTH;
  const y = (value: number) => HEIGHT - (value / top) * (HEIGHT - 6);
  const line = (value: (p: Point) => number) => points.map((p) => `${x(p).toFixed(1)},${y(value(p)).toFixed(1)}`).join(" ");
  const now = points[points.length - 1]!;
  const label = `Requests per second from ${clock(first)} to ${clock(last)}: now ${rate(now.rate)}, at most ${rate(top)}; errors per second now ${rate(now.errorRate)}`;
  return (
    <figure class="curve">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={label}>
        <line class="grid" x1="0" x2={WIDTH} y1={y(top)} y2={y(top)} />
        <line class="grid" x1="0" x2={WIDTH} y1={y(top / 2)} y2={y(top / 2)} />
        <line class="grid" x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
        <polygon class="area" points={`0,${HEIGHT} ${line((p) => p.rate)} ${WIDTH},${HEIGHT}`} />
        <polyline class="line" points={line((p) => p.rate)} />
        {points.some((p) => p.errorRate > 0) && <polyline class="line errors" points={line((p) => p.errorRate)} />}
      </svg>
      <figcaption>
        <span>{clock(first)}</span>
        <span>top {rate(top)}/s</span>
        <span>{clock(last)}</span>
      </figcaption>
    </figure>
  );
}

export function Explained({ explanation }: { explanation: Explanation | null }) {
  if (!explanation) return null;
  const ready = explanation.reason === "Ready";
  return (
    <div class={ready ? "explained" : "explained bad"}>
      <p class="headline">{explanation.headline}</p>
      {explanation.next && (
        <p class="next">
          <span>Next:</span> {explanation.next}
        </p>
      )}
      {explanation.facts.length > 0 && (
        <details open={!ready}>
          <summary>Details</summary>
          <dl class="facts rows">
            {explanation.facts.map((fact) => (
              <div key={fact.label}>
                <dt>{fact.label}</dt>
                <dd>
                  {fact.lines.map((line, index) => (
                    <div key={index} class="pre">
                      {line}
                    </div>
                  ))}
                </dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </div>
  );
}

export function Code({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = window.setTimeout(() => setCopied(false), 1500);
    return () => window.clearTimeout(timer);
  }, [copied]);
  const copy = () => void navigator.clipboard?.writeText(text).then(() => setCopied(true), () => setCopied(false));
  return (
    <div class="code">
      <button type="button" class="small" onClick={copy} aria-label={`Copy: ${label}`}>
        {copied ? "Copied" : "Copy"}
      </button>
      <pre tabIndex={0} role="group" aria-label={label}>
        {text}
      </pre>
    </div>
  );
}

export function Tabs<T extends string>({ label, tabs, selected, select }: { label: string; tabs: [T, string][]; selected: T; select: (tab: T) => void }) {
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const at = tabs.findIndex(([tab]) => tab === selected);
    const next = tabs[(at + step + tabs.length) % tabs.length]!;
    select(next[0]);
    const list = (event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=tab]");
    list[tabs.indexOf(next)]?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map(([tab, text]) => (
        <button type="button" key={tab} role="tab" aria-selected={tab === selected} tabIndex={tab === selected ? 0 : -1} onClick={() => select(tab)}>
          {text}
        </button>
      ))}
    </div>
  );
}

/** Asks before a change. */
export function Confirm({ title, children, verb, close, act }: { title: string; children: ComponentChildren; verb: string; close: () => void; act: () => Promise<void> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const run = async () => {
    setBusy(true);
    try {
      await act();
      close();
    } catch (failed) {
      setError(failed instanceof Error ? failed.message : String(failed));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={close} aria-label={title}>
      <h2>{title}</h2>
      {children}
      {error && <Failure error={error} />}
      <div class="buttons">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button type="button" class="danger" disabled={busy} onClick={() => void run()}>
          {verb}
        </button>
      </div>
    </dialog>
  );
}
