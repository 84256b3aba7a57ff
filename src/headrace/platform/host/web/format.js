// Formats numbers, times and states.

import { element } from "./dom.js";

const KINDS = {
  InService: "good",
  Failed: "bad",
  UpdateRollbackFailed: "bad",
  OutOfService: "bad",
  Deleting: "leaving",
  Asleep: "asleep",
  Degraded: "degraded",
  Down: "bad",
};

/** The class of a state: good, bad, leaving or moving. */
export const kindOf = (status) => KINDS[status] ?? "moving";

/**
 * Show a state in an element, as text and colour. `InService` is told apart by the workers that serve: asleep, waking, degraded
 * (fewer than desired, for a reason: `trouble`) or down.
 */
export function showState(node, status, numbers = {}) {
  const [shown, title] = conditionOf(status, numbers);
  node.className = `state ${kindOf(shown)}`;
  node.textContent = shown;
  node.title = title;
}

/** Why fewer workers serve than desired, if that is not just their start; else empty. */
export const troubleOf = ({ current, desired, trouble = "" }) => (current < desired ? trouble : "");

function conditionOf(status, numbers) {
  const { current, desired } = numbers;
  const trouble = troubleOf(numbers);
  if (status !== "InService" || current === undefined || (current > 0 && !trouble)) return [status, ""];
  if (current === 0 && desired === 0) return ["Asleep", "InService and scaled to zero: a request starts it."];
  const serving = `${current} of ${desired} serve now.`;
  if (trouble) return [current === 0 ? "Down" : "Degraded", `InService, but ${serving} ${trouble}`];
  return ["Waking", `InService, but ${serving} Requests wait for a worker.`];
}

/** The workers or instances of all variants, for `showState`. */
export function countsOf(variants) {
  const sum = (field) => variants.reduce((all, variant) => all + (variant[field] ?? 0), 0);
  return variants.length ? { current: sum("CurrentInstanceCount"), desired: sum("DesiredInstanceCount") } : {};
}

/** "3 min ago"; the exact time is the title. */
export function ago(epochSeconds) {
  const seconds = Math.max(0, Date.now() / 1000 - epochSeconds);
  const [number, unit] =
    seconds < 60 ? [seconds, "s"] : seconds < 3600 ? [seconds / 60, "min"] : seconds < 172800 ? [seconds / 3600, "h"] : [seconds / 86400, "days"];
  return element("time", {
    dateTime: new Date(epochSeconds * 1000).toISOString(),
    title: `${dateTime(epochSeconds)} ${zone()}`,
    textContent: `${Math.floor(number)} ${unit} ago`,
  });
}

/** Significant digits: 0.042, 4.2, 42, 4200. */
export function short(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  if (value < 0.1) return value.toPrecision(2);
  return value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

/** A count, or a dash if it is not known. */
export const count = (value) => (value === null || value === undefined ? "–" : String(value));

/** A value on an axis: "0", "5 s", "0.05 %" where `format` gives "0 ms", "5.0 s", "0.050 %". */
export const tick = (value, format) => (value === 0 ? "0" : format(value).replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, ""));

/** A duration in milliseconds, or from one second on in seconds, minutes, hours or days. */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  if (milliseconds < 1000) return `${short(milliseconds)} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 120) return `${short(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} days`;
}

/** The time of day, with seconds for short spans. */
export function clockTime(epochSeconds, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withSeconds && { second: "2-digit" }) };
  return new Date(epochSeconds * 1000).toLocaleTimeString("en", options);
}

/** Date and time of day in the reader's time zone: "2026-11-28 14:35:02". */
export function dateTime(epochSeconds) {
  const at = new Date(epochSeconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** The name of the reader's time zone, such as "UTC" or "GMT+2". */
export function zone() {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "short" }).formatToParts(new Date());
  return parts.find((part) => part.type === "timeZoneName").value;
}

/** A size in binary units: "94 MiB", "1.4 GiB". */
export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, number)) / 10)));
  const value = number / 1024 ** power;
  return `${value < 10 && power > 2 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

/** A count with its noun: "1 worker", "2 workers". */
export const numbered = (number, one, many) => `${number} ${number === 1 ? one : many}`;

const NOTE = "Note: ";

/** What the variants of an endpoint do, or why their workers wait: a line each, without notes. */
export const stateLines = (variants) => messageLines(variants).filter((line) => !line.startsWith(NOTE));

/** The notes in the messages of an endpoint's variants, each once. */
export function notesOf(variants) {
  const notes = messageLines(variants).filter((line) => line.startsWith(NOTE));
  return [...new Set(notes)].map((line) => line.slice(NOTE.length));
}

function messageLines(variants) {
  const messages = variants.flatMap((variant) => variant.VariantStatus ?? []).map((status) => status.StatusMessage ?? "");
  return messages.flatMap((message) => message.split("\n")).filter(Boolean);
}
