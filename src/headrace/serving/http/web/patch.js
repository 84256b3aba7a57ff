// Changes nodes into others while those that stay the same are kept, with a selection in them.

/** Make the children of `host` equal to `nodes`, which may be consumed. */
export function patchChildren(host, nodes) {
  nodes.forEach((fresh, index) => {
    const old = host.childNodes[index];
    if (!old) host.append(fresh);
    else if (!patch(old, fresh)) old.replaceWith(fresh);
  });
  while (host.childNodes.length > nodes.length) host.lastChild.remove();
}

/** Return whether `old` could be made equal to `fresh`. */
function patch(old, fresh) {
  if (old === fresh) return true;
  if (old.nodeName !== fresh.nodeName || !hasSameAttributes(old, fresh)) return false;
  if (old.nodeType === Node.TEXT_NODE) extend(old, fresh.data);
  else if (old.dataset?.source === undefined) patchChildren(old, [...fresh.childNodes]); // a formula of one source is the same
  return true;
}

function extend(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

function hasSameAttributes(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) return true;
  const names = old.getAttributeNames();
  return names.length === fresh.getAttributeNames().length && names.every((name) => old.getAttribute(name) === fresh.getAttribute(name));
}
