// Canvases as sharp as the screen is.

/** Below, nothing is drawn: the canvas has no place yet. */
const LEAST_WIDTH = 50;

/** The empty canvas, ready to draw on it in pixels of the page; null if it has no place yet. */
export function contextOf(canvas: HTMLCanvasElement | undefined, width: number, height: number): CanvasRenderingContext2D | null {
  const context = canvas?.getContext("2d");
  if (!canvas || !context || width < LEAST_WIDTH) return null;
  const ratio = devicePixelRatio || 1;
  const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== tall) [canvas.width, canvas.height] = [wide, tall];
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
