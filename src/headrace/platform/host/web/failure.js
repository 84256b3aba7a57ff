// The view of a failed endpoint: the reason as a headline, the last lines of its log, and what to do next.

import { showAdvice } from "./advice.js";
import { $, element } from "./dom.js";
import { lastLines, lineNode } from "./log_lines.js";

const NUM_LINES = 12;

export class Failure {
  /** `retry(name)` opens the form with what the endpoint was deployed with. */
  constructor(retry) {
    this.name = this.at = null;
    $("retry").addEventListener("click", () => this.act(retry));
  }

  async act(retry) {
    $("retry").disabled = true;
    showAdvice("failure", null);
    try {
      await retry(this.name);
    } catch (error) {
      showAdvice("failure", error);
    } finally {
      $("retry").disabled = false;
    }
  }

  /** Show why an endpoint failed; hidden for any other state. The log is read once for each failure. */
  async show(found, signal) {
    const isFailed = found.EndpointStatus === "Failed";
    $("failure").hidden = !isFailed;
    if (!isFailed || (this.name === found.EndpointName && this.at === found.LastModifiedTime)) return;
    Object.assign(this, { name: found.EndpointName, at: found.LastModifiedTime });
    showAdvice("failure", null);
    $("failure-log").href = `#/${encodeURIComponent(found.EndpointName)}/logs`;
    const lines = await lastLines(found.EndpointName, NUM_LINES, signal);
    $("failure-lines").replaceChildren(...lines.map((line) => lineNode(line)));
    $("failure-lines").hidden = !lines.length;
    $("failure-lines-title").textContent = lines.length ? "The end of its log" : "Its workers wrote no log";
  }

  hide() {
    this.name = this.at = null;
    $("failure").hidden = true;
  }
}

/** Show a reason in `host`: the sentence that matters as a headline, the rest below; without the log if that is shown elsewhere. */
export function showReason(host, reason, { isLogShown = false } = {}) {
  const told = isLogShown ? reason.replace(/\nIts log \([^\n]*ends with:[^]*$/, "") : reason;
  if (host.dataset.reason === told) return;
  host.dataset.reason = told;
  const headline = headlineOf(told);
  const rest = told.startsWith(headline) ? told.slice(headline.length) : `\n${told.replace(`Reason: ${headline}`, "").trim()}`;
  host.replaceChildren(element("strong", { textContent: headline }), ...(rest ? [element("span", { textContent: rest })] : []));
}

/** The cause that a worker gave, after AWS's general words; else the first sentence or line. */
export function headlineOf(reason) {
  const cause = /Reason: ([^\n]+)/.exec(reason);
  if (cause) return cause[1];
  const end = /(?:[.!?](?=\s)|(?=\n))/.exec(reason); // a period inside a name or a number ends no sentence
  return end ? reason.slice(0, end.index + end[0].length) : reason;
}
