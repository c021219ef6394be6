// Colours of lines that people with any colour vision can tell apart: those of Okabe and Ito, "Color Universal Design"
// (2008), darker or lighter for contrast. Lines of more than seven differ by their dashes, too.
import type { Line } from "./Lines.svelte";

const COLOURS: [string, string][] = [
  ["#0072b2", "#4aa8e0"],
  ["#b25000", "#e69f00"],
  ["#007a5a", "#35b893"],
  ["#7a5195", "#c39bdb"],
  ["#a8326b", "#e893bd"],
  ["#595959", "#b0b0b0"],
  ["#00518a", "#9fd4f5"],
];
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3]];

/** A line of a chart with the colour of its place; neighbours have other dashes, for who sees no colours. */
export function lineAt(place: number, title: string, values: (number | null)[]): Line {
  const [light, dark] = COLOURS[place % COLOURS.length] ?? ["#595959", "#b0b0b0"];
  return { title, values, light, dark, dash: DASHES[(place + Math.floor(place / COLOURS.length)) % DASHES.length] ?? [] };
}
