// The messages of a conversation as data, and as the server takes them.
//
// A question is `{role: "user", text, files: [{name, text}]}`. An answer is `{role: "assistant", text, reasoning}` with
// the facts of its generation: `thinkingMs`, `tokens`, `tokensPerS`, `ttftMs`, `finish` (`stop`, `length`, `stopped` by
// the user) and `problem`, the error that ended it.

/** Return the messages for a chat request. A question without an answer is sent only if it is the last message. */
export function chatMessages(messages) {
  const isSent = (message, index) => {
    const next = messages[index + 1];
    return message.role === "user" ? !next || Boolean(next.text) : Boolean(message.text);
  };
  return messages.filter(isSent).map((message) => ({ role: message.role, content: contentOf(message) }));
}

/** Return the text of a message with its files in fences. */
export function contentOf({ text, files = [] }) {
  return [...files.map(fenced), text].filter(Boolean).join("\n\n");
}

function fenced({ name, text }) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `File \`${name}\`:\n\n${fence}${/\.(\w+)$/.exec(name)?.[1] ?? ""}\n${text.replace(/\n$/, "")}\n${fence}`;
}
