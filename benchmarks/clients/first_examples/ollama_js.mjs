// The first examples of Ollama's library for JavaScript.
import { Ollama } from "ollama";
import { MODEL, QUESTION, SERVER, expect, step } from "./common.mjs";

const client = new Ollama({ host: SERVER });
const messages = [{ role: "user", content: QUESTION }];
const options = { num_predict: 32 };

await step("list, show, ps", async () => {
  const listed = (await client.list()).models.map((model) => model.model);
  expect(listed.includes(`${MODEL}:latest`), "the model");
  expect((await client.show({ model: MODEL })).details, "details");
  expect((await client.ps()).models.length === 1, "a loaded model");
});
await step("chat", async () => {
  expect((await client.chat({ model: MODEL, messages, options })).message.content, "text");
});
await step("chat, streamed", async () => {
  let text = "";
  for await (const part of await client.chat({ model: MODEL, messages, options, stream: true })) text += part.message.content;
  expect(text, "text");
});
await step("chat, format is a schema", async () => {
  const format = { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] };
  const answer = await client.chat({ model: MODEL, messages, format, options: { num_predict: 64 } });
  expect("city" in JSON.parse(answer.message.content), "a city");
});
await step("generate, embed", async () => {
  expect((await client.generate({ model: MODEL, prompt: QUESTION, options })).response, "text");
  expect((await client.embed({ model: MODEL, input: ["a", "b"] })).embeddings.length === 2, "two vectors");
});
await step("pull says why not", async () => {
  const failure = await client.pull({ model: "llama3.2" }).catch((error) => error);
  expect(failure.message.includes("headrace serve MODEL"), `a reason, got: ${failure.message}`);
});
