// Forms with an action: `#<id>-form` and, for its errors, `#<id>-error`; in a page, or in the modal dialog `#<id>-dialog`.

import { messageOf } from "./aws.js";
import { $ } from "./dom.js";
import { FieldError, checkFields, reveal, showProblem } from "./fields.js";

export class Form {
  /** `act()` performs the form's action; its error is shown, beside a field if it is a `FieldError`. */
  constructor(id, act) {
    Object.assign(this, { id, act, isBusy: false });
    this.form = $(`${id}-form`);
    this.form.noValidate = true; // the messages stand beside their fields
    this.form.addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
    this.form.addEventListener("input", (event) => event.target.id && showProblem(event.target, ""));
  }

  async submit() {
    if (this.isBusy) return;
    this.tell("");
    if (!checkFields(this.form)) return;
    this.setBusy(true);
    try {
      await this.act();
      this.done();
    } catch (error) {
      this.fail(error);
    } finally {
      this.setBusy(false);
    }
  }

  done() {}

  fail(error) {
    if (!(error instanceof FieldError)) return this.tell(messageOf(error));
    showProblem($(error.field), error.message);
    reveal($(error.field));
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
    for (const field of this.form.elements) if (field.id) showProblem(field, "");
    if (!this.isOpen) this.dialog.showModal();
  }

  done() {
    this.dialog.close();
  }
}
