// Text files for the next question: by the button, dropped on the page or pasted.

import { $, element } from "./dom.js";

export const MAX_FILE_KIB = 256;
const MAX_FILES = 10;

export class Attachments {
  constructor() {
    this.files = []; // `{name, text}`
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => this.add([...$("file").files]).then(() => ($("file").value = "")));
    $("prompt").addEventListener("paste", (event) => {
      const files = [...event.clipboardData.files];
      if (!files.length || event.clipboardData.types.includes("text/plain")) return; // offices offer text and a picture of it
      event.preventDefault();
      this.add(files);
    });
    for (const name of ["dragenter", "dragover"]) {
      document.addEventListener(name, (event) => {
        if (!event.dataTransfer.types.includes("Files")) return;
        event.preventDefault();
        document.body.classList.add("dropping");
      });
    }
    document.addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"));
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.add([...event.dataTransfer.files]);
    });
  }

  async add(files) {
    const problems = [];
    for (const file of files) {
      try {
        const text = await readText(file);
        if (this.files.length >= MAX_FILES) throw new Error(`${file.name} is one too many; expected at most ${MAX_FILES} files.`);
        this.files.push({ name: file.name, text });
      } catch (error) {
        problems.push(error.message);
      }
    }
    this.show(problems);
    $("prompt").focus();
  }

  clear() {
    this.files = [];
    this.show([]);
  }

  show(problems) {
    $("files").replaceChildren(...this.files.map((file) => this.chip(file)));
    $("files").hidden = !this.files.length;
    $("files-error").textContent = problems.join(" ");
    $("files-error").hidden = !problems.length;
  }

  chip(file) {
    const remove = element("button", { type: "button", className: "icon", textContent: "✕", "aria-label": `Remove ${file.name}` });
    remove.addEventListener("click", () => {
      this.files = this.files.filter((other) => other !== file);
      this.show([]);
    });
    return element("span", { className: "file" }, element("span", { textContent: file.name }), remove);
  }
}

/** Return the text of a file; throws an error in one sentence if it is too large or not text. */
async function readText(file) {
  if (file.size > MAX_FILE_KIB * 1024) {
    throw new Error(`${file.name} has ${Math.ceil(file.size / 1024)} KiB; expected at most ${MAX_FILE_KIB} KiB.`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return text;
  } catch {
    // not UTF-8, or a folder
  }
  throw new Error(`${file.name} is not a text file; expected text in UTF-8.`);
}
