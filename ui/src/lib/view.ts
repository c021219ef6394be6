import type { RunSummary, TimeWindow } from "./api";
import type { TimeZone } from "./format";
import type { LiveFeed } from "./live.svelte";

export interface ViewProps {
  run: RunSummary;
  window: TimeWindow;
  zone: TimeZone;
  isDark: boolean;
  /** Of the run, if it goes on. */
  feed: LiveFeed | null;
  onwindow: (window: TimeWindow) => void;
}
