// What a view shows as one picture: its charts and tables below each other, on the colour of the page.

const FONT = "13px system-ui, sans-serif";
const [GAP, LINE, MOST_ROWS, MOST_CELL] = [12, 20, 200, 60];

/** Draws a part of the picture at a height, and returns how high it is. In CSS pixels. */
interface Part {
  width: number;
  height: number;
  draw: (context: CanvasRenderingContext2D, top: number) => void;
}

export async function savePicture(title: string, run: string): Promise<void> {
  const ratio = devicePixelRatio || 1;
  const target = document.createElement("canvas");
  const context = target.getContext("2d");
  if (!context) return;
  context.font = FONT;
  const parts = [textPart(`${title}: ${run}`, true), ...partsOf(context)];
  target.width = Math.ceil((Math.max(...parts.map((each) => each.width)) + 2 * GAP) * ratio);
  target.height = Math.ceil((parts.reduce((sum, each) => sum + each.height + GAP, GAP)) * ratio);
  const style = getComputedStyle(document.body);
  context.scale(ratio, ratio);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, target.width, target.height);
  let top = GAP;
  for (const each of parts) {
    context.fillStyle = style.color;
    context.font = FONT;
    each.draw(context, top);
    top += each.height + GAP;
  }
  const blob = await new Promise<Blob | null>((resolve) => target.toBlob(resolve, "image/png"));
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${run}-${title.toLowerCase().replaceAll(" ", "-")}.png`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function partsOf(context: CanvasRenderingContext2D): Part[] {
  const found: Part[] = [];
  for (const each of document.querySelectorAll<HTMLElement>("main h2, main h3, main li, main canvas, main table")) {
    if (each instanceof HTMLCanvasElement) {
      if (each.width && each.height) found.push(canvasPart(each));
    } else if (each instanceof HTMLTableElement && each.classList.contains("u-legend")) found.push(legendPart(each));
    else if (each instanceof HTMLTableElement) found.push(tablePart(each, context));
    else found.push(textPart(each.innerText, each.tagName !== "LI"));
  }
  return found;
}

function textPart(text: string, isBold: boolean): Part {
  return {
    width: 8 * text.length,
    height: LINE,
    draw: (context, top) => {
      if (isBold) context.font = `bold ${FONT}`;
      context.fillText(text, GAP, top + 0.7 * LINE);
    },
  };
}

function canvasPart(canvas: HTMLCanvasElement): Part {
  const { width, height } = canvas.getBoundingClientRect();
  return { width, height, draw: (context, top) => context.drawImage(canvas, GAP, top, width, height) };
}

/** Of a chart: its lines, in their colours. */
function legendPart(legend: HTMLTableElement): Part {
  const lines = [...legend.rows].map((row) => {
    const marker = row.querySelector<HTMLElement>(".u-marker");
    return { text: row.innerText.trim(), colour: marker ? getComputedStyle(marker).borderTopColor : "" };
  });
  return {
    width: 0,
    height: LINE,
    draw: (context, top) => {
      const colour = context.fillStyle;
      let left = GAP;
      for (const line of lines) {
        context.fillStyle = line.colour;
        context.fillRect(left, top + 0.3 * LINE, GAP, GAP / 2);
        context.fillStyle = colour;
        context.fillText(line.text, left + 1.5 * GAP, top + 0.7 * LINE);
        left += context.measureText(line.text).width + 3 * GAP;
      }
    },
  };
}

function tablePart(table: HTMLTableElement, context: CanvasRenderingContext2D): Part {
  const rows = [...table.rows].slice(0, MOST_ROWS).map((row) => [...row.cells].map((cell) => shortened(cell.innerText)));
  const widths: number[] = [];
  context.font = `bold ${FONT}`; // of the first row
  for (const row of rows) {
    row.forEach((text, place) => (widths[place] = Math.max(widths[place] ?? 0, context.measureText(text).width + GAP)));
  }
  return {
    width: widths.reduce((sum, each) => sum + each, 0),
    height: rows.length * LINE,
    draw: (at, top) => {
      rows.forEach((row, number) => {
        at.font = number ? FONT : `bold ${FONT}`;
        let left = GAP;
        row.forEach((text, place) => {
          at.fillText(text, left, top + (number + 0.7) * LINE);
          left += widths[place] ?? 0;
        });
      });
    },
  };
}

function shortened(text: string): string {
  const line = text.replaceAll(/\s+/g, " ").trim();
  return line.length > MOST_CELL ? `${line.slice(0, MOST_CELL - 1)}…` : line;
}
