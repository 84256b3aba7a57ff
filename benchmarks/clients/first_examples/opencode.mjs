// OpenCode with a provider of its configuration file.
import { agentSteps, MODEL, SERVER } from "./agents.mjs";

const provider = {
  npm: "@ai-sdk/openai-compatible",
  name: "Headrace",
  options: { baseURL: `${SERVER}/v1`, apiKey: "-" },
  models: { [MODEL]: { name: MODEL, limit: { context: 100_000, output: 4096 } } },
};
const permission = { edit: "allow", bash: "allow" };
const config = { provider: { headrace: provider }, permission, autoupdate: false, share: "disabled" };
await agentSteps("opencode", (prompt) => ["run", "-m", `headrace/${MODEL}`, prompt], {
  files: { "opencode.json": JSON.stringify(config) },
});
