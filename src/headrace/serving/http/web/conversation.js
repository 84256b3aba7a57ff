// A conversation with a model: its messages and the field for the next one.
// The page contains the elements #conversation, #welcome, #composer, #prompt, #send and #stop.

import { Answer } from "./answer.js";
import { copyFrom } from "./clipboard.js";
import { $, element } from "./dom.js";
import { isUnreachable } from "./events.js";
import { chatMessages, contentOf } from "./turn.js";

const SAVED_EVERY_MS = 1000;

export class Conversation {
  /**
   * `ask(messages, answer, signal)` requests the answer to the last message and fills `answer`. If the last message is
   * an answer, it is continued, which is offered only if `canContinue()`. `changed()` is called when messages
   * have changed, and about once a second while an answer streams. `attachments` has the files of the next question.
   */
  constructor(ask, { changed = () => {}, canContinue = () => false, attachments = null } = {}) {
    Object.assign(this, { ask, changed, canContinue, attachments });
    this.view = $("conversation");
    this.messages = [];
    this.running = null; // the AbortController of the streaming answer
    $("composer").addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
    $("prompt").addEventListener("input", () => grow($("prompt")));
    $("prompt").addEventListener("keydown", (event) => isSend(event) && (event.preventDefault(), this.submit()));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) this.stop();
    });
    $("stop").addEventListener("click", () => this.stop());
    this.view.addEventListener("click", (event) => {
      const button = event.target.closest(".copy-code");
      if (button) copyFrom(button, button.closest(".code").querySelector("code").textContent);
    });
  }

  submit() {
    const text = $("prompt").value.trim();
    const files = this.attachments?.files ?? [];
    if ((!text && !files.length) || this.running) return;
    $("prompt").value = "";
    grow($("prompt"));
    this.attachments?.clear();
    this.send(text, files);
  }

  async send(text, files = []) {
    if (this.running) return;
    this.addQuestion({ role: "user", text, files });
    await this.answer();
  }

  /** Ask the last question again. */
  async regenerate() {
    if (this.running) return;
    this.drop(this.messages.findLastIndex((message) => message.role === "user") + 1);
    await this.answer();
  }

  /** Continue the last answer where it was cut. */
  async resume() {
    if (this.running) return;
    const message = this.messages.at(-1);
    message.text = message.text.trimEnd(); // as chat templates do
    this.view.lastElementChild.remove();
    await this.stream(message, this.messages);
  }

  /** Replace a question, and drop all that came after it. */
  async replace(question, text) {
    if (this.running) return;
    this.drop(this.messages.indexOf(question));
    await this.send(text, question.files);
  }

  async answer() {
    const history = [...this.messages];
    const message = { role: "assistant", text: "", reasoning: "", finish: null };
    this.messages.push(message);
    await this.stream(message, history);
  }

  /** Fill `message`, the last one, with the answer to `history`. */
  async stream(message, history) {
    const messages = this.messages; // `clear` and `load` start a new list, to which a late answer does not belong
    const request = chatMessages(history);
    const answer = this.addAnswer(message);
    const controller = new AbortController();
    answer.begin();
    this.toEnd();
    this.setRunning(controller);
    this.changed();
    const timer = setInterval(() => this.messages === messages && this.changed(), SAVED_EVERY_MS);
    let problem = null;
    try {
      await this.ask(request, answer, controller.signal);
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else if (isUnreachable(error)) problem = "The server cannot be reached.";
      else problem = error.message;
    }
    clearInterval(timer);
    answer.end(problem);
    if (this.running === controller) this.setRunning(null);
    this.follow(() => this.addAnswerFoot(answer));
    if (this.messages === messages) this.changed();
  }

  stop() {
    this.running?.abort();
  }

  clear() {
    this.load([]);
  }

  /** Show other messages. */
  load(messages) {
    this.stop();
    this.setRunning(null);
    this.messages = messages;
    for (const box of this.view.querySelectorAll(".message")) box.remove();
    $("welcome").hidden = messages.length > 0;
    for (const message of messages) {
      if (message.role === "user") this.showQuestion(message);
      else {
        const answer = this.addAnswer(message);
        answer.show();
        this.addAnswerFoot(answer);
      }
    }
    this.toEnd();
  }

  /** Remove the messages from an index on. */
  drop(start) {
    this.messages.splice(start);
    for (const box of [...this.view.querySelectorAll(".message")].slice(start)) box.remove();
  }

  setRunning(controller) {
    this.running = controller;
    this.view.setAttribute("aria-busy", String(controller !== null));
    $("send").hidden = controller !== null;
    $("stop").hidden = controller === null;
    const focused = document.activeElement; // the body, if the button that is hidden now had the focus
    if (controller === null && (focused === document.body || $("composer").contains(focused))) $("prompt").focus();
  }

  addQuestion(message) {
    this.messages.push(message);
    this.showQuestion(message);
  }

  showQuestion(message) {
    $("welcome").hidden = true;
    const text = element("div", { className: "text", textContent: message.text, hidden: !message.text });
    const files = message.files.map(({ name }) => element("span", { className: "file", textContent: name }));
    const copy = action("Copy", (button) => copyFrom(button, contentOf(message)));
    const box = element("article", { className: "message user", "aria-label": "Question" }, ...files, text);
    const edit = action("Edit", () => this.running || this.startEdit(box, message));
    box.append(element("div", { className: "actions" }, copy, edit));
    this.view.append(box);
  }

  startEdit(box, message) {
    if (box.querySelector("form")) return;
    const area = element("textarea", { value: message.text, rows: 1, "aria-label": "Question" });
    const cancel = action("Cancel", () => (form.remove(), box.classList.remove("edited")));
    const send = element("button", { type: "submit", textContent: "Send" });
    const note = element("span", { className: "note", textContent: "Later messages are removed." });
    const form = element("form", { className: "edit" }, area, element("div", { className: "actions" }, note, cancel, send));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = area.value.trim();
      if (text || message.files.length) this.replace(message, text);
    });
    area.addEventListener("keydown", (event) => isSend(event) && (event.preventDefault(), form.requestSubmit()));
    area.addEventListener("input", () => grow(area));
    box.classList.add("edited");
    box.append(form);
    grow(area);
    area.focus();
  }

  addAnswer(message) {
    $("welcome").hidden = true;
    const answer = new Answer(message, (draw) => this.follow(draw));
    this.view.append(answer.box);
    return answer;
  }

  addAnswerFoot(answer) {
    const { message } = answer;
    const buttons = [];
    if (message.text) buttons.push(action("Copy", (button) => copyFrom(button, message.text)));
    if (message.finish === "length" && message.text && this.canContinue()) buttons.push(last("Continue", () => this.resume()));
    buttons.push(last(message.problem || !message.text ? "Retry" : "Regenerate", () => this.regenerate()));
    answer.addFoot(buttons);
  }

  /** Change the view, and stay at its end if it was there. */
  follow(change) {
    const isAtEnd = this.view.scrollHeight - this.view.scrollTop - this.view.clientHeight < 80;
    change();
    if (isAtEnd) this.toEnd();
  }

  toEnd() {
    this.view.scrollTop = this.view.scrollHeight;
  }
}

function action(textContent, act) {
  const button = element("button", { type: "button", textContent });
  button.addEventListener("click", () => act(button));
  return button;
}

/** An action that is shown only for the last message. */
function last(textContent, act) {
  const button = action(textContent, act);
  button.className = "last-only";
  return button;
}

function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function grow(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
