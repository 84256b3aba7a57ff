// An endpoint: its state and reason, variants and facts, refreshed regularly; and its tabs.

import { ApiError, call, callUnlessMissing, messageOf, numbers } from "./aws.js";
import { Components } from "./components.js";
import { copyButton } from "./clipboard.js";
import { isMadeHere } from "./deployment.js";
import { Dialog } from "./dialog.js";
import { $, element } from "./dom.js";
import { Events } from "./worker_events.js";
import { Failure, showReason } from "./failure.js";
import { ago, countsOf, notesOf, showState, stateLines, troubleOf } from "./format.js";
import { Logs } from "./logs.js";
import { Playground } from "./playground.js";
import { Poll } from "./poll.js";
import { Progress } from "./progress.js";
import { Scaling } from "./scaling.js";
import { Serving } from "./serving.js";
import { snippets } from "./snippets.js";
import { table, terms } from "./tables.js";
import { Traffic } from "./traffic.js";

const PAUSE_MS = 1500;
const NOTHING = { components: [], hosts: [], workers: [], trouble: "" };
const TABS = ["overview", "scaling", "playground", "logs"];

export class Detail {
  /**
   * `changed()` is called after actions that the list should show, `hosted(hosts)` with the hosts for components, `retry(name)`
   * and `retryComponent(name)` to deploy again what failed.
   */
  constructor({ changed, hosted, retry, retryComponent }) {
    this.name = this.found = null;
    this.hosted = hosted;
    this.changed = changed;
    this.failure = new Failure(retry);
    this.progress = new Progress();
    this.events = new Events();
    this.traffic = new Traffic((isQuiet) => placeCalls(isQuiet));
    this.serving = new Serving();
    this.playground = new Playground();
    this.logs = new Logs();
    this.scaling = new Scaling();
    this.components = new Components({ changed: () => this.poll.again(), retry: retryComponent });
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    this.deleting = new Dialog("delete", () => this.remove());
    $("delete").addEventListener("click", () => this.askToDelete());
    document.querySelector("[role=tablist]").addEventListener("keydown", (event) => this.onTabKey(event));
  }

  /** Show a tab of an endpoint; `parts` select a part of it, such as a component by name. */
  open(name, tab, parts = []) {
    $("endpoint").hidden = false;
    if (this.name !== name) {
      this.name = name;
      this.found = this.config = null;
      $("name").textContent = name;
      $("state").textContent = "";
      $("state").className = "state";
      for (const id of ["condition", "variants", "facts"]) $(id).replaceChildren();
      $("copy-name").replaceChildren(copyButton(name, "name of the endpoint"));
      this.failure.hide();
      this.progress.hide();
      this.events.show(name, []);
      this.components.show(name, NOTHING);
      showExample(name);
      this.tell("");
    }
    this.showTab(TABS.includes(tab) ? tab : TABS[0], parts);
    this.poll.start();
  }

  close() {
    this.name = null;
    this.poll.stop();
    for (const part of [this.traffic, this.serving, this.logs, this.scaling]) part.close();
    $("endpoint").hidden = true;
  }

  showTab(tab, parts) {
    for (const id of TABS) {
      const head = $(`tab-${id}`);
      head.href = `#/${encodeURIComponent(this.name)}/${id}`;
      head.setAttribute("aria-selected", id === tab);
      head.tabIndex = id === tab ? 0 : -1;
      $(id).hidden = id !== tab;
    }
    this.tab = tab;
    this.playground.open(this.name, tab === "playground" ? parts[0] : undefined);
    if (tab === "playground") this.playground.learn();
    for (const [part, its] of [[this.scaling, "scaling"], [this.logs, "logs"]]) {
      if (its === tab) part.open(this.name, ...parts);
      else part.close();
    }
    this.showTraffic();
  }

  /** Show traffic once the endpoint answers requests, and example calls unless it has failed. */
  showTraffic() {
    const status = this.found?.EndpointStatus;
    const hasTraffic = status !== undefined && status !== "Failed" && status !== "Creating";
    $("traffic").hidden = !hasTraffic;
    $("call").hidden = status === undefined || status === "Failed";
    for (const part of [this.traffic, this.serving]) {
      if (this.tab === "overview" && hasTraffic) part.open(this.name);
      else part.close();
    }
  }

  onTabKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const now = TABS.findIndex((tab) => $(`tab-${tab}`) === document.activeElement);
    const next = $(`tab-${TABS[(now + step + TABS.length) % TABS.length]}`);
    next.focus();
    next.click();
  }

  async refresh(signal) {
    const [found, placed] = await Promise.all([
      call("SageMaker.DescribeEndpoint", { EndpointName: this.name }, signal),
      numbers(`components?${new URLSearchParams({ endpoint: this.name })}`, signal),
    ]);
    if (this.config?.EndpointConfigName !== found.EndpointConfigName) await this.readConfig(found.EndpointConfigName, signal);
    this.show(found, placed);
    await Promise.all([this.failure.show(found, signal), this.progress.show(found, placed, signal)]);
  }

  /** Instance types and models, which only the configuration has. It may be deleted while its endpoint exists. */
  async readConfig(EndpointConfigName, signal) {
    const config = await callUnlessMissing("SageMaker.DescribeEndpointConfig", { EndpointConfigName }, signal);
    const variants = config?.ProductionVariants ?? [];
    const types = variants.map((variant) => [variant.VariantName, variant.InstanceType]);
    const models = new Set(variants.map((variant) => variant.ModelName).filter(Boolean));
    this.config = { EndpointConfigName, types: new Map(types), models: [...models] };
  }

  failed(error) {
    if (!error) return;
    if (error instanceof ApiError && error.isMissing) {
      showState($("state"), this.found ? "Deleted" : "Not found");
      this.tell(this.found ? "" : error.message);
      $("delete").disabled = true;
      for (const part of [this.failure, this.progress]) part.hide();
      this.tellParts([], { ...NOTHING, now_s: Date.now() / 1000 }); // its logs may still exist
    } else this.tell(messageOf(error));
  }

  tell(reason, options) {
    $("reason").hidden = !reason;
    showReason($("reason"), reason, options);
  }

  show(found, placed) {
    const isOther = this.found?.EndpointStatus !== found.EndpointStatus;
    this.found = found;
    if (isOther) this.showTraffic();
    const numbers = { ...countsOf(found.ProductionVariants ?? []), trouble: placed.trouble };
    showState($("state"), found.EndpointStatus, numbers);
    $("condition").textContent = troubleOf(numbers) ? "" : $("state").title; // the trouble stands above
    $("delete").disabled = found.EndpointStatus === "Deleting";
    this.events.show(this.name, placed.workers);
    this.tell(found.FailureReason ?? (found.EndpointStatus === "InService" ? troubleOf(numbers) : ""), { isLogShown: found.EndpointStatus === "Failed" || !found.FailureReason });
    this.tellParts(found.ProductionVariants ?? [], placed);
    replaceIfChanged($("variants"), [variantTable(found, this.config.types)]);
    replaceIfChanged($("facts"), facts(found, this.config.models));
  }

  /** Tell the components and hosts to every part of the page that offers a choice. */
  tellParts(variants, placed) {
    const components = placed.components.map((component) => component.name);
    const hosts = placed.hosts.map((host) => host.variant);
    const own = variants.map((variant) => variant.VariantName).filter((variant) => !hosts.includes(variant));
    this.components.show(this.name, placed);
    this.hosted(placed.hosts);
    for (const part of [this.playground, this.logs]) part.know(this.name, components, hosts.length > 0);
    const desired = new Map(variants.map((variant) => [`~${variant.VariantName}`, variant.DesiredInstanceCount]));
    for (const component of placed.components) desired.set(component.name, component.desired);
    this.scaling.know(this.name, { variants: own, hosts, components, desired, workers: placed.workers, nowS: placed.now_s });
    this.serving.know(this.name, { variants: own, components, nowS: placed.now_s });
    showExample(this.name, components[0]);
  }

  // ---- deleting

  async askToDelete() {
    const found = this.found;
    if (!found) return;
    $("delete-name").textContent = this.name;
    $("delete-what").textContent = `Its configuration ${found.EndpointConfigName} and its models too`;
    $("delete-all").checked = false;
    this.deleting.open();
    const config = await callUnlessMissing("SageMaker.DescribeEndpointConfig", { EndpointConfigName: found.EndpointConfigName });
    $("delete-all").disabled = config === null;
    if (config !== null) $("delete-all").checked = await isMadeHere(config.EndpointConfigArn);
  }

  async remove() {
    const { EndpointName, EndpointConfigName } = this.found;
    const config = $("delete-all").checked
      ? await callUnlessMissing("SageMaker.DescribeEndpointConfig", { EndpointConfigName })
      : null;
    await callUnlessMissing("SageMaker.DeleteEndpoint", { EndpointName });
    if (config !== null) {
      await callUnlessMissing("SageMaker.DeleteEndpointConfig", { EndpointConfigName });
      const models = new Set(config.ProductionVariants.map((variant) => variant.ModelName).filter(Boolean));
      for (const ModelName of models) await callUnlessMissing("SageMaker.DeleteModel", { ModelName });
    }
    this.poll.again();
    this.changed();
  }
}

/** Put the example calls above the charts while these are empty; not while the focus is in them, which would be lost. */
function placeCalls(isQuiet) {
  const calls = $("call");
  const isFirst = calls.nextElementSibling === $("traffic");
  if (isFirst === isQuiet || calls.contains(document.activeElement)) return;
  if (isQuiet) $("traffic").before(calls);
  else $("traffic").after(calls);
}

/** Keep the nodes while their text is the same, so that a selection stays. */
function replaceIfChanged(host, nodes) {
  const draft = element("div", {}, ...nodes);
  if (draft.innerHTML !== host.innerHTML) host.replaceChildren(...draft.childNodes);
}

function variantTable(found, types) {
  const heads = ["Variant", "Workers", "Traffic", "Instance type", "Image", "State"];
  const variants = found.ProductionVariants ?? [];
  const all = variants.reduce((sum, variant) => sum + (variant.CurrentWeight ?? 0), 0);
  const cells = (variant) => [
    variant.VariantName,
    `${variant.CurrentInstanceCount ?? 0} of ${variant.DesiredInstanceCount ?? variant.CurrentInstanceCount ?? 0}${isHost(variant) ? " instances" : ""}`,
    all > 0 ? `${Math.round((100 * (variant.CurrentWeight ?? 0)) / all)} %` : "–",
    types.get(variant.VariantName) ?? variant.InstancePools?.[0]?.InstanceType ?? "–",
    (variant.DeployedImages ?? []).map((image) => image.SpecifiedImage).join(", ") || "–",
    stateOf(variant, found.EndpointStatus),
  ];
  return table(heads, variants.map(cells));
}

/** A variant in service has the status ActivatingTraffic only to carry a message. */
function stateOf(variant, endpointStatus) {
  const states = (variant.VariantStatus ?? []).map((status) => {
    const isCarrier = endpointStatus === "InService" && status.Status === "ActivatingTraffic";
    const lines = stateLines([{ VariantStatus: [status] }]);
    return [isCarrier ? "" : status.Status, lines.join(" ")].filter(Boolean).join(": ");
  });
  const isAtZero = variant.DesiredInstanceCount === 0 && !variant.CurrentInstanceCount;
  return states.filter(Boolean).join(" ") || (isAtZero ? "Scaled to zero" : "–");
}

/** Whether a variant hosts inference components and has no workers of its own. */
function isHost(variant) {
  return !variant.DeployedImages && !variant.CurrentServerlessConfig;
}

function copyable(text, what) {
  return element("span", {}, element("code", { textContent: text }), " ", copyButton(text, what));
}

function facts(found, models) {
  const pending = found.PendingDeploymentSummary;
  const rows = [
    ["ARN", copyable(found.EndpointArn, "ARN")],
    ["OpenAI", copyable(`${location.origin}/v1`, "address for OpenAI clients")],
    ["Invocations", copyable(`${location.origin}/endpoints/${encodeURIComponent(found.EndpointName)}/invocations`, "address of invocations")],
    ...models.map((name) => ["Model resource", element("a", { href: `#models/${encodeURIComponent(name)}`, textContent: name })]),
    ["Configuration", found.EndpointConfigName ?? "–"],
    ...(pending ? [["Changes to", pending.EndpointConfigName]] : []),
    ...notesOf(found.ProductionVariants ?? []).map((note) => ["Note", note]),
    ["Created", ago(found.CreationTime)],
    ["Changed", ago(found.LastModifiedTime)],
  ];
  return terms(rows);
}

/** Example code that invokes the endpoint, or its component if there is one. */
function showExample(name, component) {
  const said = `${name}/${component ?? ""}`;
  if ($("example").dataset.of === said) return;
  $("example").dataset.of = said;
  $("example").replaceChildren(...snippets(name, component));
}
