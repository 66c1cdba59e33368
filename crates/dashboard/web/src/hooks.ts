import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { RequestFailed, get, type Linked } from "./api";

const INTERVAL = 2000;
const MAX_INTERVAL = 10_000;

/** What the banner shows about connections. */
export interface Connection {
  lostAt: number | null;
  error: string;
  linked: Linked | null;
}

let connection: Connection = { lostAt: null, error: "", linked: null };
const listeners = new Set<(connection: Connection) => void>();

function report(change: Partial<Connection>) {
  connection = { ...connection, ...change };
  for (const listener of listeners) listener(connection);
}

export function useConnection(): Connection {
  const [state, setState] = useState(connection);
  useEffect(() => {
    listeners.add(setState);
    return () => void listeners.delete(setState);
  }, []);
  return state;
}

export interface Polled<T> {
  data: T | null;
  error: RequestFailed | null;
  reload: () => void;
}

/** Reads a path again and again while the page is visible; slower after failures. Data of an earlier path stay until the first answer. */
export function usePoll<T>(path: string | null, interval = INTERVAL): Polled<T> {
  const [state, setState] = useState<{ data: T | null; error: RequestFailed | null }>({ data: null, error: null });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  useEffect(() => {
    if (path === null) return;
    const controller = new AbortController();
    let timer = 0;
    let delay = interval;
    const read = async () => {
      try {
        const data = await get<T>(path, controller.signal);
        delay = interval;
        report({ lostAt: null, error: "" });
        if (data && typeof data === "object" && "link" in data) report({ linked: data as unknown as Linked });
        setState({ data, error: null });
      } catch (error) {
        if (controller.signal.aborted) return;
        const failed = error instanceof RequestFailed ? error : new RequestFailed(String(error), 0);
        delay = Math.min(delay * 2, MAX_INTERVAL);
        if (failed.status === 0) report({ lostAt: connection.lostAt ?? Date.now(), error: failed.message });
        setState((before) => ({ data: before.data, error: failed }));
      }
      if (!document.hidden) timer = window.setTimeout(read, delay);
      else timer = 0;
    };
    const shown = () => {
      if (!document.hidden && timer === 0) void read();
    };
    document.addEventListener("visibilitychange", shown);
    void read();
    return () => {
      controller.abort();
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
    };
  }, [path, interval, round]);
  return { ...state, reload };
}

/** Path and parameters after `#`. */
export interface Place {
  path: string[];
  parameters: URLSearchParams;
}

export function place(): Place {
  const [path = "", search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const decode = (part: string) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { path: path.split("/").filter(Boolean).map(decode), parameters: new URLSearchParams(search) };
}

export function usePlace(): Place {
  const [state, setState] = useState(place);
  useEffect(() => {
    const changed = () => setState(place());
    window.addEventListener("hashchange", changed);
    return () => window.removeEventListener("hashchange", changed);
  }, []);
  return state;
}

/** Changes parameters of the place without an entry in the history. */
export function setParameters(change: Record<string, string>) {
  const { path, parameters } = place();
  for (const [name, value] of Object.entries(change)) {
    if (value) parameters.set(name, value);
    else parameters.delete(name);
  }
  const text = parameters.toString();
  history.replaceState(null, "", `#/${path.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}

/** The value after it did not change for a moment. */
export function useSettled<T>(value: T, delay = 150): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => setSettled(value), delay);
    return () => window.clearTimeout(timer);
  }, [value, delay]);
  return settled;
}

/** The current time, once a second. */
export function useNow(): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = window.setInterval(() => setNow(Date.now()), 1000);
    return () => window.clearInterval(timer);
  }, []);
  return now;
}

/** The last value that was not null. */
export function useLast<T>(value: T | null): T | null {
  const last = useRef(value);
  if (value !== null) last.current = value;
  return last.current;
}
