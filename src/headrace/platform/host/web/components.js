// The inference components of an endpoint: their states and actions.

import { showAdvice } from "./advice.js";
import { call, callUnlessMissing } from "./aws.js";
import { Dialog } from "./dialog.js";
import { $, element } from "./dom.js";
import { showReason } from "./failure.js";
import { showState, troubleOf } from "./format.js";
import { drawPlacement, needText } from "./placement.js";
import { PHASES } from "./progress.js";

const HEADS = ["Component", "State", "Copies", "A copy needs", "Model", ""];

export class Components {
  /** `changed()` is called after an action whose effect should show at once, `retry(name)` to edit a failed component. */
  constructor({ changed, retry }) {
    Object.assign(this, { changed, retry });
    this.chosen = this.drawn = null;
    this.scaling = new Dialog("copies", () => this.setCopies());
    this.deleting = new Dialog("component-delete", () => this.remove());
  }

  /** Hidden where there is no host for components. */
  show(endpoint, { components, hosts, workers = [] }) {
    $("components-part").hidden = !components.length && !hosts.length;
    if (endpoint !== this.endpoint) showAdvice("components", null);
    this.endpoint = endpoint;
    this.phases = new Map(workers.filter((worker) => worker.component && worker.state !== "serving").map((worker) => [worker.component, PHASES[worker.state]]));
    const seen = JSON.stringify([endpoint, components, hosts, [...this.phases]]);
    if (seen === this.drawn) return; // keep focus and selection
    this.drawn = seen;
    const focused = document.activeElement?.dataset?.act;
    $("components").replaceChildren(components.length ? this.table(endpoint, components) : nothingYet());
    drawPlacement($("placement"), endpoint, components, hosts);
    if (focused) $("components").querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
  }

  table(endpoint, components) {
    const head = element("tr", {}, ...HEADS.map((textContent) => element("th", { textContent, scope: "col" })));
    const rows = components.flatMap((component) => this.rows(endpoint, component));
    return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  }

  rows(endpoint, component) {
    const state = element("span");
    const numbers = component.base ? {} : { current: component.serving, desired: component.desired, trouble: component.trouble };
    showState(state, component.status, numbers);
    const cells = [
      element("strong", { textContent: component.name }),
      state,
      component.base ? "" : `${component.serving} of ${component.desired}`,
      component.base ? "" : needText(component.need),
      component.base ? `adapter of ${component.base}` : component.model || "its own container",
      this.doings(endpoint, component),
    ];
    const row = element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
    const phase = component.serving < component.desired ? this.phases.get(component.name) : "";
    const reason = component.failure_reason || troubleOf(numbers) || (component.status === "Failed" ? "" : phase);
    if (!reason) return [row];
    const why = element("p");
    showReason(why, reason, { isLogShown: true }); // it has a tab of its own
    return [row, element("tr", {}, element("td", { colSpan: HEADS.length, className: reason === phase ? "note" : "why-failed" }, why))];
  }

  /** Links to other tabs, and the actions of a component. */
  doings(endpoint, component) {
    const place = (tab) => `#/${encodeURIComponent(endpoint)}/${tab}/${encodeURIComponent(component.name)}`;
    const talk = ["playground", "Talk"];
    const tabs = component.base ? [talk] : [talk, ["scaling", "Scaling"], ["logs", "Logs"]];
    const links = tabs.map(([tab, textContent]) => element("a", { href: place(tab), textContent }));
    const buttons = [
      doing(component, "copies", "Copies", `Set the copies of ${component.name}`, () => this.askCopies(component)),
      doing(component, "delete", "Delete", `Delete ${component.name}`, () => this.askDelete(component)),
    ];
    buttons[1].className = "danger";
    if (component.status === "Failed") buttons.unshift(doing(component, "retry", "Edit and retry", `Edit and retry ${component.name}`, () => this.edit(component)));
    const shown = buttons.filter((button) => !component.base || !button.dataset.act.startsWith("copies ")); // an adapter has those of its base
    return element("div", { className: "doings" }, ...links, ...shown);
  }

  async edit(component) {
    showAdvice("components", null);
    await this.retry(component.name).catch((error) => showAdvice("components", error));
  }

  askCopies(component) {
    this.chosen = component.name;
    $("copies-name").textContent = component.name;
    $("copies-value").value = component.desired;
    this.scaling.open();
    $("copies-value").select();
  }

  async setCopies() {
    await call("SageMaker.UpdateInferenceComponentRuntimeConfig", {
      InferenceComponentName: this.chosen,
      DesiredRuntimeConfig: { CopyCount: Number($("copies-value").value) },
    });
    this.changed();
  }

  askDelete(component) {
    this.chosen = component.name;
    $("component-delete-name").textContent = component.name;
    this.deleting.open();
  }

  async remove() {
    await callUnlessMissing("SageMaker.DeleteInferenceComponent", { InferenceComponentName: this.chosen });
    this.changed();
  }
}

function doing(component, act, textContent, label, ask) {
  const button = element("button", { type: "button", textContent, "aria-label": label, dataset: { act: `${act} ${component.name}` } });
  button.disabled = component.status === "Deleting";
  button.addEventListener("click", ask);
  return button;
}

function nothingYet() {
  return element("p", { className: "note", textContent: "No inference components yet." });
}
