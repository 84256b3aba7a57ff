// Code blocks with a language and a button to copy them, coloured by highlight.js, which is loaded by the first.

import { element } from "./dom.js";

const MAX_COLOURED_CHARACTERS = 30_000; // a longer block would delay every frame of its stream
const PIECE = /<span class="([^"]*)">|(<\/span>)|([^<]+)/g;
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#x27;": "'" };

let highlighter = null;
let loading = null;

/** Return the node of a code block. */
export function codeBlock(text, language) {
  const code = element("code", {}, text);
  if (language) code.dataset.language = language;
  if (language && highlighter) colour(code);
  else if (language) load();
  const copy = element("button", { type: "button", className: "copy-code", textContent: "Copy", "aria-label": "Copy the code" });
  const head = element("div", { className: "code-head" }, element("span", { textContent: language }), copy);
  return element("div", { className: "code" }, head, element("pre", { tabIndex: 0 }, code));
}

function colour(code) {
  code.dataset.coloured = "";
  const { language } = code.dataset;
  const text = code.textContent;
  if (text.length > MAX_COLOURED_CHARACTERS || !highlighter.getLanguage(language)) return;
  code.replaceChildren(nodesOf(highlighter.highlight(text, { language, ignoreIllegals: true }).value));
}

/** Return the nodes of highlight.js's output, which is text with entities and spans with a class, and nothing else. */
function nodesOf(html) {
  const root = document.createDocumentFragment();
  const open = [root];
  for (const [, className, isEnd, text] of html.matchAll(PIECE)) {
    if (isEnd) open.pop();
    else if (text !== undefined) open.at(-1).append(text.replace(/&(?:amp|lt|gt|quot|#x27);/g, (entity) => ENTITIES[entity]));
    else {
      const span = element("span", { className });
      open.at(-1).append(span);
      open.push(span);
    }
  }
  return root;
}

function load() {
  loading ??= import("./vendor/highlight.js/highlight.min.js").then((module) => {
    highlighter = module.default;
    for (const code of document.querySelectorAll("code[data-language]:not([data-coloured])")) colour(code);
  }).catch(() => (loading = null)); // the text stays as it is; the next block tries again
}
