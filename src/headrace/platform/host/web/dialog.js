// Forms with an action: `#<id>-form` and, for its errors, `#<id>-error`; in a page, or in the modal dialog `#<id>-dialog`.

import { messageOf } from "./aws.js";
import { $ } from "./dom.js";

export class Form {
  /** `act()` performs the form's action; its error is shown. */
  constructor(id, act) {
    Object.assign(this, { id, act, isBusy: false });
    this.form = $(`${id}-form`);
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
  }

  async submit() {
    if (this.isBusy) return;
    this.setBusy(true);
    this.tell("");
    try {
      await this.act();
      this.done();
    } catch (error) {
      this.tell(messageOf(error));
    } finally {
      this.setBusy(false);
    }
  }

  done() {}

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

/** A form in a modal dialog, which closes after the action. */
export class Dialog extends Form {
  constructor(id, act) {
    super(id, act);
    this.dialog = $(`${id}-dialog`);
    this.form.querySelector("[data-close]").addEventListener("click", () => this.dialog.close());
  }

  get isOpen() {
    return this.dialog.open;
  }

  open() {
    this.tell("");
    if (!this.isOpen) this.dialog.showModal();
  }

  done() {
    this.dialog.close();
  }
}
