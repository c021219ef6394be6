// Makes the picture of a timeline: of what the server answers, or of what it sends while a run goes on.

import type { Timeline, TimeWindow } from "./api";
import { orderOf } from "./layers";
import type { LiveFeed } from "./live.svelte";
import type { Lane, TimelinePicture } from "./timeline";

/** A run that has just begun has so long a picture. */
const LEAST_S = 5;

/** `part` is what is drawn of it; null: from its begin, or to its end. */
export function pictureOf(found: Timeline, part: TimeWindow | null = null): TimelinePicture {
  const first_span = Math.floor(found.begin_s / found.width_s + 1e-9);
  const num_spans = Math.max(1, Math.round((found.end_s - found.begin_s) / found.width_s));
  const lanes: Lane[] = found.lanes.map((each) => ({
    label: each.label,
    isFirst: false,
    layer: each.layer,
    busy: new Float32Array(num_spans),
    count: new Float64Array(num_spans),
    events: [],
  }));
  const cells = found.cells;
  for (let place = 0; place < cells.lane.length; place += 1) {
    const lane = lanes[cells.lane[place] ?? -1];
    const at = (cells.span[place] ?? 0) - first_span;
    if (!lane || at < 0 || at >= num_spans) continue;
    const parallel = found.lanes[cells.lane[place] ?? -1]?.num_processes ?? 1;
    lane.busy[at] = (cells.busy_s[place] ?? 0) / found.width_s / parallel;
    lane.count[at] = cells.count[place] ?? 0;
  }
  const events = found.events;
  if (events) {
    for (let place = 0; place < events.lane.length; place += 1) {
      lanes[events.lane[place] ?? -1]?.events.push({
        began_s: events.began_s[place] ?? 0,
        ended_s: events.ended_s[place] ?? 0,
        name: events.name[place] ?? "",
      });
    }
  }
  markFirst(lanes);
  const clock_error_s = found.clock_error_s ?? null;
  const begin_s = Math.min(Math.max(part?.begin_s ?? found.begin_s, found.begin_s), found.end_s - found.width_s);
  const end_s = Math.max(Math.min(part?.end_s ?? found.end_s, found.end_s), begin_s + found.width_s);
  return { begin_s, end_s, width_s: found.width_s, first_span, lanes, clock_error_s };
}

/** The last seconds of a run that goes on. `_numTicks` is there so that whoever draws is told of a new tick. */
export function followed(feed: LiveFeed, _numTicks: number, seconds: number): TimelinePicture {
  const begin_s = Math.max(0, feed.now_s - seconds);
  const end_s = Math.max(feed.now_s, begin_s + LEAST_S);
  const first_span = Math.floor(begin_s / feed.width_s);
  const num_spans = Math.ceil((end_s - begin_s) / feed.width_s) + 1;
  const sorted = [...feed.lanes.values()].sort(
    (one, other) => one.place - other.place || orderOf(one.layer) - orderOf(other.layer),
  );
  const lanes = sorted.map((own) => {
    const lane: Lane = {
      label: own.label,
      isFirst: false,
      layer: own.layer,
      busy: new Float32Array(num_spans),
      count: new Float64Array(num_spans),
      events: [],
    };
    for (let place = 0; place < num_spans; place += 1) {
      const at = (((first_span + place) % own.spans.length) + own.spans.length) % own.spans.length;
      if (own.spans[at] === first_span + place) {
        lane.busy[place] = (own.busy[at] ?? 0) / own.num_processes;
        lane.count[place] = own.count[at] ?? 0;
      }
    }
    return lane;
  });
  markFirst(lanes);
  return { begin_s, end_s, width_s: feed.width_s, first_span, lanes, clock_error_s: null };
}

function markFirst(lanes: Lane[]): void {
  let before: string | null = null;
  for (const lane of lanes) {
    lane.isFirst = lane.label !== before;
    before = lane.label;
  }
}
