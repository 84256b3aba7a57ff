// An answer: it is drawn at most once per frame while it streams, and its facts when it has ended.

import { Blocks } from "./blocks.js";
import { element } from "./dom.js";
import { splitThinking } from "./thinking.js";

export class Answer {
  /** `message` is a stored answer, or an empty one to be streamed; `follow(draw)` keeps the view at its end. */
  constructor(message, follow) {
    this.message = message;
    this.follow = follow;
    this.text = element("div", { className: "text" });
    this.box = element("article", { className: "message assistant", "aria-label": "Answer" }, this.text);
    this.blocks = new Blocks(this.text);
    this.thoughts = null; // the `Blocks` of the reasoning
    this.raw = message.text; // with the reasoning of servers that do not separate it
    this.separated = message.reasoning;
    this.frame = 0;
    this.isStreaming = false;
    this.pieces = 0;
    this.tokens = null;
    this.finish = null;
  }

  /** Wait for the first piece, below the part that is continued. */
  begin() {
    this.isStreaming = true;
    this.previousTokens = this.message.tokens ?? 0;
    this.box.classList.add("waiting");
    if (this.message.text) this.draw();
  }

  add(piece, startedMs) {
    this.raw += piece;
    this.note(startedMs);
  }

  addReasoning(piece, startedMs) {
    this.separated += piece;
    this.note(startedMs);
  }

  note(startedMs) {
    const nowMs = performance.now();
    this.firstMs ??= nowMs;
    this.ttftMs ??= nowMs - startedMs;
    this.lastMs = nowMs;
    this.pieces += 1;
    this.split();
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  split() {
    const { reasoning, content } = splitThinking(this.raw);
    this.message.text = content;
    this.message.reasoning = this.separated + reasoning;
    if (this.message.reasoning && !content) this.message.thinkingMs = performance.now() - this.firstMs;
  }

  draw() {
    this.frame = 0;
    this.box.classList.replace("waiting", "streaming");
    this.follow(() => this.show());
  }

  /** Show reasoning and text. */
  show() {
    const { text, reasoning, thinkingMs } = this.message;
    if (reasoning) this.showReasoning(reasoning, text, thinkingMs);
    this.blocks.show(text);
  }

  showReasoning(reasoning, text, thinkingMs) {
    if (!this.thoughts) {
      const host = element("div", { className: "text" });
      this.summary = element("summary");
      this.details = element("details", { className: "reasoning" }, this.summary, host);
      this.text.before(this.details);
      this.thoughts = new Blocks(host);
    }
    const isThinking = this.isStreaming && !text;
    const label = isThinking ? "Thinking…" : `Thought for ${seconds(thinkingMs)}`;
    if (this.summary.textContent !== label) {
      this.summary.textContent = label;
      this.details.open = isThinking; // folded when the answer begins; a reader may open it again
    }
    this.thoughts.show(reasoning);
  }

  /** Draw what has arrived, and keep the facts in the message. */
  end(problem) {
    if (this.frame) cancelAnimationFrame(this.frame);
    const { message } = this;
    this.isStreaming = false;
    message.finish = this.finish;
    message.problem = problem;
    if (this.pieces) {
      const tokens = this.tokens ?? this.pieces;
      const streamedS = (this.lastMs - this.firstMs) / 1000;
      message.tokens = this.previousTokens + tokens;
      message.ttftMs = this.ttftMs;
      message.tokensPerS = tokens > 1 && streamedS > 0.02 ? (tokens - 1) / streamedS : null;
    }
    this.draw();
    this.box.classList.remove("waiting", "streaming");
  }

  /** Add the facts and `buttons`, for an answer that does not stream any more. */
  addFoot(buttons) {
    const { problem } = this.message;
    if (problem) this.box.append(element("div", { className: "error", role: "alert", textContent: problem }));
    const facts = factsOf(this.message).map((textContent) => element("span", { textContent }));
    this.box.append(element("div", { className: "facts" }, ...facts, ...buttons));
  }
}

/** Return the facts under an answer, in the order in which they are shown. */
export function factsOf({ tokens, tokensPerS, ttftMs, finish }) {
  const facts = [];
  if (tokens) facts.push(`${tokens} ${tokens === 1 ? "token" : "tokens"}`);
  if (tokensPerS) facts.push(`${tokensPerS.toFixed(0)} tokens per second`);
  if (tokens && ttftMs !== undefined) facts.push(`first token after ${ttftMs.toFixed(0)} ms`);
  if (finish === "length") facts.push("cut at the longest answer");
  if (finish === "repetition") facts.push("stopped because it repeated itself");
  if (finish === "stopped") facts.push("stopped");
  if (finish === null) facts.push("interrupted");
  return facts;
}

function seconds(ms = 0) {
  return ms < 9950 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`;
}
