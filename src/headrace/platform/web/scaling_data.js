// What has scaled one thing, and how: its capacity, what its policies watch, their alarms, what was done. All of it from
// the APIs of Application Auto Scaling and CloudWatch.

import { call } from "./aws.js";

const AUTOSCALING = "AnyScaleFrontendService";
const CLOUDWATCH = "GraniteServiceVersion20100801";
const NAMESPACE = "sagemaker";
const PAGE_SIZE = 50;
const MAX_PAGES = 4; // of activities
const MAX_POINTS = 2000; // of one line
const IS_ADDED_UP = new Set(["Sum", "SampleCount"]);

/**
 * What may be scaled: `{ id, label, resourceId, dimension, namespace, metrics, dimensions, unit, command }`. The instances
 * of a host come last and have no command: they come and go with the components that need them.
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
    const ResourceIds = targets.slice(start, start + PAGE_SIZE).map((one) => one.resourceId);
    const asked = { ServiceNamespace: NAMESPACE, ResourceIds, MaxResults: PAGE_SIZE };
    const { ScalableTargets: found } = await call(`${AUTOSCALING}.DescribeScalableTargets`, asked, signal);
    for (const one of found) registered.set(one.ResourceId, one);
  }
  return registered;
}

/** Everything about one target from `startS` to `endS`, in buckets of at least `bucketS`. */
export async function readScaling(target, { startS, endS, bucketS }, signal) {
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
    Promise.all(alarms.map((alarm) => readBands(alarm, span, signal))),
  ]);
  return { startS, endS, capacity, policies, activities, lanes, alarms: bands };
}

async function readCapacity({ namespace, metrics, dimensions }, { startS, endS, bucketS }, signal) {
  const queries = Object.entries(metrics).map(([id, name]) => ({
    Id: id,
    MetricStat: { Metric: { Namespace: namespace, MetricName: name, Dimensions: dimensions }, Period: bucketS, Stat: "Average" },
  }));
  const found = await readPoints(queries, startS, endS, signal);
  return { bucketS, current: found.get("current") ?? [], desired: found.get("desired") ?? [] };
}

/** Id → `[[start of the bucket, value], …]`, oldest first. */
async function readPoints(queries, startS, endS, signal) {
  const asked = { MetricDataQueries: queries, StartTime: startS, EndTime: endS, ScanBy: "TimestampAscending" };
  const { MetricDataResults: results } = await call(`${CLOUDWATCH}.GetMetricData`, asked, signal);
  return new Map(results.map((one) => [one.Id, one.Timestamps.map((at, i) => [at, one.Values[i]])]));
}

/** Newest first, until they are older than what is looked at. */
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
  return found.filter((one) => (one.EndTime ?? one.StartTime) >= startS).map(activityOf);
}

/** An activity with what a picture wants: `kind` is out, in, failed, not or bounds; `number` is what was asked for. */
function activityOf(one, place, all) {
  const asked = (other) => /^Setting desired .* to (\d+)/.exec(other?.Description ?? "")?.[1];
  const number = asked(one) === undefined ? null : Number(asked(one));
  const before = all.slice(place + 1).map(asked).find((other) => other !== undefined);
  const isOut = /AlarmHigh|arrived|minimum capacity/.test(one.Cause ?? "") || !/AlarmLow|maximum capacity/.test(one.Cause ?? "");
  const grows = before === undefined || Number(before) === number ? isOut : number > Number(before);
  const kind = one.NotScaledReasons ? "not" : one.StatusCode === "Failed" || one.StatusCode === "Unfulfilled" ? "failed" : number === null ? "bounds" : grows ? "out" : "in";
  return { ...one, kind, number };
}

async function readAlarms(policies, signal) {
  const AlarmNames = [...new Set(policies.flatMap((one) => one.Alarms.map((alarm) => alarm.AlarmName)))].slice(0, 100);
  if (!AlarmNames.length) return [];
  const { MetricAlarms: found } = await call(`${CLOUDWATCH}.DescribeAlarms`, { AlarmNames, MaxRecords: 100 }, signal);
  return found;
}

/** One lane for each thing that is measured, with the lines that decide: `{ title, alarm, lines }`. */
function lanesOf(policies, alarms) {
  const lanes = new Map();
  const byName = new Map(alarms.map((alarm) => [alarm.AlarmName, alarm]));
  for (const policy of policies) {
    const target = policy.TargetTrackingScalingPolicyConfiguration?.TargetValue;
    for (const alarm of policy.Alarms.map((one) => byName.get(one.AlarmName)).filter(Boolean)) {
      const key = JSON.stringify(alarm.Metrics ?? [alarm.Namespace, alarm.MetricName, alarm.Dimensions, alarm.Statistic ?? alarm.ExtendedStatistic]);
      if (!lanes.has(key)) lanes.set(key, { title: titleOf(alarm), alarm, lines: new Map() });
      if (target !== undefined) lanes.get(key).lines.set(`target ${target}`, target);
      else lanes.get(key).lines.set(`threshold ${alarm.Threshold}`, alarm.Threshold);
    }
  }
  return [...lanes.values()];
}

function titleOf(alarm) {
  if (alarm.MetricName) return alarm.MetricName;
  const shown = alarm.Metrics.find((one) => one.ReturnData !== false) ?? alarm.Metrics.at(-1);
  return shown.Label ?? shown.Expression ?? shown.MetricStat.Metric.MetricName;
}

async function readLane({ title, alarm, lines }, { startS, endS, bucketS }, signal) {
  const wide = (periodS, stat) => (IS_ADDED_UP.has(stat) && (endS - startS) / periodS <= MAX_POINTS ? periodS : Math.max(periodS, bucketS));
  const stat = alarm.Statistic ?? alarm.ExtendedStatistic;
  const dimensions = alarm.Dimensions ?? [];
  const queries = alarm.Metrics
    ? alarm.Metrics.map((one) => ({ ...one, ...(one.MetricStat && { MetricStat: { ...one.MetricStat, Period: wide(one.MetricStat.Period, one.MetricStat.Stat) } }) }))
    : [{ Id: "m", MetricStat: { Metric: { Namespace: alarm.Namespace, MetricName: alarm.MetricName, Dimensions: dimensions }, Period: wide(alarm.Period, stat), Stat: stat } }];
  const periodS = queries.map((one) => one.MetricStat?.Period ?? 0).reduce((one, other) => Math.max(one, other), 0) || 60;
  const [points = []] = (await readPoints(queries, startS, endS, signal)).values();
  const ended = points.filter(([at]) => at + periodS <= endS); // the newest one has not been measured to its end
  const note = `${stat ? `${stat.toLowerCase()} over` : "every"} ${periodS < 60 ? `${periodS} s` : `${periodS / 60} min`}`;
  return { title, note, bucketS: periodS, points: ended, lines: [...lines].map(([label, value]) => ({ label, value })) };
}

/** An alarm with the states that it was in: `{ label, meaning, isCalm, rule, state, bands: [{ fromS, toS, state }] }`. */
async function readBands(alarm, { startS, endS }, signal) {
  const asked = { AlarmName: alarm.AlarmName, ScanBy: "TimestampAscending", MaxRecords: 100 };
  const { AlarmHistoryItems: items } = await call(`${CLOUDWATCH}.DescribeAlarmHistory`, asked, signal);
  return { ...labelOf(alarm), rule: ruleOf(alarm), name: alarm.AlarmName, state: alarm.StateValue, reason: alarm.StateReason, bands: bandsOf(alarm, items, startS, endS) };
}

/** The times between changes, as far as the history goes back. */
export function bandsOf(alarm, items, startS, endS) {
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

/** "High" and "Low" for those that a target-tracking policy made, with what they mean; else the name. */
function labelOf(alarm) {
  const side = /-Alarm(High|Low)-[0-9a-f-]{36}$/.exec(alarm.AlarmName)?.[1];
  const meaning = { High: "too little for the load", Low: "more than the load needs" }[side] ?? "";
  return { label: side ?? alarm.AlarmName, meaning, isCalm: side === "Low" };
}

function ruleOf(alarm) {
  const signs = { GreaterThanThreshold: ">", GreaterThanOrEqualToThreshold: "≥", LessThanThreshold: "<", LessThanOrEqualToThreshold: "≤" };
  const periods = alarm.EvaluationPeriods;
  const periodS = alarm.Period ?? alarm.Metrics?.find((one) => one.MetricStat)?.MetricStat.Period ?? 60;
  const length = periodS < 60 ? `${periodS} s` : `${periodS / 60} min`;
  return `${titleOf(alarm)} ${signs[alarm.ComparisonOperator] ?? "?"} ${alarm.Threshold} in ${alarm.DatapointsToAlarm ?? periods} of ${periods} × ${length}`;
}
