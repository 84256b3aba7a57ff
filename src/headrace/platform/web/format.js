// Formats numbers, times and states.

import { element } from "./dom.js";

const KINDS = {
  InService: "good",
  Failed: "bad",
  UpdateRollbackFailed: "bad",
  OutOfService: "bad",
  Deleting: "leaving",
};

/** The class of a state: good, bad, leaving or moving. */
export const kindOf = (status) => KINDS[status] ?? "moving";

/** Show a state in an element, as text and colour. */
export function showState(node, status) {
  node.className = `state ${kindOf(status)}`;
  node.textContent = status;
}

/** "3 min ago"; the exact time is the title. */
export function ago(epochSeconds) {
  const seconds = Math.max(0, Date.now() / 1000 - epochSeconds);
  const [number, unit] =
    seconds < 60 ? [seconds, "s"] : seconds < 3600 ? [seconds / 60, "min"] : seconds < 172800 ? [seconds / 3600, "h"] : [seconds / 86400, "days"];
  return element("time", {
    dateTime: new Date(epochSeconds * 1000).toISOString(),
    title: new Date(epochSeconds * 1000).toLocaleString(),
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

/** A count; fractional if it is a mean over time. */
export function count(value) {
  return value === null || value === undefined ? "–" : String(Number(value.toFixed(1)));
}

/** A duration in milliseconds, or in seconds from one second on. */
export function duration(milliseconds) {
  if (milliseconds === null || milliseconds === undefined) return "–";
  return milliseconds < 1000 ? `${short(milliseconds)} ms` : `${short(milliseconds / 1000)} s`;
}

/** The time of day, with seconds for short spans. */
export function clockTime(epochSeconds, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23", ...(withSeconds && { second: "2-digit" }) };
  return new Date(epochSeconds * 1000).toLocaleTimeString("en", options);
}
