// The inference components of an endpoint: what they are doing, and what can be done with them.

import { call, callUnlessMissing } from "./aws.js";
import { Dialog } from "./dialog.js";
import { $, element } from "./dom.js";
import { showState } from "./format.js";
import { drawPlacement, needText } from "./placement.js";

const HEADS = ["Component", "State", "Copies", "A copy needs", "Model", ""];

export class Components {
  /** `changed()` is called when something was done that should be seen at once. */
  constructor(changed) {
    this.changed = changed;
    this.chosen = this.drawn = null;
    this.scaling = new Dialog("copies", () => this.setCopies());
    this.deleting = new Dialog("component-delete", () => this.remove());
  }

  /** Nothing is shown where there is no host for components. */
  show(endpoint, { components, hosts }) {
    $("components-part").hidden = !components.length && !hosts.length;
    const seen = JSON.stringify([endpoint, components, hosts]);
    if (seen === this.drawn) return; // what is focused or selected stays
    this.drawn = seen;
    const focused = document.activeElement?.dataset?.act;
    $("components").replaceChildren(components.length ? this.table(endpoint, components) : nothingYet());
    drawPlacement($("placement"), endpoint, components, hosts);
    if (focused) $("components").querySelector(`[data-act="${CSS.escape(focused)}"]`)?.focus();
  }

  table(endpoint, components) {
    const head = element("tr", {}, ...HEADS.map((textContent) => element("th", { textContent, scope: "col" })));
    const rows = components.flatMap((one) => this.rows(endpoint, one));
    return element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  }

  rows(endpoint, one) {
    const state = element("span");
    showState(state, one.status);
    const cells = [
      element("strong", { textContent: one.name }),
      state,
      `${one.serving} of ${one.desired}`,
      needText(one.need),
      one.model || "its own container",
      this.doings(endpoint, one),
    ];
    const row = element("tr", {}, ...cells.map((cell) => element("td", {}, cell)));
    if (!one.failure_reason) return [row];
    const why = element("td", { colSpan: HEADS.length, className: "why-failed", textContent: one.failure_reason });
    return [row, element("tr", {}, why)];
  }

  /** Where else it can be seen, and what can be done with it. */
  doings(endpoint, one) {
    const place = (tab) => `#/${encodeURIComponent(endpoint)}/${tab}/${encodeURIComponent(one.name)}`;
    const tabs = [["playground", "Talk"], ["scaling", "Scaling"], ["logs", "Logs"]];
    const links = tabs.map(([tab, textContent]) => element("a", { href: place(tab), textContent }));
    const buttons = [
      doing(one, "copies", "Copies", `Set the copies of ${one.name}`, () => this.askCopies(one)),
      doing(one, "delete", "Delete", `Delete ${one.name}`, () => this.askDelete(one)),
    ];
    buttons[1].className = "danger";
    return element("div", { className: "doings" }, ...links, ...buttons);
  }

  askCopies(one) {
    this.chosen = one.name;
    $("copies-name").textContent = one.name;
    $("copies-value").value = one.desired;
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

  askDelete(one) {
    this.chosen = one.name;
    $("component-delete-name").textContent = one.name;
    this.deleting.open();
  }

  async remove() {
    await callUnlessMissing("SageMaker.DeleteInferenceComponent", { InferenceComponentName: this.chosen });
    this.changed();
  }
}

function doing(one, act, textContent, label, ask) {
  const button = element("button", { type: "button", textContent, "aria-label": label, dataset: { act: `${act} ${one.name}` } });
  button.disabled = one.status === "Deleting";
  button.addEventListener("click", ask);
  return button;
}

function nothingYet() {
  return element("p", { className: "note", textContent: "No inference component yet: the instances stand ready for some." });
}
