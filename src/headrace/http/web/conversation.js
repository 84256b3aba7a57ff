// A conversation with a model: its messages and the field for the next one.
// The page contains the elements #conversation, #welcome, #composer, #prompt, #send and #stop.

import { $, element } from "./dom.js";
import { render } from "./markdown.js";

/** An answer that is streaming; drawn at most once per frame. */
class Answer {
  constructor(conversation) {
    Object.assign(this, conversation.addMessage("assistant"));
    this.conversation = conversation;
    this.box.classList.add("waiting");
    this.content = "";
    this.reasoning = "";
    this.details = null; // holds the reasoning, above the text
    this.pieces = 0;
    this.tokens = null;
    this.finish = null;
    this.frame = 0;
  }

  add(piece, startedMs) {
    this.content += piece;
    this.note(startedMs);
  }

  addReasoning(piece, startedMs) {
    if (!this.details) {
      const text = element("div", { className: "text" });
      this.details = element("details", { className: "reasoning", open: true }, element("summary", { textContent: "Reasoning" }), text);
      this.text.before(this.details);
    }
    this.reasoning += piece;
    this.note(startedMs);
  }

  note(startedMs) {
    const nowMs = performance.now();
    this.firstMs ??= nowMs;
    this.ttftMs ??= nowMs - startedMs;
    this.lastMs = nowMs;
    this.pieces += 1;
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.frame = 0;
    const follow = this.conversation.isAtEnd();
    this.box.classList.replace("waiting", "streaming");
    this.text.replaceChildren(...render(this.content));
    this.details?.lastChild.replaceChildren(...render(this.reasoning));
    if (follow) this.conversation.toEnd();
  }

  end(problem) {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.draw();
    if (this.details && this.content) this.details.open = false;
    this.box.classList.remove("waiting", "streaming");
    if (problem) this.box.append(element("div", { className: "error", role: "alert", textContent: problem }));
    if (this.pieces) this.addFacts();
    this.conversation.toEnd();
  }

  addFacts() {
    const tokens = this.tokens ?? this.pieces;
    const seconds = (this.lastMs - this.firstMs) / 1000;
    const facts = [`${tokens} tokens`];
    if (tokens > 1 && seconds > 0.02) facts.push(`${((tokens - 1) / seconds).toFixed(0)} tokens/s`);
    facts.push(`first token ${this.ttftMs.toFixed(0)} ms`);
    if (this.finish === "length") facts.push("cut at the longest answer");
    if (this.finish === "stopped") facts.push("stopped");
    const line = element("div", { className: "facts" }, ...facts.map((textContent) => element("span", { textContent })));
    const copy = element("button", { type: "button", textContent: "Copy" });
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(this.content);
      copy.textContent = "Copied";
    });
    line.append(copy);
    this.box.append(line);
  }
}

export class Conversation {
  /** `ask(messages, answer, signal)` requests the answer to the last message and fills `answer`. */
  constructor(ask) {
    this.ask = ask;
    this.view = $("conversation");
    this.messages = [];
    this.running = null; // the AbortController of the streaming answer
    $("composer").addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
    $("prompt").addEventListener("input", grow);
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.submit();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    $("stop").addEventListener("click", () => this.stop());
  }

  submit() {
    const text = $("prompt").value.trim();
    if (!text || this.running) return;
    $("prompt").value = "";
    grow();
    this.send(text);
  }

  async send(text) {
    if (this.running) return;
    const history = this.messages; // `clear` starts a new list, to which a late answer must not be added
    this.addMessage("user").text.textContent = text;
    history.push({ role: "user", content: text });
    const answer = new Answer(this);
    const controller = new AbortController();
    this.toEnd();
    this.setRunning(controller);
    let problem = null;
    try {
      await this.ask(history, answer, controller.signal);
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else problem = error.message === "Failed to fetch" ? "The server cannot be reached." : error.message;
    }
    answer.end(problem);
    if (answer.content) history.push({ role: "assistant", content: answer.content });
    else history.pop(); // the question stays visible, and is not sent again
    this.setRunning(null);
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    for (const box of this.view.querySelectorAll(".message")) box.remove();
    $("welcome").hidden = false;
  }

  setRunning(controller) {
    this.running = controller;
    $("send").hidden = controller !== null;
    $("stop").hidden = controller === null;
    const focused = document.activeElement; // the body, if the button that is hidden now had the focus
    if (controller === null && (focused === document.body || $("composer").contains(focused))) $("prompt").focus();
  }

  addMessage(role) {
    $("welcome").hidden = true;
    const text = element("div", { className: "text" });
    const box = element("article", { className: `message ${role}` }, text);
    this.view.append(box);
    return { box, text };
  }

  isAtEnd() {
    return this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 80;
  }

  toEnd() {
    this.view.scrollTop = this.view.scrollHeight;
  }
}

function grow() {
  const area = $("prompt");
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
