// What the workers of an endpoint do while it is created, updated or woken: the steps, the time, the tail of the log.

import { $, element } from "./dom.js";
import { headlineOf } from "./failure.js";
import { duration, numbered } from "./format.js";
import { lastLines, lineNode } from "./log_lines.js";

const NUM_LINES = 12;
const STEPS = [
  ["waiting", "Find room on a machine"],
  ["fetching", "Fetch the files of the model"],
  ["starting", "Start the server and load the model"],
  ["serving", "Answer requests"],
];
const TITLES = { Creating: "Creating", Updating: "Updating", RollingBack: "Rolling back to the version before" };
const ORDER = STEPS.map(([state]) => state);

/** What a starting worker does now. */
export const PHASES = {
  waiting: "Waiting for room on this machine",
  fetching: "Fetching the model's files",
  starting: "Starting a worker: it downloads the model unless it is stored here, and loads it",
  serving: "The worker is ready",
};

export class Progress {
  /** Show the progress if a worker of the endpoint starts; `nowS` is the platform's time. */
  async show(found, { workers = [], now_s: nowS }, signal) {
    const title = titleOf(found, workers);
    $("progress").hidden = title === "";
    if (!title) return;
    const newest = newestOf(workers);
    const starting = newest.filter((worker) => ORDER.includes(worker.state) && worker.state !== "serving");
    const behind = starting.toSorted((first, second) => ORDER.indexOf(first.state) - ORDER.indexOf(second.state))[0];
    const sinceS = found.EndpointStatus === "InService" ? (behind?.created_s ?? nowS) : found.EndpointStatus === "Creating" ? found.CreationTime : found.LastModifiedTime;
    $("progress-title").textContent = title;
    $("progress-time").textContent = `for ${duration(Math.max(0, nowS - sinceS) * 1000)}`;
    this.showSteps(behind?.state ?? (newest.some((worker) => worker.state === "serving") ? "serving" : null));
    $("progress-note").textContent = noteOf(newest, behind);
    await this.showLog(found.EndpointName, behind ?? newest.at(-1), signal);
  }

  hide() {
    $("progress").hidden = true;
  }

  showSteps(state) {
    const now = ORDER.indexOf(state);
    const steps = STEPS.map(([, text], place) => {
      const mark = place < now ? "done" : place === now ? "active" : "";
      return element("li", { dataset: { state: mark }, ...(mark === "active" && { "aria-current": "step" }) }, text);
    });
    $("progress-steps").replaceChildren(...steps);
  }

  async showLog(name, worker, signal) {
    const lines = worker ? await lastLines(name, NUM_LINES, signal, worker.log_stream) : [];
    const view = $("progress-lines");
    view.hidden = !lines.length;
    const last = lines.at(-1);
    const seen = `${worker?.log_stream}/${last?.timestamp}/${last?.text}`;
    if (this.seen === seen) return; // keep a selection
    this.seen = seen;
    view.replaceChildren(...lines.map((line) => lineNode(line)));
    view.scrollTop = view.scrollHeight;
  }
}

/** Empty if nothing is in progress. */
function titleOf({ EndpointStatus: status, ProductionVariants: variants = [] }, workers) {
  const serves = variants.some((variant) => variant.CurrentInstanceCount > 0);
  const wakes = workers.some((worker) => !worker.component && ORDER.includes(worker.state) && worker.state !== "serving");
  if ((status === "InService" || status === "Updating") && !serves && wakes) return "Starting a worker"; // one that was asleep, or lost
  return TITLES[status] ?? "";
}

/** The workers of the endpoint's own models, of the newest revision. */
function newestOf(workers) {
  const own = workers.filter((worker) => !worker.component);
  const revision = Math.max(...own.map((worker) => worker.revision));
  return own.filter((worker) => worker.revision === revision);
}

function noteOf(workers, behind) {
  const present = workers.filter((worker) => ORDER.includes(worker.state));
  const serving = present.filter((worker) => worker.state === "serving").length;
  const failed = workers.filter((worker) => worker.failed_s !== null && worker.ready_s === null);
  const notes = [];
  if (!present.length && !failed.length) notes.push("Waiting for the platform to start a worker.");
  if (present.length > 1) notes.push(`${serving} of ${numbered(present.length, "worker", "workers")} ready.`);
  if (behind?.waiting) notes.push(behind.waiting);
  if (failed.length) notes.push(`${numbered(failed.length, "attempt", "attempts")} failed, the last: ${headlineOf(failed.at(-1).failure)}`);
  return notes.join(" ");
}
