// The layers of a program, with colours that people with any colour vision can tell apart: those of Okabe and Ito,
// "Color Universal Design" (2008), a little lighter where the page is dark.

export interface Layer {
  name: string;
  title: string;
  light: string;
  dark: string;
}

export const LAYERS: readonly Layer[] = [
  { name: "regions", title: "program", light: "#007a5a", dark: "#35b893" },
  { name: "operations", title: "communication", light: "#0072b2", dark: "#4aa8e0" },
  { name: "transfers", title: "transfers", light: "#7a5195", dark: "#c39bdb" },
  { name: "dask", title: "messages of Dask", light: "#b03a7e", dark: "#e58fc0" },
  { name: "io", title: "input and output", light: "#b25000", dark: "#e69f00" },
];

const OTHER: Layer = { name: "", title: "other", light: "#595959", dark: "#b0b0b0" };

export function layerOf(name: string): Layer {
  return LAYERS.find((each) => each.name === name) ?? { ...OTHER, name, title: name };
}

export function orderOf(name: string): number {
  const place = LAYERS.findIndex((each) => each.name === name);
  return place < 0 ? LAYERS.length : place;
}
