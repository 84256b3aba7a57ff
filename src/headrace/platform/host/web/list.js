// The list of endpoints: one page of `ListEndpoints` at a time, refreshed regularly.

import { ApiError, call, numbers } from "./aws.js";
import { $, element } from "./dom.js";
import { headlineOf } from "./failure.js";
import { ago, duration, kindOf, short, showState, stateLines } from "./format.js";
import { Poll } from "./poll.js";

const PAGE_SIZE = 25;
const PAUSE_MS = 2000;
const SEARCH_PAUSE_MS = 200;

export class EndpointList {
  /** `connected(error)` is called after each refresh; null: the platform answered. */
  constructor(connected) {
    this.connected = connected;
    this.tokens = [undefined]; // of the pages up to the current one
    this.reasons = new Map(); // name → { at, reason } of endpoints that are not in service
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
    if (endpoints.length === 0 && this.tokens.length > 1) return this.toFirstPage(); // their endpoints were deleted
    this.nextToken = next;
    this.show(endpoints);
    const query = endpoints.map((endpoint) => `endpoint=${encodeURIComponent(endpoint.EndpointName)}`).join("&");
    const [rates] = await Promise.all([numbers(`rates?${query}`, signal), this.findReasons(endpoints, signal)]);
    for (const [name, row] of this.rows) row.showNumbers(rates[name]);
  }

  /** Fetch why endpoints are not in service, which `ListEndpoints` omits. Settled endpoints are fetched once. */
  async findReasons(endpoints, signal) {
    for (const endpoint of endpoints) {
      const kind = kindOf(endpoint.EndpointStatus);
      const name = endpoint.EndpointName;
      if (kind === "good") {
        this.reasons.delete(name);
      } else if (kind !== "bad" || this.reasons.get(name)?.at !== endpoint.LastModifiedTime) {
        this.reasons.set(name, { at: endpoint.LastModifiedTime, reason: await reasonOf(name, signal) });
      }
      if (kind !== "good") this.rows.get(name)?.showReason(this.reasons.get(name)?.reason ?? "");
    }
  }

  show(endpoints) {
    const rows = new Map();
    for (const endpoint of endpoints) {
      const row = this.rows.get(endpoint.EndpointName) ?? new Row(endpoint.EndpointName);
      row.showEndpoint(endpoint);
      rows.set(endpoint.EndpointName, row);
    }
    this.place(rows);
    this.rows = rows;
    this.select(this.selected);
    $("list-note").hidden = rows.size > 0;
    $("list-note").textContent = $("search").value || $("status").value ? "No endpoint matches." : "No endpoints yet. Deploy a model to create one.";
    $("page").textContent = this.nextToken || this.tokens.length > 1 ? `Page ${this.tokens.length}` : "";
    $("pager").hidden = this.tokens.length === 1 && !this.nextToken;
    $("previous").disabled = this.tokens.length === 1;
    $("next").disabled = !this.nextToken;
  }

  /** Insert the rows if their order has changed; the focus stays. */
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

  /** The arrow keys up and down move between rows. */
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
    return found.FailureReason ?? stateLines(found.ProductionVariants ?? [])[0] ?? "";
  } catch (error) {
    if (error instanceof ApiError) return ""; // deleted meanwhile
    throw error;
  }
}

/** A row of the list. */
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
    if (this.status !== status) showState(this.state, status, this.numbers);
    this.status = status;
    this.since.replaceChildren(ago(created));
  }

  /** Show the rate of requests, if there were any, and the state by the workers that serve. */
  showNumbers(numbers = {}) {
    const { requests_per_s: rate, first_byte_p50_ms: firstByte } = numbers;
    const seen = (counts) => JSON.stringify([counts?.current, counts?.desired, counts?.trouble]);
    if (seen(numbers) !== seen(this.numbers)) showState(this.state, this.status, numbers);
    this.numbers = numbers;
    if (this.status === "InService") this.showReason(numbers.trouble ?? "");
    this.rate.textContent = rate ? `${short(rate)} per second · ${duration(firstByte)}` : "";
    this.rate.title = rate ? "Requests per second in the last minute, and the median time to the first byte" : "";
  }

  showReason(reason) {
    this.reason.hidden = !reason;
    this.reason.textContent = headlineOf(reason);
    this.reason.title = reason;
  }
}
