// The home page: the machine, the endpoints and workers with their load, the stored models, and the platform itself.

import { messageOf, numbers } from "./aws.js";
import { copyButton } from "./clipboard.js";
import { $, element } from "./dom.js";
import { bytes, duration, numbered, short } from "./format.js";
import { Poll } from "./poll.js";
import { Start } from "./start.js";
import { keepUnlessChanged, table, terms } from "./tables.js";

const PAUSE_MS = 3000;
const BUSY_PAUSE_MS = 700; // while the first deployment runs
const MODELS_PAUSE_MS = 30_000;
const WORKER_HEADS = ["Worker of", "State", "Tokens per second", "Waiting", "KV cache", "Cores", "Memory", "Log"];
const STATES = { serving: "good", failed: "bad", unhealthy: "bad", leaving: "leaving" };

export class Home {
  /** `deployment` creates the first endpoint. */
  constructor(deployment) {
    this.start = new Start(deployment, () => this.poll.again());
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    this.models = new Poll((signal) => this.readModels(signal), MODELS_PAUSE_MS);
  }

  open() {
    $("home").hidden = false;
    this.poll.start();
    this.models.start();
  }

  close() {
    $("home").hidden = true;
    this.poll.stop();
    this.models.stop();
    this.start.leave();
  }

  async refresh(signal) {
    const found = await numbers("home", signal);
    const isEmpty = Object.keys(found.endpoints).length === 0;
    await this.start.show({ isEmpty, workers: found.workers }, signal);
    this.poll.pauseMs = this.start.isBusy ? BUSY_PAUSE_MS : PAUSE_MS;
    $("home-parts").hidden = isEmpty;
    document.body.classList.toggle("is-empty", isEmpty);
    $("tiles").replaceChildren(...tiles(found));
    $("workers-part").hidden = !found.workers.length;
    keepUnlessChanged($("workers"), workerTable(found));
    keepUnlessChanged($("platform-facts"), element("dl", {}, ...facts(found)));
    $("home-note").textContent = "";
  }

  async readModels(signal) {
    const { models, aliases, packed_bytes: packed } = await numbers("models", signal);
    this.start.knowModels(models, aliases);
    $("stored-none").hidden = models.length > 0;
    $("stored-note").textContent = packed ? `Packed weights take another ${bytes(packed)}; they make later starts fast.` : "";
    keepUnlessChanged($("stored"), models.length ? modelTable(models) : element("div"));
  }

  failed(error) {
    if (error) $("home-note").textContent = messageOf(error);
  }
}

function tiles({ machine, endpoints, instances, num_workers: workers, requests_per_s: requests, tokens_per_s: tokens, num_waiting: waiting }) {
  const states = Object.entries(endpoints).map(([state, count]) => `${count} ${state}`);
  const used = machine.memory_bytes - machine.free_memory_bytes;
  return [
    tile("Endpoints", String(Object.values(endpoints).reduce((sum, count) => sum + count, 0)), states.join(" · ")),
    tile("Instances", `${instances.current} of ${instances.desired}`, numbered(workers, "worker process", "worker processes")),
    tile("Requests per second", short(requests), "mean of the last minute"),
    tile("Tokens per second", short(tokens), waiting === null ? "no worker reports it" : `${numbered(waiting, "request waits", "requests wait")}, last 10 s`),
    tile("Memory", `${bytes(used)} of ${bytes(machine.memory_bytes)}`, `${bytes(machine.free_memory_bytes)} free`, used / machine.memory_bytes),
    tile("Load", `${short(machine.load)} on ${numbered(machine.num_cores, "core", "cores")}`, "mean of the last minute", machine.load / machine.num_cores),
    ...(machine.gpus.length ? [tile("GPUs", String(machine.gpus.length), [...new Set(machine.gpus)].join(", "))] : []),
  ];
}

/** A number with its title and a note; `share` (0 to 1) draws a bar. */
function tile(title, value, note, share) {
  const bar = element("meter", { min: 0, max: 1, high: 0.9, value: Math.min(1, share ?? 0), hidden: share === undefined, "aria-label": title });
  return element(
    "div",
    { className: "tile" },
    element("span", { className: "tile-title", textContent: title }),
    element("strong", { textContent: value }),
    bar,
    element("span", { className: "note", textContent: note }),
  );
}

function workerTable({ workers, num_workers: all }) {
  const shown = table(WORKER_HEADS, workers.map(workerCells));
  const more = all - workers.length;
  return element("div", {}, shown, ...(more > 0 ? [element("p", { className: "note", textContent: `And ${more} more.` })] : []));
}

function workerCells(worker) {
  const endpoint = `#/${encodeURIComponent(worker.endpoint)}`;
  const log = [endpoint, "logs", ...[worker.component, worker.log_stream].map(encodeURIComponent)].join("/");
  const share = worker.kv_cache_share;
  return [
    element("a", { href: endpoint, textContent: worker.component ? `${worker.endpoint} · ${worker.component}` : worker.endpoint }),
    element("span", { className: `state ${STATES[worker.state] ?? "moving"}`, textContent: worker.state }),
    short(worker.output_tokens_per_s),
    short(worker.num_waiting),
    share === null ? "–" : `${Math.round(100 * share)} %`,
    short(worker.cpu_cores),
    worker.memory_bytes === null ? "–" : bytes(worker.memory_bytes),
    element("a", { href: log, textContent: "Log", title: worker.log_stream }),
  ];
}

function modelTable(models) {
  const origins = { alias: "package index", hub: "Hugging Face Hub", s3: "S3" };
  return table(["Model", "From", "Size"], models.map(({ name, kind, bytes: size }) => [name, origins[kind] ?? kind, bytes(size)]));
}

/** Where workers run, with all machines of the platform if there are several. */
function places(machine, machines) {
  if (machine.cluster !== "local") return `on the cluster ${machine.cluster}`;
  return machines.length ? "on the machines of the platform" : "on this machine";
}

function facts({ platform, machine, machines }) {
  const rows = [
    ["Address", element("span", {}, element("code", { textContent: location.origin }), " ", copyButton(location.origin, "address"))],
    ["Version", platform.version],
    ["Running for", duration(platform.uptime_s * 1000)],
    ["Region", platform.region],
    ["Access keys", platform.asks_for_keys ? "required" : "not required: the platform admits every program on this machine"],
    ...(machines.length ? [["Machines", machines.map(({ name, leads }) => (leads ? `${name} (leads)` : name)).join(", ")]] : []),
    ["Workers run", places(machine, machines)],
    ["Object storage", platform.object_storage ?? "–"],
  ];
  return terms(rows);
}
