// The server of this page: whether it answers, the facts of its model, and requests for answers.

import { $ } from "./dom.js";
import { errorText, readAnswer } from "./events.js";
import { LOOPS } from "./loops.js";
import { Poll } from "./poll.js";

const KEY = "headrace.key";
const CHOSEN = "headrace.model";
const READY_PAUSE_MS = 10_000;
const WAITING_PAUSE_MS = 2000;

export class Server {
  /**
   * `state` is `connecting`, `ready`, `needs-key`, `waiting` (with the server's `reason`) or `unreachable`;
   * `changed()` is called when it or the model has changed.
   */
  constructor(changed) {
    this.changed = changed;
    this.state = "connecting";
    this.reason = "";
    this.model = null; // `{id, maxTokens, isBase, sampling}`; `maxTokens` is unknown before the first load
    this.models = []; // `{id, state}` of all models of the server, to choose from
    this.pinged = undefined; // the name that the server gave last
    this.poll = new Poll((signal) => this.check(signal), WAITING_PAUSE_MS, (error) => error && this.enter("unreachable"));
    $("api_key").value = sessionStorage.getItem(KEY) ?? "";
    $("api_key").addEventListener("input", () => {
      sessionStorage.setItem(KEY, $("api_key").value.trim());
      if (this.state === "needs-key") this.poll.again();
    });
    this.poll.start();
  }

  headers() {
    const key = $("api_key").value.trim();
    return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  }

  async check(signal) {
    const health = await fetch("/ping", { signal, cache: "no-store" });
    const { model, reason } = await health.json().catch(() => ({}));
    if (!health.ok) return this.enter("waiting", reason ?? `The server answers with status ${health.status}.`);
    const isOther = model !== this.pinged; // the server was restarted between two checks
    if (this.state !== "ready" || isOther || this.models.length > 1) await this.readModel(signal);
    this.pinged = model;
  }

  async readModel(signal) {
    const models = await fetch("/v1/models", { signal, headers: this.headers() });
    if (isKeyMissing(models)) return this.enter("needs-key", await errorText(models));
    if (!models.ok) return this.enter("waiting", await errorText(models));
    const all = (await models.json()).data;
    if (!all.length) return this.enter("waiting", "The server has no models yet.");
    const isLoaded = ({ status }) => status?.value === "loaded";
    const served = all.find(({ id }) => id === localStorage.getItem(CHOSEN)) ?? all.find(isLoaded) ?? all[0];
    const isKnown = served.max_model_len !== undefined; // of many models, those that were loaded before
    const info = isKnown ? await fetch(`/info?model=${encodeURIComponent(served.id)}`, { signal, headers: this.headers() }) : null;
    const facts = info?.ok ? (await info.json()).headrace : undefined;
    const before = JSON.stringify([this.model?.id, this.model?.maxTokens, this.models]);
    this.models = all.map(({ id, status }) => ({ id, state: status?.value ?? "" }));
    const isNew = JSON.stringify([served.id, served.max_model_len, this.models]) !== before;
    this.model = {
      id: served.id,
      maxTokens: served.max_model_len,
      isBase: served.has_chat_template === false,
      sampling: facts?.recommended_sampling ?? {},
    };
    this.enter("ready", "", isNew);
  }

  /** Answer by another model from now on, also when the page is opened again. */
  choose(id) {
    localStorage.setItem(CHOSEN, id);
    return this.poll.again();
  }

  enter(state, reason = "", isNew = false) {
    const isSame = this.state === state && this.reason === reason && !isNew;
    Object.assign(this, { state, reason });
    this.poll.pauseMs = state === "ready" ? READY_PAUSE_MS : WAITING_PAUSE_MS;
    if (!isSame) this.changed();
  }

  /** Request the answer to the last message, or its continuation if it is an answer, with the fields of `sampling`. */
  async ask(messages, system, sampling, answer, signal) {
    const startedMs = performance.now();
    const path = this.model?.isBase ? "/v1/completions" : "/v1/chat/completions";
    const input = this.model?.isBase ? { prompt: textOf(messages) } : chatOf(messages, system);
    const body = { model: this.model?.id ?? "default", ...input, ...sampling, stream: true, stream_options: { include_usage: true } };
    const response = await fetch(path, { method: "POST", headers: this.headers(), body: JSON.stringify(body), signal }).catch((error) => {
      if (error.name !== "AbortError") this.poll.again();
      throw error;
    });
    if (isKeyMissing(response)) this.enter("needs-key", "The key is missing or wrong.");
    await readAnswer(response, answer, startedMs);
  }

  /** Return the fields of a request for the chosen sampling; values that the page does not show are the model's own. */
  sampling() {
    const { top_k, min_p, repetition_penalty } = this.model?.sampling ?? {};
    const seed = $("seed").value.trim();
    return {
      temperature: Number($("temperature").value),
      top_p: Number($("top_p").value),
      ...(top_k > 0 && { top_k }),
      ...(min_p > 0 && { min_p }),
      ...(repetition_penalty > 0 && repetition_penalty !== 1 && { repetition_penalty }),
      // Before a model was loaded its context is unknown, and the page's usual length may be too long for it.
      max_tokens: (this.model?.maxTokens && Number($("max_tokens").value)) || undefined,
      ...(seed !== "" && { seed: Number(seed) }),
      ...($("stop_loops").checked && { repetition_detection: LOOPS }),
    };
  }
}

function isKeyMissing(response) {
  return response.status === 401 || (response.status === 403 && response.headers.has("www-authenticate"));
}

/** A base model continues the last question and what it has added to it. */
function textOf(messages) {
  const start = messages.findLastIndex((message) => message.role === "user");
  return messages.slice(start).map((message) => message.content).join("");
}

function chatOf(messages, system) {
  const isContinued = messages.at(-1).role === "assistant";
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    ...(isContinued && { add_generation_prompt: false, continue_final_message: true }),
  };
}
