// The page of access keys: list, create, delete. A platform that requires no keys shows how to make them with the command.

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
const HEADS = ["Key id", "Note", "Created", ""];

export class Keys {
  constructor() {
    this.chosen = null;
    this.poll = new Poll((signal) => this.refresh(signal), PAUSE_MS, (error) => error && this.say(messageOf(error)));
    this.creation = new Form("key-create", () => this.create());
    $("keys-commands").replaceChildren(snippet("On the platform's machine", COMMANDS));
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
      return [element("span", {}, id, " ", copyButton(key.id, `key id ${key.id}`), ...yours), key.note || "–", ago(key.created_s), remove];
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
