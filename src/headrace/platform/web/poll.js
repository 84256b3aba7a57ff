// Asking again and again, with one owner: not while the page is hidden, never twice at once.

export class Poll {
  /** `work(signal)` runs now and `pauseMs` after each run; `failed(error)` is told of what it throws, null when it went well. */
  constructor(work, pauseMs, failed = () => {}) {
    Object.assign(this, { work, pauseMs, failed, timer: 0, controller: null, isOn: false });
    this.seen = () => !document.hidden && this.isOn && this.again();
  }

  start() {
    if (!this.isOn) {
      this.isOn = true;
      document.addEventListener("visibilitychange", this.seen);
    }
    this.again();
  }

  stop() {
    this.isOn = false;
    document.removeEventListener("visibilitychange", this.seen);
    clearTimeout(this.timer);
    this.controller?.abort();
  }

  /** Run now: what is under way is dropped, as it may answer an older question. */
  async again() {
    clearTimeout(this.timer);
    this.controller?.abort();
    const controller = (this.controller = new AbortController());
    try {
      await this.work(controller.signal);
      if (this.controller === controller) this.failed(null);
    } catch (error) {
      if (this.controller === controller && error.name !== "AbortError") this.failed(error);
    }
    if (this.isOn && this.controller === controller && !document.hidden) {
      this.timer = setTimeout(() => this.again(), this.pauseMs);
    }
  }
}
