// How pictures of networks are drawn: the width of a line is its rate, its colour how much of the link was used.
import { colourAt } from "./scale";

const MANY_LINES = 100;
/** Lines of less use would be as dark or light as the page. */
const LEAST_SEEN = 0.1;

interface UsedLine {
  nbytes_s: number | null | undefined;
  used_share: number | null | undefined;
}

export function colourOfNode(kind: string, isDark: boolean): string {
  return kind === "host" ? (isDark ? "#4aa8e0" : "#0072b2") : isDark ? "#8b98a5" : "#6b747d";
}

/** A function from a line to its width, colour and opacity; widths are relative to the highest rate. */
export function styleOfLines(lines: readonly UsedLine[], isDark: boolean) {
  const most = lines.reduce((largest, line) => Math.max(largest, line.nbytes_s ?? 0), 1);
  const [least, more, opacity] = lines.length > MANY_LINES ? [0.8, 2, 0.6] : [1.5, 5, 0.9];
  return (line: UsedLine) => ({
    width: least + more * Math.sqrt((line.nbytes_s ?? 0) / most),
    color: line.used_share === null || line.used_share === undefined ? colourOfNode("", isDark) : colourAt(Math.max(line.used_share, LEAST_SEEN), isDark),
    opacity,
  });
}
