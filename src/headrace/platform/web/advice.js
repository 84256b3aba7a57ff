// An error with the commands that do what the page cannot.

import { $ } from "./dom.js";
import { snippet } from "./snippets.js";

/** Show an error in `#<id>-error`, and its commands in `#<id>-commands`; null hides both. */
export function showAdvice(id, error) {
  $(`${id}-error`).hidden = error === null;
  $(`${id}-error`).textContent = error === null ? "" : error.message === "Failed to fetch" ? "The platform cannot be reached." : error.message;
  $(`${id}-commands`).replaceChildren(...(error?.commands ?? []).map((command) => snippet("In a shell", command)));
}
