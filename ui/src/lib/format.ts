// Numbers as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function formatNbytes(nbytes: number): string {
  let value = nbytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${shortened(value)} ${UNITS[unit]}`;
}

export function formatSeconds(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "unknown";
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-6) return `${shortened(seconds * 1e9)} ns`;
  if (size < 1e-3) return `${shortened(seconds * 1e6)} µs`;
  if (size < 1) return `${shortened(seconds * 1e3)} ms`;
  if (size < 120) return `${shortened(seconds)} s`;
  if (size < 7200) return `${shortened(seconds / 60)} min`;
  return `${shortened(seconds / 3600)} h`;
}

export function formatCount(count: number): string {
  return count.toLocaleString("en-US");
}

/** The sizes of operations that are counted together. */
export function formatSizes(row: { least_nbytes: number; most_nbytes: number }): string {
  return row.most_nbytes ? `${formatNbytes(row.least_nbytes)} to ${formatNbytes(row.most_nbytes)}` : "no data";
}

export function formatShare(share: number): string {
  return `${shortened(share * 100)} %`;
}

/** A place on the axis of a run; so many decimals that neighbours of the distance `step_s` differ. */
export function formatPlace(seconds: number, step_s: number): string {
  return `${seconds.toFixed(Math.max(0, Math.min(9, Math.ceil(-Math.log10(step_s)))))} s`;
}

export type TimeZone = "run" | "local" | "utc";

/** A moment of a run: seconds since its begin, or the time of day. */
export function formatMoment(seconds: number, began_unix_s: number | null, zone: TimeZone, step_s: number): string {
  if (zone === "run" || began_unix_s === null) return formatPlace(seconds, step_s);
  const date = new Date((began_unix_s + seconds) * 1000);
  const digits = step_s < 1 ? 3 : undefined;
  const options: Intl.DateTimeFormatOptions = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  if (digits) options.fractionalSecondDigits = digits;
  if (zone === "utc") options.timeZone = "UTC";
  return date.toLocaleTimeString("en-GB", options);
}

/** A number with three digits, or with all those before the point. */
export function formatNumber(value: number): string {
  return Math.abs(value) >= 10_000 ? formatCount(Math.round(value)) : value && Math.abs(value) < 0.1 ? value.toPrecision(2) : shortened(value);
}

function shortened(value: number): string {
  const size = Math.abs(value);
  if (size >= 100) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1).replace(/\.0$/, "");
  return value.toFixed(2).replace(/\.?0+$/, "");
}
