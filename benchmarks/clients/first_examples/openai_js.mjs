// The first examples of OpenAI's library for JavaScript.
import OpenAI from "openai";
import { MODEL, QUESTION, SERVER, expect, step } from "./common.mjs";

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "-" });
const messages = [{ role: "user", content: QUESTION }];

await step("chat", async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 32 });
  expect(answer.choices[0].message.content, "text");
});
await step("chat, streamed", async () => {
  let text = "";
  const stream = await client.chat.completions.create({ model: MODEL, messages, max_tokens: 32, stream: true });
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  expect(text, "text");
});
await step("responses", async () => {
  const answer = await client.responses.create({ model: MODEL, input: QUESTION, max_output_tokens: 32 });
  expect(answer.output_text, "text");
});
