// A growing text in Markdown: only the blocks that have changed are built again, so that a selection elsewhere stays.

import { blocksOf } from "./markdown.js";
import { patchChildren } from "./patch.js";

export class Blocks {
  constructor(host) {
    this.host = host;
    this.sources = [];
  }

  show(text) {
    const blocks = blocksOf(text);
    const nodes = blocks.map((block, index) => {
      const shown = block.source === this.sources[index] && this.host.childNodes[index];
      return shown || block.build();
    });
    this.sources = blocks.map((block) => block.source);
    patchChildren(this.host, nodes);
  }
}
