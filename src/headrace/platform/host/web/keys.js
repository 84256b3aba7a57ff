// The page of access keys: list, create, limit, delete. A platform that requires no keys shows how to make them with the command.

import { accessKey, keyRequest, messageOf } from "./aws.js";
import { copyButton } from "./clipboard.js";
import { Dialog, Form } from "./dialog.js";
import { $, element } from "./dom.js";
import { ago } from "./format.js";
import { Poll } from "./poll.js";
import { snippet } from "./snippets.js";
import { table, terms } from "./tables.js";

const PAUSE_MS = 10_000;
const COMMANDS = `headrace keys create --note "the CI machine"
headrace up --host 0.0.0.0`;
const HEADS = ["Key id", "Note", "Limits", "Created", ""];
const PATTERNS = { "key-limit-models": "models", "key-limit-actions": "actions" };
const AMOUNTS = { "key-limit-requests": "requests_per_minute", "key-limit-tokens": "tokens_per_minute", "key-limit-flight": "max_in_flight" };

export class Keys {
  constructor() {
    this.chosen = null;
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => error && this.say(messageOf(error)));
    this.creation = new Form("key-create", () => this.create());
    $("keys-commands").replaceChildren(snippet("On the platform's machine", COMMANDS));
    this.limits = new Dialog("key-limit", () => this.limit());
    this.deletion = new Dialog("key-delete", () => this.remove());
  }

  open() {
    $("keys").hidden = false;
    this.poll.start();
  }

  close() {
    $("keys").hidden = true;
    $("key-made").hidden = true; // a secret is not shown again
    $("key-made-values").replaceChildren();
    this.poll.stop();
  }

  async refresh(signal) {
    const { is_managed: isManaged, keys } = await keyRequest("GET", "", undefined, signal);
    $("keys-managed").hidden = !isManaged;
    $("keys-by-command").hidden = isManaged;
    const seen = JSON.stringify(keys);
    if (isManaged && seen !== this.seen) $("keys-list").replaceChildren(this.table(keys));
    this.seen = seen;
    this.say("");
  }

  table(keys) {
    const rows = keys.map((key) => {
      const id = element("code", { textContent: key.id });
      const yours = key.is_yours ? [" ", element("span", { className: "chip", textContent: "used by this page" })] : [];
      const remove = element("button", { type: "button", className: "danger", textContent: "Delete", "aria-label": `Delete ${key.id}` });
      remove.addEventListener("click", () => this.askToDelete(key));
      const change = element("button", { type: "button", textContent: "Limits…", "aria-label": `Limits of ${key.id}` });
      change.addEventListener("click", () => this.askForLimits(key));
      const buttons = element("span", {}, change, " ", remove);
      return [element("span", {}, id, " ", copyButton(key.id, `key id ${key.id}`), ...yours), key.note || "–", key.limits_text || "none", ago(key.created_s), buttons];
    });
    return table(HEADS, rows);
  }

  async create() {
    const made = await keyRequest("POST", "", { note: $("key-note").value.trim() });
    $("key-note").value = "";
    const lines = [
      ["AWS_ACCESS_KEY_ID", made.id],
      ["AWS_SECRET_ACCESS_KEY", made.secret],
    ];
    const rows = lines.map(([name, value]) => [name, element("span", {}, element("code", { textContent: value }), " ", copyButton(value, name))]);
    $("key-made-values").replaceChildren(...terms(rows));
    $("key-made").hidden = false;
    this.poll.again();
  }

  askForLimits(key) {
    this.chosen = key;
    $("key-limit-name").textContent = key.id;
    for (const [id, name] of Object.entries(PATTERNS)) $(id).value = (key.limits[name] ?? []).join(" ");
    for (const [id, name] of Object.entries(AMOUNTS)) $(id).value = key.limits[name] ?? "";
    this.limits.open();
  }

  async limit() {
    const limits = {};
    for (const [id, name] of Object.entries(PATTERNS)) {
      const patterns = $(id).value.split(/[\s,]+/).filter(Boolean);
      if (patterns.length) limits[name] = patterns;
    }
    for (const [id, name] of Object.entries(AMOUNTS)) if ($(id).value) limits[name] = Number($(id).value);
    await keyRequest("PUT", this.chosen.id, { limits });
    this.poll.again();
  }

  askToDelete(key) {
    this.chosen = key;
    $("key-delete-name").textContent = key.id;
    $("key-delete-own").hidden = !key.is_yours;
    this.deletion.open();
  }

  async remove() {
    await keyRequest("DELETE", this.chosen.id);
    if (this.chosen.is_yours) accessKey.set("");
    this.poll.again();
  }

  say(text) {
    $("keys-note").textContent = text;
  }
}
