// Conversations as files: Markdown to read, JSON to import again.

import { element } from "./dom.js";
import { contentOf } from "./turn.js";

const FORMAT = "headrace.chat/1";

export function toMarkdown({ title, model }, messages) {
  const parts = messages.map((message) => {
    const thought = message.reasoning ? `<details><summary>Reasoning</summary>\n\n${message.reasoning}\n\n</details>\n\n` : "";
    return `## ${message.role === "user" ? "Question" : "Answer"}\n\n${thought}${contentOf(message)}`;
  });
  return `# ${title}\n\n${model ? `Model: ${model}\n\n` : ""}${parts.join("\n\n")}\n`;
}

export function toJson({ title, model }, messages) {
  return `${JSON.stringify({ format: FORMAT, title, model, messages }, null, 2)}\n`;
}

/** Read an exported conversation; throws an error in one sentence. */
export function fromJson(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("it is not JSON.");
  }
  if (found?.format !== FORMAT || !Array.isArray(found.messages)) throw new Error(`expected a conversation that this page exported (${FORMAT}).`);
  return { title: String(found.title || "Imported"), model: found.model ? String(found.model) : null, messages: found.messages.map(known) };
}

/** Return a message with the fields that the page knows, each of its type. */
function known(message) {
  const text = String(message?.text ?? "");
  if (message?.role === "user") {
    const files = Array.isArray(message.files) ? message.files : [];
    return { role: "user", text, files: files.map((file) => ({ name: String(file?.name), text: String(file?.text) })) };
  }
  if (message?.role !== "assistant") throw new Error(`a message has the role ${JSON.stringify(message?.role)}; expected user or assistant.`);
  const numbers = ["thinkingMs", "tokens", "tokensPerS", "ttftMs"].filter((name) => typeof message[name] === "number");
  return {
    role: "assistant",
    text,
    reasoning: String(message.reasoning ?? ""),
    finish: message.finish ? String(message.finish) : null,
    problem: message.problem ? String(message.problem) : null,
    ...Object.fromEntries(numbers.map((name) => [name, message[name]])),
  };
}

export function download(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}
