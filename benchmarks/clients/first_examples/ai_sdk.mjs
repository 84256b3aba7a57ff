// The first examples of Vercel's AI SDK, with its provider for OpenAI, which uses the Responses API.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
import { MODEL, QUESTION, SERVER, expect, step } from "./common.mjs";

const openai = createOpenAI({ baseURL: `${SERVER}/v1`, apiKey: "-" });

await step("generateText (responses)", async () => {
  const { text } = await generateText({ model: openai(MODEL), prompt: QUESTION, maxOutputTokens: 32, maxRetries: 0 });
  expect(text, "text");
});
await step("streamText (responses)", async () => {
  let text = "";
  const { textStream } = streamText({ model: openai(MODEL), prompt: QUESTION, maxOutputTokens: 32, maxRetries: 0 });
  for await (const part of textStream) text += part;
  expect(text, "text");
});
await step("generateText (chat)", async () => {
  const { text } = await generateText({ model: openai.chat(MODEL), prompt: QUESTION, maxOutputTokens: 32 });
  expect(text, "text");
});
