// Sets the capacity of a target: the number of instances or copies now, and how it is scaled automatically. It creates the
// same policies as `headrace scale`, which can change and remove them too.

import { ApiError, call } from "./aws.js";
import { Dialog, Form } from "./dialog.js";
import { $, element } from "./dom.js";

const AUTOSCALING = "AnyScaleFrontendService";
const CLOUDWATCH = "GraniteServiceVersion20100801";
const LOAD_POLICY = "headrace-load"; // the names that `headrace scale` uses
const IDLE_POLICY = "headrace-idle";
const COOLDOWNS_S = { ScaleOutCooldown: 30, ScaleInCooldown: 120 };
const PERIOD_S = 10;

/** The metrics to choose from; `predefined` by the kind of the target, else one that the workers report. */
const METRICS = [
  {
    id: "concurrent",
    label: "Concurrent requests",
    isPerUnit: true,
    value: 4,
    predefined: {
      variant: "SageMakerVariantConcurrentRequestsPerModelHighResolution",
      component: "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution",
    },
  },
  {
    id: "invocations",
    label: "Requests per minute",
    isPerUnit: true,
    value: 60,
    predefined: { variant: "SageMakerVariantInvocationsPerInstance", component: "SageMakerInferenceComponentInvocationsPerCopy" },
  },
  { id: "kv", label: "KV cache in use, %", value: 60, custom: { MetricName: "KVCacheUtilization", Statistic: "Average" } },
  { id: "queue", label: "Waiting requests", isPerUnit: true, value: 2, custom: { MetricName: "QueueDepth", Statistic: "Average" } },
];

const labelOf = ({ label, isPerUnit }, kind) => (isPerUnit ? `${label} per ${kind === "variant" ? "instance" : "copy"}` : label);
const kindOf = (target) => (target.id.startsWith("~") ? "variant" : "component");
const identityOf = (target) => ({ ServiceNamespace: "sagemaker", ResourceId: target.resourceId, ScalableDimension: target.dimension });
const alarmOf = (target) => `headrace-idle-${target.resourceId}`;

export class ScalingForm {
  /** `changed()` is called after each change. */
  constructor(changed) {
    this.changed = changed;
    this.target = this.shown = null;
    this.count = new Form("capacity", () => this.setCount());
    this.auto = new Form("autoscaling", () => this.save());
    this.off = new Dialog("scaling-off", () => this.remove());
    $("scaling-off").addEventListener("click", () => this.off.open());
    $("scaling-metric").replaceChildren(...METRICS.map(({ id }) => element("option", { value: id })));
    $("scaling-metric").addEventListener("change", () => ($("scaling-value").value = METRICS[$("scaling-metric").selectedIndex].value));
  }

  /** Show what was found for a target; what the user is typing stays. */
  show(name, { target, bounds, policies, alarms, desired }) {
    Object.assign(this, { name, target, policies });
    $("scaling-forms").hidden = !target.command; // the instances of a host follow its components
    $("scaling-off").hidden = !bounds;
    const found = JSON.stringify([target.id, bounds, policies.map((policy) => policy.PolicyName), desired]);
    if (found === this.shown || $("scaling-forms").contains(document.activeElement)) return;
    this.shown = found;
    $("capacity-label").textContent = target.unit === "copies" ? "Copies" : "Instances";
    $("capacity-value").value = desired ?? "";
    $("scaling-min").value = bounds?.MinCapacity ?? 1;
    $("scaling-max").value = bounds?.MaxCapacity ?? 4;
    this.showPolicy(tracking(policies));
    $("scaling-idle").value = idleSeconds(alarms, target) ?? "";
    for (const form of [this.count, this.auto]) form.tell("");
  }

  /** Show the metric of a policy; one that the list does not have is added to it, and is kept when the form is saved. */
  showPolicy(policy) {
    for (const option of $("scaling-metric").querySelectorAll("[value=other]")) option.remove();
    METRICS.forEach((metric, index) => ($("scaling-metric").options[index].textContent = labelOf(metric, kindOf(this.target))));
    const config = policy?.TargetTrackingScalingPolicyConfiguration;
    const metric = config ? METRICS.find((candidate) => isMetricOf(candidate, config, kindOf(this.target))) : METRICS[0];
    if (!metric) $("scaling-metric").append(element("option", { value: "other", textContent: `As set by ${policy.PolicyName}` }));
    $("scaling-metric").value = metric?.id ?? "other";
    $("scaling-value").value = config?.TargetValue ?? METRICS[0].value;
  }

  async setCount() {
    const count = Number($("capacity-value").value);
    if (kindOf(this.target) === "component") {
      await call("SageMaker.UpdateInferenceComponentRuntimeConfig", {
        InferenceComponentName: this.target.id,
        DesiredRuntimeConfig: { CopyCount: count },
      });
    } else {
      await call("SageMaker.UpdateEndpointWeightsAndCapacities", {
        EndpointName: this.name,
        DesiredWeightsAndCapacities: [{ VariantName: this.target.id.slice(1), DesiredInstanceCount: count }],
      });
    }
    this.settled();
  }

  async save() {
    const [MinCapacity, MaxCapacity] = [Number($("scaling-min").value), Number($("scaling-max").value)];
    if (MinCapacity > MaxCapacity) throw new Error(`The minimum is ${MinCapacity} and the maximum ${MaxCapacity}; expected a minimum that is not above the maximum.`);
    const identity = identityOf(this.target);
    await call(`${AUTOSCALING}.RegisterScalableTarget`, { ...identity, MinCapacity, MaxCapacity });
    const old = tracking(this.policies);
    await call(`${AUTOSCALING}.PutScalingPolicy`, {
      ...identity,
      PolicyName: old?.PolicyName ?? LOAD_POLICY,
      PolicyType: "TargetTrackingScaling",
      TargetTrackingScalingPolicyConfiguration: this.configuration(old?.TargetTrackingScalingPolicyConfiguration),
    });
    await this.saveIdle(identity, MinCapacity);
    this.settled();
  }

  configuration(old) {
    const TargetValue = Number($("scaling-value").value);
    const metric = METRICS.find((candidate) => candidate.id === $("scaling-metric").value);
    if (!metric) return { ...old, TargetValue };
    const { PredefinedMetricSpecification: _old, CustomizedMetricSpecification: _custom, ...kept } = old ?? COOLDOWNS_S;
    return { ...kept, TargetValue, ...specificationOf(metric, this.target) };
  }

  /** The step policy that goes to the minimum without requests, with its alarm; none if the field is empty. */
  async saveIdle(identity, minimum) {
    const idleS = Number($("scaling-idle").value);
    if (!idleS) return this.dropIdle(identity);
    const step = { MetricIntervalUpperBound: 0, ScalingAdjustment: minimum };
    const { PolicyARN: arn } = await call(`${AUTOSCALING}.PutScalingPolicy`, {
      ...identity,
      PolicyName: IDLE_POLICY,
      PolicyType: "StepScaling",
      StepScalingPolicyConfiguration: { AdjustmentType: "ExactCapacity", StepAdjustments: [step], Cooldown: 30 },
    });
    await call(`${CLOUDWATCH}.PutMetricAlarm`, {
      AlarmName: alarmOf(this.target),
      AlarmActions: [arn],
      AlarmDescription: `No request for ${idleS} s; made by the console.`,
      Metrics: idleQueries(this.target),
      EvaluationPeriods: Math.ceil(idleS / PERIOD_S),
      Threshold: 0,
      ComparisonOperator: "LessThanOrEqualToThreshold",
      TreatMissingData: "breaching",
    });
  }

  async dropIdle(identity) {
    if (!this.policies.some((policy) => policy.PolicyName === IDLE_POLICY)) return;
    await call(`${CLOUDWATCH}.DeleteAlarms`, { AlarmNames: [alarmOf(this.target)] });
    await ignoringMissing(call(`${AUTOSCALING}.DeleteScalingPolicy`, { ...identity, PolicyName: IDLE_POLICY }));
  }

  /** Deregister the target, which deletes its policies and schedules; the capacity stays. */
  async remove() {
    await call(`${CLOUDWATCH}.DeleteAlarms`, { AlarmNames: [alarmOf(this.target)] });
    await ignoringMissing(call(`${AUTOSCALING}.DeregisterScalableTarget`, identityOf(this.target)));
    this.settled();
  }

  /** Read the new state, and show it instead of what was typed. */
  settled() {
    this.shown = null;
    document.activeElement?.blur();
    this.changed();
  }
}

const tracking = (policies) => policies.find((policy) => policy.TargetTrackingScalingPolicyConfiguration) ?? null;

async function ignoringMissing(calling) {
  try {
    await calling;
  } catch (error) {
    if (!(error instanceof ApiError) || error.code !== "ObjectNotFoundException") throw error;
  }
}

function specificationOf({ predefined, custom }, target) {
  if (predefined) return { PredefinedMetricSpecification: { PredefinedMetricType: predefined[kindOf(target)] } };
  return { CustomizedMetricSpecification: { ...custom, Namespace: target.namespace, Dimensions: target.dimensions } };
}

function isMetricOf({ predefined, custom }, { PredefinedMetricSpecification: set, CustomizedMetricSpecification: own }, kind) {
  return predefined ? set?.PredefinedMetricType === predefined[kind] : own?.MetricName === custom.MetricName;
}

function idleSeconds(alarms, target) {
  const alarm = alarms.find(({ label }) => label === alarmOf(target));
  return alarm ? alarm.lastsS : null;
}

/** The largest of requests at a time, which misses short ones, and requests that ended, which misses long ones. */
function idleQueries(target) {
  const isVariant = kindOf(target) === "variant";
  const query = (Id, MetricName, Stat) => ({
    Id,
    MetricStat: { Metric: { Namespace: "AWS/SageMaker", MetricName, Dimensions: target.dimensions }, Period: PERIOD_S, Stat },
    ReturnData: false,
  });
  return [
    query("under_way", isVariant ? "ConcurrentRequestsPerModel" : "ConcurrentRequestsPerCopy", "Maximum"),
    query("ended", "Invocations", "Sum"),
    { Id: "requests", Expression: "MAX([under_way, ended])", Label: "Requests", ReturnData: true },
  ];
}
