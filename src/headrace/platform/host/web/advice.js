// An error with the commands that do what the page cannot.

import { messageOf } from "./aws.js";
import { $ } from "./dom.js";
import { snippet } from "./snippets.js";

/** Show an error in `#<id>-error`, and its commands in `#<id>-commands`; null hides both. */
export function showAdvice(id, error) {
  $(`${id}-error`).hidden = error === null;
  $(`${id}-error`).textContent = error === null ? "" : messageOf(error);
  $(`${id}-commands`).replaceChildren(...(error?.commands ?? []).map((command) => snippet("In a shell", command)));
}
