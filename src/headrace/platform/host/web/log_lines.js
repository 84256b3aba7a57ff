// Lines of logs: how one is read and shown, and the last ones of an endpoint.

import { ApiError, call } from "./aws.js";
import { element } from "./dom.js";
import { dateTime } from "./format.js";

/**
 * The newest `limit` lines of a worker, of the one that wrote last if no stream is named, as `{ timestamp, text, level, message }`;
 * none if none has written.
 */
export async function lastLines(name, limit, signal, stream = "") {
  const logGroupName = `/aws/sagemaker/Endpoints/${name}`;
  try {
    const logStreamName = stream || (await newestStream(logGroupName, signal));
    if (!logStreamName) return [];
    const { events } = await call("Logs_20140328.GetLogEvents", { logGroupName, logStreamName, startFromHead: false, limit }, signal);
    return events.slice(-limit).map(readLine);
  } catch (error) {
    if (error instanceof ApiError && error.isMissing) return [];
    throw error;
  }
}

async function newestStream(logGroupName, signal) {
  const asked = { logGroupName, orderBy: "LastEventTime", descending: true, limit: 1 };
  const { logStreams: [newest] } = await call("Logs_20140328.DescribeLogStreams", asked, signal);
  return newest?.logStreamName;
}

export const readLine = ({ timestamp, message }) => ({ timestamp, message, ...readable(message) });

/** A line with its time; `before` stands between the two. */
export function lineNode({ timestamp, message, text, level }, before = []) {
  const time = element("time", { textContent: dateTime(timestamp / 1000), title: new Date(timestamp).toISOString() });
  return element("div", { dataset: { level } }, time, ...before, element("span", { className: "what", textContent: text, title: message }));
}

/** A line of Headrace's log as "event name=value …"; any other line unchanged. */
function readable(message) {
  try {
    const { event, level, timestamp: _, ...facts } = JSON.parse(message);
    if (typeof event !== "string") return { text: message, level: "" };
    const said = Object.entries(facts).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
    return { text: [event, ...said].join("  "), level: ["warning", "error", "critical"].includes(level) ? level : "" };
  } catch {
    return { text: message, level: "" };
  }
}
