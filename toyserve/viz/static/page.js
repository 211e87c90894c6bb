// The page of its own: the data from the page instead of from Python.

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
