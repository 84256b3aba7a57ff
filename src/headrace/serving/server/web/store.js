// The conversations of this browser, in IndexedDB: their heads `{id, title, changedMs, model}` and their messages apart.

const NAME = "headrace.chat";
const HEADS = "heads";
const MESSAGES = "messages";
const MAX_CONVERSATIONS = 500; // the oldest goes when there is another

export class Store {
  /** Open the store. Without IndexedDB (some private windows) conversations last until the page is left. */
  static async open() {
    try {
      const opening = indexedDB.open(NAME, 1);
      opening.onupgradeneeded = () => {
        opening.result.createObjectStore(HEADS, { keyPath: "id" });
        opening.result.createObjectStore(MESSAGES);
      };
      const database = await settled(opening);
      database.onversionchange = () => database.close(); // another tab deletes or replaces it
      return new Store(database);
    } catch {
      return new Store(null);
    }
  }

  constructor(database) {
    this.database = database;
    this.heads = new Map();
    this.kept = new Map(); // messages, without a database
  }

  get isLasting() {
    return this.database !== null;
  }

  /** Return the heads, the latest first. */
  async list() {
    const heads = this.database ? await settled(this.stores("readonly")[0].getAll()) : [...this.heads.values()];
    return heads.sort((one, other) => other.changedMs - one.changedMs);
  }

  /** Return the messages of a conversation, or undefined. */
  async messages(id) {
    if (!this.database) return structuredClone(this.kept.get(id));
    return settled(this.stores("readonly")[1].get(id));
  }

  async put(head, messages) {
    if (!this.database) {
      this.heads.set(head.id, { ...head });
      this.kept.set(head.id, structuredClone(messages));
      return;
    }
    const [heads, bodies] = this.stores("readwrite");
    heads.put(head);
    bodies.put(messages, head.id);
    await completed(heads.transaction);
    for (const { id } of (await this.list()).slice(MAX_CONVERSATIONS)) await this.remove(id);
  }

  /** Change the title only, whatever is being written into the conversation. */
  async rename(head, title) {
    if (!this.database) return void this.heads.set(head.id, { ...head, title });
    const [heads] = this.stores("readwrite");
    heads.put({ ...head, title });
    await completed(heads.transaction);
  }

  async remove(id) {
    this.heads.delete(id);
    this.kept.delete(id);
    if (!this.database) return;
    const [heads, bodies] = this.stores("readwrite");
    heads.delete(id);
    bodies.delete(id);
    await completed(heads.transaction);
  }

  stores(mode) {
    const transaction = this.database.transaction([HEADS, MESSAGES], mode);
    return [transaction.objectStore(HEADS), transaction.objectStore(MESSAGES)];
  }
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function completed(transaction) {
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });
}
