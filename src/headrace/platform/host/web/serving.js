// What the workers of an endpoint report: tokens per second, waiting requests, use of the KV cache. From CloudWatch, where
// the platform publishes the workers' own metrics; read only while the page shows them.

import { call, messageOf } from "./aws.js";
import { Chart } from "./charts.js";
import { $ } from "./dom.js";
import { short } from "./format.js";
import { Poll } from "./poll.js";

const PAUSE_MS = 5000;
const BUCKETS_S = { 600: 10, 3600: 60 };
const MAX_SOURCES = 20; // variants and components in one chart
const NAMESPACES = { variant: "/aws/sagemaker/Endpoints", component: "/aws/sagemaker/InferenceComponents" };
const percent = (value) => (value === null ? "–" : `${short(value)} %`);

export class Serving {
  constructor() {
    this.name = null;
    this.sources = [];
    this.skewS = 0;
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => error && this.say(messageOf(error)));
    const host = $("serving-charts");
    const line = (title, label, format) => new Chart(host, { title, kind: "lines", format, series: [{ label, className: "p50" }] });
    this.tokens = line("Tokens per second", "generated", short);
    this.waiting = line("Waiting requests", "in queues", short);
    const series = [
      { label: "mean", className: "p50" },
      { label: "fullest worker", className: "p95" },
    ];
    this.kv = new Chart(host, { title: "KV cache in use", kind: "lines", format: percent, series });
    $("range").addEventListener("change", () => this.poll.isOn && this.poll.again());
  }

  open(name) {
    if (this.name !== name) {
      this.sources = [];
      $("serving").hidden = true;
    }
    this.name = name;
    this.poll.start();
  }

  close() {
    this.poll.stop();
  }

  /** Set the variants and the components whose workers are added up; `nowS` is the platform's time. */
  know(name, { variants, components, nowS }) {
    if (name !== this.name) return;
    const isFirst = !this.sources.length;
    this.skewS = nowS - Date.now() / 1000;
    this.sources = [
      ...variants.map((variant) => sourceOf("variant", [["EndpointName", name], ["VariantName", variant]])),
      ...components.map((component) => sourceOf("component", [["InferenceComponentName", component]])),
    ].slice(0, MAX_SOURCES);
    if (isFirst && this.sources.length && this.poll.isOn) this.poll.again();
  }

  async refresh(signal) {
    if (!this.sources.length) return;
    const rangeS = Number($("range").value);
    const bucketS = BUCKETS_S[rangeS];
    const endS = Math.floor((Date.now() / 1000 + this.skewS) / bucketS) * bucketS;
    const span = { startS: endS - rangeS, bucketS, num: rangeS / bucketS };
    const asked = {
      MetricDataQueries: this.sources.flatMap((source, place) => queriesOf(source, place, bucketS)),
      StartTime: span.startS,
      EndTime: endS,
      ScanBy: "TimestampAscending",
    };
    const { MetricDataResults: results } = await call("GraniteServiceVersion20100801.GetMetricData", asked, signal);
    this.show(results, span);
  }

  show(results, span) {
    const lists = (prefix) => results.filter((result) => result.Id.startsWith(prefix)).map((result) => listOf(result, span));
    const added = (prefix) => merged(lists(prefix), span.num, (values) => values.reduce((sum, value) => sum + value, 0));
    const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
    this.tokens.show({ ...span, values: [added("tokens")] });
    this.waiting.show({ ...span, values: [added("waiting")] });
    this.kv.show({ ...span, values: [merged(lists("kv"), span.num, mean), merged(lists("full"), span.num, (values) => Math.max(...values))] });
    $("serving").hidden = !results.some((result) => result.Values.length);
    this.say("");
  }

  say(text) {
    $("serving-note").textContent = text;
  }
}

function sourceOf(kind, dimensions) {
  const count = kind === "variant" ? "CurrentInstanceCount" : "CurrentCopyCount";
  return { namespace: NAMESPACES[kind], count, dimensions: dimensions.map(([Name, Value]) => ({ Name, Value })) };
}

/**
 * The queries of one source. Each worker reports about once in ten seconds, at no fixed moment, so sums over a bucket would
 * jump: what is added up over workers is their mean times their number.
 */
function queriesOf({ namespace, count, dimensions }, place, bucketS) {
  const stat = (Id, MetricName, Stat, ReturnData) => ({
    Id: `${Id}${place}`,
    MetricStat: { Metric: { Namespace: namespace, MetricName, Dimensions: dimensions }, Period: bucketS, Stat },
    ReturnData,
  });
  const times = (Id, part) => ({ Id: `${Id}${place}`, Expression: `${part}${place} * count${place}`, ReturnData: true });
  return [
    stat("count", count, "Average", false),
    stat("rate", "OutputTokensPerSecond", "Average", false),
    stat("queue", "QueueDepth", "Average", false),
    times("tokens", "rate"),
    times("waiting", "queue"),
    stat("kv", "KVCacheUtilization", "Average", true),
    stat("full", "KVCacheUtilization", "Maximum", true),
  ];
}

/** The values of a result by bucket; null where nothing was measured. */
function listOf({ Timestamps: times, Values: values }, { startS, bucketS, num }) {
  const list = new Array(num).fill(null);
  times.forEach((at, i) => {
    const index = Math.round((at - startS) / bucketS);
    if (index >= 0 && index < num) list[index] = values[i];
  });
  return list;
}

/** One list of several, bucket by bucket; `join` gets the values that are there. */
function merged(lists, num, join) {
  const joined = Array.from({ length: num }, (_, i) => {
    const values = lists.map((list) => list[i]).filter((value) => value !== null);
    return values.length ? join(values) : null;
  });
  return joined.map((value, i) => value ?? (joined[i + 1] == null ? null : joined[i - 1] ?? null)); // one late report is no gap
}
