// The tab Scaling: which target is looked at, over which time, and the table of its activities.

import { $, element } from "./dom.js";
import { clockTime } from "./format.js";
import { Poll } from "./poll.js";
import { readRegistered, readScaling, targetsOf } from "./scaling_data.js";
import { KINDS, shortCause, Timeline, whyNot } from "./timeline.js";

const PAUSE_MS = 5000;
const BUCKETS_S = { 900: 10, 3600: 10, 21600: 60, 86400: 300 };

export class Scaling {
  constructor() {
    this.name = this.wanted = this.found = null;
    this.targets = [];
    this.skewS = 0;
    this.timeline = new Timeline($("timeline"));
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => error && this.say(error.message));
    $("scaling-range").addEventListener("change", () => this.poll.again());
    $("with-not-scaled").addEventListener("change", () => this.show());
    $("scaling-target").addEventListener("change", () => {
      location.hash = `#/${encodeURIComponent(this.name)}/scaling/${encodeURIComponent($("scaling-target").value)}`;
    });
  }

  /** Show a target of an endpoint: the name of a component, or `~` and that of a variant; null: the one that says most. */
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

  /** What there is to be looked at, as it was seen last; `nowS` is the platform's time. */
  know(name, { variants, hosts, components, nowS }) {
    if (name !== this.name) return;
    const isFirst = !this.targets.length;
    this.targets = targetsOf(name, variants, hosts, components);
    this.skewS = nowS - Date.now() / 1000;
    if (!this.targets.length) this.say("There is nothing here that could be scaled.");
    else if (isFirst && this.poll.isOn) this.poll.again();
  }

  async refresh(signal) {
    if (!this.targets.length) return;
    const registered = await readRegistered(this.targets, signal);
    const target = this.chosen(registered);
    this.offer(registered, target);
    const rangeS = Number($("scaling-range").value);
    const endS = Date.now() / 1000 + this.skewS;
    const span = { startS: endS - rangeS, endS, bucketS: BUCKETS_S[rangeS] };
    const found = await readScaling(target, span, signal);
    const bounds = registered.get(target.resourceId);
    const capacity = { ...found.capacity, unit: target.unit, min: bounds?.MinCapacity ?? null, max: bounds?.MaxCapacity ?? null };
    this.found = { ...found, capacity, bounds, target };
    this.show();
  }

  chosen(registered) {
    const wanted = this.targets.find((one) => one.id === this.wanted);
    return wanted ?? this.targets.find((one) => registered.has(one.resourceId)) ?? this.targets[0];
  }

  offer(registered, target) {
    const options = this.targets.map((one) => {
      const bounds = registered.get(one.resourceId);
      return { value: one.id, textContent: bounds ? `${one.label} (${bounds.MinCapacity} to ${bounds.MaxCapacity})` : one.label };
    });
    const shown = [...$("scaling-target").options];
    const textOf = (list) => JSON.stringify(list.map((one) => [one.value, one.textContent]));
    if (textOf(shown) !== textOf(options)) $("scaling-target").replaceChildren(...options.map((one) => element("option", one)));
    $("scaling-target").value = target.id;
  }

  show() {
    if (!this.found) return;
    const isWhole = $("with-not-scaled").checked;
    const activities = this.found.activities.filter((one) => isWhole || one.kind !== "not");
    this.say(this.found.bounds ? boundsText(this.found) : "");
    $("scaling-shown").hidden = false;
    $("scaling-none").hidden = Boolean(this.found.bounds);
    $("scaling-how").hidden = !this.found.target.command;
    $("scaling-command").textContent = this.found.target.command;
    $("activities-part").hidden = !this.found.activities.length;
    this.timeline.show({ ...this.found, activities });
    this.list(activities);
  }

  list(activities) {
    const rows = activities.map((one) => {
      const when = element("time", { textContent: clockTime(one.StartTime), title: new Date(one.StartTime * 1000).toLocaleString() });
      const cause = element("span", { textContent: shortCause(one.Cause), title: one.Cause });
      const cells = [when, KINDS[one.kind].word, one.Description, [one.StatusCode, ...whyNot(one)].join(": "), cause];
      const row = element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
      row.addEventListener("pointerenter", () => this.timeline.read(one.StartTime));
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

function boundsText({ bounds, policies, target }) {
  const suspended = bounds.SuspendedState ?? {};
  const named = {
    DynamicScalingInSuspended: "scaling in",
    DynamicScalingOutSuspended: "scaling out",
    ScheduledScalingSuspended: "schedules",
  };
  const off = Object.entries(named).filter(([name]) => suspended[name]).map(([, words]) => words);
  const by = policies.length ? ` by ${policies.map((one) => one.PolicyName).join(" and ")}` : ", without a policy";
  const facts = [`Scaled between ${bounds.MinCapacity} and ${bounds.MaxCapacity} ${target.unit}${by}`];
  if (off.length) facts.push(`suspended: ${off.join(", ")}`);
  return facts.join(" · ");
}
