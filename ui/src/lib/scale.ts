// One scale from nothing to much, by lightness first, so that it reads without colours, too: a few points of "cividis"
// (Nuñez, Anderton, Renslow: Optimizing colormaps with consideration for color vision deficiency, 2018).

const DARK: [number, number, number][] = [[0, 34, 78], [60, 77, 110], [124, 123, 120], [187, 175, 110], [254, 232, 56]];
const LIGHT: [number, number, number][] = [[255, 246, 190], [222, 203, 110], [160, 150, 112], [84, 94, 112], [0, 34, 78]];

export function colourAt(share: number, isDark: boolean): string {
  if (share <= 0) return isDark ? "#1f262d" : "#ecebe6";
  const points = isDark ? DARK : LIGHT;
  const at = Math.min(1, Math.sqrt(share)) * (points.length - 1);
  const place = Math.min(Math.floor(at), points.length - 2);
  const [low, high] = [points[place] ?? points[0]!, points[place + 1] ?? points[0]!];
  const mixed = low.map((value, channel) => Math.round(value + (at - place) * ((high[channel] ?? 0) - value)));
  return `rgb(${mixed.join(",")})`;
}
