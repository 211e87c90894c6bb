// What hands do: buttons, keys, the slider, dragging, the wheel, and pointing at a cell or a block.

class Hands {
  constructor(view) {
    this.view = view;
    this.root = view.root;
    this.at = view.at;
    this.drag = null;
    this.listen();
  }

  listen() {
    const { view, root } = this, over = this.at("over"), map = this.at("map");
    root.addEventListener("click", (event) => {
      const name = event.target.dataset?.do;
      if (name && name !== "speed") this.act(name);
    });
    root.addEventListener("keydown", (event) => this.key(event));
    this.at("scrub").addEventListener("input", (event) => {
      view.set("playing", false, false);
      view.goTo(Number(event.target.value) - 1);
    });
    over.addEventListener("pointerdown", (event) => {
      over.setPointerCapture(event.pointerId);
      this.drag = { x: event.offsetX, zoom: view.options.zoom, moved: false };
    });
    over.addEventListener("pointermove", (event) => this.move(event));
    over.addEventListener("pointerup", (event) => {
      if (this.drag && !this.drag.moved) view.goTo(Math.floor(view.place.step(event.offsetX)));
      this.drag = null;
    });
    over.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    map.addEventListener("pointermove", (event) => this.hoverBlock(event));
    for (const canvas of [over, map]) {
      canvas.addEventListener("pointerleave", () => this.tip(null));
    }
  }

  act(name) {
    const { view } = this;
    const actions = {
      first: () => view.goTo(0), back: () => view.goTo(view.step - 1),
      next: () => view.goTo(view.step + 1), last: () => view.goTo(view.run.num_steps - 1),
      play: () => view.player.toggle(), in: () => view.zoomBy(0.5), out: () => view.zoomBy(2),
      all: () => view.set("zoom", []), stop: () => view.stop(),
      rows: () => view.set("by", view.model.get("by") === "slot" ? "request" : "slot"),
    };
    actions[name]?.();
  }

  key(event) {
    if (event.target.matches("select") || event.altKey || event.ctrlKey || event.metaKey) return;
    const keys = { " ": "play", Home: "first", End: "last", "+": "in", "=": "in", "-": "out", 0: "all" };
    const arrow = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (arrow) this.view.goTo(this.view.step + arrow * (event.shiftKey ? 10 : 1));
    else if (keys[event.key]) this.act(keys[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return; // the page scrolls
    event.preventDefault();
    const turn = event.deltaY || event.deltaX;
    this.view.zoomBy(turn > 0 ? 1.25 : 0.8, this.view.place.step(event.offsetX));
  }

  /** A drag moves the window, or the step where the window holds the whole run. */
  move(event) {
    const { view, drag } = this;
    if (!drag || Math.abs(event.offsetX - drag.x) <= 4) {
      this.hoverSpan(event);
      return;
    }
    drag.moved = true;
    const [low, high] = drag.zoom;
    if (high - low >= view.run.num_steps) view.goTo(Math.floor(view.place.step(event.offsetX)));
    else {
      const shift = ((drag.x - event.offsetX) / view.place.plot) * (high - low);
      view.zoomTo(low + shift, high + shift);
    }
  }

  hoverSpan(event) {
    const { run, options, place } = this.view;
    const moment = place.step(event.offsetX), step = Math.floor(moment);
    const row = place.row(event.offsetY);
    const here = step < 0 ? [] : run.spansAt(step).filter((i) => rowOf(run, options, i) === row);
    const span = here.find((i) => run.span_start[i] <= moment && moment < run.span_end[i]);
    if (span === undefined) this.tip(null);
    else this.tip(describeSpan(run, span, step), event, run.span_request[span]);
  }

  hoverBlock(event) {
    const { run, blocks, mapPlace } = this.view;
    if (!mapPlace || !blocks) return;
    const range = blocksUnder(mapPlace, event.offsetX, event.offsetY);
    if (!range) return this.tip(null);
    const [first, end] = range;
    const hot = end - first > 1 ? null : blocks[first]?.holders[0]?.request ?? null;
    this.tip(describeBlocks(run, blocks, first, end), event, hot);
  }

  /** Words beside the pointer (none: no words), and a request that is outlined everywhere. */
  tip(text, event = null, hot = null) {
    const tip = this.at("tip");
    tip.hidden = !text;
    if (text) {
      tip.textContent = text;
      const box = this.root.getBoundingClientRect();
      tip.style.left = `${Math.min(event.clientX - box.left + 14, box.width - 280)}px`;
      tip.style.top = `${event.clientY - box.top + 16}px`;
    }
    this.view.outline(hot);
  }
}
