// Polling with one owner: not while the page is hidden, never twice at once.

export class Poll {
  /** `work(signal)` runs now and `pauseMs` after each run; `failed(error)` gets its error, or null on success. */
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

  /** Run now: a run in progress is dropped, because it may answer an older question. */
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
