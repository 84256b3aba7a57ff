// The pages of Model resources: the list, and one resource with its container, its environment and what uses it.

import { ApiError, call, messageOf, numbers } from "./aws.js";
import { copyButton } from "./clipboard.js";
import { Dialog } from "./dialog.js";
import { modelOf } from "./deployment.js";
import { $, element } from "./dom.js";
import { ago, numbered } from "./format.js";
import { Poll } from "./poll.js";
import { snippet, urlOption } from "./snippets.js";
import { keepUnlessChanged, table, terms } from "./tables.js";

const PAGE_SIZE = 25;
const PAUSE_MS = 5000;
const HEADS = ["Model", "Files", "Used by", "Created"];
const SECRET_NAME = /(^|_)(API)?(TOKEN|KEY|HEADERS)(_|$)|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE/i; // MAX_TOTAL_TOKENS is none
const SECRET_VALUE = /^(hf_|sk-|ghp_)|:\/\/[^/\s:@]*:[^/\s@]+@/; // tokens by their prefix, and URLs with a password
const NONE = { endpoints: [], components: [], configs: [] };

export class Models {
  /** `deploy(name)` opens the form with a resource. */
  constructor(deploy) {
    this.name = this.found = null;
    this.tokens = [undefined]; // of the pages up to the current one
    this.described = new Map(); // name and ARN → description: a resource never changes
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    this.deletion = new Dialog("model-delete", () => this.remove());
    $("model-deploy").addEventListener("click", () => deploy(this.name));
    $("model-delete").addEventListener("click", () => this.askToDelete());
    $("models-previous").addEventListener("click", () => (this.tokens.pop(), this.poll.again()));
    $("models-next").addEventListener("click", () => (this.tokens.push(this.nextToken), this.poll.again()));
    const create = `headrace deploy smollm2${urlOption()}  # creates a Model resource, a configuration and an endpoint`;
    $("models-none").append(element("p", { textContent: "There is no Model resource yet. Deploy a model above, or in a shell:" }), snippet("Command line", create));
  }

  /** Show the list, or one resource by its name. */
  open(name) {
    if (name !== this.name) {
      Object.assign(this, { name, found: null });
      for (const id of ["model-facts", "model-environment", "models-list"]) $(id).replaceChildren();
      this.tell("");
      $("model-title").textContent = name;
      $("model-uses").textContent = "";
      for (const id of ["model-deploy", "model-delete"]) $(id).disabled = true;
    }
    $("models").hidden = name !== "";
    $("model-page").hidden = name === "";
    this.poll.start();
  }

  close() {
    this.name = null;
    this.poll.stop();
    for (const id of ["models", "model-page"]) $(id).hidden = true;
  }

  async refresh(signal) {
    if (this.name) return this.refreshOne(signal);
    const asked = { MaxResults: PAGE_SIZE, SortBy: "CreationTime", SortOrder: "Descending", ...(this.tokens.at(-1) && { NextToken: this.tokens.at(-1) }) };
    const [{ Models: models, NextToken: next }, uses] = await Promise.all([call("SageMaker.ListModels", asked, signal), numbers("uses", signal)]);
    if (!models.length && this.tokens.length > 1) return ((this.tokens = [undefined]), this.refresh(signal)); // they were deleted
    const described = await Promise.all(models.map((model) => this.describe(model, signal)));
    this.nextToken = next;
    const rows = described.filter(Boolean).map((model) => rowOf(model, uses[model.ModelName] ?? NONE));
    keepUnlessChanged($("models-list"), rows.length ? table(HEADS, rows) : element("div"));
    $("models-none").hidden = rows.length > 0;
    $("models-pager").hidden = this.tokens.length === 1 && !next;
    $("models-previous").disabled = this.tokens.length === 1;
    $("models-next").disabled = !next;
    $("models-note").textContent = "";
  }

  /** The description of a listed resource; null if it was deleted meanwhile. */
  async describe({ ModelName, CreationTime }, signal) {
    const key = `${ModelName} ${CreationTime}`;
    try {
      if (!this.described.has(key)) this.described.set(key, await call("SageMaker.DescribeModel", { ModelName }, signal));
      return this.described.get(key);
    } catch (error) {
      if (error instanceof ApiError && error.isMissing) return null;
      throw error;
    }
  }

  async refreshOne(signal) {
    const [model, uses] = await Promise.all([call("SageMaker.DescribeModel", { ModelName: this.name }, signal), numbers("uses", signal)]);
    this.found = { model, uses: uses[this.name] ?? NONE };
    const { endpoints, components } = this.found.uses;
    const isUsed = endpoints.length + components.length > 0;
    $("model-deploy").disabled = false;
    $("model-delete").disabled = isUsed;
    const text = isUsed ? ["Used by ", ...linksOf(this.found.uses), ". Delete what uses it before the resource."] : ["No endpoint uses it."];
    keepUnlessChanged($("model-uses"), element("span", {}, ...text));
    keepUnlessChanged($("model-facts"), element("div", { className: "contents" }, ...factsOf(model)));
    keepUnlessChanged($("model-environment"), environmentOf(containerOf(model)));
    this.tell("");
  }

  failed(error) {
    if (!error) return;
    if (!this.name) return void ($("models-note").textContent = messageOf(error));
    for (const id of ["model-deploy", "model-delete"]) $(id).disabled = true;
    this.tell(messageOf(error));
  }

  tell(problem) {
    $("model-error").hidden = !problem;
    $("model-error").textContent = problem;
  }

  askToDelete() {
    const { configs } = this.found.uses;
    $("model-delete-name").textContent = this.name;
    $("model-delete-configs").textContent = configs.length
      ? `${numbered(configs.length, "endpoint configuration names", "endpoint configurations name")} it (${configs.join(", ")}) and can create no endpoint without it.`
      : "";
    this.deletion.open();
  }

  async remove() {
    await call("SageMaker.DeleteModel", { ModelName: this.name });
    location.hash = "#models";
  }
}

const containerOf = ({ PrimaryContainer: container, Containers: all }) => container ?? all?.[0] ?? {};

function rowOf(model, uses) {
  const link = element("a", { href: `#models/${encodeURIComponent(model.ModelName)}`, textContent: model.ModelName });
  const users = linksOf(uses);
  return [link, modelOf(containerOf(model)).model || "in the image", users.length ? element("span", {}, ...users) : "–", ago(model.CreationTime)];
}

/** Links to the endpoints of a model, and the names of its components, separated by commas. */
function linksOf({ endpoints, components }) {
  const links = endpoints.map((name) => element("a", { href: `#/${encodeURIComponent(name)}`, textContent: name }));
  const all = [...links, ...components.map((name) => `component ${name}`)];
  return all.flatMap((part, place) => (place ? [", ", part] : [part]));
}

function factsOf(model) {
  const container = containerOf(model);
  const copyable = (text, what) => element("span", {}, element("code", { textContent: text }), " ", copyButton(text, what));
  const source = modelOf(container).model;
  const rows = [
    ["ARN", copyable(model.ModelArn, "ARN")],
    ["Image", container.Image ? copyable(container.Image, "image") : "–"],
    [container.ModelDataUrl || container.ModelDataSource ? "Data URL" : "Model", source ? copyable(source, "location of the model") : "in the image"],
    ...(container.AdditionalModelDataSources ?? []).map((more) => [`Files of ${more.ChannelName}`, more.S3DataSource.S3Uri]),
    ["Network isolation", model.EnableNetworkIsolation ? "on" : "off"],
    ["Created", ago(model.CreationTime)],
  ];
  return terms(rows);
}

/** The variables of a container; values that may be secrets stay hidden. */
function environmentOf({ Environment: environment = {} }) {
  const rows = Object.entries(environment).map(([name, value]) => [element("code", { textContent: name }), isSecret(name, value) ? hidden() : element("code", { textContent: value })]);
  const title = element("h2", { textContent: "Environment" });
  if (!rows.length) return element("div", {}, title, element("p", { className: "note", textContent: "The container has no environment variables." }));
  return element("div", {}, title, element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Environment" }, table(["Variable", "Value"], rows)));
}

/** Whether a variable looks like a secret, by its name or its value. */
export const isSecret = (name, value) => SECRET_NAME.test(name) || SECRET_VALUE.test(value);

const hidden = () => element("span", { className: "note", textContent: "hidden (DescribeModel returns it)" });
