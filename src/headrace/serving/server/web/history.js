// The list of conversations: open, rename, delete, export and import. The address `#/<id>` names the one that is open.

import { $, element } from "./dom.js";
import { Store } from "./store.js";
import { download, fromJson, toJson, toMarkdown } from "./transfer.js";

const TITLE_CHARACTERS = 60;

export class History {
  /** `conversation` shows the open one; `modelName()` is kept with it. */
  constructor(conversation, modelName) {
    Object.assign(this, { conversation, modelName });
    this.head = null; // of the open conversation; null until its first question
    this.channel = new BroadcastChannel("headrace.chat"); // other tabs of this page
    this.opening = Store.open();
    this.writing = Promise.resolve();
  }

  async start() {
    this.store = await this.opening;
    if (!this.store.isLasting) $("history-empty").textContent = "This browser window keeps no conversations: they are lost when you leave the page.";
    this.channel.onmessage = () => this.list();
    addEventListener("hashchange", () => this.follow());
    $("new").addEventListener("click", () => this.open(null));
    $("export-markdown").addEventListener("click", () => this.export("md", "text/markdown", toMarkdown));
    $("export-json").addEventListener("click", () => this.export("json", "application/json", toJson));
    $("import").addEventListener("click", () => $("import-file").click());
    $("import-file").addEventListener("change", () => this.import());
    await this.follow();
    await this.list();
  }

  /** Open the conversation that the address names. */
  async follow() {
    const heads = await this.store.list();
    const id = location.hash.slice(2);
    if (id === this.head?.id) return; // a first question may have been asked before the list was read
    const head = heads.find((candidate) => candidate.id === id);
    if ((head?.id ?? null) !== (this.head?.id ?? null)) await this.open(head ?? null);
  }

  /** Show a conversation; null begins a new one. */
  async open(head) {
    if (this.conversation.running) this.save(); // what has arrived; showing another one stops the answer
    const messages = head ? await this.store.messages(head.id) : [];
    this.head = head;
    history.replaceState(null, "", head ? `#/${head.id}` : location.pathname);
    this.conversation.load(messages ?? []);
    this.mark();
    if (!matchMedia("(hover: none)").matches) $("prompt").focus();
    $("history").classList.remove("open");
    $("history-toggle").setAttribute("aria-expanded", "false");
  }

  /** Keep what the conversation shows now. Writes are in order: a later one has more of the answer. */
  save() {
    const { messages } = this.conversation;
    if (!messages.length) return;
    if (!this.head) {
      this.head = { id: newId(), title: titleOf(messages) };
      history.replaceState(null, "", `#/${this.head.id}`);
    }
    Object.assign(this.head, { changedMs: Date.now(), model: this.modelName() });
    const [head, copy] = [{ ...this.head }, structuredClone(messages)];
    const writing = this.writing.then(() => this.opening).then((store) => store.put(head, copy)).then(() => this.told(""), (error) => this.told(whyNotKept(error)));
    this.writing = writing;
    $("conversations").setAttribute("aria-busy", "true");
    writing.finally(() => this.writing === writing && $("conversations").setAttribute("aria-busy", "false"));
  }

  async told(problem) {
    this.showError(problem);
    this.channel.postMessage("changed");
    await this.list();
  }

  showError(problem) {
    $("history-error").hidden = !problem;
    $("history-error").textContent = problem;
  }

  async list() {
    if ($("conversations").querySelector("input")) return; // a title is being edited
    const heads = await this.store.list();
    $("history-empty").hidden = heads.length > 0 && this.store.isLasting;
    $("conversations").replaceChildren(...heads.map((head) => this.row(head)));
    this.mark();
  }

  mark() {
    for (const row of $("conversations").children) {
      row.querySelector(".open-it").setAttribute("aria-current", String(row.dataset.id === this.head?.id));
    }
    for (const id of ["export-markdown", "export-json"]) $(id).disabled = !this.head;
  }

  row(head) {
    const open = element("button", { type: "button", className: "open-it", textContent: head.title, title: head.title });
    open.addEventListener("click", () => this.open(head));
    const rename = element("button", { type: "button", className: "icon", textContent: "✎", "aria-label": `Rename “${head.title}”`, title: "Rename" });
    const remove = element("button", { type: "button", className: "icon", textContent: "✕", "aria-label": `Delete “${head.title}”`, title: "Delete" });
    const row = element("li", { dataset: { id: head.id } }, open, rename, remove);
    rename.addEventListener("click", () => this.editTitle(row, head));
    remove.addEventListener("click", () => this.confirmRemove(remove, head));
    return row;
  }

  editTitle(row, head) {
    const field = element("input", { value: head.title, maxLength: 120, "aria-label": "Title" });
    let isKept = true;
    const end = async () => {
      const title = field.value.trim();
      field.remove(); // before the list is drawn again
      if (isKept && title && title !== head.title) {
        if (this.head?.id === head.id) this.head.title = title;
        await this.store.rename(head, title);
        this.channel.postMessage("changed");
      }
      await this.list();
    };
    field.addEventListener("blur", end, { once: true });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") isKept = false;
      if (event.key === "Enter" || event.key === "Escape") field.blur();
    });
    row.replaceChildren(field);
    field.select();
  }

  /** Ask on the button itself: the second click deletes. */
  async confirmRemove(button, head) {
    if (!button.classList.contains("sure")) {
      button.classList.add("sure");
      button.textContent = "Delete?";
      button.addEventListener("blur", () => this.list(), { once: true });
      return;
    }
    if (this.head?.id === head.id) await this.open(null);
    await this.writing; // or it would be written again
    await this.store.remove(head.id);
    await this.told("");
  }

  export(ending, type, render) {
    download(`${this.head.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 50)}.${ending}`, type, render(this.head, this.conversation.messages));
  }

  async import() {
    const [file] = $("import-file").files;
    $("import-file").value = "";
    try {
      const { title, model, messages } = fromJson(await file.text());
      const head = { id: newId(), title, model, changedMs: Date.now() };
      await this.store.put(head, messages);
      await this.told("");
      await this.open(head);
    } catch (error) {
      this.showError(`${file.name} was not imported: ${error.message}`);
    }
  }
}

function titleOf([{ text, files }]) {
  const line = (text || files[0].name).replace(/\s+/g, " ").trim();
  return line.length > TITLE_CHARACTERS ? `${line.slice(0, TITLE_CHARACTERS)}…` : line;
}

/** `crypto.randomUUID` exists only over HTTPS and on localhost. */
function newId() {
  return `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`;
}

function whyNotKept(error) {
  if (error.name === "QuotaExceededError") return "The browser has no room left for this conversation. Export it, or delete others.";
  return `The browser did not keep this conversation: ${error.message}`;
}
