// Markdown as DOM nodes. markdown-it parses; the nodes are built here, so that no text of a model becomes HTML.
// Links lead to http(s) and mail only, and images are links: a page loads nothing from other sites.

import { codeBlock } from "./code.js";
import { element } from "./dom.js";
import { addMaths, formula } from "./maths.js";
import MarkdownIt from "./vendor/markdown-it/markdown-it.min.js";

const ALIGNMENT = /^text-align:(left|center|right)$/;

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false }); // `main.py` is a file, not a site
parser.validateLink = (address) => /^(https?:|mailto:)/i.test(address.trim());
addMaths(parser);

/**
 * Return the top-level blocks of a text, also while it is incomplete (an open code fence runs to the end).
 * A block is its `source`, by which a caller knows that it has not changed, and `build()`, which returns its node.
 */
export function blocksOf(text) {
  const lines = text.split("\n");
  const context = {};
  const tokens = parser.parse(text, context);
  const references = Object.keys(context.references ?? {}).join();
  return topLevel(tokens).map((group) => {
    const [from, to] = group[0].map ?? [0, lines.length];
    return { source: `${references}\n${lines.slice(from, to).join("\n")}`, build: () => build(group).firstChild };
  });
}

function topLevel(tokens) {
  const groups = [];
  for (const token of tokens) {
    if (token.level === 0 && token.nesting >= 0) groups.push([]);
    groups.at(-1).push(token);
  }
  return groups;
}

function build(tokens) {
  const root = document.createDocumentFragment();
  const open = [root];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) open.push(opened(token, open.at(-1)));
    else open.at(-1).append(leaf(token));
  }
  return root;
}

/** Add the node of an opening token to its parent, and return the node for its content. */
function opened(token, parent) {
  const node = document.createElement(heading(token.tag));
  if (token.tag === "a") Object.assign(node, linkTo(token.attrGet("href")));
  if (token.tag === "ol" && token.attrGet("start") !== null) node.start = Number(token.attrGet("start"));
  const alignment = ALIGNMENT.exec(token.attrGet("style") ?? "");
  if (alignment) node.classList.add(alignment[1]);
  parent.append(token.tag === "table" ? element("div", { className: "table" }, node) : node);
  return node;
}

/** Headings of an answer come below those of the page. */
function heading(tag) {
  const level = /^h([1-6])$/.exec(tag)?.[1];
  return level ? `h${Math.min(Number(level) + 2, 6)}` : tag;
}

function leaf(token) {
  switch (token.type) {
    case "inline":
      return build(token.children);
    case "fence":
    case "code_block":
      return codeBlock(token.content.replace(/\n$/, ""), token.info.trim().split(/\s/)[0]);
    case "code_inline":
      return element("code", {}, token.content);
    case "softbreak":
    case "hardbreak":
      return document.createElement("br");
    case "hr":
      return document.createElement("hr");
    case "image":
      return element("a", linkTo(token.attrGet("src")), token.content || token.attrGet("src"));
    case "formula":
      return formula(token.content, { isDisplay: token.block || token.markup !== "inline" });
    default:
      return document.createTextNode(token.content);
  }
}

function linkTo(href) {
  return { href, target: "_blank", rel: "noopener noreferrer" };
}
