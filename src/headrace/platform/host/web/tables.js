// Tables, and parts of a page that are drawn again and again.

import { element } from "./dom.js";

/** A table with these column heads; cells are texts or nodes. */
export function table(heads, rows) {
  const head = element("tr", {}, ...heads.map((textContent) => element("th", { textContent, scope: "col" })));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

/** Terms and values for a `dl`. */
export const terms = (rows) => rows.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", {}, value)]);

/** Replace a node's content if it looks different, so that focus and selection stay. */
export function keepUnlessChanged(host, node) {
  if (!host.firstChild?.isEqualNode(node)) host.replaceChildren(node);
}
