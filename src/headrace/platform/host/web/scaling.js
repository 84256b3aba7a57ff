// The tab Scaling: the chosen target and time span, and the table of activities.

import { messageOf } from "./aws.js";
import { $, element } from "./dom.js";
import { eventsOf } from "./worker_events.js";
import { dateTime, zone } from "./format.js";
import { Poll } from "./poll.js";
import { ScalingForm } from "./scaling_form.js";
import { readRegistered, readScaling, targetsOf } from "./scaling_data.js";
import { snippet, urlOption } from "./snippets.js";
import { KINDS, shortCause, Timeline, whyNot } from "./timeline.js";

const PAUSE_MS = 5000;
const BUCKETS_S = { 900: 10, 3600: 10, 21600: 60, 86400: 300 };

export class Scaling {
  constructor() {
    this.name = this.wanted = this.found = null;
    this.targets = [];
    this.desired = new Map(); // target → number that was set last
    this.workers = []; // of the endpoint, with their losses
    $("activities-when").textContent = `When (${zone()})`;
    this.skewS = 0;
    this.timeline = new Timeline($("timeline"));
    this.form = new ScalingForm(() => this.poll.again());
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => error && this.say(messageOf(error)));
    $("scaling-range").addEventListener("change", () => this.poll.again());
    $("with-not-scaled").addEventListener("change", () => this.show());
    $("scaling-target").addEventListener("change", () => {
      location.hash = `#/${encodeURIComponent(this.name)}/scaling/${encodeURIComponent($("scaling-target").value)}`;
    });
  }

  /** Show a target of an endpoint: the name of a component, or `~` and that of a variant; null: the most informative one. */
  open(name, part) {
    if (this.name !== name || (part && this.wanted !== part)) this.forget();
    if (this.name !== name) this.targets = [];
    Object.assign(this, { name, wanted: part });
    this.poll.start();
  }

  close() {
    this.poll.stop();
  }

  forget() {
    this.found = null;
    $("scaling-shown").hidden = true;
    this.say("Reading…");
  }

  /** Set the targets; `nowS` is the platform's time. */
  know(name, { variants, hosts, components, desired, workers, nowS }) {
    if (name !== this.name) return;
    Object.assign(this, { desired, workers });
    const isFirst = !this.targets.length;
    this.targets = targetsOf(name, variants, hosts, components);
    this.skewS = nowS - Date.now() / 1000;
    if (!this.targets.length) this.say("Nothing here can be scaled.");
    else if (isFirst && this.poll.isOn) this.poll.again();
  }

  async refresh(signal) {
    if (!this.targets.length) return;
    const registered = await readRegistered(this.targets, signal);
    const target = this.chosen(registered);
    this.offer(registered, target);
    const rangeS = Number($("scaling-range").value);
    const endS = Date.now() / 1000 + this.skewS;
    const bounds = registered.get(target.resourceId);
    const span = { startS: endS - rangeS, endS, bucketS: BUCKETS_S[rangeS], min: bounds?.MinCapacity };
    const found = await readScaling(target, span, signal);
    const activities = [...found.activities, ...lossesOf(this.workers, target, span.startS)].sort((first, second) => second.StartTime - first.StartTime);
    const capacity = { ...found.capacity, unit: target.unit, min: bounds?.MinCapacity ?? null, max: bounds?.MaxCapacity ?? null };
    this.found = { ...found, activities, capacity, bounds, target };
    this.show();
  }

  chosen(registered) {
    const wanted = this.targets.find((target) => target.id === this.wanted);
    return wanted ?? this.targets.find((target) => registered.has(target.resourceId)) ?? this.targets[0];
  }

  offer(registered, target) {
    const options = this.targets.map((target) => {
      const bounds = registered.get(target.resourceId);
      return { value: target.id, textContent: bounds ? `${target.label} (${bounds.MinCapacity} to ${bounds.MaxCapacity})` : target.label };
    });
    const shown = [...$("scaling-target").options];
    const textOf = (list) => JSON.stringify(list.map((option) => [option.value, option.textContent]));
    if (textOf(shown) !== textOf(options)) $("scaling-target").replaceChildren(...options.map((option) => element("option", option)));
    $("scaling-target").value = target.id;
  }

  show() {
    if (!this.found) return;
    const isWhole = $("with-not-scaled").checked;
    const activities = this.found.activities.filter((activity) => isWhole || activity.kind !== "not");
    this.say(this.found.bounds ? boundsText(this.found) : "");
    $("scaling-shown").hidden = false;
    $("scaling-none").hidden = Boolean(this.found.bounds);
    $("scaling-how").hidden = !this.found.target.command;
    this.showCommand(this.found.target.command);
    $("activities-part").hidden = !this.found.activities.length;
    this.timeline.show({ ...this.found, activities });
    this.form.show(this.name, { ...this.found, desired: this.desired.get(this.found.target.id) });
    this.list(activities);
  }

  showCommand(command) {
    if ($("scaling-command").dataset.shown === command) return;
    $("scaling-command").dataset.shown = command;
    $("scaling-command").replaceChildren(...(command ? [snippet("", `${command}${urlOption()}`, "command")] : []));
  }

  list(activities) {
    const rows = activities.map((activity) => {
      const when = element("time", { textContent: dateTime(activity.StartTime) });
      const cause = element("span", { textContent: shortCause(activity.Cause), title: activity.Cause });
      const cells = [when, KINDS[activity.kind].word, activity.Description, [activity.StatusCode, ...whyNot(activity)].filter(Boolean).join(": "), cause];
      const row = element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
      row.addEventListener("pointerenter", () => this.timeline.read(activity.StartTime));
      row.addEventListener("pointerleave", () => this.timeline.read(null));
      return row;
    });
    const draft = element("tbody", {}, ...rows);
    if (draft.textContent !== $("activities").textContent) $("activities").replaceChildren(...rows);
    $("activities-table").hidden = !rows.length;
    $("activities-none").hidden = rows.length > 0;
  }

  say(text) {
    $("scaling-facts").textContent = text;
  }
}

/** The losses of a target's workers, in the form of activities. */
function lossesOf(workers, { id }, startS) {
  const isOf = (worker) => (worker.component ? worker.component === id : `~${worker.variant}` === id);
  const losses = eventsOf(workers.filter(isOf)).filter(({ kind, atS }) => kind === "lost" && atS >= startS);
  return losses.map(({ atS, what, cause, worker }) => ({
    ActivityId: `${worker.log_stream} ${atS}`,
    StartTime: atS,
    Description: `${what}: ${worker.log_stream}`,
    StatusCode: "",
    Cause: cause,
    kind: "lost",
    number: null,
  }));
}

function boundsText({ bounds, policies, target }) {
  const suspended = bounds.SuspendedState ?? {};
  const named = {
    DynamicScalingInSuspended: "scaling in",
    DynamicScalingOutSuspended: "scaling out",
    ScheduledScalingSuspended: "schedules",
  };
  const off = Object.entries(named).filter(([name]) => suspended[name]).map(([, words]) => words);
  const by = policies.length ? ` by ${policies.map((policy) => policy.PolicyName).join(" and ")}` : ", without a policy";
  const facts = [`Scaled between ${bounds.MinCapacity} and ${bounds.MaxCapacity} ${target.unit}${by}`];
  if (off.length) facts.push(`suspended: ${off.join(", ")}`);
  return facts.join(" · ");
}
