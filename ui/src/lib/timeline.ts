// Draws the lanes of a timeline: for each span of time how much of it a layer was busy, or single events where a window
// is short enough that the server sends them. Nothing that has happened is invisible: the least bar is a pixel.

import { layerOf } from "./layers";

export interface Lane {
  label: string;
  /** Whether the label is drawn: the first lane of a process. */
  isFirst: boolean;
  layer: string;
  /** By span from `TimelinePicture.first_span` on, 0 to 1. */
  busy: Float32Array;
  count: Float64Array;
  events: TimelineEvent[];
}

export interface TimelineEvent {
  began_s: number;
  ended_s: number;
  name: string;
}

export interface TimelinePicture {
  begin_s: number;
  end_s: number;
  width_s: number;
  first_span: number;
  lanes: Lane[];
  /** How far the clocks of two hosts may differ; null: it is not known. */
  clock_error_s: number | null;
}

export const LANE_HEIGHT = 16;
export const AXIS_HEIGHT = 22;
const LABEL_WIDTH = 110;
const LEAST_TICK = 90;
const LEAST_BRACKET = 2;

export interface Style {
  isDark: boolean;
  text: string;
  line: string;
  placeText: (seconds: number, step_s: number) => string;
}

export function labelWidth(width: number): number {
  return width < 600 ? 64 : LABEL_WIDTH;
}

/** Where a moment is drawn, in CSS pixels. */
export function placeOf(seconds: number, picture: TimelinePicture, width: number): number {
  const left = labelWidth(width);
  return left + ((seconds - picture.begin_s) / Math.max(picture.end_s - picture.begin_s, 1e-9)) * (width - left);
}

/** Which moment is drawn at a place, in seconds. */
export function momentAt(x: number, picture: TimelinePicture, width: number): number {
  const left = labelWidth(width);
  return picture.begin_s + ((x - left) / Math.max(width - left, 1)) * (picture.end_s - picture.begin_s);
}

export function drawTimeline(
  context: CanvasRenderingContext2D,
  picture: TimelinePicture,
  width: number,
  height: number,
  scroll: number,
  style: Style,
): void {
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const left = labelWidth(width);
  drawAxis(context, picture, width, height, style);
  drawClockError(context, picture, width, style);
  context.save();
  context.beginPath();
  context.rect(0, AXIS_HEIGHT, width, height - AXIS_HEIGHT);
  context.clip();
  const first = Math.max(0, Math.floor(scroll / LANE_HEIGHT));
  const after = Math.min(picture.lanes.length, Math.ceil((scroll + height) / LANE_HEIGHT));
  for (let place = first; place < after; place += 1) {
    const lane = picture.lanes[place];
    if (!lane) continue;
    const top = AXIS_HEIGHT + place * LANE_HEIGHT - scroll;
    if (lane.isFirst) {
      context.fillStyle = style.line;
      context.fillRect(0, top, width, 1);
      context.fillStyle = style.text;
      context.fillText(lane.label, 4, top + LANE_HEIGHT / 2 + 1, left - 8);
    }
    const layer = layerOf(lane.layer);
    context.fillStyle = style.isDark ? layer.dark : layer.light;
    if (lane.events.length) drawEvents(context, lane, picture, width, top, style);
    else drawSpans(context, lane, picture, width, left, top);
  }
  context.restore();
}

/** What happened closer together than this bracket may have been in another order. */
function drawClockError(context: CanvasRenderingContext2D, picture: TimelinePicture, width: number, style: Style): void {
  const error_s = picture.clock_error_s;
  if (!error_s) return;
  const wide = (error_s / Math.max(picture.end_s - picture.begin_s, 1e-9)) * (width - labelWidth(width));
  if (wide < LEAST_BRACKET) return;
  const [right, middle] = [width - 4, AXIS_HEIGHT / 2];
  context.fillStyle = style.text;
  context.fillRect(right - wide, middle, wide, 1);
  for (const end of [right - wide, right]) context.fillRect(end, middle - 4, 1, 9);
}

function drawSpans(
  context: CanvasRenderingContext2D,
  lane: Lane,
  picture: TimelinePicture,
  width: number,
  left: number,
  top: number,
): void {
  const scale = (width - left) / Math.max(picture.end_s - picture.begin_s, 1e-9);
  const bottom = top + LANE_HEIGHT - 1;
  for (let place = 0; place < lane.busy.length; place += 1) {
    const busy = lane.busy[place] ?? 0;
    if (busy === 0 && !lane.count[place]) continue;
    const begin = left + ((picture.first_span + place) * picture.width_s - picture.begin_s) * scale;
    const end = begin + picture.width_s * scale;
    if (end < left || begin > width) continue;
    const tall = Math.max(1, Math.min(1, busy) * (LANE_HEIGHT - 3));
    const from = Math.max(begin, left);
    context.fillRect(from, bottom - tall, Math.max(1, end - from - (end - begin > 3 ? 0.5 : 0)), tall);
  }
}

function drawEvents(
  context: CanvasRenderingContext2D,
  lane: Lane,
  picture: TimelinePicture,
  width: number,
  top: number,
  style: Style,
): void {
  const colour = context.fillStyle;
  const left = labelWidth(width);
  for (const event of lane.events) {
    const begin = Math.max(placeOf(event.began_s, picture, width), left);
    const end = Math.min(placeOf(event.ended_s, picture, width), width);
    if (end < left || begin > width) continue;
    context.fillStyle = colour;
    context.fillRect(begin, top + 2, Math.max(1, end - begin), LANE_HEIGHT - 3);
    if (end - begin > 40) {
      context.fillStyle = style.isDark ? "#10151a" : "#ffffff";
      context.save();
      context.beginPath();
      context.rect(begin + 2, top, end - begin - 4, LANE_HEIGHT);
      context.clip();
      context.fillText(event.name, begin + 4, top + LANE_HEIGHT / 2 + 1);
      context.restore();
    }
  }
}

function drawAxis(
  context: CanvasRenderingContext2D,
  picture: TimelinePicture,
  width: number,
  height: number,
  style: Style,
): void {
  const step_s = tickOf(picture.end_s - picture.begin_s, Math.max(1, (width - labelWidth(width)) / LEAST_TICK));
  for (let at = Math.ceil(picture.begin_s / step_s) * step_s; at <= picture.end_s; at += step_s) {
    const x = placeOf(at, picture, width);
    context.fillStyle = style.line;
    context.fillRect(x, AXIS_HEIGHT - 4, 1, height);
    context.fillStyle = style.text;
    const text = style.placeText(at, step_s);
    context.fillText(text, Math.min(x + 3, width - context.measureText(text).width - 2), AXIS_HEIGHT / 2);
  }
}

/** A round distance of ticks: 1, 2 or 5 times a power of ten. */
export function tickOf(span_s: number, most: number): number {
  const least = Math.max(span_s, 1e-9) / most;
  const power = 10 ** Math.floor(Math.log10(least));
  return ([1, 2, 5].find((each) => each * power >= least) ?? 10) * power;
}
