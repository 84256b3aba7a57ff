// An endpoint: its state and reason, variants and facts, refreshed regularly; and its tabs.

import { ApiError, call, callUnlessMissing, numbers } from "./aws.js";
import { Components } from "./components.js";
import { Dialog } from "./dialog.js";
import { $, element } from "./dom.js";
import { ago, showState } from "./format.js";
import { Logs } from "./logs.js";
import { Playground } from "./playground.js";
import { Poll } from "./poll.js";
import { Scaling } from "./scaling.js";
import { Traffic } from "./traffic.js";

const PAUSE_MS = 1500;
const TABS = ["overview", "scaling", "playground", "logs"];
const MADE_HERE = "headrace:made-by"; // the tag of resources that `headrace deploy` and this page created

export class Detail {
  /** `changed()` is called after actions that the list should show, `hosted(hosts)` with the hosts for components. */
  constructor(changed, hosted) {
    this.name = null;
    this.hosted = hosted;
    this.changed = changed;
    this.traffic = new Traffic();
    this.playground = new Playground();
    this.logs = new Logs();
    this.scaling = new Scaling();
    this.components = new Components(() => this.poll.again());
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    this.deleting = new Dialog("delete", () => this.remove());
    $("delete").addEventListener("click", () => this.askToDelete());
    document.querySelector("[role=tablist]").addEventListener("keydown", (event) => this.onTabKey(event));
  }

  /** Show a tab of an endpoint; `parts` select a part of it, such as a component by name. */
  open(name, tab, parts = []) {
    $("nothing").hidden = true;
    $("endpoint").hidden = false;
    if (this.name !== name) {
      this.name = name;
      this.found = this.config = null;
      $("name").textContent = name;
      $("state").textContent = "";
      $("state").className = "state";
      for (const id of ["variants", "facts"]) $(id).replaceChildren();
      this.components.show(name, { components: [], hosts: [] });
      showExample(name);
      this.tell("");
    }
    this.showTab(TABS.includes(tab) ? tab : TABS[0], parts);
    this.poll.start();
  }

  close() {
    this.name = null;
    this.poll.stop();
    this.traffic.close();
    this.logs.close();
    this.scaling.close();
    $("endpoint").hidden = true;
    $("nothing").hidden = false;
  }

  showTab(tab, parts) {
    for (const id of TABS) {
      const head = $(`tab-${id}`);
      head.href = `#/${encodeURIComponent(this.name)}/${id}`;
      head.setAttribute("aria-selected", id === tab);
      head.tabIndex = id === tab ? 0 : -1;
      $(id).hidden = id !== tab;
    }
    this.playground.open(this.name, tab === "playground" ? parts[0] : undefined);
    for (const [part, its] of [[this.traffic, "overview"], [this.scaling, "scaling"], [this.logs, "logs"]]) {
      if (its === tab) part.open(this.name, ...parts);
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
  }

  /** Instance types, which only the configuration has. It may be deleted while its endpoint exists. */
  async readConfig(EndpointConfigName, signal) {
    const config = await callUnlessMissing("SageMaker.DescribeEndpointConfig", { EndpointConfigName }, signal);
    const types = (config?.ProductionVariants ?? []).map((variant) => [variant.VariantName, variant.InstanceType]);
    this.config = { EndpointConfigName, types: new Map(types) };
  }

  failed(error) {
    if (!error) return;
    if (error instanceof ApiError && error.isMissing) {
      showState($("state"), this.found ? "Deleted" : "Not found");
      this.tell(this.found ? "" : error.message);
      $("delete").disabled = true;
      this.tellParts([], { components: [], hosts: [], now_s: Date.now() / 1000 }); // its logs may still exist
    } else this.tell(error.message);
  }

  tell(reason) {
    $("reason").hidden = !reason;
    $("reason").textContent = reason;
  }

  show(found, placed) {
    this.found = found;
    if ($("state").textContent !== found.EndpointStatus) showState($("state"), found.EndpointStatus);
    $("delete").disabled = found.EndpointStatus === "Deleting";
    this.tell(found.FailureReason ?? "");
    this.tellParts(found.ProductionVariants ?? [], placed);
    replaceIfChanged($("variants"), [variantTable(found, this.config.types)]);
    replaceIfChanged($("facts"), facts(found));
  }

  /** Tell the components and hosts to every part of the page that offers a choice. */
  tellParts(variants, placed) {
    const components = placed.components.map((component) => component.name);
    const hosts = placed.hosts.map((host) => host.variant);
    const own = variants.map((variant) => variant.VariantName).filter((variant) => !hosts.includes(variant));
    this.components.show(this.name, placed);
    this.hosted(placed.hosts);
    for (const part of [this.playground, this.logs]) part.know(this.name, components, hosts.length > 0);
    this.scaling.know(this.name, { variants: own, hosts, components, nowS: placed.now_s });
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

async function isMadeHere(arn) {
  const answer = await callUnlessMissing("SageMaker.ListTags", { ResourceArn: arn });
  return (answer?.Tags ?? []).some((tag) => tag.Key === MADE_HERE);
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
    (variant.VariantStatus ?? []).map(({ Status: status, StatusMessage: why }) => (why ? `${status}: ${why}` : status)).join(" ") || "–",
  ];
  const row = (variant) => element("tr", {}, ...cells(variant).map((textContent) => element("td", { textContent })));
  const head = element("tr", {}, ...heads.map((textContent) => element("th", { textContent, scope: "col" })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...variants.map(row)));
}

/** Whether a variant hosts inference components and has no workers of its own. */
function isHost(variant) {
  return !variant.DeployedImages && !variant.CurrentServerlessConfig;
}

function facts(found) {
  const pending = found.PendingDeploymentSummary;
  const rows = [
    ["ARN", element("code", { textContent: found.EndpointArn })],
    ["Configuration", found.EndpointConfigName ?? "–"],
    ...(pending ? [["Changes to", pending.EndpointConfigName]] : []),
    ["Created", ago(found.CreationTime)],
    ["Changed", ago(found.LastModifiedTime)],
  ];
  return rows.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", {}, value)]);
}

/** Example code that invokes the endpoint, or its component if there is one. */
function showExample(name, component) {
  const text = `curl ${location.origin}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "${component ?? name}", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'

boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName="${name}", ${component ? `InferenceComponentName="${component}", ` : ""}ContentType="application/json",
    Body='{"inputs": "Hello", "stream": true}')   # in a shell that ran: eval "$(headrace env)"`;
  if ($("example").textContent !== text) $("example").textContent = text;
}
