// How a target was scaled: its capacity, the metrics of its policies, their alarms, its activities. All of it from
// the APIs of Application Auto Scaling and CloudWatch.

import { ApiError, call } from "./aws.js";

const AUTOSCALING = "AnyScaleFrontendService";
const CLOUDWATCH = "GraniteServiceVersion20100801";
const NAMESPACE = "sagemaker";
const PAGE_SIZE = 50;
const MAX_PAGES = 4; // of activities
const MAX_POINTS = 2000; // of one line
const IS_ADDED_UP = new Set(["Sum", "SampleCount"]);

/**
 * The targets that can be scaled: `{ id, label, resourceId, dimension, namespace, metrics, dimensions, unit, command }`. The instances
 * of a host come last and have no command: they are added and removed as components need them.
 */
export function targetsOf(endpoint, variants, hosts, components) {
  return [
    ...variants.map((variant) => variantTarget(endpoint, variant, variants.length)),
    ...components.map((component) => componentTarget(component)),
    ...hosts.map((host) => ({ ...variantTarget(endpoint, host), label: `Instances of ${host}`, command: "" })),
  ];
}

function variantTarget(endpoint, variant, numVariants) {
  return {
    id: `~${variant}`,
    label: `Variant ${variant}`,
    resourceId: `endpoint/${endpoint}/variant/${variant}`,
    dimension: "sagemaker:variant:DesiredInstanceCount",
    namespace: "/aws/sagemaker/Endpoints",
    metrics: { current: "CurrentInstanceCount", desired: "DesiredInstanceCount" },
    dimensions: [{ Name: "EndpointName", Value: endpoint }, { Name: "VariantName", Value: variant }],
    unit: "instances",
    command: `headrace scale ${endpoint} --min 1 --max 4${numVariants > 1 ? ` --variant ${variant}` : ""}`,
  };
}

function componentTarget(component) {
  return {
    id: component,
    label: `Component ${component}`,
    resourceId: `inference-component/${component}`,
    dimension: "sagemaker:inference-component:DesiredCopyCount",
    namespace: "/aws/sagemaker/InferenceComponents",
    metrics: { current: "CurrentCopyCount", desired: "DesiredCopyCount" },
    dimensions: [{ Name: "InferenceComponentName", Value: component }],
    unit: "copies",
    command: `headrace scale ${component} --min 1 --max 4`,
  };
}

/** Resource id → its registration as a scalable target. */
export async function readRegistered(targets, signal) {
  const registered = new Map();
  for (let start = 0; start < targets.length; start += PAGE_SIZE) {
    const ResourceIds = targets.slice(start, start + PAGE_SIZE).map((target) => target.resourceId);
    const asked = { ServiceNamespace: NAMESPACE, ResourceIds, MaxResults: PAGE_SIZE };
    const { ScalableTargets: found } = await call(`${AUTOSCALING}.DescribeScalableTargets`, asked, signal);
    for (const registration of found) registered.set(registration.ResourceId, registration);
  }
  return registered;
}

/** Everything about one target from `startS` to `endS`, in buckets of at least `bucketS`; `min` is its smallest capacity, if registered. */
export async function readScaling(target, { startS, endS, bucketS, min }, signal) {
  const identity = { ServiceNamespace: NAMESPACE, ResourceId: target.resourceId, ScalableDimension: target.dimension };
  const span = { startS, endS, bucketS };
  const [capacity, policies, activities] = await Promise.all([
    readCapacity(target, span, signal),
    call(`${AUTOSCALING}.DescribeScalingPolicies`, identity, signal).then((answer) => answer.ScalingPolicies),
    readActivities(identity, startS, signal),
  ]);
  const alarms = await readAlarms(policies, signal);
  const [lanes, bands] = await Promise.all([
    Promise.all(lanesOf(policies, alarms).map((lane) => readLane(lane, span, signal))),
    Promise.all(alarms.map((alarm) => readBands(alarm, isOnlyScalingIn(alarm, policies, min), span, signal))),
  ]);
  return { startS, endS, capacity, policies, activities, lanes, alarms: bands };
}

async function readCapacity({ namespace, metrics, dimensions }, { startS, endS, bucketS }, signal) {
  const queries = Object.entries(metrics).map(([id, name]) => ({
    Id: id,
    MetricStat: { Metric: { Namespace: namespace, MetricName: name, Dimensions: dimensions }, Period: bucketS, Stat: "Maximum" }, // a mean would show half instances
  }));
  const found = await readPoints(queries, startS, endS, signal);
  return { bucketS, current: found.get("current") ?? [], desired: found.get("desired") ?? [] };
}

/** Id → `[[start of the bucket, value], …]`, oldest first. */
async function readPoints(queries, startS, endS, signal) {
  const asked = { MetricDataQueries: queries, StartTime: startS, EndTime: endS, ScanBy: "TimestampAscending" };
  const { MetricDataResults: results } = await call(`${CLOUDWATCH}.GetMetricData`, asked, signal);
  return new Map(results.map((result) => [result.Id, result.Timestamps.map((at, i) => [at, result.Values[i]])]));
}

/** Activities, newest first, back to the start of the time span. */
async function readActivities(identity, startS, signal) {
  const found = [];
  let token;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const asked = { ...identity, IncludeNotScaledActivities: true, MaxResults: PAGE_SIZE, ...(token && { NextToken: token }) };
    const answer = await call(`${AUTOSCALING}.DescribeScalingActivities`, asked, signal);
    found.push(...answer.ScalingActivities);
    token = answer.NextToken;
    if (!token || answer.ScalingActivities.at(-1).StartTime < startS) break;
  }
  return found.map(activityOf).filter((activity) => (activity.EndTime ?? activity.StartTime) >= startS);
}

/** An activity for the timeline: `kind` is out, in, failed, not or bounds; `number` is the requested capacity. */
function activityOf(activity, place, all) {
  const number = askedFor(activity);
  const before = all.slice(place + 1).map(askedFor).find((other) => other !== null) ?? null;
  const isIn = before === null || before === number ? number === 0 || /AlarmLow|maximum capacity/.test(activity.Cause) : number < before;
  const isLost = activity.StatusCode === "Failed" || activity.StatusCode === "Unfulfilled";
  const kind = activity.NotScaledReasons ? "not" : isLost ? "failed" : number === null ? "bounds" : isIn ? "in" : "out";
  return { ...activity, kind, number };
}

function askedFor({ Description: text }) {
  const found = /^Setting desired .* to (\d+)/.exec(text);
  return found ? Number(found[1]) : null;
}

async function readAlarms(policies, signal) {
  const AlarmNames = [...new Set(policies.flatMap((policy) => policy.Alarms.map((alarm) => alarm.AlarmName)))].slice(0, 100);
  if (!AlarmNames.length) return [];
  const { MetricAlarms: found } = await call(`${CLOUDWATCH}.DescribeAlarms`, { AlarmNames, MaxRecords: 100 }, signal);
  return found;
}

/** One lane for each metric, with its thresholds: `{ title, alarm, lines }`. */
function lanesOf(policies, alarms) {
  const lanes = new Map();
  const byName = new Map(alarms.map((alarm) => [alarm.AlarmName, alarm]));
  for (const policy of policies) {
    const target = policy.TargetTrackingScalingPolicyConfiguration?.TargetValue;
    for (const alarm of policy.Alarms.map((reference) => byName.get(reference.AlarmName)).filter(Boolean)) {
      const key = JSON.stringify(queriesOf(alarm));
      if (!lanes.has(key)) lanes.set(key, { title: titleOf(alarm), alarm, lines: new Map() });
      if (target !== undefined) lanes.get(key).lines.set(`target ${target}`, target);
      else lanes.get(key).lines.set(`threshold ${alarm.Threshold}`, alarm.Threshold);
    }
  }
  return [...lanes.values()];
}

function titleOf(alarm) {
  if (alarm.MetricName) return alarm.MetricName;
  const shown = alarm.Metrics.find((query) => query.ReturnData !== false) ?? alarm.Metrics.at(-1);
  return shown.Label ?? shown.Expression ?? shown.MetricStat.Metric.MetricName;
}

async function readLane({ title, alarm, lines }, { startS, endS, bucketS }, signal) {
  const queries = queriesOf(alarm).map(({ MetricStat: read, ...query }) => {
    if (!read) return query;
    const isKept = IS_ADDED_UP.has(read.Stat) && (endS - startS) / read.Period <= MAX_POINTS; // a sum holds for its own period
    return { ...query, MetricStat: { ...read, Period: isKept ? read.Period : Math.max(read.Period, bucketS) } };
  });
  const periodS = Math.max(...queries.map((query) => query.MetricStat?.Period ?? 1));
  const { points, problem } = await readLine(queries, startS, endS, signal);
  const ended = points.filter(([at]) => at + periodS <= endS); // the newest period has not ended
  const stat = alarm.Statistic ?? alarm.ExtendedStatistic;
  const note = `${stat ? `${stat.toLowerCase()} over` : "every"} ${periodText(periodS)}`;
  return { title, note, problem, bucketS: periodS, points: ended, lines: [...lines].map(([label, value]) => ({ label, value })) };
}

/** The metric queries of an alarm for GetMetricData. */
function queriesOf(alarm) {
  if (alarm.Metrics) return alarm.Metrics;
  const { Namespace, MetricName, Dimensions = [], Period, Statistic: Stat = alarm.ExtendedStatistic } = alarm;
  return [{ Id: "m", MetricStat: { Metric: { Namespace, MetricName, Dimensions }, Period, Stat } }];
}

const periodText = (seconds) => (seconds < 60 ? `${seconds} s` : `${seconds / 60} min`);

/** A query that cannot be computed shows its error in its own lane. */
async function readLine(queries, startS, endS, signal) {
  try {
    const [points = []] = (await readPoints(queries, startS, endS, signal)).values();
    return { points, problem: "" };
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 400) throw error;
    return { points: [], problem: error.message };
  }
}

/** An alarm with its past states: `{ label, meaning, isCalm, rule, lastsS, state, bands: [{ fromS, toS, state }] }`. */
async function readBands(alarm, isCalm, { startS, endS }, signal) {
  const asked = { AlarmName: alarm.AlarmName, ScanBy: "TimestampAscending", MaxRecords: 100 };
  const { AlarmHistoryItems: items } = await call(`${CLOUDWATCH}.DescribeAlarmHistory`, asked, signal);
  const lastsS = alarm.EvaluationPeriods * periodOf(alarm);
  return { ...labelOf(alarm), isCalm, rule: ruleOf(alarm), lastsS, state: alarm.StateValue, bands: bandsOf(alarm, items, startS, endS) };
}

/** The spans between changes, as far as the history goes back. */
function bandsOf(alarm, items, startS, endS) {
  const changes = [];
  for (const item of items) {
    if (/ created$/.test(item.HistorySummary)) changes.push([item.Timestamp, "INSUFFICIENT_DATA"]);
    const to = item.HistoryItemType === "StateUpdate" && / to (OK|ALARM|INSUFFICIENT_DATA)$/.exec(item.HistorySummary);
    if (to) changes.push([item.Timestamp, to[1]]);
  }
  if (!changes.length) changes.push([alarm.StateTransitionedTimestamp, alarm.StateValue]);
  return changes
    .map(([fromS, state], place) => ({ fromS: Math.max(fromS, startS), toS: changes[place + 1]?.[0] ?? endS, state }))
    .filter(({ fromS, toS }) => toS > fromS);
}

/** "High" and "Low" with their meaning for alarms of a target-tracking policy; otherwise the name. */
function labelOf(alarm) {
  const side = /-Alarm(High|Low)-[0-9a-f-]{36}$/.exec(alarm.AlarmName)?.[1];
  const meaning = { High: "too little for the load", Low: "more than the load needs" }[side] ?? "";
  return { label: side ?? alarm.AlarmName, meaning };
}

/** Whether an alarm can only remove capacity: it is in ALARM while nothing is wrong, as at night. */
function isOnlyScalingIn(alarm, policies, min) {
  const served = policies.filter((policy) => policy.Alarms.some((reference) => reference.AlarmName === alarm.AlarmName));
  return served.length > 0 && served.every((policy) => {
    const { AdjustmentType: type, StepAdjustments: steps } = policy.StepScalingPolicyConfiguration ?? {};
    if (!steps) return /-AlarmLow-/.test(alarm.AlarmName);
    return steps.every(({ ScalingAdjustment: change }) => (type === "ExactCapacity" ? change <= (min ?? 0) : change < 0));
  });
}

const SIGNS = {
  GreaterThanThreshold: ">",
  GreaterThanOrEqualToThreshold: "≥",
  LessThanThreshold: "<",
  LessThanOrEqualToThreshold: "≤",
};

const periodOf = (alarm) => Math.max(...queriesOf(alarm).map((query) => query.MetricStat?.Period ?? 1));

function ruleOf(alarm) {
  const { EvaluationPeriods: periods, DatapointsToAlarm: needed = periods, ComparisonOperator: compared, Threshold: limit } = alarm;
  const periodS = periodOf(alarm);
  return `${titleOf(alarm)} ${SIGNS[compared] ?? compared} ${limit} in ${needed} of ${periods} × ${periodText(periodS)}`;
}
