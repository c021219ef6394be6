// All views: every file in views/ is one. It exports `view` and draws what the server answers for its name.
import type { Component } from "svelte";
import type { ViewProps } from "./lib/view";

export interface View {
  /** Of the request, and of the address. */
  name: string;
  title: string;
  /** Place in the list of views. */
  order: number;
}

interface ViewFile {
  default: Component<ViewProps>;
  view: View;
}

const files = import.meta.glob<ViewFile>("./views/*.svelte", { eager: true });

export const VIEWS = Object.values(files)
  .map((file) => ({ ...file.view, component: file.default }))
  .sort((first, second) => first.order - second.order);
