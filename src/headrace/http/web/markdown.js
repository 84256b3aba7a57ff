// The Markdown subset that models write, as DOM nodes. Text becomes text nodes only: a model's output is never parsed
// as HTML, and links lead to http(s) only.

const BLOCK = /^(?:(#{1,4})\s+(.*)|([-*+])\s+(.*)|(\d+)[.)]\s+(.*))$/;
const INLINE = /`([^`\n]+)`|\*\*(.+?)\*\*|(?<![\w*])\*(?!\s)([^*\n]+?)\*(?!\w)|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)/g;

/** Return the nodes of an answer, also while it is incomplete (an open code fence runs to the end). */
export function render(text) {
  const nodes = [];
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ) {
    if (/^\s*```/.test(lines[i])) i = readFence(lines, i, nodes);
    else if (!lines[i].trim()) i += 1;
    else i = readBlock(lines, i, nodes);
  }
  return nodes;
}

function readFence(lines, start, nodes) {
  let end = start + 1;
  while (end < lines.length && !/^\s*```\s*$/.test(lines[end])) end += 1;
  const code = element("code", [lines.slice(start + 1, end).join("\n")]);
  nodes.push(element("pre", [code]));
  return end + 1;
}

function readBlock(lines, start, nodes) {
  const found = BLOCK.exec(lines[start].trim());
  if (found?.[1]) {
    nodes.push(element(`h${Math.min(found[1].length + 2, 5)}`, inline(found[2])));
    return start + 1;
  }
  if (found) return readList(lines, start, nodes, found[3] ? "ul" : "ol", Number(found[5] ?? 1));
  let end = start;
  const parts = [];
  while (end < lines.length && lines[end].trim() && !/^\s*```/.test(lines[end])) {
    if (end > start && BLOCK.test(lines[end].trim())) break;
    if (end > start) parts.push(document.createElement("br"));
    parts.push(...inline(lines[end]));
    end += 1;
  }
  nodes.push(element("p", parts));
  return end;
}

function readList(lines, start, nodes, tag, first) {
  const list = element(tag, []);
  if (tag === "ol" && first !== 1) list.start = first;
  let end = start;
  for (; end < lines.length; end += 1) {
    const found = BLOCK.exec(lines[end].trim());
    const item = tag === "ul" ? found?.[4] : found?.[6];
    if (item === undefined) break;
    list.append(element("li", inline(item)));
  }
  nodes.push(list);
  return end;
}

function inline(text) {
  const nodes = [];
  let position = 0;
  for (const found of text.matchAll(INLINE)) {
    nodes.push(text.slice(position, found.index));
    const [whole, code, strong, emphasis, label, address] = found;
    if (code !== undefined) nodes.push(element("code", [code]));
    else if (strong !== undefined) nodes.push(element("strong", inline(strong)));
    else if (emphasis !== undefined) nodes.push(element("em", [emphasis]));
    else nodes.push(link(label, address));
    position = found.index + whole.length;
  }
  nodes.push(text.slice(position));
  return nodes;
}

function link(label, address) {
  const node = element("a", [label]);
  node.href = address;
  node.target = "_blank";
  node.rel = "noopener noreferrer";
  return node;
}

function element(tag, children) {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
}
