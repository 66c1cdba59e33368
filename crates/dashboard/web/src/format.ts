export const NONE = "–";

export function count(value: number): string {
  return value.toLocaleString("en-US");
}

/** Such as `1 model` and `3 models`. */
export function plural(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function rate(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(1);
  return count(Math.round(value));
}

export function millis(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 100) return `${value.toFixed(1)} ms`;
  if (value < 10_000) return `${Math.round(value)} ms`;
  return `${(value / 1000).toFixed(1)} s`;
}

export function bytes(value: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? value : value.toFixed(1)} ${units[unit]}`;
}

export function percent(part: number, whole: number): string {
  if (whole === 0) return NONE;
  const value = (part / whole) * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

export function share(value: number): string {
  return `${Number.isInteger(value) ? value : value.toFixed(1)} %`;
}

export function duration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

export function ago(at: number | null | undefined, now: number): string {
  return at ? `${duration(now - at)} ago` : NONE;
}

export function clock(at: number): string {
  return new Date(at).toLocaleTimeString("en-GB");
}

export function moment(at: number): string {
  return at ? new Date(at).toLocaleString("en-GB") : NONE;
}

export function owner(text: string): string {
  return text === "" ? NONE : text;
}
