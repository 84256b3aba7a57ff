// Creates a model, an endpoint configuration and an endpoint of one name, as `headrace deploy` and the SDKs do; or a model
// and an inference component of one name on an existing endpoint.

import { accountNumber, call, callUnlessMissing } from "./aws.js";
import { Dialog } from "./dialog.js";
import { $, element } from "./dom.js";

const TAGS = [{ Key: "headrace:made-by", Value: "console" }];
const MAX_NAME = 63;

export class Deployment {
  /** `made(name)` is called once the creation was accepted. */
  constructor(made) {
    this.made = made;
    this.host = null;
    this.isNameOwn = false; // the user has typed a name
    this.dialog = new Dialog("deploy", () => this.create());
    $("deploy").addEventListener("click", () => this.open());
    $("add-component").addEventListener("click", () => this.open($("name").textContent));
    $("model").addEventListener("input", () => this.suggestName());
    $("endpoint-name").addEventListener("input", () => (this.isNameOwn = $("endpoint-name").value !== ""));
    $("imitated").addEventListener("change", () => this.showImage());
    this.showImage();
  }

  /** Open the dialog for a new endpoint, or for a component on the endpoint `host`. */
  open(host = null) {
    this.host = host;
    const isComponent = host !== null;
    for (const part of document.querySelectorAll("#deploy-form [data-for]")) {
      part.hidden = (part.dataset.for === "component") !== isComponent;
      for (const field of part.querySelectorAll("input, select")) field.disabled = part.hidden; // hidden fields must not be required
    }
    $("deploy-title").textContent = isComponent ? `A model on ${host}` : "Deploy a model";
    $("endpoint-name-label").textContent = isComponent ? "Component name" : "Endpoint name";
    $("instances-label").textContent = isComponent ? "Copies" : "Instances";
    this.dialog.open();
    $("model").focus();
    $("model").select();
  }

  /** Set the variants of the shown endpoint that host components. */
  knowHosts(hosts) {
    const shown = [...$("host-variant").options].map((option) => option.value);
    const variants = hosts.map((host) => host.variant);
    if (shown.join() === variants.join()) return;
    $("host-variant").replaceChildren(...variants.map((value) => element("option", { value, textContent: value })));
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
    const model = { ModelName: name, PrimaryContainer: container, ExecutionRoleArn, Tags: TAGS };
    const calls = [["Model", model], ...(this.host === null ? endpointOf(name) : componentOf(name, this.host))];
    const done = [];
    try {
      for (const [kind, parameters] of calls) {
        await call(`SageMaker.Create${kind}`, parameters);
        done.unshift([`SageMaker.Delete${kind}`, { [`${kind}Name`]: name }]);
      }
    } catch (error) {
      for (const [target, parameters] of done) await callUnlessMissing(target, parameters).catch(() => {}); // the first error is reported
      throw error;
    }
    this.isNameOwn = false;
    this.made(this.host ?? name);
  }
}

function endpointOf(name) {
  const variant = {
    VariantName: "AllTraffic",
    ModelName: name,
    InitialInstanceCount: Number($("instances").value),
    InstanceType: $("instance-type").value.trim(),
    RoutingConfig: { RoutingStrategy: "LEAST_OUTSTANDING_REQUESTS" },
  };
  return [
    ["EndpointConfig", { EndpointConfigName: name, ProductionVariants: [variant], Tags: TAGS }],
    ["Endpoint", { EndpointName: name, EndpointConfigName: name, Tags: TAGS }],
  ];
}

function componentOf(name, host) {
  const accelerators = Number($("need-accelerators").value);
  const need = {
    NumberOfCpuCoresRequired: Number($("need-cpus").value),
    MinMemoryRequiredInMb: Number($("need-memory").value),
    ...(accelerators > 0 && { NumberOfAcceleratorDevicesRequired: accelerators }),
  };
  const component = {
    InferenceComponentName: name,
    EndpointName: host,
    VariantName: $("host-variant").value,
    Specification: { ModelName: name, ComputeResourceRequirements: need },
    RuntimeConfig: { CopyCount: Number($("instances").value) },
    Tags: TAGS,
  };
  return [["InferenceComponent", component]];
}

/** A name that AWS allows, from the last part of the model's name. */
export function nameFor(model) {
  const stem = model.trim().replace(/\/+$/, "").split("/").at(-1).replace(/\.(gguf|tar\.gz|tgz)$/, "");
  const clean = (text) => text.replace(/[^a-zA-Z0-9]+/g, "-").replace(/^-+|-+$/g, "");
  return clean(clean(stem).slice(0, MAX_NAME));
}

/** Where the container finds its model: an archive or prefix in S3, otherwise the model's name in HF_MODEL_ID. */
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
