// Painting the timeline: its cells, and what lies over them (playhead, outlines).

const LEFT = 64, BOTTOM = 34, TOP = 6;

/** Where steps and rows lie on the timeline's canvas. */
function layoutOf(run, options, width) {
  const [low, high] = options.zoom;
  let firstRow = 0, numRows = run.num_slots;
  if (options.by === "request") [firstRow, numRows] = requestsBetween(run, low, high);
  const rowHeight = Math.max(0.02, Math.min(26, 400 / numRows));
  const height = TOP + Math.max(40, rowHeight * numRows) + BOTTOM;
  const plot = Math.max(50, width - LEFT - 8);
  return {
    width, height, low, high, firstRow, numRows, rowHeight, plot,
    x: (step) => LEFT + ((step - low) / (high - low)) * plot,
    y: (row) => TOP + (row - firstRow) * rowHeight,
    step: (x) => low + ((x - LEFT) / plot) * (high - low),
    row: (y) => firstRow + Math.floor((y - TOP) / rowHeight),
  };
}

/** The rows of all requests that are there between two steps; they are in order of arrival. */
function requestsBetween(run, low, high) {
  let first = Infinity, last = -1;
  for (let i = 0; i < run.span_start.length; i++) {
    if (run.span_start[i] >= high || run.span_end[i] <= low) continue;
    first = Math.min(first, run.span_request[i]);
    last = Math.max(last, run.span_request[i]);
  }
  return last < 0 ? [0, Math.max(1, run.ids.length)] : [first, last - first + 1];
}

function rowOf(run, options, span) {
  if (options.by === "request") return run.span_request[span];
  return run.isOutside[run.span_state[span]] ? null : run.span_slot[span];
}

function paintTimeline(context, run, options, look) {
  const place = layoutOf(run, options, look.width);
  context.fillStyle = look.background;
  context.fillRect(0, 0, place.width, place.height);
  context.save();
  context.beginPath();
  context.rect(LEFT, TOP, place.plot, place.height - TOP - BOTTOM);
  context.clip();
  const gap = place.rowHeight > 8 ? 2 : place.rowHeight > 3 ? 0.5 : 0;
  const shown = [];
  for (let i = 0; i < run.span_start.length; i++) {
    const row = rowOf(run, options, i);
    if (row === null || run.span_end[i] <= place.low || run.span_start[i] >= place.high) continue;
    paintSpan(context, run, place, look, i, row, gap);
    shown.push([i, row]);
  }
  if (place.plot / (place.high - place.low) > 7) separateSteps(context, place, look);
  if (place.rowHeight >= 12 && shown.length < 2000) {
    for (const [i, row] of shown) writeInSpan(context, run, options, place, look, i, row);
  }
  place.showsMarks = place.rowHeight >= 6 && paintMarks(context, run, options, place, look);
  context.restore();
  paintAxes(context, run, options, place, look);
  return place;
}

function paintSpan(context, run, place, look, span, row, gap) {
  const left = place.x(run.span_start[span]), right = place.x(run.span_end[span]);
  const top = place.y(row) + gap / 2, height = place.rowHeight - gap;
  const state = run.states[run.stateNames[run.span_state[span]]];
  context.fillStyle = state[look.theme].fill;
  context.fillRect(left, top, right - left, height);
  if (!state.hatch || height < 4 || right - left < 3) return;
  hatchBox(context, state.hatch, state[look.theme].edge, left, top, right - left, height);
}

function hatchBox(context, kind, color, left, top, width, height) {
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  hatch(context, kind, color, left, top, width, height);
  context.restore();
}

/** The hatch of the printed figures: a second channel beside the colour. */
function hatch(context, kind, color, left, top, width, height) {
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 1;
  context.beginPath();
  const reach = Math.min(width, 4000);
  if (/[/x\\]/.test(kind)) {
    for (let x = -height; x < reach; x += 6) {
      if (kind[0] !== "\\") segment(context, left + x, top + height, left + x + height, top);
      if (kind[0] !== "/") segment(context, left + x, top, left + x + height, top + height);
    }
  } else if (kind[0] === "-") {
    for (let y = 4; y < height; y += 6) segment(context, left, top + y, left + width, top + y);
  } else {
    for (let x = 3; x < reach; x += 7) {
      for (let y = 3; y < height; y += 7) context.fillRect(left + x, top + y, 1.2, 1.2);
    }
  }
  context.stroke();
}

function segment(context, x1, y1, x2, y2) {
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
}

function separateSteps(context, place, look) {
  context.fillStyle = look.background;
  for (let step = Math.ceil(place.low); step <= place.high; step++) {
    context.fillRect(place.x(step) - 0.35, TOP, 0.7, place.height);
  }
}

function writeInSpan(context, run, options, place, look, span, row) {
  const name = run.stateNames[run.span_state[span]];
  let text = null;
  if (name === "prefill") text = `${run.span_tokens[span]}`;
  else if (name !== "padding" && options.by === "slot") text = run.ids[run.span_request[span]];
  if (text === null) return;
  const left = Math.max(LEFT, place.x(run.span_start[span]));
  const right = Math.min(LEFT + place.plot, place.x(run.span_end[span]));
  context.font = name === "prefill" ? "11px sans-serif" : "bold 11px sans-serif";
  if (context.measureText(text).width + 4 > right - left) return;
  context.fillStyle = run.states[name][look.theme].text;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, (left + right) / 2, place.y(row) + place.rowHeight / 2);
}

/** False if there are too many to be told apart. */
function paintMarks(context, run, options, place, look) {
  const inside = [];
  for (let i = 0; i < run.mark_position.length; i++) {
    const at = run.mark_position[i];
    const hasRow = options.by === "request" || run.mark_in_slot[i];
    if (hasRow && at >= place.low && at <= place.high) inside.push(i);
  }
  if (inside.length > 400) return false;
  context.strokeStyle = look.ink;
  for (const i of inside) {
    const row = options.by === "request" ? run.mark_request[i] : run.mark_slot[i];
    const aside = { admitted: 4, finished: -4 }[run.markNames[run.mark_kind[i]]] ?? 0;
    const low = aside ? place.rowHeight - 5 : 5;
    const x = place.x(run.mark_position[i]) + aside;
    paintMark(context, run.markNames[run.mark_kind[i]], x, place.y(row) + low, look);
  }
  return true;
}

function paintMark(context, kind, x, y, look) {
  context.beginPath();
  context.lineWidth = 1.2;
  context.strokeStyle = look.ink;
  if (kind === "admitted") {
    context.moveTo(x - 3, y - 3);
    context.lineTo(x + 3, y);
    context.lineTo(x - 3, y + 3);
    context.closePath();
  } else if (kind === "first token") context.arc(x, y, 3, 0, 7);
  else if (kind === "finished") context.rect(x - 2.5, y - 2.5, 5, 5);
  else {
    segment(context, x - 3, y - 3, x + 3, y + 3);
    segment(context, x - 3, y + 3, x + 3, y - 3);
  }
  context.fillStyle = kind === "first token" ? look.background : look.ink;
  context.fill();
  context.stroke();
}

function paintAxes(context, run, options, place, look) {
  const bottom = place.height - BOTTOM;
  context.fillStyle = context.strokeStyle = look.ink;
  context.font = "11px sans-serif";
  context.textBaseline = "top";
  context.textAlign = "center";
  const every = niceStep((place.high - place.low) / Math.max(2, place.plot / 70));
  const first = Math.floor(place.low) + 1;
  for (let n = Math.ceil(first / every) * every; n <= place.high; n += every) {
    context.fillText(n.toLocaleString("en"), place.x(n - 0.5), bottom + 4);
  }
  context.fillText("step", LEFT + place.plot / 2, bottom + 18);
  context.textAlign = "right";
  context.textBaseline = "middle";
  const skip = niceStep(16 / place.rowHeight);
  for (let row = place.firstRow; row < place.firstRow + place.numRows; row++) {
    if ((row - place.firstRow) % skip) continue;
    const label = options.by === "request" ? run.ids[row] ?? "" : `slot ${row + 1}`;
    const y = place.y(row) + Math.max(4, place.rowHeight / 2);
    context.fillText(label.length > 9 ? label.slice(0, 8) + "…" : label, LEFT - 6, y);
  }
}

/** 1, 2, 5, 10, 20 …: the first that is no less. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= least - 1e-9) ?? 10 * power;
}

/** The playhead's step, and the hovered request wherever it is. */
function paintOverlay(context, run, options, place, look) {
  context.clearRect(0, 0, place.width, place.height);
  const left = Math.max(LEFT, place.x(options.step));
  const right = Math.min(LEFT + place.plot, place.x(options.step + 1));
  const bottom = place.height - BOTTOM;
  if (right >= LEFT && left <= LEFT + place.plot) {
    context.strokeStyle = look.ink;
    context.lineWidth = 2;
    context.strokeRect(left, TOP - 3, Math.max(1, right - left), bottom - TOP + 5);
  }
  if (options.hot === null) return;
  context.strokeStyle = look.ink;
  context.lineWidth = 1.5;
  for (let i = 0; i < run.span_start.length; i++) {
    if (run.span_request[i] !== options.hot) continue;
    const row = rowOf(run, options, i);
    const from = Math.max(LEFT, place.x(run.span_start[i]));
    const to = Math.min(LEFT + place.plot, place.x(run.span_end[i]));
    if (row === null || to <= from) continue;
    context.strokeRect(from, place.y(row), to - from, Math.max(2, place.rowHeight));
  }
}
