// The models to choose from in the form of a deployment: aliases, models on the machine, Model resources of the platform.

import { call, numbers } from "./aws.js";
import { $, element } from "./dom.js";
import { bytes } from "./format.js";

const MAX_RESOURCES = 25;
const SPARE_BYTES = 512 * 2 ** 20; // for the KV cache and the server itself
const ORIGINS = { alias: "from the package index", hub: "from the Hugging Face Hub", s3: "a copy from S3" };

export class ModelChoices {
  /** `chosen(choice)` is called with a choice: `{ value }`, a model for the field, or `{ resource }`, the name of a Model resource. */
  constructor(chosen) {
    this.chosen = chosen;
  }

  /** List what there is now; without an answer the field alone remains. */
  async read() {
    const newest = { SortBy: "CreationTime", SortOrder: "Descending", MaxResults: MAX_RESOURCES };
    const [stored, { Models: resources }] = await Promise.all([numbers("models"), call("SageMaker.ListModels", newest)]);
    this.show([...knownModels(stored), ...resources.map(({ ModelName: name }) => ({ resource: name, note: "Model resource of this platform" }))], stored.free_memory_bytes);
  }

  show(choices, freeBytes) {
    $("model-choices").replaceChildren(...choices.map((choice) => this.row(choice, freeBytes)));
    $("model-choices").hidden = !choices.length;
  }

  row(choice, freeBytes) {
    const radio = element("input", { type: "radio", name: "model-choice", value: choice.resource ?? choice.value });
    radio.dataset.kind = choice.resource ? "resource" : "model";
    radio.addEventListener("change", () => this.chosen(choice));
    const size = choice.bytes ? [element("span", { className: "size", textContent: bytes(choice.bytes) }), fitOf(choice.bytes, freeBytes)] : [];
    return element(
      "label",
      { className: "choice" },
      radio,
      element("strong", { textContent: choice.resource ?? choice.value }),
      ...size,
      element("span", { className: "note", textContent: choice.note }),
    );
  }

  /** Mark the choice with this value; none if the field has another one. */
  mark(value, kind) {
    for (const radio of $("model-choices").querySelectorAll("input")) {
      radio.checked = radio.value === value && radio.dataset.kind === kind;
    }
  }
}

/** Aliases first, with where their files are; then the other models on the disk. */
function knownModels({ models, aliases }) {
  const isStored = new Set(models.filter(({ kind }) => kind === "alias").map(({ name }) => name));
  const named = aliases.map(({ name, title, bytes: size }) => ({
    value: name,
    bytes: size,
    note: `${title}; ${isStored.has(name) ? "on this machine" : "downloaded at the first start"}`,
  }));
  const others = models.filter(({ name, kind }) => !(kind === "alias" && aliases.some((alias) => alias.name === name)));
  return [...named, ...others.map(({ name, kind, bytes: size }) => ({ value: name, bytes: size, note: `on this machine, ${ORIGINS[kind] ?? kind}` }))];
}

/** Whether files of this size fit into the free memory; nothing where the workers run on other machines. */
function fitOf(size, freeBytes) {
  if (freeBytes === null || freeBytes === undefined) return "";
  const fits = size + SPARE_BYTES <= freeBytes;
  return element("span", {
    className: `fit ${fits ? "good" : "tight"}`,
    textContent: fits ? "fits" : "may not fit",
    title: `${bytes(freeBytes)} of memory is free now. \`headrace fit\` computes what a model needs.`,
  });
}
