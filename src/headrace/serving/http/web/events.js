// Streamed answers: OpenAI's chat and text completions as server-sent events.

const NETWORK_ERROR = /fetch|network|load failed|input stream/i; // as Chromium, Firefox and Safari say it

/** Return whether a request failed because the server did not answer, or broke off. */
export const isUnreachable = (error) => error instanceof TypeError && NETWORK_ERROR.test(error.message);

/** Yield the JSON objects of an event stream as they arrive. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

/** The error of a response that is not "ok", in one sentence: OpenAI's form, AWS's (JSON or XML), or plain text. */
export async function errorText(response) {
  const text = await response.text();
  try {
    const { error, message, Message } = JSON.parse(text);
    return error?.message ?? error ?? message ?? Message ?? text;
  } catch {
    return /<Message>([^<]+)</.exec(text)?.[1] || text || `HTTP ${response.status}`;
  }
}

/**
 * Read a streamed answer into `answer` (`add(piece, startedMs)`, `addReasoning(piece, startedMs)`, `finish`, `tokens`).
 * Throws the server's error, before the stream or within it, and an error if the stream ends without a finish reason.
 */
export async function readAnswer(response, answer, startedMs) {
  if (!response.ok) throw new Error(await errorText(response));
  for await (const event of events(response.body)) {
    if (event.error) throw new Error(event.error.message ?? String(event.error));
    const choice = event.choices?.[0];
    const piece = choice?.delta?.content ?? choice?.text;
    const reasoning = choice?.delta?.reasoning ?? choice?.delta?.reasoning_content;
    if (reasoning) answer.addReasoning(reasoning, startedMs);
    if (piece) answer.add(piece, startedMs);
    if (choice?.finish_reason) answer.finish = choice.stop_reason === "repetition_detected" ? "repetition" : choice.finish_reason;
    if (event.usage) answer.tokens = event.usage.completion_tokens;
  }
  if (answer.finish === null) throw new Error("The stream ended before the answer did.");
}
