// Lanes on one time axis: capacity, metrics of policies, states of alarms, activities. Read with
// the pointer, or with the arrow keys (left and right move through time, up and down from activity to activity).

import { svg } from "./charts.js";
import { element } from "./dom.js";
import { clockTime, count, dateTime, short, tick, zone } from "./format.js";
import { areaPath, linePath, roundTop, sampleAt } from "./paths.js";
import { roundMoments } from "./ticks.js";

const EDGE = { left: 46, right: 14 };
const HEAD = 24; // the title of a lane
const GAP = 12;
const AXIS = 22;
const HEIGHTS = { capacity: 104, metric: 92, alarm: 32, rule: 15, activities: 26, notScaled: 18 };
const TOP = 14; // room for text above the highest value
const NEAR_PX = 7; // activities this near to the pointer are shown
const MAX_TOLD = 2;
const NARROW_PX = 560; // below it the rule of an alarm has a line of its own
const NUM_STEPS = 90; // of the arrow keys across the time span
export const KINDS = {
  out: { word: "Scaled out", path: "M0-6L6 5H-6z" },
  in: { word: "Scaled in", path: "M0 6L6-5H-6z" },
  bounds: { word: "Bounds set", path: "M0-6L6 0L0 6L-6 0z" },
  failed: { word: "Failed", path: "M-5-5L5 5M5-5L-5 5" },
  lost: { word: "Worker lost", path: "M-5-6H5V6H-5zM-2-3L2 3M2-3L-2 3" },
  not: { word: "Not scaled", path: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0" },
};
const STATE_WORDS = { OK: "OK", ALARM: "ALARM", INSUFFICIENT_DATA: "no data" };

export class Timeline {
  constructor(host) {
    this.model = this.at = null;
    this.canvas = svg("svg", { class: "timeline", role: "img", tabindex: 0 });
    this.card = element("output", { className: "card", hidden: true });
    host.append(this.canvas, this.card);
    this.canvas.addEventListener("pointermove", (event) => this.read(this.timeAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.read(null));
    this.canvas.addEventListener("blur", () => this.read(null));
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** Draw the result of `readScaling`; `unit` is the unit of capacity, `min` and `max` its bounds or null. */
  show(model) {
    this.model = model;
    if (this.at !== null) this.at = Math.min(Math.max(this.at, model.startS), model.endS);
    this.draw();
  }

  draw() {
    this.width = this.canvas.clientWidth;
    if (!this.model || this.width === 0) return;
    this.isNarrow = this.width < NARROW_PX;
    this.canvas.classList.toggle("narrow", this.isNarrow);
    const { capacity, lanes, alarms, activities } = this.model;
    this.foot = 0;
    const drawn = [this.capacityLane(capacity), ...lanes.map((lane) => this.metricLane(lane))];
    if (alarms.length) drawn.push(this.alarmLane(alarms));
    drawn.push(this.activityLane(activities));
    const height = this.foot + AXIS;
    this.canvas.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.canvas.setAttribute("height", height);
    this.cursor = svg("line", { class: "cursor", y1: HEAD, y2: this.foot, visibility: "hidden" });
    this.canvas.replaceChildren(hatching(), ...this.axis(), ...drawn.flat(), this.cursor);
    this.canvas.setAttribute("aria-label", this.summary());
    this.read(this.at);
  }

  x(atS) {
    const { startS, endS } = this.model;
    return EDGE.left + ((this.width - EDGE.left - EDGE.right) * (atS - startS)) / (endS - startS);
  }

  /** Start a lane: write its title and the texts behind it; `y` maps 0…`top` to it. */
  lane(height, title, notes, top = 1) {
    const head = this.foot + 15;
    const foot = this.foot + HEAD + height;
    this.foot = foot + GAP;
    const words = svg("text", { class: "lane-title", x: 0, y: head }, title);
    for (const { text, className, dx } of notes) words.append(svg("tspan", { class: className ?? "lane-note", dx: dx ?? 8 }, text));
    return { nodes: [words], head: foot - height, foot, y: (value) => foot - (height - TOP) * (value / top) };
  }

  capacityLane({ current, desired, bucketS, min, max, unit }) {
    const highest = Math.max(1, ...current.map(([, value]) => value), ...desired.map(([, value]) => value));
    const top = Math.ceil(max !== null && max <= 4 * highest ? Math.max(max, highest) : highest);
    const { nodes, y } = this.lane(HEIGHTS.capacity, "Capacity", legend(unit), top);
    nodes.push(...this.scale(top % 2 ? [0, top] : [0, top / 2, top], y, String));
    const spot = { x: (at) => this.x(Math.min(Math.max(at, this.model.startS), this.model.endS)), y, bucketS };
    nodes.push(svg("path", { class: "serving", d: areaPath(current, spot) }));
    nodes.push(svg("path", { class: "desired", d: linePath(desired, spot, true) }));
    if (min !== null) nodes.push(...this.rule(y(min), `min ${min}`, "bound"));
    if (max !== null) nodes.push(...this.rule(y(Math.min(max, top)), `max ${max}${max > top ? " ↑" : ""}`, "bound"));
    if (!current.length && !desired.length) nodes.push(this.nothing(y(top / 2), "Not counted yet: counted every 10 s."));
    return nodes;
  }

  metricLane({ title, note, points, problem, bucketS, lines }) {
    const top = roundTop(Math.max(0, ...points.map(([, value]) => value), ...lines.map(({ value }) => value)));
    const { nodes, y } = this.lane(HEIGHTS.metric, title, [{ text: note }], top);
    nodes.push(...this.scale([0, top / 2, top], y, (value) => tick(value, short)));
    const spot = { x: (at) => this.x(Math.min(Math.max(at, this.model.startS), this.model.endS)), y, bucketS };
    nodes.push(svg("path", { class: "measured", d: linePath(points, spot, false) }));
    for (const { label, value } of lines) nodes.push(...this.rule(y(value), label, "goal"));
    if (!points.length) nodes.push(this.nothing(y(top / 2), problem || "Nothing was measured in this time."));
    return nodes;
  }

  alarmLane(alarms) {
    const rowHeight = HEIGHTS.alarm + (this.isNarrow ? HEIGHTS.rule : 0);
    const { nodes, head } = this.lane(rowHeight * alarms.length, "Alarms", []);
    alarms.forEach(({ label, meaning, isCalm, rule, state, bands }, place) => {
      const y = head + place * rowHeight;
      const name = svg("tspan", { class: "alarm-name" }, label);
      const now = svg("tspan", { class: `state-${state}${isCalm ? " calm" : ""}` }, STATE_WORDS[state]);
      const [first, second] = this.isNarrow ? [now, name] : [name, now]; // a long name may end outside
      second.setAttribute("dx", 7);
      const words = svg("text", { x: this.isNarrow ? 0 : EDGE.left, y: y + 10 }, first, second);
      if (meaning) words.append(svg("tspan", { dx: 7 }, this.isNarrow ? meaning : `${meaning}:`));
      words.append(svg("tspan", this.isNarrow ? { x: 0, dy: HEIGHTS.rule } : { dx: meaning ? 4 : 7 }, rule));
      nodes.push(words, ...bands.flatMap((band) => this.band(band, y + rowHeight - 10, isCalm)));
    });
    return nodes;
  }

  /** Height and pattern show a state too, not colour alone. */
  band({ fromS, toS, state }, middle, isCalm) {
    const height = { OK: 4, ALARM: 14, INSUFFICIENT_DATA: 8 }[state];
    const [x, width] = [this.x(fromS), Math.max(1.5, this.x(toS) - this.x(fromS))];
    const fill = state === "INSUFFICIENT_DATA" ? { fill: "url(#no-data)" } : {};
    const nodes = [svg("rect", { class: `band-${state}${isCalm ? " calm" : ""}`, ...fill, x, width, y: middle - height / 2, height })];
    if (state === "ALARM" && width > 48) nodes.push(svg("text", { class: "band-word", x: x + 5, y: middle + 4 }, "ALARM"));
    return nodes;
  }

  /** The activities, and, a row below, those that were not scaled. */
  activityLane(activities) {
    const seen = activities.filter(({ StartTime: at }) => at >= this.model.startS);
    const height = (seen.length ? HEIGHTS.activities : 0) + (seen.some(({ kind }) => kind === "not") ? HEIGHTS.notScaled : 0);
    const { nodes, head } = this.lane(height, "Events", seen.length ? [] : [{ text: "none in this time" }]);
    for (const activity of seen) {
      const isDone = activity.kind !== "not";
      const [x, y] = [this.x(activity.StartTime), head + (isDone ? 12 : 32)];
      if (isDone) nodes.push(svg("line", { class: "moment", x1: x, x2: x, y1: HEAD, y2: y }));
      const mark = svg("path", { class: `mark ${activity.kind}`, d: KINDS[activity.kind].path, transform: `translate(${x} ${y})` });
      mark.dataset.activity = activity.ActivityId;
      nodes.push(mark);
      const isAtEnd = x > this.width - 34;
      const place = { x: isAtEnd ? x - 9 : x + 9, y: y + 4, "text-anchor": isAtEnd ? "end" : "start" };
      if (activity.number !== null) nodes.push(svg("text", { class: "number", ...place }, activity.number));
    }
    return nodes;
  }

  /** Horizontal lines at some values. */
  scale(values, y, format) {
    return values.flatMap((value) => [
      svg("line", { class: "grid", x1: EDGE.left, x2: this.width - EDGE.right, y1: y(value), y2: y(value) }),
      svg("text", { x: EDGE.left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)),
    ]);
  }

  rule(y, label, className) {
    return [
      svg("line", { class: className, x1: EDGE.left, x2: this.width - EDGE.right, y1: y, y2: y }),
      svg("text", { class: `rule-word ${className}-word`, x: EDGE.left + 4, y: y - 4 }, label),
    ];
  }

  nothing(y, words) {
    return svg("text", { class: "none", x: (this.width + EDGE.left) / 2, y: y + 4, "text-anchor": "middle" }, words);
  }

  axis() {
    const { startS, endS } = this.model;
    const most = Math.max(2, Math.floor(this.width / 90));
    const nodes = [];
    for (const at of roundMoments(startS, endS, most)) {
      const x = this.x(at);
      nodes.push(svg("line", { class: "tick", x1: x, x2: x, y1: HEAD, y2: this.foot }));
      const hasRoom = x > EDGE.left + 12 && x < this.width - 20;
      if (hasRoom) nodes.push(svg("text", { x, y: this.foot + 15, "text-anchor": "middle" }, clockTime(at, false)));
    }
    return nodes;
  }

  timeAt(event) {
    if (!this.model) return null;
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const share = (x - EDGE.left) / (this.width - EDGE.left - EDGE.right);
    return this.model.startS + Math.min(Math.max(share, 0), 1) * (this.model.endS - this.model.startS);
  }

  onKey(event) {
    if (!this.model) return;
    const { startS, endS, activities } = this.model;
    const [now, step] = [this.at ?? endS, (endS - startS) / NUM_STEPS];
    const moments = activities.map((activity) => activity.StartTime).filter((at) => at >= startS);
    const next = {
      ArrowLeft: () => now - step,
      ArrowRight: () => now + step,
      ArrowUp: () => Math.max(...moments.filter((at) => at < now - 0.001)),
      ArrowDown: () => Math.min(...moments.filter((at) => at > now + 0.001)),
      Home: () => startS,
      End: () => endS,
      Escape: () => null,
    }[event.key]?.();
    if (next === undefined) return;
    event.preventDefault();
    if (next === null) this.read(null);
    else if (Number.isFinite(next)) this.read(Math.min(Math.max(next, startS), endS));
  }

  /** Show the values of a moment; null hides them. */
  read(atS) {
    this.at = atS;
    if (!this.model || !this.cursor) return;
    this.cursor.setAttribute("visibility", atS === null ? "hidden" : "visible");
    this.card.hidden = atS === null;
    const near = atS === null ? [] : this.model.activities.filter((activity) => Math.abs(this.x(activity.StartTime) - this.x(atS)) <= NEAR_PX);
    for (const mark of this.canvas.querySelectorAll(".mark")) {
      mark.classList.toggle("near", near.some((activity) => activity.ActivityId === mark.dataset.activity));
    }
    if (atS === null) return;
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(atS));
    near.sort((first, second) => (first.kind === "not") - (second.kind === "not"));
    const told = near.slice(0, MAX_TOLD).map(toldOf);
    const more = near.length - MAX_TOLD;
    if (more > 0) told.push(element("span", { className: "note", textContent: `and ${more} more, listed below` }));
    this.card.replaceChildren(...this.readings(atS), ...told);
    const left = this.x(atS) + 14;
    const isRight = left + this.card.offsetWidth <= this.width;
    this.card.style.left = `${isRight ? left : Math.max(0, this.x(atS) - 14 - this.card.offsetWidth)}px`;
  }

  readings(atS) {
    const { capacity, lanes, alarms } = this.model;
    const [serving, desired] = [capacity.current, capacity.desired].map((points) => count(sampleAt(points, atS, capacity.bucketS)));
    const lines = [`${serving} of ${desired} ${capacity.unit}`];
    for (const { title, points, bucketS } of lanes) lines.push(`${title} ${short(sampleAt(points, atS, bucketS))}`);
    for (const { label, bands } of alarms) {
      const band = bands.findLast(({ fromS }) => fromS <= atS);
      lines.push(`${label} ${band ? STATE_WORDS[band.state] : "unknown"}`);
    }
    return [element("strong", { textContent: `${dateTime(atS)} ${zone()}` }), ...lines.map((textContent) => element("span", { textContent }))];
  }

  /** The description for screen readers. */
  summary() {
    const { capacity, alarms, activities } = this.model;
    const [serving, desired] = [capacity.current.at(-1)?.[1], capacity.desired.at(-1)?.[1]].map(count);
    const ringing = alarms.filter(({ state }) => state === "ALARM").map(({ label }) => label);
    const said = [`${serving} of ${desired} ${capacity.unit} serve`, `${activities.length} events`];
    if (ringing.length) said.push(`in alarm: ${ringing.join(", ")}`);
    return `Scaling over time. ${said.join(". ")}. Left and right read values, up and down move from event to event.`;
  }
}

/** An activity, in AWS's wording. */
export function toldOf(activity) {
  return element(
    "div",
    { className: "told" },
    element("b", { textContent: [`${KINDS[activity.kind].word}, ${clockTime(activity.StartTime)}`, activity.StatusCode].filter(Boolean).join(": ") }),
    element("span", { textContent: activity.Description }),
    element("span", { className: "note", textContent: `Cause: ${shortCause(activity.Cause)}` }),
    ...whyNot(activity).map((textContent) => element("span", { textContent })),
  );
}

/** A cause without the ids in the names of a policy's alarms. */
export function shortCause(cause) {
  return cause.replace(/TargetTracking-\S+-Alarm(High|Low)-[0-9a-f-]{36}/, "TargetTracking-…-Alarm$1-…");
}

/** The outcome of an activity, or why it was not scaled. */
export function whyNot({ NotScaledReasons: reasons, StatusMessage: message, Details: details }) {
  if (!reasons) return [message, details].filter(Boolean);
  return reasons.map(({ Code: code, ...facts }) => {
    const known = Object.entries(facts).map(([name, value]) => `${name} ${value}`);
    return known.length ? `${code} (${known.join(", ")})` : code;
  });
}

function legend(unit) {
  return [
    { text: "■", className: "key-serving", dx: 12 },
    { text: `${unit} that serve`, dx: 4 },
    { text: "━", className: "key-desired", dx: 12 },
    { text: "desired", dx: 4 },
  ];
}

function hatching() {
  const lines = svg("path", { class: "hatch", d: "M-2 8L8-2M2 10L10 2M-2 2L2-2" });
  return svg("defs", {}, svg("pattern", { id: "no-data", width: 8, height: 8, patternUnits: "userSpaceOnUse" }, lines));
}
