// Playing: one view of a model moves its step on, a little with every frame.

const drivers = new WeakMap(); // model -> the driver of the one view that moves its step

class Player {
  constructor(view) {
    this.view = view;
    this.model = view.model;
  }

  toggle() {
    const { view, model } = this, playing = !model.get("playing");
    if (playing && view.step >= view.run.num_steps - 1) view.goTo(0, false);
    view.set("playing", playing);
  }

  /** The model began to play or stopped: somebody has to drive it, but only one. */
  changed() {
    if (!this.model.get("playing") || drivers.get(this.model)?.alive) return;
    this.driver = { alive: true };
    drivers.set(this.model, this.driver);
    this.last = this.saved = performance.now();
    this.rest = 0;
    this.go();
  }

  go() {
    const driver = this.driver;
    requestAnimationFrame((now) => {
      if (!driver.alive) return;
      if (this.model.get("playing") && this.advance(now)) this.go();
      else this.end(driver);
    });
  }

  /** As many steps as the time since the last frame is good for; false at the end of the run. */
  advance(now) {
    const { view } = this, speed = Number(view.root.querySelector("select").value);
    // A frame bears the time at which it began, which may lie before the click.
    const seconds = Math.max(0, now - this.last) / 1000;
    this.rest += seconds * speed * Math.max(4, view.run.num_steps / 30);
    this.last = now;
    const whole = Math.floor(this.rest);
    this.rest -= whole;
    if (whole) view.goTo(view.step + whole, false);
    if (now - this.saved > 250) { // often enough for Python, and no backlog of messages
      this.model.save_changes();
      this.saved = now;
    }
    if (view.step < view.run.num_steps - 1) return true;
    view.set("playing", false, false);
    return false;
  }

  end(driver) {
    driver.alive = false;
    this.model.save_changes();
  }

  close() {
    if (this.driver) this.driver.alive = false;
  }
}
