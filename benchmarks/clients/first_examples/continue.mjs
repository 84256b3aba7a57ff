// Continue's command line, with a model of its configuration file.
import { agentSteps, MODEL, SERVER } from "./agents.mjs";

const model = { name: "Headrace", provider: "openai", model: MODEL, apiBase: `${SERVER}/v1`, apiKey: "-", capabilities: ["tool_use"] };
const config = { name: "Headrace", version: "1.0.0", schema: "v1", models: [model] };
await agentSteps("cn", (prompt) => ["--config", "config.yaml", "--auto", "-p", prompt], {
  files: { "config.yaml": JSON.stringify(config) },
});
