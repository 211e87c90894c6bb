// The block map: a cell per block of the KV pool, or per several where a cell each would be too
// small to be seen. Such a cell has the mean colour of its blocks.

const LEAST_CELL = 5, LARGEST_CELL = 34; // CSS pixels

/** Where blocks lie on the map's canvas: a grid of the panel's shape. */
function mapLayout(run, width) {
  const shown = run.num_shown_blocks, height = shown > 512 ? 240 : 170;
  let perCell = 1;
  const sizeOf = () => Math.floor(Math.sqrt((width * height) / Math.ceil(shown / perCell)));
  while (sizeOf() < LEAST_CELL) perCell *= 2;
  const size = Math.min(LARGEST_CELL, sizeOf());
  const columns = Math.max(1, Math.floor(width / size));
  const lines = Math.ceil(Math.ceil(shown / perCell) / columns);
  return { size, columns, perCell, shown, width, height: lines * size };
}

/** [first, end) of the blocks in the cell at a point of the canvas; null beside all cells. */
function blocksUnder(place, x, y) {
  const column = Math.floor(x / place.size), line = Math.floor(y / place.size);
  const first = (line * place.columns + column) * place.perCell;
  if (column >= place.columns || first >= place.shown) return null;
  return [first, Math.min(place.shown, first + place.perCell)];
}

/** What the cells stand for, where it is not one block each and all of them. */
function mapNote(run, place) {
  const notes = [];
  if (place.perCell > 1) notes.push(`1 cell = ${place.perCell} blocks`);
  if (place.shown < run.num_blocks) {
    const rest = (run.num_blocks - place.shown).toLocaleString("en");
    notes.push(`blocks 0 to ${(place.shown - 1).toLocaleString("en")}; ` +
      `the other ${rest} are never taken in this run`);
  }
  return notes.join("; ");
}

function paintBlocks(context, run, blocks, place, options, look) {
  context.fillStyle = look.background;
  context.fillRect(0, 0, place.width, place.height);
  const inner = place.size > 6 ? place.size - 2 : place.size - 0.5;
  for (let first = 0, cell = 0; first < place.shown; first += place.perCell, cell++) {
    const x = (cell % place.columns) * place.size;
    const y = Math.floor(cell / place.columns) * place.size;
    if (place.perCell === 1) {
      paintBlock(context, run, blocks[first], { x, y, inner, size: place.size }, options, look);
    } else {
      const end = Math.min(place.shown, first + place.perCell);
      context.fillStyle = meanColour(run, blocks, first, end, look);
      context.fillRect(x, y, inner, inner);
    }
  }
  if (place.size > 6) return;
  context.strokeStyle = look.faint; // cells so small have no outlines: free ones would be nothing
  context.lineWidth = 1;
  context.strokeRect(0.5, 0.5, place.columns * place.size - 1, place.height - 1);
}

function paintBlock(context, run, entry, { x, y, inner, size }, options, look) {
  const holders = entry?.holders ?? [];
  const kind = !entry ? "free" : holders.length ? "empty" : "cached";
  const { fill, edge } = run.memory[kind][look.theme];
  context.fillStyle = fill;
  context.fillRect(x, y, inner, inner);
  if (size > 6) {
    context.strokeStyle = edge;
    context.lineWidth = 0.6;
    context.strokeRect(x, y, inner, inner);
  }
  if (size >= 12 && kind !== "free" && entry.written < run.block_size) {
    const { hatch: pattern, [look.theme]: colors } = run.memory.empty;
    hatchBox(context, pattern, colors.edge, x, y, inner, inner);
  }
  holders.forEach(({ request }, i) => { // a shared block is striped among its holders
    const part = inner / holders.length;
    context.fillStyle = ownerColour(run, request);
    context.fillRect(x, y + i * part, (inner * entry.written) / run.block_size, part);
  });
  if (!holders.length) return;
  if (options.hot !== null && holders.some((holder) => holder.request === options.hot)) {
    context.strokeStyle = look.ink;
    context.lineWidth = 2;
    context.strokeRect(x, y, inner, inner);
  }
  if (size < 24) return;
  context.fillStyle = "#1a1a1a";
  context.font = "9px sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  const name = run.ids[holders[0].request];
  if (context.measureText(name).width < inner) {
    context.fillText(name, x + inner / 2, y + inner / 2);
  }
}

function ownerColour(run, request) {
  return run.owners[request % run.owners.length];
}

/** A request's colour counts as far as its block is written, the emptiness of it as the rest. */
function meanColour(run, blocks, first, end, look) {
  const sum = [0, 0, 0];
  const add = (colour, weight) => channels(colour).forEach((value, i) => { sum[i] += weight * value; });
  const fill = (kind) => run.memory[kind][look.theme].fill;
  for (let block = first; block < end; block++) {
    const entry = blocks[block];
    if (!entry?.holders.length) add(fill(entry ? "cached" : "free"), 1);
    else {
      const written = entry.written / run.block_size;
      for (const { request } of entry.holders) {
        add(ownerColour(run, request), written / entry.holders.length);
      }
      add(fill("empty"), 1 - written);
    }
  }
  return `rgb(${sum.map((value) => Math.round(value / (end - first))).join(",")})`;
}

function channels(colour) {
  const number = parseInt(colour.slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}

function describeBlocks(run, blocks, first, end) {
  if (end - first === 1) return describeBlock(run, blocks[first], first);
  const some = blocks.slice(first, end), held = some.filter((entry) => entry?.holders.length);
  const cached = some.filter((entry) => entry && !entry.holders.length).length;
  const who = new Set(held.flatMap((entry) => entry.holders.map((holder) => run.ids[holder.request])));
  const lines = [`blocks ${first} to ${end - 1}`];
  if (held.length) {
    const written = held.reduce((sum, entry) => sum + entry.written, 0);
    lines.push(`${held.length} held by ${listing([...who])}: ` +
      `${written} of ${held.length * run.block_size} slots written`);
  }
  if (cached) lines.push(`${cached} cached for re-use`);
  if (held.length + cached < some.length) lines.push(`${some.length - held.length - cached} free`);
  return lines.join("\n");
}

function describeBlock(run, entry, block) {
  if (!entry) return `block ${block}: free`;
  if (!entry.holders.length) return `block ${block}: cached for re-use`;
  const who = entry.holders.map((h) => `${run.ids[h.request]} (its block ${h.page + 1})`);
  return `block ${block}: ${listing(who)}\n${entry.written} of ${run.block_size} slots written`;
}
