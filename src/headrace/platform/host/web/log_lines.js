// The last lines of an endpoint's log, for parts of the page that show only these.

import { ApiError, call } from "./aws.js";

/** The newest `limit` lines of the worker that wrote last, as `{ text, level }`; none if none has written. */
export async function lastLines(name, limit, signal) {
  const logGroupName = `/aws/sagemaker/Endpoints/${name}`;
  try {
    const asked = { logGroupName, orderBy: "LastEventTime", descending: true, limit: 1 };
    const { logStreams: [newest] } = await call("Logs_20140328.DescribeLogStreams", asked, signal);
    if (!newest) return [];
    const wanted = { logGroupName, logStreamName: newest.logStreamName, startFromHead: false, limit };
    const { events } = await call("Logs_20140328.GetLogEvents", wanted, signal);
    return events.slice(-limit).map((event) => readable(event.message));
  } catch (error) {
    if (error instanceof ApiError && error.isMissing) return [];
    throw error;
  }
}

/** A line of Headrace's log as "event name=value …"; any other line unchanged. */
export function readable(message) {
  try {
    const { event, level, timestamp: _, ...facts } = JSON.parse(message);
    if (typeof event !== "string") return { text: message, level: "" };
    const said = Object.entries(facts).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
    return { text: [event, ...said].join("  "), level: ["warning", "error", "critical"].includes(level) ? level : "" };
  } catch {
    return { text: message, level: "" };
  }
}
