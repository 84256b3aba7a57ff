// The events of an endpoint's workers: starts, losses and their causes. From the records that the platform keeps.

import { $, element } from "./dom.js";
import { headlineOf } from "./failure.js";
import { dateTime, duration, zone } from "./format.js";
import { table } from "./tables.js";

const MAX_EVENTS = 20;

/** The events of workers, newest first: `{ atS, kind, what, cause, worker }`. */
export function eventsOf(workers) {
  const events = workers.flatMap((worker) => [
    { atS: worker.created_s, kind: "started", what: "Start requested", cause: worker.waiting, worker },
    ...(worker.ready_s === null ? [] : [{ atS: worker.ready_s, kind: "ready", what: "Ready", cause: `after ${duration((worker.ready_s - worker.created_s) * 1000)}`, worker }]),
    ...(worker.failed_s === null ? [] : [lossOf(worker)]),
  ]);
  return events.sort((first, second) => second.atS - first.atS);
}

/** The loss of a worker that served, or a start that failed. */
function lossOf(worker) {
  const what = worker.ready_s === null ? "Start failed" : "Worker lost";
  return { atS: worker.failed_s, kind: "lost", what, cause: headlineOf(worker.failure), worker };
}

export class Events {
  show(name, workers) {
    const events = eventsOf(workers);
    $("events").hidden = !events.length;
    const seen = JSON.stringify([name, events]);
    if (seen === this.seen) return; // keep focus and selection
    this.seen = seen;
    const shown = events.slice(0, MAX_EVENTS);
    $("events-note").textContent = `The newest ${shown.length}. The platform forgets workers that ended normally, and old failures.`;
    $("events-note").hidden = events.length <= MAX_EVENTS;
    $("events-list").replaceChildren(events.length ? tableOf(name, shown) : "");
  }
}

function tableOf(name, events) {
  return table([`When (${zone()})`, "What", "Worker", "Why"], events.map((event) => cellsOf(name, event)));
}

function cellsOf(name, { atS, kind, what, cause, worker }) {
  const link = element("a", {
    href: ["#", encodeURIComponent(name), "logs", encodeURIComponent(worker.component), encodeURIComponent(worker.log_stream)].join("/"),
    title: `The log of ${worker.log_stream}`,
    textContent: worker.component ? `${worker.component}: ${worker.log_stream.split("/").at(-1)}` : worker.log_stream,
  });
  return [element("time", { textContent: dateTime(atS) }), element("span", { className: `event ${kind}`, textContent: what }), link, cause];
}
