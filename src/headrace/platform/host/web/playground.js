// A conversation with one endpoint, by OpenAI's API, as any client would.

import { authorization, modelFacts } from "./aws.js";
import { Conversation } from "./conversation.js";
import { $, element } from "./dom.js";
import { readAnswer } from "./events.js";
import { LOOPS } from "./loops.js";

const KEPT = ["mode", "system", "temperature", "top_p", "max_tokens", "seed"];

export class Playground {
  constructor() {
    this.name = this.component = null;
    this.endsLoops = false;
    this.conversation = new Conversation((messages, answer, signal) => this.ask(messages, answer, signal));
    $("clear").addEventListener("click", () => (this.conversation.clear(), $("prompt").focus()));
    for (const id of KEPT) {
      $(id).value = localStorage.getItem(`headrace.console.${id}`) ?? $(id).value;
      $(id).addEventListener("input", () => localStorage.setItem(`headrace.console.${id}`, $(id).value));
    }
    $("addressee").addEventListener("change", () => this.talkTo($("addressee").value));
    $("mode").addEventListener("input", () => this.showMode());
    const wide = matchMedia("(min-width: 1001px)"); // as in console.css: below it the settings would hide the conversation
    wide.addEventListener("change", () => ($("settings").open = wide.matches));
    $("settings").open = wide.matches;
    this.showMode();
  }

  /** Switch to another endpoint or to one of its components, and clear the conversation. */
  open(name, component) {
    if (this.name !== name) {
      this.name = name;
      this.offer([], component ?? null);
    } else if (component && component !== this.component) {
      this.offer([...$("addressee").options].map((option) => option.value), component);
    }
  }

  /** Set the components. A host has no model of its own: by default the first component answers. */
  know(name, components, isHost) {
    if (name !== this.name) return;
    const shown = [...$("addressee").options].map((option) => option.value);
    const isChosen = this.component !== null && (components.includes(this.component) || shown.length === 0);
    const chosen = isChosen ? this.component : isHost ? components[0] ?? null : null;
    if (shown.join() !== components.join() || chosen !== this.component) this.offer(components, chosen);
  }

  offer(components, chosen) {
    const listed = chosen !== null && !components.includes(chosen) ? [...components, chosen] : components;
    $("addressee").replaceChildren(...listed.map((value) => element("option", { value, textContent: value })));
    for (const id of ["addressee", "addressee-label"]) $(id).hidden = !listed.length;
    if (chosen !== null) $("addressee").value = chosen;
    this.talkTo(chosen);
  }

  talkTo(component) {
    if (this.last !== `${this.name}/${component}`) {
      this.conversation.clear();
      this.endsLoops = false;
    }
    this.last = `${this.name}/${component}`;
    this.component = component;
    if (!$("playground").hidden) this.learn();
  }

  /** Read what the platform knows of the model. A base model answers completions: chats need a template. */
  async learn() {
    const asked = this.last;
    const facts = await modelFacts(this.component ?? this.name).catch(() => ({})); // the answer to a question says what is wrong
    if (asked !== this.last) return;
    this.endsLoops = "has_chat_template" in facts; // only Headrace's own servers list it; others may refuse the field
    const isBase = facts.has_chat_template === false;
    const notes = [
      ...(isBase ? ["A base model, without a chat template: it continues your text."] : []),
      ...(facts.max_model_len ? [`Context: ${facts.max_model_len.toLocaleString("en")} tokens.`] : []),
    ];
    $("model-note").textContent = notes.join(" ");
    $("model-note").hidden = !notes.length;
    $("mode").value = isBase ? "text" : chosenMode();
    $("mode").querySelector("[value=chat]").disabled = isBase;
    this.showMode();
  }

  /** Only a chat has a system prompt. */
  showMode() {
    $("system").disabled = $("mode").value !== "chat";
  }

  /** A component may have the name of an endpoint, so it is addressed by its own path. */
  base() {
    if (this.component === null) return "/v1";
    return `/endpoints/${encodeURIComponent(this.name)}/inference-components/${encodeURIComponent(this.component)}/openai/v1`;
  }

  async ask(messages, answer, signal) {
    const isChat = $("mode").value === "chat";
    const startedMs = performance.now();
    const response = await fetch(`${this.base()}/${isChat ? "chat/completions" : "completions"}`, {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization() },
      body: JSON.stringify({ model: this.component ?? this.name, ...(isChat ? chatOf(messages) : { prompt: messages.at(-1).content }), ...settings(), ...(this.endsLoops && { repetition_detection: LOOPS }) }),
      signal,
    });
    await readAnswer(response, answer, startedMs);
  }
}

const chosenMode = () => localStorage.getItem("headrace.console.mode") ?? "chat";

function chatOf(messages) {
  const system = $("system").value.trim();
  return { messages: [...(system ? [{ role: "system", content: system }] : []), ...messages] };
}

function settings() {
  const numbers = ["temperature", "top_p", "max_tokens", "seed"].map((id) => [id, $(id).value.trim()]);
  const given = numbers.filter(([, text]) => text !== "").map(([id, text]) => [id, Number(text)]);
  return { ...Object.fromEntries(given), stream: true, stream_options: { include_usage: true } };
}
