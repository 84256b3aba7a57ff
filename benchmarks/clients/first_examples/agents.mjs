// Common parts of the scripts of coding agents: a task for two tools, in a folder and with a home of its own.
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, step } from "./common.mjs";

export const SERVER = process.env.CLIENT_SCRIPTED_URL;
export const MODEL = process.env.CLIENT_SCRIPTED_MODEL;

/** Run an agent on the task: first its program with `setup`, if any, then with `argumentsOf(prompt)`; `files` are written before. */
export async function agentStep(program, argumentsOf, { variables = {}, files = {}, setup = [] } = {}) {
  await step("a task of two tools, streamed", async () => {
    const folder = await mkdtemp(join(tmpdir(), "agent-"));
    const [source, target] = ["in.txt", "out.txt"].map((name) => join(folder, name));
    await writeFile(source, "tulip 42\n");
    for (const [name, content] of Object.entries(files)) await writeFile(join(folder, name), content);
    const binary = join(dirname(fileURLToPath(import.meta.url)), "node_modules", ".bin", program);
    const env = { ...process.env, HOME: folder, PWD: folder, ...variables };
    if (setup.length) await promisify(execFile)(binary, setup, { cwd: folder, env });
    const ran = promisify(execFile)(binary, argumentsOf(`Copy ${source} to ${target} with your tools`), { cwd: folder, env });
    ran.child.stdin.end(); // some agents read more of the prompt from it
    const { stdout } = await ran;
    expect((await readFile(target, "utf-8")).trim() === "tulip 42", "the copied text");
    expect(stdout.includes("The file is copied."), "the last answer");
    await rm(folder, { recursive: true, force: true });
  });
}
