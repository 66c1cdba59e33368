import { useEffect, useRef, useState } from "preact/hooks";
import { Empty, Failure, Title } from "../ui";

/** Older lines are dropped. */
const KEPT = 2000;

interface Line {
  number: number;
  text: string;
}

/** The log of this process, followed while the page is open. */
export function Logs() {
  const [lines, setLines] = useState<Line[]>([]);
  const [error, setError] = useState("");
  const [level, setLevel] = useState("");
  const [search, setSearch] = useState("");
  const [follows, setFollows] = useState(true);
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    let number = 0;
    const read = async () => {
      try {
        const response = await fetch("/logs?follow=1&lines=500", { signal: controller.signal });
        if (!response.ok || !response.body) throw new Error((await response.text()).trim());
        setError("");
        setLines([]);
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          const all = (rest + value).split("\n");
          rest = all.pop() ?? "";
          const added = all.map((text) => ({ number: (number += 1), text }));
          if (added.length) setLines((before) => [...before, ...added].slice(-KEPT));
        }
        throw new Error("the log ended: Gantry is stopping, or the connection closed");
      } catch (failed) {
        if (controller.signal.aborted) return;
        setError(failed instanceof TypeError ? "no connection to Gantry" : failed instanceof Error ? failed.message : String(failed));
        timer = window.setTimeout(() => void read(), 2000);
      }
    };
    void read();
    return () => {
      controller.abort();
      window.clearTimeout(timer);
    };
  }, []);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = lines.filter(({ text }) => (!level || levelOf(text) === level || (level === "WARN" && levelOf(text) === "ERROR")) && words.every((word) => text.toLowerCase().includes(word)));
  useEffect(() => {
    if (follows) box.current?.scrollTo({ top: box.current.scrollHeight });
  }, [shown.length, follows]);
  return (
    <>
      <Title>Logs</Title>
      <div class="filters">
        <label class="hidden" for="search">
          Search lines
        </label>
        <input id="search" type="search" placeholder="Search, such as model=iris" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        <div class="chips" role="group" aria-label="Level">
          {[
            ["", "All"],
            ["WARN", "Warnings and errors"],
            ["ERROR", "Errors"],
          ].map(([value, label]) => (
            <button type="button" key={value} aria-pressed={level === value} onClick={() => setLevel(value!)}>
              {label}
            </button>
          ))}
        </div>
        <label class="check">
          <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} /> Follow
        </label>
      </div>
      {error && <Failure error={error} />}
      <div class="log" ref={box} tabIndex={0} role="log" aria-label="Log lines" aria-live="off">
        {shown.length === 0 && !error && <Empty>{lines.length ? "No line matches." : "No line yet."}</Empty>}
        {shown.map(({ number, text }) => (
          <div key={number} class={`log-line ${levelOf(text).toLowerCase()}`}>
            {text}
          </div>
        ))}
      </div>
    </>
  );
}

function levelOf(line: string): string {
  return /^\S+ (ERROR|WARN|INFO|DEBUG|TRACE) /.exec(line)?.[1] ?? /"level":"([A-Z]+)"/.exec(line)?.[1] ?? "INFO";
}
