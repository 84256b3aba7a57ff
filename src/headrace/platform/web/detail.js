// One endpoint: its state and reason, variants and facts, kept fresh; and its tabs.

import { ApiError, call, callUnlessMissing } from "./aws.js";
import { Dialog } from "./dialog.js";
import { $, element } from "./dom.js";
import { ago, showState } from "./format.js";
import { Logs } from "./logs.js";
import { Playground } from "./playground.js";
import { Poll } from "./poll.js";
import { Traffic } from "./traffic.js";

const PAUSE_MS = 1500;
const TABS = ["overview", "playground", "logs"];
const MADE_HERE = "headrace:made-by"; // the tag of what `headrace deploy` and this page made

export class Detail {
  /** `changed()` is called when something was done that the list should show. */
  constructor(changed) {
    this.name = null;
    this.changed = changed;
    this.traffic = new Traffic();
    this.playground = new Playground();
    this.logs = new Logs();
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    this.deleting = new Dialog("delete", () => this.remove());
    $("delete").addEventListener("click", () => this.askToDelete());
    document.querySelector("[role=tablist]").addEventListener("keydown", (event) => this.onTabKey(event));
  }

  /** Show a tab of an endpoint. */
  open(name, tab) {
    $("nothing").hidden = true;
    $("endpoint").hidden = false;
    if (this.name !== name) {
      this.name = name;
      this.found = this.config = null;
      $("name").textContent = name;
      $("state").textContent = "";
      $("state").className = "state";
      for (const id of ["variants", "facts"]) $(id).replaceChildren();
      $("example").textContent = exampleFor(name);
      this.tell("");
    }
    this.showTab(TABS.includes(tab) ? tab : TABS[0]);
    this.poll.start();
  }

  close() {
    this.name = null;
    this.poll.stop();
    this.traffic.close();
    this.logs.close();
    $("endpoint").hidden = true;
    $("nothing").hidden = false;
  }

  showTab(tab) {
    for (const one of TABS) {
      const head = $(`tab-${one}`);
      head.href = `#/${encodeURIComponent(this.name)}/${one}`;
      head.setAttribute("aria-selected", one === tab);
      head.tabIndex = one === tab ? 0 : -1;
      $(one).hidden = one !== tab;
    }
    this.playground.open(this.name);
    for (const [part, its] of [[this.traffic, "overview"], [this.logs, "logs"]]) {
      if (its === tab) part.open(this.name);
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
    const found = await call("SageMaker.DescribeEndpoint", { EndpointName: this.name }, signal);
    if (this.config?.EndpointConfigName !== found.EndpointConfigName) await this.readConfig(found.EndpointConfigName, signal);
    this.show(found);
  }

  /** What only the configuration says: instance types. It may be deleted while its endpoint lives. */
  async readConfig(EndpointConfigName, signal) {
    const config = await callUnlessMissing("SageMaker.DescribeEndpointConfig", { EndpointConfigName }, signal);
    const types = (config?.ProductionVariants ?? []).map((one) => [one.VariantName, one.InstanceType]);
    this.config = { EndpointConfigName, types: new Map(types) };
  }

  failed(error) {
    if (!error) return;
    if (error instanceof ApiError && error.isMissing) {
      showState($("state"), this.found ? "Deleted" : "Not found");
      this.tell(this.found ? "" : error.message);
      $("delete").disabled = true;
    } else this.tell(error.message);
  }

  tell(reason) {
    $("reason").hidden = !reason;
    $("reason").textContent = reason;
  }

  show(found) {
    this.found = found;
    if ($("state").textContent !== found.EndpointStatus) showState($("state"), found.EndpointStatus);
    $("delete").disabled = found.EndpointStatus === "Deleting";
    this.tell(found.FailureReason ?? "");
    replaceIfChanged($("variants"), [variantTable(found, this.config.types)]);
    replaceIfChanged($("facts"), facts(found));
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
      const models = new Set(config.ProductionVariants.map((one) => one.ModelName).filter(Boolean));
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

/** Leave the nodes alone while they say the same, so that a selection stays. */
function replaceIfChanged(host, nodes) {
  const draft = element("div", {}, ...nodes);
  if (draft.innerHTML !== host.innerHTML) host.replaceChildren(...draft.childNodes);
}

function variantTable(found, types) {
  const heads = ["Variant", "Workers", "Traffic", "Instance type", "Image", "State"];
  const variants = found.ProductionVariants ?? [];
  const all = variants.reduce((sum, one) => sum + (one.CurrentWeight ?? 0), 0);
  const cells = (one) => [
    one.VariantName,
    `${one.CurrentInstanceCount ?? 0} of ${one.DesiredInstanceCount ?? one.CurrentInstanceCount ?? 0}`,
    all > 0 ? `${Math.round((100 * (one.CurrentWeight ?? 0)) / all)} %` : "–",
    types.get(one.VariantName) ?? one.InstancePools?.[0]?.InstanceType ?? "–",
    (one.DeployedImages ?? []).map((image) => image.SpecifiedImage).join(", ") || "–",
    (one.VariantStatus ?? []).map(({ Status: status, StatusMessage: why }) => (why ? `${status}: ${why}` : status)).join(" ") || "–",
  ];
  const row = (one) => element("tr", {}, ...cells(one).map((textContent) => element("td", { textContent })));
  const head = element("tr", {}, ...heads.map((textContent) => element("th", { textContent, scope: "col" })));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...variants.map(row)));
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

function exampleFor(name) {
  return `curl ${location.origin}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "${name}", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'

boto3.client("sagemaker-runtime").invoke_endpoint_with_response_stream(
    EndpointName="${name}", ContentType="application/json",
    Body='{"inputs": "Hello", "stream": true}')   # in a shell that ran: eval "$(headrace env)"`;
}
