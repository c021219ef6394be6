// The part of the address after "#": which run, which view, which window; or which file of results. Links and "back" of
// the browser work with it.
import type { TimeWindow } from "./api";

/** In place of a run, for files of results; no run has this name. */
const FILES = "~";

export function addressOfResult(name: string): string {
  return `#/${FILES}/${encodeURIComponent(name)}`;
}

export class Place {
  /** Name of a file of results; "": a run is shown, or what there is. */
  result = $state("");
  run = $state("");
  view = $state("");
  window = $state<TimeWindow>({ begin_s: null, end_s: null });

  constructor() {
    this.read();
    addEventListener("hashchange", () => this.read());
  }

  go(change: { run?: string; view?: string; window?: TimeWindow }): void {
    const run = change.run ?? this.run;
    const view = change.view ?? this.view;
    const window = change.window ?? (change.run === undefined ? this.window : { begin_s: null, end_s: null });
    const parts = new URLSearchParams();
    if (window.begin_s !== null) parts.set("from", String(window.begin_s));
    if (window.end_s !== null) parts.set("to", String(window.end_s));
    const query = parts.toString();
    location.hash = `/${encodeURIComponent(run)}/${encodeURIComponent(view)}${query ? "?" + query : ""}`;
  }

  /** Completes the address, without a step in the history of the browser. */
  complete(run: string, view: string): void {
    const query = location.hash.split("?")[1];
    const path = `#/${encodeURIComponent(run)}/${encodeURIComponent(view)}`;
    history.replaceState(null, "", location.pathname + location.search + path + (query ? "?" + query : ""));
    this.read();
  }

  read(): void {
    const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
    const [run = "", view = ""] = path.split("/", 2);
    const parts = new URLSearchParams(query);
    const isResult = run === FILES;
    this.result = isResult ? decoded(view) : "";
    this.run = isResult ? "" : decoded(run);
    this.view = isResult ? "" : decoded(view);
    this.window = { begin_s: numberOf(parts.get("from")), end_s: numberOf(parts.get("to")) };
  }
}

/** The token that the address has when the page is opened first; it is taken out of the address. */
export function takeToken(): string | null {
  const found = /^#token=([^&]*)(.*)$/.exec(location.hash);
  if (!found) return null;
  history.replaceState(null, "", location.pathname + location.search + (found[2] ? `#${found[2].replace(/^&/, "")}` : ""));
  return found[1] ?? null;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function numberOf(text: string | null): number | null {
  const value = text === null ? NaN : Number(text);
  return Number.isFinite(value) ? value : null;
}
