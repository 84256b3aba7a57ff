// The dialog that deploys a model: on a new endpoint, as a component of one, or in place of what failed.

import { Dialog } from "./dialog.js";
import {
  componentCall,
  configCall,
  createAll,
  editedContainer,
  endpointCall,
  modelCall,
  modelOf,
  nameFor,
  revisionOf,
  sourceOf,
} from "./deployment.js";
import { $, element } from "./dom.js";
import { FieldError, checkFields, showProblem } from "./fields.js";
import { ModelChoices } from "./model_choices.js";
import { readComponent, readEndpoint, replaceComponent, replaceEndpoint } from "./replacement.js";

const INSTANCE_TYPE = "ml.c6i.xlarge";
const PART_FIELDS = ["model", "environment", "image", "instances", "instance-type"]; // the values of one variant

export class Deployment {
  /** `made(name)` is called with the endpoint once the creation was accepted. */
  constructor(made) {
    this.made = made;
    this.host = this.old = this.resource = null; // `resource`: the chosen Model resource
    this.isNameOwn = false; // the user has typed a name
    this.dialog = new Dialog("deploy", () => this.create().catch((error) => Promise.reject(besideField(error))));
    this.choices = new ModelChoices((choice) => this.choose(choice));
    $("deploy").addEventListener("click", () => this.open());
    $("add-component").addEventListener("click", () => this.open($("name").textContent));
    $("model").addEventListener("input", () => this.choose({ value: $("model").value }));
    $("endpoint-name").addEventListener("input", () => (this.isNameOwn = $("endpoint-name").value !== ""));
    $("imitated").addEventListener("change", () => this.showImage($("imitated").value));
    $("part").addEventListener("change", () => this.switchPart());
    this.showImage($("imitated").value);
  }

  /** Open the dialog for a new endpoint, or for a component on the endpoint `host`. */
  open(host = null) {
    if (this.old !== null) this.forget();
    this.host = host;
    this.showNew();
    this.begin({ title: host === null ? "Deploy a model" : `Deploy a model on ${host}`, isComponent: host !== null });
    this.choices.read().then(() => this.markChoice()).catch(() => {}); // without the list the field alone remains
  }

  /** Open the dialog with a Model resource. */
  openResource(name) {
    this.open();
    this.choose({ resource: name });
  }

  /** Take a model or a Model resource, which brings its own container. */
  choose({ value, resource = null }) {
    this.resource = resource;
    if (resource ?? value !== $("model").value) $("model").value = resource ?? value;
    showProblem($("model"), "");
    if (this.old !== null) return;
    this.suggestName();
    this.showNew();
    this.markChoice();
  }

  markChoice() {
    this.choices.mark($("model").value.trim(), this.resource === null ? "model" : "resource");
  }

  /** Show the fields of a new endpoint or component. */
  showNew() {
    const own = this.host === null ? ["count", "type"] : ["count", "host", "component"];
    showGroups(["source", ...own, ...(this.resource === null ? ["container"] : [])]);
  }

  begin({ title, isComponent, isRetry = false }) {
    $("deploy-title").textContent = title;
    $("endpoint-name-label").textContent = isComponent ? "Component name" : "Endpoint name";
    $("instances-label").textContent = isComponent ? "Copies" : "Instances";
    $("endpoint-name").readOnly = isRetry;
    $("deploy-submit").textContent = isRetry ? (isComponent ? "Update and retry" : "Replace and retry") : "Deploy";
    this.dialog.open();
    if ($("model").disabled) return;
    $("model").focus();
    $("model").select();
  }

  /** Open the dialog with what an endpoint was deployed with; submitting replaces the endpoint. */
  async retry(name) {
    const old = await readEndpoint(name);
    this.startRetry(old, old.parts.map(draftOf));
    $("part").replaceChildren(...old.parts.map(({ variant }, value) => element("option", { value, textContent: variant.VariantName })));
    this.showPart(0);
    this.begin({ title: `Retry ${name}`, isComponent: false, isRetry: true });
  }

  /** Open the dialog with the specification of a component; submitting updates the component. */
  async retryComponent(name) {
    const old = await readComponent(name);
    const need = old.others.ComputeResourceRequirements ?? {};
    this.startRetry(old, [{ ...draftOf(old.parts[0]), instances: old.parts[0].copies, "instance-type": "" }]);
    $("need-cpus").value = need.NumberOfCpuCoresRequired ?? "";
    $("need-cpus").required = need.NumberOfCpuCoresRequired !== undefined;
    $("need-accelerators").value = need.NumberOfAcceleratorDevicesRequired ?? 0;
    $("need-memory").value = need.MinMemoryRequiredInMb ?? "";
    this.showPart(0);
    this.begin({ title: `Retry ${name}`, isComponent: true, isRetry: true });
  }

  startRetry(old, drafts) {
    Object.assign(this, { old, drafts, host: null });
    $("endpoint-name").value = old.name;
  }

  /** Show the values of another variant; those on the page are kept, and must be valid. */
  switchPart() {
    if (!checkFields($("deploy-form"))) return void ($("part").value = this.place);
    this.keepPart();
    this.showPart(Number($("part").value));
  }

  keepPart() {
    this.drafts[this.place] = Object.fromEntries(PART_FIELDS.map((id) => [id, $(id).value]));
  }

  showPart(place) {
    this.place = place;
    const { variant, container } = this.old.parts[place];
    const groups = this.old.kind === "component" ? ["count", "component"] : variant.InstanceType ? ["count", "type"] : [];
    showGroups([...groups, ...(container ? ["source", "container"] : []), ...(this.old.parts.length > 1 ? ["parts"] : [])]);
    const draft = this.drafts[place];
    for (const id of PART_FIELDS) $(id).value = draft[id];
    $("model").required = this.isModelNeeded(place);
    $("model-choices").hidden = true;
    $("advanced").open = true;
    $("imitated").value = [...$("imitated").options].some((option) => option.value === draft.image) ? draft.image : "";
    this.showImage(draft.image);
  }

  /** Whether the container was deployed with a model; that of an own image may bring its own. */
  isModelNeeded(place) {
    return modelOf(this.old.parts[place].container ?? {}).model !== "";
  }

  /** Empty the form after a retry: its values belong to something else. */
  forget() {
    $("deploy-form").reset();
    this.old = this.resource = null;
    $("advanced").open = false;
    this.isNameOwn = false;
    for (const id of ["model", "need-cpus"]) $(id).required = true;
    this.showImage($("imitated").value);
  }

  /** Set the variants of the shown endpoint that host components. */
  knowHosts(hosts) {
    const shown = [...$("host-variant").options].map((option) => option.value);
    const variants = hosts.map((host) => host.variant);
    if (shown.join() === variants.join()) return;
    $("host-variant").replaceChildren(...variants.map((value) => element("option", { value, textContent: value })));
  }

  suggestName() {
    if (!this.isNameOwn && this.old === null) $("endpoint-name").value = nameFor($("model").value);
  }

  showImage(image) {
    const isListed = $("imitated").value !== "";
    $("image").readOnly = isListed;
    $("image").value = image;
    if (!isListed && this.dialog.isOpen && this.old === null) $("image").focus();
  }

  /** Deploy a model with the values that the form has at first, without the form. Its model may be left of an earlier endpoint. */
  async deployDefault(model) {
    const container = { Image: $("imitated").options[0].value, ...sourceOf(model, {}) };
    const variant = { InitialInstanceCount: 1, InstanceType: INSTANCE_TYPE };
    const createAs = async (name) => createAll([await modelCall(name, container), configCall(name, variant), endpointCall(model, name)]);
    try {
      await createAs(model);
    } catch (error) {
      if (!error.message.includes("already existing")) throw error;
      await createAs(revisionOf(model));
    }
  }

  async create() {
    if (this.old !== null) return this.replace();
    const name = $("endpoint-name").value.trim();
    const model = this.resource ?? name;
    const calls = this.resource === null ? [await modelCall(name, containerShown())] : [];
    if (this.host !== null) calls.push(this.component(name, model));
    else calls.push(configCall(name, { ModelName: model, ...instancesOf(valuesShown()) }), endpointCall(name));
    await createAll(calls);
    this.isNameOwn = false;
    this.made(this.host ?? name);
  }

  async replace() {
    this.keepPart();
    const { old, drafts } = this;
    const edits = old.parts.map((part, place) => editOf(part, drafts[place]));
    if (old.kind === "endpoint") await replaceEndpoint(old, edits);
    else {
      const { NumberOfAcceleratorDevicesRequired: _old, ...kept } = old.others.ComputeResourceRequirements ?? {};
      await replaceComponent(old, { container: edits[0].container, need: { ...kept, ...needShown() }, copies: Number(drafts[0].instances) });
    }
    this.made(old.host ?? old.name);
  }

  component(name, model) {
    return componentCall(name, { host: this.host, model, variant: $("host-variant").value, need: needShown(), copies: Number($("instances").value) });
  }
}

/** Show these groups of fields only. */
function showGroups(groups) {
  for (const part of document.querySelectorAll("#deploy-form [data-for]")) {
    part.hidden = !groups.includes(part.dataset.for);
    for (const field of part.querySelectorAll("input, select, textarea")) field.disabled = part.hidden; // hidden fields must not be required
  }
  $("advanced").hidden = !["type", "container"].some((group) => groups.includes(group));
  const parts = [["type", "instance type"], ["container", "container, image, environment"]].filter(([group]) => groups.includes(group));
  $("advanced-what").textContent = `: ${parts.map(([, what]) => what).join(", ")}`;
}

/** An error of the API beside the field that it is about, if it is known. */
function besideField(error) {
  const known = [
    [/already existing (endpoint configuration|endpoint|model|inference component)\b/, "endpoint-name", (what) => `The name belongs to an existing ${what}. Choose another one${what === "model" ? ", or deploy the Model resource of this name" : ""}.`],
    [/instanceType/i, "instance-type", () => `The instance type is ${JSON.stringify($("instance-type").value)}; expected one of SageMaker's, such as ${INSTANCE_TYPE}.`],
  ];
  for (const [pattern, field, textOf] of known) {
    const found = pattern.exec(error.message);
    if (found && !$(field).disabled) return new FieldError(field, textOf(found[1]));
  }
  return error;
}

function containerShown() {
  return { Image: $("image").value.trim(), ...sourceOf($("model").value.trim(), environmentOf($("environment").value)) };
}

const valuesShown = () => Object.fromEntries(PART_FIELDS.map((id) => [id, $(id).value]));

/** The values of the form for a variant or component as it was deployed. */
function draftOf({ container, variant = {} }) {
  const { model, environment } = modelOf(container ?? {});
  return {
    model,
    environment: Object.entries(environment).map(([key, value]) => `${key}=${value}`).join("\n"),
    image: container?.Image ?? "",
    instances: variant.InitialInstanceCount ?? 1,
    "instance-type": variant.InstanceType ?? "",
  };
}

/** The container and the members of the variant that the form changes. */
function editOf({ container, variant = {} }, draft) {
  const fields = variant.InstanceType ? instancesOf(draft) : {};
  if (!container) return { container: null, fields };
  const edit = { image: draft.image.trim(), model: draft.model.trim(), environment: environmentOf(draft.environment) };
  return { container: editedContainer(container, edit), fields };
}

function instancesOf(values) {
  return { InitialInstanceCount: Number(values.instances), InstanceType: values["instance-type"].trim() };
}

function needShown() {
  const accelerators = Number($("need-accelerators").value);
  const cpus = $("need-cpus").value;
  return {
    ...(cpus && { NumberOfCpuCoresRequired: Number(cpus) }),
    MinMemoryRequiredInMb: Number($("need-memory").value),
    ...(accelerators > 0 && { NumberOfAcceleratorDevicesRequired: accelerators }),
  };
}

function environmentOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const pairs = lines.map((line) => {
    const at = line.indexOf("=");
    if (at < 1) throw new FieldError("environment", `The line is ${JSON.stringify(line)}; expected NAME=VALUE.`);
    return [line.slice(0, at).trim(), line.slice(at + 1)];
  });
  return Object.fromEntries(pairs);
}
