// Formulas: `\( \)` and `$ $` within a line, `\[ \]` and `$$ $$` on their own, drawn by KaTeX, which is loaded by the first.

import { element } from "./dom.js";

const CLOSING = { "\\[": "\\]", "$$": "$$" };
// A dollar sign with a space behind the first or before the second, or a digit behind the second, is a price.
const INLINE = /\\\(([^]+?)\\\)|\\\[([^]+?)\\\]|\$\$([^]+?)\$\$|(?<!\\)\$(?=\S)((?:\\.|[^$\\\n])*?(?:\\.|[^\s$\\]))\$(?!\d)/y;

let katex = null;
let loading = null;

/** Add `formula` tokens to the parser. */
export function addMaths(parser) {
  parser.inline.ruler.before("escape", "formula", readInline);
  parser.block.ruler.before("fence", "formula", readBlock, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

/** Return the node of a formula: its source until KaTeX has been loaded, and permanently if it is not valid. */
export function formula(source, { isDisplay }) {
  const node = element("span", { className: isDisplay ? "formula display" : "formula" }, source);
  node.dataset.source = source;
  if (katex) draw(node);
  else load();
  return node;
}

function draw(node) {
  node.dataset.drawn = "";
  const fresh = document.createElement("span");
  try {
    katex.render(node.dataset.source, fresh, { displayMode: node.classList.contains("display"), maxExpand: 200, maxSize: 40 });
    node.replaceChildren(...fresh.childNodes);
  } catch {
    node.classList.add("invalid");
  }
}

function load() {
  loading ??= import("./vendor/katex/katex.min.js").then(() => {
    katex = globalThis.katex;
    const href = new URL("./vendor/katex/katex.min.css", import.meta.url).href;
    document.head.append(element("link", { rel: "stylesheet", href }));
    for (const node of document.querySelectorAll(".formula:not([data-drawn])")) draw(node);
  }).catch(() => (loading = null)); // the source stays; the next formula tries again
}

function readInline(state, isSilent) {
  INLINE.lastIndex = state.pos;
  const found = INLINE.exec(state.src);
  if (!found) return false;
  if (!isSilent) {
    const token = state.push("formula", "span", 0);
    token.content = (found[1] ?? found[2] ?? found[3] ?? found[4]).trim();
    token.markup = found[2] ?? found[3] ? "display" : "inline";
  }
  state.pos = INLINE.lastIndex;
  return true;
}

function readBlock(state, start, end, isSilent) {
  const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]).trimEnd();
  const closing = CLOSING[line(start).slice(0, 2)];
  if (!closing || state.sCount[start] - state.blkIndent >= 4) return false;
  let last = start;
  while (!line(last).slice(last === start ? 2 : 0).endsWith(closing)) {
    last += 1;
    if (last >= end || state.sCount[last] < state.blkIndent) return false;
  }
  if (isSilent) return true;
  const lines = Array.from({ length: last - start + 1 }, (_, index) => line(start + index));
  const token = state.push("formula", "span", 0);
  token.content = lines.join("\n").slice(2, -2).trim();
  token.block = true;
  token.map = [start, last + 1];
  state.line = last + 1;
  return true;
}
