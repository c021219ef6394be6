// All kinds of results: every file in results/ is one. It exports `result` and draws what the server answers for a file.
import type { Component } from "svelte";
import type { ResultProps } from "./lib/result";

export interface Result {
  /** Of the kind, as in the list of results. */
  kind: string;
  /** Whether what is drawn can be saved as a picture. */
  hasPicture: boolean;
}

interface ResultFile {
  default: Component<ResultProps>;
  result: Result;
}

const files = import.meta.glob<ResultFile>("./results/*.svelte", { eager: true });

export const RESULTS = new Map(Object.values(files).map((file) => [file.result.kind, { ...file.result, component: file.default }]));
