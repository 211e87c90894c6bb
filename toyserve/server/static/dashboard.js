
// The dashboard: asks its server for the state, again and again, and shows it.

const at = (id) => document.getElementById(id);
const MIN_PAUSE = 400, WINDOW = 80;
let key = sessionStorage.getItem("toyserve-key") ?? "";
let drawn = null; // the last step in the picture
let ours = false; // is it this script that moves the picture, and not its user?

class LiveModel extends PageModel {
  set(name, value) {
    const follows = ours || !["step", "zoom", "playing"].includes(name);
    if (this.values[name] !== value && !follows) at("follow").checked = false;
    super.set(name, value);
  }
}

let model = null;

function showRun(run, numSteps) {
  if (!run || (!at("follow").checked && model)) return;
  const { header } = run;
  const grid = Uint8Array.from(atob(run.grid), (letter) => letter.charCodeAt(0));
  const last = Math.max(1, header.num_steps);
  const zoom = last > WINDOW ? [last - WINDOW + 1, last] : [];
  drawn = numSteps;
  if (!model) {
    model = new LiveModel({
      header, grid, step: last, playing: false, zoom, by: "slot", theme: "auto", sentence: run.sentence,
    });
    at("view").replaceChildren();
    mount(model, at("view"));
    window.toyserve = { model };
    return;
  }
  ours = true;
  model.set("header", header);
  model.set("grid", grid);
  queueMicrotask(() => { // after the picture has taken in the new run
    ours = true;
    model.set("zoom", zoom);
    model.set("step", last);
    model.set("sentence", run.sentence);
    ours = false;
  });
  ours = false;
}

function showHead(state) {
  at("model").textContent = state.model;
  const { status } = state.health;
  at("health").textContent = status === "failing" ? `failing: ${state.health.failure}` : status;
  at("health").className = `badge ${status === "ok" ? "ok" : status === "waiting" ? "" : "bad"}`;
  const g = state.gauges;
  const shown = {
    running: g.num_requests_running, waiting: g.num_requests_waiting,
    "on the host": g.num_requests_swapped, "KV in use": `${(100 * g.kv_cache_usage_perc).toFixed(0)} %`,
    steps: state.num_steps.toLocaleString("en"),
  };
  at("gauges").replaceChildren(...Object.entries(shown).map(([name, value]) => {
    const box = element("div", "");
    box.append(element("dt", "", name), element("dd", "", String(value)));
    return box;
  }));
}

const number = (value, digits = 0) => (value === null ? "–" : value.toFixed(digits));

function showUsers(users) {
  at("users").tBodies[0].replaceChildren(...users.map((user) => {
    const row = document.createElement("tr");
    const cells = [
      user.user, `${user.num_finished} of ${user.num_requests}`, user.output_tokens.toLocaleString("en"),
      `${number(user.ttft_p50)} / ${number(user.ttft_p95)}`, number(user.tpot_p50, 1),
    ];
    row.append(...cells.map((text) => element("td", "", String(text))));
    return row;
  }));
}

const rows = new Map();

function rowOfRequest(id) {
  if (rows.has(id)) return rows.get(id);
  const row = element("div", "request"), words = element("div", "words"), line = element("div", "");
  const parts = {
    row, who: element("div", "who"), prompt: element("span", "prompt"), text: element("span", "text"),
    stop: element("button", "", "✕"),
  };
  parts.stop.title = "abort this request";
  parts.stop.addEventListener("click", () => post("dashboard/abort", { request_id: id }));
  line.append(parts.prompt, parts.text);
  words.append(line);
  row.append(parts.who, words, parts.stop);
  rows.set(id, parts);
  return parts;
}

function showRequests(requests) {
  const seen = new Set();
  const shown = requests.map((request) => {
    seen.add(request.id);
    const parts = rowOfRequest(request.id);
    const status = element("div", `status ${request.status}`, request.status);
    const ttft = request.ttft_ms === null ? "" : `, first after ${number(request.ttft_ms)} ms`;
    parts.who.replaceChildren(
      element("div", "", `${request.id} · ${request.user}`), status,
      element("div", "", `${request.num_output_tokens} of ${request.max_tokens} tokens${ttft}`),
    );
    parts.prompt.textContent = request.prompt;
    parts.text.textContent = request.text + (request.error ? ` [${request.error}]` : "");
    parts.stop.hidden = request.is_over;
    return parts.row;
  });
  for (const id of [...rows.keys()]) if (!seen.has(id)) rows.delete(id);
  const box = at("requests"), old = [...box.children];
  if (old.length !== shown.length || shown.some((row, i) => row !== old[i])) box.replaceChildren(...shown);
  if (!shown.length) box.replaceChildren(element("p", "hint", "Nobody has asked for anything yet."));
}

function headers() {
  const made = { "Content-Type": "application/json" };
  if (key) made.Authorization = `Bearer ${key}`;
  return made;
}

async function post(path, body) {
  const answer = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body) });
  return { ok: answer.ok, body: await answer.json() };
}

async function look() {
  const began = performance.now();
  try {
    const path = drawn === null ? "dashboard/state" : `dashboard/state?after=${drawn}`;
    const answer = await fetch(path, { headers: headers() });
    at("key-line").hidden = answer.status !== 401;
    if (answer.ok) {
      const state = await answer.json();
      showHead(state);
      showUsers(state.users);
      showRequests(state.requests);
      showRun(state.run, state.num_steps);
    } else {
      at("health").textContent = answer.status === 401 ? "locked" : `error ${answer.status}`;
      at("health").className = "badge bad";
    }
  } catch {
    at("health").textContent = "no connection";
    at("health").className = "badge bad";
  }
  // A slow machine is asked less often: it has better things to do.
  setTimeout(look, Math.max(MIN_PAUSE, 3 * (performance.now() - began)));
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const values = Object.fromEntries(new FormData(event.target));
  for (const name of ["count", "max_tokens", "temperature", "priority"]) values[name] = Number(values[name]);
  const { ok, body } = await post("dashboard/burst", values);
  at("sent").className = ok ? "" : "bad";
  at("sent").textContent = ok ? `sent: ${body.request_ids.length}` : body.error.message;
});
at("key").addEventListener("change", (event) => {
  key = event.target.value;
  sessionStorage.setItem("toyserve-key", key);
});
at("follow").addEventListener("change", () => { drawn = null; });
look();
