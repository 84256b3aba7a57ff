// Validation messages beside the fields of a form, in place of the browser's bubbles.

/** Thrown for a value that a check of our own or the platform refuses; `field` is the id of its field. */
export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** Show what is wrong beside each field, focus the first such field, and return whether all are valid. */
export function checkFields(form) {
  const wrong = [...form.elements].filter((field) => {
    const problem = field.willValidate ? problemOf(field) : "";
    showProblem(field, problem);
    return problem;
  });
  if (wrong.length) reveal(wrong[0]);
  return !wrong.length;
}

/** Show a message below a field, and point screen readers to it; an empty message removes it. */
export function showProblem(field, message) {
  const id = `${field.id}-problem`;
  const shown = document.getElementById(id);
  if (!message && !shown) return;
  const others = (field.getAttribute("aria-describedby") ?? "").split(" ").filter((part) => part && part !== id);
  shown?.remove();
  field.removeAttribute("aria-invalid");
  if (message) {
    const note = Object.assign(document.createElement("p"), { id, className: "field-error", textContent: message });
    field.after(note);
    field.setAttribute("aria-invalid", "true");
    others.push(id);
  }
  if (others.length) field.setAttribute("aria-describedby", others.join(" "));
  else field.removeAttribute("aria-describedby");
}

/** Focus a field; open what hides it. */
export function reveal(field) {
  const folded = field.closest("details");
  if (folded) folded.open = true;
  field.focus();
}

function problemOf({ validity, dataset, value, min, max, step }) {
  if (validity.badInput) return "Enter a number.";
  if (validity.valueMissing) return dataset.missing ?? "Enter a value.";
  if (validity.patternMismatch) return `The value is ${JSON.stringify(value)}; expected ${dataset.expected}.`;
  if (validity.rangeUnderflow) return `The value is ${value}; expected at least ${min}.`;
  if (validity.rangeOverflow) return `The value is ${value}; expected at most ${max}.`;
  if (validity.stepMismatch) return step === "1" ? `The value is ${value}; expected a whole number.` : `The value is ${value}; expected a multiple of ${step}.`;
  return validity.valid ? "" : "The value is not valid.";
}
