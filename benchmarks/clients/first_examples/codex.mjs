// Codex without a terminal, with a provider of its own configuration.
import { agentSteps, MODEL, SERVER } from "./agents.mjs";

const settings = {
  model: MODEL,
  model_provider: "headrace",
  "model_providers.headrace.name": "Headrace",
  "model_providers.headrace.base_url": `${SERVER}/v1`,
  "model_providers.headrace.wire_api": "responses",
};
const flags = Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${JSON.stringify(value)}`]);
const open = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"];
await agentSteps("codex", (prompt) => ["exec", ...open, ...flags, prompt]);
