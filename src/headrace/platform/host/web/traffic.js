// The charts of one endpoint, from the gateway's history.

import { messageOf, numbers } from "./aws.js";
import { Chart } from "./charts.js";
import { $ } from "./dom.js";
import { duration, short } from "./format.js";
import { Poll } from "./poll.js";

const PAUSE_MS = 2500;
const QUANTILES = [
  { label: "p50", className: "p50" },
  { label: "p95", className: "p95" },
];

export class Traffic {
  /** `quieted(isQuiet)` is called with whether no request came in the time span. */
  constructor(quieted) {
    Object.assign(this, { name: null, quieted });
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => error && this.say(messageOf(error)));
    const host = $("charts");
    this.requests = new Chart(host, {
      title: "Requests per second",
      kind: "bars",
      format: short,
      series: [
        { label: "answered", className: "answered" },
        { label: "refused", className: "refused" },
        { label: "failed", className: "failed" },
      ],
    });
    this.firstByte = new Chart(host, { title: "Time to first byte", kind: "lines", format: duration, series: QUANTILES });
    this.total = new Chart(host, { title: "Time to last byte", kind: "lines", format: duration, series: QUANTILES });
    $("range").addEventListener("change", () => this.poll.again());
  }

  /** Switch to an endpoint's traffic. */
  open(name) {
    if (this.name !== name) this.say("");
    this.name = name;
    this.poll.start();
  }

  close() {
    this.poll.stop();
  }

  async refresh(signal) {
    const query = new URLSearchParams({ endpoint: this.name, since: -Number($("range").value) });
    const series = await numbers(`traffic?${query}`, signal);
    const [startS, bucketS] = [series.start_s, series.bucket_s];
    const perSecond = (counts) => counts.map((count, i) => count / coveredS(series, i));
    const answered = series.requests.map((count, i) => count - series.refused[i] - series.failed[i]);
    this.requests.show({ startS, bucketS, values: [answered, series.refused, series.failed].map(perSecond) });
    this.firstByte.show({ startS, bucketS, values: [series.first_byte_ms.p50, series.first_byte_ms.p95] });
    this.total.show({ startS, bucketS, values: [series.total_ms.p50, series.total_ms.p95] });
    const isQuiet = series.requests.every((count) => count === 0);
    $("charts").hidden = isQuiet;
    this.quieted(isQuiet);
    this.say(isQuiet ? "No requests in this time" : factsOf(series));
  }

  say(text) {
    $("charts-facts").textContent = text;
  }
}

/** The last bucket has not ended. */
function coveredS(series, index) {
  const untilNow = series.now_s - (series.start_s + index * series.bucket_s);
  return Math.max(1, Math.min(series.bucket_s, untilNow));
}

function factsOf(series) {
  const sum = (list) => list.reduce((total, count) => total + count, 0);
  const all = sum(series.requests);
  const facts = [`${all.toLocaleString("en")} ${all === 1 ? "request" : "requests"}`];
  if (sum(series.failed)) facts.push(`${sum(series.failed).toLocaleString("en")} failed`);
  if (sum(series.refused)) facts.push(`${sum(series.refused).toLocaleString("en")} refused`);
  const variants = Object.entries(series.variants);
  if (variants.length > 1) {
    for (const [name, counts] of variants) facts.push(`${name} ${Math.round((100 * sum(counts)) / all)} %`);
  }
  return facts.join(" · ");
}
