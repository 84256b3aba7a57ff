// A chat with the server that this page came from.

import { Attachments } from "./attachments.js";
import { Conversation } from "./conversation.js";
import { $, initTheme } from "./dom.js";
import { History } from "./history.js";
import { Server } from "./server.js";

const KEPT = ["system", "temperature", "top_p", "max_tokens", "seed"];
const SAMPLED = ["temperature", "top_p", "max_tokens"];
const USUAL_TOKENS = 1024;

const STATES = { connecting: "connecting…", waiting: "not ready", "needs-key": "needs a key", unreachable: "not reachable" };
const NOTICES = {
  waiting: (reason) => reason,
  "needs-key": () => "This server asks for an API key. Enter it in the settings.",
  unreachable: () => "The server is not reachable. The page tries again every 2 seconds.",
};
const BASE_NOTICE = "This is a base model without a chat template: it continues your text, and does not answer it.";

const server = new Server(showServer);
const attachments = new Attachments();
const conversation = new Conversation(
  (messages, answer, signal) => server.ask(messages, $("system").value.trim(), server.sampling(), answer, signal),
  { changed: () => history.save(), canContinue: () => server.state === "ready", attachments },
);
const history = new History(conversation, () => server.model?.id ?? null);

// ---- the server's state

function showServer() {
  const { state, reason, model } = server;
  document.documentElement.dataset.server = state;
  $("model").textContent = state === "ready" ? model.id : STATES[state];
  $("model").title = state === "ready" ? "The model that is served" : reason;
  showMenu(state === "ready" ? server.models : []);
  const isBase = state === "ready" && model.isBase;
  const notice = isBase ? BASE_NOTICE : NOTICES[state]?.(reason);
  $("notice").hidden = !notice;
  $("notice").textContent = notice ?? "";
  if (state === "needs-key") askForKey();
  if (state === "ready") showModel(isBase);
}

/** Offer a choice where the server has several models or adapters. */
function showMenu(models) {
  $("models").hidden = models.length < 2;
  $("model").hidden = models.length > 1;
  if (models.length < 2) return;
  const options = models.map(({ id, state }) => new Option(state && state !== "unloaded" ? `${id} · ${state}` : id, id));
  $("models").replaceChildren(...options);
  $("models").value = server.model.id;
}

function showModel(isBase) {
  document.title = `${server.model.id} · Headrace`;
  $("system").disabled = isBase;
  $("suggestions").hidden = isBase;
  $("prompt").placeholder = isBase ? "Begin a text" : "Ask something";
  useDefaults();
}

function showRefusedKey() {
  if ($("api_key").value.trim()) $("notice").textContent = "The server refuses this API key. Check it, and press Enter again.";
  $("api_key").select();
}

function askForKey() {
  setOpen("settings", true);
  $("api_key").focus();
}

// ---- settings

/** Start with the sampling that the model recommends where the user has chosen nothing. */
function useDefaults() {
  if (!server.model) return;
  const { maxTokens, sampling } = server.model;
  const defaults = { temperature: sampling.temperature, top_p: sampling.top_p, max_tokens: maxTokens ? Math.min(USUAL_TOKENS, Math.floor(maxTokens / 2)) : USUAL_TOKENS };
  for (const [id, value] of Object.entries(defaults)) {
    if (value !== undefined && localStorage.getItem(`headrace.${id}`) === null) $(id).value = value;
  }
  if (maxTokens) $("max_tokens").max = maxTokens - 1;
  showOutputs();
}

function showOutputs() {
  for (const output of document.querySelectorAll("aside output")) {
    output.textContent = Number($(output.htmlFor.value).value).toFixed(2);
  }
}

$("models").addEventListener("change", () => server.choose($("models").value));
for (const id of KEPT) {
  $(id).value = localStorage.getItem(`headrace.${id}`) ?? $(id).value;
  $(id).addEventListener("input", () => {
    localStorage.setItem(`headrace.${id}`, $(id).value);
    showOutputs();
  });
}
$("stop_loops").checked = localStorage.getItem("headrace.stop_loops") !== "off";
$("stop_loops").addEventListener("input", () => localStorage.setItem("headrace.stop_loops", $("stop_loops").checked ? "on" : "off"));
$("defaults").addEventListener("click", () => {
  for (const id of SAMPLED) localStorage.removeItem(`headrace.${id}`);
  useDefaults();
});
$("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (server.state === "needs-key") await server.poll.again();
  if (server.state === "needs-key") return showRefusedKey();
  setOpen("settings", false);
  $("prompt").focus();
});

// ---- drawers

/** Open or close the drawer `history` or `settings`, which are columns where there is room. */
function setOpen(id, isOpen) {
  for (const [drawer, toggle] of [["history", "history-toggle"], ["settings", "toggle"]]) {
    const opens = drawer === id && isOpen;
    $(drawer).classList.toggle("open", opens);
    $(toggle).setAttribute("aria-expanded", String(opens));
  }
}

for (const [drawer, toggle] of [["history", "history-toggle"], ["settings", "toggle"]]) {
  $(toggle).addEventListener("click", () => setOpen(drawer, !$(drawer).classList.contains("open")));
}
document.querySelector("main").addEventListener("click", () => setOpen("settings", false));
document.addEventListener("keydown", (event) => event.key === "Escape" && setOpen("settings", false));

$("suggestions").addEventListener("click", (event) => event.target.matches("button") && conversation.send(event.target.textContent));
initTheme($("theme"));
showOutputs();
history.start();
