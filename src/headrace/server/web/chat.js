// A chat with the server that this page came from: OpenAI's chat completions, streamed.

import { render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const KEPT = ["system", "temperature", "top_p", "max_tokens", "seed"];

const conversation = $("conversation");
let messages = [];
let running = null; // the AbortController of the answer that is being written
let model = "default";

// ---- talking to the server

function headers() {
  const key = $("api_key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

function requestBody() {
  const system = $("system").value.trim();
  const seed = $("seed").value.trim();
  return {
    model,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    temperature: Number($("temperature").value),
    top_p: Number($("top_p").value),
    max_tokens: Number($("max_tokens").value) || undefined,
    ...(seed !== "" && { seed: Number(seed) }),
    stream: true,
    stream_options: { include_usage: true },
  };
}

/** The JSON objects of an event stream, as they come. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function errorText(response) {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return error?.message ?? error ?? text;
  } catch {
    return text || `HTTP ${response.status}`;
  }
}

async function streamAnswer(answer, signal) {
  const startedMs = performance.now();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(),
    body: JSON.stringify(requestBody()),
    signal,
  });
  if (!response.ok) throw new Error(await errorText(response));
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message ?? String(event.error));
    const choice = event.choices?.[0];
    if (choice?.delta?.content) answer.add(choice.delta.content, startedMs);
    if (choice?.finish_reason) answer.finish = choice.finish_reason;
    if (event.usage) answer.tokens = event.usage.completion_tokens;
  }
}

// ---- what is seen

function shown(role) {
  $("welcome").hidden = true;
  const box = document.createElement("article");
  box.className = `message ${role}`;
  const text = document.createElement("div");
  text.className = "text";
  box.append(text);
  conversation.append(box);
  return { box, text };
}

function isAtEnd() {
  return conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 80;
}

function toEnd() {
  conversation.scrollTop = conversation.scrollHeight;
}

/** An answer on its way; drawn at most once a frame. */
class Answer {
  constructor() {
    Object.assign(this, shown("assistant"));
    this.box.classList.add("waiting");
    this.content = "";
    this.pieces = 0;
    this.tokens = null;
    this.finish = null;
    this.frame = 0;
  }

  add(piece, startedMs) {
    const nowMs = performance.now();
    this.firstMs ??= nowMs;
    this.ttftMs ??= nowMs - startedMs;
    this.lastMs = nowMs;
    this.pieces += 1;
    this.content += piece;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const follow = isAtEnd();
    this.box.classList.replace("waiting", "streaming");
    this.text.replaceChildren(...render(this.content));
    if (follow) toEnd();
  }

  end(error) {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.draw();
    this.box.classList.remove("waiting", "streaming");
    if (error) this.tell(error);
    if (this.content) this.addFacts();
    toEnd();
  }

  tell(error) {
    const box = document.createElement("div");
    box.className = "error";
    box.setAttribute("role", "alert");
    box.textContent = error;
    this.box.append(box);
  }

  addFacts() {
    const tokens = this.tokens ?? this.pieces;
    const seconds = (this.lastMs - this.firstMs) / 1000;
    const facts = [`${tokens} tokens`];
    if (tokens > 1 && seconds > 0) facts.push(`${((tokens - 1) / seconds).toFixed(0)} tokens/s`);
    facts.push(`first token ${this.ttftMs.toFixed(0)} ms`);
    if (this.finish === "length") facts.push("cut at the longest answer");
    if (this.finish === "stopped") facts.push("stopped");
    const line = document.createElement("div");
    line.className = "facts";
    line.append(...facts.map((fact) => Object.assign(document.createElement("span"), { textContent: fact })));
    const copy = Object.assign(document.createElement("button"), { type: "button", textContent: "Copy" });
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.content);
      copy.textContent = "Copied";
    });
    line.append(copy);
    this.box.append(line);
  }
}

async function send(text) {
  const history = messages; // "Clear" starts another one, which a late answer must not join
  shown("user").text.textContent = text;
  history.push({ role: "user", content: text });
  const answer = new Answer();
  toEnd();
  setRunning(new AbortController());
  let problem = null;
  try {
    await streamAnswer(answer, running.signal);
  } catch (error) {
    if (error.name === "AbortError") answer.finish = "stopped";
    else problem = error.message === "Failed to fetch" ? "The server cannot be reached." : error.message;
  }
  answer.end(problem);
  if (answer.content) history.push({ role: "assistant", content: answer.content });
  else history.pop(); // the question stays visible, and is not asked again
  setRunning(null);
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
  if (controller === null) $("prompt").focus();
}

function clear() {
  running?.abort();
  messages = [];
  for (const box of conversation.querySelectorAll(".message")) box.remove();
  $("welcome").hidden = false;
  $("prompt").focus();
}

// ---- controls

function grow() {
  const area = $("prompt");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}

function submit() {
  const text = $("prompt").value.trim();
  if (!text || running) return;
  $("prompt").value = "";
  grow();
  send(text);
}

function showOutputs() {
  for (const output of document.querySelectorAll("aside output")) {
    output.textContent = Number($(output.htmlFor.value).value).toFixed(2);
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("headrace.theme", theme);
}

/** Leave at least half of a short context to the questions. */
function fitLongestAnswer(maxModelLen) {
  const field = $("max_tokens");
  field.max = maxModelLen - 1;
  field.value = Math.min(Number(field.value), Math.floor(maxModelLen / 2));
}

async function findModel() {
  try {
    const response = await fetch("/v1/models", { headers: headers() });
    if (!response.ok) throw new Error(await errorText(response));
    const [served] = (await response.json()).data;
    model = served.id;
    fitLongestAnswer(served.max_model_len);
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
$("composer").addEventListener("submit", (event) => (event.preventDefault(), submit()));
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", clear);
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
$("toggle").addEventListener("click", () => $("toggle").setAttribute("aria-expanded", $("settings").classList.toggle("open")));
$("suggestions").addEventListener("click", (event) => event.target.matches("button") && !running && send(event.target.textContent));
setTheme(localStorage.getItem("headrace.theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
showOutputs();
findModel();
