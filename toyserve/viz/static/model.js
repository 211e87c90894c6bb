// A widget's model where there is no kernel: values, and who is told when one changes.

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
