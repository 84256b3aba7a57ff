// A modal dialog with a form: `#<id>-dialog`, `#<id>-form`, and for its errors `#<id>-error`.

import { $ } from "./dom.js";

export class Dialog {
  /** `act()` performs the form's action; its error is shown, otherwise the dialog closes. */
  constructor(id, act) {
    Object.assign(this, { id, act, isBusy: false });
    this.dialog = $(`${id}-dialog`);
    this.form = $(`${id}-form`);
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
    this.form.querySelector("[data-close]").addEventListener("click", () => this.dialog.close());
  }

  open() {
    this.tell("");
    if (!this.dialog.open) this.dialog.showModal();
  }

  close() {
    this.dialog.close();
  }

  async submit() {
    if (this.isBusy) return;
    this.setBusy(true);
    this.tell("");
    try {
      await this.act();
      this.dialog.close();
    } catch (error) {
      this.tell(error.message === "Failed to fetch" ? "The platform cannot be reached." : error.message);
    } finally {
      this.setBusy(false);
    }
  }

  setBusy(isBusy) {
    this.isBusy = isBusy;
    this.form.querySelector("[type=submit]").disabled = isBusy;
  }

  tell(problem) {
    const place = $(`${this.id}-error`);
    place.hidden = !problem;
    place.textContent = problem;
  }
}
