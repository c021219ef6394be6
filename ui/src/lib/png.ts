// The pictures of a view as one file, below each other, on the colour of the page.

export async function savePicture(title: string, run: string): Promise<void> {
  const pictures = [...document.querySelectorAll<HTMLCanvasElement>("main canvas")].filter((each) => each.width && each.height);
  if (!pictures.length) return;
  const ratio = devicePixelRatio || 1;
  const [gap, head] = [8 * ratio, 30 * ratio];
  const target = document.createElement("canvas");
  target.width = Math.max(...pictures.map((each) => each.width)) + 2 * gap;
  target.height = head + pictures.reduce((sum, each) => sum + each.height + gap, 0);
  const context = target.getContext("2d");
  if (!context) return;
  const style = getComputedStyle(document.body);
  context.fillStyle = style.backgroundColor;
  context.fillRect(0, 0, target.width, target.height);
  context.fillStyle = style.color;
  context.font = `${14 * ratio}px system-ui, sans-serif`;
  context.fillText(`${title}: ${run}`, gap, 20 * ratio);
  let top = head;
  for (const each of pictures) {
    context.drawImage(each, gap, top);
    top += each.height + gap;
  }
  const blob = await new Promise<Blob | null>((resolve) => target.toBlob(resolve, "image/png"));
  if (!blob) return;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${run}-${title.toLowerCase().replaceAll(" ", "-")}.png`;
  link.click();
  URL.revokeObjectURL(link.href);
}
