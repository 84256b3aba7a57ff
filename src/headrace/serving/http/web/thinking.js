// The reasoning that a model writes into its text, between `<think>` and `</think>`.

const TAGS = ["<think>", "<thinking>"];

/** Split an answer, complete or not, into its reasoning and its text. Chat templates may have written the first tag. */
export function splitThinking(text) {
  const start = text.trimStart();
  if (start && TAGS.some((tag) => tag.startsWith(start))) return { reasoning: "", content: "" };
  const tag = TAGS.find((candidate) => start.startsWith(candidate));
  const end = /<\/think(?:ing)?>/.exec(start);
  if (!tag && !end) return { reasoning: "", content: text };
  const thought = start.slice(tag?.length ?? 0, end?.index ?? start.length);
  return { reasoning: thought.trim(), content: end ? start.slice(end.index + end[0].length).trimStart() : "" };
}
