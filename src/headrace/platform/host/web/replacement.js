// The replacement of what failed: an endpoint with its variants, or an inference component.

import { ApiError, call, callUnlessMissing, numbers } from "./aws.js";
import { TAGS, createAll, endpointCall, isMadeHere, modelCall, revisionOf } from "./deployment.js";

const GONE_PAUSE_MS = 300;
const GONE_MS = 120_000;

/** Thrown for what the form cannot show; `commands` do it instead. */
export class CannotEdit extends Error {
  constructor(message, commands) {
    super(message);
    this.commands = commands;
  }
}

/**
 * Read how an endpoint was deployed. Each of its `parts` is a variant with the container of its model and the other
 * members of both; a host of components has no container.
 */
export async function readEndpoint(name) {
  const { EndpointConfigName: configName } = await call("SageMaker.DescribeEndpoint", { EndpointName: name });
  const again = `headrace deploy MODEL --name ${name}`;
  const { components } = await numbers(`components?${new URLSearchParams({ endpoint: name })}`);
  const hosted = components.filter((component) => !component.base).map((component) => component.name);
  if (hosted.length) {
    throw new CannotEdit(`The endpoint cannot be replaced while it has inference components. Delete them, and retry:`, [`headrace rm ${hosted.join(" ")}`]);
  }
  const config = await callUnlessMissing("SageMaker.DescribeEndpointConfig", { EndpointConfigName: configName });
  if (config === null) throw new CannotEdit(`The configuration ${configName} was deleted, so its values are not known. Replace the endpoint by the command:`, [again]);
  const { EndpointConfigName: _name, EndpointConfigArn: arn, CreationTime: _at, ProductionVariants: variants, ...others } = config;
  const parts = await Promise.all(variants.map((variant) => readPart(variant, again)));
  return { kind: "endpoint", name, configName, others, parts, isOurs: await isMadeHere(arn) };
}

async function readPart(variant, again) {
  if (!variant.ModelName) return { variant, container: null };
  return { variant, ...(await readModel(variant.ModelName, [again])) };
}

/** A model's container, its other members, and its ARN. */
async function readModel(name, commands) {
  const model = await callUnlessMissing("SageMaker.DescribeModel", { ModelName: name });
  if (model === null) throw new CannotEdit(`The model ${name} was deleted, so its values are not known. Deploy again by the command:`, commands);
  const { ModelName: _name, ModelArn: arn, CreationTime: _at, PrimaryContainer, Containers, ...others } = model;
  const container = PrimaryContainer ?? Containers[0];
  checkEnvironment(container, commands);
  return { container, others, arn };
}

function checkEnvironment({ Environment = {} }, commands) {
  const long = Object.keys(Environment).find((variable) => Environment[variable].includes("\n"));
  if (long) throw new CannotEdit(`The variable ${long} has several lines, which the form cannot show. Deploy again by the command:`, commands);
}

/** Read an inference component as one part. */
export async function readComponent(name) {
  const found = await call("SageMaker.DescribeInferenceComponent", { InferenceComponentName: name });
  const { Specification: specification, Specifications: several, EndpointName: host, RuntimeConfig } = found;
  const update = (option, value) => [`aws sagemaker update-inference-component --inference-component-name ${name} \\\n  ${option} '${JSON.stringify(value)}'`];
  if (several) throw new CannotEdit("The component has a specification for each of several instance types. Edit it by the command:", update("--specifications", several.map(asGiven)));
  if (specification.BaseInferenceComponentName) throw new CannotEdit("An adapter has neither a model nor copies of its own. Edit it by the command:", update("--specification", asGiven(specification)));
  const { ModelName, Container, ...others } = asGiven(specification);
  const again = `headrace rm ${name} && headrace deploy MODEL --component-of ${host} --name ${name}`;
  const model = ModelName ? await readModel(ModelName, [again]) : { container: containerOf(Container), others: {} };
  const isOurs = Boolean(ModelName) && (await isMadeHere(model.arn));
  const parts = [{ ...model, copies: RuntimeConfig.DesiredCopyCount }];
  return { kind: "component", name, host, variant: found.VariantName, modelName: ModelName, others, isOurs, parts };
}

/** A described specification as Create and Update take it. */
function asGiven({ Container, ...others }) {
  if (!Container) return others;
  const { DeployedImage, ...members } = Container;
  const image = DeployedImage?.SpecifiedImage;
  return { ...others, Container: { ...(image && { Image: image }), ...members } };
}

/** The container of a model like a component's own one. */
function containerOf({ ArtifactUrl, ...members }) {
  return { ...members, ...(ArtifactUrl && { ModelDataUrl: ArtifactUrl }) };
}

/**
 * Replace a failed endpoint; `edits` has `{ container, fields }` for each part. The new models and the new configuration
 * are created first: a mistake in them changes nothing.
 */
export async function replaceEndpoint(old, edits) {
  const revision = revisionOf(old.name);
  const { calls, variants } = await variantsOf(old, edits, revision);
  const config = { ...old.others, EndpointConfigName: revision, ProductionVariants: variants, Tags: TAGS };
  await createAll([...calls, ["EndpointConfig", config]]);
  try {
    await callUnlessMissing("SageMaker.DeleteEndpoint", { EndpointName: old.name });
    await untilGone("Endpoint", old.name);
    await createAll([endpointCall(old.name, revision)]);
  } catch (error) {
    await removeParts(revision, variants).catch(() => {}); // the first error is reported
    throw error;
  }
  if (old.isOurs) await removeParts(old.configName, old.parts.map((part) => part.variant));
}

/** The calls that create the models, and the variants that name them. */
async function variantsOf(old, edits, revision) {
  const calls = [];
  const variants = [];
  for (const [index, { variant, others }] of old.parts.entries()) {
    const { container, fields } = edits[index];
    const ModelName = old.parts.length > 1 ? `${revision}-${index + 1}` : revision;
    if (container) calls.push(await modelCall(ModelName, container, others));
    variants.push({ ...variant, ...fields, ...(container && { ModelName }) });
  }
  return { calls, variants };
}

/** Give a failed component another model, other requirements or another number of copies. */
export async function replaceComponent(old, { container, need, copies }) {
  const revision = revisionOf(old.name);
  await createAll([await modelCall(revision, container, old.parts[0].others)]);
  try {
    await updateOrCreate(old, {
      InferenceComponentName: old.name,
      Specification: { ...old.others, ModelName: revision, ComputeResourceRequirements: need },
      RuntimeConfig: { CopyCount: copies },
    });
  } catch (error) {
    await callUnlessMissing("SageMaker.DeleteModel", { ModelName: revision }).catch(() => {}); // the first error is reported
    throw error;
  }
  if (old.isOurs) await callUnlessMissing("SageMaker.DeleteModel", { ModelName: old.modelName });
}

/** Update a component that has served before; create one again that never has, which cannot be updated. */
async function updateOrCreate(old, members) {
  try {
    await call("SageMaker.UpdateInferenceComponent", members);
  } catch (error) {
    if (!(error instanceof ApiError && error.message.startsWith("Cannot update failed"))) throw error;
    const { components } = await numbers(`components?${new URLSearchParams({ endpoint: old.host })}`);
    const adapters = components.filter((component) => component.base === old.name).map((component) => component.name);
    if (adapters.length) throw new Error(`Its adapters would be deleted with it. Delete them first: headrace rm ${adapters.join(" ")}`);
    await callUnlessMissing("SageMaker.DeleteInferenceComponent", { InferenceComponentName: old.name });
    await untilGone("InferenceComponent", old.name);
    await createAll([["InferenceComponent", { ...members, EndpointName: old.host, VariantName: old.variant, Tags: TAGS }]]);
  }
}

async function removeParts(EndpointConfigName, variants) {
  await callUnlessMissing("SageMaker.DeleteEndpointConfig", { EndpointConfigName });
  const models = new Set(variants.map((variant) => variant.ModelName).filter(Boolean));
  for (const ModelName of models) await callUnlessMissing("SageMaker.DeleteModel", { ModelName });
}

async function untilGone(kind, name) {
  const deadlineMs = performance.now() + GONE_MS;
  for (;;) {
    try {
      await call(`SageMaker.Describe${kind}`, { [`${kind}Name`]: name });
    } catch (error) {
      if (error instanceof ApiError && error.isMissing) return;
      throw error;
    }
    if (performance.now() > deadlineMs) throw new Error(`${name} is still being deleted. Retry in a moment.`);
    await new Promise((resolve) => setTimeout(resolve, GONE_PAUSE_MS));
  }
}
