// A conversation with one endpoint, by OpenAI's API, as any program has it.

import { authorization } from "./aws.js";
import { Conversation } from "./conversation.js";
import { $ } from "./dom.js";
import { readAnswer } from "./events.js";

const KEPT = ["mode", "system", "temperature", "top_p", "max_tokens", "seed"];

export class Playground {
  constructor() {
    this.name = null;
    this.conversation = new Conversation((messages, answer, signal) => this.ask(messages, answer, signal));
    $("clear").addEventListener("click", () => (this.conversation.clear(), $("prompt").focus()));
    for (const id of KEPT) {
      $(id).value = localStorage.getItem(`headrace.console.${id}`) ?? $(id).value;
      $(id).addEventListener("input", () => localStorage.setItem(`headrace.console.${id}`, $(id).value));
    }
    $("mode").addEventListener("input", () => this.showMode());
    this.showMode();
  }

  /** Talk to another endpoint from now on; what was said to the last one goes. */
  open(name) {
    if (this.name !== name) this.conversation.clear();
    this.name = name;
  }

  /** Only a chat has a system prompt. */
  showMode() {
    $("system").disabled = $("mode").value !== "chat";
  }

  async ask(messages, answer, signal) {
    const isChat = $("mode").value === "chat";
    const startedMs = performance.now();
    const response = await fetch(isChat ? "/v1/chat/completions" : "/v1/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...authorization() },
      body: JSON.stringify({ model: this.name, ...(isChat ? chatOf(messages) : { prompt: messages.at(-1).content }), ...settings() }),
      signal,
    });
    await readAnswer(response, answer, startedMs);
  }
}

function chatOf(messages) {
  const system = $("system").value.trim();
  return { messages: [...(system ? [{ role: "system", content: system }] : []), ...messages] };
}

function settings() {
  const numbers = ["temperature", "top_p", "max_tokens", "seed"].map((id) => [id, $(id).value.trim()]);
  const given = numbers.filter(([, text]) => text !== "").map(([id, text]) => [id, Number(text)]);
  return { ...Object.fromEntries(given), stream: true, stream_options: { include_usage: true } };
}
