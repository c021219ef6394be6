// What the server sends while a run goes on: for each span of time that has changed what its total is now. A total
// replaces the one before, so that what is sent again after a lost connection changes nothing.

import { address, runPath, type Schemas } from "./api";

type LiveTick = Schemas["LiveTick"];

export interface LiveLane {
  label: string;
  place: number;
  layer: string;
  num_processes: number;
  /** By span modulo their number. */
  spans: Int32Array;
  busy: Float32Array;
  count: Float64Array;
}

export type LiveState = "off" | "connecting" | "live" | "stale" | "over" | "unsupported";

const NUM_SPANS = 1024;
const STALE_MS = 3000;
const LOOK_MS = 500;
/** A page that nobody sees for so long gives its connection back: a browser has six of them for all its pages of one
 * server, and the seventh page would wait for ever. */
const UNSEEN_MS = 2000;

export class LiveFeed {
  state = $state<LiveState>("off");
  /** Ticks so far; whoever draws looks at it. */
  numTicks = $state(0);
  /** Events in the spans that are kept: about the last minute. */
  numEvents = $state(0);
  now_s = $state(0);
  width_s = $state(0.0625);
  /** Increases when tables other than those of events have changed. */
  version = $state(0);
  /** Name of the whole run, when it is over and the server has it. */
  whole = "";
  lanes = new Map<string, LiveLane>();
  /** When the newest tick came, in milliseconds of `performance.now()`. */
  cameAt = 0;
  numReconnects = 0;
  #source: EventSource | null = null;
  #timer: ReturnType<typeof setInterval> | null = null;
  #run = "";
  #seenAt = 0;

  follow(run: string): void {
    this.close();
    this.#run = run;
    this.lanes = new Map();
    this.numEvents = 0;
    if (typeof EventSource === "undefined") {
      this.state = "unsupported";
      return;
    }
    this.state = "connecting";
    this.#seenAt = performance.now();
    this.#connect();
    this.#timer = setInterval(() => this.#look(), LOOK_MS);
    document.addEventListener("visibilitychange", this.#look);
  }

  close(): void {
    this.#source?.close();
    this.#source = null;
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
    document.removeEventListener("visibilitychange", this.#look);
    this.state = "off";
  }

  #connect(): void {
    const source = new EventSource(address(runPath(this.#run, "/live")));
    this.#source = source;
    source.addEventListener("tick", (event) => this.#take(JSON.parse((event as MessageEvent<string>).data) as LiveTick));
    source.addEventListener("over", (event) => {
      this.whole = (JSON.parse((event as MessageEvent<string>).data) as { run: string }).run;
      source.close();
      this.#source = null;
      this.version += 1;
      this.state = "over";
    });
    source.onerror = () => {
      if (this.state !== "over") this.state = "stale";
      if (source.readyState === EventSource.CLOSED) this.#source = null; // refused: asked again by #look
    };
  }

  #look = (): void => {
    if (this.state === "over") return;
    if (document.visibilityState === "visible") this.#seenAt = performance.now();
    else if (performance.now() - this.#seenAt > UNSEEN_MS) {
      this.#source?.close();
      this.#source = null;
      this.state = "connecting";
      return;
    }
    if (performance.now() - this.cameAt > STALE_MS && this.state === "live") this.state = "stale";
    if (this.#source === null) {
      this.numReconnects += 1;
      this.#connect();
    }
  };

  #take(tick: LiveTick): void {
    this.state = "live";
    this.cameAt = performance.now();
    if (tick.is_whole) this.lanes = new Map();
    let numEvents = tick.is_whole ? 0 : this.numEvents;
    this.width_s = tick.width_s;
    tick.lanes.forEach((lane) => {
      const key = `${lane.label} ${lane.layer}`;
      let own = this.lanes.get(key);
      if (!own) {
        own = {
          label: lane.label,
          place: lane.place,
          layer: lane.layer,
          num_processes: lane.num_processes,
          spans: new Int32Array(NUM_SPANS).fill(-1),
          busy: new Float32Array(NUM_SPANS),
          count: new Float64Array(NUM_SPANS),
        };
        this.lanes.set(key, own);
      }
      own.num_processes = lane.num_processes;
      for (let place = 0; place < lane.spans.length; place += 1) {
        const span = lane.spans[place] ?? 0;
        const at = ((span % NUM_SPANS) + NUM_SPANS) % NUM_SPANS;
        own.spans[at] = span;
        const count = lane.count[place] ?? 0;
        numEvents += count - (own.count[at] ?? 0);
        own.busy[at] = (lane.busy_s[place] ?? 0) / tick.width_s;
        own.count[at] = count;
      }
    });
    this.now_s = tick.now_s;
    this.numEvents = numEvents;
    if (tick.version > this.version) this.version = tick.version;
    this.numTicks += 1;
  }
}
