import { render, type ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Overview as OverviewData } from "./api";
import { clock } from "./format";
import { useConnection, useLast, usePlace, usePoll, type Place } from "./hooks";
import { Apply } from "./pages/apply";
import { Events } from "./pages/events";
import { Experiment, Experiments } from "./pages/experiments";
import { Logs } from "./pages/logs";
import { Model } from "./pages/model";
import { Models } from "./pages/models";
import { Api } from "./pages/openapi";
import { Overview } from "./pages/overview";
import { Pipeline, Pipelines } from "./pages/pipelines";
import { Rollouts } from "./pages/rollouts";
import { Server, Servers } from "./pages/servers";
import { Empty, Failure, Loading, Title } from "./ui";

const NAVIGATION: [string, string][] = [
  ["", "Overview"],
  ["models", "Models"],
  ["servers", "Servers"],
  ["pipelines", "Pipelines"],
  ["experiments", "Experiments"],
  ["rollouts", "Rollouts"],
  ["events", "Events"],
  ["logs", "Logs"],
  ["api", "API"],
];

function App() {
  const at = usePlace();
  const [page = "", name] = at.path;
  // Other pages need of it what changes rarely.
  const polled = usePoll<OverviewData>("/api/overview", page === "" ? 2000 : 10_000);
  const overview = useLast(polled.data);
  const main = useRef<HTMLElement>(null);
  const path = at.path.join("/");
  const isFirst = useRef(true);
  useEffect(() => {
    const title = name ?? NAVIGATION.find(([id]) => id === page)?.[1] ?? "Gantry";
    document.title = `${title} · Gantry`;
    if (!isFirst.current) {
      window.scrollTo({ top: 0 });
      main.current?.querySelector<HTMLElement>("h1")?.focus({ preventScroll: true });
    }
    isFirst.current = false;
  }, [path]);
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <div class="frame">
        <header class="side">
          <a class="brand" href="#/">
            <img src="/assets/icon.svg" alt="" width="24" height="24" />
            <span>Gantry</span>
          </a>
          <nav aria-label="Pages">
            <ul>
              {NAVIGATION.map(([id, label]) => (
                <li key={id}>
                  <a href={`#/${id}`} {...(id === page ? { "aria-current": "page" as const } : {})}>
                    {label}
                    {count(overview, id)}
                  </a>
                </li>
              ))}
            </ul>
          </nav>
          <p class="side-note">{overview ? `${overview.version} · ${overview.actions ? "may change objects" : "read-only"}` : ""}</p>
        </header>
        <main id="main" ref={main} tabIndex={-1}>
          <Banner />
          {overview ? <Content at={at} overview={overview} /> : <div class="first">{polled.error ? <Failure error={polled.error} /> : <Loading />}</div>}
        </main>
      </div>
    </>
  );
}

function count(overview: OverviewData | null, id: string): ComponentChildren {
  const counts = overview?.counts as Record<string, { total: number; failed: number }> | undefined;
  const own = counts?.[id];
  if (!own || own.total === 0) return null;
  return (
    <span class={own.failed ? "nav-count bad" : "nav-count"} {...(own.failed ? { title: `${own.failed} of ${own.total} failed` } : {})}>
      {(own.failed || own.total).toLocaleString("en-US")}
      {own.failed ? <span class="hidden"> failed</span> : null}
    </span>
  );
}

function Content({ at, overview }: { at: Place; overview: OverviewData }) {
  const [page = "", name] = at.path;
  switch (page) {
    case "":
      return <Overview data={overview} />;
    case "models":
      return name ? <Model key={name} name={name} overview={overview} /> : <Models actions={overview.actions} />;
    case "servers":
      return name ? <Server key={name} name={name} /> : <Servers />;
    case "pipelines":
      return name ? <Pipeline key={name} name={name} overview={overview} /> : <Pipelines />;
    case "experiments":
      return name ? <Experiment key={name} name={name} /> : <Experiments />;
    case "rollouts":
      return <Rollouts actions={overview.actions} />;
    case "events":
      return <Events />;
    case "logs":
      return <Logs />;
    case "api":
      return <Api inference={overview.inference} />;
    case "apply":
      return overview.actions ? <Apply /> : <ReadOnly />;
    default:
      return (
        <>
          <Title>Not found</Title>
          <Empty>There is no page {at.path.join("/")}.</Empty>
        </>
      );
  }
}

function ReadOnly() {
  return (
    <>
      <Title>Apply a manifest</Title>
      <Empty>This dashboard is read-only: gantry up --dashboard-actions lets it change objects.</Empty>
    </>
  );
}

/** Why the data may be old or incomplete. */
function Banner() {
  const { lostAt, error, linked } = useConnection();
  const lines: string[] = [];
  if (lostAt !== null) lines.push(`${error[0]?.toUpperCase()}${error.slice(1)} since ${clock(lostAt)}: what is shown is that old. Trying again.`);
  else if (linked?.link.state === "lost") lines.push(`The scheduler has been unreachable since ${clock(linked.link.sinceMs)} (${linked.link.error}). Models keep serving; states below are that old.`);
  else if (linked) lines.push(...linked.notices);
  return (
    <div role="status" aria-live="polite">
      {lines.map((line) => (
        <p class="banner" key={line}>
          {line}
        </p>
      ))}
    </div>
  );
}

const root = document.getElementById("app")!;
root.replaceChildren();
render(<App />, root);
