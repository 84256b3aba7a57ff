// A model, an endpoint configuration and an endpoint of one name, as `headrace deploy` and the SDKs make them.

import { accountNumber, call, callUnlessMissing } from "./aws.js";
import { Dialog } from "./dialog.js";
import { $ } from "./dom.js";

const TAGS = [{ Key: "headrace:made-by", Value: "console" }];
const MAX_NAME = 63;

export class Deployment {
  /** `made(name)` is called when the endpoint is being created. */
  constructor(made) {
    this.made = made;
    this.isNameOwn = false; // the user has written one
    this.dialog = new Dialog("deploy", () => this.create());
    $("deploy").addEventListener("click", () => this.open());
    $("model").addEventListener("input", () => this.suggestName());
    $("endpoint-name").addEventListener("input", () => (this.isNameOwn = $("endpoint-name").value !== ""));
    $("imitated").addEventListener("change", () => this.showImage());
    this.showImage();
  }

  open() {
    this.dialog.open();
    $("model").focus();
    $("model").select();
  }

  suggestName() {
    if (!this.isNameOwn) $("endpoint-name").value = nameFor($("model").value);
  }

  showImage() {
    const image = $("imitated").value;
    $("image").readOnly = image !== "";
    $("image").value = image;
    if (image === "") $("image").focus();
  }

  async create() {
    const name = $("endpoint-name").value.trim();
    const container = { Image: $("image").value.trim(), ...sourceOf($("model").value.trim(), environment()) };
    const ExecutionRoleArn = `arn:aws:iam::${await accountNumber()}:role/headrace`;
    const variant = {
      VariantName: "AllTraffic",
      ModelName: name,
      InitialInstanceCount: Number($("instances").value),
      InstanceType: $("instance-type").value.trim(),
      RoutingConfig: { RoutingStrategy: "LEAST_OUTSTANDING_REQUESTS" },
    };
    const done = [];
    try {
      await call("SageMaker.CreateModel", { ModelName: name, PrimaryContainer: container, ExecutionRoleArn, Tags: TAGS });
      done.unshift(["SageMaker.DeleteModel", { ModelName: name }]);
      await call("SageMaker.CreateEndpointConfig", { EndpointConfigName: name, ProductionVariants: [variant], Tags: TAGS });
      done.unshift(["SageMaker.DeleteEndpointConfig", { EndpointConfigName: name }]);
      await call("SageMaker.CreateEndpoint", { EndpointName: name, EndpointConfigName: name, Tags: TAGS });
    } catch (error) {
      for (const [target, parameters] of done) await callUnlessMissing(target, parameters).catch(() => {}); // the first error is the one to tell
      throw error;
    }
    this.isNameOwn = false;
    this.made(name);
  }
}

/** A name that AWS allows, made from the last part of the model's. */
export function nameFor(model) {
  const stem = model.trim().replace(/\/+$/, "").split("/").at(-1).replace(/\.(gguf|tar\.gz|tgz)$/, "");
  const clean = (text) => text.replace(/[^a-zA-Z0-9]+/g, "-").replace(/^-+|-+$/g, "");
  return clean(clean(stem).slice(0, MAX_NAME));
}

/** Where the container finds its model: an archive or a prefix in S3, else the model's name in HF_MODEL_ID. */
export function sourceOf(model, environment) {
  if (!model.startsWith("s3://")) return { Environment: { HF_MODEL_ID: model, ...environment } };
  if (/\.(tar\.gz|tgz)$/.test(model)) return { ModelDataUrl: model, Environment: environment };
  const S3Uri = `${model.replace(/\/+$/, "")}/`;
  return {
    ModelDataSource: { S3DataSource: { S3Uri, S3DataType: "S3Prefix", CompressionType: "None" } },
    Environment: environment,
  };
}

function environment() {
  const lines = $("environment").value.split("\n").map((line) => line.trim()).filter(Boolean);
  const pairs = lines.map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`The line ${JSON.stringify(line)} of the environment is not NAME=VALUE.`);
    return [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return Object.fromEntries(pairs);
}
