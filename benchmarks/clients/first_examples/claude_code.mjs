// Claude Code in print mode, as in its documentation of gateways.
import { agentSteps, MODEL, SERVER } from "./agents.mjs";

await agentSteps("claude", (prompt) => ["-p", prompt, "--allowedTools", "Read,Write"], {
  variables: {
    ANTHROPIC_BASE_URL: SERVER,
    ANTHROPIC_AUTH_TOKEN: "-",
    ANTHROPIC_MODEL: MODEL,
    ANTHROPIC_SMALL_FAST_MODEL: MODEL,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
  },
});
