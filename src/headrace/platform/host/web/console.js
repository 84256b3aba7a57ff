// The console: the address determines the view: `#/<endpoint>/<tab>`, `#models/<name>`, `#keys`, or the home page; `#key=<secret>` signs in.

import { accessKey, onRefused } from "./aws.js";
import { Deployment } from "./deploy.js";
import { Detail } from "./detail.js";
import { Dialog } from "./dialog.js";
import { $, initTheme } from "./dom.js";
import { Home } from "./home.js";
import { Keys } from "./keys.js";
import { EndpointList } from "./list.js";
import { Models } from "./models.js";
import { learnPlatform } from "./snippets.js";

let isKeyRefused = false; // ask for the key once, not at every refresh

const list = new EndpointList(showConnection);
const deployment = new Deployment((name) => {
  const hash = `#/${encodeURIComponent(name)}`;
  if (location.hash === hash) detail.poll.again();
  else location.hash = hash;
  list.toFirstPage();
});
const detail = new Detail({
  changed: () => list.poll.again(),
  hosted: (hosts) => deployment.knowHosts(hosts),
  retry: (name) => deployment.retry(name),
  retryComponent: (name) => deployment.retryComponent(name),
});
const home = new Home(deployment);
const keys = new Keys();
const models = new Models((name) => deployment.openResource(name));
const keyDialog = new Dialog("key", () => {
  accessKey.set($("key-value").value.trim());
  $("key-value").value = "";
  isKeyRefused = false;
  list.poll.again();
  show();
});

/** Take the key from the address that `headrace up` prints, and remove it there and from the browser's history. */
function takeKey() {
  const [, key] = /^#key=(.+)$/.exec(location.hash) ?? [];
  if (!key) return;
  accessKey.set(decoded(key));
  history.replaceState(null, "", location.pathname);
  isKeyRefused = false;
  keyDialog.dialog.close();
  list.poll.again();
}

function showConnection(error) {
  const chip = $("connection");
  const isLost = error instanceof TypeError; // thrown by `fetch` without an answer
  chip.textContent = error === null ? location.host : isLost ? "not reachable" : "refused";
  chip.classList.toggle("lost", error !== null);
  chip.title = error === null ? "This page talks to the platform at this address" : isLost ? "The page tries again every 2 seconds" : error.message;
  if (error === null || isLost) return;
  $("list-note").textContent = error.message;
  $("list-note").hidden = false;
}

function show() {
  const [start, name, tab, ...parts] = location.hash.split("/").map(decoded);
  const place = { "#keys": "keys", "#models": "models" }[start] ?? (name ? "endpoint" : "home");
  document.body.classList.toggle("has-endpoint", place !== "home");
  list.select(place === "endpoint" ? name : null);
  if (place === "endpoint") detail.open(name, tab, parts);
  else detail.close();
  for (const [id, part] of Object.entries({ keys, models, home })) {
    if (place === id) part.open(id === "models" ? (name ?? "") : undefined);
    else part.close();
    if (place === id || (id === "home" && place === "endpoint")) $(`to-${id}`).setAttribute("aria-current", "page");
    else $(`to-${id}`).removeAttribute("aria-current");
  }
  const titles = { keys: "Access keys", models: name || "Model resources", endpoint: name };
  document.title = titles[place] ? `${titles[place]} · Headrace` : "Headrace console";
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function askForKey(why) {
  keyDialog.open();
  keyDialog.tell(why);
  $("key-value").focus();
}

onRefused.listener = (message) => {
  if (isKeyRefused) return;
  isKeyRefused = true;
  askForKey(message);
};
$("key").addEventListener("click", () => askForKey(""));
window.addEventListener("hashchange", () => {
  takeKey();
  show();
});
document.addEventListener("keydown", (event) => {
  const isWriting = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName);
  if (event.key === "/" && !isWriting && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    $("search").focus();
  }
});
initTheme($("theme"));
takeKey();
await learnPlatform();
list.start();
show();
