// The interactive timeline: the picture of a model's recording, with the block map and the queue of
// the step beside it. One module for a notebook (anywidget) and for a page of its own.

const TEMPLATE = `
  <div class="ts-bar">
    <button data-do="first" title="first step (Home)">|◀</button>
    <button data-do="back" title="one step back (←)">◀</button>
    <button data-do="play" class="ts-play" title="play or pause (space)">▶ Play</button>
    <button data-do="next" title="one step on (→)">▶|</button>
    <select data-do="speed" title="how fast it plays" aria-label="speed">
      <option value="0.25">¼ speed</option><option value="1" selected>speed 1</option>
      <option value="4">4 ×</option><option value="16">16 ×</option>
    </select>
    <button data-do="rows" title="one row per place in the batch, or one per request"></button>
    <button data-do="out" title="show more steps (−)">−</button>
    <button data-do="in" title="show fewer steps, larger (+)">+</button>
    <button data-do="all" title="show the whole run (0)">all</button>
    <button data-do="stop" class="ts-stop" title="abort what is unfinished">■ Stop</button>
    <span class="ts-clock"></span>
  </div>
  <div class="ts-title"></div>
  <div class="ts-stage"><canvas class="ts-base" role="img"></canvas>
    <canvas class="ts-over" aria-hidden="true"></canvas></div>
  <input class="ts-scrub" type="range" min="1" aria-label="step">
  <div class="ts-legend"></div>
  <div class="ts-why"></div>
  <div class="ts-below">
    <div class="ts-memory"><div class="ts-head ts-memory-head"></div><canvas class="ts-map" role="img"></canvas>
      <div class="ts-memory-note"></div><div class="ts-legend ts-memory-legend"></div></div>
    <div class="ts-lists"><div class="ts-head ts-batch-head"></div><div class="ts-batch"></div>
      <div class="ts-head ts-queue-head"></div><div class="ts-queue"></div></div>
  </div>
  <div class="ts-tip" hidden></div>`;
const REST_FACTOR = 20; // of the time that one picture takes, before the next of a run that goes on

class View {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    root.classList.add("toyserve-timeline");
    root.tabIndex = 0;
    // JupyterLab would take arrows and space for itself.
    root.dataset.lmSuppressShortcuts = "true";
    root.innerHTML = TEMPLATE;
    this.at = (name) => root.querySelector(`.ts-${name}`);
    this.hot = null;
    this.subscriptions = [];
    this.player = new Player(this);
    this.listen();
    this.load();
    new Hands(this);
  }

  // -- state, all of it in the model ----------------------------------------------------------------

  get step() {
    return Math.min(Math.max(this.model.get("step"), 1), this.run.num_steps) - 1;
  }

  get options() {
    const [low, high] = this.model.get("zoom") ?? [];
    const whole = [0, Math.max(1, this.run.num_steps)];
    const zoom = high > low ? [low - 1, high] : whole;
    return { step: this.step, by: this.model.get("by"), zoom, hot: this.hot };
  }

  set(name, value, save = true) {
    this.model.set(name, value);
    if (save) this.model.save_changes();
  }

  goTo(step, save = true) {
    const number = Math.min(Math.max(1, step + 1), Math.max(1, this.run.num_steps));
    if (this.isLive) this.set("follow", number >= this.run.num_steps, false);
    this.set("step", number, save);
  }

  get isLive() {
    return this.model.get("can_stop") !== undefined;
  }

  zoomTo(low, high) {
    const width = Math.min(Math.max(4, high - low), this.run.num_steps);
    const start = Math.min(Math.max(0, Math.round(low)), Math.round(this.run.num_steps - width));
    const all = width >= this.run.num_steps;
    this.set("zoom", all ? [] : [start + 1, start + Math.round(width)]);
  }

  zoomBy(factor, around = this.step + 0.5) {
    const [low, high] = this.options.zoom;
    const center = Math.min(Math.max(around, low), high);
    const width = Math.min(Math.max(4, (high - low) * factor), this.run.num_steps);
    this.zoomTo(center - ((center - low) / (high - low)) * width,
      center + ((high - center) / (high - low)) * width);
  }

  // -- what the model tells ---------------------------------------------------------------------------

  on(name, callback) {
    this.model.on(`change:${name}`, callback);
    this.subscriptions.push(() => this.model.off(`change:${name}`, callback));
  }

  listen() {
    for (const name of ["header", "grid"]) this.on(name, () => this.loadSoon());
    this.on("running", () => this.runningChanged());
    for (const name of ["zoom", "by", "theme"]) this.on(name, () => this.draw());
    this.on("step", () => this.moved());
    this.on("sentence", () => this.showStep());
    for (const name of ["can_stop", "by_interrupt"]) this.on(name, () => this.showStep());
    this.on("still", () => this.hideStill());
    this.on("playing", () => {
      this.showStep();
      this.player.changed();
    });
    const resize = new ResizeObserver(() => {
      this.hideStill(); // the first time is when it has been put into the page
      if (this.root.clientWidth !== this.drawnWidth) this.draw();
    });
    resize.observe(this.root);
    const themes = new MutationObserver(() => this.draw());
    themes.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    this.subscriptions.push(() => resize.disconnect(), () => themes.disconnect());
  }

  moved() {
    const [low, high] = this.options.zoom;
    const outside = this.step < low || this.step + 1 > high;
    if (outside && high - low < this.run.num_steps) {
      const before = this.step < low ? 0.9 : 0.1;
      this.zoomTo(this.step - (high - low) * before, this.step + (high - low) * (1 - before));
    } else this.showStep();
  }

  // -- an engine that runs --------------------------------------------------------------------------

  /** A kernel at work reads no messages; an interrupt reaches it, and the run takes it as a wish. */
  stop() {
    const kernel = this.model.get("by_interrupt") && this.model.widget_manager?.kernel;
    this.stopping = this.model.get("running");
    this.showStep();
    if (kernel?.interrupt && kernel.status === "busy") kernel.interrupt();
    else this.model.send?.({ do: "stop" });
  }

  runningChanged() {
    this.stopping = false;
    if (!this.model.get("running")) {
      this.model.save_changes(); // the step that it followed to
      clearTimeout(this.waiting);
      if (this.loading) this.load(); // the last picture comes at once
    }
    this.showStep();
  }

  // -- drawing --------------------------------------------------------------------------------------

  /** The plain picture above, for readers without widgets, gives way to the one that plays. */
  hideStill() {
    const tail = this.model.get("still");
    const before = this.root.closest(".jp-OutputArea-child")?.previousElementSibling;
    const image = tail && before?.querySelector(".jp-RenderedImage img");
    if (image?.src.endsWith(tail)) before.style.display = "none";
  }

  /** When header and grid have both come: they come in one message, and a change is told of each.
   * After its first, the pictures of a run that goes on wait: drawing takes the cores it runs on. */
  loadSoon() {
    if (this.loading) return;
    this.loading = true;
    const goesOn = this.model.get("running") && this.run.num_steps > 0;
    const rest = goesOn ? this.nextPicture - performance.now() : 0;
    if (rest > 0) this.waiting = setTimeout(() => this.load(), rest);
    else queueMicrotask(() => this.load());
  }

  load() {
    this.loading = false;
    this.measure();
    this.run = new Run(this.model.get("header"), this.model.get("grid"));
    this.at("scrub").max = Math.max(1, this.run.num_steps);
    if (this.model.get("follow")) this.set("step", Math.max(1, this.run.num_steps), false);
    this.draw();
  }

  /** A picture that took one second to be drawn is followed by none for REST_FACTOR seconds. */
  measure() {
    const began = performance.now();
    this.nextPicture = began;
    queueMicrotask(() => {
      const made = performance.now() - began;
      requestAnimationFrame((frame) => { // the moment at which the frame began
        setTimeout(() => { // after it was painted
          const now = performance.now();
          this.nextPicture = now + REST_FACTOR * (made + now - frame);
        });
      });
    });
  }

  get look() {
    let theme = this.model.get("theme");
    if (theme === "auto") {
      const lab = document.body.dataset.jpThemeLight;
      const dark = lab ? lab === "false" : matchMedia("(prefers-color-scheme: dark)").matches;
      theme = dark ? "dark" : "light";
    }
    return { theme, ...this.run.themes[theme], width: Math.max(320, this.root.clientWidth - 18) };
  }

  draw() {
    this.drawnWidth = this.root.clientWidth;
    const look = this.look;
    for (const name of ["background", "ink", "faint"]) {
      this.root.style.setProperty(`--ts-${name}`, look[name]);
    }
    this.root.style.colorScheme = look.theme;
    const size = layoutOf(this.run, this.options, look.width);
    this.at("stage").style.height = `${size.height}px`;
    this.place = paintTimeline(sized(this.at("base"), size), this.run, this.options, look);
    showTitle(this);
    showLegend(this, look);
    this.showStep();
  }

  showStep() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const look = this.look, run = this.run;
      paintOverlay(sized(this.at("over"), this.place), run, this.options, this.place, look);
      showControls(this);
      if (!run.num_steps) return;
      if (run.num_blocks) {
        this.blocks = run.blocksAt(this.step);
        const below = this.at("below").clientWidth || look.width;
        this.mapPlace = mapLayout(run, below > 700 ? Math.floor(below * 0.58) : below);
        const context = sized(this.at("map"), this.mapPlace);
        paintBlocks(context, run, this.blocks, this.mapPlace, this.options, look);
      }
      showMemory(this);
      showLists(this, look);
      showWhy(this);
    });
  }

  outline(request) {
    if (request === this.hot) return;
    this.hot = request;
    this.showStep();
  }

  close() {
    this.player.close();
    clearTimeout(this.waiting);
    cancelAnimationFrame(this.frame);
    for (const undo of this.subscriptions) undo();
  }
}

function sized(canvas, { width, height }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/** Draw a model's recording into an element; returns a function that lets go of it again. */
function mount(model, element) {
  const root = document.createElement("div");
  element.appendChild(root);
  const view = new View(model, root);
  return () => view.close();
}

export default { render: ({ model, el }) => mount(model, el) };
