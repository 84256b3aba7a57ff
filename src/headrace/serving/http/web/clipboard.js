// Copying, also over plain HTTP to another machine, where browsers offer no `navigator.clipboard`.

import { element } from "./dom.js";

const CONFIRMED_MS = 1500;
const labels = new WeakMap();

/** Copy a text; return whether it worked. */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // not allowed here, for example while the page has no focus
    }
  }
  return copyBySelection(text);
}

/** Copy a text and say so on the button. */
export async function copyFrom(button, text) {
  if (!labels.has(button)) labels.set(button, button.textContent);
  button.textContent = (await copyText(text)) ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = labels.get(button)), CONFIRMED_MS);
}

/** A button that copies `text`; `what` names it for screen readers. */
export function copyButton(text, what) {
  const button = element("button", { type: "button", className: "copy", textContent: "Copy", title: `Copy ${what}`, "aria-label": `Copy ${what}` });
  button.addEventListener("click", () => copyFrom(button, text));
  return button;
}

/** Copy with the command of older browsers, and give selection and focus back. */
function copyBySelection(text) {
  const selection = getSelection();
  const ranges = Array.from({ length: selection.rangeCount }, (_, index) => selection.getRangeAt(index));
  const focused = document.activeElement;
  const area = element("textarea", { className: "copied", value: text, readOnly: true, "aria-hidden": "true" });
  (focused?.closest("dialog") ?? document.body).append(area);
  area.select();
  try {
    return document.execCommand("copy");
  } finally {
    area.remove();
    focused?.focus({ preventScroll: true });
    if (ranges.length) selection.removeAllRanges();
    for (const range of ranges) selection.addRange(range);
  }
}
