// What stands around the canvases: title, clock, legend, who runs, who waits, and the tooltips.

const MAX_CHIPS = 40; // of a list of requests, the rest is a number

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function showTitle(view) {
  const { run } = view, by = view.model.get("by");
  const rows = by === "slot" ? `${counted(run.num_slots, "slot")}` : "one row each; grey is waiting";
  const title =
    `${run.name}: ${counted(run.ids.length, "request")}, ${counted(run.num_steps, "step")}, ${rows}`;
  view.at("title").textContent = title;
  view.at("base").setAttribute("aria-label", title);
  view.root.querySelector('[data-do="rows"]').textContent =
    by === "slot" ? "show requests" : "show slots";
}

function showControls(view) {
  const { run, step } = view, playing = view.model.get("playing");
  view.at("play").textContent = playing ? "⏸ Pause" : "▶ Play";
  view.at("stop").hidden = !view.model.get("can_stop");
  view.at("stop").disabled = view.stopping || !view.model.get("running");
  view.at("stop").textContent = view.stopping ? "Stopping…" : "■ Stop";
  view.at("scrub").value = step + 1;
  if (!run.num_steps) {
    view.at("clock").textContent = "no step was run yet";
    return;
  }
  const start = run.step_start[step], lasts = run.step_end[step] - start;
  view.at("clock").textContent =
    `step ${(step + 1).toLocaleString("en")} of ${run.num_steps.toLocaleString("en")} · ` +
    `clock ${seconds(start)} · takes ${seconds(lasts)}`;
}

function swatch(look, theme) {
  const box = element("span", "ts-swatch");
  const { fill, edge } = look[theme];
  box.style.background = fill;
  box.style.borderColor = edge;
  const tilt = { "/": 135, "\\": 45, "-": 0, x: 45 }[look.hatch[0]];
  if (tilt !== undefined) {
    box.style.background =
      `repeating-linear-gradient(${tilt}deg, ${edge} 0 1px, ${fill} 1px 4px)`;
  }
  return box;
}

function legendEntry(look, theme) {
  const entry = element("span", "ts-entry");
  entry.append(swatch(look, theme), look.meaning);
  return entry;
}

function showLegend(view, look) {
  const { run } = view, by = view.model.get("by");
  const used = new Set();
  run.span_state.forEach((state) => {
    if (by === "request" || !run.isOutside[state]) used.add(run.stateNames[state]);
  });
  const entries = run.stateNames.filter((name) => used.has(name));
  const marks = { admitted: "▸", "first token": "○", finished: "■", refused: "×" };
  const kinds = new Set([...run.mark_kind].map((kind) => run.markNames[kind]));
  view.at("legend").replaceChildren(
    ...entries.map((name) => legendEntry(run.states[name], look.theme)),
    ...(!view.place.showsMarks ? [] : run.markNames.filter((name) => kinds.has(name)))
      .map((name) => element("span", "ts-entry", `${marks[name]} ${run.marks[name]}`)),
  );
  const names = run.event_kind.includes(2) ? ["empty", "cached", "free"] : ["empty", "free"];
  const own = element("span", "ts-entry");
  const example = { light: { fill: run.owners[0], edge: "#555" }, hatch: "" };
  example.dark = example.light;
  own.append(swatch(example, look.theme), "a request's colour: holds its tokens");
  view.at("memory-legend").replaceChildren(
    ...(run.num_blocks ? [own] : []),
    ...(run.num_blocks ? names : []).map((name) => legendEntry(run.memory[name], look.theme)),
  );
}

function showMemory(view) {
  const { run, step, blocks } = view;
  view.at("memory").hidden = !run.num_blocks;
  if (!run.num_blocks) return;
  const held = blocks.filter((entry) => entry?.holders.length);
  const empty = held.reduce((sum, entry) => sum + run.block_size - entry.written, 0);
  const share = held.length ? ((100 * empty) / (held.length * run.block_size)).toFixed(1) : 0;
  const head = `KV memory in step ${step + 1}: ${held.length.toLocaleString("en")} of ` +
    `${run.num_blocks.toLocaleString("en")} blocks held, ${share} % of that empty`;
  view.at("memory-head").textContent = head;
  view.at("map").setAttribute("aria-label", head);
  view.at("memory-note").textContent = mapNote(run, view.mapPlace);
}

/** One request as a small labelled box; pointing at it outlines it everywhere. */
function chip(view, look, span, text) {
  const { run } = view, request = run.span_request[span];
  const made = element("span", "ts-chip", text);
  const { fill, text: ink } = run.states[run.stateNames[run.span_state[span]]][look.theme];
  made.style.background = fill;
  made.style.color = ink;
  made.style.borderColor = request === view.hot ? look.ink : "transparent";
  made.title = describeSpan(run, span, view.step);
  return made;
}

function fill(view, box, spans, look, text) {
  const chips = spans.slice(0, MAX_CHIPS).map((i) => chip(view, look, i, text(i)));
  if (spans.length > MAX_CHIPS) {
    chips.push(element("span", "ts-more", `and ${spans.length - MAX_CHIPS} more`));
  }
  box.replaceChildren(...(chips.length ? chips : [element("span", "ts-more", "nobody")]));
}

function showLists(view, look) {
  const { run, step } = view;
  const batch = run.batchAt(step), queue = run.queueAt(step);
  const tokens = run.step_prefill[step] + run.step_decode[step] + run.step_padding[step];
  const budget = run.token_budget ? ` of ${run.token_budget.toLocaleString("en")} budgeted` : "";
  const spent = `${tokens.toLocaleString("en")}${budget} tokens`;
  view.at("batch-head").textContent = `In this step: ${counted(batch.length, "request")}, ${spent}`;
  view.at("queue-head").textContent = `In the queue: ${counted(queue.length, "request")}`;
  const name = (i) => run.ids[run.span_request[i]];
  fill(view, view.at("batch"), batch, look, (i) => `${name(i)} +${run.tokensIn(i, step)}`);
  fill(view, view.at("queue"), queue, look, name);
}

function showWhy(view) {
  const { run, step } = view, box = view.at("why");
  const sentence = view.model.get("sentence");
  const lines = sentence?.step === step + 1 ? sentence.lines : run.explain(step);
  box.replaceChildren(
    ...lines.filter(([heading]) => heading !== "Rule").map(([heading, text]) => {
      const line = element("div", "ts-line");
      line.append(element("b", "", heading), " ", text);
      return line;
    }),
  );
}

function describeSpan(run, span, step) {
  const request = run.span_request[span], name = run.stateNames[run.span_state[span]];
  const lines = [`${run.ids[request]}: ${run.states[name].meaning}`];
  lines.push(`step ${step + 1}` + (run.isOutside[run.span_state[span]] ? "" :
    `: ${counted(run.tokensIn(span, step), "token")}`));
  const prompt = counted(run.request_prompt[request], "token");
  lines.push(`prompt ${prompt}, answer ${run.request_output[request].toLocaleString("en")} in all`);
  if (!run.isOutside[run.span_state[span]]) {
    const context = run.contextAt(span, step), blocks = Math.ceil(context / run.block_size);
    lines.push(`${counted(context, "token")} in the cache, which fill ${counted(blocks, "block")}`);
  }
  return lines.join("\n");
}
