// Cline's command line, with the provider for servers compatible with OpenAI.
import { agentSteps, MODEL, SERVER } from "./agents.mjs";

await agentSteps("cline", (prompt) => [prompt], {
  variables: { CLINE_SESSION_BACKEND_MODE: "local" }, // without it, a daemon stays after the command
  setup: ["auth", "-p", "openai-compatible", "-k", "-", "-m", MODEL, "-b", `${SERVER}/v1`],
});
