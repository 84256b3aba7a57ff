// The list of endpoints: one page of `ListEndpoints` at a time, kept fresh.

import { ApiError, call, numbers } from "./aws.js";
import { $, element } from "./dom.js";
import { ago, duration, kindOf, short, showState } from "./format.js";
import { Poll } from "./poll.js";

const PAGE_SIZE = 25;
const PAUSE_MS = 2000;
const SEARCH_PAUSE_MS = 200;

export class EndpointList {
  /** `connected(error)` is told after each look whether the platform could be asked. */
  constructor(connected) {
    this.connected = connected;
    this.tokens = [undefined]; // of the pages up to this one
    this.reasons = new Map(); // name → { at, reason }, of endpoints that are not in service
    this.rows = new Map(); // name → row
    this.selected = null;
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    for (const id of ["status", "order"]) $(id).addEventListener("change", () => this.toFirstPage());
    $("search").addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.toFirstPage(), SEARCH_PAUSE_MS);
    });
    $("previous").addEventListener("click", () => (this.tokens.pop(), this.poll.again()));
    $("next").addEventListener("click", () => (this.tokens.push(this.nextToken), this.poll.again()));
    $("rows").addEventListener("keydown", (event) => this.onKey(event));
  }

  start() {
    this.poll.start();
  }

  select(name) {
    this.rows.get(this.selected)?.link.removeAttribute("aria-current");
    this.selected = name;
    this.rows.get(name)?.link.setAttribute("aria-current", "page");
  }

  toFirstPage() {
    this.tokens = [undefined];
    this.poll.again();
  }

  async refresh(signal) {
    const [sortBy, sortOrder] = $("order").value.split(" ");
    const asked = {
      MaxResults: PAGE_SIZE,
      SortBy: sortBy,
      SortOrder: sortOrder,
      ...($("search").value.trim() && { NameContains: $("search").value.trim() }),
      ...($("status").value && { StatusEquals: $("status").value }),
      ...(this.tokens.at(-1) && { NextToken: this.tokens.at(-1) }),
    };
    const { Endpoints: endpoints, NextToken: next } = await call("SageMaker.ListEndpoints", asked, signal);
    if (endpoints.length === 0 && this.tokens.length > 1) return this.toFirstPage(); // they were deleted meanwhile
    this.nextToken = next;
    this.show(endpoints);
    const query = endpoints.map((one) => `endpoint=${encodeURIComponent(one.EndpointName)}`).join("&");
    const [rates] = await Promise.all([numbers(`rates?${query}`, signal), this.findReasons(endpoints, signal)]);
    for (const [name, row] of this.rows) row.showRate(rates[name]);
  }

  /** Why endpoints are not in service; `ListEndpoints` does not say. What has come to rest is asked once. */
  async findReasons(endpoints, signal) {
    for (const one of endpoints) {
      const kind = kindOf(one.EndpointStatus);
      const name = one.EndpointName;
      if (kind === "good") {
        this.reasons.delete(name);
      } else if (kind !== "bad" || this.reasons.get(name)?.at !== one.LastModifiedTime) {
        this.reasons.set(name, { at: one.LastModifiedTime, reason: await reasonOf(name, signal) });
      }
      this.rows.get(name)?.showReason(this.reasons.get(name)?.reason ?? "");
    }
  }

  show(endpoints) {
    const rows = new Map();
    for (const one of endpoints) {
      const row = this.rows.get(one.EndpointName) ?? new Row(one.EndpointName);
      row.showEndpoint(one);
      rows.set(one.EndpointName, row);
    }
    this.place(rows);
    this.rows = rows;
    this.select(this.selected);
    $("list-note").hidden = rows.size > 0;
    $("list-note").textContent = $("search").value || $("status").value ? "No endpoint fits." : "No endpoints yet.";
    $("page").textContent = this.nextToken || this.tokens.length > 1 ? `Page ${this.tokens.length}` : "";
    $("previous").disabled = this.tokens.length === 1;
    $("next").disabled = !this.nextToken;
  }

  /** Put the rows into the page if their order has changed; the focus stays where it was. */
  place(rows) {
    const links = [...rows.values()].map((row) => row.link);
    const shown = [...$("rows").children];
    if (links.length === shown.length && links.every((link, index) => link === shown[index])) return;
    const focused = document.activeElement;
    $("rows").replaceChildren(...links);
    if (links.includes(focused)) focused.focus();
  }

  failed(error) {
    this.connected(error);
    if (error instanceof ApiError && error.status === 400 && this.tokens.length > 1) this.toFirstPage(); // a stale token
  }

  /** Up and down go from row to row. */
  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const links = [...$("rows").children];
    links[links.indexOf(document.activeElement) + step]?.focus();
    event.preventDefault();
  }
}

async function reasonOf(name, signal) {
  try {
    const found = await call("SageMaker.DescribeEndpoint", { EndpointName: name }, signal);
    const said = (found.ProductionVariants ?? []).flatMap((one) => one.VariantStatus ?? []).map((one) => one.StatusMessage);
    return found.FailureReason ?? said.find(Boolean) ?? "";
  } catch (error) {
    if (error instanceof ApiError) return ""; // gone meanwhile
    throw error;
  }
}

/** One endpoint in the list. */
class Row {
  constructor(name) {
    this.state = element("span");
    this.rate = element("span", { className: "rate" });
    this.since = element("span", { className: "since" });
    this.reason = element("span", { className: "why", hidden: true });
    this.link = element(
      "a",
      { href: `#/${encodeURIComponent(name)}`, className: "row", dataset: { name } },
      element("span", { className: "name", textContent: name, title: name }),
      this.state,
      this.since,
      this.rate,
      this.reason,
    );
  }

  showEndpoint({ EndpointStatus: status, CreationTime: created }) {
    if (this.state.textContent !== status) showState(this.state, status);
    this.since.replaceChildren(ago(created));
  }

  showRate(rate) {
    this.rate.textContent = rate ? `${short(rate.requests_per_s)}/s · ${duration(rate.first_byte_p50_ms)}` : "";
    this.rate.title = rate ? "Requests a second in the last minute, and the median time to the first byte" : "";
  }

  showReason(reason) {
    this.reason.hidden = !reason;
    this.reason.textContent = reason;
    this.reason.title = reason;
  }
}
