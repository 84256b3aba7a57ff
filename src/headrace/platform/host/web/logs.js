// The workers' logs as they are written: `GetLogEvents` for each stream, starting near its end.

import { ApiError, call, messageOf } from "./aws.js";
import { $, element } from "./dom.js";
import { zone } from "./format.js";
import { lineNode, readLine } from "./log_lines.js";
import { Poll } from "./poll.js";

const PAUSE_MS = 1500;
const MAX_LINES = 2000;
const MAX_STREAMS = 10; // read at once, those that wrote last
const FIRST_LINES = 500;
const LOOKS_PER_LIST = 6; // polls between two lists of workers

export class Logs {
  constructor() {
    this.name = this.component = null;
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => this.failed(error));
    $("log-source").addEventListener("change", () => {
      location.hash = `#/${encodeURIComponent(this.name)}/logs/${encodeURIComponent($("log-source").value)}`;
    });
    $("log-zone").textContent = `Times are in ${zone()}.`;
    $("stream").addEventListener("change", () => this.restart());
    $("log-filter").addEventListener("input", () => this.filter());
    $("follow").addEventListener("change", () => this.toEnd());
    $("lines").addEventListener("scroll", () => this.onScroll());
  }

  /** Show the log of an endpoint's workers, or of the copies of a component; of one stream if it is named. */
  open(name, component = "", stream = "") {
    if (this.name !== name) {
      $("log-source").replaceChildren();
      this.isKnown = component !== ""; // whether the endpoint has its own log is known later
    }
    if (this.name !== name || this.component !== component || (stream && $("stream").value !== stream)) {
      Object.assign(this, { name, component });
      const options = [element("option", { value: "", textContent: "All workers" })];
      if (stream) options.push(element("option", { value: stream, textContent: stream }));
      $("stream").replaceChildren(...options);
      $("stream").value = stream;
      this.reset();
    }
    $("log-source").value = component;
    this.poll.start();
  }

  /** Set the components. All workers of a host are copies of components, so it has no log of its own. */
  know(name, components, isHost) {
    if (name !== this.name) return;
    const values = isHost ? components : ["", ...components];
    const shown = [...$("log-source").options].map((option) => option.value);
    if (shown.join() !== values.join()) {
      $("log-source").replaceChildren(...values.map((value) => element("option", { value, textContent: value || "The endpoint's workers" })));
    }
    $("log-source").hidden = !components.length;
    $("log-source").value = this.component;
    const isFirst = !this.isKnown;
    this.isKnown = true;
    if (!this.poll.isOn) return;
    if (isHost && !this.component && components.length) this.open(name, components[0]);
    else if (isFirst) this.poll.again();
  }

  close() {
    this.poll.stop();
  }

  restart() {
    this.reset();
    this.poll.again();
  }

  reset() {
    this.streams = [];
    this.tokens = new Map(); // stream → token of the next events
    this.looks = 0;
    $("lines").replaceChildren();
    this.say("Reading…");
  }

  async refresh(signal) {
    if (!this.isKnown) return;
    const [tokens, logGroupName] = [this.tokens, this.group()];
    if (this.looks % LOOKS_PER_LIST === 0) await this.findStreams(logGroupName, signal);
    this.looks += 1;
    const chosen = $("stream").value;
    const wanted = chosen ? [chosen] : this.streams.slice(0, MAX_STREAMS);
    const read = async (logStreamName) => {
      const token = tokens.get(logStreamName);
      const from = token ? { nextToken: token, startFromHead: true } : { startFromHead: false, limit: FIRST_LINES };
      const found = await call("Logs_20140328.GetLogEvents", { logGroupName, logStreamName, ...from }, signal);
      return { logStreamName, found };
    };
    const answers = await Promise.all(wanted.map(read));
    if (signal.aborted) return; // the result belongs to an earlier choice
    for (const { logStreamName, found } of answers) tokens.set(logStreamName, found.nextForwardToken);
    this.add(answers.flatMap(({ logStreamName, found }) => found.events.map((event) => ({ ...event, stream: logStreamName }))));
    const left = this.streams.length - wanted.length;
    this.say(!wanted.length ? "No worker has written anything yet." : !chosen && left > 0 ? `${left} more workers: choose one to see it.` : "");
  }

  group() {
    return this.component ? `/aws/sagemaker/InferenceComponents/${this.component}` : `/aws/sagemaker/Endpoints/${this.name}`;
  }

  async findStreams(logGroupName, signal) {
    const asked = { logGroupName, orderBy: "LastEventTime", descending: true, limit: 50 };
    const { logStreams } = await call("Logs_20140328.DescribeLogStreams", asked, signal);
    this.streams = logStreams.map((stream) => stream.logStreamName);
    const shown = new Set([...$("stream").options].map((option) => option.value));
    for (const name of this.streams) {
      if (!shown.has(name)) $("stream").append(element("option", { value: name, textContent: name }));
    }
  }

  /** Sort the lines of several workers by time within one batch. */
  add(events) {
    if (!events.length) return;
    const view = $("lines");
    events.sort((first, second) => first.timestamp - second.timestamp);
    const isMany = !$("stream").value && this.streams.length > 1;
    view.append(...events.map((event) => this.line(event, isMany)));
    while (view.childElementCount > MAX_LINES) view.firstElementChild.remove();
    this.toEnd();
  }

  line(event, isMany) {
    const { stream } = event;
    const line = lineNode(readLine(event), isMany ? [element("span", { className: "who", textContent: stream.split("/").at(-1), title: stream })] : []);
    line.hidden = !this.fits(line);
    return line;
  }

  fits(line) {
    return line.lastChild.textContent.toLowerCase().includes($("log-filter").value.toLowerCase());
  }

  filter() {
    for (const line of $("lines").children) line.hidden = !this.fits(line);
    this.toEnd();
  }

  toEnd() {
    const view = $("lines");
    if ($("follow").checked) view.scrollTop = view.scrollHeight;
  }

  /** Scrolling up stops following, scrolling to the end resumes it. */
  onScroll() {
    const view = $("lines");
    $("follow").checked = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
  }

  failed(error) {
    if (!error) return;
    if (error instanceof ApiError && error.isMissing) {
      this.looks = 0;
      this.say("No worker has written anything yet.");
    } else this.say(messageOf(error));
  }

  say(text) {
    $("log-note").textContent = text;
  }
}
