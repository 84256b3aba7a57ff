// Common parts of the scripts of coding agents: a task with parallel calls, and an interrupt, in a home of their own.
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, step } from "./common.mjs";

export const SERVER = process.env.CLIENT_SCRIPTED_URL;
export const MODEL = process.env.CLIENT_SCRIPTED_MODEL;

// No agent needs more of the network than the server: every other address is behind a proxy that does not exist.
const NOWHERE = "http://127.0.0.1:9";
const OFFLINE = Object.fromEntries(
  [["http_proxy", NOWHERE], ["https_proxy", NOWHERE], ["no_proxy", "127.0.0.1"]]
    .flatMap(([name, value]) => [[name, value], [name.toUpperCase(), value]]),
);

/**
 * Run an agent on the task, then interrupt it in the middle of an answer.
 *
 * Its program runs with `setup`, if any, then with `argumentsOf(prompt)`; `files` are written to its home before.
 */
export async function agentSteps(program, argumentsOf, { variables = {}, files = {}, setup = [] } = {}) {
  const folder = await mkdtemp(join(tmpdir(), "agent-"));
  const [first, second, target] = ["in.txt", "more.txt", "out.txt"].map((name) => join(folder, name));
  const written = { [first]: "tulip 42\n", [second]: "tulip 43\n", ...files };
  for (const [name, content] of Object.entries(written)) await writeFile(join(folder, name.replace(folder, "")), content);
  const binary = join(dirname(fileURLToPath(import.meta.url)), "node_modules", ".bin", program);
  const options = { cwd: folder, env: { ...process.env, ...OFFLINE, HOME: folder, PWD: folder, ...variables } };
  if (setup.length) await promisify(execFile)(binary, setup, options);

  await step("a task of two tools, in parallel and streamed", async () => {
    const prompt = `Copy ${first} and ${second} to ${target} with your tools`;
    const ran = promisify(execFile)(binary, argumentsOf(prompt), options);
    ran.child.stdin.end(); // some agents read more of the prompt from it
    const { stdout } = await ran;
    expect((await readFile(target, "utf-8")).trim() === "tulip 42 and tulip 43", "the copied texts");
    expect(stdout.includes("The files are copied."), "the last answer");
  });
  if (!process.env.CLIENT_UNINTERRUPTED) {
    await step("interrupted: the server stops", async () => {
      const agent = spawn(binary, argumentsOf("Count without end, in words"), { ...options, stdio: "ignore", detached: true });
      await running(1);
      process.kill(-agent.pid, "SIGKILL"); // the program may be a child of a script
      await once(agent, "exit");
      await running(0);
    });
  }
  await rm(folder, { recursive: true, force: true });
}

/** Wait until the server generates so many answers. */
async function running(count) {
  for (;;) {
    const page = await (await fetch(`${SERVER}/metrics`)).text();
    if (page.match(/^headrace_running_sequences.* (\d+)/m)[1] === String(count)) return;
    await sleep(20);
  }
}
