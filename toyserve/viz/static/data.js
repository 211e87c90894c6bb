// A run as it came from Python: the header's names and the arrays behind it, and questions to them.
// Steps are counted from 0 here and from 1 wherever a person reads them.

const ARRAY_TYPES = { f8: Float64Array, f4: Float32Array, u4: Uint32Array, u1: Uint8Array };
const OUTSIDE = ["waiting", "preempted", "swapped"];

class Run {
  constructor(header, bytes) {
    Object.assign(this, header);
    // A copy: what arrives may begin anywhere in a larger buffer, and wide numbers must be aligned.
    const view = new Uint8Array(bytes.buffer ?? bytes, bytes.byteOffset ?? 0, bytes.byteLength);
    const buffer = view.slice().buffer;
    let offset = 0;
    for (const [name, kind, length] of header.arrays) {
      this[name] = new ARRAY_TYPES[kind](buffer, offset, length);
      offset += this[name].byteLength;
    }
    this.stateNames = header.state_names;
    this.markNames = header.mark_names;
    this.isOutside = this.stateNames.map((name) => OUTSIDE.includes(name));
    this.rewind();
  }

  spansAt(step) {
    const found = [];
    for (let i = 0; i < this.span_start.length; i++) {
      if (this.span_start[i] < step + 1 && this.span_end[i] > step) found.push(i);
    }
    return found;
  }

  /** Requests that have come and are not in the batch, in the queue's order: the paused first. */
  queueAt(step) {
    const spans = this.spansAt(step).filter((i) => this.isOutside[this.span_state[i]]);
    const paused = spans.filter((i) => this.stateNames[this.span_state[i]] !== "waiting");
    const fresh = spans.filter((i) => this.stateNames[this.span_state[i]] === "waiting");
    paused.sort((a, b) => this.span_start[b] - this.span_start[a]);
    const came = (i) => this.request_arrival[this.span_request[i]];
    fresh.sort((a, b) => came(a) - came(b));
    return [...paused, ...fresh];
  }

  /** What runs in the step: one entry per span inside the batch, in the order of the slots. */
  batchAt(step) {
    const spans = this.spansAt(step).filter((i) => !this.isOutside[this.span_state[i]]);
    return spans.sort((a, b) => this.span_slot[a] - this.span_slot[b]);
  }

  /** Tokens that one span runs in one step. */
  tokensIn(span, step) {
    const length = this.span_end[span] - this.span_start[span];
    const part = Math.min(this.span_end[span], step + 1) - Math.max(this.span_start[span], step);
    return Math.round((this.span_tokens[span] * part) / length);
  }

  /** Tokens of its request in the cache after the step. */
  contextAt(span, step) {
    const length = this.span_end[span] - this.span_start[span];
    const left = Math.max(0, this.span_end[span] - (step + 1)) / length;
    const counts = ["prefill", "decode"].includes(this.stateNames[this.span_state[span]]);
    return this.span_context[span] - (counts ? Math.round(this.span_tokens[span] * left) : 0);
  }

  // -- blocks: replayed forwards and backwards from where the last look was --------------------------

  rewind() {
    this.tables = new Map();
    this.cached = new Set();
    this.nextEvent = 0;
    this.before = new Int32Array(this.event_key.length); // what taking an event back has to know
  }

  blocksAt(step) {
    const last = 2 * step, keys = this.event_key; // the step's own moves, not what came after it
    while (this.nextEvent < keys.length && keys[this.nextEvent] <= last) {
      this.applyEvent(this.nextEvent++);
    }
    while (this.nextEvent && keys[this.nextEvent - 1] > last) this.takeBack(--this.nextEvent);
    const context = new Map();
    for (const span of this.spansAt(step)) {
      context.set(this.span_request[span], this.contextAt(span, step));
    }
    const blocks = Array.from({ length: this.num_blocks }, () => null);
    for (const block of this.cached) blocks[block] = { holders: [], written: this.block_size };
    for (const [request, table] of this.tables) {
      table.forEach((block, page) => {
        const written = (context.get(request) ?? 0) - page * this.block_size;
        const entry = (blocks[block] ??= { holders: [], written: 0 });
        entry.holders.push({ request, page });
        const filled = Math.min(this.block_size, Math.max(0, written));
        entry.written = Math.max(entry.written, filled);
      });
    }
    return blocks;
  }

  tableOf(request) {
    if (!this.tables.has(request)) this.tables.set(request, []);
    return this.tables.get(request);
  }

  applyEvent(event) {
    const kind = this.event_kind[event], block = this.event_block[event];
    const request = this.event_request[event];
    if (kind === 0) this.tableOf(request).push(block);
    else if (kind === 1) {
      const table = this.tables.get(request), page = table.indexOf(block);
      this.before[event] = page;
      table.splice(page, 1);
      if (!table.length) this.tables.delete(request);
    } else {
      this.before[event] = this.cached.has(block) ? 1 : 0;
      if (kind === 2) this.cached.add(block);
      else this.cached.delete(block);
    }
  }

  takeBack(event) {
    const kind = this.event_kind[event], block = this.event_block[event];
    const request = this.event_request[event];
    if (kind === 0) {
      const table = this.tables.get(request);
      table.pop();
      if (!table.length) this.tables.delete(request);
    } else if (kind === 1) this.tableOf(request).splice(this.before[event], 0, block);
    else if (this.before[event]) this.cached.add(block);
    else this.cached.delete(block);
  }

  // -- words ----------------------------------------------------------------------------------------

  /** A step's decision as [heading, sentence] pairs: Python's own words if the run carries them. */
  explain(step) {
    if (this.why?.[step]) return this.why[step];
    const batch = this.batchAt(step), queue = this.queueAt(step);
    const named = (spans) => listing(spans.map((i) => this.ids[this.span_request[i]]));
    const of = (state) => batch.filter((i) => this.stateNames[this.span_state[i]] === state);
    const runs = [];
    if (of("decode").length) runs.push(`${named(of("decode"))}: one more token each`);
    for (const i of of("prefill").slice(0, 4)) {
      runs.push(`${named([i])} reads ${counted(this.tokensIn(i, step), "prompt token")}`);
    }
    if (of("prefill").length > 4) runs.push(`${of("prefill").length - 4} more read theirs`);
    const reasons = {
      slots: "all slots are taken", memory: "memory is short",
      budget: "this step's token budget is spent", batch: "a static batch is under way",
      quota: "the policy lets nobody in",
    };
    const reason = reasons[this.waits[this.step_wait[step] - 1]];
    const lines = [["Runs", (runs.join("; ") || "nothing") + "."]];
    if (queue.length) lines.push(["Waits", named(queue) + (reason ? `: ${reason}.` : ".")]);
    return lines;
  }
}

function counted(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function listing(names, limit = 6) {
  if (names.length > limit) {
    return `${names.slice(0, limit - 1).join(", ")} and ${names.length - limit + 1} more`;
  }
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
}

function seconds(value) {
  if (value === 0) return "0 s";
  if (value < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${Number((value * 1e3).toPrecision(3))} ms`;
  return `${value < 100 ? Number(value.toPrecision(4)) : Math.round(value)} s`;
}
