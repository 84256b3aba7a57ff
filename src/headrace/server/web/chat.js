// A chat with the server that this page came from: OpenAI's chat completions, streamed.

import { Conversation } from "./conversation.js";
import { $, initTheme } from "./dom.js";
import { errorText, readAnswer } from "./events.js";

const KEPT = ["system", "temperature", "top_p", "max_tokens", "seed"];

const conversation = new Conversation(ask);
let model = "default";
let moreSampling = {};

// ---- requests to the server

function headers() {
  const key = $("api_key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function requestBody(messages) {
  const system = $("system").value.trim();
  const seed = $("seed").value.trim();
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    temperature: Number($("temperature").value),
    top_p: Number($("top_p").value),
    ...moreSampling,
    max_tokens: Number($("max_tokens").value) || undefined,
    ...(seed !== "" && { seed: Number(seed) }),
    stream: true,
    stream_options: { include_usage: true },
  };
}

async function ask(messages, answer, signal) {
  const startedMs = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(requestBody(messages)),
    signal,
  });
  await readAnswer(response, answer, startedMs);
}

// ---- controls

function showOutputs() {
  for (const output of document.querySelectorAll("aside output")) {
    output.textContent = Number($(output.htmlFor.value).value).toFixed(2);
  }
}

/** Keep at least half of a short context for the questions. */
function fitLongestAnswer(maxModelLen) {
  const field = $("max_tokens");
  field.max = maxModelLen - 1;
  field.value = Math.min(Number(field.value), Math.floor(maxModelLen / 2));
}

/** Start with the sampling that the model recommends, unless the user has chosen. */
async function recommendSampling() {
  const response = await fetch("/info", { headers: headers() });
  if (!response.ok) return;
  const { temperature, top_p, top_k, repetition_penalty } = (await response.json()).headrace.recommended_sampling;
  for (const [id, value] of Object.entries({ temperature, top_p })) {
    if (localStorage.getItem(`headrace.${id}`) === null) $(id).value = value;
  }
  moreSampling = { ...(top_k > 0 && { top_k }), ...(repetition_penalty !== 1 && { repetition_penalty }) };
  showOutputs();
}

async function findModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await errorText(response));
    const [served] = (await response.json()).data;
    model = served.id;
    fitLongestAnswer(served.max_model_len);
    await recommendSampling();
    $("model").textContent = model;
    document.title = `${model} · Headrace`;
  } catch (error) {
    $("model").textContent = "not ready";
    $("model").title = error.message;
    setTimeout(findModel, 2000);
  }
}

for (const id of KEPT) {
  $(id).value = localStorage.getItem(`headrace.${id}`) ?? $(id).value;
  $(id).addEventListener("input", () => {
    localStorage.setItem(`headrace.${id}`, $(id).value);
    showOutputs();
  });
}
$("clear").addEventListener("click", () => (conversation.clear(), $("prompt").focus()));
$("toggle").addEventListener("click", () => $("toggle").setAttribute("aria-expanded", $("settings").classList.toggle("open")));
$("suggestions").addEventListener("click", (event) => event.target.matches("button") && conversation.send(event.target.textContent));
initTheme($("theme"));
showOutputs();
findModel();
