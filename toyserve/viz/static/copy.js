// A button that puts its text on the clipboard, from inside the click, as browsers ask for.

function render({ model, el }) {
  const button = document.createElement("button");
  button.className = "jupyter-widgets jupyter-button widget-button";
  const label = () => { button.textContent = model.get("label"); };
  label();
  model.on("change:label", label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(model.get("text"));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Mark the text below"; // no clipboard on a page that is not secure
    }
    setTimeout(label, 1500);
  });
  el.appendChild(button);
  return () => model.off("change:label", label);
}

export default { render };
