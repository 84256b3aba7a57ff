// The API calls that create a deployment: a model, an endpoint configuration and an endpoint of one name, as
// `headrace deploy` and the SDKs create them; or a model and an inference component on an existing endpoint.

import { accountNumber, call, callUnlessMissing } from "./aws.js";

export const MADE_HERE = "headrace:made-by"; // the tag of resources that `headrace deploy` and this page created
export const TAGS = [{ Key: MADE_HERE, Value: "console" }];
const MAX_NAME = 63;

/** Make the calls in order, `[kind, parameters]` each; if one is refused, delete what the earlier ones created. */
export async function createAll(calls) {
  const done = [];
  try {
    for (const [kind, parameters] of calls) {
      await call(`SageMaker.Create${kind}`, parameters);
      done.unshift([`SageMaker.Delete${kind}`, { [`${kind}Name`]: parameters[`${kind}Name`] }]);
    }
  } catch (error) {
    for (const [target, parameters] of done) await callUnlessMissing(target, parameters).catch(() => {}); // the first error is reported
    throw error;
  }
}

/** `others` are members of the model beside its container. */
export async function modelCall(name, container, others = {}) {
  const ExecutionRoleArn = `arn:aws:iam::${await accountNumber()}:role/headrace`;
  return ["Model", { ModelName: name, PrimaryContainer: container, ExecutionRoleArn, ...others, Tags: TAGS }];
}

/** `variant` has the members that differ from those of a plain variant of the model `name`. */
export function configCall(name, variant) {
  const whole = {
    VariantName: "AllTraffic",
    ModelName: name,
    RoutingConfig: { RoutingStrategy: "LEAST_OUTSTANDING_REQUESTS" },
    ...variant,
  };
  return ["EndpointConfig", { EndpointConfigName: name, ProductionVariants: [whole], Tags: TAGS }];
}

export function endpointCall(name, config = name) {
  return ["Endpoint", { EndpointName: name, EndpointConfigName: config, Tags: TAGS }];
}

export function componentCall(name, { host, variant, model = name, need, copies }) {
  const component = {
    InferenceComponentName: name,
    EndpointName: host,
    VariantName: variant,
    Specification: { ModelName: model, ComputeResourceRequirements: need },
    RuntimeConfig: { CopyCount: copies },
    Tags: TAGS,
  };
  return ["InferenceComponent", component];
}

/** A name for another model and configuration of an endpoint. */
export const revisionOf = (name) => `${name.slice(0, 50).replace(/-+$/, "")}-${Date.now().toString(36)}`;

/** Whether `headrace deploy` or this page created a resource. */
export async function isMadeHere(arn) {
  const answer = await callUnlessMissing("SageMaker.ListTags", { ResourceArn: arn });
  return (answer?.Tags ?? []).some((tag) => tag.Key === MADE_HERE);
}

/** A name that AWS allows, from the last part of the model's name. */
export function nameFor(model) {
  const stem = model.trim().replace(/\/+$/, "").split("/").at(-1).replace(/\.(gguf|tar\.gz|tgz)$/, "");
  const clean = (text) => text.replace(/[^a-zA-Z0-9]+/g, "-").replace(/^-+|-+$/g, "");
  return clean(clean(stem).slice(0, MAX_NAME));
}

/** Where the container finds its model: an archive or prefix in S3, otherwise the model's name in HF_MODEL_ID. */
export function sourceOf(model, environment) {
  if (!model) return { Environment: environment };
  if (!model.startsWith("s3://")) return { Environment: { HF_MODEL_ID: model, ...environment } };
  if (/\.(tar\.gz|tgz)$/.test(model)) return { ModelDataUrl: model, Environment: environment };
  const S3Uri = `${model.replace(/\/+$/, "")}/`;
  return {
    ModelDataSource: { S3DataSource: { S3Uri, S3DataType: "S3Prefix", CompressionType: "None" } },
    Environment: environment,
  };
}

/** A container with another image, model or environment; all that the form does not show is kept. */
export function editedContainer(container, { image, model, environment }) {
  const { ModelDataUrl, ModelDataSource, ...others } = container;
  const kept = { ...others, Image: image };
  if ((ModelDataUrl || ModelDataSource) && model === modelOf(container).model) return { ...container, ...kept, Environment: environment };
  if (ModelDataUrl && !model.startsWith("s3://")) return { ...kept, ModelDataUrl: model, Environment: environment }; // a path
  return { ...kept, ...sourceOf(model, environment) };
}

/** The model and the other variables of a container: the reverse of `sourceOf`. */
export function modelOf({ ModelDataUrl, ModelDataSource, Environment = {} }) {
  const { HF_MODEL_ID: model, ...others } = Environment;
  const source = ModelDataUrl ?? ModelDataSource?.S3DataSource?.S3Uri;
  return source ? { model: source, environment: Environment } : { model: model ?? "", environment: others };
}
