// The page of its own: the data from the page instead of from Python, and a model without a kernel.

class PageModel {
  constructor(values) {
    this.values = values;
    this.callbacks = {};
  }

  get(name) {
    return this.values[name];
  }

  set(name, value) {
    if (this.values[name] === value) return;
    this.values[name] = value;
    for (const callback of [...(this.callbacks[`change:${name}`] ?? [])]) callback();
  }

  save_changes() {}

  on(event, callback) {
    (this.callbacks[event] ??= []).push(callback);
  }

  off(event, callback) {
    this.callbacks[event] = (this.callbacks[event] ?? []).filter((other) => other !== callback);
  }
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const text = (id) => document.getElementById(id).textContent;
const header = JSON.parse(new TextDecoder().decode(await inflate(text("header"))));
const grid = await inflate(text("grid"));
const model = new PageModel({
  header, grid, step: 1, playing: false, zoom: [], by: "slot", theme: "auto", sentence: {},
});
mount(model, document.getElementById("view"));
window.toyserve = { model }; // for whoever looks at the page with the browser's console
