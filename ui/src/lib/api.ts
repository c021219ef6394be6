// Requests to the server of this page. Paths are relative to the page, so that they pass any proxy.
import type { components } from "./schema";

export type Schemas = components["schemas"];
export type RunList = Schemas["RunList"];
export type RunSummary = Schemas["RunSummary"];
export type Overview = Schemas["OverviewView"];
export type Timeline = Schemas["TimelineView"];
export type ResultList = Schemas["ResultList"];
export type ResultListed = Schemas["ResultListed"];

/** A request that the server refuses, or that did not reach it (status 0). */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** The part of a run that views show: null is "from its begin" or "to its end". */
export interface TimeWindow {
  begin_s: number | null;
  end_s: number | null;
}

export function address(path: string, parameters: Record<string, string | number | null | undefined> = {}): string {
  const chosen = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined);
  const query = new URLSearchParams(chosen.map(([name, value]) => [name, String(value)])).toString();
  return `./v1/${path}${query ? "?" + query : ""}`;
}

export async function get<T>(
  path: string,
  parameters: Record<string, string | number | null | undefined> = {},
  signal?: AbortSignal,
): Promise<T> {
  if (answers) {
    const found = answers[decodeURIComponent(path)];
    if (found === undefined) throw new RequestError(404, `this file does not have ${path}`);
    return found as T;
  }
  return (await asked(address(path, parameters), signal ? { signal } : {})) as T;
}

/** Exchanges the token of the address for a cookie that scripts cannot read. */
export async function openSession(token: string): Promise<void> {
  await asked(address("session"), { method: "POST", headers: { authorization: `Bearer ${token}` } });
}

export function runPath(run: string, rest = ""): string {
  return `runs/${encodeURIComponent(run)}${rest}`;
}

export function viewPath(run: RunSummary, view: string): string {
  return runPath(run.run, `/views/${view}`);
}

let refused: () => void = () => undefined;

/** Has a function called when the server wants the token again: a session lasts for some hours. */
export function whenRefused(call: () => void): void {
  refused = call;
}

export function resultPath(name: string): string {
  return `results/${encodeURIComponent(name)}`;
}

/** Answers by path, if this page is a file that has them: then there is no server. */
const answers: Record<string, unknown> | null = readAnswers();
export const isFile = answers !== null;

/** Whether this page can show a view of a run: a file has the views of its run only, of the whole run. */
export function hasView(run: string, view: string): boolean {
  return answers === null || `runs/${run}/views/${view}` in answers;
}

function readAnswers(): Record<string, unknown> | null {
  const text = document.getElementById("answers")?.textContent;
  return text ? (JSON.parse(text) as Record<string, unknown>) : null;
}

async function asked(url: string, options: RequestInit): Promise<unknown> {
  let response: Response;
  try {
    response = await fetch(url, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new RequestError(0, "the server does not answer");
  }
  const content: unknown = await response.json().catch(() => null);
  if (!response.ok) {
    const text = content && typeof content === "object" && "error" in content ? String(content.error) : response.statusText;
    if (response.status === 401) refused();
    throw new RequestError(response.status, text);
  }
  return content;
}
